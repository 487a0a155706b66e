"""A cluster's engines as a group, for any stack: averages, and rerouting when engines fail."""

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
    """Returns the engines that accept requests. If all are dead, the last one, where requests wait."""
    return [engine for engine in engines if not engine.is_dead] or engines[-1:]


def freeze_one(engines: list[Engine], now: float) -> None:
    """Makes one more working engine hang, if there is any."""
    for engine in [engine for engine in engines if not (engine.is_frozen or engine.is_dead)][:1]:
        engine.freeze(now)


class Fleet(EventTime):
    """Event time, and averages of the engines over an interval."""

    scenario: Scenario
    _integrals_before: tuple[float, ...]

    def _means(self, start: float, end: float) -> Means:
        """Returns time-weighted means since the previous step, from the integrals of the state."""
        before, self._integrals_before = self._integrals_before, self._integrals(end)
        running, waiting, kv, *more = (
            (now - then) / (end - start) for now, then in zip(self._integrals_before, before, strict=True)
        )
        # Without a buffer, what is in flight is in the engines.
        queue, in_flight = more or (0.0, running + waiting)
        return Means(queue, running, waiting, kv / (self.scenario.kv_tokens * len(self.engines)), in_flight)

    def _integrals(self, now: float) -> tuple[float, ...]:
        """Returns running, waiting and KV; for a stack with a buffer also the buffer and requests in flight."""
        stats = [engine.stats for engine in self.engines]
        return (
            sum(stat.running_seconds for stat in stats),
            sum(stat.waiting_seconds for stat in stats),
            sum(stat.kv_seconds for stat in stats),
        )


class BatchFleet(Fleet):
    """A stack whose trainer requests a whole batch at once, with the engines behind a router."""

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
        """Returns the groups that requests may belong to."""
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
        """Ends the first live engine; the router sends its requests to the others, from their beginning."""
        dead = alive(self.engines)[0]
        if dead.is_dead:
            return
        lost = dead.crash(now)
        for group in self._unanswered():
            if group.engine == dead.index:
                group.engine = self._idlest().index
        for rollout in lost:
            self.engines[rollout.group.engine].submit(rollout, now)
