"""The orchestrator: keeps rollouts in flight, completes groups, holds the buffer, makes batches for the trainer.

It follows prime-rl: whole groups share the version of their dispatch, dispatch stops while the orchestrator is too
far ahead of the published policy, and what would be trained too stale is dropped.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random

from demo.engine import BLOCK_TOKENS, Engine
from demo.faults import Agenda, Level
from demo.fleet import Ledger, alive, freeze_one
from demo.provider import Judges, Provider, Sandbox
from demo.records import Batch, Observer
from demo.rollouts import Call, Group, Rollout, TaskSet, Turn
from demo.scenarios import EvalPlan, LossPlan, Scenario

# ---- harness
# Agent loop of a rollout in a sandbox: boot, set-up, then turns with commands between them.


class Harness:
    """Takes rollouts from dispatch to the end of their last turn. Times are seconds since the run began."""

    def __init__(self, scenario: Scenario, seed: int, agenda: Agenda, done: Callable[[Rollout, float], None]) -> None:
        assert scenario.sandboxes is not None
        self.plan = scenario.sandboxes
        self.provider = Provider(self.plan, scenario.run, seed, agenda)
        self.judges = (
            Judges(self.plan.judges, scenario.run, self.plan.dangling_run, seed, agenda) if self.plan.judges else None
        )
        self.engines: list[Engine] = []
        self.on_ready: Callable[[float, Rollout], None] = lambda now, rollout: None
        self.booting = 0
        self.in_tool = 0
        self.assigned = [0] * scenario.engines
        self._seed = seed
        self._agenda = agenda
        self._done = done
        self._draw = Random(f"{seed}:agent")
        self._requests = 0
        self._images: dict[Group, str] = {}
        self._sandboxes: dict[Rollout, Sandbox] = {}
        self._attempts: dict[Rollout, int] = {}
        self._turns: dict[Rollout, list[int]] = {}

    # -- its sandbox -------------------------------------------------------------------------------------------

    def begin(self, rollout: Rollout, now: float) -> None:
        """Requests a sandbox at dispatch. Siblings share the task, and so the image."""
        group = rollout.group
        if group not in self._images:
            self._images[group] = self.provider.draw_image()
        self._turns[rollout] = self._split(rollout)
        rollout.turns = len(self._turns[rollout])
        self.assigned[group.engine] += 1
        self.booting += 1
        self._ask(rollout, now)

    def _ask(self, rollout: Rollout, now: float) -> None:
        rollout.sandbox = self._sandboxes[rollout] = self.provider.create(
            trace_id(self._seed, rollout),
            self._images[rollout.group],
            now,
            lambda at: self._booted(rollout, at),
            lambda at: self._failed(rollout, at),
        )

    def _failed(self, rollout: Rollout, now: float) -> None:
        """Retries later, with jitter, so that sandboxes that failed together are not requested together."""
        attempt = self._attempts[rollout] = self._attempts.get(rollout, 0) + 1
        rollout.boot_errors.append(self._sandboxes[rollout].error_message or "")
        wait = min(self.plan.retry_seconds * 2.0 ** min(attempt - 1, 8), self.plan.retry_seconds_max)
        self._agenda.plan(now + wait * self._draw.uniform(0.75, 1.25), lambda at: self._ask(rollout, at))

    def _booted(self, rollout: Rollout, now: float) -> None:
        rollout.setup_seconds = self.plan.setup_seconds * self._draw.lognormvariate(0.0, 0.3)
        self._agenda.plan(now + rollout.setup_seconds, lambda at: self._set_up(rollout, at))

    def end(self, rollout: Rollout, now: float) -> None:
        """Deletes the sandbox after scoring."""
        self.provider.delete(self._sandboxes.pop(rollout), now)
        self._attempts.pop(rollout, None)
        if rollout.group.scored + 1 == rollout.group.size:
            del self._images[rollout.group]

    # -- turns -------------------------------------------------------------------------------------------------

    def _split(self, rollout: Rollout) -> list[int]:
        """Returns response tokens of each turn, at least one, with the given sum."""
        count = min(self._draw.randint(self.plan.turns_min, self.plan.turns_max), rollout.response_tokens)
        inner = sorted(self._draw.sample(range(1, rollout.response_tokens), count - 1)) if count > 1 else []
        edges = [0, *inner, rollout.response_tokens]
        return [high - low for low, high in pairwise(edges)]

    def _set_up(self, rollout: Rollout, now: float) -> None:
        self.booting -= 1
        rollout.ready = now
        self.on_ready(now, rollout)
        self._next_turn(rollout, rollout.group, now)

    def _next_turn(self, rollout: Rollout, context: Group, now: float) -> None:
        self._requests += 1
        tokens = self._turns[rollout].pop(0)
        is_last = not self._turns[rollout]
        turn = Turn(self._requests, context, tokens, rollout.truncated and is_last, now, parent=rollout)
        self.engines[rollout.group.engine].submit(turn, now)

    def turned(self, turn: Rollout, now: float) -> None:
        """Handles the end of a turn on an engine: runs the agent's command, or ends the rollout."""
        assert isinstance(turn, Turn) and turn.parent is not None
        rollout = turn.parent
        rollout.first_token = rollout.first_token or turn.first_token
        rollout.generated += turn.response_tokens
        rollout.preemptions += turn.preemptions
        if self._turns[rollout]:
            self._call_tool(rollout, turn, now)
            return
        del self._turns[rollout]
        rollout.finished = now
        self.assigned[rollout.group.engine] -= 1
        if self.judges:
            self.judges.consider(trace_id(self._seed, rollout), now)
        self._done(rollout, now)

    def _call_tool(self, rollout: Rollout, turn: Turn, now: float) -> None:
        seconds = self.plan.tool_seconds_median * self._draw.lognormvariate(0.0, self.plan.tool_sigma)
        seen = turn.group.prompt_tokens + turn.response_tokens
        added = self._draw.randint(self.plan.tool_tokens_min, self.plan.tool_tokens_max)
        rollout.tool_seconds += seconds
        rollout.tool_tokens += added
        # The engines have room to spare, so what the turn before computed is still in the prefix cache.
        cached = math.floor(seen / BLOCK_TOKENS) * BLOCK_TOKENS
        context = Group(turn.id, turn.group.version, turn.group.engine, seen + added, 0.0, 1, cached_tokens=cached)
        self.in_tool += 1
        self._agenda.plan(now + seconds, lambda at: self._tool_done(rollout, context, at))

    def _tool_done(self, rollout: Rollout, context: Group, now: float) -> None:
        self.in_tool -= 1
        self._next_turn(rollout, context, now)


def trace_id(seed: int, rollout: Rollout) -> str:
    """A rollout's trace id, 32 hex digits as verifiers' are; its sandboxes have it for a name."""
    return hashlib.sha256(f"{seed}:trace:{rollout.id}".encode()).hexdigest()[:32]


# ---- fates
# Exceptional rollouts: losses during scoring, and evaluations.

INFRA, ENVIRONMENT = "SandboxError", "TaskError"
"""Errors named as in verifiers: the sandbox died during the tests, or the task's own code failed."""

EXITS = {INFRA: "infra_error", ENVIRONMENT: "env_error"}


class Losses:
    """Draws losses. ``plan``: None for no losses."""

    def __init__(self, plan: LossPlan | None, seed: int) -> None:
        self._plan = plan
        self._draw = Random(f"{seed}:losses")

    def error(self) -> str:
        """Returns the error of the next scored rollout: one of `EXITS`, or "" for none."""
        if self._plan is None:
            return ""
        chance = self._draw.random() - self._plan.infra
        return INFRA if chance < 0 else ENVIRONMENT if chance < self._plan.environment else ""


class Evals(Observer):
    """Runs the evaluations; reports each rollout at the first tick after its end."""

    def __init__(self, plan: EvalPlan, seed: int, observers: Iterable[Observer]) -> None:
        self._plan = plan
        self._observers = tuple(observers)
        self._draw = Random(f"{seed}:evals")
        # Evaluation ids are below those of training.
        self._groups = self._rollouts = 0
        self._open: list[Rollout] = []

    def published(self, now: float, version: int) -> None:
        if version % self._plan.every_versions:
            return
        for _ in range(self._plan.tasks):
            self._groups -= 1
            group = Group(
                self._groups, version, 0, self._plan.prompt_tokens, self._plan.solve_probability, self._plan.samples,
                evaluates=self._plan.environment,
            )  # fmt: skip
            self._open += [self._rollout(group, now) for _ in range(self._plan.samples)]

    def _rollout(self, group: Group, now: float) -> Rollout:
        """Draws everything about a rollout when it begins."""
        plan, self._rollouts = self._plan, self._rollouts - 1
        tokens = max(1, int(self._draw.lognormvariate(math.log(plan.response_tokens_median), plan.response_sigma)))
        one = Rollout(
            self._rollouts, group, tokens, False, now, ready=now, first_token=now + 1 / plan.tokens_per_second
        )
        one.finished = now + tokens / plan.tokens_per_second
        one.scored = one.finished + plan.scoring_seconds * self._draw.lognormvariate(0.0, 0.3)
        one.reward = float(self._draw.random() < group.solve_probability)
        one.version_end, one.generated, one.made = group.version, tokens, [[group.version, tokens]]
        one.calls = [Call(now, one.finished, group.prompt_tokens, tokens, group.version, False, False)]
        group.rollouts.append(one)
        return one

    def tick(self, now: float) -> None:
        done = sorted((one for one in self._open if one.scored <= now), key=lambda one: one.scored)
        self._open = [one for one in self._open if one.scored > now]
        for one in done:
            for observer in self._observers:
                observer.evaluated(one.scored, one)


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
