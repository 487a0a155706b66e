"""Reads single engines from raw samples, below the level of signals."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from server.lib.clock import Clock
from server.query.run_state import stored_run
from server.query.types import MOST_ENGINES, EngineInfo, EngineMetric, format_name
from server.signals.engine_state import AMOUNTS, PREFILL_ONLY, Key, engine_keys, labels_above, role_of
from server.signals.model import Origin
from server.store import Store
from server.store.generators import EngineSeries
from server.store.samples import fit_width
from server.store.types import Bucket

_METRICS: Mapping[EngineMetric, str] = {
    "kv": "kv_cache_usage_ratio",
    "running": "generator_requests_running",
    "waiting": "generator_requests_waiting",
    "preemptions": "generator_preemptions_total",
    "tokens": "generator_tokens_total",
}
# Window of an increase, in seconds.
_PER: Mapping[EngineMetric, float] = {"preemptions": 60.0, "tokens": 1.0}
_HELD = {"generator_asleep": "asleep", "generator_paused": "paused", "generator_requests_paused": "paused"}
_PREFIX = ("prefix_cache_queries_total", "prefix_cache_hits_total")
_READ = (
    *_METRICS.values(), *_HELD, "generator_request_limit", "generator_policy_version", "generator_token_throughput",
    "kv_cache_used_tokens", "kv_cache_capacity_tokens", *_PREFIX, "prefix_cache_hit_ratio", PREFILL_ONLY,
)  # fmt: skip
# As `AMOUNTS`, of what is read here only.
_SHARED = AMOUNTS | {"generator_requests_waiting", "generator_preemptions_total", *_PREFIX}
Page = dict[str, EngineSeries]


class EngineReader:
    """Reads single engines. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def now(self, run: str, at: float | None = None) -> list[EngineInfo]:
        """Engines by name as of a time (None: now): with data within five minutes, or whose target is down now."""
        row = stored_run(self._store, run)
        now = self._clock.now() if at is None else at
        # A fleet that is not read any more is shown as it was when it last was.
        end = min(round(now * 1000), row.watermark if row.watermark is not None else round(now * 1000))
        pages, owners = _pages(self._store.generators.told(row.name, _READ, end))
        targets = [target for _, target in self._store.runs.targets(row.name)]
        origins = {target.name: target.origin for target in targets}
        engines = [_engine(key, pages, owners, origins.get(key[0])) for key in sorted(owners)]
        # An engine that ended is left out; an engine that does not answer is shown.
        down = {target.name for target in targets if not target.up and not target.gone}
        return [engine for engine in engines if engine.last_ts is not None or (at is None and engine.target in down)]

    def cells(
        self, run: str, metric: EngineMetric, keys: Sequence[str], start: float, end: float, width: float
    ) -> Mapping[str, Mapping[float, float]]:
        """key -> {start of a column: mean within it}, columns on multiples of ``width``; unknown cells are left out.

        Raises `ValueError` for more than `MOST_ENGINES`.
        """
        if len(keys) > MOST_ENGINES:
            raise ValueError(f"at most {MOST_ENGINES} engines at once, not {len(keys)}")
        row, wide = stored_run(self._store, run), fit_width(round(width * 1000))
        pages, owners = _pages(self._store.generators.series(row.name, _READ))
        named = {_key(key): _series(key, _METRICS[metric], pages, owners) for key in owners}
        ids = {key: series.series for key in keys if (series := named.get(key)) is not None}
        per = _PER.get(metric)
        # The first increase is over what the column before it ended with.
        first = round(start * 1000) - (wide if per else 0)
        buckets = self._store.generators.buckets(row.name, list(ids.values()), first, round(end * 1000), wide)
        return {key: _grown(buckets[n], wide, per) if per else _means(buckets[n]) for key, n in ids.items()}


def _pages(rows: Iterable[EngineSeries]) -> tuple[dict[Key, Page], dict[Key, int]]:
    """The values of each label set of each target, and the engines among them (see `_engines`)."""
    pages: dict[Key, Page] = defaultdict(dict)
    for row in rows:
        pages[row.target, row.labels][row.metric] = row
    keys = engine_keys(pages)
    under = Counter((target, labels) for target, engine_labels in keys for labels in labels_above(engine_labels))
    return pages, {key: max((under[key[0], labels] for labels in labels_above(key[1])), default=1) for key in keys}


def _series(key: Key, metric: str, pages: Mapping[Key, Page], owners: Mapping[Key, int]) -> EngineSeries | None:
    """An engine's own; else its page's, where that is no sum of several engines."""
    target, labels = key
    alone = metric not in _SHARED or owners[key] <= 1
    candidates = [labels, *(reversed(labels_above(labels)) if alone else ())]
    return next(
        (series for candidate in candidates if (series := pages.get((target, candidate), {}).get(metric))), None
    )


def _key(key: Key) -> str:
    """``vllm-3``, or with labels ``vllm-3{engine="1"}``."""
    return format_name(key[0], key[1])


def _engine(key: Key, pages: Mapping[Key, Page], owners: Mapping[Key, int], origin: Origin | None) -> EngineInfo:
    by_metric = {metric: series for metric in _READ if (series := _series(key, metric, pages, owners)) is not None}
    last = {metric: series.last for metric, series in by_metric.items() if series.last is not None}
    mean = {metric: series.mean for metric, series in by_metric.items() if series.mean is not None}
    tokens = _rate(by_metric.get(_METRICS["tokens"]), 1.0)
    seen = [series.last_ts for series in by_metric.values() if series.last_ts is not None]
    running, waiting = _METRICS["running"], _METRICS["waiting"]
    return EngineInfo(
        key=_key(key), target=key[0], labels=dict(key[1]), last_ts=max(seen) / 1000 if seen else None,
        running=last.get(running), waiting=last.get(waiting), kv_ratio=_kv(last),
        mean_running=mean.get(running), mean_waiting=mean.get(waiting), mean_kv_ratio=_kv(mean),
        tokens_per_second=tokens if tokens is not None else mean.get("generator_token_throughput"),
        preemptions_per_minute=_rate(by_metric.get(_METRICS["preemptions"]), 60.0),
        prefix_hit_ratio=_prefix(by_metric, mean),
        request_limit=last.get("generator_request_limit"), version=last.get("generator_policy_version"),
        held=next((state for metric, state in _HELD.items() if last.get(metric, 0) > 0), ""),
        role=role_of(last.get(PREFILL_ONLY), origin),
    )  # fmt: skip


def _kv(values: Mapping[str, float]) -> float | None:
    ratio, used = values.get("kv_cache_usage_ratio"), values.get("kv_cache_used_tokens")
    capacity = values.get("kv_cache_capacity_tokens")
    return ratio if ratio is not None or used is None or not capacity else min(1.0, used / capacity)


def _prefix(series: Mapping[str, EngineSeries], mean: Mapping[str, float]) -> float | None:
    """Hits per lookup; the engine's own share where it does not count both."""
    queries, hits = (_rate(series.get(metric), 1.0) for metric in _PREFIX)
    if queries is None or hits is None:
        return mean.get("prefix_cache_hit_ratio")
    return hits / queries if queries > 0 else None


def _rate(counter: EngineSeries | None, per: float) -> float | None:
    """Increase per ``per`` seconds over the minutes that are known."""
    minutes = counter.minutes if counter is not None else ()
    if len(minutes) < 2:
        return None
    grown = sum(_increase(old, new) for (_, old), (_, new) in pairwise(minutes))
    seconds = (minutes[-1][0] - minutes[0][0]) / 1000
    return per * grown / seconds if seconds > 0 else None


def _means(buckets: Iterable[Bucket]) -> dict[float, float]:
    return {bucket.ts / 1000: bucket.total / bucket.n for bucket in buckets if bucket.n}


def _grown(buckets: Iterable[Bucket], wide: int, per: float) -> dict[float, float]:
    """Increase from column to column; where one is missing, when it grew is not known."""
    points = [(bucket.ts, bucket.last) for bucket in buckets if bucket.n and bucket.last is not None]
    return {
        at / 1000: per * _increase(old, new) / (wide / 1000)
        for (before, old), (at, new) in pairwise(points)
        if at - before == wide
    }


def _increase(old: float, new: float) -> float:
    """Of a counter; after a decrease it counts from zero."""
    return new - old if new >= old else new
