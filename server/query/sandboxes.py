"""Reads sandboxes: records, the funnel, and spin-ups over time."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import structs

from server.lib.clock import Clock
from server.query.run_state import stored_run
from server.signals.sandbox_spinup import EDGES
from server.signals.sandbox_window import OVER, spinup
from server.store import Store
from server.store.types import SandboxRow


class SandboxReader:
    """Reads sandboxes. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def page(
        self, run: str, states: Sequence[str] = (), *, dangling: bool | None = None, find: str = "", limit: int = 100,
        before: str | None = None,
    ) -> list[SandboxRow]:  # fmt: skip
        """Sandboxes of a run's providers, newest first. ``before``: id of the last sandbox of the previous page.

        ``find``: part of an id or a name, case-insensitive.
        """
        name, sandboxes, now = stored_run(self._store, run).name, self._store.sandboxes, self._clock.now()
        seen = sandboxes.first_seen(name, before) if before is not None else None
        last = (seen, before) if seen is not None and before is not None else None
        rows = sandboxes.page(name, states=states, dangling=dangling, find=find, limit=limit, before=last)
        return [_aged(row, now) for row in rows]

    def funnel(self, run: str) -> Mapping[str, int | None]:
        """How many of the run's own sandboxes reached each stage: requested, started, ready, first_exec, ended, failed.

        ``first_exec`` counts among the ``first_exec_of`` whose source reports it, and is None if no source does.
        ``met_ended`` had ended before their source was watched, and would distort a share of failures.
        """
        return self._store.sandboxes.funnel(stored_run(self._store, run).name)

    def spinups(self, run: str, start: float, end: float, buckets: int = 60) -> list[tuple[float, Mapping[str, int]]]:
        """(bucket's start, {upper edge in seconds: how many became ready}) for a heat map, without empty buckets."""
        name, width = stored_run(self._store, run).name, (end - start) / max(1, buckets)
        cells: dict[int, Counter[str]] = {}
        for ready, seconds in self._store.sandboxes.spinups(name, round(start * 1000), round(end * 1000)):
            cells.setdefault(int((ready - start) / width), Counter())[edge_of(seconds)] += 1
        return [(start + number * width, cells[number]) for number in sorted(cells)]


def edge_of(seconds: float) -> str:
    """The upper edge of the bucket a spin-up falls into, as on `/metrics`."""
    return next((f"{edge:g}" for edge in EDGES if seconds <= edge), "+Inf")


def _aged(row: SandboxRow, now: float) -> SandboxRow:
    waits = row.ready_at is None and row.state not in OVER and row.requested_at is not None
    pending = max(0.0, now - (row.requested_at or now)) if waits else None
    return structs.replace(row, spinup_seconds=spinup(row), pending_seconds=pending)
