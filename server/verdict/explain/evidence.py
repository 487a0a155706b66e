"""The facts behind a verdict, most important first, and what is missing. Pure."""

from collections.abc import Iterator

from server.verdict.explain.messages import opened, wait
from server.verdict.facts.throughput import Numbers
from server.verdict.inputs import VerdictInput
from server.verdict.model import Evidence, Limiter
from server.verdict.thresholds import DISAGREE, HALF_LIMIT, MOST_EVIDENCE


def evidence(n: Numbers, found: tuple[Limiter, ...], own: Limiter | None) -> tuple[Evidence, ...]:
    """What is known, most telling first; at most eight facts. ``own``: what the summary says already."""
    facts = [
        *_liveness(n),
        *_trainer(n),
        *_limiters(n, tuple(one for one in found if one is not own)),
        *_engines(n),
        *_place(n),
        *_queue(n),
    ]
    seen: dict[str, Evidence] = {}
    for one in facts:
        seen.setdefault(one.text, one)
    return tuple(seen.values())[:MOST_EVIDENCE]


def _liveness(n: Numbers) -> Iterator[Evidence]:
    """What a stalled run is told by; of one that goes on nothing."""
    stall = n.seen.get("trainer_stall_ratio")
    if stall is not None and stall >= HALF_LIMIT:
        text = f"The open step has lasted {stall:.0%} of the longest a step may take (6 x its median, at least 30 min)"
        yield _of(n, text, "trainer_stall_ratio", stall, "ratio", 1.0)
    elif n.opened is not None and n.opened.late:
        yield _of(n, opened(n.opened), "trainer_stall_ratio", n.opened.seconds, "seconds", n.opened.usual)
    for state, words in (("hung", "run requests and make no token"), ("down", "do not answer")):
        if n.engines.get(state, 0.0) >= 0.5 * sum(n.engines.values()) > 0:
            text = f"{n.engines[state]:.0f} of {sum(n.engines.values()):.0f} engines {words}"
            yield _of(n, text, "generator_engines", n.engines[state], "engines")


def _trainer(n: Numbers) -> Iterator[Evidence]:
    if n.wait is not None:
        text = wait(n)
        yield _of(n, text[0].upper() + text[1:], "trainer_wait_ratio", n.wait, "ratio")
    if n.capacity is not None and n.trained is not None:
        text = f"Training {n.trained:.3g} samples/s; the trainer could take {n.capacity:.3g}"
        yield _of(n, text, "capacity_samples_per_second", n.capacity, "samples/s", n.trained)
    if n.arrivals is not None and n.capacity is not None:
        text = f"Cross-check: arrivals ({n.arrivals:.3g} samples/s) predict a wait of {n.predicted_wait or 0.0:.0%}"
        yield _of(n, text, "queue_arrivals_samples_per_second", n.arrivals, "samples/s", n.capacity)
    if n.held:
        yield _of(n, f"Production was held {n.held:.0%} of the time", "generation_held_ratio", n.held, "ratio")
    if n.stale is not None and n.stale >= 0.02:
        text = f"{n.stale:.0%} of what was made grew too old in the queue"
        yield _of(n, text, "discarded_rollout_ratio", n.stale, "ratio")


def _limiters(n: Numbers, found: tuple[Limiter, ...]) -> Iterator[Evidence]:
    for one in found[:3]:
        if one.text:
            text = one.text[0].upper() + one.text[1:]
            yield Evidence(f"{text}. Fixing this: up to {one.gain:.2g}x", value=one.gain, unit="x")


def _engines(n: Numbers) -> Iterator[Evidence]:
    if n.running is not None:
        room = f" of {n.limit:.0f} that fit" if n.limit else ""
        waiting = f", {n.waiting:.0f} wait" if n.waiting is not None else ""
        yield _of(
            n, f"Engines run {n.running:.0f} requests{room}{waiting}", "generator_requests", n.running, "requests"
        )
    if n.kv is not None:
        yield _of(n, f"KV cache {n.kv:.0%} full", "kv_cache_usage_ratio", n.kv, "ratio")


_WORDS = {"booting": "booting", "in_tool": "in tools", "scoring": "in scoring", "generating": "in the engines"}


def _place(n: Numbers) -> Iterator[Evidence]:
    told = [f"{share:.0%} {_WORDS[phase]}" for phase, share in n.place.items() if share >= 0.005]
    if told:
        yield Evidence("A rollout's time: " + ", ".join(told))
    if n.cap is not None:
        yield _of(n, f"In flight: {n.cap:.0%} of the limit", "in_flight_ratio", n.cap, "ratio")


def _queue(n: Numbers) -> Iterator[Evidence]:
    if n.batches is not None:
        text = f"{n.batches:.2g} batches wait in the queue"
        yield _of(n, text, "queue_batches", n.batches, "batches", 1.0)


def _of(
    n: Numbers, text: str, signal: str, value: float, unit: str, bound: float | None = None
) -> Evidence:  # fmt: skip
    return Evidence(text, signal, value, unit, bound, n.seen.age(signal))


def disagreements(n: Numbers) -> tuple[str, ...]:
    """Where the framework's claim and what follows from its own numbers differ."""
    predicted = n.predicted_wait
    if predicted is None or n.wait is None or abs(predicted - n.wait) <= DISAGREE:
        return ()
    said = f"the trainer reports a wait of {n.wait:.0%} of its step; arrivals predict {predicted:.0%}"
    if predicted < n.wait and (n.stale or 0.0) >= 0.05:
        said += ": enough is made, and dropped as stale before it is used"
    return (said,)


# What each mode can tell that a verdict rests on, with its weight: how much of the tree it decides.
WEIGHTS = {"wait": 0.25, "engines": 0.25, "place": 0.25, "queue": 0.15, "zero": 0.10}
SYNC_WEIGHTS = {"phases": 0.5, "engines": 0.3, "zero": 0.2}
_MISSING = {
    "wait": ("trainer_wait_ratio", "log the trainer's wait beside its step time"),
    "engines": ("generator_requests", "add the engines' /metrics as targets"),
    "place": ("in_flight_rollouts", "push rollout records, or log rollouts in flight"),
    "queue": ("queue_samples", "log the queue's depth"),
    "zero": ("zero_advantage_ratio", "log the share of groups without a gradient"),
    "phases": ("trainer_phase_seconds", "log the step's phases"),
}


def known(n: Numbers) -> dict[str, bool]:
    """Which of the evidence of this mode is there."""
    if n.seen.synchronous:
        phases = n.seen.get("trainer_phase_seconds", phase="generation") is not None
        return {"phases": phases, "engines": n.running is not None, "zero": n.zero.share is not None}
    return {
        "wait": n.wait is not None,
        "engines": n.saturated is not None,
        "place": bool(n.place),
        "queue": n.batches is not None or n.arrivals is not None,
        "zero": n.zero.share is not None,
    }


# Told as 0 whenever they do not apply: alone they say nothing of what is idle.
NO_LONGER = "no longer reported"
_OF_LIFE = ("stalled", "starting", "paused")


def idle_lacks(seen: VerdictInput) -> str:
    """Why the idle USD per hour that are known are not all; "" where they are."""
    if idle(seen) is None:
        return ""
    found = seen.signals.get("idle_usd_per_hour", {}).values()
    words = (part for told in found if told.value is None and told.why != NO_LONGER for part in told.why.split("; "))
    return "; ".join(dict.fromkeys(words))


def idle(seen: VerdictInput) -> float | None:
    """Idle USD per hour of all causes that are known; None where none of a running run's is: unknown is not 0."""
    causes = {row.get("cause", ""): value for row, value in seen.rows("idle_usd_per_hour")}
    known = any(value > 0 or cause not in _OF_LIFE for cause, value in causes.items())
    return sum(causes.values()) if known else None


def completeness(n: Numbers) -> float:
    weights = SYNC_WEIGHTS if n.seen.synchronous else WEIGHTS
    return sum(weights[name] for name, there in known(n).items() if there)


def missing(n: Numbers) -> tuple[str, ...]:
    """What would settle or confirm it: the signals' own words where they have some."""
    gone = [(*_MISSING[name], _in_part(n.seen, name)) for name, there in known(n).items() if not there]
    return tuple(f"{signal}: {part or n.seen.why(signal) or how}" for signal, how, part in gone)


def _in_part(seen: VerdictInput, name: str) -> str:
    """A clock that runs ahead hides what is logged, and so does a limit: to log it would mend nothing."""
    actor = "generator" if name == "engines" else "trainer"
    found = [one for one in seen.targets if one.up and not one.complete and not one.gone and one.actor == actor]
    return f"target {found[0].name} answers, but its answer is incomplete: {found[0].problem}" if found else ""
