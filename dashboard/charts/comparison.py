"""What a chart is compared with, behind its lines: the same run some time ago, or another run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from dashboard.charts.figures import Figure, has_points
from dashboard.charts.panels import names_by_slot
from dashboard.charts.step_axis import MOST, Steps
from dashboard.shell import theme
from dashboard.shell.page import Load
from dashboard.state import deltas
from dashboard.state.url import AGO, points
from dashboard.widgets.chart import Panel
from dashboard.widgets.format import milliseconds, short
from server.query.types import RunInfo, Series, SignalNow

_DASHES = ("dash", "dot")

# It is read once per load: so far ahead that the window may move on by a part of itself.
AHEAD = 0.25


@dataclass(frozen=True, slots=True)
class Comparison:
    """``series`` by slot, at the times at which they are drawn; ``label``: what they are, or why there are none."""

    label: str = ""
    series: Mapping[str, Series] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What is drawn behind the lines: ``start`` to ``end`` of a run."""

    run: str
    label: str
    signals: Sequence[SignalNow]
    start: float
    end: float
    # From its time to the one it is drawn at; None: nowhere.
    place: Callable[[float], float | None]


def compared(load: Load, panels: Sequence[Panel]) -> Comparison:
    """Reads what the address requests (``over``, ``align``)."""
    if not load.address.over:
        return Comparison()
    source = behind(load)
    if source is None:
        return Comparison(f"nothing to compare with: {load.address.over}")
    slots = _main(panels)
    names = {slot: found for slot, found in names_by_slot(source.signals, panels, ()).items() if slot in slots}
    wanted = sorted({name for found in names.values() for name in found})
    width = round(points(load.span) * (1 + AHEAD))
    got = load.scope.reader.signals.series(source.run, wanted, source.start, source.end, width)
    found = deltas.by_slot(names, {one.name: one for one in got})
    return Comparison(source.label, {slot: _placed(one, source.place) for slot, one in found.items()})


def _main(panels: Sequence[Panel]) -> set[str]:
    """Lines that stand alone: parts of a whole would have to be stacked again."""
    return {slot for panel in panels if panel.kind == "lines" for slot, line in panel.slots() if not line.thin}


def behind(load: Load) -> Source | None:
    """The source that the address requests; None: it requests none, or the run does not exist."""
    address, span = load.address, load.span
    if address.over in AGO:
        seconds, label = AGO[address.over]
        # The step axis has no position for future times.
        ahead = 0.0 if address.by_step else AHEAD * (span.end - span.start)
        signals = tuple(load.scope.status.signals.values())
        end = span.end - seconds + ahead
        return Source(load.scope.run, label, signals, span.start - seconds, end, lambda ts: ts + seconds)
    other = next((run for run in load.scope.reader.runs.all() if run.name == address.over), None)
    if other is None or other.first_ts is None or other.last_ts is None:
        return None
    return _by_step(load, other) if address.by_step else _by_time(load, other)


def _by_time(load: Load, other: RunInfo) -> Source | None:
    """At its start, which is where runs are compared; or with its newest data at the end of the charts."""
    span, first, last = load.span, load.info.first_ts, other.last_ts
    if load.address.align == "now" and last is not None:
        shift, alignment = span.end - last, "aligned at the end"
    elif first is not None and other.first_ts is not None:
        shift, alignment = first - other.first_ts, "aligned at the start"
    else:
        return None
    end = span.end - shift + AHEAD * (span.end - span.start)
    return Source(
        other.name, f"{other.name}, {alignment}", _signals(load, other), span.start - shift, end, lambda ts: ts + shift
    )


def _by_step(load: Load, other: RunInfo) -> Source | None:
    """At the same step: where this one is at its own."""
    reader, span = load.scope.reader, load.span
    ours = Steps(reader.steps.times(load.scope.run, span.start, span.end, MOST))
    theirs = Steps(reader.steps.times(other.name, other.first_ts or 0.0, other.last_ts or 0.0, MOST))
    ends = [theirs.when(min(max(step, theirs.low), theirs.high)) for step in (ours.low, ours.high)] if theirs else []
    start, end = ends or (None, None)
    if not ours or start is None or end is None or start >= end:
        return None

    def place(ts: float) -> float | None:
        step = theirs.at(ts)
        return None if step is None else ours.when(step)

    return Source(other.name, f"{other.name} at the same step", _signals(load, other), start, end, place)


def _signals(load: Load, other: RunInfo) -> Sequence[SignalNow]:
    return tuple(load.scope.reader.status(other.name).signals.values())


def _placed(series: Series, place: Callable[[float], float | None]) -> Series:
    pairs = [(at, value) for ts, value in zip(series.ts, series.mean, strict=True) if (at := place(ts)) is not None]
    ts, mean = tuple(at for at, _ in pairs), tuple(value for _, value in pairs)
    return structs.replace(series, ts=ts, mean=mean, low=mean, high=mean)


def drawn(panels: Sequence[Panel], found: Comparison) -> list[str]:
    """The slots behind which there is something."""
    series = found.series or {}
    slots = (slot for panel in panels for slot, _ in panel.slots())
    return [slot for slot in slots if slot in series and has_points(series[slot])]


def traces(panel: Panel, found: Comparison, tz: float) -> list[Figure]:
    """Thin, dashed and grey; the second line of a panel is dotted."""
    series = found.series or {}
    return [_trace(slot, series[slot], _DASHES[min(i, 1)], tz) for i, slot in enumerate(drawn([panel], found))]


def _trace(slot: str, series: Series, dash: str, tz: float) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        # No slot of its own: it gets no new points.
        "meta": f"over:{slot}",
        "x": [milliseconds(ts, tz) for ts in series.ts],
        "y": [short(value) for value in series.mean],
        "connectgaps": False,
        "hoverinfo": "skip",
        "line": {"color": theme.TRACE["grey"], "width": 1.2, "dash": dash},
    }
