"""Policy versions and weight updates."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from server.signals.aggregates import mean, single, too_few, total, window
from server.signals.engine_state import spread
from server.signals.model import TICK_WINDOW_SECONDS, Answer, Unknown, Value, View, signal
from server.signals.observed_histograms import Pool, totals
from server.signals.window import TRAINER, Gauge

# ---- weight update counts
# Weight updates counted by each target's engines: from their histogram, else from the calls that trigger updates.

INPUTS = ("generator_control_requests_total", "generator_control_seconds_total", "generator_weight_update_seconds")
PAUSED, LOADED = "generator_paused", "generator_weight_load_seconds"
HINT = (
    "no engine counts weight updates (vLLM from 0.32 on by its own routes, else the HTTP calls that bring weights in; "
    "updates from Python inside the engine's process show nowhere)"
)
# One of these calls is made once per update; which one depends on the framework. The first with any call counts.
# vLLM's collective_rpc is left out, because TRL and OpenRLHF use it for other purposes and the route does not say
# which.
_ONCE = ("update_weights_finish", "update_weights", "load_lora_adapter", "update_weight_version")
# During these calls the engine generates nothing, or nothing new.
_STALL = frozenset(
    {"pause", "resume", "update_weights_begin", "update_weights", "update_weights_finish", "load_lora_adapter"}
)
_LOAD = _STALL - {"pause", "resume"}
_OPERATIONS = frozenset({"start", "start_draft", "update", "finish"})  # not init, shutdown: once per incarnation

Calls = Mapping[str, float]


def counts(view: View) -> dict[str, float]:
    """Updates within five minutes, by target."""
    called = {target: _once(calls) for target, calls in _calls(view, INPUTS[0]).items()}
    found = {target: count for target, count in called.items() if count is not None}
    for target, pools in _timed(view).items():
        finished = [pool for pool in pools if ("operation", "finish") in pool.labels]
        updated = [pool for pool in pools if ("operation", "update") in pool.labels]
        found[target] = totals(finished or updated, view.now)[0]
    return found


def stalls(view: View) -> dict[str, float]:
    """Seconds within five minutes in which an engine was paused or loaded weights, by target.

    Only of targets that count pauses or updates. Weights are brought in during the pause, so the longer of both counts.
    """
    found = {}
    for target, calls in _calls(view, INPUTS[1]).items():
        if any(call in calls for call in (*_ONCE, "pause")):
            found[target] = sum(seconds for call, seconds in calls.items() if call in _STALL)
    found |= {target: totals(pools, view.now)[1] for target, pools in _timed(view).items()}
    for target, seconds in _pauses(view).items():
        if target in found or seconds > 0:
            found[target] = max(seconds, found.get(target, 0.0))
    return found


def loads(view: View) -> dict[str, float]:
    """Seconds in which an engine loads the weights of one update, by target: the last load of SGLang's engines (the
    slowest of a target), else the mean over the updates within five minutes.
    """
    seconds = {
        target: sum(took for call, took in calls.items() if call in _LOAD)
        for target, calls in _calls(view, INPUTS[1]).items()
    }
    seconds |= {target: totals(pools, view.now)[1] for target, pools in _timed(view).items()}
    made = counts(view)
    found = {target: took / made[target] for target, took in seconds.items() if made.get(target, 0.0) > 0}
    gauges = view.fresh(LOADED)
    # An update by another way than from disk follows the load from disk, whose value stays.
    loaded = [gauge for gauge in gauges if ("source", "disk") not in gauge.labels]
    last: dict[str, float] = {}
    for gauge in loaded or gauges:
        last[gauge.target] = max(gauge.last, last.get(gauge.target, 0.0))
    return found | last


def _pauses(view: View) -> dict[str, float]:
    """Seconds for which pages reported a pause, each until the next page; of several replicas, the longest."""
    found: dict[str, float] = {}
    for gauge in view.fresh(PAUSED):
        # Most engines were not paused, so a check of the sum is enough.
        seconds = _on(gauge, view.now) if gauge.mean(view.now) > 0 else 0.0
        found[gauge.target] = max(seconds, found.get(gauge.target, 0.0))
    return found


def _on(gauge: Gauge, now: float) -> float:
    spans = pairwise((*gauge.points, (now, 0.0)))
    start = now - TICK_WINDOW_SECONDS
    return sum(
        max(0.0, min(ts, before + gauge.carry) - max(before, start)) for (before, on), (ts, _) in spans if on > 0
    )


def _once(calls: Calls) -> float | None:
    return next((calls[call] for call in _ONCE if call in calls), None)


def _calls(view: View, metric: str) -> dict[str, dict[str, float]]:
    """Increase within five minutes by target and call; of a page of several replicas, the busiest."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for gauge in view.fresh(metric):
        call = dict(gauge.labels).get("call", "")
        if gauge.last > 0:
            grown = gauge.increase(view.now)[0]
            found[gauge.target][call] = max(grown, found[gauge.target].get(call, 0.0))
    return found


def _timed(view: View) -> dict[str, list[Pool]]:
    found: dict[str, list[Pool]] = defaultdict(list)
    for pool in view.observed.get(INPUTS[2], ()):
        labels = dict(pool.labels)
        if pool.fresh(view.now) and labels.get("operation") in _OPERATIONS:
            found[labels["target"]].append(pool)
    return found


# ---- signals

_PARTS = {part: f"weight_sync_{part}_seconds" for part in ("pause", "barrier", "transfer")}
_NEITHER = "this trainer reports neither a policy version nor step times: log one of the two"


@signal(
    title="Policy version",
    unit="version",
    actor="trainer",
    inputs=("policy_version", "trainer_step_seconds"),
    cadence="step",
    hint="no policy version yet: it comes with the first trainer step",
)
def policy_version(view: View) -> Answer:
    """Newest policy version that the trainer reports, or its step if it publishes one version per step."""
    for metric in ("policy_version", "trainer_step_seconds"):
        rows = view.steps.rows((metric, ()), count=1, until=view.now)
        if rows:
            version = rows[-1].values[(metric, ())] if metric == "policy_version" else float(rows[-1].number)
            return [Value(version)]
    return Unknown(policy_version.hint if view.steps.newest(TRAINER) is None else _NEITHER)


@signal(
    title="Weight sync",
    unit="seconds",
    actor="trainer",
    inputs=("trainer_weight_sync_seconds",),
    cadence="step",
    hint="this trainer reports no weight sync time (prime-rl `time/broadcast_weights`, TRL async `perf/weight_sync_s`)",
)
def weight_sync_seconds(view: View) -> Answer:
    """Seconds of the step spent on publishing weights, mean over the last 10 steps."""
    return single(view, "trainer_weight_sync_seconds", weight_sync_seconds.hint)


@signal(
    title="Weight sync share",
    unit="ratio",
    actor="trainer",
    inputs=("trainer_weight_sync_seconds", "trainer_step_seconds"),
    cadence="step",
    hint="this trainer reports no weight sync time next to its step time",
    # 10 %: good disaggregated transfers stay below; 25 %: a quarter of the trainer's time goes into copying weights.
    watch=0.10,
    critical=0.25,
)
def weight_sync_ratio(view: View) -> Answer:
    """Share of the step spent on publishing weights: sum of weight sync / sum of step over the last 10 steps."""
    rows = window(view, "trainer_weight_sync_seconds", "trainer_step_seconds")
    missing = too_few(rows, weight_sync_ratio.hint)
    if missing is not None:
        return missing
    step = total(rows, "trainer_step_seconds")
    return [Value(total(rows, "trainer_weight_sync_seconds") / step if step > 0 else 0.0)]


@signal(
    title="Parts of the weight sync",
    unit="seconds",
    actor="trainer",
    inputs=(*_PARTS.values(), "trainer_weight_sync_seconds"),
    cadence="step",
    hint="this trainer reports no parts of its weight sync (TRL async `perf/weight_sync_transfer_s`)",
)
def weight_sync_part_seconds(view: View) -> Answer:
    """Parts of the weight sync, means of the last 10 steps: pause (until the generators are paused), barrier (wait for
    the other ranks), transfer, and other, the rest of the weight sync.
    """
    found = {part: window(view, metric) for part, metric in _PARTS.items()}
    known = {part: rows for part, rows in found.items() if too_few(rows, "") is None}
    if not known:
        return too_few(max(found.values(), key=len), weight_sync_part_seconds.hint) or []
    parts = {part: mean(rows, _PARTS[part]) for part, rows in known.items()}
    rows = window(view, "trainer_weight_sync_seconds", *(_PARTS[part] for part in known))
    if too_few(rows, "") is None:
        parts["other"] = max(0.0, mean(rows, "trainer_weight_sync_seconds") - sum(parts.values()))
    return [Value(seconds, (("part", part),)) for part, seconds in parts.items()]


@signal(
    title="Weight sync bandwidth",
    unit="GB/s",
    actor="trainer",
    inputs=("weight_sync_bytes", "weight_sync_transfer_seconds", "trainer_weight_sync_seconds"),
    cadence="step",
    hint="this trainer does not report how many bytes a weight update sends (verl's delta engine "
    "`checkpoint_engine/payload_mbytes`, slime's disk deltas `perf/update_weights_wire_bytes`)",
)
def weight_sync_bandwidth(view: View) -> Answer:
    """Bytes sent over seconds of the transfer, in the last 10 steps with both; where the transfer is not reported, over
    the whole weight sync, which is a lower bound.
    """
    rows, seconds = window(view, "weight_sync_bytes", "weight_sync_transfer_seconds"), "weight_sync_transfer_seconds"
    if too_few(rows, "") is not None:
        rows, seconds = window(view, "weight_sync_bytes", "trainer_weight_sync_seconds"), "trainer_weight_sync_seconds"
    missing, took = too_few(rows, weight_sync_bandwidth.hint), total(rows, seconds)
    if missing is not None or took <= 0:
        return missing or Unknown("the weight sync takes no time")
    why = "" if seconds == "weight_sync_transfer_seconds" else "lower bound: over the whole weight sync"
    return [Value(total(rows, "weight_sync_bytes") / took / 1e9, why=why)]


@signal(
    title="Weight load",
    unit="seconds",
    actor="generator",
    inputs=(*INPUTS, LOADED),
    cadence="tick",
    hint="no engine reports how long it loads weights (SGLang from 0.5.16 on, vLLM from 0.32 on, else HTTP calls)",
)
def generator_weight_load_seconds(view: View) -> Answer:
    """Seconds in which an engine loads the weights of one update (its last, or the mean of those within 5 minutes):
    median and maximum over engines. The remark of the maximum names the slowest engine.
    """
    found = loads(view)
    if not found:
        none = counts(view) and not any(counts(view).values())
        return Unknown("no weight update within 5 minutes" if none else generator_weight_load_seconds.hint)
    middle, slowest = median(found.values()), max(found, key=lambda target: found[target])
    most = found[slowest]
    why = f"{slowest}, {most / middle:.2g} times the median" if len(found) > 1 and middle > 0 else ""
    return [Value(middle, (("stat", "median"),)), Value(most, (("stat", "max"),), why)]


@signal(title="Weight updates", unit="updates", actor="generator", inputs=INPUTS, cadence="tick", hint=HINT)
def generator_weight_updates(view: View) -> Answer:
    """Weight updates per engine within 5 minutes: minimum, mean and maximum. A minimum below the maximum means that an
    engine is left behind.
    """
    found = counts(view)
    return spread(list(found.values())) if found else Unknown(HINT)


@signal(
    title="Weight update time", unit="seconds", actor="generator", inputs=(*INPUTS, PAUSED), cadence="tick", hint=HINT
)
def generator_weight_stall_seconds(view: View) -> Answer:
    """Seconds of the last 5 minutes in which an engine was paused (if its page reports that) or answered calls that
    load weights (except /collective_rpc, which may be anything): minimum, mean and maximum over engines.
    """
    found = stalls(view)
    return spread(list(found.values())) if found else Unknown(HINT)
