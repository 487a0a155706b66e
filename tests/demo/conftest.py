"""Simulated runs, shared by the tests: each is a fraction of a second, but there are many tests."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from demo.cluster import Cluster
from demo.faults import Fault
from demo.process import Demo
from demo.records import Observer, Step
from demo.scenarios import SCENARIOS

START = 1_795_000_000.0  # any epoch; not a whole multiple of a step or tick
SEEDS = (1, 2, 3)
# The second scenario of a file whose databases have a scenario each: `make test-long` looks at it.
SECOND_IS_LONG = pytest.mark.parametrize(
    "store_url",
    [
        pytest.param("sqlite", marks=pytest.mark.sqlite),
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long]),
    ],
    indirect=True,
)
# One seed is simulated at every run of the suite, the others by `make test-long`.
EACH_SEED = pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(n, marks=pytest.mark.long) for n in SEEDS[1:])])
# The scenarios of prime-rl and vLLM; and those whose rollouts are one request each, from dispatch to verifier.
PRIME = [name for name, scenario in SCENARIOS.items() if not (scenario.slime or scenario.verl or scenario.agents)]
# Those of one stack that differ in kind; the others differ from them in numbers alone.
BASE = ("healthy", "generator-bound", "gb300-sandbox-wall")
MATH = [name for name in PRIME if SCENARIOS[name].sandboxes is None]


class Recorder(Observer):
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def stepped(self, step: Step) -> None:
        self.steps.append(step)


@lru_cache(maxsize=8)  # each is 60 MB; a file looks at every scenario again and again
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

    def make(scenario: str = "healthy", seed: int = 1, faults: Sequence[Fault] = ()) -> Demo:
        demo = Demo(scenario, seed, tmp_path / str(len(made)), START, faults=faults)
        made.append(demo)
        return demo

    yield make
    for demo in made:
        demo.close()
