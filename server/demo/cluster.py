"""The whole cluster: wires engines, orchestrator and trainer together and lets time pass."""

from server.demo.events import Agenda
from server.demo.orchestrator import Orchestrator
from server.demo.records import Batch, Means, Observer, Step, Timing
from server.demo.rollouts import Rollout, TaskSet
from server.demo.scenarios import Scenario
from server.demo.trainer import Trainer

# prime-rl logs its pipeline every log.interval = 10 s by default; this run has it set to 2: a buffer that saws once
# in 30 s, sampled every 10 s, is known to 6 % only.
TICK_SECONDS = 2.0


class Cluster:
    """Event time in seconds since the run began. State changes at events only, so it does not matter who looks when."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.now = 0.0
        self.agenda = Agenda()
        self.orchestrator = Orchestrator(scenario, TaskSet(scenario, seed), self.agenda, seed)
        self.engines = self.orchestrator.engines
        self.trainer = Trainer(scenario, seed, self.agenda)
        self.observers: list[Observer] = []
        self._is_begun = False
        self._integrals_before = self._integrals(0.0)
        self._wire()

    def _wire(self) -> None:
        self.orchestrator.on_gate = self._gate
        self.orchestrator.on_dispatched = self._dispatched
        self.orchestrator.on_scored = self._scored
        if self.orchestrator.harness is not None:
            self.orchestrator.harness.on_ready = self._ready
        self.trainer.request = self.orchestrator.request_batch
        self.trainer.on_shipped = self._shipped
        self.trainer.on_published = self._published
        self.trainer.on_stepped = self._stepped

    def advance(self, until: float) -> None:
        """Run every event up to and including `until`."""
        if not self._is_begun:
            self._begin()
        while (at := self._next_at()) <= until:
            if at == self.agenda.next_at:
                self.agenda.run_next()
            else:
                min(self.engines, key=lambda engine: engine.next_at).fire()
        self.now = max(self.now, until)
        for observer in self.observers:
            observer.flush()

    def _begin(self) -> None:
        self._is_begun = True
        for observer in self.observers:
            observer.started(0.0)
        self.agenda.plan(0.0, self.trainer.begin)
        self.agenda.plan(TICK_SECONDS, self._tick)

    def _next_at(self) -> float:
        return min(self.agenda.next_at, *(engine.next_at for engine in self.engines))

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

    def _means(self, start: float, end: float) -> Means:
        """Time-weighted means since the step before, from the integrals of the state."""
        before, self._integrals_before = self._integrals_before, self._integrals(end)
        queue, running, waiting, kv, in_flight = (
            (now - then) / (end - start) for now, then in zip(self._integrals_before, before, strict=True)
        )
        usage = kv / (self.scenario.kv_tokens * len(self.engines))
        return Means(queue, running, waiting, usage, in_flight)

    def _integrals(self, now: float) -> tuple[float, ...]:
        stats = [engine.stats for engine in self.engines]
        return (
            self.orchestrator.queue.integral(now),
            sum(stat.running_seconds for stat in stats),
            sum(stat.waiting_seconds for stat in stats),
            sum(stat.kv_seconds for stat in stats),
            self.orchestrator.in_flight.integral(now),
        )
