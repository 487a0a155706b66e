"""What a function for `--custom-rollout-log-function-path` would post of each sample of slime: what its log lacks.

NDJSON for `POST /api/v1/runs/RUN/rollouts`. slime hands that function every sample of a rollout when it is over, with
weight versions and status (slime/utils/types.py); so the past is told. What is under way is told once the demo is live.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable

from server.demo.rollouts import Rollout
from server.demo.scenarios import Scenario
from server.demo.slime_records import Generation, SlimeObserver, SlimeTiming

# Nobody takes them: what is older than this is not worth keeping.
_KEPT_LINES = 50_000


class SlimeHook(SlimeObserver):
    """Gathers lines as things happen; `take` hands them out. Of what ends before `since` (epoch) it tells nothing."""

    def __init__(self, scenario: Scenario, seed: int, start: float, since: float = 0.0) -> None:
        self._scenario, self._seed, self._start, self._since = scenario, seed, start, since - start
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.is_live = False

    def go_live(self, under_way: Iterable[Rollout]) -> None:
        """From now on tell what begins too; these have begun already."""
        self.is_live = True
        for rollout in under_way:
            self._say(rollout, **self._about(rollout))

    def dispatched(self, now: float, rollout: Rollout) -> None:
        if self.is_live:
            self._say(rollout, **self._about(rollout))

    def generated(self, generation: Generation) -> None:
        if generation.ended < self._since:
            return
        for group in generation.groups:
            for rollout in group.rollouts:
                self._ended(rollout, scored_at=self._at(rollout.scored), reward=rollout.reward, max_reward=1.0,
                            solved=rollout.reward == 1.0, group_complete_at=self._at(group.completed))  # fmt: skip
        for rollout in generation.dropped():
            self._ended(rollout, exit="aborted_oversample", exited_at=self._at(generation.ended))

    def _ended(self, rollout: Rollout, **told: object) -> None:
        tokens = rollout.generated
        self._say(
            rollout, first_token_at=self._at(rollout.first_token) if rollout.first_token else None,
            finished_at=self._at(rollout.finished), prompt_tokens=rollout.group.prompt_tokens, response_tokens=tokens,
            token_versions=[[rollout.group.version, tokens]] if tokens else [], turns=1, tool_calls=0,
            version_finish=rollout.group.version, **told, **self._about(rollout),
        )  # fmt: skip

    def training(self, now: float, generation: Generation, timing: SlimeTiming) -> None:
        if now < self._since:
            return
        for rollout in generation.rollouts():
            self._say(rollout, exit="trained", consumed_at=self._at(now), version_consumed=generation.number)

    def _about(self, rollout: Rollout) -> dict[str, object]:
        group = rollout.group
        return {
            "group_id": f"g{group.id}", "group_size": group.size, "purpose": "train",
            "environment": self._scenario.environment, "version_dispatched": group.version,
            "version_start": group.version, "engine": f"engine-{group.engine}",
            "dispatched_at": self._at(rollout.dispatched), "started_at": self._at(rollout.dispatched),
        }  # fmt: skip

    def _say(self, rollout: Rollout, **told: object) -> None:
        name = hashlib.sha256(f"{self._seed}:sample:{rollout.id}".encode()).hexdigest()[:16]
        known = {key: value for key, value in told.items() if value is not None}
        self._lines.append(json.dumps({"rollout_id": name, **known}, separators=(",", ":")))

    def _at(self, seconds: float) -> float:
        return round(self._start + seconds, 3)

    def take(self) -> list[str]:
        """The lines since the last call, oldest first."""
        lines = list(self._lines)
        self._lines.clear()
        return lines
