"""The true state of a verl run, step by step. No collector reads it; tests compare with it."""

from server.demo.truth import TruthFiles, engine_state, outcomes
from server.demo.verl_records import VerlObserver, VerlStep


class VerlTruth(TruthFiles, VerlObserver):
    """Like `Truth`, for synchronous verl: nothing waits, and no weights are old."""

    def stepped(self, step: VerlStep) -> None:
        state = engine_state(step.number, step.means, step.generation_tokens)
        self._write(step.number, step.start, step.end, step.timing.total, {**_parts(step), **_samples(step), **state})


def _parts(step: VerlStep) -> dict[str, float]:
    timing = step.timing
    return {
        "generation_seconds": timing.generation,
        "compute_seconds": timing.compute,
        "weight_sync_seconds": timing.weights,
        "checkpoint_seconds": timing.checkpoint,
        "other_seconds": timing.reward,
        "tail_bubble_ratio": step.bubble,
    }


def _samples(step: VerlStep) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    return {
        "samples": len(list(step.rollouts())),
        "groups": len(step.groups),
        "tokens": step.response_tokens,
        "total_tokens": step.total_tokens,
        **outcomes(step),
    }
