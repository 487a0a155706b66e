"""A cluster's engines as a group, for any stack: averages, and rerouting when engines fail."""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

from demo.engine import Engine, EngineStats
from demo.faults import Agenda, Conditions, Fault
from demo.records import Means
from demo.rollouts import Call, Group, Rollout, TaskSet, Turn
from demo.scenarios import Scenario

# ---- event time
# Event time of a simulated cluster: advances from event to event, of the agenda and of the engines.


class Looker(Protocol):
    """An observer, notified when the run begins and when nothing more happens until a later time."""

    def started(self, now: float) -> None: ...
    def flush(self) -> None: ...


class EventTime:
    """Event time in seconds since the run began. State changes at events only, so reads have no effect."""

    agenda: Agenda
    engines: list[Engine]
    observers: Sequence[Looker]
    now: float = 0.0
    _is_begun = False

    def advance(self, until: float) -> None:
        """Runs every event up to and including `until`."""
        if not self._is_begun:
            self._is_begun = True
            for observer in self.observers:
                observer.started(0.0)
            self._begin()
        while (at := min(self.agenda.next_at, *(engine.next_at for engine in self.engines))) <= until:
            if at == self.agenda.next_at:
                self.agenda.run_next()
            else:
                min(self.engines, key=lambda engine: engine.next_at).fire()
        self.now = max(self.now, until)
        for observer in self.observers:
            observer.flush()

    def _begin(self) -> None:
        """Plans the first events."""
        raise NotImplementedError


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


# ---- versions
# Determines which policy version produced which token, and what each turn did to its sandbox.

# Share of commands between two turns that change the sandbox; the others only read.
_MUTATES = 0.7
# Share of later turns in which the agent starts over from a clean checkout.
_RESETS = 0.05


class Ledger:
    """Updates `made` and `calls` of every rollout."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"{seed}:effects")

    def published(self, engines: Iterable[Engine], version: int, now: float) -> None:
        """Attributes tokens so far to `version`, which the engines now replace."""
        for engine in engines:
            for request in (*engine.running.values(), *engine.waiting):
                owner = _owner(request)
                before = owner.generated if owner is not request else 0
                _credit(owner, before + engine.rollout_tokens_at(request, now), version)

    def answered(self, request: Rollout, version: int) -> None:
        """Handles the end of a request: one turn of a rollout, or all of a single-turn one."""
        owner = _owner(request)
        is_last = owner is request or len(owner.calls) + 1 == owner.turns
        reset, mutated = self._effects() if owner is not request else (False, False)
        owner.calls.append(
            Call(
                request.dispatched,
                request.finished,
                request.group.prompt_tokens,
                request.response_tokens,
                version,
                mutated=mutated and not is_last,
                reset=reset and len(owner.calls) > 0,
            )
        )
        before = owner.generated if owner is not request else 0
        _credit(owner, before + request.response_tokens, version)

    def lost(self, request: Rollout) -> None:
        """A request starts over on another engine: its tokens are dropped."""
        owner = _owner(request)
        saved = owner.generated if owner is not request else 0
        while (extra := sum(count for _, count in owner.made) - saved) > 0:
            owner.made[-1][1] -= min(extra, owner.made[-1][1])
            if not owner.made[-1][1]:
                owner.made.pop()

    def _effects(self) -> tuple[bool, bool]:
        return self._draw.random() < _RESETS, self._draw.random() < _MUTATES


def _owner(request: Rollout) -> Rollout:
    return request.parent if isinstance(request, Turn) and request.parent is not None else request


def _credit(rollout: Rollout, tokens: int, version: int) -> None:
    """Attributes tokens that are not attributed yet to `version`."""
    new = tokens - sum(count for _, count in rollout.made)
    if new <= 0:
        return
    if rollout.made and rollout.made[-1][0] == version:
        rollout.made[-1][1] += new
    else:
        rollout.made.append([version, new])
