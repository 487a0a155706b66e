"""What holds a simulated run back, measured: the same run, relieved of one thing at a time. Nothing is asserted."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.verdict.config import Config
from bench.verdict.sim import Row, Sim

# Below that nothing is worth a change; between the two either word is right ("about 15 %").
BALANCED, CLEARLY = 1.10, 1.22
# The best two are not told apart where their log gains differ by less than a fifth.
NEAR = 1.2
# A curriculum is uneven, not the limiter, below this where it is not filtered (DESIGN section 5, the published 55 %).
UNEVEN = 0.50
# Every synchronous step has a tail: a third of the step lost is where it is worth a change (DESIGN section 5).
TAIL = 1.5
WARM = 0.3
# A step of many samples is like the next one: fewer of them tell as much.
LARGE, SHORT = 128, 0.65

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
    """``gains``: of each relief; ``right``: outcomes that may be said; ``top``: the best of them."""

    gains: dict[str, float]
    right: frozenset[str]
    top: str

    def __str__(self) -> str:
        best = sorted(self.gains.items(), key=lambda item: -item[1])[:5]
        return f"{'|'.join(sorted(self.right))} ({', '.join(f'{name} {gain:.2f}' for name, gain in best)})"


def rate(rows: list[Row], horizon: float) -> float:
    """Useful samples per second of whole steps after the warm-up."""
    ends = [row.end for row in rows]
    late = [n for n, end in enumerate(ends) if end >= WARM * horizon and n]
    if len(late) < 2:
        return sum(row.useful for row in rows) / max(horizon, 1e-9)
    return sum(rows[n].useful for n in late[1:]) / (ends[late[-1]] - ends[late[0]])


def truth(config: Config) -> Truth:
    """Of one that does not change."""
    if config.batch >= LARGE:
        config = config.changed(horizon=SHORT * config.horizon)
    base = rate(Sim(config, watched=False).run().rows, config.horizon)
    gains = {
        name: rate(Sim(relieve(config), watched=False).run().rows, config.horizon) / max(base, 1e-9)
        for name, (_, relieve, has) in RELIEFS.items() if has(config)
    }  # fmt: skip
    return judged(config, gains)


def judged(config: Config, gains: dict[str, float]) -> Truth:
    """Which words are right."""
    common = gains.get("tail", TAIL) < TAIL
    firm = {name: gain for name, gain in gains.items() if not _soft(config, name) and not (common and name == "tail")}
    best = max(firm.values(), default=1.0)
    right = set(_near(firm)) if best >= BALANCED else set()
    if best < CLEARLY:
        right.add("balanced")
    # A remedy, or an unevenness, that would gain most may be named, and need not be.
    soft = {name: gain for name, gain in gains.items() if name not in firm}
    right |= {RELIEFS[name][0] for name, gain in soft.items() if gain >= max(CLEARLY, best)}
    top = RELIEFS[max(firm, key=lambda name: firm[name])][0] if best >= _middle() else "balanced"
    return Truth(gains, frozenset(right), top)


def _middle() -> float:
    return math.sqrt(BALANCED * CLEARLY)


def _soft(config: Config, name: str) -> bool:
    """More rollouts at once cure whatever makes each of them slow: no actor. So does a curriculum that is uneven."""
    return name == "cap" or (name == "zero" and not config.filtered and config.zero < UNEVEN)


def _near(gains: dict[str, float]) -> Iterator[str]:
    best = math.log(max(gains.values()))
    for name, gain in gains.items():
        if gain > 1.0 and math.log(gain) * NEAR >= best:
            yield RELIEFS[name][0]
