"""Reads single sandboxes for the Sandboxes page; answers are cached for all browsers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dashboard.shell.page import Scope
from server.query import Reader, SandboxRow

PENDING = ("queued", "building_image", "starting")
# Younger than the grid on which signals are derived: a number and its row are of one tick, give or take one.
KEEP_SECONDS = 4.0
_PAGE, MOST_PAGES = 1000, 10
_DANGLING, _FAILED, _READY = 100, 200, 100
# States that have a spin-up time.
_SPUN = ("running", "paused", "stopping", "terminated")


@dataclass(frozen=True, slots=True)
class SandboxRecords:
    """Of one run.

    Attributes:
        pending: its own that are not ready, the oldest first, those without a time last.
        cut: there are more than were read; the newest were read.
        failed: its own that failed, the newest first.
        sources: clocks that timed the newest spin-ups, the most frequent first.
    """

    funnel: Mapping[str, int | None]
    pending: tuple[SandboxRow, ...]
    cut: bool
    dangling: tuple[SandboxRow, ...]
    failed: tuple[SandboxRow, ...]
    sources: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether any sandbox is reported."""
        return bool(self.funnel.get("requested") or self.dangling)


def records(scope: Scope) -> SandboxRecords:
    """As read at most `KEEP_SECONDS` ago."""
    return scope.shared.get(
        ("sandboxes", scope.run), KEEP_SECONDS, lambda: _read(scope.reader, scope.run), scope.cursor
    )


def _read(reader: Reader, run: str) -> SandboxRecords:
    pages = list(_pages(reader, run))
    pending = [row for page in pages for row in page if row.own]
    failed = [row for row in reader.sandboxes.page(run, ("failed",), limit=_FAILED) if row.own]
    return SandboxRecords(
        funnel=reader.sandboxes.funnel(run),
        pending=tuple(sorted(pending, key=_requested)),
        cut=len(pages) == MOST_PAGES and len(pages[-1]) == _PAGE,
        dangling=tuple(sorted(reader.sandboxes.page(run, dangling=True, limit=_DANGLING), key=_requested)),
        failed=tuple(sorted(failed, key=over_at, reverse=True)),
        sources=_sources(reader.sandboxes.page(run, _SPUN, limit=_READY)),
    )


def _pages(reader: Reader, run: str) -> Iterator[list[SandboxRow]]:
    """Every pending one: pages come newest first, and the oldest is the one that matters."""
    before: str | None = None
    for _ in range(MOST_PAGES):
        page = reader.sandboxes.page(run, PENDING, limit=_PAGE, before=before)
        yield page
        if len(page) < _PAGE:
            return
        before = page[-1].id


def _requested(row: SandboxRow) -> tuple[bool, float]:
    return row.requested_at is None, row.requested_at or 0.0


def over_at(row: SandboxRow) -> float:
    """When it ended, or was last seen."""
    return row.ended_at if row.ended_at is not None else row.seen_at


def _sources(rows: list[SandboxRow]) -> tuple[str, ...]:
    named = [row.latency_source for row in rows if row.own and row.spinup_seconds is not None and row.latency_source]
    return tuple(sorted(set(named), key=lambda name: (-named.count(name), name)))
