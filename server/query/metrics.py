"""Reads metrics as targets report them: the catalogue, which series a run has, and their history in buckets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from collectors.catalog import METRICS
from collectors.model import Labels
from server.query.run_state import stored_run
from server.query.signals import series_of
from server.query.types import MetricInfo, MetricSeries, Series, format_name, parse_name
from server.signals.model import TICK_SECONDS
from server.signals.window import carry_seconds
from server.store import Store
from server.store.histograms import MINUTE_MS
from server.store.samples import Reading, of_samples, rates, with_breaks
from server.store.types import Bucket, SeriesKey

LISTED_SERIES = 200
"""Series of one metric in the catalogue of a run: a fleet of 1,000 engines has thousands."""

MOST_SERIES = 200
"""Series of metrics in one answer."""
MOST_POINTS = 60_000
"""Series times points in one answer: at narrow buckets each point costs the samples in it."""
MOST_MINUTES = 1_000_000
"""Series of histograms times minutes in one answer: minutes are read one by one, which takes a microsecond each."""

CATALOGUE: Mapping[str, MetricInfo] = {
    m.name: MetricInfo(m.name, m.unit, m.kind, m.reduction, m.actor, m.help, m.lowest, m.highest)
    for m in METRICS.values()
}
"""Every metric that collectors report, by name."""

HEALTH: Mapping[str, MetricInfo] = {
    name: MetricInfo(name, unit, "gauge", "instant", "", help)
    for name, unit, help in (
        ("up", "", "1 if the target answered when it was read, else 0."),
        ("scrape_duration_seconds", "seconds", "How long reading the target took."),
        ("scrape_samples_scraped", "samples", "Samples in the answer of the target."),
    )
}
"""Metrics that Rollscope writes about each target that it reads."""


class UnknownMetric(LookupError):
    """No metric of that name."""


class TooMuch(ValueError):
    """More series or points than one answer holds. Its text names the limit."""


class MetricReader:
    """Reads metrics. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, run: str | None = None) -> list[MetricInfo]:
        """The catalogue; with a run also `HEALTH`, and its series of each metric. Raises `UnknownRun`."""
        if run is None:
            return list(CATALOGUE.values())
        name = stored_run(self._store, run).name
        newest = self._store.series.newest(name)
        found: dict[str, list[MetricSeries]] = {}
        for number, key in self._store.series.reported(name):
            ts = newest.get(number)
            row = MetricSeries(
                series_name(key), key.target, dict(key.labels), key.axis, None if ts is None else ts / 1000
            )
            found.setdefault(key.metric, []).append(row)
        return [_with_series(info, found.get(info.name, ())) for info in (*CATALOGUE.values(), *HEALTH.values())]

    def series(self, run: str, selectors: Sequence[str], start: float, end: float, points: int) -> list[Series]:
        """The series that the selectors match, sorted within each: a metric, and of its labels those that must match.

        A gauge is as reported, a counter its rate per second, a histogram the mean of its observations. The line breaks
        where the source did not report.

        Raises:
            UnknownRun, UnknownMetric, TooMuch.
            ValueError: not a selector.
        """
        name = stored_run(self._store, run).name
        found = {number: key for selector in selectors for number, key in self._matching(name, selector)}
        first, last = round(start * 1000), round(end * 1000)
        _check_size(found.values(), points, (last - first) // MINUTE_MS)
        targets = {row.name: row.interval_seconds for _, row in self._store.runs.targets(name)}
        width = max(1, round((last - first) / max(1, points)))
        return [
            self._series(number, key, first, last, width, targets.get(key.target, TICK_SECONDS))
            for number, key in found.items()
        ]

    def _matching(self, run: str, selector: str) -> Iterator[tuple[int, SeriesKey]]:
        metric, labels = parse_name(selector)
        if metric not in CATALOGUE and metric not in HEALTH:
            raise UnknownMetric(metric)
        for number, key in self._store.series.reported(run, metric):
            if set(labels) <= set(_all_labels(key)):
                yield number, key

    def _series(self, number: int, key: SeriesKey, start: int, end: int, width: int, interval: float) -> Series:
        info = CATALOGUE.get(key.metric) or HEALTH[key.metric]
        unit = f"{info.unit}/s" if info.kind == "counter" else info.unit
        if info.kind == "histogram":
            wide = -(-width // MINUTE_MS) * MINUTE_MS
            # Without observations there is no mean.
            buckets = [*with_breaks(self._store.histograms.means(number, start, end, wide), wide, wide)]
        elif key.axis:
            # The time between two steps is no gap.
            buckets = self._of_steps(number, start, end, width, info.kind)
        else:
            carry = round(1000 * carry_seconds(interval))
            buckets = self._store.samples.reported(number, start, end, width, carry, rate=info.kind == "counter")
        return series_of(series_name(key), unit, buckets)

    def _of_steps(self, number: int, start: int, end: int, width: int, kind: str) -> list[Bucket]:
        values = self._store.steps.values(number, start, end)
        if kind == "counter":
            return rates([Reading(ts, v, v, v) for ts, v in values], width, end - start)
        return [*of_samples(dict(values), width)]


def _check_size(keys: Iterable[SeriesKey], points: int, minutes: int) -> None:
    keys = list(keys)
    histograms = sum(CATALOGUE[key.metric].kind == "histogram" for key in keys if key.metric in CATALOGUE)
    if len(keys) > MOST_SERIES:
        raise TooMuch(f"{len(keys)} series match; at most {MOST_SERIES} per request: select a target or a label")
    if len(keys) * points > MOST_POINTS:
        raise TooMuch(f"{len(keys)} series of {points} points; at most {MOST_POINTS} points per request")
    if histograms * minutes > MOST_MINUTES:
        raise TooMuch(f"{histograms} histograms of {minutes} minutes; at most {MOST_MINUTES} minutes per request")


def series_name(key: SeriesKey) -> str:
    """``generator_tokens_total{engine="0",target="vllm-0"}``; a value of a step also has its `axis`."""
    return format_name(key.metric, _all_labels(key))


def _all_labels(key: SeriesKey) -> Labels:
    axis = (("axis", key.axis),) if key.axis else ()
    return (*key.labels, *axis, ("target", key.target))


def _with_series(info: MetricInfo, rows: Iterable[MetricSeries]) -> MetricInfo:
    rows = tuple(rows)
    return structs.replace(
        info,
        newest=max((row.ts for row in rows if row.ts is not None), default=None),
        series=rows[:LISTED_SERIES],
        unlisted=max(0, len(rows) - LISTED_SERIES),
    )
