"""What the simulation of verl tells those who write it down. Seconds since the run began."""

from collections.abc import Iterator
from dataclasses import dataclass

from server.demo.records import Means, Watcher
from server.demo.rollouts import Group, Rollout


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
class VerlStep:
    """One step. `bubble`: share of the generation's engine time that stood empty: 1 - mean running / most running."""

    number: int
    groups: tuple[Group, ...]
    start: float
    end: float
    timing: VerlTiming
    means: Means
    bubble: float
    generation_tokens: int

    def rollouts(self) -> Iterator[Rollout]:
        return (rollout for group in self.groups for rollout in group.rollouts)

    @property
    def response_tokens(self) -> int:
        return sum(rollout.response_tokens for rollout in self.rollouts())

    @property
    def total_tokens(self) -> int:
        """Prompt and response: what the trainer computes on."""
        return sum(rollout.group.prompt_tokens + rollout.response_tokens for rollout in self.rollouts())

    def group_ratio(self, *outcomes: str) -> float:
        """Share of groups whose outcome (`all`, `none`, `some`) is one of these."""
        return sum(group.outcome in outcomes for group in self.groups) / len(self.groups)


class VerlObserver(Watcher):
    """Those who write things down override what they need. Calls come in the order of event time."""

    def started(self, now: float) -> None: ...

    def stepped(self, step: VerlStep) -> None: ...
