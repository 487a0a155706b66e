"""Determines which policy version produced which token, and what each turn did to its sandbox.

Engines keep requests during a weight update and continue with the new weights, so a rollout in flight is made by two
versions. Effects of turns on sandboxes have their own random stream, so that they change nothing else.
"""

from collections.abc import Iterable
from random import Random

from server.demo.engine import Engine
from server.demo.rollouts import Call, Rollout, Turn

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
        kept = owner.generated if owner is not request else 0
        while (extra := sum(count for _, count in owner.made) - kept) > 0:
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
