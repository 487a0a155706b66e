"""verl's synchronous trainer (0.9.1: trainer/ppo/v1), generator and trainer on the same GPUs, taking turns.

The whole batch is asked for at once and waited for to the last answer; then the engines sleep until the weights are
new. Nothing overlaps, so there is no queue and nothing is ever stale.
"""

from collections.abc import Sequence
from random import Random

from server.demo.engine import Engine
from server.demo.event_time import EventTime, Looker
from server.demo.events import Agenda
from server.demo.faults import Conditions, Fault, timeline
from server.demo.records import Means
from server.demo.rollouts import Group, Rollout, TaskSet
from server.demo.scenarios import Scenario
from server.demo.verl_records import VerlObserver, VerlStep, VerlTiming


class VerlCluster(EventTime):
    """See `server.demo.event_time`."""

    def __init__(self, scenario: Scenario, seed: int, faults: Sequence[Fault] = ()) -> None:
        assert scenario.verl is not None
        self.scenario, self.plan = scenario, scenario.verl
        self.number = 0
        self.faults = (*(scenario.faults or ()), *faults)
        self.agenda = Agenda()
        self.engines = [Engine(index, scenario, self._answered) for index in range(scenario.engines)]
        self.observers: list[VerlObserver] = []
        self._tasks, self._noise = TaskSet(scenario, seed), Random(f"{seed}:trainer")
        self._conditions = self._tasks.conditions = Conditions()
        self._groups: list[Group] = []
        self._start, self._left, self._hangs = 0.0, 0, False
        self._integrals_before = self._integrals()

    def _lookers(self) -> Sequence[Looker]:
        return self.observers

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
            engine = min(self._alive(), key=lambda engine: engine.load)
            group = self._tasks.group(self.number - 1, engine.index)
            self._groups.append(group)
            for _ in range(group.size):
                engine.submit(self._tasks.rollout(group, now), now)

    def _answered(self, rollout: Rollout, now: float) -> None:
        self._left -= 1
        if not self._left:
            self._generated(now)

    def _generated(self, now: float) -> None:
        """The last answer is there: the engines give up their memory, and the trainer does the rest of the step."""
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
        """Everything of the step is drawn here, so that nothing that happens meanwhile can change it."""
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

    def _around(self, seconds: float, spread: float) -> float:
        return seconds * self._noise.lognormvariate(0.0, spread)

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

    def _means(self, start: float, end: float) -> Means:
        """Time-weighted means over the step. There is no buffer."""
        before, self._integrals_before = self._integrals_before, self._integrals()
        running, waiting, kv = (
            (now - then) / (end - start) for now, then in zip(self._integrals_before, before, strict=True)
        )
        usage = kv / (self.scenario.kv_tokens * len(self.engines))
        return Means(0.0, running, waiting, usage, running + waiting)

    def _integrals(self) -> tuple[float, float, float]:
        stats = [engine.stats for engine in self.engines]
        return (
            sum(stat.running_seconds for stat in stats),
            sum(stat.waiting_seconds for stat in stats),
            sum(stat.kv_seconds for stat in stats),
        )

    # -- what breaks -------------------------------------------------------------------------------------------

    def _alive(self) -> list[Engine]:
        return [engine for engine in self.engines if not engine.is_dead] or self.engines[-1:]

    def _befall(self, kind: str, now: float) -> None:
        working = [engine for engine in self._alive() if not (engine.is_dead or engine.is_frozen)]
        if kind == "trainer-hang":
            self._hangs = True
        elif kind == "engine-freeze" and working:
            working[0].freeze(now)
        elif kind == "engine-crash" and not self._alive()[0].is_dead:
            self._crash(self._alive()[0], now)
        self._conditions.befall(kind, now)

    def _crash(self, dead: Engine, now: float) -> None:
        """The load balancer sends its requests to the others, from their beginning."""
        lost = dead.crash(now)
        for group in self._groups:
            if group.engine == dead.index:
                group.engine = min(self._alive(), key=lambda engine: engine.load).index
        for rollout in lost:
            self.engines[rollout.group.engine].submit(rollout, now)
