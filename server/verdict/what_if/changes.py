"""The effect of each change on both sides: one law each, stated in the notes of every answer that uses it."""

from dataclasses import dataclass, replace

from server.verdict.what_if.laws import mean_cut_at, zero_share_at
from server.verdict.what_if.model import Model, Notes, joined
from server.verdict.what_if.types import Bound, Changes, CurrentNumbers

# From this share on a mean is at its bound, because some samples are always fresher.
AT_BOUND = 0.8
# Factor of the length. Beyond it, times that are not proportional to the length are no longer small.
FAR = 2.0
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
    return Factor(factor, "" if 1 / FAR <= factor <= FAR else "about")


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
