"""verl's synchronous trainer (0.9.1: trainer/ppo/v1): generator and trainer alternate on the same GPUs.

The whole batch is requested at once, and the trainer waits for the last answer; then the engines sleep until the
weights are updated. Nothing overlaps, so there is no queue and nothing is ever stale.
"""

from collections.abc import Iterable, Sequence

from server.demo.engine_stats import EngineStats
from server.demo.faults import Fault, timeline
from server.demo.fleet import BatchFleet
from server.demo.rollouts import Group, Rollout
from server.demo.scenarios import Scenario
from server.demo.verl_records import VerlObserver, VerlStep, VerlTiming


class VerlCluster(BatchFleet):
    """See `server.demo.event_time`."""

    def __init__(self, scenario: Scenario, seed: int, faults: Sequence[Fault] = ()) -> None:
        assert scenario.verl is not None
        super().__init__(scenario, seed, faults, EngineStats)
        self.plan = scenario.verl
        self.number = 0
        self.observers: list[VerlObserver] = []
        self._groups: list[Group] = []
        self._start, self._left = 0.0, 0

    def _begin(self) -> None:
        self.agenda.plan(0.0, self._next_step)
        timeline(self.faults, self.agenda, self._befall, 0.0)

    # -- generation --------------------------------------------------------------------------------------------

    def _next_step(self, now: float) -> None:
        self.number, self._start = self.number + 1, now
        self.agenda.plan(now + self._around(self.plan.wake_seconds, 0.1), self._generate)

    def _generate(self, now: float) -> None:
        self._groups, self._left = [], self.scenario.batch_samples
        for engine in self.engines:
            engine.is_asleep = engine.is_dead
        for _ in range(self.scenario.batch_groups):
            engine = self._idlest()
            group = self._tasks.group(self.number - 1, engine.index)
            self._groups.append(group)
            for _ in range(group.size):
                engine.submit(self._tasks.rollout(group, now), now)

    def _unanswered(self) -> Iterable[Group]:
        return self._groups

    def _answered(self, rollout: Rollout, now: float) -> None:
        self._left -= 1
        if not self._left:
            self._generated(now)

    def _generated(self, now: float) -> None:
        """After the last answer the engines release their memory, and the trainer does the rest of the step."""
        running = sum(engine.stats.running_seconds for engine in self.engines) - self._integrals_before[0]
        seconds = now - self._groups[0].rollouts[0].dispatched
        bubble = 1 - running / (self.scenario.batch_samples * seconds)
        for engine in self.engines:
            engine.is_asleep = True
        timing = self._draw(now - self._start)
        for group in self._groups:
            for rollout in group.rollouts:
                rollout.reward, rollout.scored = self._tasks.score(rollout), now + timing.reward
            group.scored, group.completed = group.size, now + timing.reward
        groups = tuple(self._groups)
        self.agenda.plan(self._start + timing.total, lambda at: self._stepped(groups, timing, bubble, at))

    # -- training ----------------------------------------------------------------------------------------------

    def _draw(self, generation: float) -> VerlTiming:
        """Draws everything of the step now, so that later events cannot change it."""
        s, plan = self.scenario, self.plan
        tokens = sum(one.group.prompt_tokens + one.response_tokens for group in self._groups for one in group.rollouts)
        seconds = self._around(tokens / s.train_tokens_per_second, s.compute_noise)
        saves = self.number % s.checkpoint_every == 0
        return VerlTiming(
            generation=generation,
            reward=self._around(plan.reward_seconds, 0.15) * self._conditions.scoring,
            logprob=seconds * plan.logprob_share,
            advantage=self._around(plan.advantage_seconds, 0.1),
            actor=seconds * (1 - plan.logprob_share),
            weights=self._around(s.broadcast_seconds, 0.08) * self._conditions.sync,
            checkpoint=self._around(s.checkpoint_seconds, 0.1) if saves else 0.0,
        )

    def _stepped(self, groups: tuple[Group, ...], timing: VerlTiming, bubble: float, now: float) -> None:
        if self._hangs:
            return
        for engine in self.engines:
            engine.sync(now)
        tokens = sum(engine.generated_at(now) for engine in self.engines)
        means = self._means(self._start, now)
        step = VerlStep(self.number, groups, self._start, now, timing, means, bubble, tokens)
        for observer in self.observers:
            observer.stepped(step)
        self._next_step(now)
