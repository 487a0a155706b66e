"""Agent loop of a rollout in a sandbox: boot, set-up, then turns with commands between them.

As in verifiers, each rollout has its own sandbox, named after its trace. While it boots, the rollout is in flight
without a request to an engine. The run's client waits for a boot without limit.
"""

import hashlib
import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

from server.demo.engine import BLOCK_TOKENS, Engine
from server.demo.events import Agenda
from server.demo.judges import Judges
from server.demo.provider import Provider, Sandbox
from server.demo.rollouts import Group, Rollout, Turn
from server.demo.scenarios import Scenario


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
