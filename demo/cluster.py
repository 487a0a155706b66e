"""The whole cluster: connects engines, orchestrator and trainer, and advances time."""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from demo.faults import Agenda, Conditions, Fault, timeline
from demo.fleet import Fleet
from demo.orchestrator import Orchestrator
from demo.records import Batch, Observer, Step, Timing
from demo.rollouts import Group, Rollout, TaskSet
from demo.scenarios import Scenario

# ---- trainer
# The trainer: waits for a batch, computes, broadcasts the weights, checkpoints; then again.


class Trainer:
    """Times are seconds since the run began."""

    def __init__(self, scenario: Scenario, seed: int, agenda: Agenda) -> None:
        self.on_shipped: Callable[[float, Batch, float], None] = lambda now, batch, pack: None
        self.on_published: Callable[[float, int], None] = lambda now, version: None
        self.on_stepped: Callable[[Batch, float, float, Timing], None] = lambda batch, start, end, timing: None
        self.request: Callable[[float, Callable[[Batch, float], None]], None] = lambda now, deliver: None
        self.conditions = Conditions()
        # The current step never ends.
        self.hangs = False
        self._scenario = scenario
        self._agenda = agenda
        self._noise = Random(f"{seed}:trainer")
        self._start = 0.0

    def begin(self, now: float) -> None:
        self._start = now
        self.request(now, self._receive)

    def _receive(self, batch: Batch, now: float) -> None:
        # Spreads are log-normal sigmas: packing depends on lengths, loading on the file system, copies hardly vary.
        pack = self._around(self._scenario.pack_seconds, 0.15)
        self._agenda.plan(now + pack, lambda at: self._train(batch, pack, at))

    def _train(self, batch: Batch, pack: float, now: float) -> None:
        if self.hangs:
            return
        # Everything of the step is drawn here, so that later events cannot change it.
        self.on_shipped(now, batch, pack)
        timing = self._draw(batch, now - self._start)
        published = now + timing.load + timing.compute + timing.broadcast
        self._agenda.plan(published, lambda at: self._publish(batch, at))
        self._agenda.plan(published + timing.checkpoint, lambda at: self._end(batch, timing, at))

    def _draw(self, batch: Batch, wait: float) -> Timing:
        s = self._scenario
        compute = self._around(batch.total_tokens / s.train_tokens_per_second, s.compute_noise)
        is_checkpoint = batch.step % s.checkpoint_every == 0
        return Timing(
            wait=wait,
            load=self._around(s.load_seconds, 0.2),
            compute=compute,
            broadcast=self._around(s.broadcast_seconds, 0.1) * self.conditions.sync,
            checkpoint=self._around(s.checkpoint_seconds, 0.1) if is_checkpoint else 0.0,
        )

    def _around(self, seconds: float, spread: float) -> float:
        return seconds * self._noise.lognormvariate(0.0, spread)

    def _publish(self, batch: Batch, now: float) -> None:
        if not self.hangs:
            self.on_published(now, batch.step)

    def _end(self, batch: Batch, timing: Timing, now: float) -> None:
        if self.hangs:
            return
        self.on_stepped(batch, self._start, now, timing)
        self.begin(now)


# Interval of pipeline log lines, s. prime-rl's log.interval is 10 by default; the simulated run sets 2, because a
# buffer with a period of 30 s, sampled every 10 s, is accurate to 6 % only.
TICK_SECONDS = 2.0


class Cluster(Fleet):
    """See `demo.fleet`."""

    def __init__(self, scenario: Scenario, seed: int, faults: Sequence[Fault] = ()) -> None:
        self.scenario = scenario
        self.faults = (*(scenario.faults or ()), *faults)
        self._conditions = Conditions()
        self.now = 0.0
        self.agenda = Agenda()
        tasks = TaskSet(scenario, seed)
        self.orchestrator = Orchestrator(scenario, tasks, self.agenda, seed)
        self.engines = self.orchestrator.engines
        self.trainer = Trainer(scenario, seed, self.agenda)
        tasks.conditions = self.trainer.conditions = self._conditions
        self.observers: list[Observer] = []
        self._integrals_before = self._integrals(0.0)
        self._wire()

    def _wire(self) -> None:
        self.orchestrator.on_gate = self._gate
        self.orchestrator.on_dispatched = self._dispatched
        self.orchestrator.on_scored = self._scored
        self.orchestrator.on_filtered = self._filtered
        if self.orchestrator.harness is not None:
            self.orchestrator.harness.on_ready = self._ready
        self.trainer.request = self.orchestrator.request_batch
        self.trainer.on_shipped = self._shipped
        self.trainer.on_published = self._published
        self.trainer.on_stepped = self._stepped

    @property
    def open_groups(self) -> Iterable[Group]:
        """Groups whose rollouts are being generated or scored."""
        return self.orchestrator.incomplete.values()

    def _begin(self) -> None:
        self.agenda.plan(0.0, self.trainer.begin)
        self.agenda.plan(TICK_SECONDS, self._tick)
        age = self.scenario.sandboxes.age_seconds if self.scenario.sandboxes else 0.0
        timeline(self.faults, self.agenda, self._befall, age)

    def _befall(self, kind: str, now: float) -> None:
        if kind == "trainer-hang":
            self.trainer.hangs = True
        elif kind == "engine-crash":
            self.orchestrator.crash(now)
        elif kind == "engine-freeze":
            self.orchestrator.freeze(now)
        elif kind == "sandbox-outage" and self.orchestrator.harness:
            self.orchestrator.harness.provider.is_out = True
        self._conditions.befall(kind, now)

    def _tick(self, now: float) -> None:
        for observer in self.observers:
            observer.tick(now)
        self.agenda.plan(now + TICK_SECONDS, self._tick)

    def _dispatched(self, now: float, rollout: Rollout) -> None:
        for observer in self.observers:
            observer.dispatched(now, rollout)

    def _ready(self, now: float, rollout: Rollout) -> None:
        for observer in self.observers:
            observer.ready(now, rollout)

    def _scored(self, now: float, rollout: Rollout) -> None:
        for observer in self.observers:
            observer.scored(now, rollout)

    def _filtered(self, now: float, group: Group) -> None:
        for observer in self.observers:
            observer.filtered(now, group)

    def _gate(self, now: float, is_open: bool) -> None:
        for observer in self.observers:
            observer.gate(now, is_open)

    def _shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        for observer in self.observers:
            observer.shipped(now, batch, pack_seconds)

    def _published(self, now: float, version: int) -> None:
        self.orchestrator.publish(version, now)
        for observer in self.observers:
            observer.published(now, version)

    def _stepped(self, batch: Batch, start: float, end: float, timing: Timing) -> None:
        for engine in self.engines:
            engine.sync(end)
        step = self._step(batch, start, end, timing)
        for observer in self.observers:
            observer.stepped(step)

    def _step(self, batch: Batch, start: float, end: float, timing: Timing) -> Step:
        return Step(
            batch=batch,
            start=start,
            end=end,
            timing=timing,
            means=self._means(start, end),
            version=self.orchestrator.version,
            requests_finished=sum(engine.stats.finished for engine in self.engines),
            generation_tokens=sum(engine.generated_at(end) for engine in self.engines),
        )

    def _integrals(self, now: float) -> tuple[float, ...]:
        return (
            *super()._integrals(now),
            self.orchestrator.queue.integral(now),
            self.orchestrator.in_flight.integral(now),
        )
