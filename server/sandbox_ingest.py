"""From what a provider says of its sandboxes to rows and to what changed: whose they are, which are new, which ended.

One per run. A listing repeats thousands of rows that say nothing new: only changes are written and handed on.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from collectors.model import Sandbox, Target
from server.store.types import SandboxRow

# A provider's id is some 40 characters; what is longer would not fit an index.
ID_LENGTH, TEXT_LENGTH = 200, 500
LIVE = frozenset({"queued", "building_image", "starting", "running", "paused", "stopping", "unknown"})
# Before these a sandbox is of no use yet.
PENDING = frozenset({"queued", "building_image", "starting"})
# How long an ended sandbox is remembered: a provider lists those of the last minutes again and again.
REMEMBERED_SECONDS = 3600.0
_TIMES = ("requested_at", "started_at", "ready_at", "ended_at")


@dataclass(frozen=True, slots=True)
class SandboxArrival:
    """One change: the row, and what it newly says. ``ts``: when we heard of it, epoch seconds."""

    ts: float
    row: SandboxRow
    created: bool
    became_ready: bool
    failed: bool


class SandboxIngest:
    """What is known of one run's sandboxes, so that a row is compared with the one before it.

    Args:
        rows: what the store holds of them (live, and lately ended); others are to be recalled when they are met.
        keys: names by which providers may know the run: its name, its own name for itself, a configured one.
    """

    def __init__(self, rows: Iterable[SandboxRow], keys: Collection[str]) -> None:
        self.keys = set(keys)
        self._known: dict[tuple[str, str], SandboxRow] = {(row.record.provider, row.record.id): row for row in rows}

    def unknown(self, records: Iterable[Sandbox]) -> list[tuple[str, str]]:
        """(provider, id) of those not in memory: new ones, or ones that ended too long ago to be remembered."""
        return [key for record in records if (key := (record.provider, _cut(record.id))) not in self._known]

    def recall(self, rows: Iterable[SandboxRow]) -> None:
        """Take rows of the store back into memory: what was counted once must not look new."""
        self._known.update({(row.record.provider, row.record.id): row for row in rows})

    def take(
        self, target: Target, records: Iterable[Sandbox], listed: Collection[str], runs: Collection[str], now: float
    ) -> list[SandboxArrival]:
        """Changes that a reading brings.

        Args:
            listed: providers of which `records` holds every live sandbox.
            runs: keys of the runs that live now: what says it belongs to none of them dangles.
        """
        newest = {(record.provider, _cut(record.id)): record for record in records if record.id}
        found = [self._one(target, key, record, runs, now) for key, record in newest.items()]
        found += [self._gone(row, now) for row in self._missing(target, newest, listed)]
        self._forget(now)
        return [arrival for arrival in found if arrival is not None]

    def _one(
        self, target: Target, key: tuple[str, str], record: Sandbox, runs: Collection[str], now: float
    ) -> SandboxArrival | None:
        before = self._known.get(key)
        merged = _merged(before.record if before else None, _clean(record), now)
        own = not merged.run_key or merged.run_key in self.keys
        dangling = merged.state in LIVE and not own and merged.run_key not in runs
        return self._changed(before, SandboxRow(target.name, merged, own, dangling, _ms(now), _ms(now)), now)

    def _missing(
        self, target: Target, newest: Mapping[tuple[str, str], Sandbox], listed: Collection[str]
    ) -> list[SandboxRow]:
        """Live ones of a complete listing that it leaves out: they have ended, unseen."""
        return [
            row
            for key, row in self._known.items()
            if key[0] in listed and row.target == target.name and key not in newest and row.record.state in LIVE
        ]

    def _gone(self, before: SandboxRow, now: float) -> SandboxArrival | None:
        ended = replace(before.record, state="terminated", provider_state="not listed any more", ended_at=now)
        return self._changed(before, replace(before, record=ended, dangling=False, seen_at=_ms(now)), now)

    def _changed(self, before: SandboxRow | None, row: SandboxRow, now: float) -> SandboxArrival | None:
        ready = row.record.ready_at is not None and (before is None or before.ready_seen is None)
        failed = row.record.state == "failed" and (before is None or before.failed_seen is None)
        row = replace(
            row,
            first_seen=before.first_seen if before else row.first_seen,
            ready_seen=_ms(now) if ready else before.ready_seen if before else None,
            failed_seen=_ms(now) if failed else before.failed_seen if before else None,
        )
        key = (row.record.provider, row.record.id)
        same = before is not None and (before.record, before.own, before.dangling) == (
            row.record,
            row.own,
            row.dangling,
        )
        self._known[key] = row if not same or before is None else before
        return None if same else SandboxArrival(now, row, before is None, ready, failed)

    def _forget(self, now: float) -> None:
        old = now - REMEMBERED_SECONDS
        ended = [key for key, row in self._known.items() if (row.record.ended_at or now) < old]
        for key in ended:
            del self._known[key]


def _merged(before: Sandbox | None, record: Sandbox, now: float) -> Sandbox:
    """The newest word, with times that an older one knew better. An end is final, and a first time the true one."""
    if before is None:
        return _ended(record, now)
    if before.ended_at is not None and record.state in LIVE:
        return before  # a page that was on its way while it ended
    if before.state == "failed":
        # Providers list what failed as terminated once they have cleaned up: it failed all the same.
        record = replace(record, state="failed", cause=before.cause)
    known = {name: _first(getattr(before, name), getattr(record, name)) for name in _TIMES}
    kept = {
        field.name: getattr(before, field.name)
        for field in fields(Sandbox)
        if field.name not in _TIMES and getattr(record, field.name) in (None, "")
    }
    merged = replace(record, **{**kept, **known})
    if merged.ready_at is None and record.state == "running" and before.state in PENDING:
        # The provider tells no time: between the last poll and this one it became usable.
        merged = replace(merged, ready_at=now, latency_source="poll_bound")
    if merged.state != "failed" and merged.cause is not None:
        merged = replace(merged, cause=None)
    return _ended(merged, now)


def _ended(record: Sandbox, now: float) -> Sandbox:
    if record.state in ("terminated", "failed") and record.ended_at is None:
        record = replace(record, ended_at=now)
    return replace(record, cause="unknown") if record.state == "failed" and record.cause is None else record


def _first(known: float | None, said: float | None) -> float | None:
    return said if known is None else known


def _clean(record: Sandbox) -> Sandbox:
    changes = {
        "id": _cut(record.id), "name": record.name[:TEXT_LENGTH], "run_key": record.run_key[:TEXT_LENGTH],
        "provider_state": record.provider_state[:TEXT_LENGTH], "image": record.image[:TEXT_LENGTH],
        "detail": record.detail[:TEXT_LENGTH],
    }  # fmt: skip
    return replace(record, **changes)  # type: ignore[arg-type]


def _cut(text: str) -> str:
    return text[:ID_LENGTH]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
