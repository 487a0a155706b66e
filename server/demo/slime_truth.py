"""The true state of a slime run, step by step. No collector reads it; tests compare with it."""

from collections.abc import Sequence
from pathlib import Path

from server.demo.faults import Fault
from server.demo.scenarios import Scenario
from server.demo.slime_records import Generation, SlimeObserver, SlimeStep, SlimeTiming
from server.demo.truth import TruthFiles, engine_state, outcomes


class SlimeTruth(TruthFiles, SlimeObserver):
    """Like `Truth`, for slime: generations, and no checkpoints."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path, start: float, faults: Sequence[Fault]) -> None:
        super().__init__(scenario, seed, folder, start, faults)
        self._scenario = scenario

    def trained(self, step: SlimeStep) -> None:
        state = engine_state(step.version, step.means, step.generation_tokens)
        values = {**_parts(step.timing), **samples(step.generation), **mfu(self._scenario, step), **state}
        self._write(step.generation.number, step.start, step.end, step.timing.total, values)


def _parts(timing: SlimeTiming) -> dict[str, float]:
    return {
        "wait_seconds": timing.wait,
        "compute_seconds": timing.compute,
        "weight_sync_seconds": timing.update,
        "checkpoint_seconds": 0.0,
        "other_seconds": timing.preprocess,
    }


def samples(made: Generation) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    staleness = made.number - made.version
    return {
        "samples": len(list(made.rollouts())),
        "groups": len(made.groups),
        "aborted_samples": sum(1 for _ in made.dropped()),
        "aborted_tokens": sum(rollout.generated for rollout in made.dropped()),
        "generation_seconds": made.ended - made.begun,
        "tokens": made.response_tokens,
        "total_tokens": made.total_tokens,
        "staleness_mean": staleness,
        "staleness_max": staleness,
        **outcomes(made),
    }


def mfu(scenario: Scenario, step: SlimeStep) -> dict[str, float]:
    """`busy` counts the training time only."""
    assert scenario.slime is not None
    flops = scenario.slime.train_flops(step.generation.lengths())
    rate = flops / (scenario.train_gpus * scenario.peak_flops)
    return {"mfu_wall": rate / step.timing.total, "mfu_busy": rate / step.timing.compute}
