"""Both sides of a run, with the assumptions and missing inputs of the estimate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import exp, expm1, log, prod
from typing import Literal

from server.verdict.thresholds import AT_BOUND, FAR_LENGTH, FLATTEST, HALVINGS, LEAST_CUT, LITTLE_WAIT, SHARPEST

# ---- types
# Inputs, changes and answers of a what-if.

Side = Literal["trainer", "generator"]
"""``generator``: everything before the queue, so sandboxes, scoring and the orchestrator too."""

Bound = Literal["", "at least", "at most", "about"]


@dataclass(frozen=True, slots=True)
class CurrentNumbers:
    """The numbers of a run at one instant; None: not reported. Samples are the trainer's, ratios 0..1, money USD.

    Attributes:
        outcome: of the verdict ("" without one): what limits the generator's side when engines do not.
        apart: why trainer and generator do not work side by side, so that nothing follows; "" when they do.
        one_pool: why no GPUs can move between them; "" when they can.
        capacity: samples/s the trainer takes when it never waits; compute_capacity: without its overheads too.
        trained: samples/s it does take; wait: share of its step in which it waits.
        oversampling: rollouts begun per one that is not thrown away as a surplus.
        zero_advantage: share of completed groups; filtered: are they dropped before training?
        staleness: mean, in versions; stale_share: dropped for it, of those dropped for it or trained.
        concurrency: rollouts in flight, at most; generating: share of them in the engines; kv_ceiling: requests.
        response_tokens: mean; max_response_tokens: the cap; truncation: share cut there.
        usd_per_million_tokens, idle_usd_per_hour: as the run's own signals say.
    """

    outcome: str = ""
    apart: str = ""
    one_pool: str = ""
    capacity: float | None = None
    compute_capacity: float | None = None
    trained: float | None = None
    wait: float | None = None
    step_seconds: float | None = None
    trainer_gpus: float | None = None
    generator_gpus: float | None = None
    engines: float | None = None
    group_size: float | None = None
    solve_ratio: float | None = None
    oversampling: float | None = None
    zero_advantage: float | None = None
    filtered: bool | None = None
    max_staleness: float | None = None
    staleness: float | None = None
    stale_share: float | None = None
    concurrency: float | None = None
    generating: float | None = None
    kv_ceiling: float | None = None
    response_tokens: float | None = None
    max_response_tokens: float | None = None
    truncation: float | None = None
    usd_per_gpu_hour: float | None = None
    usd_per_million_tokens: float | None = None
    idle_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes; None and 0 change nothing.

    Attributes:
        move_gpus: from the trainer to the generator (negative: back).
        add_engines: additional engines on new GPUs (negative: remove engines).
    """

    move_gpus: int = 0
    add_engines: int = 0
    group_size: int | None = None
    oversampling: float | None = None
    concurrency: int | None = None
    max_response_tokens: int | None = None
    max_staleness: int | None = None
    zero_advantage: float | None = None

    def from_today(self, now: CurrentNumbers) -> Mapping[str, float]:
        """Returns the changes that differ from today, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved = {name: values[name] for name in ("move_gpus", "add_engines") if values[name]}
        others = {name: value for name, value in values.items() if value is not None and name not in DELTAS}
        return moved | {name: value for name, value in others.items() if value != getattr(now, name)}


DELTAS = ("move_gpus", "add_engines")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of an answer; ``value`` None: unknown, and ``why`` is the missing input.

    Attributes:
        bound: the true one is at least or at most this, as far as the assumptions go; "about": either.
    """

    value: float | None
    unit: str
    bound: Bound = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunSituation:
    """A run in the model: today's, or after the changes. ``limiter`` None: unknown."""

    limiter: Side | None
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer.

    Attributes:
        changes: those that differ from today.
        assumptions: what the estimate takes for granted, a sentence each.
        missing: input -> its use and how to provide it.
    """

    now: RunSituation
    then: RunSituation
    changes: Mapping[str, float]
    assumptions: tuple[str, ...]
    missing: Mapping[str, str]


FIGURES: Mapping[str, str] = {
    "wait_ratio": "ratio",
    "trained_samples_per_second": "samples/s",
    "useful_samples_per_second": "samples/s",
    "staleness_versions": "versions",
    "step_seconds": "seconds",
    "usd_per_million_tokens": "usd",
    "idle_usd_per_hour": "usd/h",
    "trainer_could_take": "samples/s",
    "generator_could_make": "samples/s",
    "zero_advantage_ratio": "ratio",
    "response_tokens": "tokens",
    "kv_concurrency_limit": "requests",
    "trainer_gpus": "GPUs",
    "generator_gpus": "GPUs",
}
"""Every figure of a state, with its unit."""

NEEDS: Mapping[str, str] = {
    "trained": "how many samples the trainer takes per second: log step time and samples per step",
    "wait": "how long the trainer waits, or its capacity: log a wait time next to the step time",
    "step_seconds": "how long a step takes: log the step time",
    "trainer_gpus": "the trainer's GPUs: state trainer_gpus in [run.NAME.facts]",
    "generator_gpus": "the generator's GPUs: state generator_gpus in [run.NAME.facts]",
    "engines": "how many engines there are: add their /metrics as targets",
    "group_size": "rollouts per group: state group_size in [run.NAME.facts]",
    "solve_ratio": "how often tasks are solved: send rollout records with `solved`",
    "oversampling": "rollouts started per rollout kept: send rollout records with `exit`, or state oversampling in "
    "[run.NAME.facts]",
    "zero_advantage": "the share of groups without a gradient: log it, or send rollout records",
    "filtered": "whether groups without a gradient are dropped before training: state filters_zero_advantage (1 or 0) "
    "in [run.NAME.facts], or send rollout records",
    "max_staleness": "the run's own staleness bound: state max_staleness_versions in [run.NAME.facts]",
    "staleness": "how stale samples are: log it, or send rollout records",
    "concurrency": "how many rollouts are in flight: state max_in_flight in [run.NAME.facts]",
    "kv_ceiling": "the KV ceiling: add the engines' /metrics as targets",
    "response_tokens": "how long responses are: log their mean in tokens",
    "max_response_tokens": "the length cap: state max_response_tokens in [run.NAME.facts]",
    "usd_per_gpu_hour": "the price of a GPU-hour: state usd_per_gpu_hour in [run.NAME.cost]",
}
"""Input -> its description and how to provide it."""


_FLIP: dict[Bound, Bound] = {"": "", "at least": "at most", "at most": "at least", "about": "about"}


def flipped(bound: Bound) -> Bound:
    """Returns the bound of a quantity that falls if the other rises."""
    return _FLIP[bound]


def joined(*bounds: Bound) -> Bound:
    """Returns the bound of a product; opposite bounds leave none."""
    distinct = {bound for bound in bounds if bound}
    return distinct.pop() if len(distinct) == 1 else "about" if distinct else ""


@dataclass(slots=True)
class Notes:
    """Assumptions and missing inputs of an estimate."""

    assumptions: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def assume(self, *assumptions: str) -> None:
        self.assumptions += [text for text in assumptions if text not in self.assumptions]

    def lack(self, *names: str) -> None:
        self.missing |= {name: NEEDS[name] for name in names}


@dataclass(frozen=True, slots=True)
class Model:
    """The rates of both sides. None: unknown, because ``lacks`` (names of `NEEDS`, or texts) are missing.

    Attributes:
        now: the run's numbers, as the changes leave them.
        capacity, generated: samples/s that the trainer could take and the generator's side could make.
        bound: of ``generated``; floor: what it is at least, None where that is not known.
        lengths: tokens per response over today's.
        staleness: mean, in versions.
        engines_as_now: no engine came or went.
    """

    now: CurrentNumbers
    capacity: float | None
    generated: float | None
    bound: Bound = ""
    floor: float | None = None
    lengths: float | None = 1.0
    staleness: float | None = None
    staleness_bound: Bound = ""
    engines_as_now: bool = True
    lacks: tuple[str, ...] = ()

    @property
    def limiter(self) -> Side | None:
        if self.wait is None:
            return None
        # If the trainer is the limit, the held generator's side could deliver more.
        return "trainer" if self.wait < LITTLE_WAIT else "generator"

    @property
    def trained(self) -> float | None:
        return None if self.capacity is None or self.generated is None else min(self.capacity, self.generated)

    @property
    def trained_bound(self) -> Bound:
        """If the trainer is the limit, the surplus of the other side does not matter."""
        if self.capacity is None or self.generated is None or self.generated < self.capacity:
            return self.bound
        sure = self.bound in ("", "at least") or (self.floor is not None and self.floor >= self.capacity)
        return "" if sure else "at most"

    @property
    def wait(self) -> float | None:
        if self.capacity is None or self.generated is None:
            return None
        return max(0.0, 1 - self.generated / self.capacity)


# ---- laws
# Two laws of distributions of which only a few numbers are measured.


def mean_cut_at(mean: float, cap: float, new_cap: float, cut: float | None) -> float:
    """Returns the mean length under another cap; lengths are exponential below it, E[min(X, cap)] = mean today.

    Whatever the distribution, E[min(X, c)] is concave in c with the slope P(X > c): today's share of ``cut`` ones
    bounds both directions, and the estimate keeps within.
    """
    target = min(mean / cap, 1 - LEAST_CUT)
    # In units of the cap: the scale with today's censored mean.
    scale = _solve(lambda size: -expm1(-1 / size) * size, target, rising=True)
    moved = -expm1(-new_cap / cap / scale) * scale * cap
    # A mean this short cannot be cut further.
    along = mean + min(cut, mean / cap) * (new_cap - cap) if cut is not None else moved
    return min(moved, along, new_cap)


def zero_share_at(size: int, new_size: int, solved: float, share: float) -> float:
    """Returns the share of groups with equal rewards for another group size.

    Tasks differ in how often they are solved: by a beta distribution with today's mean ``solved``, as wide as today's
    ``share`` states. Rewards are 0 or 1.
    """
    sharpness = _solve(lambda total: _equal(size, solved, total), share, rising=False)
    # If no width gives today's share (length penalties, infra failures), only the ratio of the law is used.
    return min(1.0, share * _equal(new_size, solved, sharpness) / _equal(size, solved, sharpness))


def _equal(size: int, solved: float, total: float) -> float:
    """Returns P(all solved) + P(none solved) of a group, p ~ Beta(solved * total, (1 - solved) * total)."""
    return sum(prod((share * total + i) / (total + i) for i in range(size)) for share in (solved, 1 - solved))


def _solve(law: Callable[[float], float], target: float, rising: bool) -> float:
    """Finds the argument of a monotonic law for a value by bisection on a logarithmic scale; else the nearest end."""
    low, high = log(FLATTEST), log(SHARPEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if (law(exp(middle)) < target) == rising:
            low = middle
        else:
            high = middle
    return exp((low + high) / 2)


# ---- changes
# The effect of each change on both sides: one law each, stated in the notes of every answer that uses it.

# Verdicts in which the engines do not limit the generator's side.
NOT_ENGINES = ("sandbox_bound", "reward_bound", "orchestrator_bound")
_FULL = "While the trainer is the limit, the queue fills up to the staleness bound."
_LITTLE = "Staleness is the time from dispatch to training (Little's law) times the versions published per second."
_STATED = ("group_size", "oversampling", "concurrency", "max_response_tokens", "max_staleness", "zero_advantage")


@dataclass(frozen=True, slots=True)
class Factor:
    """The factor by which a rate changes; None: unknown, because ``lacks`` are missing.

    Attributes:
        floor: lower bound of a factor that is at most ``value``; None: unknown.
    """

    value: float | None = 1.0
    bound: Bound = ""
    lacks: tuple[str, ...] = ()
    floor: float | None = None

    @property
    def least(self) -> float | None:
        return self.value if self.bound in ("", "at least") else self.floor

    def __mul__(self, other: "Factor") -> "Factor":
        value = self.value * other.value if self.value is not None and other.value is not None else None
        least = self.least * other.least if self.least is not None and other.least is not None else None
        return Factor(value, joined(self.bound, other.bound), (*self.lacks, *other.lacks), least)


def changed(today: Model, changes: Changes, notes: Notes) -> Model:
    """Returns the run after the changes."""
    now = today.now
    stated = {name: getattr(changes, name) for name in _STATED if getattr(changes, name) is not None}
    later, trainer, engines = _gpus(replace(now, **stated), changes, notes)
    lengths = _lengths(now, later, notes)
    ceiling = _times(now.kv_ceiling, _ratio(engines, lengths))
    later = replace(later, kv_ceiling=ceiling, response_tokens=_times(now.response_tokens, lengths.value))
    later = _groups(now, later, changes, notes)
    raw = _raw(now, later, engines, lengths, notes)
    kept_factor = _kept_factor(now, later, notes)
    capacity, lacks = _capacity(today, trainer, lengths, notes)
    if today.bound:
        notes.assume("The trainer is the limit now. The generator's side could produce more; how much more is unknown.")
    factor = raw * kept_factor
    generated = _times(today.generated, factor.value)
    missing = tuple(dict.fromkeys((*today.lacks, *lacks, *raw.lacks, *kept_factor.lacks)))
    notes.lack(*(name for name in missing if name != now.one_pool))
    if changes.move_gpus and now.one_pool:
        notes.missing["move_gpus"] = now.one_pool
    bound = joined(today.bound, raw.bound, kept_factor.bound)
    model = Model(
        later, capacity, generated, bound, _times(today.generated, factor.least), lengths.value,
        engines_as_now=engines.value == 1, lacks=missing,
    )  # fmt: skip
    stale = _stale(today, model, raw, notes)
    if (
        (later.concurrency or 0.0) <= (now.concurrency or 0.0)
        or stale.generated is None
        or stale.generated == model.generated
    ):
        return stale
    # Rollouts held by a staleness bound are not in flight, so a higher cap never lowers today's rate.
    capped = changed(today, replace(changes, concurrency=None), Notes())
    if capped.generated is None or capped.generated <= stale.generated:
        return stale
    return replace(stale, generated=capped.generated, bound=joined(stale.bound, "at least"))


def _times(number: float | None, factor: float | None) -> float | None:
    return number * factor if number is not None and factor is not None else None


def _ratio(numerator: Factor, denominator: Factor) -> float | None:
    return numerator.value / denominator.value if numerator.value is not None and denominator.value else None


# ---- GPUs


def _gpus(now: CurrentNumbers, changes: Changes, notes: Notes) -> tuple[CurrentNumbers, Factor, Factor]:
    """Returns (today with the new GPUs, factor of the trainer, factor of the engines)."""
    trainer, generator = now.trainer_gpus, now.generator_gpus
    moved, added = changes.move_gpus, changes.add_engines
    if moved and now.one_pool:
        return now, Factor(None, "", (now.one_pool,)), Factor(None, "", (now.one_pool,))
    lacks = [name for name in ("trainer_gpus", "generator_gpus") if moved and not getattr(now, name)]
    lacks += ["engines"] if added and not now.engines else []
    if lacks:
        return now, Factor(None, "", tuple(lacks)), Factor(None, "", tuple(lacks))
    engines = 1 + (added / now.engines if now.engines else 0) + (moved / generator if moved and generator else 0)
    share = 1 - moved / trainer if moved and trainer else 1.0
    if moved:
        notes.assume("Compute scales linearly with the trainer's GPUs; the rest of the step takes as long as now.")
    if moved or added:
        notes.assume("Engines generate as many tokens per GPU as now: linear, without a new KV cache limit.")
    after = replace(
        now, trainer_gpus=_times(trainer, share), generator_gpus=_times(generator, engines),
        engines=_times(now.engines, engines),
    )  # fmt: skip
    return after, Factor(share), Factor(engines)


def _capacity(today: Model, gpus: Factor, lengths: Factor, notes: Notes) -> tuple[float | None, tuple[str, ...]]:
    """Returns the factor of the trainer's capacity: compute scales with GPUs and tokens, overheads stay."""
    now = today.now
    if today.capacity is None or not gpus.value or lengths.value is None:
        return None, (*gpus.lacks, *lengths.lacks)
    if (gpus.value, lengths.value) == (1.0, 1.0):
        return today.capacity, ()
    share = min(1.0, today.capacity / now.compute_capacity) if now.compute_capacity else 1.0
    if not now.compute_capacity:
        notes.assume(
            "The trainer's overheads (weight sync, checkpoints) are not reported separately: the whole step scales."
        )
    return today.capacity / (share * lengths.value / gpus.value + 1 - share), ()


# ---- the engines


def _raw(now: CurrentNumbers, later: CurrentNumbers, gpus: Factor, lengths: Factor, notes: Notes) -> Factor:
    """Returns the factor of rollouts that the engines finish."""
    if gpus.value is None or not lengths.value:
        return Factor(None, "", (*gpus.lacks, *lengths.lacks))
    engines = gpus * _filled(now, later, gpus) * Factor(1 / lengths.value, lengths.bound)
    factor = engines * _in_flight(now, later, notes)
    room = _room(now)
    if factor.value is not None and room is not None:
        # Rollouts beyond the ceiling wait in the engines' queue.
        largest = max(1.0, room) * (engines.value or 1.0)
        factor = replace(
            factor, value=min(factor.value, largest), floor=min(factor.floor, largest) if factor.floor else None
        )
    if now.outcome in NOT_ENGINES and factor.value is not None and factor.value != 1:
        texts = now.outcome.replace("_", "-")
        notes.assume(f"The run is {texts}: engines do not limit it, so more engines do not help.")
        factor = Factor(min(1.0, factor.value), "at least" if factor.value < 1 else "")
    return factor


def _room(now: CurrentNumbers) -> float | None:
    """Returns the KV ceiling in rollouts over those in flight; a rollout in a tool is in no engine."""
    if now.kv_ceiling is None or not now.concurrency:
        return None
    return now.kv_ceiling / min(1.0, now.generating or 1.0) / now.concurrency


def _filled(now: CurrentNumbers, later: CurrentNumbers, gpus: Factor) -> Factor:
    """Returns the factor of engines with more slots than requests: they decode faster, but not proportionally."""
    room = _room(replace(later, concurrency=now.concurrency))
    if gpus.value is None or gpus.value == 1 or room is None or room <= 1:
        return Factor()
    return Factor(1.0, "at most", floor=1 / gpus.value) if gpus.value > 1 else Factor(1.0, "at least")


def _in_flight(now: CurrentNumbers, later: CurrentNumbers, notes: Notes) -> Factor:
    """Returns the factor by Little's law: rollouts per second = in flight / duration, up to the KV ceiling."""
    if later.concurrency == now.concurrency:
        return Factor()
    if not now.concurrency or not later.concurrency:
        return Factor(None, "", ("concurrency",))
    notes.assume(
        "Rollouts per second grow with the rollouts in flight (Little's law) up to the KV ceiling. Each rollout takes "
        "longer when more decode together, by an unknown amount: linear growth is an upper bound."
    )
    more = later.concurrency > now.concurrency
    room = _room(replace(later, concurrency=now.concurrency))
    if room is None:
        notes.lack("kv_ceiling")
    ceiling = now.concurrency * room if room is not None else float("inf")
    value = min(later.concurrency, ceiling) / min(now.concurrency, ceiling)
    return Factor(value, "" if value == 1 else "at most" if more else "at least", floor=1.0 if more else None)


def _lengths(now: CurrentNumbers, later: CurrentNumbers, notes: Notes) -> Factor:
    """Returns the factor of tokens per response under another cap."""
    if later.max_response_tokens == now.max_response_tokens:
        return Factor()
    lacks = tuple(name for name in ("response_tokens", "max_response_tokens") if not getattr(now, name))
    mean, cap, new_cap = now.response_tokens, now.max_response_tokens, later.max_response_tokens
    if lacks or not mean or not cap or not new_cap:
        return Factor(None, "", lacks)
    notes.assume(
        "Lengths below the cap are exponential, consistent with the current mean and truncation; time per rollout and "
        "trainer compute are proportional to response tokens. The effect of shorter answers on rewards is not included."
    )
    factor = mean_cut_at(mean, cap, new_cap, now.truncation) / mean
    # Prompts, tools and boots do not shrink with the response: far from today's length no bound is valid.
    return Factor(factor, "" if 1 / FAR_LENGTH <= factor <= FAR_LENGTH else "about")


# ---- samples that reach the trainer


def _groups(now: CurrentNumbers, later: CurrentNumbers, changes: Changes, notes: Notes) -> CurrentNumbers:
    """Returns the share without a gradient for another group size; a share given by the user takes precedence."""
    if later.group_size == now.group_size or changes.zero_advantage is not None:
        return later
    lacks = [name for name in ("group_size", "solve_ratio", "zero_advantage") if getattr(now, name) is None]
    if lacks or not now.group_size or not later.group_size or now.group_size < 2:
        notes.lack(*lacks)
        notes.assume("A batch keeps its number of samples. Larger groups have equal rewards at most as often as now.")
        return replace(later, zero_advantage=None)
    notes.assume(
        "A batch keeps its number of samples. Rewards are 0 or 1, and tasks differ by a beta distribution with "
        "the current solve and zero-advantage ratios. The longer wait of larger groups for their slowest rollout is "
        "not included."
    )
    solved, share = now.solve_ratio or 0.0, now.zero_advantage or 0.0
    return replace(later, zero_advantage=zero_share_at(round(now.group_size), round(later.group_size), solved, share))


def _kept_factor(now: CurrentNumbers, later: CurrentNumbers, notes: Notes) -> Factor:
    """Returns the factor of finished rollouts that are trained on."""
    return _surplus(now, later, notes) * _fruitful(now, later, notes) * _fresh(now, later, notes)


def _surplus(now: CurrentNumbers, later: CurrentNumbers, notes: Notes) -> Factor:
    if later.oversampling == now.oversampling:
        return Factor()
    if not now.oversampling or not later.oversampling:
        return Factor(None, "", ("oversampling",))
    notes.assume(
        "A rollout that is aborted as surplus costs as much as a trained one. Without oversampling, stragglers would "
        "delay batches; this is not included."
    )
    value = now.oversampling / later.oversampling
    return Factor(value, "at most", floor=1.0) if value > 1 else Factor(value, "at least")


def _fruitful(now: CurrentNumbers, later: CurrentNumbers, notes: Notes) -> Factor:
    """Returns the factor of fewer groups without a gradient: if they are filtered, other groups take their place."""
    before, after = now.zero_advantage, later.zero_advantage
    if after == before:
        return Factor()
    if now.filtered is False:
        notes.assume(
            "Groups without a gradient are trained on: they take as long as others, without a learning effect."
        )
        return Factor()
    if now.filtered is None or before is None or after is None or before >= 1:
        # Fewer such groups never lower the trained samples, whether they are filtered or not.
        grown = (later.group_size or 0) > (now.group_size or 0)
        fewer = after < before if before is not None and after is not None else grown
        notes.lack(*(name for name in ("zero_advantage", "filtered") if getattr(now, name) is None))
        return Factor(1.0, "at least" if fewer else "at most")
    notes.assume("Groups without a gradient are dropped before training, and others are generated in their place.")
    return Factor((1 - after) / (1 - before))


def _fresh(now: CurrentNumbers, later: CurrentNumbers, notes: Notes) -> Factor:
    """Returns the factor of a higher staleness bound: it saves at most today's stale drops."""
    if not now.max_staleness or not later.max_staleness or later.max_staleness <= now.max_staleness:
        return Factor()
    if not now.stale_share:
        return Factor()
    notes.assume("A higher staleness bound adds at most the samples that are now dropped as stale.")
    return Factor(1 / (1 - now.stale_share), "at most", floor=1.0)


# ---- staleness


def _stale(today: Model, model: Model, raw: Factor, notes: Notes) -> Model:
    """Returns the staleness after the changes; above the bound, generation is held."""
    now, later = today.now, model.now
    if model.trained is None:
        return model
    if now.staleness is None or not today.trained:
        notes.lack("staleness")
        tighter = (later.max_staleness or 0) < (now.max_staleness or 0)
        return replace(model, bound=joined(model.bound, "at most")) if tighter else model
    if today.limiter == "trainer":
        return _stays(model, now, notes) if model.limiter == "trainer" else _drains(today, model, raw)
    natural, limit = _natural(today, model, raw), _limit(now, later)
    if limit is not None and natural > limit and model.generated is not None:
        notes.assume(_LITTLE, "If staleness would exceed its bound, generation is held back.")
        return replace(model, staleness=limit, generated=model.generated * limit / natural, floor=None)
    if model.limiter == "trainer":
        return _queues(model, notes)
    notes.assume(_LITTLE)
    return replace(model, staleness=natural)


def _natural(today: Model, model: Model, raw: Factor) -> float:
    """Returns the staleness without a queue: time in flight x versions per second."""
    now, later = today.now, model.now
    grown = (later.concurrency or 1.0) / (now.concurrency or 1.0) if later.concurrency != now.concurrency else 1.0
    faster = (model.trained or 0.0) / today.trained if today.trained else 1.0
    return (now.staleness or 0.0) * grown / (raw.value or 1.0) * faster


def _drains(today: Model, model: Model, raw: Factor) -> Model:
    """Returns the staleness once the queue, which was full while the trainer was the limit, is empty."""
    natural, limit = _natural(today, model, raw), _limit(today.now, model.now)
    return replace(model, staleness=natural if limit is None else min(natural, limit), staleness_bound="at most")


def _limit(now: CurrentNumbers, later: CurrentNumbers) -> float | None:
    """Returns the bound in force; if today's value exceeds an unchanged bound, today's value."""
    if later.max_staleness is None or later.max_staleness != now.max_staleness:
        return later.max_staleness
    return max(later.max_staleness, now.staleness or 0.0)


def _stays(model: Model, now: CurrentNumbers, notes: Notes) -> Model:
    """Returns the staleness if the trainer stays the limit: the queue is full up to its bound."""
    stale, bound, new_bound = now.staleness or 0.0, now.max_staleness, model.now.max_staleness
    if not bound or not new_bound or new_bound == bound:
        return replace(model, staleness=stale)
    notes.assume(_FULL)
    value = stale * new_bound / bound if stale >= AT_BOUND * bound else min(stale, new_bound)
    return replace(model, staleness=value, staleness_bound="at most" if new_bound > bound else "")


def _queues(model: Model, notes: Notes) -> Model:
    """Returns the staleness if the trainer becomes the limit: samples wait until the bound holds the generator."""
    bound = model.now.max_staleness
    if bound is None:
        notes.lack("max_staleness")
        return model
    notes.assume(_FULL)
    return replace(model, staleness=bound, staleness_bound="at most")


# ---- answer
# Estimates a changed run with the throughput model of the verdict.


def what_if(now: CurrentNumbers, changes: Changes) -> WhatIf:
    """Returns today's figures and the estimate. Without a change both are the same object."""
    notes, given = Notes(), changes.from_today(now)
    today = _today(now, notes)
    before = _state(today, today, notes)
    if now.apart:
        notes.missing["mode"] = now.apart
    if not given or now.apart:
        return WhatIf(before, before, {}, tuple(notes.assumptions), notes.missing)
    later = changed(today, changes, notes)
    return WhatIf(before, _state(today, later, notes), dict(given), tuple(notes.assumptions), notes.missing)


def _today(now: CurrentNumbers, notes: Notes) -> Model:
    """Computes the sides of today from two of trained, wait and capacity; other pages show the first two."""
    trained, wait, capacity = now.trained, now.wait, now.capacity
    if now.apart:
        return Model(now, None, None)
    if trained is not None and wait is not None and wait < 1:
        capacity = trained / (1 - wait)
    elif trained is None and capacity is not None and wait is not None:
        trained = capacity * (1 - wait)
    if trained is None or not capacity:
        lacks = [name for name, value in (("trained", trained), ("wait", capacity)) if not value]
        notes.lack(*lacks)
        return Model(now, None, None, lacks=tuple(lacks))
    # A rate slightly above the capacity is noise between two windows.
    capacity = max(capacity, trained)
    is_equal = 1 - trained / capacity < LITTLE_WAIT
    return Model(now, capacity, trained, bound="at least" if is_equal else "", staleness=now.staleness)


# ---- figures


def _state(today: Model, model: Model, notes: Notes) -> RunSituation:
    makers: dict[str, Callable[[Model, Model], Figure]] = {
        "wait_ratio": _wait,
        "trained_samples_per_second": _trained,
        "useful_samples_per_second": _useful,
        "staleness_versions": _staleness,
        "step_seconds": _step,
        "usd_per_million_tokens": _cost,
        "idle_usd_per_hour": _idle,
        "trainer_could_take": lambda _, state: _rate(state, state.capacity, ""),
        "generator_could_make": lambda _, state: _rate(state, state.generated, state.bound),
    }
    figures = {name: maker(today, model) for name, maker in makers.items()}
    figures |= {name: _input(today.now, model, name, of) for name, of in _INPUTS.items()}
    if today.now.apart:
        figures = {name: Figure(None, FIGURES[name], "", today.now.apart) for name in figures}
    return RunSituation(model.limiter, figures)


_INPUTS = {
    "zero_advantage_ratio": "zero_advantage",
    "response_tokens": "response_tokens",
    "kv_concurrency_limit": "kv_ceiling",
    "trainer_gpus": "trainer_gpus",
    "generator_gpus": "generator_gpus",
}


def _input(today: CurrentNumbers, model: Model, name: str, of: str) -> Figure:
    """Returns a number of the run; if the changes make it unknown, their missing inputs are the reason."""
    value: float | None = getattr(model.now, of)
    if value is not None:
        return Figure(value, FIGURES[name])
    lost = getattr(today, of) is not None
    return _unknown(FIGURES[name], *((_lost_by(of, model)) if lost else (of,)))


def _lost_by(of: str, model: Model) -> tuple[str, ...]:
    return ("solve_ratio",) if of == "zero_advantage" else model.lacks


def _unknown(unit: str, *names: str) -> Figure:
    return Figure(None, unit, "", "; ".join(NEEDS.get(name, name) for name in dict.fromkeys(names)))


def _rate(model: Model, value: float | None, bound: Bound) -> Figure:
    unit = "samples/s"
    return _unknown(unit, *model.lacks) if value is None else Figure(value, unit, bound)


def _bound(today: Model, model: Model) -> Bound:
    """Returns the value for trained samples; today's value is measured."""
    return "" if model is today else model.trained_bound


def _wait(today: Model, model: Model) -> Figure:
    if model.wait is None:
        return _unknown("ratio", *model.lacks)
    return Figure(model.wait, "ratio", flipped(_bound(today, model)))


def _trained(today: Model, model: Model) -> Figure:
    return _rate(model, model.trained, _bound(today, model))


def _useful(today: Model, model: Model) -> Figure:
    """Returns the samples with a gradient."""
    now, trained = model.now, model.trained
    if trained is None or now.filtered:
        return _rate(model, trained, _bound(today, model))
    lacks = [name for name in ("zero_advantage", "filtered") if getattr(now, name) is None]
    if lacks and now.zero_advantage != 0:
        lost = "zero_advantage" in lacks and today.now.zero_advantage is not None
        return _unknown("samples/s", *("solve_ratio" if lost and name == "zero_advantage" else name for name in lacks))
    return Figure(trained * (1 - (now.zero_advantage or 0.0)), "samples/s", _bound(today, model))


def _staleness(today: Model, model: Model) -> Figure:
    if model.staleness is not None:
        return Figure(model.staleness, "versions", model.staleness_bound)
    return _unknown("versions", *(["staleness"] if model.now.staleness is None else ["max_staleness"]), *model.lacks)


def _step(today: Model, model: Model) -> Figure:
    now = model.now
    if now.step_seconds is None or not model.trained or today.trained is None:
        return _unknown("seconds", *(["step_seconds"] if now.step_seconds is None else []), *model.lacks)
    value = now.step_seconds * today.trained / model.trained
    return Figure(value, "seconds", flipped(_bound(today, model)))


# ---- money


def _cost(today: Model, model: Model) -> Figure:
    """Returns the cost of trained tokens: all GPUs are paid for, also idle ones."""
    unit, spent = "usd", _of_today(today)
    then, before, tokens = _all_gpus(model.now), _all_gpus(today.now), model.lengths
    if spent is None:
        names = ("usd_per_gpu_hour", "trainer_gpus", "generator_gpus", "response_tokens")
        return _unknown(unit, *(name for name in names if getattr(today.now, name) is None), *today.lacks)
    if not model.trained or not today.trained or not tokens:
        return _unknown(unit, *model.lacks)
    bill = then / before if then is not None and before else 1.0 if model.engines_as_now else None
    if bill is None:
        return _unknown(unit, "generator_gpus")
    return Figure(spent * bill * today.trained / (model.trained * tokens), unit, flipped(_bound(today, model)))


def _of_today(today: Model) -> float | None:
    """Returns the run's own number, else the price of the GPUs over trained tokens."""
    now, gpus = today.now, _all_gpus(today.now)
    if now.usd_per_million_tokens is not None or not today.trained:
        return now.usd_per_million_tokens
    if gpus is None or now.usd_per_gpu_hour is None or not now.response_tokens:
        return None
    return gpus * now.usd_per_gpu_hour / 3600 / (today.trained * now.response_tokens) * 1e6


def _all_gpus(now: CurrentNumbers) -> float | None:
    """Returns all GPUs, counted once if both sides share them."""
    trainer, generator = now.trainer_gpus, now.generator_gpus
    if now.one_pool:
        return max((count for count in (trainer, generator) if count is not None), default=None)
    return trainer + generator if trainer is not None and generator is not None else None


def _idle(today: Model, model: Model) -> Figure:
    """Returns the cost of the trainer's GPUs while it waits and of held generators; today's value as reported."""
    reported, unit = today.now.idle_usd_per_hour, "usd/h"
    before, after = _lost(today), _lost(model)
    if model is today and reported is not None:
        return Figure(reported, unit)
    if before is None or after is None:
        names = () if today.now.one_pool else ("usd_per_gpu_hour", "trainer_gpus", "generator_gpus")
        lacks = [name for name in names if getattr(model.now, name) is None]
        return _unknown(unit, *([today.now.one_pool] if today.now.one_pool else []), *lacks, *model.lacks)
    value = after if reported is None else max(0.0, reported + after - before)
    # The loss in held engines follows only from how much more they could generate.
    bound: Bound = "at least" if model.limiter == "trainer" and model.bound else flipped(_bound(today, model))
    return Figure(value, unit, bound)


def _lost(model: Model) -> float | None:
    now, wait = model.now, model.wait
    if now.usd_per_gpu_hour is None or now.trainer_gpus is None or now.generator_gpus is None or now.one_pool:
        return None
    if wait is None or not model.generated or model.trained is None:
        return None
    held_share = max(0.0, 1 - model.trained / model.generated)
    return (now.trainer_gpus * wait + now.generator_gpus * held_share) * now.usd_per_gpu_hour
