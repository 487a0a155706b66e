"""From what a provider says of its sandboxes to rows and to what changed: whose they are, which are new, which ended.

One per run. A listing repeats thousands of rows that say nothing new: only changes are written and handed on.
"""

import math
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
# The provider said nothing of its end: complete listings left it out.
GONE = "not listed any more"
# One short or empty answer is a slip of the provider's; two of them are an end.
MISSED_LISTINGS = 2
_TIMES = ("requested_at", "started_at", "ready_at", "first_exec_at", "ended_at")


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
        since: when the run began for us, epoch seconds (None: with the first listing): what a provider tells of the
            time before is history, of which it keeps some ends longer than others, and not ours to count.
    """

    def __init__(self, rows: Iterable[SandboxRow], keys: Collection[str], since: float | None = 0.0) -> None:
        self.keys = set(keys)
        self._since = since
        # Complete listings in a row that left a live one out, with the time of the first.
        self._missed: dict[tuple[str, str], tuple[int, float]] = {}
        # Readings in a row in which one that had ended was live.
        self._again: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[str, str], SandboxRow] = {(row.record.provider, row.record.id): row for row in rows}
        # What was said of one last, and the row that it led to: a listing says the same of most of them again.
        self._said: dict[tuple[str, str], tuple[Sandbox, SandboxRow]] = {}

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
        if listed and self._since is None:
            self._since = now
        newest = {(record.provider, _cut(record.id)): record for record in records if record.id}
        if listed:
            newest = {key: record for key, record in newest.items() if not self._history(key, record)}
        found = [self._one(target, key, record, runs, now) for key, record in newest.items()]
        found += [self._gone(row, since, now) for row, since in self._missing(target, newest, listed, now)]
        self._forget(now)
        return [arrival for arrival in found if arrival is not None]

    def _one(
        self, target: Target, key: tuple[str, str], record: Sandbox, runs: Collection[str], now: float
    ) -> SandboxArrival | None:
        before, said = self._known.get(key), record
        self._missed.pop(key, None)
        if before is not None and self._repeats(key, before, said, runs):
            return None
        record, old = _clean(said), before.record if before is not None else None
        if old is not None and self._revived(key, old, record):
            old = replace(old, state=record.state, ended_at=None, cause=None)
        merged = _merged(old, record, now)
        found = self._changed(
            before, SandboxRow(target.name, merged, *self._whose(merged, runs), _ms(now), _ms(now)), now
        )
        self._said[key] = (said, self._known[key])
        return found

    def _whose(self, record: Sandbox, runs: Collection[str]) -> tuple[bool, bool]:
        """(ours, dangling: it lives and belongs to no run that does)."""
        own = not record.run_key or record.run_key in self.keys
        return own, record.state in LIVE and not own and record.run_key not in runs

    def _repeats(self, key: tuple[str, str], before: SandboxRow, said: Sandbox, runs: Collection[str]) -> bool:
        """Does it say once more what led to the row that we have?"""
        last = self._said.get(key)
        if last is None or last[1] is not before or last[0] != said:
            return False
        if before.record.ended_at is not None:
            if said.state in LIVE:
                return False  # how often it is said that one that ended lives is counted
            self._again.pop(key, None)
        return self._whose(before.record, runs) == (before.own, before.dangling)

    def _history(self, key: tuple[str, str], record: Sandbox) -> bool:
        """Was it over before the run began for us, and never met?"""
        ended = record.ended_at
        return key not in self._known and ended is not None and self._since is not None and ended < self._since

    def _revived(self, key: tuple[str, str], before: Sandbox, record: Sandbox) -> bool:
        """Does one that had ended live again? A container is started once more; a provider left it out by mistake."""
        if before.ended_at is None or record.state not in LIVE:
            self._again.pop(key, None)
            return False
        begun = max((at for at in (record.started_at, record.ready_at) if at is not None), default=-math.inf)
        # A page that was on its way while it ended shows it live once, not twice.
        self._again[key] = seen = self._again.get(key, 0) + 1
        if before.provider_state != GONE and begun <= before.ended_at and seen < 2:
            return False
        del self._again[key]
        return True

    def _missing(
        self, target: Target, newest: Mapping[tuple[str, str], Sandbox], listed: Collection[str], now: float
    ) -> list[tuple[SandboxRow, float]]:
        """Live ones that complete listings leave out, and since when: they have ended, unseen."""
        found = []
        for key, row in self._known.items():
            if key[0] in listed and row.target == target.name and key not in newest and row.record.state in LIVE:
                times, since = self._missed.get(key, (0, now))
                self._missed[key] = (times + 1, since)
                if times + 1 >= MISSED_LISTINGS:
                    found.append((row, since))
        return found

    def _gone(self, before: SandboxRow, since: float, now: float) -> SandboxArrival | None:
        self._missed.pop((before.record.provider, before.record.id), None)
        ended = replace(before.record, state="terminated", provider_state=GONE, ended_at=since)
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
            self._said.pop(key, None)
            self._again.pop(key, None)


def _merged(before: Sandbox | None, record: Sandbox, now: float) -> Sandbox:
    """The newest word, with times that an older one knew better. An end is final, and a first time the true one."""
    if before is None:
        return _ended(record, now)
    if before.ended_at is not None and record.state in LIVE:
        return before
    if before.state == "failed":
        # Providers list what failed as terminated once they have cleaned up: it failed all the same.
        record = replace(record, state="failed", cause=before.cause)
    known = {name: _first(getattr(before, name), getattr(record, name)) for name in _TIMES}
    kept = {
        field.name: getattr(before, field.name)
        for field in fields(Sandbox)
        if field.name not in _TIMES and getattr(record, field.name) in (None, "")
    }
    # The first times stand, so what they were read from does too.
    source = before.latency_source or record.latency_source
    merged = replace(record, **{**kept, **known, "latency_source": source})
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
