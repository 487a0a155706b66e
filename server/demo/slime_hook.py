"""Posts of a function for `--custom-rollout-log-function-path` about each sample of slime: data its log lacks.

NDJSON for `POST /api/v1/runs/RUN/rollouts`. slime passes every sample of an ended rollout to that function, with weight
versions and status (slime/utils/types.py), so the past is posted. Samples in flight are posted once the demo is live.
"""

import hashlib
from collections.abc import Iterable

from server.demo.rollouts import Rollout
from server.demo.slime_records import Generation, SlimeObserver, SlimeTiming
from server.demo.telling import Telling


class SlimeHook(Telling, SlimeObserver):
    """Collects lines as events happen. A rollout (in slime's sense) that ended before `since` is left out."""

    def go_live(self, under_way: Iterable[Rollout]) -> None:
        """From now on also posts starts; the given rollouts have begun already."""
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

    def _ended(self, rollout: Rollout, **values: object) -> None:
        tokens = rollout.generated
        self._say(
            rollout, first_token_at=self._at(rollout.first_token) if rollout.first_token else None,
            finished_at=self._at(rollout.finished), prompt_tokens=rollout.group.prompt_tokens, response_tokens=tokens,
            token_versions=[[rollout.group.version, tokens]] if tokens else [], turns=1, tool_calls=0,
            version_finish=rollout.group.version, **values, **self._about(rollout),
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

    def _name(self, rollout: Rollout) -> str:
        return hashlib.sha256(f"{self._seed}:sample:{rollout.id}".encode()).hexdigest()[:16]
