"""Tokens and requests of the whole generator fleet."""

from collections import defaultdict
from itertools import pairwise

from server.signals import engine_state
from server.signals.aggregates import (
    SYNC_HAS_NO_QUEUE,
    grown,
    last_sum,
    not_in_sync,
    rate_sum,
    total,
    window,
    window_sum,
)
from server.signals.engine_state import HELD, INPUTS, SIGNS, STALE_GAUGES, Engine, current, engines
from server.signals.gpus import fleet
from server.signals.model import Answer, Counter, Unknown, Value, View, signal
from server.signals.window import Gauge

# ---- generated tokens
# Tokens that an engine generates per second: from its counter, or its reported rate where the counter jumps.

# A live counter grows between any two pages with requests; one that is updated at a request's end between few.
_LIVE_SHARE = 0.5


_TOKENS = "generator_tokens_total"


def rates(view: View) -> list[float]:
    """Tokens per second of the parts of the fleet: engines, and pages that count for all of their engines together."""
    measured = [(engine, rate(engine, view)) for engine in engines(view)]
    found = [(engine.target, own) for engine, own in measured if own is not None]
    targets = {target for target, _ in found}
    shared = {
        id(one): one for engine, _ in measured if engine.target not in targets and (one := engine.shared.get(_TOKENS))
    }
    together = [engine_state.rate(gauge, view) for gauge in shared.values()]
    return [own for _, own in found] + [one for one in together if one is not None]


def rate(engine: Engine, view: View) -> float | None:
    """Tokens per second over five minutes; None below two pages.

    SGLang before 0.5.9 counts tokens when a request ends: none for minutes, then all. It also reports its throughput.
    """
    gauge = engine.series.get("generator_token_throughput")
    if gauge is not None and engine.state == "up" and _in_jumps(engine):
        return gauge.mean(view.now)
    return engine.rate(_TOKENS, view)


def _in_jumps(engine: Engine) -> bool:
    tokens, running = engine.series.get(_TOKENS), engine.series.get("generator_requests_running")
    if tokens is None or running is None:
        return tokens is None
    busy = {ts for ts, value in running.points if value > 0}
    grew = [new > old for (before, old), (ts, new) in pairwise(tokens.points) if before in busy and ts in busy]
    return bool(grew) and sum(grew) < _LIVE_SHARE * len(grew)


# ---- signals


@signal(
    title="Generated tokens",
    unit="tokens/s",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="no engine reports generated tokens: add its /metrics as a target",
)
def generator_tokens_per_second(view: View) -> Answer:
    """Tokens generated per second over 5 minutes, summed over engines, including evaluation and judge traffic."""
    if not view.fresh("generator_tokens_total") and not view.fresh("generator_token_throughput"):
        return Unknown(generator_tokens_per_second.hint)
    found = rates(view)
    return [Value(sum(found))] if found else Unknown("one page per engine so far; a rate needs two")


@signal(
    title="Generated tokens per GPU",
    unit="tokens/s",
    actor="generator",
    inputs=INPUTS,
    cadence="tick",
    hint="the number of generator GPUs is unknown: set [run.NAME.cost] generator_gpus (gpus where they are shared)",
)
def generator_gpu_tokens_per_second(view: View) -> Answer:
    """Tokens generated per second and GPU of the generator over 5 minutes."""
    gpus, found = fleet(view.facts, view.mode).generator.gpus, rates(view)
    if gpus is None:
        return Unknown(generator_gpu_tokens_per_second.hint)
    return [Value(sum(found) / gpus)] if found else Unknown(generator_tokens_per_second.hint)


@signal(
    title="Prompt tokens",
    unit="tokens/s",
    actor="generator",
    inputs=("generator_prompt_tokens_total",),
    cadence="tick",
    hint="no engine reports prompt tokens: add its /metrics as a target",
)
def generator_prompt_tokens_per_second(view: View) -> Answer:
    """Prompt tokens processed per second over 5 minutes, summed over engines, including those found in the cache."""
    gauges = view.fresh("generator_prompt_tokens_total")
    if not gauges:
        return Unknown(generator_prompt_tokens_per_second.hint)
    found = rate_sum(view, gauges)
    return [Value(found)] if found is not None else Unknown("one page per engine so far; a rate needs two")


@signal(
    title="Prefill to decode",
    unit="ratio",
    actor="generator",
    inputs=("generator_prompt_tokens_total", "generator_tokens_total"),
    cadence="tick",
    hint="no engine reports prompt and generated tokens: add its /metrics as a target",
)
def generator_prefill_decode_ratio(view: View) -> Answer:
    """Prompt tokens per generated token over 5 minutes, all engines together, including prompt tokens found in the
    cache.

    Tools and turns make it grow, longer answers make it fall.
    """
    prompt, generated = grown(view, "generator_prompt_tokens_total"), grown(view, "generator_tokens_total")
    if prompt is None or generated is None:
        return Unknown(generator_prefill_decode_ratio.hint)
    if generated <= 0:
        return Unknown("no token was generated within 5 minutes")
    return [Value(prompt / generated)]


_METRIC = "generator_requests_finished_total"
_SHOWN = 10


@signal(
    title="Finish reasons",
    unit="ratio",
    actor="generator",
    inputs=(_METRIC,),
    cadence="tick",
    hint="no engine reports why requests end (vLLM does; SGLang counts requests without a reason)",
)
def generator_finish_ratio(view: View) -> Answer:
    """Share of each finish reason among requests that ended within 5 minutes, including turns, evaluation and
    retries.
    """
    reasons: dict[str, float] = defaultdict(float)
    for gauge in view.fresh(_METRIC):
        # An engine that counts without a reason does not contribute to the shares.
        if reason := dict(gauge.labels).get("reason"):
            reasons[reason] += gauge.increase(view.now)[0]
    if not reasons:
        return Unknown(generator_finish_ratio.hint)
    whole = sum(reasons.values())
    if whole <= 0:
        return Unknown("no request finished within 5 minutes")
    largest = sorted(reasons, key=lambda reason: (-reasons[reason], reason))[:_SHOWN]
    return [Value(reasons[reason] / whole, (("reason", reason),)) for reason in sorted(largest)]


_PREEMPTED, _FINISHED, _USAGE = (
    "generator_preemptions_total", "generator_requests_finished_total", "kv_cache_usage_ratio",
)  # fmt: skip
# An engine preempts when no block is free. Between two pages of a recorded run that preempts for want of blocks one of
# the two is at 87 to 100 %; an engine whose cache was cleared by a pause is at 1 % before and after.
NEARLY_FULL = 0.85


@signal(
    title="Preemptions per request",
    unit="ratio",
    actor="generator",
    inputs=(_PREEMPTED, _FINISHED, "generator_requests_running", _USAGE),
    cadence="tick",
    hint="no engine reports preemptions and finished requests: add its /metrics as a target",
    # Each preemption computes a prefix again; from one in ten requests on, throughput drops measurably.
    watch=0.02,
    critical=0.10,
)
def generator_preemption_ratio(view: View) -> Answer:
    """Requests preempted for lack of KV cache per finished request over 5 minutes, all engines together. Preemptions by
    a pause for a weight update are not counted while the cache is far from full.

    vLLM also counts every running request as preempted when a pause clears its cache, as TRL does at each weight update
    (`/pause?mode=keep`, `reset_prefix_cache`). Only preemptions next to a page with a nearly full cache count.
    """
    preempted, finished = grown(view, _PREEMPTED), grown(view, _FINISHED)
    if preempted is None or finished is None:
        return Unknown(generator_preemption_ratio.hint)
    counted = _for_want_of_cache(view) if preempted > 0 else 0.0
    why = (
        f"{preempted - counted:.0f} preemptions while the cache was not full do not count"
        if counted < preempted
        else ""
    )
    if finished <= 0 and counted > 0:
        # No request finishes: the running requests are preempted repeatedly.
        return [Value(counted / max(1.0, last_sum(view.fresh("generator_requests_running"))), why=why)]
    if finished <= 0:
        return Unknown("no request finished within 5 minutes; preemptions are counted per finished request")
    return [Value(counted / finished, why=why)]


def _for_want_of_cache(view: View) -> float:
    """Preemptions of 5 minutes that a nearly full cache explains; all of an engine that does not report its cache."""
    usage = {(one.target, one.labels): one for one in view.fresh(_USAGE)}
    return sum(_counted(one, usage.get((one.target, one.labels)), view.now) for one in view.fresh(_PREEMPTED))


def _counted(preempted: Gauge, usage: Gauge | None, now: float) -> float:
    if usage is None or preempted.increase(now)[0] <= 0:
        return preempted.increase(now)[0]
    full = {ts for ts, value in usage.points if value >= NEARLY_FULL}
    start, found = now - preempted.keep, 0.0
    for (before, old), (ts, new) in pairwise(preempted.points):
        if ts - before <= preempted.carry and (before in full or ts in full):
            # The interval that reaches out of the window counts by its share within, as in `Gauge.increase`.
            found += (new - old if new >= old else new) * (ts - max(before, start)) / (ts - before)
    return found


BY = {"backpressure": "backpressure_seconds", "gate": "dispatch_gate_wait_seconds"}


@signal(
    title="Production held",
    unit="ratio",
    actor="queue",
    inputs=("trainer_step_seconds", *BY.values()),
    cadence="step",
    hint="this run reports no time its production was held (TRL async `rollout/backpressure_s`, prime-rl "
    "`time/wait_for_policy`, open-instruct `time/generation_waiting_for_trainer`)",
)
@not_in_sync(SYNC_HAS_NO_QUEUE)
def generation_held_ratio(view: View) -> Answer:
    """Share of the last 10 steps in which production was held back: by a full queue (backpressure), or because dispatch
    waited for the next policy (gate).
    """
    steps = window(view, "trainer_step_seconds")
    seconds = total(steps, "trainer_step_seconds")
    found = []
    for by, metric in BY.items():
        rows = window(view, metric)
        # A step without the metric had no pause, because TRL logs `backpressure_s` only when it is above zero.
        within = [row for row in rows if steps and row.ts >= steps[0].ts]
        if rows and seconds > 0:
            found.append(Value(min(1.0, total(within, metric) / seconds), (("by", by),)))
    return found or Unknown(generation_held_ratio.hint)


_JUDGED = ("generator_requests_running", "generator_tokens_total")


def _judged(engine: Engine) -> bool:
    return all(engine.tells(metric) for metric in _JUDGED)


@signal(
    title="Frozen",
    unit="",
    actor="generator",
    inputs=("generator_requests_running", *SIGNS, *HELD),
    cadence="tick",
    hint="no engine reports both running requests and generated tokens: add its /metrics as a target",
    critical=1.0,
)
def generator_frozen(view: View) -> Answer:
    """1 for an engine that answers with running requests while no token is counted and no cache changes for 60 s; 0 for
    the others, including paused and sleeping engines.
    """
    found: dict[str, bool] = {}
    for engine in filter(_judged, engines(view)):
        found[engine.target] = found.get(engine.target, False) or engine.state == "hung"
    return [Value(float(hung), (("target", target),)) for target, hung in found.items()] or Unknown(
        generator_frozen.hint
    )


GENERATOR_REQUESTS_HINT = (
    "no engine reports requests: add its /metrics as a target "
    "(vLLM serves it by default; verl turns it off with disable_log_stats)"
)
STATES = (("running", "generator_requests_running"), ("waiting", "generator_requests_waiting"))


@signal(
    title="Generator requests",
    unit="requests",
    actor="generator",
    inputs=tuple(metric for _, metric in STATES),
    cadence="tick",
    hint=GENERATOR_REQUESTS_HINT,
)
def generator_requests(view: View) -> Answer:
    """Requests running and waiting, summed over engines; time-weighted mean over 5 minutes of whole steps.

    Engine gauges count turns, evaluations and retries alike: they say how full the engines are, never how many rollouts
    were produced.
    """
    found = [(state, current(view, metric)) for state, metric in STATES]
    values = [Value(window_sum(view, gauges), (("state", state),)) for state, gauges in found if gauges]
    return values or Unknown(_no_requests(view))


def _no_requests(view: View) -> str:
    return STALE_GAUGES if any(one.state == "stale" for one in engines(view)) else GENERATOR_REQUESTS_HINT


@signal(
    title="Generator requests now",
    unit="requests",
    actor="generator",
    inputs=tuple(metric for _, metric in STATES),
    cadence="tick",
    hint=GENERATOR_REQUESTS_HINT,
)
def generator_requests_now(view: View) -> Answer:
    """Requests running and waiting on the newest page of each engine, summed over engines."""
    found = [(state, current(view, metric)) for state, metric in STATES]
    values = [Value(last_sum(gauges), (("state", state),)) for state, gauges in found if gauges]
    return values or Unknown(_no_requests(view))


COUNTERS = (
    Counter(
        name="generator_generated_tokens_total",
        title="Generated tokens",
        unit="tokens",
        actor="generator",
        help="Tokens generated by all engines since Rollscope began to watch them; restarts of engines lose none.",
        metric="generator_tokens_total",
        of="counter",
    ),
    Counter(
        name="generator_finished_requests_total",
        title="Finished requests",
        unit="requests",
        actor="generator",
        help="Requests that engines finished since Rollscope began to watch them, by finish reason, including turns, "
        "evaluation and retries.",
        metric="generator_requests_finished_total",
        of="counter",
        by=("reason",),
    ),
    Counter(
        name="generator_preemptions_total",
        title="Preemptions",
        unit="preemptions",
        actor="generator",
        help="Requests preempted for lack of KV cache since Rollscope began to watch.",
        metric="generator_preemptions_total",
        of="counter",
    ),
)
"""Counters of this topic, which are counted as records arrive."""
