"""Rollouts, groups, and where new ones come from (the task set, with its randomness)."""

import math
from dataclasses import dataclass, field
from random import Random

from demo.faults import Conditions
from demo.provider import Sandbox
from demo.scenarios import Scenario

SETUP_SECONDS = 0.004  # a math task sets nothing up


@dataclass(slots=True, eq=False)
class Group:
    """Siblings of one task. All share the policy version of the group's dispatch, as prime-rl stamps them."""

    id: int
    version: int
    engine: int
    prompt_tokens: int
    solve_probability: float
    size: int
    rollouts: list["Rollout"] = field(default_factory=list)
    scored: int = 0
    # Of a later turn's context: tokens still in the engine's cache.
    cached_tokens: int = 0
    # The policy version when the last sibling was scored, and when that was.
    version_complete: int = 0
    completed: float = 0.0
    # Number of lost members; and the held-out set of the group, "" in training.
    lost: int = 0
    evaluates: str = ""

    @property
    def rewards(self) -> list[float]:
        """Returns the rewards of members that have one."""
        return [rollout.reward for rollout in self.rollouts if not rollout.error]

    @property
    def outcome(self) -> str:
        """`all`, `none` or `some`: how many siblings solved the task; `few`: too many were lost to decide."""
        rewards = self.rewards
        if self.lost and len(rewards) < 2:
            return "few"
        solved = sum(rewards)
        return "all" if solved == len(rewards) else "some" if solved else "none"


@dataclass(frozen=True, slots=True)
class Call:
    """One answer of the model, and its command. Seconds since the run began.

    `version`: the version that answered last, to which the command is attributed. `mutated`: the command changed the
    sandbox; `reset`: the sandbox was recreated before the call.
    """

    start: float
    end: float
    input_tokens: int
    output_tokens: int
    version: int
    mutated: bool
    reset: bool


@dataclass(slots=True, eq=False)
class Rollout:
    """One attempt. Times are seconds since the run began, 0.0 until they happen.

    `generated` is what it keeps across preemptions; it is all of `response_tokens` once finished.
    """

    id: int
    group: Group
    response_tokens: int
    truncated: bool
    dispatched: float
    scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    scored: float = 0.0
    version_end: int = 0
    reward: float = 0.0
    # Cause of a loss, "" for none; a lost rollout has no reward.
    error: str = ""
    generated: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    clock_admitted: float = 0.0
    clock_finish: float = 0.0
    admissions: int = 0
    # When its agent could begin: at dispatch if it needs no sandbox.
    ready: float = 0.0
    setup_seconds: float = SETUP_SECONDS
    turns: int = 1
    tool_seconds: float = 0.0
    tool_tokens: int = 0
    calls: list[Call] = field(default_factory=list)
    # [policy version, tokens it produced], oldest first.
    made: list[list[int]] = field(default_factory=list)
    # Its sandbox, and how those before it failed.
    sandbox: Sandbox | None = None
    boot_errors: list[str] = field(default_factory=list)

    @property
    def agent_seconds(self) -> float:
        """Returns seconds from the agent's begin to its last token: model and commands."""
        return self.finished - self.ready

    @property
    def input_tokens(self) -> int:
        """Prompt, and what commands answered."""
        return self.group.prompt_tokens + self.tool_tokens


@dataclass(slots=True, eq=False)
class Turn(Rollout):
    """One request of a rollout that takes several: to an engine it is like any other. `group` is its context."""

    parent: Rollout | None = None


class TaskSet:
    """Draws groups and rollouts. Each purpose has its own stream, so that one more draw here moves nothing there."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.conditions = Conditions()
        self._scenario = scenario
        self._tasks = Random(f"{seed}:tasks")
        self._lengths = Random(f"{seed}:lengths")
        self._rewards = Random(f"{seed}:rewards")
        self._groups = 0
        self._rollouts = 0

    def group(self, version: int, engine: int) -> Group:
        s = self._scenario
        self._groups += 1
        prompt = self._tasks.randint(s.prompt_tokens_min, s.prompt_tokens_max)
        chance = self.conditions.chance(self._tasks.betavariate(s.solve_alpha, s.solve_beta))
        return Group(self._groups, version, engine, prompt, chance, s.group_size)

    def rollout(self, group: Group, now: float) -> Rollout:
        s = self._scenario
        self._rollouts += 1
        drawn = self._lengths.lognormvariate(math.log(s.response_tokens_median), s.response_sigma)
        drawn *= self.conditions.length(now) * (s.agents.factor(now) if s.agents else 1.0)
        tokens = max(1, min(int(drawn), s.max_tokens))
        rollout = Rollout(self._rollouts, group, tokens, drawn >= s.max_tokens, now, ready=now)
        if s.agents:
            rollout.turns = 1 + max(1, round(tokens / s.agents.tokens_per_call))
        group.rollouts.append(rollout)
        return rollout

    def score(self, rollout: Rollout) -> float:
        """1.0 or 0.0. A truncated answer is never right; the draw is made all the same, to keep the stream in step."""
        solved = self._rewards.random() < rollout.group.solve_probability
        return 1.0 if solved and not rollout.truncated else 0.0

    def scoring_seconds(self) -> float:
        # A spread of 0.3: verifying a sum takes about as long as verifying another.
        return self._scenario.scoring_seconds * self.conditions.scoring * self._rewards.lognormvariate(0.0, 0.3)
