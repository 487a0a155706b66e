"""Turns a provider's sandbox records into rows and changes: ownership, new sandboxes, ended sandboxes.

One `SandboxIngest` per run. A listing repeats thousands of unchanged sandboxes; only changes are written.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from msgspec import structs

from collectors.model import Sandbox, Target
from server.store.types import SandboxRow

# Longest stored id, characters. A provider's id has about 40; a longer one would not fit an index.
ID_LENGTH = 200
# Longest stored text, characters.
TEXT_LENGTH = 500
LIVE = frozenset({"queued", "building_image", "starting", "running", "paused", "stopping", "unknown"})
# States before a sandbox is usable.
PENDING = frozenset({"queued", "building_image", "starting"})
# How long an ended sandbox stays in memory (s), because a provider lists recently ended sandboxes again.
REMEMBERED_SECONDS = 3600.0
# Provider state of a sandbox whose end was not reported: complete listings left it out.
GONE = "no longer listed"
# Complete listings without a sandbox that mean its end. One short or empty answer can be an error of the provider.
MISSED_LISTINGS = 2
# What a change of makes a row another one.
_content = attrgetter(*Sandbox.__struct_fields__, "own", "dangling")
_TIMES = ("requested_at", "started_at", "ready_at", "first_exec_at", "ended_at")


@dataclass(frozen=True, slots=True)
class SandboxArrival:
    """One change of a sandbox, with the new row. ``ts``: when the change was read, epoch seconds."""

    ts: float
    row: SandboxRow
    created: bool
    became_ready: bool
    failed: bool


def arrivals_of(row: SandboxRow, *, created: bool, became_ready: bool, failed: bool) -> list[SandboxArrival]:
    """Returns the changes of a row that was written elsewhere, each at the time that the row has for it.

    The watermark then separates what the stored counters contain from what they do not, in the middle of a row too.
    """
    times = {row.seen_at}
    times |= {row.first_seen} if created else set()
    times |= {row.ready_seen} if became_ready and row.ready_seen is not None else set()
    times |= {row.failed_seen} if failed and row.failed_seen is not None else set()
    return [
        SandboxArrival(
            at,
            row,
            created and at == row.first_seen,
            became_ready and at == row.ready_seen,
            failed and at == row.failed_seen,
        )
        for at in sorted(times)
    ]


class SandboxIngest:
    """Sandboxes of one run in memory, so that each new record is compared with the previous row.

    Args:
        rows: live and recently ended sandboxes from the store; others are recalled when a record names them.
        keys: names by which providers may label the run: its name, the name it reports, a configured name.
        since: start of the run for Rollscope, epoch seconds (None: the first listing). Sandboxes that ended earlier
            are not counted, because a provider keeps some ended sandboxes longer than others.
    """

    def __init__(self, rows: Iterable[SandboxRow], keys: Collection[str], since: float | None = 0.0) -> None:
        self.keys = set(keys)
        self._since = since
        # Live sandboxes missing from complete listings: key -> (listings in a row, time of the first).
        self._missed: dict[tuple[str, str], tuple[int, float]] = {}
        # Ended sandboxes that are listed as live: key -> readings in a row.
        self._live_again: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[str, str], SandboxRow] = {(row.provider, row.id): row for row in rows}
        # The last record of each sandbox and the row made from it, to skip unchanged records without merging.
        self._last_records: dict[tuple[str, str], tuple[Sandbox, SandboxRow]] = {}

    def unknown(self, records: Iterable[Sandbox]) -> list[tuple[str, str]]:
        """Returns (provider, id) of records not in memory: new sandboxes, or ones that ended too long ago."""
        return [key for record in records if (key := (record.provider, _cut(record.id))) not in self._known]

    def recall(self, rows: Iterable[SandboxRow]) -> None:
        """Takes stored rows back into memory, so that a sandbox counted before does not look new."""
        self._known.update({(row.provider, row.id): row for row in rows})

    def take(
        self, target: Target, records: Iterable[Sandbox], listed: Collection[str], runs: Collection[str], now: float
    ) -> list[SandboxArrival]:
        """Returns the changes of a reading.

        Args:
            listed: providers of which `records` holds every live sandbox.
            runs: keys of runs that are not over; a live sandbox of any other run is dangling.
        """
        if listed and self._since is None:
            self._since = now
        newest = {(record.provider, _cut(record.id)): record for record in records if record.id}
        if listed:
            newest = {key: record for key, record in newest.items() if not self._history(key, record)}
        changes = [self._update(target, key, record, runs, now) for key, record in newest.items()]
        changes += [self._gone(row, since, now) for row, since in self._missing(target, newest, listed, now)]
        self._forget(now)
        return [arrival for arrival in changes if arrival is not None]

    def _update(
        self, target: Target, key: tuple[str, str], record: Sandbox, runs: Collection[str], now: float
    ) -> SandboxArrival | None:
        before, reported = self._known.get(key), record
        self._missed.pop(key, None)
        if before is not None and self._repeats(key, before, reported, runs):
            return None
        record, old = _clean(reported), before
        if old is not None and self._revived(key, old, record):
            old = structs.replace(old, state=record.state, ended_at=None, cause=None)
        merged = _merged(old, record, now)
        found = self._changed(before, self._row(target, merged, runs, now), now)
        self._last_records[key] = (reported, self._known[key])
        return found

    def _row(self, target: Target, record: Sandbox, runs: Collection[str], now: float) -> SandboxRow:
        own, dangling = self._whose(record, runs)
        return SandboxRow.of(
            record, target=target.name, own=own, dangling=dangling, first_seen=_ms(now), seen_at=_ms(now)
        )

    def _whose(self, record: Sandbox, runs: Collection[str]) -> tuple[bool, bool]:
        """Returns (own, dangling). Dangling: the sandbox is live, and its run is over or unknown."""
        own = not record.run_key or record.run_key in self.keys
        return own, record.state in LIVE and not own and record.run_key not in runs

    def _repeats(self, key: tuple[str, str], before: SandboxRow, reported: Sandbox, runs: Collection[str]) -> bool:
        """Is the record equal to the one that the current row was made from?"""
        last = self._last_records.get(key)
        if last is None or last[1] is not before or last[0] != reported:
            return False
        if before.ended_at is not None:
            if reported.state in LIVE:
                return False  # live records of an ended sandbox are counted in `_revived`
            self._live_again.pop(key, None)
        return self._whose(before, runs) == (before.own, before.dangling)

    def _history(self, key: tuple[str, str], record: Sandbox) -> bool:
        """Did the sandbox end before the run began for Rollscope, without ever being recorded?"""
        ended = record.ended_at
        return key not in self._known and ended is not None and self._since is not None and ended < self._since

    def _revived(self, key: tuple[str, str], before: Sandbox, record: Sandbox) -> bool:
        """Is an ended sandbox live again? Its container was restarted, or the provider left it out by mistake."""
        if before.ended_at is None or record.state not in LIVE:
            self._live_again.pop(key, None)
            return False
        begun = max((at for at in (record.started_at, record.ready_at) if at is not None), default=-math.inf)
        # An answer in flight while the sandbox ended shows it live once, but not twice.
        self._live_again[key] = seen = self._live_again.get(key, 0) + 1
        if before.provider_state != GONE and begun <= before.ended_at and seen < 2:
            return False
        del self._live_again[key]
        return True

    def _missing(
        self, target: Target, newest: Mapping[tuple[str, str], Sandbox], listed: Collection[str], now: float
    ) -> list[tuple[SandboxRow, float]]:
        """Returns live sandboxes that complete listings leave out, each with the time of the first such listing."""
        found = []
        for key, row in self._known.items():
            if key[0] in listed and row.target == target.name and key not in newest and row.state in LIVE:
                times, since = self._missed.get(key, (0, now))
                self._missed[key] = (times + 1, since)
                if times + 1 >= MISSED_LISTINGS:
                    found.append((row, since))
        return found

    def _gone(self, before: SandboxRow, since: float, now: float) -> SandboxArrival | None:
        self._missed.pop((before.provider, before.id), None)
        ended = structs.replace(
            before, state="terminated", provider_state=GONE, ended_at=since, dangling=False, seen_at=_ms(now)
        )
        return self._changed(before, ended, now)

    def _changed(self, before: SandboxRow | None, row: SandboxRow, now: float) -> SandboxArrival | None:
        ready = row.ready_at is not None and (before is None or before.ready_seen is None)
        failed = row.state == "failed" and (before is None or before.failed_seen is None)
        row = structs.replace(
            row,
            first_seen=before.first_seen if before else row.first_seen,
            ready_seen=_ms(now) if ready else before.ready_seen if before else None,
            failed_seen=_ms(now) if failed else before.failed_seen if before else None,
        )
        key = (row.provider, row.id)
        same = before is not None and _content(before) == _content(row)
        self._known[key] = row if not same or before is None else before
        return None if same else SandboxArrival(now, row, before is None, ready, failed)

    def _forget(self, now: float) -> None:
        old = now - REMEMBERED_SECONDS
        ended = [key for key, row in self._known.items() if (row.ended_at or now) < old]
        for key in ended:
            del self._known[key]
            self._last_records.pop(key, None)
            self._live_again.pop(key, None)


def _merged(before: Sandbox | None, record: Sandbox, now: float) -> Sandbox:
    """Returns the new record with the first times of earlier records. An end is final."""
    if before is None:
        return _ended(record, now)
    if before.ended_at is not None and record.state in LIVE:
        return before
    if before.state == "failed":
        # Providers list a failed sandbox as terminated after their cleanup; it stays failed.
        record = structs.replace(record, state="failed", cause=before.cause)
    times = {name: _first(getattr(before, name), getattr(record, name)) for name in _TIMES}
    others = {
        name: getattr(before, name)
        for name in Sandbox.__struct_fields__
        if name not in _TIMES and getattr(record, name) in (None, "")
    }
    # The first times are retained, so their source is too.
    source = before.latency_source or record.latency_source
    merged = structs.replace(record, **{**others, **times, "latency_source": source})
    if merged.ready_at is None and record.state == "running" and before.state in PENDING:
        # The provider reports no time: the sandbox became usable between the previous poll and this one.
        merged = structs.replace(merged, ready_at=now, latency_source="poll_bound")
    if merged.state != "failed" and merged.cause is not None:
        merged = structs.replace(merged, cause=None)
    return _ended(merged, now)


def _ended(record: Sandbox, now: float) -> Sandbox:
    if record.state in ("terminated", "failed") and record.ended_at is None:
        record = structs.replace(record, ended_at=now)
    return structs.replace(record, cause="unknown") if record.state == "failed" and record.cause is None else record


def _first(stored: float | None, reported: float | None) -> float | None:
    return reported if stored is None else stored


def _clean(record: Sandbox) -> Sandbox:
    changes = {
        "id": _cut(record.id), "name": record.name[:TEXT_LENGTH], "run_key": record.run_key[:TEXT_LENGTH],
        "provider_state": record.provider_state[:TEXT_LENGTH], "image": record.image[:TEXT_LENGTH],
        "detail": record.detail[:TEXT_LENGTH],
    }  # fmt: skip
    return structs.replace(record, **changes)


def _cut(text: str) -> str:
    return text[:ID_LENGTH]


def _ms(seconds: float) -> float:
    """Rounds to whole milliseconds, which the store keeps."""
    return round(seconds * 1000) / 1000
