"""Records that the simulation of verl passes to its writers. Seconds since the run began."""

from dataclasses import dataclass

from server.demo.records import Groups, Means, Watcher
from server.demo.rollouts import Group


@dataclass(frozen=True)
class VerlTiming:
    """The parts of one synchronous step, one after the other: they add up to it. `generation` holds waking up."""

    generation: float
    reward: float
    logprob: float
    advantage: float
    actor: float
    weights: float
    checkpoint: float

    @property
    def compute(self) -> float:
        return self.logprob + self.advantage + self.actor

    @property
    def total(self) -> float:
        return self.generation + self.reward + self.compute + self.weights + self.checkpoint


@dataclass(frozen=True)
class VerlStep(Groups):
    """One step. `bubble`: idle share of the generation's engine time: 1 - mean running / most running."""

    number: int
    groups: tuple[Group, ...]
    start: float
    end: float
    timing: VerlTiming
    means: Means
    bubble: float
    generation_tokens: int


class VerlObserver(Watcher):
    """Writers override the calls that they need. Calls come in the order of event time."""

    def started(self, now: float) -> None: ...

    def stepped(self, step: VerlStep) -> None: ...
