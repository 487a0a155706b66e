"""Records that the simulation of slime passes to its writers. Seconds since the run began."""

from collections.abc import Iterator
from dataclasses import dataclass

from server.demo.records import Groups, Means, Watcher
from server.demo.rollouts import Group, Rollout


@dataclass(frozen=True)
class Generation(Groups):
    """One rollout in slime's sense: the groups that were complete first, and those aborted then."""

    number: int
    begun: float
    ended: float
    # The policy version that made it: no weights are sent during generation.
    version: int
    groups: tuple[Group, ...]
    aborted: tuple[Group, ...]

    def dropped(self) -> Iterator[Rollout]:
        return (rollout for group in self.aborted for rollout in group.rollouts)


@dataclass(frozen=True)
class SlimeTiming:
    """The parts of one step, which begins with the end of the training before: they add up to it."""

    wait: float
    update: float
    preprocess: float
    logprob: float
    train: float

    @property
    def compute(self) -> float:
        """slime's `train`: old log-probabilities, forward and backward."""
        return self.logprob + self.train

    @property
    def total(self) -> float:
        return self.wait + self.update + self.preprocess + self.compute


@dataclass(frozen=True)
class SlimeStep:
    """Trained on `generation`; `version`: what was sent to the engines last."""

    generation: Generation
    start: float
    end: float
    timing: SlimeTiming
    version: int
    means: Means
    generation_tokens: int


class SlimeObserver(Watcher):
    """Writers override the calls that they need. Calls come in the order of event time."""

    def started(self, now: float) -> None: ...

    def dispatched(self, now: float, rollout: Rollout) -> None: ...

    def generated(self, generation: Generation) -> None: ...

    def training(self, now: float, generation: Generation, timing: SlimeTiming) -> None: ...

    def trained(self, step: SlimeStep) -> None: ...

    def updating(self, now: float) -> None: ...

    def updated(self, now: float, version: int) -> None: ...
