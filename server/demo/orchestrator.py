"""The orchestrator: keeps rollouts in flight, completes groups, holds the buffer, makes batches for the trainer.

It follows prime-rl: whole groups share the version of their dispatch, dispatch stops while the orchestrator is too
far ahead of the published policy, and what would be trained too stale is dropped.
"""

from collections import deque
from collections.abc import Callable

from server.demo.engine import Engine
from server.demo.events import Agenda, Level
from server.demo.fates import Losses
from server.demo.fleet import alive, freeze_one
from server.demo.harness import Harness
from server.demo.records import Batch
from server.demo.rollouts import Group, Rollout, TaskSet, Turn
from server.demo.scenarios import Scenario
from server.demo.versions import Ledger


class Orchestrator:
    """Times are seconds since the run began; the buffer and all counts are in rollouts unless they say groups."""

    def __init__(self, scenario: Scenario, tasks: TaskSet, agenda: Agenda, seed: int) -> None:
        self.scenario = scenario
        self.harness = Harness(scenario, seed, agenda, self._generated) if scenario.sandboxes else None
        self._ledger, self._losses = Ledger(seed), Losses(scenario.losses, seed)
        self.engines = [Engine(index, scenario, self._answered) for index in range(scenario.engines)]
        if self.harness:
            self.harness.engines = self.engines
        self.version = 0
        self.taken_batches = 0
        self.dispatched = 0
        self.trained = 0
        self.dropped = 0
        self.lost = 0
        # Rollouts and groups dropped because they have no gradient.
        self.filtered = self.filtered_groups = 0
        self.in_flight = Level()
        self.queue = Level()
        self.scoring = 0
        self.incomplete: dict[int, Group] = {}
        self.buffer: deque[Group] = deque()
        self.on_gate: Callable[[float, bool], None] = lambda now, is_open: None
        self.on_dispatched: Callable[[float, Rollout], None] = lambda now, rollout: None
        self.on_scored: Callable[[float, Rollout], None] = lambda now, rollout: None
        self.on_filtered: Callable[[float, Group], None] = lambda now, group: None
        self._tasks = tasks
        self._agenda = agenda
        self._open_group: Group | None = None
        self._deliver: Callable[[Batch, float], None] | None = None
        self._gate_closed_at: float | None = None
        self._gate_seconds = 0.0
        self._dropped_groups: list[Group] = []

    # -- dispatch ----------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> None:
        """Dispatches up to the cap, sibling by sibling, while the gate is open."""
        self._set_gate(now)
        while self._gate_closed_at is None and self.in_flight.value < self._cap(now):
            group = self._next_group()
            rollout = self._tasks.rollout(group, now)
            self.dispatched += 1
            self.in_flight.add(now, 1)
            self.on_dispatched(now, rollout)
            if self.harness:
                self.harness.begin(rollout, now)
            else:
                self.engines[group.engine].submit(rollout, now)

    def _cap(self, now: float) -> int:
        plan = self.scenario.sandboxes
        return plan.in_flight_cap(now) if plan else self.scenario.max_in_flight

    def _next_group(self) -> Group:
        group = self._open_group
        if group is None or len(group.rollouts) == group.size:
            # All siblings go to one engine, the least loaded one, because of its prefix cache.
            engine = min(alive(self.engines), key=self._load)
            group = self._tasks.group(self.version, engine.index)
            self.incomplete[group.id] = group
            self._open_group = group
        return group

    def _load(self, engine: Engine) -> int:
        # Rollouts that boot or run a command are not in the engine yet, but will be.
        return self.harness.assigned[engine.index] if self.harness else engine.load

    def _set_gate(self, now: float) -> None:
        is_open = self.lead <= self.scenario.max_lead_batches
        if is_open == (self._gate_closed_at is None):
            return
        if self._gate_closed_at is not None:
            self._gate_seconds += now - self._gate_closed_at
        self._gate_closed_at = None if is_open else now
        self.on_gate(now, is_open)

    @property
    def lead(self) -> float:
        """Returns batches ahead of the published policy: batches taken and buffered, minus versions."""
        return self.taken_batches + self.queue.value / self.scenario.batch_samples - self.version

    # -- completion --------------------------------------------------------------------------------------------

    def _answered(self, request: Rollout, now: float) -> None:
        """Handles the end of a request: a whole rollout, or one turn."""
        self._ledger.answered(request, self.version)
        (self.harness.turned if self.harness else self._generated)(request, now)

    def _generated(self, rollout: Rollout, now: float) -> None:
        """Passes a generated rollout to the verifier."""
        rollout.version_end = self.version
        self.scoring += 1
        self._agenda.plan(now + self._tasks.scoring_seconds(), lambda at: self._scored(rollout, at))

    def _scored(self, rollout: Rollout, now: float) -> None:
        rollout.scored = now
        rollout.reward = self._tasks.score(rollout)
        rollout.error = self._losses.error()
        if rollout.error:
            rollout.group.lost += 1
            self.lost += 1
        self.scoring -= 1
        self.in_flight.add(now, -1)
        if self.harness:
            self.harness.end(rollout, now)
        rollout.group.scored += 1
        self.on_scored(now, rollout)
        if rollout.group.scored == rollout.group.size:
            self._completed(rollout.group, now)
        self.dispatch(now)

    def _completed(self, group: Group, now: float) -> None:
        del self.incomplete[group.id]
        group.completed, group.version_complete = now, self.version
        if self.scenario.agents and group.outcome != "some":
            self.filtered += group.size
            self.filtered_groups += 1
            self.on_filtered(now, group)
            return
        self.buffer.append(group)
        self.queue.add(now, group.size)
        self._try_deliver(now)

    # -- batches -----------------------------------------------------------------------------------------------

    def request_batch(self, now: float, deliver: Callable[[Batch, float], None]) -> None:
        """Requests a batch for the trainer; answered at once, or when the buffer holds a batch."""
        self._deliver = deliver
        self._try_deliver(now)
        self.dispatch(now)

    def _try_deliver(self, now: float) -> None:
        if self._deliver is None:
            return
        self._drop_stale(now)
        if self.queue.value >= self.scenario.batch_samples:
            deliver, self._deliver = self._deliver, None
            deliver(self._cut(now), now)

    def _drop_stale(self, now: float) -> None:
        oldest = self.taken_batches - self.scenario.max_off_policy_steps
        stale = [group for group in self.buffer if group.version < oldest]
        for group in stale:
            self.buffer.remove(group)
            self.queue.add(now, -group.size)
            self.dropped += group.size - group.lost
        self._dropped_groups += stale

    def _cut(self, now: float) -> Batch:
        groups = tuple(self.buffer.popleft() for _ in range(self.scenario.batch_groups))
        self.queue.add(now, -self.scenario.batch_samples)
        self.taken_batches += 1
        self.trained += sum(group.size - group.lost for group in groups)
        return Batch(self.taken_batches, groups, self._flush_dropped(), now, self._flush_gate(now))

    def _flush_dropped(self) -> tuple[Group, ...]:
        dropped, self._dropped_groups = tuple(self._dropped_groups), []
        return dropped

    def _flush_gate(self, now: float) -> float:
        """Returns seconds with a closed gate since the last batch."""
        if self._gate_closed_at is not None:
            self._gate_seconds += now - self._gate_closed_at
            self._gate_closed_at = now
        seconds, self._gate_seconds = self._gate_seconds, 0.0
        return seconds

    # -- policy ------------------------------------------------------------------------------------------------

    def publish(self, version: int, now: float) -> None:
        """Publishes weights: the engines pause while they load them, then dispatch may continue."""
        self._ledger.published(self.engines, self.version, now)
        self.version = version
        for engine in self.engines:
            engine.pause(now, self.scenario.pause_seconds)
        self._agenda.plan(now + self.scenario.pause_seconds, self._resume)
        self.dispatch(now)

    def _resume(self, now: float) -> None:
        for engine in self.engines:
            engine.resume(now)

    # -- faults ------------------------------------------------------------------------------------------------

    def freeze(self, now: float) -> None:
        freeze_one(self.engines, now)

    def crash(self, now: float) -> None:
        """Ends the first live engine; the client sends its requests to the others, from their beginning."""
        dead = alive(self.engines)[0]
        if dead.is_dead:
            return
        lost = dead.crash(now)
        if self.harness:
            self.harness.assigned[dead.index] = 0
        for group in self.incomplete.values():
            if group.engine == dead.index:
                self._move(group)
        for request in lost:
            self._ledger.lost(request)
            owner = request.parent if isinstance(request, Turn) and request.parent is not None else request
            self.engines[owner.group.engine].submit(request, now)

    def _move(self, group: Group) -> None:
        engine = min(alive(self.engines), key=self._load)
        group.engine = engine.index
        if self.harness:
            self.harness.assigned[engine.index] += sum(not rollout.finished for rollout in group.rollouts)

    # -- counts ------------------------------------------------------------------------------------------------

    def census(self) -> dict[str, int]:
        """Returns rollouts by state; the states are disjoint and their sum is `dispatched`. Lost ones are in none."""
        waiting_group = sum(group.scored - group.lost for group in self.incomplete.values())
        return {
            "booting": self.harness.booting if self.harness else 0,
            "in_tool": self.harness.in_tool if self.harness else 0,
            "waiting_slot": sum(len(engine.waiting) for engine in self.engines),
            "generating": sum(len(engine.running) for engine in self.engines),
            "scoring": self.scoring,
            "waiting_group": waiting_group,
            "queued": sum(group.size - group.lost for group in self.buffer),
            "trained": self.trained,
            "dropped": self.dropped,
            **({"lost": self.lost} if self.scenario.losses else {}),
            **({"filtered": self.filtered} if self.scenario.agents else {}),
        }
