"""The engines of the fleet: what each one reports, and its state.

An engine is one label set of a target's page: data-parallel ranks and the replicas of a merged page are separate
engines. What a page reports of its whole server (paused, the served version) holds for every engine on it.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from collectors.model import Labels
from server.signals.aggregates import step_mean
from server.signals.model import TICK_WINDOW_SECONDS, Origin, TargetState, Value, View
from server.signals.window import KEPT_STEPS, Gauge

# Seconds. Longer than the longest prefill and than a usual weight update, short against an hour of idle GPUs.
FROZEN_SECONDS = 60.0
STATES = ("up", "down", "paused", "asleep", "hung", "silent", "stale")
"""``hung``: requests run and nothing moves. ``stale``: it is idle, and its gauges kept their last values."""
# Gauges that vLLM sets in an engine step alone. After the last request was aborted no step follows, so they stay.
STEP_GAUGES = ("generator_requests_running", "generator_requests_waiting", "kv_cache_usage_ratio")
# Steps that the trainer must complete after all engines stood still: more than a batch that was on its way, so that
# they show that the trainer gets its rollouts.
STEPS_AFTER = 3
STALE_GAUGES = (
    "the engines are idle, and their gauges are stale: they kept their last values when all requests were aborted"
)
# Any of them moves in an engine that works. One is not enough: SGLang before 0.5.9 counts tokens when a request ends,
# and a long prefill generates none.
SIGNS = (
    "generator_tokens_total", "generator_prompt_tokens_total", "kv_cache_usage_ratio", "kv_cache_used_tokens",
    "live_sequence_tokens", "generator_token_throughput",
)  # fmt: skip
HELD = ("generator_asleep", "generator_paused", "generator_requests_paused")
# Reported by a router or Prometheus that scrapes the engine, where the target is not the engine itself.
UP = "generator_up"
LOAD = ("generator_requests_running", "generator_tokens_total")
PREFILL_ONLY = "generator_prefill_only"
ROLES = ("prefill", "decode")
"""Of an engine that does one of the two, the other being done by others; see `role_of`."""
INPUTS = (
    "generator_requests_running", UP, *SIGNS, *HELD, "generator_request_limit",
    "kv_cache_capacity_tokens", "kv_concurrency_limit", "generator_max_sequence_tokens", PREFILL_ONLY,
)  # fmt: skip
# Metrics that add up over engines. Where a page reports one for several engines together (SGLang's tokenizer counts the
# tokens of all its ranks) it belongs to no single engine; any other metric, a state or a limit, holds for each engine.
AMOUNTS = frozenset(
    {
        "generator_requests_running", "generator_tokens_total", "generator_prompt_tokens_total",
        "generator_token_throughput", "kv_cache_used_tokens", "live_sequence_tokens",
    }
)  # fmt: skip
# Seconds. Long enough for an alert to fire and a user to react. A page does not report whether an engine that vanished
# has died or was removed, so a vanished engine does not count as missing permanently.
MISSED_SECONDS = TICK_WINDOW_SECONDS
# Kinds of target that are engines: one that never answered counts as missing, a router does not.
KINDS = frozenset({"vllm", "sglang", "tensorrt_llm", "triton"})


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    Attributes:
        series: its newest series by metric, empty for an engine that reports nothing now.
        shared: amounts that its page reports only for several engines together.
        role: one of `ROLES`, or "": it does both.
    """

    target: str
    labels: Labels
    series: Mapping[str, Gauge]
    state: str
    shared: Mapping[str, Gauge] = field(default_factory=dict)
    role: str = ""

    @property
    def named(self) -> Labels:
        """Its name in a label set: its target, and which of the target's engines it is."""
        return tuple(sorted((("target", self.target), *self.labels)))

    def mean(self, metric: str, view: View) -> float | None:
        """Time-weighted mean over 5 minutes of whole steps, None where the engine does not report the metric."""
        gauge = self.series.get(metric)
        return step_mean(view, gauge) if gauge is not None else None

    def tells(self, metric: str) -> bool:
        """Whether the metric is reported, for this engine alone or together with others of its page."""
        return metric in self.series or metric in self.shared

    def rate(self, metric: str, view: View) -> float | None:
        """Increase per second of a counter over five minutes, None below two pages."""
        gauge = self.series.get(metric)
        return rate(gauge, view) if gauge is not None else None


def rate(gauge: Gauge, view: View) -> float | None:
    """Increase per second of a counter over five minutes, None below two pages."""
    grown, seconds = gauge.increase(view.now)
    return grown / seconds if seconds > 0 else None


def engines(view: View) -> list[Engine]:
    """Every engine, ordered by name; those of targets that are down as last seen."""
    found: list[Engine] = view.once("engines", _engines)
    return found


def awake(view: View) -> list[Engine]:
    """Engines that answer and do not sleep. Paused and hung engines hold their requests, so they count."""
    return [one for one in engines(view) if one.state in ("up", "paused", "hung")]


def spread(values: list[float]) -> list[Value]:
    """The fleet's mean, and its tail: the idlest and the busiest engine."""
    found = (("min", min(values)), ("mean", fmean(values)), ("max", max(values)))
    return [Value(value, (("stat", stat),)) for stat, value in found]


def _engines(view: View) -> list[Engine]:
    pages = _pages(view)
    health = {one.name: one for one in view.targets}
    keys = sorted(engine_keys(pages))
    under = Counter((target, above) for target, labels in keys for above in labels_above(labels))
    found = [_engine(view, key, pages, under, health.get(key[0])) for key in keys]
    targets = {one.target for one in found}
    lost = [one for one in view.targets if one.actor == "generator" and one.name not in targets]
    found = _without_stale(view, found)
    found += _unanswered(view, found)
    return found + list(_missed(view, found)) + [engine for one in lost for engine in _lost(view, one)]


Key = tuple[str, Labels]
Pages = dict[Key, dict[str, Gauge]]


def _pages(view: View) -> Pages:
    pages: Pages = {}
    for metric in INPUTS:
        for gauge in view.fresh(metric):
            pages.setdefault((gauge.target, gauge.labels), {})[metric] = gauge
    return pages


def engine_keys(pages: Mapping[Key, Mapping[str, object]]) -> list[Key]:
    """Keys of the engines: label sets with running requests; on a page without these, label sets with a token counter.

    A page may report running requests without the engine's label that tokens and cache have: then these are the keys.
    """
    running, counting = ([key for key, series in pages.items() if metric in series] for metric in LOAD)
    targets = {target for target, _ in running}
    below: dict[Key, list[Key]] = {}
    for (target, labels), series in pages.items():
        for above in labels_above(labels) if not series.keys().isdisjoint(SIGNS) else ():
            below.setdefault((target, above), []).append((target, labels))
    found = running + [key for key in counting if key[0] not in targets]
    return list({one for key in found for one in below.get(key, [key])})


def labels_above(labels: Labels) -> list[Labels]:
    """Label sets whose series also hold for an engine: the page's and its replica's."""
    replica = tuple([pair for pair in labels if pair[0] == "replica"])
    return [one for one in dict.fromkeys(((), replica)) if one != labels]


def _engine(view: View, key: Key, pages: Pages, under: Mapping[Key, int], health: TargetState | None) -> Engine:
    target, labels = key
    if health is not None and not health.up:
        return Engine(target, labels, {}, "silent" if health.alive else "down")
    series: dict[str, Gauge] = {}
    shared: dict[str, Gauge] = {}
    # Precedence: the engine's own series, its replica's, the page's.
    for above in labels_above(labels):
        for metric, gauge in pages.get((target, above), {}).items():
            several = metric in AMOUNTS and under[target, above] > 1
            (shared if several else series)[metric] = gauge
    series.update(pages[key])
    if UP in series and not series[UP].last:
        return Engine(target, labels, {}, "down")
    own = series.get(PREFILL_ONLY)
    role = role_of(own.last if own is not None else None, health.origin if health is not None else None)
    return Engine(target, labels, series, _state({**shared, **series}, view.now), shared, role)


def role_of(prefill_only: float | None, origin: Origin | None) -> str:
    """By the engine's own `PREFILL_ONLY`, else by the label ``worker_type`` of the list that its target is from."""
    if prefill_only is not None:
        return ROLES[0] if prefill_only else ROLES[1]
    listed = dict(origin.labels).get("worker_type", "") if origin is not None else ""
    return listed if listed in ROLES else ""


def _without_stale(view: View, found: list[Engine]) -> list[Engine]:
    """Marks engines as stale that seem to hang while the trainer goes on without any engine that works.

    If the run waited for the requests that the gauges show, the trainer would stop. With an engine that works it goes
    on in any case, so nothing follows for the others.
    """
    hang = [one for one in found if one.state == "hung"]
    if not hang or any(one.state == "up" and _runs(one) for one in found):
        return found
    since = max(_stands_since(one) for one in hang)
    if _steps_after(view, since) < STEPS_AFTER + math.ceil(_batches_before(view, since)):
        return found
    rest = [replace(one, series=_but_step_gauges(one.series), state="stale") for one in hang]
    return sorted([*(one for one in found if one.state != "hung"), *rest], key=lambda one: (one.target, one.labels))


def current(view: View, metric: str) -> list[Gauge]:
    """Series of one of `STEP_GAUGES` that have a value at the step's end, without those of stale engines."""
    stale = {(one.target, one.labels) for one in engines(view) if one.state == "stale"}
    gauges = [one for one in view.fresh(metric) if _has_value(one, view.now)]
    return [one for one in gauges if (one.target, one.labels) not in stale] if stale else gauges


def _has_value(gauge: Gauge, now: float) -> bool:
    """False if its only fresh samples are later: where history is derived at once, they are read already."""
    return gauge.last_ts <= now or any(now - gauge.carry <= ts <= now for ts, _ in gauge.points)


def _runs(engine: Engine) -> bool:
    running = engine.series.get("generator_requests_running")
    return running is None or running.last > 0


def _but_step_gauges(series: Mapping[str, Gauge]) -> dict[str, Gauge]:
    return {metric: gauge for metric, gauge in series.items() if metric not in STEP_GAUGES}


def _stands_since(engine: Engine) -> float:
    """Since when nothing has moved in the engine, as far as its pages are in the window."""
    return max(_still_since(engine.series[metric]) for metric in SIGNS if metric in engine.series)


def _steps_after(view: View, since: float) -> int:
    return sum(
        step.ts > since for step in view.steps.rows(("trainer_step_seconds", ()), count=KEPT_STEPS, until=view.now)
    )


def _batches_before(view: View, since: float) -> float:
    """Batches in the queue when the engines stopped: the trainer goes on without engines while they last."""
    depths = [value for gauge in view.gauges.get("queue_samples", ()) for ts, value in gauge.points if ts <= since]
    batch = view.fact("batch_samples")
    return max(depths) / batch if depths and batch else 0.0


def _state(series: Mapping[str, Gauge], now: float) -> str:
    if _on(series, "generator_asleep"):
        return "asleep"
    # Checked before paused, because a weight update pauses a hung engine too and does not repair it.
    if hung(series, now):
        return "hung"
    return "paused" if _on(series, "generator_paused") or _on(series, "generator_requests_paused") else "up"


def _on(series: Mapping[str, Gauge], metric: str) -> bool:
    return metric in series and series[metric].last > 0


def hung(series: Mapping[str, Gauge], now: float) -> bool:
    """Whether requests ran for a minute in which no token was counted and no cache changed.

    Time in which the engine was paused or asleep does not count, because no progress is expected then.
    """
    running, limit = series.get("generator_requests_running"), now - FROZEN_SECONDS
    if running is None or "generator_tokens_total" not in series:
        return False
    # One metric that changed is enough, and the first one nearly always did.
    still = -math.inf
    for metric in SIGNS:
        if metric in series:
            still = max(still, _still_since(series[metric]))
            if still > limit:
                return False
    since = max(still, _busy_since(running))
    return since <= limit and now - since - _held_seconds(series, since, now) >= FROZEN_SECONDS


def _held_seconds(series: Mapping[str, Gauge], since: float, now: float) -> float:
    """Seconds of [since, now] in which the engine was paused or asleep: between two pages if one of them reports it."""
    held = sorted(span for metric in HELD if metric in series for span in _held_spans(series[metric], now))
    total, until = 0.0, since
    for start, end in held:
        if end > until:
            total, until = total + end - max(start, until), end
    return total


def _held_spans(gauge: Gauge, now: float) -> Iterator[tuple[float, float]]:
    before, held = -math.inf, False
    for ts, value in (*gauge.points, (now, 0.0)):
        if held or value > 0:
            yield before, ts
        before, held = ts, value > 0


def _still_since(gauge: Gauge) -> float:
    """When the series last changed, or its first page within the window."""
    since = gauge.last_ts
    for ts, value in reversed(gauge.points):
        if value != gauge.last:
            break
        since = ts
    return since


def _busy_since(running: Gauge) -> float:
    """Since when requests run in every page; infinite where none run now."""
    since = math.inf
    for ts, value in reversed(running.points):
        if value <= 0:
            break
        since = ts
    return since


def _unanswered(view: View, found: Collection[Engine]) -> list[Engine]:
    """Engines of targets that answer but whose only fresh series is that the engine is down: as they were last seen."""
    answered = {(one.target, pair) for one in found for pair in one.labels}
    silent = [
        one for one in view.fresh(UP) if not one.last and not any((one.target, p) in answered for p in one.labels)
    ]
    gauges = view.gauges.get("generator_requests_running", ()) if silent else ()
    last = {(up.target, one.labels) for up in silent for one in gauges if _is_of(one, up)}
    bare = {(up.target, up.labels) for up in silent if not any(_is_of(one, up) for one in gauges)}
    return [Engine(target, labels, {}, "down") for target, labels in sorted(last | bare)]


def _is_of(one: Gauge, replica: Gauge) -> bool:
    return one.target == replica.target and set(replica.labels) <= set(one.labels)


def _missed(view: View, found: list[Engine]) -> Iterator[Engine]:
    """Engines that vanished from a page that still answers, except those that were replaced by others."""
    now, there = view.now, {(one.target, one.labels) for one in found}
    targets = {one.target for one in found if one.state != "down"}
    gone: dict[str, list[Gauge]] = {}
    for gauge in view.gauges.get(LOAD[0], ()):
        late = not gauge.fresh(now) and now - gauge.last_ts <= MISSED_SECONDS
        if late and gauge.target in targets and (gauge.target, gauge.labels) not in there:
            gone.setdefault(gauge.target, []).append(gauge)
    for target, series in gone.items():
        series.sort(key=lambda gauge: (gauge.last_ts, gauge.labels))
        firsts = [one.series[LOAD[0]].points[0][0] for one in found if one.target == target and LOAD[0] in one.series]
        come = sum(first > series[0].last_ts for first in firsts)
        yield from (Engine(target, gauge.labels, {}, "silent") for gauge in series[come:])


def _lost(view: View, health: TargetState) -> Iterator[Engine]:
    """Engines of a target without fresh series: down, or silent where the target answers without metrics."""
    state = "silent" if health.up or health.alive else "down"
    gauges = view.gauges.get("generator_requests_running", ())
    last = sorted({gauge.labels for gauge in gauges if gauge.target == health.name})
    if not last and health.collector in KINDS and (state == "down" or health.alive or health.last_ok_ts is not None):
        last = [()]
    return (Engine(health.name, labels, {}, state) for labels in last)
