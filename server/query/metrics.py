"""Reads metrics as targets report them: the catalogue, and which series a run has."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from collectors.catalog import METRICS
from server.query.run_state import stored_run
from server.query.types import MetricInfo, MetricSeries, format_name
from server.store import Store
from server.store.types import SeriesKey

LISTED_SERIES = 200
"""Series of one metric in the catalogue of a run: a fleet of 1,000 engines has thousands."""

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


def series_name(key: SeriesKey) -> str:
    """``generator_tokens_total{engine="0",target="vllm-0"}``; a value of a step also has its `axis`."""
    axis = (("axis", key.axis),) if key.axis else ()
    return format_name(key.metric, (*key.labels, *axis, ("target", key.target)))


def _with_series(info: MetricInfo, rows: Iterable[MetricSeries]) -> MetricInfo:
    rows = tuple(rows)
    return structs.replace(
        info,
        newest=max((row.ts for row in rows if row.ts is not None), default=None),
        series=rows[:LISTED_SERIES],
        unlisted=max(0, len(rows) - LISTED_SERIES),
    )
