"""Simulated runs, shared by the tests: each is a fraction of a second, but there are many tests."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from server.demo.cluster import Cluster
from server.demo.process import Demo
from server.demo.records import Observer, Step
from server.demo.scenarios import SCENARIOS

START = 1_795_000_000.0  # any epoch; not a whole multiple of a step or tick
SEEDS = (1, 2, 3)
# The scenarios whose rollouts are one request each, from dispatch to verifier.
MATH = [name for name, scenario in SCENARIOS.items() if scenario.sandboxes is None]


class Recorder(Observer):
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def stepped(self, step: Step) -> None:
        self.steps.append(step)


@cache
def simulated(scenario: str, seed: int, seconds: float) -> tuple[Cluster, tuple[Step, ...]]:
    """A cluster after `seconds`, and its steps. Shared: look, do not touch."""
    cluster = Cluster(SCENARIOS[scenario], seed)
    recorder = Recorder()
    cluster.observers.append(recorder)
    cluster.advance(seconds)
    return cluster, tuple(recorder.steps)


@pytest.fixture
def make_demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Demos in this process, closed at the end; each with a folder of its own."""
    made: list[Demo] = []

    def make(scenario: str = "healthy", seed: int = 1) -> Demo:
        made.append(Demo(scenario, seed, tmp_path / str(len(made)), START))
        return made[-1]

    yield make
    for demo in made:
        demo.close()
