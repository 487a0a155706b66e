"""What each thing that could hold the run back costs by itself: factor, counterfactual gain, one sentence. Pure.

A run trains min(what the trainer takes, what production delivers). A limiter that is taken away speeds up only its own
part, and no further than the next one allows: that is its gain. Factors multiply, so their logarithms are shares.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt

from server.verdict.facts.throughput import Numbers
from server.verdict.model import Limiter, Outcome, shared
from server.verdict.thresholds import (
    ABORTED,
    BELOW_CAP,
    BESIDE,
    DRIFTED,
    FAILING,
    FULL,
    FULL_QUOTA,
    HOLDS,
    LEAST_FACTOR,
    MANY_BOOT,
    MOST_OF,
    MOST_SHARE,
    MOST_UNTOLD,
    PREEMPTED,
    REFUSED,
    TWICE,
    WANTING_CACHE,
    ZERO_ADVANTAGE,
)

# Half a minute to start a sandbox is a cold image; two minutes, the alert's level, is a queue.
SLOW_START, LONG_PENDING = 120.0, 600.0


def limiters(n: Numbers) -> tuple[Limiter, ...]:
    """All that are known to cost anything, by gain, with their shares of the gap."""
    found = [one for make in _ALL for one in make(n)]
    found = [_behind(n, one) for one in (*found, *_rest(n, found)) if one.factor >= LEAST_FACTOR]
    return shared(tuple(found))


def _behind(n: Numbers, one: Limiter) -> Limiter:
    """Whatever comes before a scorer that is never idle gains nothing: it would wait for it instead."""
    return replace(one, gain=1.0) if n.scorer_full and one.outcome in _BEFORE_SCORING else one


_BEFORE_SCORING = ("generator_bound", "sandbox_bound", "orchestrator_bound")


def _outside(n: Numbers, share: float) -> float:
    """Factor of a share of a rollout's time outside the engines: without it they fill up, and no further.

    Below the cap another could have begun all the while: as many are made, and fewer are under way.
    """
    left = 1 - min(share, MOST_SHARE)
    return 1.0 if _waits_for_prompts(n) else _filled(n, 1 / left, min(1.0, n.place.get("generating", 1.0) / left))


def _filled(n: Numbers, factor: float, inside: float) -> float:
    """What comes of so many times the requests in the engines, as far as these have room.

    Each then takes longer there, which is the ``inside`` share of its time: the more run, the slower each decodes.
    """
    most = min(factor, n.room) if n.room is not None and n.room > LEAST_FACTOR else factor
    under_way = BESIDE * (n.places if n.places is not None else 1.0)
    return most / (1 + under_way / (1 - BESIDE + under_way) * inside * (most - 1))


def _made(n: Numbers, outcome: Outcome, cause: str, factor: float, text: str) -> Limiter:
    """One of production: no gain beyond what the trainer could take."""
    room = n.gap or 1.0
    return Limiter(outcome, cause, factor, max(1.0, min(factor, room)), text=text)


# ---- infrastructure and environment


def _sandboxes(n: Numbers) -> Iterator[Limiter]:
    seen = n.seen
    failing = max(
        (value for value in (n.lost.get("infra_error"), seen.get("sandbox_failed_rollout_ratio")) if value is not None),
        default=seen.get("sandbox_failure_ratio"),
    )
    if failing is not None and failing >= FAILING:
        refusal = _refusal(n, MOST_OF * failing)
        text = f"{failing:.0%} of rollouts are lost with their sandbox or service"
        text += ", mostly because the provider refuses new sandboxes" if refusal else ""
        yield _made(n, "sandbox_bound", refusal or "init_failures", 1 / (1 - min(failing, MOST_SHARE)), text)
    boot, tool = n.place.get("booting", 0.0), n.place.get("in_tool", 0.0)
    # Behind engines that are full, time outside them is not what is short.
    if n.saturated and boot + tool < 0.5:
        return
    if boot:
        text = f"rollouts spend {boot:.0%} of their time until their sandbox is ready{_limit(n)}"
        yield _made(n, "sandbox_bound", _boot_cause(n), _outside(n, boot), text)
    if tool:
        text = f"rollouts spend {tool:.0%} of their time in tools"
        factor = _outside(n, tool)
        if boot >= MANY_BOOT:
            factor = min(factor, _outside(n, boot))  # a tool call needs a running sandbox
        yield _made(n, *_tools(n), factor, text)


def _tools(n: Numbers) -> tuple[Outcome, str]:
    """Tools of a task without sandboxes are calls of the orchestrator."""
    return ("orchestrator_bound", "tool_calls") if n.seen.fact("has_sandbox") == 0 else ("sandbox_bound", "tool_time")


def _limit(n: Numbers) -> str:
    """The limit on sandboxes that start at once, as it shows."""
    limit, queued = n.in_flight.starting_limit, n.in_flight.queued
    if limit is None:
        return ""
    return f": {limit:.0f} start at once, {queued or 0.0:.0f} wait, which is an account limit of {limit:.0f}"


def _elsewhere(n: Numbers) -> Iterator[Limiter]:
    """By elimination: as many as may be are under way, most of them in no engine, and in nothing that is told of."""
    share = 1.0 - n.told
    if n.saturated is False and n.place and share >= MOST_UNTOLD and (n.places or 0.0) >= BELOW_CAP:
        text = f"rollouts spend {share:.0%} of their time outside the engines; no source reports where: likely in tools"
        yield _made(n, *_tools(n), _outside(n, share), text)


# Which limit of the account a refusal shows.
_LIMIT_OF_REFUSAL = {"rate_limit": "starting_limit", "capacity": "starting_limit", "quota": "quota", "credit": "quota"}


def _refusal(n: Numbers, least: float) -> str:
    """Returns the limit that the provider's refusals show, if they reach a share ``least`` of the sandboxes; else ""."""
    shares = dict[str, float]()
    for labels, share in n.seen.rows("sandbox_refused_ratio"):
        limit = _LIMIT_OF_REFUSAL.get(labels["cause"])
        if limit is not None:
            shares[limit] = shares.get(limit, 0.0) + share
    limit = max(shares, key=lambda name: shares[name], default="")
    return limit if limit and shares[limit] >= max(least, REFUSED) else ""


def _boot_cause(n: Numbers) -> str:
    if n.in_flight.starting_limit is not None:
        return "starting_limit"
    refusal = _refusal(n, REFUSED)
    if refusal:
        return refusal
    quotas = {row.get("resource", ""): value for row, value in n.seen.rows("sandbox_quota_used_ratio")}
    if quotas.pop("starting", 0.0) >= FULL_QUOTA or quotas.pop("creates_per_second", 0.0) >= FULL_QUOTA:
        return "starting_limit"
    is_full = any(value >= FULL_QUOTA for value in quotas.values())
    return "quota" if is_full and n.in_flight.queued != 0 else "spin_up"


def _rewards(n: Numbers) -> Iterator[Limiter]:
    share, busy = n.place.get("scoring", 0.0), n.extra.get("scoring_busy_ratio")
    if busy is not None and n.scorer_full:
        text = f"the scorer is busy {min(busy, 1.0):.0%} of the time"
        # More than it is asked of it nobody can tell: between nothing and the whole gap, the middle by its logarithm.
        yield Limiter("reward_bound", "scoring", n.gap or 1.0, sqrt(n.gap or 1.0), text=text)
    elif share and not (n.saturated and share < 0.5):
        text = f"rollouts spend {share:.0%} of their time waiting for a reward"
        yield _made(n, "reward_bound", "scoring", _outside(n, share), text)


def _curriculum(n: Numbers) -> Iterator[Limiter]:
    share = n.zero.share
    if share is None:
        return
    # A few groups say that the share is no lower than their interval's end; that it is most needs more than that.
    plain = not n.zero.is_sample or n.zero.low >= ZERO_ADVANTAGE
    share = share if plain else n.zero.low
    if share < LEAST_FACTOR - 1:
        return
    factor = 1 / (1 - min(share, MOST_SHARE))
    causes = {row.get("cause", ""): value for row, value in _by_cause(n)}
    easy, hard = causes.get("all_solved", 0.0), causes.get("none_solved", 0.0)
    cause = "too_easy" if easy > max(hard, share / 2) else "too_hard" if hard > share / 2 else "equal_rewards"
    parts = [f"{part:.0%} {name}" for part, name in ((hard, "unsolved"), (easy, "fully solved")) if part >= 0.005]
    text = f"{share:.0%} of groups carry no gradient" if plain else f"At least {share:.0%} of groups carry no gradient"
    if n.zero.is_sample and n.zero.groups is not None:
        text += f" ({(n.zero.counted or 0.0) * n.zero.groups:.0f} of {n.zero.groups:.0f} groups counted)"
    elif parts:
        text += f" ({', '.join(parts)})"
    if n.filtered:
        yield _made(n, "curriculum_bound", cause, factor, text + ", and are thrown away before training")
    else:
        # They occupy the trainer: without them every step learns that much more.
        yield Limiter("curriculum_bound", cause, factor, factor, text=text)


def _by_cause(n: Numbers) -> Iterator[tuple[dict[str, str], float]]:
    done = list(n.seen.rows("zero_advantage_group_ratio", basis="completed"))
    yield from done or n.seen.rows("zero_advantage_group_ratio")


# ---- generation


def _generation(n: Numbers) -> Iterator[Limiter]:
    dead = sum(n.engines.get(state, 0.0) for state in ("down", "hung"))
    alive = sum(n.engines.values()) - dead
    if dead and alive > 0:
        text = f"{dead:.0f} of {dead + alive:.0f} engines do not work"
        yield _made(n, "generator_bound", "too_few_engines", (dead + alive) / alive, text)
    if n.drift is not None and n.drift >= DRIFTED:
        text = f"rollouts are {n.drift:.1f} times as long as in the first steps"
        yield _made(n, "generator_bound", "drift", n.drift, text)
    yield from _slow_engine(n)
    yield from _tail(n)
    yield from _cache(n)


def _slow_engine(n: Numbers) -> Iterator[Limiter]:
    """Rollouts are spread over all engines: a batch is complete when the slowest of them has made its part."""
    if not n.slow:
        return
    name, ratio = min(n.slow.items(), key=lambda one: one[1])
    others = f" and {len(n.slow) - 1} more" if len(n.slow) > 1 else ""
    text = f"engine {name}{others} makes {ratio:.0%} of the tokens per request that the others make"
    yield _made(n, "generator_bound", "slow_engine", 1 / max(ratio, 1 - MOST_SHARE), text)


def _tail(n: Numbers) -> Iterator[Limiter]:
    aborted, index = n.lost.get("aborted_oversample"), n.extra.get("tail_index_ratio")
    if aborted is not None and aborted >= ABORTED:
        tail = f", p99 is {index:.1f} times the median" if index is not None else ""
        text = f"{aborted:.0%} of rollouts are aborted once enough others are done{tail}"
        yield _made(n, "generator_bound", "long_tail", 1 / (1 - min(aborted, MOST_SHARE)), text)
    elif n.seen.synchronous:
        yield from _bubble(n)


def _bubble(n: Numbers) -> Iterator[Limiter]:
    """In a synchronous step the tail is time in which most of the engines stand idle."""
    bubble, generation = n.extra.get("tail_bubble_ratio"), n.seen.get("trainer_phase_seconds", phase="generation")
    if bubble is None or not generation or not n.step:
        return
    share = min(MOST_SHARE, bubble * generation / n.step)
    text = f"engines stand {bubble:.0%} empty while the slowest rollouts end, {share:.0%} of the step"
    yield Limiter("generator_bound", "long_tail", 1 / (1 - share), 1 / (1 - share), text=text)


def _cache(n: Numbers) -> Iterator[Limiter]:
    preempted = n.seen.get("generator_preemption_ratio")
    # A pause for new weights preempts what runs, too (vLLM, mode "keep"): only a cache in want is a limiter.
    if preempted is not None and preempted >= PREEMPTED and (n.kv is None or n.kv >= WANTING_CACHE):
        text = f"engines preempt {preempted:.0%} of their requests and compute them again"
        yield _made(n, "generator_bound", "preemption", 1 + preempted, text)
    if not n.running or (n.kv or 0.0) < FULL or n.seen.synchronous:
        return
    asked = (n.running + (n.waiting or 0.0)) / n.running
    text = f"the KV cache is {n.kv:.0%} full: {n.running:.0f} requests run and {n.waiting or 0:.0f} wait for room"
    yield _made(n, "generator_bound", "kv_capacity", max(asked, LEAST_FACTOR), text)


# ---- the orchestrator


def _orchestrator(n: Numbers) -> Iterator[Limiter]:
    """Fewer rollouts are under way than may be: as many more as there may be, where the engines have room for them."""
    places = n.places
    if places is None or n.wait is None or n.saturated or n.seen.synchronous:
        return
    factor = _filled(n, 1 / max(1 - MOST_SHARE, places), n.place.get("generating", 1.0))
    under_way = f"only {places:.0%} of the in-flight limit is in use"
    if (n.gated or 0.0) >= HOLDS:
        text = f"{under_way}, and dispatch is held while the trainer waits"
        yield _made(n, "orchestrator_bound", "staleness_gate", factor, text)
    elif _waits_for_prompts(n):
        yield _made(n, "orchestrator_bound", "prompts", factor, under_way)


def _waits_for_prompts(n: Numbers) -> bool:
    """Is there room for more below the cap, and nothing that holds them?"""
    if n.places is None or n.wait is None or n.saturated or n.seen.synchronous:
        return False
    if n.in_flight.starting_limit is not None:
        return False  # more of them would only wait for a sandbox
    held = (n.held or 0.0) >= max(HOLDS, n.wait) or (n.gated or 0.0) >= HOLDS
    return n.places < BELOW_CAP and not held and not n.scorer_full


# ---- what the others leave unexplained

_PRODUCTION = ("generator_bound", "sandbox_bound", "reward_bound")
_FILTERED = ("curriculum_bound", True)


def _rest(n: Numbers, found: list[Limiter]) -> Iterator[Limiter]:
    """Production is slower than the trainer by more than what is known of it: its place is where rollouts are.

    Its share is what is left of the gap; its gain is that of twice the engines, whatever else there is.
    """
    gap, twice = n.gap, twice_the_engines(n)
    if gap is None or n.seen.synchronous or n.dropped or (n.predicted_wait is not None and n.predicted_wait < 0.02):
        return
    known = 1.0
    for one in found:
        known *= one.factor if one.outcome in _PRODUCTION or (one.outcome, n.filtered) == _FILTERED else 1.0
    left = gap / min(known, gap)
    told = any((one.outcome, one.cause) == ("generator_bound", "too_few_engines") for one in found)
    if told or gap < LEAST_FACTOR or (twice is None and left < LEAST_FACTOR):
        return
    more = "" if known <= LEAST_FACTOR else "beyond that, "
    text = f"{more}{left:.2g} times the generation would keep the trainer busy" if left >= LEAST_FACTOR else ""
    gain = max(1.0, min(gap, left if twice is None else twice))
    if _waits_for_prompts(n) and n.held is not None:
        gain = 1.0  # More could have begun and did not: faster engines would only be emptier.
    cause = "too_few_engines" if n.saturated is not None else "not_told"
    yield Limiter("generator_bound", cause, max(LEAST_FACTOR, 1.0 if n.quiet else left), gain, text=text)


def twice_the_engines(n: Numbers) -> float | None:
    """How much more were made with engines twice as fast: requests that run take half as long, none waits for room.

    None: neither who is in the engines nor whether those are full is told.
    """
    inside = n.place.get("generating", 1.0 if n.saturated else None)
    if inside is None:
        return None
    asked = (n.running or 0.0) + (n.waiting or 0.0)
    runs = n.running / asked if n.running and asked else 1.0
    return min(TWICE, 1 / (1 - inside + inside * runs / 2))


# ---- the trainer's own


def _overheads(n: Numbers) -> Iterator[Limiter]:
    if not n.step:
        return
    idle = (n.wait or 0.0) * n.step
    for cause in ("weight_sync", "checkpoint", "eval"):
        seconds = n.overheads.get(cause, 0.0)
        if seconds <= 0:
            continue
        text = f"{cause.replace('_', ' ')} takes {seconds:.3g} s of a step of {n.step:.3g} s"
        factor = n.step / max(0.05 * n.step, n.step - seconds)
        # Where the trainer waits anyway it would only wait longer.
        gain = n.step / max(0.05 * n.step, n.step - max(0.0, seconds - idle))
        yield Limiter("overhead_bound", cause, factor, max(1.0, min(gain, n.offered or gain)), text=text)


def _trainer(n: Numbers) -> Iterator[Limiter]:
    """Production could deliver more than the trainer takes."""
    if n.potential is None or not n.trained:
        return
    # Beyond what it could take, not what it does: the part it waits for is not its own. Unless it waits for what was
    # dropped because it came too late.
    factor = n.potential / max(n.trained, 0.0 if n.dropped else n.capacity or 0.0)
    text = f"{n.potential:.3g} samples/s could arrive, {n.trained:.3g} are trained"
    # What one can have is a trainer twice as fast, not an endlessly fast one.
    own = max(0.0, (_computing(n) or 0.0) + n.overheads.get("other", 0.0))
    twice = n.step / (n.step - own / 2) if n.step and 0.0 < own <= n.step else factor
    yield Limiter("trainer_bound", slow_by(n), factor, max(1.0, min(factor, twice)), text=text)


def slow_by(n: Numbers) -> str:
    """What most of the trainer's own time goes into: computing, or what it does not name."""
    other, compute = n.overheads.get("other"), _computing(n)
    return "other" if other is not None and compute is not None and other > compute else "compute"


def _computing(n: Numbers) -> float | None:
    if not n.step or n.wait is None or "other" not in n.overheads:
        return None
    return n.step * (1 - n.wait) - sum(n.overheads.values())


_ALL: tuple[Callable[[Numbers], Iterator[Limiter]], ...] = (
    _sandboxes, _elsewhere, _rewards, _curriculum, _generation, _orchestrator, _overheads, _trainer,
)  # fmt: skip
