"""slime's `train_async.py` (624b824a): generation and training in parallel, and a weight update after both.

A rollout begins with more groups than a batch needs, all at once; when a batch of groups is complete the engines abort
the rest (slime/rollout/sglang_rollout.py). Before weights are sent the next rollout is waited for, so no request ever
meets two versions.
"""

from collections.abc import Iterable, Sequence

from server.demo.faults import Fault, timeline
from server.demo.fleet import BatchFleet
from server.demo.rollouts import Group, Rollout
from server.demo.scenarios import Scenario
from server.demo.sglang_page import SglangStats
from server.demo.slime_records import Generation, SlimeObserver, SlimeStep, SlimeTiming


class SlimeCluster(BatchFleet):
    """See `server.demo.event_time`."""

    def __init__(self, scenario: Scenario, seed: int, faults: Sequence[Fault] = ()) -> None:
        assert scenario.slime is not None
        super().__init__(scenario, seed, faults, SglangStats)
        self.plan = scenario.slime
        self.version = 0
        self.observers: list[SlimeObserver] = []
        self._begun_at, self._number = 0.0, -1
        # The groups of the rollout that is being generated, by id; and those that are complete.
        self.open: dict[int, Group] = {}
        self._complete: list[Group] = []
        self._ready: Generation | None = None
        self._is_training = self._is_updating = False
        # End of the training before; the last update's seconds, which belong to the step that follows it.
        self._idle_since = self._update = 0.0

    def _begin(self) -> None:
        self.agenda.plan(0.0, self._generate)
        timeline(self.faults, self.agenda, self._befall, 0.0)

    # -- the generator -----------------------------------------------------------------------------------------

    def _generate(self, now: float) -> None:
        """`RolloutManager.generate`: requests everything it samples at once."""
        self._number, self._begun_at = self._number + 1, now
        self._complete = []
        for _ in range(self.plan.over_sampling_groups):
            engine = self._idlest()
            group = self._tasks.group(self.version, engine.index)
            self.open[group.id] = group
            for _ in range(group.size):
                rollout = self._tasks.rollout(group, now)
                for observer in self.observers:
                    observer.dispatched(now, rollout)
                engine.submit(rollout, now)

    def _unanswered(self) -> Iterable[Group]:
        return self.open.values()

    def _answered(self, rollout: Rollout, now: float) -> None:
        self.agenda.plan(now + self._tasks.scoring_seconds(), lambda at: self._scored(rollout, at))

    def _scored(self, rollout: Rollout, now: float) -> None:
        group = rollout.group
        rollout.scored, rollout.reward = now, self._tasks.score(rollout)
        group.scored += 1
        # If its rollout has ended, the reward is not used.
        if group.scored < group.size or group.id not in self.open:
            return
        group.completed = now
        self._complete.append(self.open.pop(group.id))
        if len(self._complete) == self.scenario.batch_groups:
            self._collected(now)

    def _collected(self, now: float) -> None:
        """A batch is complete: the engines abort the other requests."""
        for engine in self.engines:
            stats = engine.stats
            assert isinstance(stats, SglangStats)
            for rollout in engine.drop(now):
                rollout.finished = now
                stats.abort(rollout)
        aborted, self.open = tuple(self.open.values()), {}
        made = Generation(self._number, self._begun_at, now, self.version, tuple(self._complete), aborted)
        self._ready = made
        for observer in self.observers:
            observer.generated(made)
        self._meet(now)

    # -- the trainer -------------------------------------------------------------------------------------------

    def _meet(self, now: float) -> None:
        """The driver's loop: continues when the next rollout is complete and the last one is trained."""
        if self._ready is None or self._is_training or self._is_updating:
            return
        if self._ready.number == 0:
            self._turn(now)
            return
        self._is_updating = True
        for observer in self.observers:
            observer.updating(now)
        self._update = self._around(self.scenario.broadcast_seconds, 0.08) * self._conditions.sync
        self.agenda.plan(now + self._update, self._updated)

    def _updated(self, now: float) -> None:
        self._is_updating = False
        self.version += 1
        for observer in self.observers:
            observer.updated(now, self.version)
        self._turn(now)

    def _turn(self, now: float) -> None:
        """Starts the next rollout, and training on the complete one."""
        made = self._ready
        assert made is not None
        self._ready, self._is_training = None, True
        self._generate(now)
        timing = self._draw(made, now)
        begin = now + timing.preprocess
        self.agenda.plan(begin, lambda at: self._training(at, made, timing))
        self.agenda.plan(begin + timing.compute, lambda at: self._trained(at, made, timing))

    def _draw(self, made: Generation, now: float) -> SlimeTiming:
        """Draws everything of the step now, so that later events cannot change it."""
        s = self.scenario
        seconds = self._around(made.total_tokens / s.train_tokens_per_second, s.compute_noise)
        return SlimeTiming(
            wait=now - self._idle_since - self._update,
            update=self._update,
            preprocess=self._around(self.plan.preprocess_seconds, 0.1),
            logprob=seconds * self.plan.logprob_share,
            train=seconds * (1 - self.plan.logprob_share),
        )

    def _training(self, now: float, made: Generation, timing: SlimeTiming) -> None:
        if not self._hangs:
            for observer in self.observers:
                observer.training(now, made, timing)

    def _trained(self, now: float, made: Generation, timing: SlimeTiming) -> None:
        if self._hangs:
            return
        for engine in self.engines:
            engine.sync(now)
        start, self._idle_since = self._idle_since, now
        tokens = sum(engine.generated_at(now) for engine in self.engines)
        step = SlimeStep(made, start, now, timing, self.version, self._means(start, now), tokens)
        for observer in self.observers:
            observer.trained(step)
        self._is_training = False
        self._meet(now)
