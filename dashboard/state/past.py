"""A run's status as of an earlier instant, for a page that shows an absolute time range or a zoom."""

from msgspec import structs

from server.query import Reader
from server.query.types import Series, SignalInfo, SignalNow, SignalState, Status, Verdict

STEP_SECONDS = 600.0
"""Longest age of a per-step value: a step of a large run takes several minutes."""
TICK_SECONDS = 60.0
"""Longest age of a value that is derived every 5 s."""
POINTS = 120
"""Buckets read per series: 5 s each."""
WHY = "no value at that time"


def status_at(reader: Reader, status: Status, at: float) -> Status:
    """``status`` with signals and verdict as they were at ``at`` (epoch seconds).

    Everything else (targets, alerts, lifecycle) stays as it is now.
    """
    infos = reader.signals.infos
    series = {
        one.name: one for one in reader.signals.series(status.run, list(status.signals), at - STEP_SECONDS, at, POINTS)
    }
    signals = {
        name: _signal_at(signal, series.get(name), infos.get(signal.signal), at)
        for name, signal in status.signals.items()
    }
    return structs.replace(status, signals=signals, verdict=_verdict_at(reader, status.run, at))


def _signal_at(signal: SignalNow, series: Series | None, info: SignalInfo | None, at: float) -> SignalNow:
    if signal.state == "not_applicable":
        return signal
    ts, value = (series.ts[-1], series.mean[-1]) if series is not None and series.ts else (None, None)
    longest = STEP_SECONDS if info is not None and info.cadence in ("step", "counter") else TICK_SECONDS
    if ts is None or value is None or at - ts > longest:
        return structs.replace(signal, value=None, state="unknown", age_seconds=None, why=WHY, ts=None)
    return structs.replace(signal, value=value, state=_state(value, info), age_seconds=at - ts, why="", ts=ts)


def _state(value: float, info: SignalInfo | None) -> SignalState:
    bands: tuple[tuple[SignalState, float | None], ...] = (
        (("critical", info.critical), ("watch", info.watch)) if info is not None else ()
    )
    for state, band in bands:
        if band is not None and info is not None and (value >= band if info.higher_is_worse else value < band):
            return state
    return "ok"


def _verdict_at(reader: Reader, run: str, at: float) -> Verdict:
    """Outcome, cause and confidence. Sentences are left out because their numbers are of the verdict's start."""
    spans = [span for span in reader.verdicts.spans(run, at - 1.0, at, 2) if span.start <= at]
    if not spans:
        return Verdict("unknown")
    span = spans[-1]
    return Verdict(span.outcome, span.cause, confidence=span.confidence)
