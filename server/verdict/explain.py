"""The evidence of a verdict, most important first, and the missing sources. Pure.

A number that is a signal's own value names the signal and its window. Other numbers are means over the judged steps:
their text states that window, and they name no signal.
"""

from collections.abc import Iterator, Mapping

from server.verdict.advice import LEVER_OF
from server.verdict.model import Advice, Evidence, Limiter, Outcome, VerdictInput
from server.verdict.steps import Late
from server.verdict.thresholds import (
    DISAGREE,
    HALF_LIMIT,
    HARMLESS,
    IN_HOURS_SECONDS,
    IN_MINUTES_SECONDS,
    LEAST_LIMIT_SECONDS,
    LIMIT,
    MOST_ENGINES,
    MOST_EVIDENCE,
    MOST_LIMITERS,
    SAME_COUNT,
    SHOWN_SHARE,
    SHOWN_STALE,
    STALE_EXPLAINS,
    SYNC_WEIGHTS,
    WEIGHTS,
    WORTH_A_SETTING,
)
from server.verdict.throughput import Numbers, is_reported_wait, wait

# ---- messages
# The summary of a verdict in one sentence, and the first change to make.

TITLES: Mapping[Outcome, str] = {
    "stalled": "The run makes no progress",
    "generator_bound": "Generation limits the run",
    "sandbox_bound": "Sandboxes limit the run",
    "reward_bound": "Scoring limits the run",
    "curriculum_bound": "The curriculum limits the run",
    "trainer_bound": "The trainer limits the run",
    "overhead_bound": "Overhead in the trainer's step limits the run",
    "orchestrator_bound": "The orchestrator limits the run",
    "balanced": "Generator and trainer are matched",
    "unknown": "The limiter is unknown",
}

ADVICE: Mapping[tuple[Outcome, str], str] = {
    ("stalled", "no_progress"): "Look at the trainer's log and its collectives; the step has been open for too long.",
    ("stalled", "dead_engine"): "Restart the engines that do not answer; nothing is generated meanwhile.",
    ("stalled", "frozen_engine"): "Restart the frozen engines; look for a hung collective or a weight update that "
    "never ended.",
    ("stalled", "collective_timeout"): "The trainer hangs in a collective. Look for the rank that did not join it: its "
    "log, its GPU (Xid, ECC) and its network. Then restart from the last checkpoint.",
    (
        "stalled",
        "worker_died",
    ): "Look at why the worker ended (out of memory, a lost node). If no step follows, restart "
    "from the last checkpoint.",
    ("stalled", "dead_trainer"): "The trainer's heartbeat is missing: check whether its process runs.",
    ("generator_bound", "kv_capacity"): "Give generation more KV memory: move GPUs to it, shorten the responses, or "
    "quantise the cache. More concurrency will not help.",
    ("generator_bound", "long_tail"): "Cut the tail: keep partial rollouts over weight updates, cap lengths, or "
    "oversample less and wait for fewer stragglers.",
    ("generator_bound", "preemption"): "Lower the requests per engine until none is preempted, or give the cache more "
    "memory.",
    ("generator_bound", "too_few_engines"): "Move GPUs from training to generation (see what-if), or raise the "
    "rollouts in flight if the engines have room.",
    (
        "generator_bound",
        "slow_engine",
    ): "Repair or remove the slow engine: requests wait for it while others have room.",
    ("generator_bound", "drift"): "Rollouts have become longer: move GPUs to generation, cap lengths or turns, or "
    "reward shorter ones.",
    ("generator_bound", "not_told"): "Add the engines' /metrics: whether they are full decides what to change.",
    ("sandbox_bound", "spin_up"): "Start sandboxes earlier: keep a warm pool, cache images, or start them before the "
    "prompt is dispatched.",
    ("sandbox_bound", "starting_limit"): "Raise the provider's limit on sandboxes starting at once, or keep a warm "
    "pool below it.",
    ("sandbox_bound", "init_failures"): "Fix the sandboxes that fail to start before tuning anything: their rewards "
    "of zero do not show whether the task is hard.",
    ("sandbox_bound", "quota"): "Raise the provider's quota or remove dangling sandboxes (rollscope preflight).",
    ("sandbox_bound", "tool_time"): "Make tool calls faster or run more rollouts at once: the engines wait for them.",
    ("reward_bound", "scoring"): "Score in parallel, or reuse what the verifier starts for each score.",
    ("curriculum_bound", "too_easy"): "Sample harder tasks: drop those that every rollout solves, or sample by solve "
    "rate.",
    ("curriculum_bound", "too_hard"): "Sample easier tasks first, or give partial credit: no rollout solves these.",
    ("curriculum_bound", "equal_rewards"): "The rewards of a group are equal: sample tasks of medium difficulty, or "
    "use finer-grained rewards.",
    ("trainer_bound", "compute"): "Move GPUs from generation to training (see what-if), or make the step faster.",
    ("trainer_bound", "other"): "Most of the step is neither waiting nor computing: profile the part that the trainer "
    "does not report.",
    ("trainer_bound", "open_step"): "Look at the trainer's log, its collectives and its disk: its batch is available, "
    "but one step takes many times its usual length.",
    ("overhead_bound", "weight_sync"): "Publish weights in the background, less often, or over a faster path.",
    ("overhead_bound", "checkpoint"): "Write checkpoints asynchronously or less often.",
    ("overhead_bound", "eval"): "Evaluate less often, on fewer tasks, or on separate engines.",
    ("orchestrator_bound", "staleness_gate"): "Production is held while the trainer waits: raise the staleness bound "
    "or publish more often.",
    ("orchestrator_bound", "concurrency_cap"): "Raise the rollouts in flight: the engines have room and none waits.",
    ("generator_bound", "max_num_seqs"): "Raise max_num_seqs: requests wait while the KV cache has room.",
    ("orchestrator_bound", "prompts"): "Dispatch prompts faster: the in-flight limit is not reached.",
    ("orchestrator_bound", "tool_calls"): "Make tool calls faster or run more rollouts at once: the engines wait for "
    "them.",
}
"""(outcome, cause) -> the first change to make."""


def opened(step: Late) -> str:
    """Returns e.g. ``The trainer's step after 412 has been open for 12 min, 24 times its usual length``."""
    after = f" after {step.after}" if step.after is not None else ""
    return f"The trainer's step{after} has been open for {span(step.seconds)}, {step.times:.2g} times its usual length"


def _fed(step: Late) -> str:
    if step.batches is not None:
        return f"{step.batches:.2g} batches wait in the queue"
    return f"{step.had or 0.0:.2g} batches waited in the queue when it began"


def span(seconds: float) -> str:
    """A duration with two significant digits or more, so that it does not jump: ``119 s``, then ``2 min``."""
    if seconds < IN_MINUTES_SECONDS:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < IN_HOURS_SECONDS else f"{seconds / 3600:.1f} h"


def summary(outcome: Outcome, cause: str, n: Numbers, first: Limiter | None) -> str:
    """Returns one sentence with the most important number."""
    title = TITLES[outcome]
    waits = ("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound", "balanced")
    if outcome in waits and n.wait is not None:
        title += f": {wait(n)}"
    elif cause in ("collective_timeout", "worker_died") and (since := n.seen.fault_since) is not None:
        began = f"; it began {span(n.seen.now - since)} ago" if cause == "collective_timeout" else ""
        return f"{title}: {n.seen.facts['fault']}{began}"
    elif outcome == "stalled" and (hung := n.engines.get("hung")):
        # If half of the engines hang, the run still crawls, so the text states the engines only.
        title = f"{hung:.0f} of {sum(n.engines.values()):.0f} engines run requests and generate no token"
    elif cause == "open_step" and n.opened is not None:
        return f"{opened(n.opened)}; {_fed(n.opened)}"
    elif outcome == "stalled" and cause == "no_progress" and n.opened is not None and n.opened.late:
        return f"{title}: {opened(n.opened)[0].lower()}{opened(n.opened)[1:]}"
    elif outcome == "stalled" and cause == "dead_engine":
        title += ": no engine answers" + (f", and no step ended for {span(n.opened.seconds)}" if n.opened else "")
    if first is not None and first.text:
        return f"{title}{'; ' if ':' in title else ': '}{first.text}"
    return title


def advised(outcome: Outcome, cause: str, n: Numbers, changes: tuple[Advice, ...]) -> tuple[Advice, ...]:
    """Returns what to do: a repair first, where something is broken; else the changes, by gain per cost."""
    if outcome == "unknown":
        return changes if cause == "missing" else ()
    if outcome == "balanced":
        # Nothing needs to be changed: only what gains in any case, or costs nothing, is proposed.
        return tuple(one for one in changes if _worth_it(one))
    dead = n.engines.get("down", 0.0) + n.engines.get("hung", 0.0)
    words = ADVICE.get((outcome, cause), "")
    if cause == "slow_engine" and n.slow:
        name = min(n.slow, key=lambda engine: n.slow[engine])
        words = f"Repair or remove engine {name}: requests wait for it while the other engines have room."
    if (outcome, cause) == ("generator_bound", "too_few_engines") and dead:
        words = "Restart the engines that do not work before moving any GPUs."
    elif outcome == "stalled" or (outcome, cause) == ("trainer_bound", "open_step"):
        return (Advice("repair", text=words),)
    elif cause not in ("slow_engine", "init_failures"):
        # Without a change whose gain follows from the numbers, the usual one of this cause.
        return changes or ((Advice(LEVER_OF.get(cause, "repair"), text=words),) if words else ())
    return (Advice("repair", text=words), *changes)


def _worth_it(one: Advice) -> bool:
    if one.gain is None:
        return False
    return one.gain[0] >= HARMLESS or (one.cost == "setting" and one.gain[1] >= WORTH_A_SETTING)


# Windows of signals, as their help texts define them.
_MINUTES = "5 min mean"
_STEPS = "last 10 steps"
_VERSIONS = "last 10 versions"


def evidence(n: Numbers, ranked: tuple[Limiter, ...], own_limiter: Limiter | None) -> tuple[Evidence, ...]:
    """Returns at most eight facts, most important first. ``own``: the limiter that the summary states already."""
    facts = [
        *_liveness(n),
        *_trainer(n),
        *_limiters(n, tuple(limiter for limiter in ranked if limiter is not own_limiter)),
        *_engines(n),
        *_time_shares(n),
        *_queue(n),
    ]
    seen: dict[str, Evidence] = {}
    for limiter in facts:
        seen.setdefault(limiter.text, limiter)
    return tuple(seen.values())[:MOST_EVIDENCE]


def _liveness(n: Numbers) -> Iterator[Evidence]:
    """Yields the facts of a run that stands still; nothing for a run that makes progress."""
    if (since := n.seen.fault_since) is not None:
        text = f"The trainer's log reports after its newest step: {n.seen.facts['fault']}"
        yield Evidence(text, value=n.seen.now - since, unit="seconds")
    stall = n.seen.get("trainer_stall_ratio")
    if stall is not None and stall >= HALF_LIMIT:
        limit = f"{LIMIT:.0f} x its median, at least {span(LEAST_LIMIT_SECONDS)}"
        text = f"The open step has lasted {stall:.0%} of the limit for a step ({limit})"
        yield _of(n, text, "trainer_stall_ratio", stall, "ratio", 1.0)
    elif n.opened is not None and n.opened.late:
        yield Evidence(opened(n.opened), value=n.opened.seconds, unit="seconds", bound=n.opened.usual)
    for state, defect in (("hung", "run requests and generate no token"), ("down", "do not answer")):
        if n.engines.get(state, 0.0) >= MOST_ENGINES * sum(n.engines.values()) > 0:
            text = f"{n.engines[state]:.0f} of {sum(n.engines.values()):.0f} engines {defect}"
            yield _of(n, text, "generator_engines", n.engines[state], "engines")


def _trainer(n: Numbers) -> Iterator[Evidence]:
    if n.wait is not None:
        # The text states its own window.
        text, is_own = wait(n), is_reported_wait(n)
        value = n.reported if is_own and n.reported is not None else n.wait
        yield _of(n, text[0].upper() + text[1:], "trainer_wait_ratio" if is_own else "", value, "ratio")
    if n.capacity is not None and n.trained is not None:
        is_own = _is_own(n, capacity_samples_per_second=n.capacity, trainer_samples_per_second=n.trained)
        text = f"The trainer consumes {n.trained:.3g} samples/s; its capacity is {n.capacity:.3g}"
        text = f"{text} ({_STEPS if is_own else _judged_steps(n)})"
        yield _of(n, text, "capacity_samples_per_second" if is_own else "", n.capacity, "samples/s", n.trained)
    if n.arrivals is not None and n.capacity is not None:
        yield _arrivals(n, n.arrivals, n.capacity)
    if n.hold_ratio:
        is_own = _is_own(n, generation_held_ratio=n.hold_ratio)
        text = f"Production was held {n.hold_ratio:.0%} of the time ({_STEPS if is_own else _judged_steps(n)})"
        yield _of(n, text, "generation_held_ratio" if is_own else "", n.hold_ratio, "ratio")
    if n.stale is not None and n.stale >= SHOWN_STALE:
        yield _stale(n, n.stale)


def _arrivals(n: Numbers, arrivals: float, capacity: float) -> Evidence:
    signal = "queue_arrivals_samples_per_second"
    is_own = _is_own(n, queue_arrivals_samples_per_second=arrivals, capacity_samples_per_second=capacity)
    window = _STEPS if is_own else _judged_steps(n)
    if n.seen.get(signal) is None:
        window = f"from records, {_VERSIONS}"
    predicted = f"{n.predicted_wait or 0.0:.0%}"
    text = f"Cross-check: arrivals ({arrivals:.3g} samples/s) predict a wait of {predicted} ({window})"
    return _of(n, text, signal if is_own else "", arrivals, "samples/s", capacity)


def _stale(n: Numbers, share: float) -> Evidence:
    signal, window = "", _judged_steps(n)
    if _is_own(n, rollout_exit_ratio=share):
        signal, window = "rollout_exit_ratio", _VERSIONS
    elif _is_own(n, discarded_rollout_ratio=share):
        signal, window = "discarded_rollout_ratio", _STEPS
    return _of(n, f"{share:.0%} of the samples were dropped as stale ({window})", signal, share, "ratio")


def _limiters(n: Numbers, ranked: tuple[Limiter, ...]) -> Iterator[Evidence]:
    for limiter in ranked[:MOST_LIMITERS]:
        if limiter.text:
            text = limiter.text[0].upper() + limiter.text[1:]
            yield Evidence(f"{text}. Fixing this: up to {limiter.gain:.2g}x", value=limiter.gain, unit="x")


def _engines(n: Numbers) -> Iterator[Evidence]:
    if n.running is not None:
        now = n.seen.total("generator_requests", state="running")
        # The judged mean is of the same minutes, tick by tick: one number, the one that every page shows.
        is_own = now is not None and abs(n.running - now) <= SAME_COUNT * now
        verbs, window = (("run", "wait"), _MINUTES) if is_own else (("ran", "waited"), _judged_instants(n))
        running = now if is_own and now is not None else n.running
        queued = n.seen.total("generator_requests", state="waiting") if is_own else n.waiting
        room = f" of {n.limit:.0f} that fit" if n.limit else ""
        waiting = f", {queued:.0f} {verbs[1]}" if queued is not None else ""
        text = f"Engines {verbs[0]} {running:.0f} requests{room}{waiting} ({window})"
        yield _of(n, text, "generator_requests" if is_own else "", running, "requests")
    if n.kv is not None:
        yield _of(n, f"KV cache {n.kv:.0%} full ({_MINUTES})", "kv_cache_usage_ratio", n.kv, "ratio")


_PHASE_TEXTS = {"booting": "booting", "in_tool": "in tools", "scoring": "in scoring", "generating": "in the engines"}


def _time_shares(n: Numbers) -> Iterator[Evidence]:
    parts = [f"{share:.0%} {_PHASE_TEXTS[phase]}" for phase, share in n.time_shares.items() if share >= SHOWN_SHARE]
    if parts:
        window = _judged_instants(n) if n.in_flight.counted else _STEPS
        yield Evidence(f"A rollout's time: {', '.join(parts)} ({window})")
    if n.cap is not None:
        is_own = _is_own(n, in_flight_ratio=n.cap)
        text = f"In flight: {n.cap:.0%} of the limit ({'now' if is_own else _judged_instants(n)})"
        yield _of(n, text, "in_flight_ratio" if is_own else "", n.cap, "ratio")


def _queue(n: Numbers) -> Iterator[Evidence]:
    if n.batches is not None:
        is_own = _is_own(n, queue_batches=n.batches)
        waits, window = ("wait", _MINUTES) if is_own else ("waited", f"mean of the {_judged_steps(n)}")
        text = f"{n.batches:.2g} batches {waits} in the queue ({window})"
        yield _of(n, text, "queue_batches" if is_own else "", n.batches, "batches", 1.0)


def _is_own(n: Numbers, **values: float) -> bool:
    """Returns whether each of these numbers is a current value of the signal of that name."""
    return all(any(value == number for _, value in n.seen.rows(name)) for name, number in values.items())


def _judged_steps(n: Numbers) -> str:
    """Returns the window of the trainer's numbers if they are not the signals' own."""
    return f"last {n.steps} steps" if n.steps > 1 else "open step"


def _judged_instants(n: Numbers) -> str:
    """Returns the window of the means of requests and rollouts; "now" for the newest counts alone."""
    seconds = 0.0 if n.begun is None else n.seen.now - n.begun
    return f"mean of the last {span(seconds)}" if seconds > 0 else "now"


def _of(
    n: Numbers, text: str, signal: str, value: float, unit: str, bound: float | None = None
) -> Evidence:  # fmt: skip
    return Evidence(text, signal, value, unit, bound, n.seen.age(signal))


def disagreements(n: Numbers) -> tuple[str, ...]:
    """Returns differences between the reported wait and the wait that follows from arrivals."""
    predicted = n.predicted_wait
    if predicted is None or n.wait is None or abs(predicted - n.wait) <= DISAGREE:
        return ()
    text = f"the trainer reports a wait of {n.wait:.0%} of its step; arrivals predict {predicted:.0%}"
    if predicted < n.wait and (n.stale or 0.0) >= STALE_EXPLAINS:
        text += ": enough samples arrive, but they are dropped as stale before use"
    return (text,)


_MISSING = {
    "wait": ("trainer_wait_ratio", "log the trainer's wait next to its step time"),
    "engines": ("generator_requests", "add the engines' /metrics as targets"),
    "place": ("in_flight_rollouts", "push rollout records, or log rollouts in flight"),
    "queue": ("queue_samples", "log the queue's depth"),
    "zero": ("zero_advantage_ratio", "log the share of groups without a gradient"),
    "phases": ("trainer_phase_seconds", "log the step's phases"),
}


def available(n: Numbers) -> dict[str, bool]:
    """Returns which evidence of this mode is available."""
    if n.seen.synchronous:
        phases = n.seen.get("trainer_phase_seconds", phase="generation") is not None
        return {"phases": phases, "engines": n.running is not None, "zero": n.zero.share is not None}
    return {
        "wait": n.wait is not None,
        "engines": n.saturated is not None,
        "place": bool(n.time_shares),
        "queue": n.batches is not None or n.arrivals is not None,
        "zero": n.zero.share is not None,
    }


# Causes that are reported as 0 when they do not apply; alone they do not show that nothing is idle.
NO_LONGER = "no longer reported"
_OF_LIFECYCLE = ("stalled", "starting", "paused")


def idle_lacks(seen: VerdictInput) -> str:
    """Returns why the idle USD per hour are incomplete; "" if they are complete."""
    if idle(seen) is None:
        return ""
    costs = seen.signals.get("idle_usd_per_hour", {}).values()
    gaps = (gap for row in costs if row.value is None and row.why != NO_LONGER for gap in row.why.split("; "))
    return "; ".join(dict.fromkeys(gaps))


def idle(seen: VerdictInput) -> float | None:
    """Returns the idle USD per hour of all reported causes; None if no cause of a running run is reported."""
    causes = {row.get("cause", ""): value for row, value in seen.rows("idle_usd_per_hour")}
    is_reported = any(value > 0 or cause not in _OF_LIFECYCLE for cause, value in causes.items())
    return sum(causes.values()) if is_reported else None


def completeness(n: Numbers) -> float:
    weights = SYNC_WEIGHTS if n.seen.synchronous else WEIGHTS
    return sum(weights[name] for name, there in available(n).items() if there)


def missing(n: Numbers) -> tuple[str, ...]:
    """Returns the missing signals with the reason, or with the source to add."""
    absent = [(*_MISSING[name], _in_part(n.seen, name)) for name, there in available(n).items() if not there]
    return tuple(f"{signal}: {part or n.seen.why(signal) or how}" for signal, how, part in absent)


def _in_part(seen: VerdictInput, name: str) -> str:
    """Returns the problem of a target whose answer is incomplete; more logging would not help then."""
    actor = "generator" if name == "engines" else "trainer"
    partial = [
        target
        for target in seen.targets
        if target.up and not target.complete and not target.gone and target.actor == actor
    ]
    return f"target {partial[0].name} answers, but its response is incomplete: {partial[0].error}" if partial else ""
