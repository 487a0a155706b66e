"""Verdicts for readers: the newest as of now, and their history as spans of time."""

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from server.lib.clock import Clock
from server.query.run_state import NOT_COLLECTED_SECONDS, OVER, RunState, stored_run
from server.query.types import VerdictSpan
from server.store.types import RunRow, VerdictRow
from server.verdict.model import LastVerdict, Verdict

if TYPE_CHECKING:
    from server.store import Store
from collections.abc import Iterable

from server.query.types import RunSummary, SignalNow

# A tick's verdict is 5 s old; after a minute no collector runs.
STALE_SECONDS = 60.0
NO_VERDICT = Verdict("unknown", summary="no verdict yet: it is computed from the run's first tick on", as_of=None)


class VerdictReader:
    """Reads verdicts. Thread-safe."""

    def __init__(self, store: "Store", clock: Clock) -> None:
        self._store, self._clock = store, clock

    def now(self, row: RunRow, state: RunState) -> Verdict | None:
        """The newest verdict with ``as_of``; unknown, with what it was, unless it describes the present."""
        return current_verdict(self._store.verdicts.newest(row.name), state, self._clock.now())

    def spans(self, run: str, start: float, end: float, limit: int = 1000) -> list[VerdictSpan]:
        """Verdicts within [start, end], oldest first; of more than ``limit`` changes the newest."""
        row = stored_run(self._store, run)
        rows = self._store.verdicts.page(row.name, round(start * 1000), round(end * 1000), limit)
        if not rows:
            return []
        ends = [*(after.ts for after in rows[1:]), self._store.verdicts.following(row.name, rows[-1].ts)]
        stands = self._end(row)
        return [
            _span(span_row, stands if until is None else until / 1000)
            for span_row, until in zip(rows, ends, strict=True)
        ]

    def _end(self, row: RunRow) -> float | None:
        """When the newest verdict ended: with the run, or with its last evaluation. None: it is current."""
        text = self._store.verdicts.newest(row.name)
        if text is None:
            return None
        as_of = float(json.loads(text)["as_of"])
        judged = row.lifecycle not in OVER and self._clock.now() - as_of <= NOT_COLLECTED_SECONDS
        return None if judged else as_of


def current_verdict(text: str | None, state: RunState, now: float) -> Verdict | None:
    """A run's newest verdict as stored, with ``as_of``; None before the first."""
    if text is None:
        return None
    stored = json.loads(text)
    verdict = _read({**stored["verdict"], "as_of": stored["as_of"]})
    if state.over:
        return verdict
    if state.name == "catching_up":
        return _withheld(verdict, "history is being read; the verdict there was")
    if state.name == "not_collected" or now - stored["as_of"] > STALE_SECONDS:
        return _withheld(verdict, "nothing is collected for this run now; the last verdict was")
    # Without new data only the verdict that nothing moves describes the present.
    # `as_of` does not show it: counts of engines that are down, and costs, are derived at every tick without a source.
    old = state.since is None or now - state.since > STALE_SECONDS
    if state.name == "stale" and old and verdict.outcome not in ("stalled", "unknown"):
        return _withheld(verdict, "there is no new data; the last verdict was")
    return verdict


def _span(row: VerdictRow, end: float | None) -> VerdictSpan:
    verdict = _read(json.loads(row.body))
    return VerdictSpan(
        row.ts / 1000, end, row.since / 1000, verdict.outcome, verdict.cause, row.rule, row.confidence, verdict.summary,
        row.rules_version, row.replayed, verdict,
    )  # fmt: skip


def _read(stored: dict[str, Any]) -> Verdict:
    """Reads a stored verdict; rules before version 10 stored a sentence as advice."""
    return msgspec.convert(stored if isinstance(stored.get("advice"), list) else {**stored, "advice": []}, Verdict)


def _withheld(verdict: Verdict, why: str) -> Verdict:
    """Replaces a verdict that no longer describes the present by unknown; the old verdict is in ``last``.

    The other fields stay.
    """
    as_of = verdict.as_of or None
    last = LastVerdict(
        verdict.outcome, verdict.cause, verdict.confidence, verdict.since, verdict.summary, as_of
    )  # fmt: skip
    named = verdict.outcome + (f" ({verdict.cause})" if verdict.cause else "")
    unknown = structs.replace(
        verdict, outcome="unknown", cause="incomplete", confidence=0.0, since=as_of, last=last, usd_per_hour=None,
        usd_lacks="", advice=(), advice_lacks=(), summary=f"{why} {named}: {verdict.summary}",
    )  # fmt: skip
    structs.force_setattr(unknown, "next", None)
    return unknown


# ---- summary
# Summarises a finished run for its banner and for `summary` of the status.

SECONDS_PER_HOUR = 3600.0


def summary(
    first: float | None, end: float | None, steps: int | None, signals: Iterable[SignalNow],
    spans: Iterable[VerdictSpan], rates: Iterable[float | None],
) -> RunSummary:  # fmt: skip
    """``first``, ``end``: epoch seconds of its first and its last datum. ``spans``: its verdicts, oldest first.

    ``rates``: dollars per hour in equal parts of its time, None where unknown. The newest value of the signal would not
    do: a run that has ended has no rate.
    """
    by_name = list(signals)
    seconds = end - first if first is not None and end is not None else None
    priced = [rate for rate in rates if rate is not None]
    hourly = sum(priced) / len(priced) if priced else None
    usd = hourly * seconds / SECONDS_PER_HOUR if hourly is not None and seconds is not None else None
    idle = [value.value for value in by_name if value.signal == "idle_usd_total" and value.value is not None]
    limiters: dict[str, float] = {}
    for span in spans:
        until = end if span.end is None else span.end
        lasted = 0.0 if until is None else max(0.0, until - span.start)
        limiters[span.outcome] = limiters.get(span.outcome, 0.0) + lasted
    reward = _value(by_name, "reward", stat="mean")
    return RunSummary(seconds, steps, usd, sum(idle) if idle else None, limiters, reward)


def _value(signals: Iterable[SignalNow], name: str, **labels: str) -> float | None:
    matches = (item for item in signals if item.signal == name and labels.items() <= dict(item.labels).items())
    return next((item.value for item in matches if item.value is not None), None)
