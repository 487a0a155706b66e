"""The limiters of a run: factor, counterfactual gain and one sentence for each. Pure.

A run trains min(what the trainer takes, what production delivers). Removing a limiter speeds up its own part only, and
only as far as the next limiter allows: that is its gain. Factors multiply, so their logarithms are shares.
"""

from collections.abc import Callable, Iterator

from msgspec import structs

from server.verdict.model import Limiter, Outcome, shared
from server.verdict.thresholds import (
    ABORTED,
    BATCH_PART,
    BELOW_CAP,
    DRIFTED,
    FAILING,
    FOR_GROUP,
    FULL,
    FULL_QUOTA,
    HOLDS,
    LEAST_FACTOR,
    LEAST_SHARE,
    MANY_BOOT,
    MOST_OF,
    MOST_SHARE,
    MOST_UNTOLD,
    NO_WAIT,
    PREEMPTED,
    REFUSED,
    SCORER_PART,
    SHOWN_SHARE,
    TWICE,
    WANTING_CACHE,
    ZERO_ADVANTAGE,
)
from server.verdict.throughput import Numbers, requests_text


def limiters(n: Numbers) -> tuple[Limiter, ...]:
    """Returns all limiters with a cost, by gain, with their shares of the gap."""
    candidates = [limiter for make in _ALL for limiter in make(n)]
    candidates = [
        _behind(n, limiter) for limiter in (*candidates, *_rest(n, candidates)) if limiter.factor >= LEAST_FACTOR
    ]
    return shared(tuple(candidates))


def _behind(n: Numbers, limiter: Limiter) -> Limiter:
    """Removes the gain of limiters before a scorer that is never idle: rollouts would wait for the scorer instead."""
    return structs.replace(limiter, gain=1.0) if n.scorer_full and limiter.outcome in _BEFORE_SCORING else limiter


_BEFORE_SCORING = ("generator_bound", "sandbox_bound", "orchestrator_bound")


def _outside(n: Numbers, share: float) -> float:
    """Returns the factor of a share of a rollout's time outside the engines, as far as the engines have room.

    Below the in-flight limit another rollout could have started meanwhile, so the share costs nothing.
    """
    left = 1 - min(share, MOST_SHARE)
    return 1.0 if waits_for_prompts(n) else _filled(n, 1 / left, min(1.0, n.time_shares.get("generating", 1.0) / left))


def _filled(n: Numbers, factor: float, inside: float) -> float:
    """Returns the factor of throughput for ``factor`` times the requests in the engines, as far as they have room.

    A larger batch decodes each request more slowly, for the ``inside`` share of its time.
    """
    largest = min(factor, n.room) if n.room is not None and n.room > LEAST_FACTOR else factor
    shared_part = BATCH_PART * (n.places if n.places is not None else 1.0)
    return largest / (1 + shared_part / (1 - BATCH_PART + shared_part) * inside * (largest - 1))


def _limiter(n: Numbers, outcome: Outcome, cause: str, factor: float, text: str) -> Limiter:
    """Returns a limiter of production: its gain is at most what the trainer could take."""
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
        text = f"{failing:.0%} of rollouts are lost because their sandbox or a service fails"
        text += ", mostly because the provider refuses new sandboxes" if refusal else ""
        yield _limiter(n, "sandbox_bound", refusal or "init_failures", 1 / (1 - min(failing, MOST_SHARE)), text)
    boot, tool = n.time_shares.get("booting", 0.0), n.time_shares.get("in_tool", 0.0)
    # If the engines are full, time outside them limits nothing.
    if n.saturated and boot + tool < MOST_OF:
        return
    if boot:
        text = f"rollouts spend {boot:.0%} of their time until their sandbox is ready{_limit(n)}"
        yield _limiter(n, "sandbox_bound", _boot_cause(n), _outside(n, boot), text)
    if tool:
        text = f"rollouts spend {tool:.0%} of their time in tools"
        factor = _outside(n, tool)
        if boot >= MANY_BOOT:
            factor = min(factor, _outside(n, boot))  # a tool call needs a running sandbox
        yield _limiter(n, *_tools(n), factor, text)


def _tools(n: Numbers) -> tuple[Outcome, str]:
    """Returns outcome and cause of tool time; without sandboxes the orchestrator runs the tools."""
    return ("sandbox_bound", "tool_time") if n.uses_sandboxes else ("orchestrator_bound", "tool_calls")


def _limit(n: Numbers) -> str:
    """Returns the text on the limit of sandboxes that start at once."""
    limit, queued = n.in_flight.starting_limit, n.in_flight.queued
    if limit is None:
        return ""
    return f": {limit:.0f} start at once, {queued or 0.0:.0f} wait, which is an account limit of {limit:.0f}"


def _outside_engines(n: Numbers) -> Iterator[Limiter]:
    """Names tools by elimination: the in-flight limit is used, and no source places most of the rollouts."""
    share = 1.0 - n.placed
    turns, calls = n.seen.get("turns", stat="mean"), n.seen.get("tool_calls", stat="mean")
    if (turns is not None and turns <= 1.0 and not calls) or (calls is not None and calls <= 0.0):
        return  # these rollouts call no tools
    if n.saturated is False and n.time_shares and share >= MOST_UNTOLD and (n.places or 0.0) >= BELOW_CAP:
        text = f"rollouts spend {share:.0%} of their time outside the engines; no source reports where: likely in tools"
        yield _limiter(n, *_tools(n), _outside(n, share), text)


# Which limit of the account a refusal shows.
_LIMIT_OF_REFUSAL = {"rate_limit": "starting_limit", "capacity": "starting_limit", "quota": "quota", "credit": "quota"}


def _refusal(n: Numbers, least: float) -> str:
    """Returns the limit that refusals of at least the share ``least`` of the sandboxes show; else ""."""
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
    share, busy = n.time_shares.get("scoring", 0.0), n.extra.get("scoring_busy_ratio")
    if busy is not None and n.scorer_full:
        text = f"the scorer is busy {min(busy, 1.0):.0%} of the time"
        # What a faster scorer would deliver is not measured; the trainer takes at most the gap.
        gap = n.gap or 1.0
        yield Limiter("reward_bound", "scoring", gap, gap**SCORER_PART, text=text)
    elif share and not (n.saturated and share < MOST_OF):
        text = f"rollouts spend {share:.0%} of their time waiting for a reward"
        text += ", or for their group: the scorer has time to spare" if _for_group(n) else ""
        yield _limiter(n, "reward_bound", "scoring", _outside(n, share - _for_group(n)), text)


def _for_group(n: Numbers) -> float:
    """Returns the share of time in which ended rollouts likely wait for the rest of their group, not for a reward.

    No log distinguishes the two. If the only scorer has time to spare, a part of the wait counts as each.
    """
    has_time = n.extra.get("scoring_busy_ratio") is not None and not n.scorer_full
    return n.time_shares.get("scoring", 0.0) * FOR_GROUP if has_time else 0.0


def _curriculum(n: Numbers) -> Iterator[Limiter]:
    share = n.zero.share
    if share is None:
        return
    # A few groups show only the lower end of the interval.
    plain = not n.zero.is_sample or n.zero.low >= ZERO_ADVANTAGE
    share = share if plain else n.zero.low
    if share < LEAST_FACTOR - 1:
        return
    factor = 1 / (1 - min(share, MOST_SHARE))
    causes = {row.get("cause", ""): value for row, value in _by_cause(n)}
    easy, hard = causes.get("all_solved", 0.0), causes.get("none_solved", 0.0)
    cause = "too_easy" if easy > max(hard, share / 2) else "too_hard" if hard > share / 2 else "equal_rewards"
    parts = [f"{part:.0%} {name}" for part, name in ((hard, "unsolved"), (easy, "fully solved")) if part >= SHOWN_SHARE]
    # Of a sample the share of all groups is an estimate, which differs from the counted share on the card.
    about = "" if not n.zero.is_sample else "About " if plain else "At least "
    text = f"{about}{share:.0%} of groups carry no gradient"
    if n.zero.is_sample and n.zero.groups is not None:
        text += f" ({(n.zero.counted or 0.0) * n.zero.groups:.0f} of {n.zero.groups:.0f} groups counted)"
    elif parts:
        text += f" ({', '.join(parts)})"
    if n.filtered:
        yield _limiter(n, "curriculum_bound", cause, factor, text + ", and are dropped before training")
    else:
        # Groups without a gradient occupy the trainer.
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
        yield _limiter(n, "generator_bound", "too_few_engines", (dead + alive) / alive, text)
    if n.drift is not None and n.drift >= DRIFTED:
        text = f"rollouts are {n.drift:.1f} times as long as in the first steps"
        yield _limiter(n, "generator_bound", "drift", n.drift, text)
    yield from _slow_engine(n)
    yield from _tail(n)
    yield from _cache(n)


def _slow_engine(n: Numbers) -> Iterator[Limiter]:
    """Yields the slowest engine: a batch is complete when the slowest engine has finished its part."""
    if not n.slow:
        return
    name, ratio = min(n.slow.items(), key=lambda item: item[1])
    others = f" and {len(n.slow) - 1} more" if len(n.slow) > 1 else ""
    text = f"engine {name}{others} generates {ratio:.0%} of the tokens per request of the other engines"
    yield _limiter(n, "generator_bound", "slow_engine", 1 / max(ratio, 1 - MOST_SHARE), text)


def _tail(n: Numbers) -> Iterator[Limiter]:
    aborted, index = n.lost.get("aborted_oversample"), n.extra.get("tail_index_ratio")
    if aborted is not None and aborted >= ABORTED:
        tail = f", p99 is {index:.1f} times the median" if index is not None else ""
        text = f"{aborted:.0%} of rollouts are aborted once enough others are done{tail}"
        yield _limiter(n, "generator_bound", "long_tail", 1 / (1 - min(aborted, MOST_SHARE)), text)
    elif n.seen.synchronous:
        yield from _bubble(n)


def _bubble(n: Numbers) -> Iterator[Limiter]:
    """Yields the tail of a synchronous step, in which most of the engines are idle."""
    bubble, generation = n.extra.get("tail_bubble_ratio"), n.seen.get("trainer_phase_seconds", phase="generation")
    if bubble is None or not generation or not n.step:
        return
    share = min(MOST_SHARE, bubble * generation / n.step)
    text = f"engines are {bubble:.0%} empty while the slowest rollouts finish, {share:.0%} of the step"
    yield Limiter("generator_bound", "long_tail", 1 / (1 - share), 1 / (1 - share), text=text)


def _cache(n: Numbers) -> Iterator[Limiter]:
    preempted = n.seen.get("generator_preemption_ratio")
    # A pause for new weights preempts requests too (vLLM, mode "keep"): only a nearly full cache is a limiter.
    if preempted is not None and preempted >= PREEMPTED and (n.kv is None or n.kv >= WANTING_CACHE):
        text = f"engines preempt {preempted:.0%} of their requests and compute them again"
        yield _limiter(n, "generator_bound", "preemption", 1 + preempted, text)
    if not n.running or (n.kv or 0.0) < FULL or n.seen.synchronous:
        return
    demand = (n.running + (n.waiting or 0.0)) / n.running
    text = f"the KV cache is {n.kv:.0%} full: {requests_text(n)}"
    yield _limiter(n, "generator_bound", "kv_capacity", max(demand, LEAST_FACTOR), text)


# ---- the orchestrator


def _orchestrator(n: Numbers) -> Iterator[Limiter]:
    """Yields gate or prompts: fewer rollouts are in flight than allowed, and the engines have room."""
    places = n.places
    if places is None or n.wait is None or n.saturated or n.seen.synchronous:
        return
    factor = _filled(n, 1 / max(1 - MOST_SHARE, places), n.time_shares.get("generating", 1.0))
    used = f"only {n.cap:.0%} of the in-flight limit is in use"
    if (n.gated or 0.0) >= HOLDS:
        text = f"{used}, and dispatch is held while the trainer waits"
        yield _limiter(n, "orchestrator_bound", "staleness_gate", factor, text)
    elif waits_for_prompts(n):
        yield _limiter(n, "orchestrator_bound", "prompts", factor, used)


def waits_for_prompts(n: Numbers) -> bool:
    """Returns whether slots below the in-flight limit are free and nothing holds production."""
    if n.places is None or n.wait is None or n.saturated or n.seen.synchronous:
        return False
    if n.in_flight.starting_limit is not None:
        return False  # more rollouts would only wait for a sandbox
    is_held = (n.hold_ratio or 0.0) >= max(HOLDS, n.wait) or (n.gated or 0.0) >= HOLDS
    return n.places < BELOW_CAP and not is_held and not n.scorer_full


# ---- the unexplained rest

_PRODUCTION = ("generator_bound", "sandbox_bound", "reward_bound")
_FILTERED = ("curriculum_bound", True)


def _rest(n: Numbers, candidates: list[Limiter]) -> Iterator[Limiter]:
    """Yields the part of the gap that no limiter of production explains.

    Its factor is the rest of the gap; its gain is that of twice the engines.
    """
    gap, twice_factor = n.gap, twice_the_engines(n)
    if gap is None or n.seen.synchronous or n.dropped or (n.predicted_wait is not None and n.predicted_wait < NO_WAIT):
        return
    explained = 1.0
    for limiter in candidates:
        explained *= (
            limiter.factor if limiter.outcome in _PRODUCTION or (limiter.outcome, n.filtered) == _FILTERED else 1.0
        )
    left = gap / min(explained, gap)
    dead = any((limiter.outcome, limiter.cause) == ("generator_bound", "too_few_engines") for limiter in candidates)
    if dead or gap < LEAST_FACTOR or (twice_factor is None and left < LEAST_FACTOR):
        return
    more = "" if explained <= LEAST_FACTOR else "with that fixed, "
    text = (
        f"{more}{left:.2g} times the generation throughput would keep the trainer busy" if left >= LEAST_FACTOR else ""
    )
    gain = max(1.0, min(gap, left if twice_factor is None else twice_factor))
    if waits_for_prompts(n) and n.hold_ratio is not None:
        gain = 1.0  # more rollouts could have started: faster engines would only be emptier
    factor = max(LEAST_FACTOR, 1.0 if n.quiet else left)
    if n.idle_room:
        text = "the engines have room for more requests, and none waits"
        busy = n.extra.get("scoring_busy_ratio") or LEAST_SHARE
        gain = max(1.0, min(gain, 1 / busy))  # twice the rollouts gain about what twice the engines do
        yield Limiter("orchestrator_bound", "concurrency_cap", factor, gain, text=text)
        return
    cause = "not_told" if n.saturated is None else "max_num_seqs" if n.few_seats else "too_few_engines"
    if cause == "max_num_seqs":
        text = f"requests wait while the KV cache is {n.kv:.0%} full"
    yield Limiter("generator_bound", cause, factor, gain, text=text)


def twice_the_engines(n: Numbers) -> float | None:
    """Returns the gain of engines twice as fast: running requests take half as long and none waits for room.

    None: neither the rollouts in the engines nor whether these are full is reported.
    """
    inside = n.time_shares.get("generating", 1.0 if n.saturated else None)
    if inside is None:
        return None
    inside += _for_group(n)  # faster engines finish the rest of the group sooner
    demand = (n.running or 0.0) + (n.waiting or 0.0)
    runs = n.running / demand if n.running and demand else 1.0
    return min(TWICE, 1 / (1 - inside + inside * runs / TWICE))


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
        factor = n.step / max(LEAST_SHARE * n.step, n.step - seconds)
        # A trainer that waits anyway would only wait longer.
        gain = n.step / max(LEAST_SHARE * n.step, n.step - max(0.0, seconds - idle))
        yield Limiter("overhead_bound", cause, factor, max(1.0, min(gain, n.offered or gain)), text=text)


def _trainer(n: Numbers) -> Iterator[Limiter]:
    """Yields the trainer: production could deliver more than the trainer takes."""
    if n.potential is None or not n.trained:
        return
    # Compared with what the trainer could take, because its wait is not its own time; unless it waits for drops.
    factor = n.potential / max(n.trained, 0.0 if n.dropped else n.capacity or 0.0)
    text = f"{n.potential:.3g} samples/s could arrive, {n.trained:.3g} are trained"
    # The gain is that of a trainer twice as fast, not of an infinitely fast one.
    own_seconds = max(0.0, (_computing(n) or 0.0) + n.overheads.get("other", 0.0))
    twice_factor = n.step / (n.step - own_seconds / TWICE) if n.step and 0.0 < own_seconds <= n.step else factor
    yield Limiter("trainer_bound", slow_by(n), factor, max(1.0, min(factor, twice_factor)), text=text)


def slow_by(n: Numbers) -> str:
    """Returns what most of the trainer's own time goes into: "compute", or "other" for the part it does not name."""
    other, compute = n.overheads.get("other"), _computing(n)
    return "other" if other is not None and compute is not None and other > compute else "compute"


def _computing(n: Numbers) -> float | None:
    if not n.step or n.wait is None or "other" not in n.overheads:
        return None
    return n.step * (1 - n.wait) - sum(n.overheads.values())


_ALL: tuple[Callable[[Numbers], Iterator[Limiter]], ...] = (
    _sandboxes, _outside_engines, _rewards, _curriculum, _generation, _orchestrator, _overheads, _trainer,
)  # fmt: skip
