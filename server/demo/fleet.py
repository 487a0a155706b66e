"""A cluster's engines as one, of any stack: what they do on average, and who goes on when some of them break."""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from server.demo.engine import Engine
from server.demo.engine_stats import EngineStats
from server.demo.event_time import EventTime
from server.demo.events import Agenda
from server.demo.faults import Conditions, Fault
from server.demo.records import Means
from server.demo.rollouts import Group, Rollout, TaskSet
from server.demo.scenarios import Scenario


def alive(engines: list[Engine]) -> list[Engine]:
    """Those to send to. The last one that died is as good as any: its requests wait for it."""
    return [engine for engine in engines if not engine.is_dead] or engines[-1:]


def freeze_one(engines: list[Engine], now: float) -> None:
    """One more of those that work hangs, while any does."""
    for engine in [engine for engine in engines if not (engine.is_frozen or engine.is_dead)][:1]:
        engine.freeze(now)


class Fleet(EventTime):
    """Event time, and what the engines did on average in a part of it."""

    scenario: Scenario
    _integrals_before: tuple[float, ...]

    def _means(self, start: float, end: float) -> Means:
        """Time-weighted means since the step before, from the integrals of the state."""
        before, self._integrals_before = self._integrals_before, self._integrals(end)
        running, waiting, kv, *more = (
            (now - then) / (end - start) for now, then in zip(self._integrals_before, before, strict=True)
        )
        # Without a buffer, what is in flight is in the engines.
        queue, in_flight = more or (0.0, running + waiting)
        return Means(queue, running, waiting, kv / (self.scenario.kv_tokens * len(self.engines)), in_flight)

    def _integrals(self, now: float) -> tuple[float, ...]:
        """Running, waiting and KV; then, of a stack that has a buffer, that and what is in flight."""
        stats = [engine.stats for engine in self.engines]
        return (
            sum(stat.running_seconds for stat in stats),
            sum(stat.waiting_seconds for stat in stats),
            sum(stat.kv_seconds for stat in stats),
        )


class BatchFleet(Fleet):
    """A stack whose trainer asks for a whole batch at once, and whose engines stand behind a router."""

    def __init__(
        self, scenario: Scenario, seed: int, faults: Sequence[Fault], stats: Callable[[Scenario], EngineStats]
    ) -> None:
        self.scenario = scenario
        self.faults = (*(scenario.faults or ()), *faults)
        self.agenda = Agenda()
        self.engines = [Engine(i, scenario, self._answered, stats(scenario)) for i in range(scenario.engines)]
        self._tasks, self._noise = TaskSet(scenario, seed), Random(f"{seed}:trainer")
        self._conditions = self._tasks.conditions = Conditions()
        self._hangs = False
        self._integrals_before = self._integrals(0.0)

    def _answered(self, rollout: Rollout, now: float) -> None:
        raise NotImplementedError

    def _unanswered(self) -> Iterable[Group]:
        """The groups that requests may belong to."""
        raise NotImplementedError

    def _idlest(self) -> Engine:
        return min(alive(self.engines), key=lambda engine: engine.load)

    def _around(self, seconds: float, spread: float) -> float:
        return seconds * self._noise.lognormvariate(0.0, spread)

    def _befall(self, kind: str, now: float) -> None:
        if kind == "trainer-hang":
            self._hangs = True
        elif kind == "engine-freeze":
            freeze_one(self.engines, now)
        elif kind == "engine-crash":
            self._crash(now)
        self._conditions.befall(kind, now)

    def _crash(self, now: float) -> None:
        """The first engine that lives dies; the router sends its requests to the others, from their beginning."""
        dead = alive(self.engines)[0]
        if dead.is_dead:
            return
        lost = dead.crash(now)
        for group in self._unanswered():
            if group.engine == dead.index:
                group.engine = self._idlest().index
        for rollout in lost:
            self.engines[rollout.group.engine].submit(rollout, now)
