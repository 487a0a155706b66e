"""Reward that does not rise: hand-made series, and how often noise is mistaken for one or the other."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from server.signals.model import Answer, Unknown, Value, View, memory_json
from server.signals.training_health import MOST_BLOCKS, reward_plateau_steps
from server.signals.window import StepBook

T0 = 900_000.0
# Spread 0.5 over rollouts: a rise of 0.05 over a window is the least that counts.
SPREAD = 0.5
WOBBLE = (0.01, -0.012, 0.004, -0.008, 0.011, -0.005, 0.0)


def played(rewards: Iterable[float], life: int = 0, first: int = 1, memory: Any = None) -> tuple[Any, Answer]:
    steps, answer, live = StepBook(), Unknown(""), memory
    for number, reward in enumerate(rewards, first):
        ts = T0 + 60.0 * number + 1e6 * life
        steps.put("trainer", life, number, ts, {("reward_mean", ()): reward, ("reward_std", ()): SPREAD})
        assert reward_plateau_steps.remember is not None
        memory, answer = reward_plateau_steps.remember(memory, View(ts, "async", "running", {}, steps=steps))
        memory = json.loads(memory_json(memory))  # as after a restart with every step
        live, other = reward_plateau_steps.remember(live, View(ts, "async", "running", {}, steps=steps))
        assert (other, json.loads(memory_json(live))) == (answer, memory)  # as in one process
    return memory, answer


def flat_for(answer: Answer) -> float:
    assert isinstance(answer, (list, tuple)), answer
    return float(answer[0].value)


def wobbling(count: int, level: Callable[[int], float]) -> list[float]:
    return [level(step) + WOBBLE[step % 7] for step in range(count)]


@pytest.mark.parametrize(
    ("count", "level", "steps"),
    [
        (45, lambda _: 0.6, 40),
        (60, lambda _: 0.6, 60),
        # 61 steps and more are 30 blocks of two and more.
        (120, lambda _: 0.6, 120),
        (60, lambda step: 0.3 + 0.004 * step, 0),
        # Rises by 0.3 over 60 steps, then stands.
        (120, lambda step: 0.3 + 0.005 * min(60, step), 60),
        # Slow, but over 120 steps it is 0.12 and clear: shorter windows, which show less, do not count.
        (120, lambda step: 0.3 + 0.001 * step, 0),
        # A fall is no rise.
        (60, lambda step: 0.6 - 0.002 * step, 60),
    ],
)  # fmt: skip
def test_for_how_long_it_has_not_risen(count: int, level: Callable[[int], float], steps: int) -> None:
    assert flat_for(played(wobbling(count, level))[1]) == steps


def test_before_thirty_steps_nothing_is_said() -> None:
    assert played([0.6] * 29)[1] == Unknown("29 of the 30 steps needed so far; no action needed")
    assert played([0.6] * 30)[1] == [Value(30.0, why="reward +0 over 30 steps")]
    assert played([])[1] == Unknown("")


def test_a_resumed_run_plays_steps_again_and_memory_is_bounded() -> None:
    memory, _ = played(wobbling(50, lambda step: 0.3 + 0.01 * step))
    # Steps 31 to 50 are played again, and rise no more.
    again, answer = played(wobbling(30, lambda _: 0.6), life=1, first=31, memory=memory)
    assert flat_for(answer) == 30
    assert len(again["blocks"]) <= MOST_BLOCKS
    assert len(json.dumps(played(wobbling(500, lambda _: 0.6), memory=again, life=2, first=61)[0])) < 4000


# Of 20 seeded runs of 120 steps each, noise of 0.03 a step: share that is flat for 50 steps at the end.
@pytest.mark.parametrize(
    ("rise", "low", "high"),
    [
        (0.0, 0.85, 1.0),
        (0.002, 0.0, 0.0),
        # Twice the least rise that counts, over 100 steps.
        (0.001, 0.0, 0.03),
    ],
)
def test_how_often_noise_decides(rise: float, low: float, high: float) -> None:
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        found.append(flat_for(played(0.3 + rise * step + rng.gauss(0, 0.03) for step in range(120))[1]) >= 50)
    assert low <= sum(found) / len(found) <= high
