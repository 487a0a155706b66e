"""Measures what limits a simulated run: the same run is simulated without one limiter at a time."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from bench.verdict.config import Config
from bench.verdict.sim import Row, Sim

# Gains below the first are not worth a change; between the two both outcomes are right ("about 15 %").
BALANCED, CLEARLY = 1.10, 1.22
# The best two are not distinguished where their log gains differ by less than a fifth.
NEAR = 1.2
# A curriculum is uneven, not the limiter, below this where it is not filtered (published: 55 %);
# every synchronous step has a tail, which is worth a change from a third of the step on. Both are conventions: within
# a tenth of them both outcomes are right.
UNEVEN, UNEVEN_BAND = 0.50, 0.05
TAIL, TAIL_BAND = 1.5, 1.1
WARM = 0.3
# (smallest batch, share of the horizon): large batches vary less from step to step, so fewer steps suffice.
SHORT = ((256, 0.5), (128, 0.65), (0, 1.0))
# Gains: the largest one that chance alone produces in a dozen steps; and the smallest one that counts on its own.
LUCK, PLAINLY = 1.04, 1.5
# Multiple of the run's steps that are simulated to distinguish similar gains.
LONG = 3.0

Relief = Callable[[Config], Config]

RELIEFS: dict[str, tuple[str, Relief, Callable[[Config], bool]]] = {
    "trainer": ("trainer_bound", lambda c: c.changed(compute=c.compute / 2, other=c.other / 2), lambda c: not c.sync),
    "overhead": ("overhead_bound", lambda c: c.changed(publish=0.0, checkpoint=0.0, evaluate=0.0), lambda c: True),
    "engines": ("generator_bound", lambda c: c.changed(engines=2 * c.engines), lambda c: not c.sync),
    "decode": (
        "generator_bound", lambda c: c.changed(token_s=c.token_s / 2, load_s=c.load_s / 2), lambda c: not c.sync,
    ),
    "cache": ("generator_bound", lambda c: c.changed(kv_tokens=2 * c.kv_tokens), lambda c: not c.sync),
    "aborts": ("generator_bound", lambda c: c.changed(oversample=0), lambda c: c.oversample > 0),
    "tail": ("generator_bound", lambda c: c.changed(sigma=0.0), lambda c: c.sync),
    "boot": ("sandbox_bound", lambda c: c.changed(boot=0.0), lambda c: c.boot > 0),
    "tool": ("sandbox_bound", lambda c: c.changed(tool=0.0), lambda c: c.tool > 0),
    "score": ("reward_bound", lambda c: c.changed(score=0.0), lambda c: c.score > 0),
    "zero": ("curriculum_bound", lambda c: c.changed(zero=0.0), lambda c: c.zero > 0),
    "gate": ("orchestrator_bound", lambda c: replace(c, policy="none"), lambda c: not c.sync),
    "prompts": ("orchestrator_bound", lambda c: c.changed(dispatch_s=0.0), lambda c: c.dispatch_s > 0),
    "cap": ("orchestrator_bound", lambda c: c.changed(cap=2 * c.cap), lambda c: not c.sync),
}  # fmt: skip
"""name -> (outcome, the run without it, whether the run has it)."""


@dataclass(frozen=True, slots=True)
class Truth:
    """``gains``: of each removed limiter; ``right``: outcomes that count as right; ``top``: the best of them."""

    gains: dict[str, float]
    right: frozenset[str]
    top: str

    def __str__(self) -> str:
        best = sorted(self.gains.items(), key=lambda item: -item[1])[:5]
        return f"{'|'.join(sorted(self.right))} ({', '.join(f'{name} {gain:.2f}' for name, gain in best)})"


def rate(rows: list[Row]) -> float:
    """Useful samples per second of whole steps after the warm-up."""
    ends = [row.end for row in rows]
    late = [n for n, end in enumerate(ends) if end >= WARM * ends[-1] and n]
    if len(late) < 2:
        return sum(row.useful for row in rows) / max(ends[-1], 1e-9) if rows else 0.0
    return sum(rows[n].useful for n in late[1:]) / (ends[late[-1]] - ends[late[0]])


def truth(config: Config) -> Truth:
    """The truth of a run that does not change. Each removal is measured over as many steps as the original run has."""
    short = next(short for least, short in SHORT if config.batch >= least) * config.horizon
    gains = _gains(config.changed(horizon=short), [name for name, (_, _, has) in RELIEFS.items() if has(config)])
    # Over a dozen steps chance changes a gain by some per cent, so the best candidates are measured over many more.
    return judged(config, gains | _gains(config.changed(horizon=LONG * config.horizon), contend(config, gains)))


def _gains(config: Config, names: Collection[str]) -> dict[str, float]:
    """Useful samples per second without each limiter, divided by those with all limiters."""
    if not names:
        return {}
    run = Sim(config, watched=False).run()
    base, most, idle = max(rate(run.rows), 1e-9), max(len(run.rows), 2), _idle(run)
    without = {name: Sim(RELIEFS[name][1](config), watched=False, most=most) for name in names if name not in idle}
    return {name: rate(without[name].run().rows) / base if name in without else 1.0 for name in names}


def contend(config: Config, gains: Mapping[str, float]) -> list[str]:
    """Limiters with similar gains; none where one outcome gains far more than any other."""
    best = max(gains.values(), default=1.0)
    found = [name for name, gain in gains.items() if gain >= LUCK and 2 * math.log(gain) >= math.log(best)]
    clear = len({RELIEFS[name][0] for name in found}) == 1 and best >= PLAINLY
    return [] if clear and not any(_soft(config, name, gains[name]) for name in found) else found


def _idle(run: Sim) -> set[str]:
    """Limiters without any effect: without them the run is identical."""
    crowded = any(one.crowded for one in run.engines)
    return ({"gate"} if not run.held_once else set()) | ({"cache"} if not crowded else set())


def judged(config: Config, gains: dict[str, float]) -> Truth:
    """The outcomes that are right."""
    firm = {name: gain for name, gain in gains.items() if not _soft(config, name, gain)}
    best = max(firm.values(), default=1.0)
    # More rollouts at once help against any slowness: what else gains most may be named as well.
    actors = {name: gain for name, gain in firm.items() if name != "cap"}
    right = {outcome for gains in (firm, actors) if max(gains.values(), default=1.0) >= BALANCED
             for outcome in _near(gains)}  # fmt: skip
    # Engines that gain more from twice the rollouts than from twice the engines have room. No setting makes them decode
    # twice as fast, so that gain does not outweigh the number in flight.
    if firm.get("cap", 1.0) >= max(BALANCED, firm.get("engines", 1.0)):
        right.add("orchestrator_bound")
    if best < CLEARLY:
        right.add("balanced")
    # A general remedy, an uneven curriculum or a common tail with the largest gain may be named, but need not be.
    named = {name: gain for name, gain in gains.items() if name not in firm and not _common(config, name, gain)}
    right |= {RELIEFS[name][0] for name, gain in named.items() if gain >= max(CLEARLY, best)}
    top = RELIEFS[max(firm, key=lambda name: firm[name])][0] if best >= _middle() else "balanced"
    return Truth(gains, frozenset(right), top)


def _middle() -> float:
    return math.sqrt(BALANCED * CLEARLY)


def _soft(config: Config, name: str, gain: float) -> bool:
    """Reliefs that name no actor, which help against any slowness: an uneven curriculum, a common tail."""
    uneven = name == "zero" and not config.filtered and config.zero < UNEVEN + UNEVEN_BAND
    return uneven or (name == "tail" and gain < TAIL * TAIL_BAND)


def _common(config: Config, name: str, gain: float) -> bool:
    """Whether the tail is too short to be a limiter."""
    return name == "tail" and gain < TAIL / TAIL_BAND


def _near(gains: dict[str, float]) -> Iterator[str]:
    best = math.log(max(gains.values()))
    for name, gain in gains.items():
        if gain > 1.0 and math.log(gain) * NEAR >= best:
            yield RELIEFS[name][0]
