"""Judges one seed: steady runs, runs whose limiter changes, runs that stall. `Limits` has the requirements."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bench.verdict.config import Config, between, draw
from bench.verdict.contradictions import Walker
from bench.verdict.feed import SOURCES, Feed, Told, played
from bench.verdict.sim import Row, Sim
from bench.verdict.truth import Truth, truth
from server.verdict.thresholds import CONFIDENT

# With three steps a verdict is expected; half of the run remains for the steady state.
SETTLED = 0.5


@dataclass(frozen=True, slots=True)
class Said:
    outcome: str
    cause: str
    confidence: float
    rule: str

    @property
    def sure(self) -> bool:
        return self.confidence >= CONFIDENT and self.outcome != "unknown"

    def __str__(self) -> str:
        return f"{self.outcome}/{self.cause} {self.confidence:.2f} {self.rule}"


@dataclass(frozen=True, slots=True)
class Steady:
    """A run that does not change. ``without``: the verdicts with one source missing."""

    config: Config
    truth: Truth
    said: Said
    without: dict[str, Said]
    changes: int
    hours: float

    @property
    def right(self) -> bool:
        return self.said.outcome in self.truth.right

    @property
    def misled(self) -> list[str]:
        """Sources whose absence causes a wrong verdict with confidence."""
        return [of for of, said in self.without.items() if said.sure and said.outcome not in self.truth.right]


def _said(told: Told) -> Said:
    v = told.verdict
    return Said(v.outcome, v.cause, v.confidence, v.rule)


def steady(seed: int, without: Sequence[str] | None = None) -> Steady:
    """``without``: sources to leave out, one at a time (default: two of the five, in rotation)."""
    config = draw(seed)
    sim = Sim(config).run()
    told = played(config, sim)
    late = [one for one in told if one.at >= SETTLED * config.horizon]
    changes = sum(a.verdict.key != b.verdict.key for a, b in pairwise(late))
    if without is None:
        without = [] if config.sync else [SOURCES[seed % 5], SOURCES[(seed + 2) % 5]]
    others = {of: _said(played(config, sim, of)[-1]) for of in without}
    hours = (late[-1].at - late[0].at) / 3600
    return Steady(config, truth(config), _said(told[-1]), others, changes, hours)


# ---- runs with the noise of the recorded ones

# Seconds and steps from which on a verdict is expected; the recordings have 60 s of steps of 1 to 12 s.
FIRST_SECONDS, FIRST_STEPS = 60.0, 10.0
BELIEVED = 0.5


@dataclass(frozen=True, slots=True)
class Noisy:
    """A run that does not change, with the noise of the recorded ones: every tick counts once a verdict is expected.

    Attributes:
        shares: of those ticks: right ones, and ones without a verdict.
        believed: those wrong at a confidence of at least `BELIEVED`.
        contradictions: rule -> ticks of the whole run.
    """

    config: Config
    truth: Truth
    said: Said
    right: float
    unknown: float
    believed: int
    contradictions: dict[str, int]


def noisy(seed: int) -> Noisy:
    config = draw(seed)
    sim, feed, walker = Sim(config).run(), Feed(config), Walker()
    measured, told, ticks = truth(config), list[Told](), list[Told]()
    step = sim.rows[-1].end / len(sim.rows) if sim.rows else config.horizon
    for one in feed.play(sim.rows, sim.pages):
        told.append(one)
        assert feed.seen is not None
        walker.seen(feed.seen, one.verdict)
        if one.at >= sim.rows[0].end + max(FIRST_SECONDS, FIRST_STEPS * step):
            ticks.append(one)
    wrong = [one.verdict for one in ticks if one.verdict.outcome not in (*measured.right, "unknown")]
    return Noisy(
        config, measured, _said(told[-1]),
        sum(one.verdict.outcome in measured.right for one in ticks) / max(1, len(ticks)),
        sum(one.verdict.outcome == "unknown" for one in ticks) / max(1, len(ticks)),
        sum(verdict.confidence >= BELIEVED for verdict in wrong),
        {name: len(found) for name, found in walker.found.items()},
    )  # fmt: skip


# ---- a change of the limiter

_CHANGES = ("token_s", "tool", "boot", "score", "compute", "publish", "dispatch_s")


@dataclass(frozen=True, slots=True)
class Changed:
    """``seconds``: from the onset until the right verdict stood for good (inf: never); ``step``: of the new regime.

    ``onset``: seconds from the change until it limits the run: until then the trainer consumes the queue.
    """

    config: Config
    field: str
    before: Truth
    after: Truth
    seconds: float
    step: float
    onset: float
    told: list[tuple[float, str]] = field(repr=False, default_factory=list)

    @property
    def limit(self) -> float:
        return max(120.0, 2 * self.step)

    @property
    def judged(self) -> bool:
        """Whether the limiter changes."""
        return not self.before.right & self.after.right


def change_of(seed: int) -> tuple[Config, str, float]:
    """(configuration, field, its new value)."""
    rng = random.Random(seed)
    config = draw(seed, rng.choice(("trainer", "balanced", "trainer", "generator_slots", "tool")))
    config = config.changed(batch=min(config.batch, 128), group=min(config.group, 8))
    what = _CHANGES[seed % len(_CHANGES)]
    step = config.compute + config.overhead
    life = config.tokens * (config.token_s + config.load_s * config.cap / config.engines) + config.boot + config.tool
    if what == "token_s":
        return config, what, config.token_s * rng.uniform(4, 8)
    if what == "compute":
        return config, what, max(config.compute * 4, step * 4)
    if what == "publish":
        return config, what, step * rng.uniform(0.8, 1.5)
    if what == "dispatch_s":
        return config, what, max(step, config.batch * life / config.cap) / config.batch * rng.uniform(2, 3)
    more = rng.uniform(3, 5) * life / (max(1, config.turns - 1) if what == "tool" else 1)
    if what == "tool":
        config = config.changed(turns=max(2, config.turns))
    return config, what, more


def changed(seed: int) -> Changed:
    config, what, value = change_of(seed)
    before, later = truth(config), config.changed(**{what: value})
    later = later.changed(horizon=later.horizon * 2)
    after, old, new = truth(later), step_seconds(config), step_seconds(later)
    at = 14 * old
    run = replace(config, horizon=at + max(12 * new, 600.0), changes=((at, what, value),))
    sim = Sim(run).run()
    told, onset = played(run, sim), _onset(sim.rows, at) if after.top in PRODUCTION else at
    wrong = [one.at for one in told if one.verdict.outcome not in after.right]
    right = [one.at for one in told if one.at > at and one.at > max(wrong, default=0.0)]
    words = [(one.at - at, one.verdict.outcome) for one in told]
    seconds = max(0.0, right[0] - onset) if right else math.inf
    return Changed(run, what, before, after, seconds, new, onset - at, words)


PRODUCTION = ("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound", "curriculum_bound")


def _onset(rows: Sequence[Row], at: float) -> float:
    """When the trainer began to wait: the first batch that was late after the change."""
    for row in rows:
        start = row.end - row.values["trainer_step_seconds"]
        if row.end > at and row.values["trainer_wait_seconds"] >= 0.15 * row.values["trainer_step_seconds"]:
            return max(at, start)
    return at


def step_seconds(config: Config) -> float:
    """Mean of the later half of the steps."""
    rows = Sim(config, watched=False).run().rows
    late = rows[len(rows) // 2 :]
    if not late:
        return config.horizon
    return sum(row.values["trainer_step_seconds"] for row in late) / len(late)


# ---- stalls


@dataclass(frozen=True, slots=True)
class Stalled:
    """``seconds``: from the onset until the verdict reports it (inf: never); ``early``: reported before the fault.

    ``onset``: seconds from the fault until it has an effect. A frozen engine without requests has none, without engines
    the trainer continues while the queue lasts, and a trainer that hangs finishes the open step.
    """

    config: Config
    fault: str
    seconds: float
    limit: float
    early: bool
    onset: float

    @property
    def right(self) -> bool:
        return not self.early and self.seconds <= self.limit


FAULTS = ("killed", "frozen", "hung")
# Seconds after which a stopped trainer continues, as in the recordings, which have steps of a few seconds.
STOPPED_SECONDS = 150.0
# A stop must be reported after a minute, or after as many steps as a verdict needs.
STOP_LIMIT_SECONDS, STOP_LIMIT_STEPS = 60.0, 10.0
# Seconds after which the queue is consumed and production has resumed.
LONG = 24


def stalled(seed: int) -> Stalled:
    config, fault, step, slack = stall_of(seed)
    limit = max(6 * step, 1800.0)
    limit = {"killed": limit / 2 + slack, "frozen": 180.0, "hung": limit + slack}[fault]
    at = 12 * step
    run = replace(config, fault=(at, fault), horizon=at + LONG * step)
    onset = held_up(Sim(run).run(), at, fault)
    run = replace(run, horizon=onset + 1.3 * limit + 200)
    told = played(run, Sim(run).run())
    late = [one.at for one in told if one.verdict.outcome == "stalled"]
    after = [one for one in late if one > at]
    every = told[1].at - told[0].at
    seconds = max(0.0, after[0] - onset) if after else math.inf
    return Stalled(run, fault, seconds, limit + 2 * every, len(late) > len(after), onset - at)


def stopped(seed: int) -> Stalled:
    """A trainer's process that stops for `STOPPED_SECONDS`. ``early``: also when a stall is reported after it."""
    rng = random.Random(seed)
    config = draw(seed, rng.choice(("trainer", "balanced", "generator_slots", "score", "overhead_sync")))
    step = step_seconds(config)
    at, limit = 15 * step, max(STOP_LIMIT_SECONDS, STOP_LIMIT_STEPS * step)
    run = replace(
        config, fault=(at, "stopped"), resumes=max(STOPPED_SECONDS, 2 * limit), changes=(),
        horizon=at + max(STOPPED_SECONDS, 2 * limit) + 15 * step + 2 * limit,
    )  # fmt: skip
    told = [one for one in played(run, Sim(run).run()) if one.verdict.outcome == "stalled"]
    during = [one.at for one in told if at < one.at <= at + run.resumes + limit]
    seconds = during[0] - at if during else math.inf
    return Stalled(run, "stopped", seconds, limit + run.lag + 10.0, len(told) > len(during), 0.0)


def one_dead(seed: int) -> Changed:
    """One engine of two or three dies; its requests begin again on the others."""
    config = draw(seed, random.Random(seed).choice(("trainer", "balanced", "generator_slots", "score")))
    config = config.changed(engines=max(2, config.engines))
    later = config.changed(engines=config.engines - 1)
    before, after, old, new = truth(config), truth(later), step_seconds(config), step_seconds(later)
    at = 14 * old
    run = replace(config, horizon=at + max(14 * new, 300.0), fault=(at, "one_dead"))
    told = played(run, Sim(run).run())
    wrong = [one.at for one in told if one.verdict.outcome not in after.right]
    right = [one.at for one in told if one.at > at and one.at > max(wrong, default=0.0)]
    words = [(one.at - at, one.verdict.outcome) for one in told]
    seconds = right[0] - at if right else math.inf
    return Changed(run, "one_dead", before, after, seconds, new, 0.0, words)


def held_up(sim: Sim, at: float, fault: str) -> float:
    """Time from which the fault has an effect: the first request to a frozen engine, else the last step."""
    last = max([at, *(row.end for row in sim.rows)])
    if fault != "frozen":
        return last
    # The page of an engine that froze while idle may never show a request: then it counts from the last step, too.
    asked = (page.at for page in sim.pages if page.at >= at and any(one[0] + one[1] for one in page.engines if one))
    return next(asked, last)


def stall_of(seed: int) -> tuple[Config, str, float, float]:
    """(configuration, fault, seconds of a step, seconds by which a longer step and a late row may delay it)."""
    rng = random.Random(seed)
    config = draw(seed, rng.choice(("trainer", "balanced", "tool", "generator_slots")))
    config = config.changed(batch=min(config.batch, 64), group=min(config.group, 8))
    step = step_seconds(config)
    return config, FAULTS[seed % 3], step, step + config.lag + between(rng, 60.0, 61.0)
