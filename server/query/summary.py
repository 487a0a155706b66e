"""Summarises a finished run for its banner and for `summary` of the status."""

from collections.abc import Iterable

from server.query.types import RunSummary, SignalNow, VerdictSpan

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
