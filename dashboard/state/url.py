"""The page's state lives in its URL: ``?run=NAME&range=1h``, or ``&start=&end=`` in epoch seconds.

``&all=1`` shows all runs, on pages that can. ``&axis=step`` puts charts over steps; ``&over=1h`` (``1d``, ``7d``, or a
run's name, with ``&align=now`` at its end) draws another time behind them; ``&panel=KEY`` fills the screen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from server.query.types import RunInfo

RANGES: dict[str, float | None] = {
    "15m": 900.0,
    "1h": 3600.0,
    "6h": 6 * 3600.0,
    "24h": 86400.0,
    "7d": 7 * 86400.0,
    "all": None,
}
DEFAULT_RANGE = "1h"
# Seconds. A range longer than the run is cut to the run's age, else its chart is one column of pixels; but not below an
# hour, so that the scale of a young run does not change all the time.
SHORTEST_CUT = 3600.0
OVER = ("finished", "crashed")
AGO: Mapping[str, tuple[float, str]] = {
    "1h": (3600.0, "an hour ago"),
    "1d": (86_400.0, "a day ago"),
    "7d": (7 * 86_400.0, "a week ago"),
}
"""Earlier times of the run that can be drawn behind its charts: seconds and label."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed query string. ``start`` and ``end`` are both set or both None."""

    run: str | None
    range: str = DEFAULT_RANGE
    start: float | None = None
    end: float | None = None
    all: bool = False
    # Charts over steps, and what is drawn behind them (`dashboard.charts.comparison`).
    by_step: bool = False
    over: str = ""
    align: str = ""
    # What the address has as its range where that is none.
    unknown_range: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """The time shown. ``follow``: new points move it along. ``grows``: it is cut to the age of a run that goes on."""

    start: float
    end: float
    follow: bool
    grows: bool = False


def parse(search: str) -> Address:
    """Reads what it understands and ignores the rest, except for an unknown range, which is reported."""
    found = {key: values[-1] for key, values in parse_qs(search.lstrip("?")).items()}
    start, end = _time(found.get("start")), _time(found.get("end"))
    chosen = found.get("range", DEFAULT_RANGE)
    name = chosen if chosen in RANGES else DEFAULT_RANGE
    if start is None or end is None or end <= start:
        start = end = None
    more = (found.get("all") == "1", found.get("axis") == "step", found.get("over", ""), found.get("align", ""))
    return Address(found.get("run"), name, start, end, *more, "" if chosen in RANGES else chosen)


def _time(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    # Beyond the year 9999 a browser's date axis has nothing to show; `nan` fails the comparison too.
    return number if 0 <= number < 2.5e11 else None


def link(run: str, range_name: str, **more: str) -> str:
    """The address of a run at a range, relative, so it works under any prefix; what is empty is not in it."""
    return "?" + urlencode({"run": run, "range": range_name} | {key: value for key, value in more.items() if value})


def manner(address: Address) -> dict[str, str]:
    """How charts are shown, which another run has in common: over steps, and behind them how long ago.

    Another run behind them is no such thing: it may be the one that is chosen.
    """
    return {"axis": "step" if address.by_step else "", "over": address.over if address.over in AGO else ""}


def span(address: Address, run: RunInfo, now: float, newest: float | None) -> Span:
    """The time range to show: absolute if requested; a run that is over ends at its newest data, not at the present.

    ``newest``: when its youngest number was true. Not the run's `last_ts`, which our own ticks move on as long as
    we watch: it would show an empty hour behind a run that ended yesterday.
    """
    if address.start is not None and address.end is not None:
        return Span(*_within(address.start, address.end, run, now), follow=False)
    last = newest if newest is not None else run.last_ts
    over = run.lifecycle in OVER and last is not None
    end = last if over and last is not None else now
    whole = max(60.0, end - (run.first_ts if run.first_ts is not None else end - 3600))
    length = RANGES[address.range]
    if length is None or (over and length > whole):
        # A finished run of a minute fills the chart; it is not a line at the edge of an hour.
        length = whole
    cut = not over and RANGES[address.range] is not None and length > max(whole, SHORTEST_CUT)
    if cut:
        length = max(whole, SHORTEST_CUT)
    return Span(end - length, end, not over, not over and (cut or RANGES[address.range] is None))


def _within(start: float, end: float, run: RunInfo, now: float) -> tuple[float, float]:
    """The part of a time that the run has, unless it has less than a minute of it."""
    first, last = max(start, run.first_ts if run.first_ts is not None else start), min(end, now)
    return (first, last) if last - first >= min(60.0, end - start) else (start, end)


def moved(span_shown: Span, now: float) -> Span:
    """The time shown, at this moment."""
    late = now - span_shown.end
    return Span(span_shown.start + late, now, True) if span_shown.follow and late > 0 else span_shown


def shown(found: object) -> Span | None:
    """``[start, end, follow]`` as a browser sends it; None if it is invalid."""
    if not isinstance(found, list) or len(found) != 3:
        return None
    start, end = (_time(str(value)) for value in found[:2])
    # Below one second columns would be shorter than the clock's resolution.
    return Span(start, end, bool(found[2])) if start is not None and end is not None and end - start >= 1 else None


def points(span_shown: Span) -> int:
    """Buckets to request: up to an hour one per tick of 5 s, beyond that about one per pixel of a panel."""
    return 720 if span_shown.end - span_shown.start <= 3600 else 360
