"""The changes to make, best first: each with its gain as a range, its cost and its side effects. Pure.

Every change is made in one model of the run: rollouts in flight go through engines, sandboxes, tools and scoring to a
queue, from which the trainer takes batches. What is not known of the run (how much the engines slow down when they run
more requests, how far trainer and production wait for each other) is taken at its least and its most, which gives the
range. A change whose inputs are not reported is left out, and `lacks` says what to log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, log, log2, sqrt

from server.verdict import steps
from server.verdict.limiters import waits_for_prompts
from server.verdict.model import Advice, Cost, EngineCurve, Range, SideEffect
from server.verdict.thresholds import (
    ABORTED,
    BELOW_CAP,
    CAUSE_FIRST,
    COSTS,
    FEW_MORE,
    FEW_REQUESTS,
    FREE_CACHE,
    FULL,
    FULL_QUOTA,
    HOLDS,
    KEPT_MARGIN,
    LEAST_FACTOR,
    LEAST_SHARE,
    LEAST_USED,
    LITTLE_WAIT,
    LOAD_SHARES,
    MORE_CACHE,
    MORE_IN_FLIGHT,
    MORE_UNSEEN,
    MORE_VERSIONS,
    MOST_OF_GAIN,
    MOST_SHARE,
    MUCH_OVERHEAD,
    MUCH_STALE,
    NOISE,
    PREEMPTED,
    QUEUED,
    RARER,
    SCALING,
    SHARED_TIME,
    SHARPNESS,
    SPEED_BINS,
    SPEED_GAIN,
    SPEED_LEAST,
    SPEED_SPREAD,
    SPEED_WEIGHT,
    STILL_STALE,
    THOUSAND,
    THOUSANDS,
    TWICE,
    TWO_DIGITS,
    TWO_SIDES,
    UNSURE_LEVER,
    WAITS,
    WANTING_CACHE,
    WARM,
    ZERO_ADVANTAGE,
)
from server.verdict.throughput import Numbers, requests_text, wait


@dataclass(frozen=True, slots=True)
class Lever:
    """What can be changed: the imperative, the unit of its values, and its cost."""

    text: str
    unit: str
    cost: Cost


LEVERS: Mapping[str, Lever] = {
    "rollouts_in_flight": Lever("Raise the rollouts in flight", "rollouts", "setting"),
    "max_num_seqs": Lever("Raise the requests that an engine runs at once (max_num_seqs)", "requests", "restart"),
    "kv_cache": Lever("Give the KV cache more memory", "tokens", "restart"),
    "gpu_split_generator": Lever("Move GPUs from training to generation: generator GPUs", "GPUs", "restart"),
    "gpu_split_trainer": Lever("Move GPUs from generation to training: trainer GPUs", "GPUs", "restart"),
    "engines": Lever("Add engines", "engines", "money"),
    "trainer_gpus": Lever("Add GPUs to the trainer", "GPUs", "money"),
    "max_staleness": Lever("Raise the staleness bound", "versions", "setting"),
    "response_length": Lever("Cap the response length", "tokens", "setting"),
    "group_filter": Lever("Filter groups without a gradient before training", "", "setting"),
    "curriculum": Lever("Choose tasks that are neither always nor never solved: share of groups without a gradient",
                        "ratio", "setting"),
    "oversampling": Lever("Begin fewer surplus rollouts per group", "ratio", "setting"),
    "warm_pool": Lever("Keep sandboxes warm, so that a rollout waits less for one", "", "money"),
    "sandbox_limit": Lever("Have the provider raise the number of sandboxes that start at once", "sandboxes", "money"),
    "reward_workers": Lever("Score in parallel: reward workers", "workers", "setting"),
    "tool_workers": Lever("Make tool calls faster, or run more of them at once", "", "setting"),
    "checkpoint_interval": Lever("Raise the interval between checkpoints", "times", "setting"),
    "eval_interval": Lever("Raise the interval between evaluations", "times", "setting"),
    "weight_sync_mode": Lever("Publish weights while the engines generate", "", "restart"),
    "trainer_other": Lever("Shorten the part of the step that the trainer does not report", "", "setting"),
    "asynchronous": Lever("Generate while the trainer computes (one step off, or asynchronous)", "", "restart"),
    "dispatch": Lever("Dispatch prompts faster", "", "setting"),
    "repair": Lever("Restore what does not work", "", "setting"),
}  # fmt: skip


LEVER_OF: Mapping[str, str] = {
    "kv_capacity": "kv_cache", "preemption": "kv_cache", "long_tail": "oversampling", "too_few_engines": "engines",
    "drift": "response_length", "spin_up": "warm_pool", "starting_limit": "sandbox_limit", "quota": "sandbox_limit",
    "tool_time": "tool_workers", "tool_calls": "tool_workers", "scoring": "reward_workers", "too_easy": "curriculum",
    "too_hard": "curriculum", "equal_rewards": "curriculum", "compute": "trainer_gpus", "other": "trainer_other",
    "eval": "eval_interval", "weight_sync": "weight_sync_mode", "checkpoint": "checkpoint_interval",
    "staleness_gate": "max_staleness", "prompts": "dispatch", "concurrency_cap": "rollouts_in_flight",
    "max_num_seqs": "max_num_seqs",
}  # fmt: skip
"""Cause -> the lever that usually removes it."""


# ---- engine speed
# Seconds per token of a request, as a function of the requests that run in its engine.


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """The law of the engines: a token takes `alone` + `neighbour` * running seconds.

    Attributes:
        running: requests per engine now.
        half: requests at which a token takes twice as long as alone, as a range (most, likely, least).
        points: (requests per engine, tokens/s per engine) that the run has shown, ascending.
        fitted: the law follows from these points; otherwise from what engines show in general.
    """

    running: float
    half: Range
    points: tuple[tuple[float, float], ...] = ()
    fitted: bool = False


def speed_point(n: Numbers) -> tuple[float, float] | None:
    """Returns (requests, tokens/s) of a mean engine over the last five minutes; None: not reported."""
    engines = n.engines.get("up", 0.0)
    running = n.seen.total("generator_requests", state="running")
    tokens = n.seen.get("generator_tokens_per_second")
    if not engines or not running or not tokens or running < engines / 2:
        return None
    return running / engines, tokens / engines


Bins = Sequence[Sequence[float]]
"""[weight, mean of the requests per engine, mean of its tokens/s], by requests; at most one per half power of two."""


def remember_speed(bins: Bins, point: tuple[float, float] | None) -> list[list[float]]:
    """Adds a point to the speeds that the run has shown."""
    found = {_bin(row[1]): list(row) for row in bins}
    if point is not None:
        weight, running, tokens = found.get(_bin(point[0]), (0.0, *point))
        weight = min(weight + 1.0, SPEED_WEIGHT)
        share = 1.0 / weight
        found[_bin(point[0])] = [weight, running + share * (point[0] - running), tokens + share * (point[1] - tokens)]
    newest = [found[at] for at in sorted(found)]
    return newest[-SPEED_BINS:]


def _bin(running: float) -> int:
    return round(2 * log2(max(running, LEAST_SHARE)))


def engine_speed(bins: Bins, running: float) -> EngineSpeed:
    """Returns the law at ``running`` requests per engine, fitted to the points where these differ enough."""
    # A number of requests that was passed through in a minute is no operating point.
    rows = [(row[0], row[1], row[1] / row[2]) for row in bins if row[0] >= SPEED_LEAST]
    points = tuple((row[1], row[2]) for row in bins if row[0] >= SPEED_LEAST)
    general = EngineSpeed(running, _half_of(running, LOAD_SHARES), points)
    if len(rows) < 2 or rows[-1][1] < SPEED_SPREAD * rows[0][1]:
        return general
    # Least squares of seconds per token against requests, weighted by the time that each point was seen.
    total = sum(weight for weight, _, _ in rows)
    mean_x = sum(weight * x for weight, x, _ in rows) / total
    mean_y = sum(weight * y for weight, _, y in rows) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, x, _ in rows)
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in rows) / spread
    now = mean_y + slope * (running - mean_x)
    if now <= 0:
        return general
    share = min(MOST_SHARE, max(LEAST_SHARE, slope * running / now))
    # Of a few points: the likely share is nearer to the fit, its bounds are half way to what engines show in general.
    shares = tuple(sqrt(share * one) for one in LOAD_SHARES)
    return EngineSpeed(running, _half_of(running, (shares[0], sqrt(share * shares[1]), shares[2])), points, True)


def load_share(bins: Bins, running: float) -> float | None:
    """Returns the share of a token's time that depends on the other requests; None: the run has not shown it."""
    speed = engine_speed(bins, running)
    return running / (running + speed.half[1]) if speed.fitted else None


def _half_of(running: float, shares: Range) -> Range:
    """Returns the requests at which a token takes twice as long as alone, from the load's share of a token's time."""
    low, mid, high = (max(running, LEAST_SHARE) * (1 - share) / share for share in shares)
    return low, mid, high


def engine_curve(n: Numbers, bins: Bins = ()) -> EngineCurve | None:
    """Returns how the tokens/s of an engine follow from its requests; None: no engine reports its requests."""
    engines = n.engines.get("up", 0.0)
    if n.running is None or not engines:
        return None
    running = n.running / engines
    rows = [(row[0], row[1], row[1] / row[2]) for row in bins if row[0] >= SPEED_LEAST]
    if running < 1.0 and not rows:
        return None
    # The law at hardly a request is the law at the most that the run has shown.
    law = engine_speed(bins, running if running >= 1.0 or not rows else rows[-1][1])

    def alone(half: float) -> float:
        return sum(weight * y for weight, _, y in rows) / sum(weight * (1 + x / half) for weight, x, _ in rows)

    least, likely, most = law.half
    levels = (alone(least), alone(likely), alone(most)) if rows else None
    known = [seats for seats in (engine_seats(n), n.seen.fact("max_num_seqs")) if seats]
    seats, kept = max(running, min(known)) if known else None, _kept(n)
    limit = min(seats or inf, max(running, 1.0) * kept if kept else inf)
    ends = {min(limit, _paying(half)) for half in ((likely,) if law.fitted else law.half)}
    best = ends.pop() if len(ends) == 1 else None
    return EngineCurve(running, law.points, law.half, levels, law.fitted, seats, best)


def _paying(half: float) -> float:
    """Requests from which twice as many make less than a share of `SPEED_GAIN` more tokens.

    With u = requests / half the gain is 2 (1 + u) / (1 + 2 u) - 1.
    """
    return half * (1 - SPEED_GAIN) / (2 * SPEED_GAIN)


def engine_seats(n: Numbers) -> float | None:
    """Returns the requests that an engine can run at once; None: nothing shows a limit."""
    engines = n.engines.get("up", 0.0) or 1.0
    if not n.running:
        return None
    running = n.running / engines
    if n.saturated:
        return running
    if n.limit:
        return max(running, n.limit / engines)
    return running * max(1.0, FULL / n.kv) if n.kv and n.kv > LEAST_SHARE else None


def _kept(n: Numbers) -> float | None:
    """Factor of the rollouts in flight that the staleness bound allows; None: no bound is near."""
    stale = n.seen.get("staleness_versions", level="trajectory", stat="mean")
    bound = n.seen.fact("max_staleness_versions")
    return max(1.0, KEPT_MARGIN * bound / stale) if stale and bound and stale < bound and n.stale else None


# ---- the model


@dataclass(frozen=True, slots=True)
class Change:
    """A change in the model: factors, 1 where nothing changes.

    Attributes:
        in_flight: rollouts in flight; engines: their number; seats: requests that one may run at once; most_seats: at
            most so many, a number.
        removed: share of a rollout's time that is saved; made: rollouts that production delivers of those it begins.
        useful: samples that carry a gradient, of those trained; capacity: samples/s that the trainer could take.
        scorer: groups/s that the scorer can take.
    """

    in_flight: float = 1.0
    engines: float = 1.0
    seats: float = 1.0
    most_seats: float = inf
    removed: float = 0.0
    made: float = 1.0
    useful: float = 1.0
    capacity: float = 1.0
    scorer: float = 1.0


@dataclass(frozen=True, slots=True)
class RunModel:
    """A run as the model sees it; rates are multiples of what is trained now.

    Attributes:
        wait: share of the trainer's capacity that production does not deliver; surplus: what production could make,
            as a range; None: no source reports whether it is held.
        inside: share of a rollout's time in which its request runs; queued: in which it waits in the engine.
        running: requests per engine; seats: how many it can run at once; None: nothing shows a limit.
        scorer: busy share of a scorer that is never idle; fed: prompts come as fast as rollouts may begin.
    """

    wait: float
    surplus: Range | None
    inside: float
    queued: float
    running: float | None
    seats: float | None
    scorer: float | None = None
    fed: bool = True

    def rate(self, change: Change, half: float, sharp: float, surplus: float | None = None) -> float:
        """Trained samples/s after a change, as a factor of today's.

        Args:
            half: of `EngineSpeed`; sharp: how little trainer and production wait for each other at equal rates.
            surplus: what production could make; None: it follows from the trainer's wait.
        """
        trainer = 1.0 / max(LEAST_SHARE, 1.0 - self.wait)
        made = self._production(trainer, sharp) if surplus is None else surplus
        before = _both(made, trainer, sharp)
        factor = self._produced(change, half) * change.made
        return _both(made * factor, trainer * change.capacity, sharp) / before * change.useful

    def _production(self, trainer: float, sharp: float) -> float:
        """What production could make now. A trainer that waits takes all; the less it waits the more could come."""
        used = min(1.0 - LEAST_USED, 1.0 / trainer)
        implied: float = (1.0 - used**sharp) ** (-1.0 / sharp)
        return implied

    def _produced(self, change: Change, half: float) -> float:
        """Rollouts per second after a change, over today's: Little's law, with engines that slow down when fuller."""
        if not self.fed:
            return 1.0
        outside = max(0.0, 1.0 - self.inside - self.queued - change.removed)
        most = change.scorer / self.scorer if self.scorer else inf
        if self.running is None or self.inside <= 0:
            return min(most, change.in_flight / max(LEAST_SHARE, 1.0 - change.removed))
        running, now = self.running, 1.0 + self.running / half
        seats = min((self.seats or inf) * change.seats, change.most_seats)
        if seats < inf:
            most = min(most, seats / running * change.engines * now / (1.0 + seats / half))
        # x times the rate loads each engine with x k of the requests at which it would stand still; x rollouts per
        # second for outside + inside / (now (1 - x k)) seconds are the rollouts in flight: a quadratic equation.
        load = running / now / change.engines / half
        slope = outside + self.inside / now + change.in_flight * load
        if outside * load < LEAST_USED * LEAST_USED:
            return min(most, change.in_flight / slope)
        root = sqrt(max(0.0, slope * slope - 4 * outside * load * change.in_flight))
        return min(most, (slope - root) / (2 * outside * load))


def _both(made: float, taken: float, sharp: float) -> float:
    """The rate of two sides with a queue between them: the slower one's, and less where they are alike."""
    scale = min(made, taken)
    found: float = scale * ((scale / made) ** sharp + (scale / taken) ** sharp) ** (-1.0 / sharp)
    return found


def model_of(n: Numbers) -> RunModel | None:
    """Returns the model of a run; None: the trainer's wait or its rate is not reported."""
    if n.wait is None or not n.trained or n.seen.synchronous:
        return None
    engines = n.engines.get("up", 0.0) or 1.0
    requests, limit = (n.running or 0.0) + (n.waiting or 0.0), steps.limit(n.seen)
    # Without records the engines' requests show how many of the rollouts in flight are in them.
    shown = min(1.0, requests / limit) if limit else 1.0 if n.saturated else 0.0
    inside = n.time_shares.get("generating", 0.0 if n.time_shares else shown)
    queued = inside * (n.waiting or 0.0) / requests if requests else 0.0
    running = n.running / engines if n.running else None
    busy = n.extra.get("scoring_busy_ratio")
    return RunModel(
        n.lacking or 0.0, _surplus(n), inside - queued, queued, running, engine_seats(n),
        busy if n.scorer_full else None, fed=not waits_for_prompts(n),
    )  # fmt: skip


def _surplus(n: Numbers) -> Range | None:
    """Returns what production could make over what is trained; None: no source reports whether it is held.

    Without the hold there would be as much more as it takes of the time. By Little's law no more than the free slots
    would be added, but their count of a few minutes may have seen another part of the step.
    """
    if n.potential is None or n.arrivals is None or not n.trained:
        return None
    arrivals = max(n.arrivals, n.trained) / n.trained
    if n.hold_ratio is None:
        # What is dropped as stale has been made.
        return (arrivals, arrivals, arrivals) if n.dropped else None
    held = n.offered or 1.0
    most = arrivals / max(LEAST_SHARE, n.places) if n.places is not None else held
    low, high = min(held, most), held
    return low, sqrt(low * high), high


# ---- the levers


@dataclass(frozen=True, slots=True)
class _Option:
    """A lever at one value, and what it changes."""

    lever: str
    before: float | None
    after: float | None
    change: Change
    why: str
    side_effects: tuple[SideEffect, ...] = ()
    sure: float = 1.0
    """How far the change is understood: its share of the gain's logarithm that is certain."""
    least: Change | None = None
    most: Change | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """What the levers look at."""

    n: Numbers
    model: RunModel
    speed: EngineSpeed
    lacks: dict[str, str] = field(default_factory=dict)

    def gain(self, option: _Option) -> Range:
        """The gain of an option, over all that is not known of the run."""
        rate, surplus = self.model.rate, self.model.surplus
        middle = rate(option.change, self.speed.half[1], SHARPNESS[1], surplus[1] if surplus else None)
        ends = (0, 2)
        rates = [
            rate(change, self.speed.half[half], SHARPNESS[sharp], amount)
            for change in (option.least or option.change, option.most or option.change)
            for half in ends
            for sharp in ends
            for amount in ({surplus[0], surplus[2]} if surplus else (None,))
        ]
        low, high = min(*rates, middle) / NOISE, max(*rates, middle) * NOISE
        return round(low, 2), round(middle, 2), round(high, 2)


def advise(n: Numbers, bins: Bins = (), cause: str = "") -> tuple[tuple[Advice, ...], Mapping[str, str]]:
    """Returns the changes that gain something, by gain per cost, and levers that cannot be judged -> what to log.

    Args:
        bins: speeds that the run has shown; cause: of the verdict: of changes that are alike the one that removes it
            comes first.
    """
    if n.seen.synchronous:
        return _synchronous(n), {}
    model = model_of(n)
    if model is None:
        return (), {"every change": "log the trainer's wait next to its step time"}
    scene = Scene(n, model, engine_speed(bins, model.running or 1.0))
    found: list[tuple[float, Advice]] = []
    for make in _MAKERS:
        options = [(scene.gain(option), option) for option in make(scene)]
        options = [entry for entry in options if entry[0][1] >= LEAST_FACTOR]
        if not options:
            continue
        best = max(gain[1] for gain, _ in options)
        # The smallest change that brings most of the gain; of a trainer that waits one step more, because means hide
        # the moments at which it is too small.
        place = next(at for at, entry in enumerate(options) if log(entry[0][1]) >= MOST_OF_GAIN * log(best))
        if n.wait is not None and n.wait >= WAITS and options[place][1].lever == "rollouts_in_flight":
            place = min(place + 1, len(options) - 1)
        gain, option = options[place]
        lever = LEVERS[option.lever]
        advice = Advice(
            option.lever, option.before, option.after, lever.unit, gain, lever.cost, option.side_effects, option.why,
            _text(lever, option),
        )  # fmt: skip
        named = CAUSE_FIRST if option.lever == LEVER_OF.get(cause) else 1.0
        worth = (log(max(gain[0], LEAST_SHARE)) + 2 * log(gain[1])) / (1 + 2)
        found.append((worth * option.sure * named / COSTS[lever.cost], advice))
    return tuple(advice for _, advice in sorted(found, key=lambda entry: -entry[0])), scene.lacks


def _text(lever: Lever, option: _Option) -> str:
    """The change as an imperative."""
    if option.after is None:
        return f"{lever.text}."
    before = f" from {_number(option.before)}" if option.before is not None else ""
    times = " times today's" if lever.unit == "times" else " tokens" if lever.unit == "tokens" else ""
    return f"{lever.text}{before} to {_number(option.after)}{times}."


def _number(value: float) -> str:
    if value >= THOUSANDS:
        return f"{value * THOUSAND:,.0f}k"
    return f"{value:.0f}" if value >= TWO_DIGITS or value == int(value) else f"{value:.2g}"


def _in_flight(scene: Scene) -> Iterator[_Option]:
    """More rollouts at once, where engines have room and nothing but their number holds production."""
    n = scene.n
    limit = steps.limit(n.seen)
    if n.running is None:
        scene.lacks["rollouts_in_flight"] = "add the engines' /metrics as targets"
        return
    if not limit:
        scene.lacks["rollouts_in_flight"] = "log rollouts in flight, or state max_in_flight in [run.NAME.facts]"
        return
    if n.saturated is not False or n.scorer_full or n.in_flight.starting_limit is not None:
        return
    if (n.cap is not None and n.cap < BELOW_CAP) or (n.gated or 0.0) >= HOLDS:
        return
    if (n.seen.get("generator_preemption_ratio") or 0.0) >= PREEMPTED and (n.kv or 0.0) >= WANTING_CACHE:
        return  # more at once would be computed twice
    if max((used for _, used in n.seen.rows("sandbox_quota_used_ratio")), default=0.0) >= FULL_QUOTA:
        return  # a further rollout would find no sandbox
    stale = n.seen.get("staleness_versions", level="trajectory", stat="mean")
    running = scene.model.running or 1.0
    # Of engines that were seen at one load only: a few times as much, and as many requests as any engine runs well.
    unseen = max(MORE_UNSEEN, FEW_REQUESTS / running)
    most = min(MORE_IN_FLIGHT, inf if scene.speed.fitted else unseen, _kept(n) or inf)
    bound = n.seen.fact("max_staleness_versions")
    if stale and bound:
        # Staleness grows with the rollouts in flight; beyond the bound they would be held or dropped.
        most = min(most, max(TWICE, bound / stale))
    why = requests_text(n)
    why += f", the KV cache is {n.kv:.0%} full" if n.kv is not None else ""
    why += f", and {limit:.0f} rollouts are in flight, which is their limit"
    # The engines' own limit is often a power of two.
    seats = n.seen.fact("max_num_seqs") or 2.0 ** (floor(log2(running)) + 1)
    for factor in FEW_MORE:
        if factor > most:
            break
        to = round(limit * factor)
        effects = (SideEffect("staleness_versions", round(stale, 2), round(stale * to / limit, 2)),) if stale else ()
        change, needed = Change(in_flight=to / limit), ceil(running * factor)
        more = f"; max_num_seqs must allow {needed} requests per engine" if needed > seats else ""
        yield _Option(
            "rollouts_in_flight", limit, to, change, why + more, effects, least=replace(change, most_seats=seats)
        )  # fmt: skip


def _seats(scene: Scene) -> Iterator[_Option]:
    """More requests per engine, where requests wait and the cache is free."""
    n, running = scene.n, scene.model.running
    waiting = n.waiting or 0.0
    if running is None or waiting < max(1.0, QUEUED * (n.running or 0.0)):
        return
    if n.kv is None:
        scene.lacks["max_num_seqs"] = "add the engines' /metrics as targets: the use of their KV cache is not reported"
        return
    if n.kv >= FREE_CACHE:
        return
    seats = n.seen.fact("max_num_seqs") or ceil(running)
    room = FULL / max(n.kv, LEAST_SHARE)
    wanted = 1.0 + waiting / (n.running or 1.0)
    # Twice as many as wait on average: seats that stay free cost nothing.
    to = ceil(running * min(room, TWICE * wanted, MORE_IN_FLIGHT))
    why = f"{requests_text(n)} in the engines; the KV cache is {n.kv:.0%} full"
    yield _Option("max_num_seqs", seats, to, Change(seats=to / running), why)


def _cache(scene: Scene) -> Iterator[_Option]:
    """More cache, where it is full."""
    n = scene.n
    preempted = n.seen.get("generator_preemption_ratio") or 0.0
    if n.kv is None or n.kv < FULL or not n.running:
        return
    wanted = 1.0 + (n.waiting or 0.0) / n.running + (preempted if preempted >= PREEMPTED else 0.0)
    factor = min(MORE_CACHE, max(wanted, LEAST_FACTOR))
    tokens = n.seen.get("live_sequence_length_tokens")
    now = round(n.running * tokens / n.kv) if tokens else None
    why = f"the KV cache is {n.kv:.0%} full; {requests_text(n)}"
    waste = 1.0 + min(preempted, 1.0) if preempted >= PREEMPTED else 1.0
    # Where samples are dropped as stale, more at once grow staler: then the least is nothing.
    least = Change() if (n.stale or 0.0) >= MUCH_STALE else Change(seats=sqrt(factor))
    yield _Option(
        "kv_cache", now, round(now * factor) if now else None, Change(seats=factor, made=sqrt(waste)), why,
        least=least, most=Change(seats=factor, made=waste),
    )  # fmt: skip


def _split(scene: Scene) -> Iterator[_Option]:
    """GPUs from one side to the other."""
    n = scene.n
    trainer, generator = n.seen.fact("trainer_gpus"), n.seen.fact("generator_gpus")
    if not trainer or not generator:
        scene.lacks["gpu_split_generator"] = "state trainer_gpus and generator_gpus in [run.NAME.facts]"
        return
    sides = (("gpu_split_generator", generator, trainer), ("gpu_split_trainer", trainer, generator))
    for lever, taking, giving in sides:
        for share in SHARED_TIME:
            moved = round(giving * share)
            if not 0 < moved < giving:
                continue
            more, less = (taking + moved) / taking, (giving - moved) / giving
            why = wait(n)

            def change(power: float, lever: str = lever, more: float = more, less: float = less) -> Change:
                if lever == "gpu_split_generator":
                    return Change(engines=more, capacity=less**power)
                return Change(engines=less, capacity=more**power)

            low, mid, high = SCALING
            yield _Option(
                lever, taking, taking + moved, change(mid), why, sure=TWO_SIDES, least=change(low), most=change(high)
            )  # fmt: skip


def _engines(scene: Scene) -> Iterator[_Option]:
    n, alive = scene.n, scene.n.engines.get("up", 0.0)
    if not alive:
        scene.lacks["engines"] = "add the engines' /metrics as targets"
        return
    to = max(alive + 1, round(TWICE * alive))
    yield _Option("engines", alive, to, Change(engines=to / alive), requests_text(n))


def _trainer_gpus(scene: Scene) -> Iterator[_Option]:
    n, gpus = scene.n, scene.n.seen.fact("trainer_gpus")
    low, mid, high = (TWICE**power for power in SCALING)
    why = wait(n)
    yield _Option(
        "trainer_gpus", gpus, TWICE * gpus if gpus else None, Change(capacity=mid), why, least=Change(capacity=low),
        most=Change(capacity=high),
    )  # fmt: skip


def _staleness(scene: Scene) -> Iterator[_Option]:
    """A wider bound, where it holds dispatch back, or drops what was made."""
    n = scene.n
    bound = n.seen.fact("max_staleness_versions")
    stale = n.seen.get("staleness_versions", level="trajectory", stat="mean")
    held, dropped = (n.gated or 0.0) >= HOLDS, n.stale or 0.0
    if not held and dropped < MUCH_STALE:
        return
    batch = n.seen.fact("batch_samples") or (n.trained or 0.0) * (n.step or 0.0)
    limit = steps.limit(n.seen)
    places = n.places or 1.0
    flying = limit * places if limit else batch
    for more in MORE_VERSIONS:
        to = None if bound is None else bound + more
        effects = (
            (SideEffect("staleness_versions", round(stale, 2), round(stale * (to + 1) / (bound + 1), 2)),)
            if stale and to is not None and bound is not None else ()
        )  # fmt: skip
        if dropped >= MUCH_STALE:
            # Each version more keeps a part of what is dropped now.
            whole = 1 / (1 - min(dropped, MOST_SHARE) * (1 - STILL_STALE**more))
            why = f"{dropped:.0%} of the samples were dropped as stale"
            yield _Option(
                "max_staleness", bound, to, Change(made=whole), why, effects, least=Change(made=sqrt(whole)),
                most=Change(made=1 / (1 - min(dropped, MOST_SHARE))),
            )  # fmt: skip
            continue
        factor = min(1 / max(places, LEAST_SHARE), (flying + batch * more) / max(flying, 1.0))
        why = f"dispatch is held {n.gated or 0.0:.0%} of the time while the trainer waits"
        yield _Option(
            "max_staleness", bound, to, Change(in_flight=max(1.0, factor)), why, effects,
            least=Change(in_flight=max(1.0, sqrt(factor))),
        )  # fmt: skip


def _curriculum(scene: Scene) -> Iterator[_Option]:
    n, share = scene.n, scene.n.zero.share
    if share is None:
        scene.lacks["curriculum"] = "log the share of groups without a gradient, or push rollout records"
        return
    likely, low, high = (min(value, MOST_SHARE) for value in (share, n.zero.low, n.zero.high))
    if min(likely, n.zero.certain) < LEAST_FACTOR - 1:
        return
    why = f"{share:.0%} of groups carry no gradient"
    if not n.filtered:
        # Filtered groups no longer occupy the trainer; production must make up for them.
        changes = [Change(made=1 - part, useful=1 / (1 - part)) for part in (low, likely, high)]
        yield _Option("group_filter", None, None, changes[1], why, least=changes[0], most=changes[2])
    elif likely >= ZERO_ADVANTAGE / 2:
        after = round(likely / 2, 2)
        changes = [Change(made=(1 - part / 2) / (1 - part)) for part in (low, likely, high)]
        yield _Option(
            "curriculum", round(share, 2), after, changes[1], f"{why}, and are dropped before training",
            sure=UNSURE_LEVER, least=changes[0], most=changes[2],
        )  # fmt: skip


def _oversampling(scene: Scene) -> Iterator[_Option]:
    share = scene.n.lost.get("aborted_oversample")
    if share is None or share < ABORTED:
        return
    whole = 1 / (1 - min(share, MOST_SHARE))
    why = f"{share:.0%} of rollouts are aborted once enough others of their group are done"
    yield _Option(
        "oversampling", round(share, 2), round(share / 2, 2), Change(made=sqrt(sqrt(whole))), why, sure=UNSURE_LEVER,
        least=Change(made=1 / sqrt(whole)), most=Change(made=sqrt(whole)),
    )  # fmt: skip


def _boot(scene: Scene) -> Iterator[_Option]:
    n, share = scene.n, scene.n.time_shares.get("booting", 0.0)
    if n.seen.fact("has_sandbox") == 0 or share < LEAST_FACTOR - 1:
        return
    limit = n.in_flight.starting_limit
    why = f"rollouts spend {share:.0%} of their time until their sandbox is ready"
    if limit is not None:
        yield _Option("sandbox_limit", limit, TWICE * limit, Change(removed=share / TWICE), why)
    else:
        yield _Option("warm_pool", None, None, Change(removed=WARM * share), why, least=Change(removed=share / TWICE))


def _tools(scene: Scene) -> Iterator[_Option]:
    share = scene.n.time_shares.get("in_tool", 0.0)
    if share < LEAST_FACTOR - 1:
        return
    why = f"rollouts spend {share:.0%} of their time in tools"
    yield _Option("tool_workers", None, None, Change(removed=share / TWICE), why, sure=UNSURE_LEVER)


def _scoring(scene: Scene) -> Iterator[_Option]:
    n, share = scene.n, scene.n.time_shares.get("scoring", 0.0)
    if n.scorer_full:
        busy = n.extra.get("scoring_busy_ratio") or 1.0
        # Nearly all of the time at a scorer that is never idle is its queue, which a second one empties; what no
        # source places is there, too.
        placed = n.placed - share
        change = Change(scorer=TWICE * busy, removed=WARM * (1 - placed))
        yield _Option("reward_workers", 1, 2, change, f"the scorer is busy {min(busy, 1.0):.0%} of the time")
    elif share >= LEAST_FACTOR - 1:
        why = f"rollouts spend {share:.0%} of their time waiting for a reward"
        yield _Option("reward_workers", None, None, Change(removed=share / TWICE), why, least=Change())


def _overheads(scene: Scene, cause: str, lever: str, kept: float) -> Iterator[_Option]:
    n, seconds = scene.n, scene.n.overheads.get(cause, 0.0)
    if not n.step or seconds <= 0:
        return
    busy = n.step * (1 - (n.wait or 0.0))
    saved = min(seconds * (1 - kept), busy * MOST_SHARE)
    name = "what the trainer does not report" if cause == "other" else cause.replace("_", " ")
    why = f"{name} takes {seconds:.3g} s of a step of {n.step:.3g} s"
    change = Change(capacity=busy / (busy - saved))
    most = change
    if lever == "weight_sync_mode":
        # Engines that stand still meanwhile make as much more; few sources report that.
        whole = n.step / (n.step - min(saved, n.step * MOST_SHARE))
        paused = n.seen.get("generator_weight_stall_seconds", stat="mean")
        most = replace(change, made=whole)
        # A trainer that waits in spite of so long an update shows that production does not go on meanwhile.
        stands = paused or (n.wait or 0.0) >= LITTLE_WAIT
        change = replace(change, made=sqrt(whole) if stands else 1.0)
    numbers = (1, RARER) if lever.endswith("_interval") else (None, None)
    least = Change(capacity=sqrt(change.capacity))
    yield _Option(lever, numbers[0], numbers[1], change, why, least=least, most=most)


def _unnamed(scene: Scene) -> Iterator[_Option]:
    """The part of the step that the trainer does not name, where it is large."""
    n = scene.n
    if n.step and n.overheads.get("other", 0.0) >= MUCH_OVERHEAD * n.step and not n.overheads.get("eval"):
        yield from _overheads(scene, "other", "trainer_other", LEAST_SHARE)


_MAKERS: tuple[Callable[[Scene], Iterator[_Option]], ...] = (
    _in_flight, _seats, _cache, _split, _engines, _trainer_gpus, _staleness, _curriculum, _oversampling, _boot, _tools,
    _scoring,
    lambda scene: _overheads(scene, "checkpoint", "checkpoint_interval", 1 / RARER),
    lambda scene: _overheads(scene, "eval", "eval_interval", 1 / RARER),
    lambda scene: _overheads(scene, "weight_sync", "weight_sync_mode", LEAST_SHARE), _unnamed,
)  # fmt: skip


def _synchronous(n: Numbers) -> tuple[Advice, ...]:
    """Generation during training instead of before it: a step then takes the longer of the two."""
    generation = n.seen.get("trainer_phase_seconds", phase="generation")
    if not n.step or not generation or generation >= n.step:
        return ()
    rest = n.step - generation
    bubble = n.extra.get("tail_bubble_ratio") or 0.0
    least, most = n.step / max(generation, rest), n.step / max(generation * (1 - bubble), rest)
    lever = LEVERS["asynchronous"]
    gain = (round(least / NOISE, 2), round(sqrt(least * most), 2), round(most * NOISE, 2))
    if gain[1] < LEAST_FACTOR:
        return ()
    why = f"generation takes {generation:.3g} s of a step of {n.step:.3g} s, and the trainer waits for it"
    effects = (SideEffect("staleness_versions", 0.0, 1.0),)
    return (Advice("asynchronous", None, None, lever.unit, gain, lever.cost, effects, why, f"{lever.text}."),)
