"""Exceptional rollouts: losses during scoring, and evaluations.

Each draws from its own random stream, so that it changes nothing else: with or without it engines, sandboxes and
trainer do the same at the same moments.
"""

import math
from collections.abc import Iterable
from random import Random

from server.demo.plans import EvalPlan, LossPlan
from server.demo.records import Observer
from server.demo.rollouts import Call, Group, Rollout

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
