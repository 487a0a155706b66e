"""Makes changes in simulated runs: the first advice, and every lever at its best value, from the same minute on.

The worlds are those of the verdict's evaluation with laws that the advice does not have: engines whose time per token
grows with a hidden power of the requests, trainers that scale with a hidden power of their GPUs, stalls and tails.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.verdict.config import Config, _of_sizes, between
from bench.verdict.feed import played
from bench.verdict.sim import Row, Sim
from server.verdict.model import Advice

KINDS = (
    "generator_slots", "generator_kv", "generator_latency", "generator_latency", "generator_tail", "boot", "tool",
    "score", "scorer", "zero_filtered", "zero_trained", "trainer", "trainer", "overhead_sync", "overhead_other", "gate",
    "prompts", "balanced",
)  # fmt: skip
"""What worlds are drawn around."""

# Seconds of a step, so that half an hour holds several.
STEP_SECONDS = (10.0, 240.0)
# Steps before the advice is taken, and least number measured after it.
WARM_STEPS, LEAST_STEPS = 14.0, 12.0
MEASURED_SECONDS = 1800.0
# Share of the measured time in which the change takes hold.
SETTLING = 0.2
# Engines of published runs and recordings slow down less, or more, than in proportion to their requests.
BENDS = (0.6, 1.4)
# A trainer's speed over its GPUs, of published runs.
POWERS = (0.5, 1.0)


@dataclass(frozen=True, slots=True)
class World:
    """A run, when its advice is taken (seconds), and the hidden power of its trainer's speed over its GPUs."""

    config: Config
    at: float
    power: float


def world(seed: int) -> World:
    """Draws the world of a seed."""
    rng = random.Random(seed * 31 + 7)
    kind = KINDS[seed % len(KINDS)]
    group = rng.choice((4, 8))
    sizes = {"engines": rng.randint(2, 4), "batch": max(4 * group, rng.choice((32, 64, 128))), "group": group}
    step = between(rng, *STEP_SECONDS)
    config = _of_sizes(rng, seed, kind, sizes, step)
    bend = rng.uniform(*BENDS)
    # The same slowdown at today's requests, reached along another curve.
    running = max(1.0, config.cap / config.engines)
    each = rng.choice((1, 2, 4, 8))
    every = rng.uniform(30.0, 200.0) if rng.random() < 0.25 else 0.0
    config = replace(
        config, bend=bend, load_s=config.load_s * running ** (1.0 - bend), generator_gpus=each * config.engines,
        trainer_gpus=8 * rng.randint(1, 4), burst_every=every, burst=every * rng.uniform(0.02, 0.15),
    )  # fmt: skip
    steps = max(step, config.compute + config.overhead)
    at = WARM_STEPS * steps + 60.0
    return World(replace(config, horizon=at + max(MEASURED_SECONDS, LEAST_STEPS * steps)), at, rng.uniform(*POWERS))


# ---- levers


Fields = Mapping[str, float]
"""Field of the configuration -> its value after a change."""


def fields_of(of: World, advice: Advice) -> Fields | None:
    """Returns what an advice changes; None: the simulator has no such lever."""
    factor = advice.after / advice.before if advice.before and advice.after else None
    return made(of, advice.lever, factor, advice.after)


def made(of: World, lever: str, factor: float | None, value: float | None) -> Fields | None:
    """Returns the fields of a lever that changes by a factor, or to a value."""
    c = of.config
    scaled: Any = factor or 1.0
    if lever.startswith("gpu_split"):
        return _split(of, lever, scaled)
    table: dict[str, Fields] = {
        "rollouts_in_flight": {"cap": round(c.cap * scaled)},
        "max_num_seqs": {"slots": round(value or c.slots)},
        "kv_cache": {"kv_tokens": c.kv_tokens * (factor or 2.0)},
        "engines": {"engines": round(c.engines * scaled)},
        "trainer_gpus": {"compute": c.compute / 2**of.power},
        "max_staleness": {"bound": value if value is not None else c.bound + 1},
        "group_filter": {"filtered": 1.0},
        "curriculum": {"zero": value if value is not None else c.zero / 2},
        "oversampling": {"oversample": round(c.oversample * scaled)},
        "warm_pool": {"boot": 0.1 * c.boot},
        "sandbox_limit": {"boot": 0.5 * c.boot},
        "tool_workers": {"tool": 0.5 * c.tool},
        "reward_workers": {"score": 0.5 * c.score},
        "checkpoint_interval": {"every": c.every * 4},
        "eval_interval": {"evaluate": c.evaluate / 4},
        "weight_sync_mode": {"publish": 0.05 * c.publish, "pause": 0.0},
    }
    return table.get(lever)


def _split(of: World, lever: str, factor: float) -> Fields | None:
    c = of.config
    taking, giving = (
        (c.generator_gpus, c.trainer_gpus) if lever.endswith("generator") else (c.trainer_gpus, c.generator_gpus)
    )
    moved = round(taking * (factor - 1.0))
    if not 0 < moved < giving:
        return None
    generator = c.generator_gpus + (moved if lever.endswith("generator") else -moved)
    trainer = c.trainer_gpus + c.generator_gpus - generator
    engines = max(1, round(c.engines * generator / c.generator_gpus))
    return {"engines": engines, "compute": c.compute * (c.trainer_gpus / trainer) ** of.power}


def options(of: World) -> Iterator[tuple[str, str, Fields]]:
    """Every free lever of the world at several values: (lever, name of the option, fields)."""
    c = of.config
    for factor in (1.5, 2.0, 3.0, 4.0, 6.0):
        yield "rollouts_in_flight", f"in flight x{factor:g}", {"cap": round(c.cap * factor)}
    for factor in (1.5, 2.0, 4.0):
        yield "max_num_seqs", f"seats x{factor:g}", {"slots": round(c.slots * factor)}
    yield "kv_cache", "cache x2", {"kv_tokens": 2 * c.kv_tokens}
    yield "weight_sync_mode", "publish beside", {"publish": 0.05 * c.publish, "pause": 0.0}
    yield from _splits(of)
    yield from _that_apply(c)


def _splits(of: World) -> Iterator[tuple[str, str, Fields]]:
    c = of.config
    for lever, giving, taking in (
        ("gpu_split_generator", c.trainer_gpus, c.generator_gpus),
        ("gpu_split_trainer", c.generator_gpus, c.trainer_gpus),
    ):
        for share in (0.125, 0.25, 0.5):
            found = _split(of, lever, (taking + round(giving * share)) / taking)
            if found is not None:
                yield lever, f"{lever} {share:g}", found


def _that_apply(c: Config) -> Iterator[tuple[str, str, Fields]]:
    """Levers that only some worlds have."""
    bounded = c.policy in ("gate", "drop")
    table: tuple[tuple[bool, str, str, Fields], ...] = (
        (bounded, "max_staleness", "bound +1", {"bound": c.bound + 1}),
        (bounded, "max_staleness", "bound +2", {"bound": c.bound + 2}),
        (bool(c.zero) and not c.filtered, "group_filter", "filter", {"filtered": 1.0}),
        (bool(c.zero) and c.filtered, "curriculum", "zero / 2", {"zero": c.zero / 2}),
        (bool(c.oversample), "oversampling", "oversample / 2", {"oversample": c.oversample // 2}),
        (bool(c.tool), "tool_workers", "tool / 2", {"tool": c.tool / 2}),
        (bool(c.score), "reward_workers", "score / 2", {"score": c.score / 2}),
        (bool(c.checkpoint), "checkpoint_interval", "checkpoints / 4", {"every": c.every * 4}),
        (bool(c.evaluate), "eval_interval", "evaluations / 4", {"evaluate": c.evaluate / 4}),
    )
    yield from ((lever, name, fields) for applies, lever, name, fields in table if applies)


# ---- measuring


def rate(rows: list[Row], of: World) -> float:
    """Useful samples per second of the steps that ended after the change took hold."""
    since = of.at + SETTLING * (of.config.horizon - of.at)
    within = [row for row in rows if row.end >= since]
    if len(within) < 2:
        return 0.0
    return sum(row.useful for row in within[1:]) / (within[-1].end - within[0].end)


def measured(of: World, fields: Fields) -> float:
    """Useful samples per second with a change made when the advice is taken."""
    changes = tuple((of.at, name, value) for name, value in fields.items())
    return rate(Sim(replace(of.config, changes=changes), watched=False).run().rows, of)


@dataclass(frozen=True, slots=True)
class Proof:
    """One world: what was advised first, and what each change brought.

    Attributes:
        gain: measured with the first advice; 1 without any.
        best: largest measured gain of a free change; `option`: which.
    """

    seed: int
    kind: str
    verdict: str
    advice: Advice | None
    all_advice: tuple[Advice, ...]
    gain: float
    best: float
    option: str
    gains: Mapping[str, float]

    @property
    def within(self) -> bool:
        """Did the first advice bring 80 % of what the best free change brings, but for noise?"""
        return self.gain - 1 >= 0.8 * (self.best - 1) - NOISE

    @property
    def calibrated(self) -> bool:
        """Did the measured gain lie within the stated range?"""
        return self.advice is None or self.advice.gain is None or (
            self.advice.gain[0] <= self.gain <= self.advice.gain[2]
        )  # fmt: skip

    @property
    def harmful(self) -> bool:
        return self.gain < HARMFUL


# Half hours of a run that does not change differ by about so much.
NOISE = 0.05
HARMFUL = 0.98


def prove(seed: int) -> Proof:
    """Takes the first advice of a world, makes it, and makes every other free change."""
    of = world(seed)
    sim = Sim(replace(of.config, horizon=of.at)).run()
    verdict = played(replace(of.config, horizon=of.at), sim)[-1].verdict
    advised = tuple(one for one in verdict.advice if one.gain is not None)
    base = max(measured(of, {}), 1e-9)
    gains = {name: measured(of, fields) / base for _, name, fields in options(of)}
    # A change that costs money comes after all that do not.
    first = next((one for one in advised if fields_of(of, one) is not None), None)
    gain = measured(of, fields_of(of, first) or {}) / base if first is not None else 1.0
    free = gain if first is not None and first.cost != "money" else 1.0
    option = max(gains, key=lambda name: gains[name])
    best = max(gains[option], free, 1.0)
    return Proof(
        seed, of.config.kind, f"{verdict.outcome}/{verdict.cause}", first, advised, gain, best,
        option if gains[option] >= max(free, 1.0) else "the advice", gains,
    )  # fmt: skip
