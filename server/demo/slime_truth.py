"""What really happened in a run of slime, step by step. No collector reads it; tests judge by it."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from server.demo.faults import Fault
from server.demo.prime_run import AppendFile
from server.demo.scenarios import Scenario
from server.demo.slime_records import Generation, SlimeObserver, SlimeStep
from server.demo.truth import parameters


class SlimeTruth(SlimeObserver):
    """Writes `truth.jsonl`, one line a trainer step, and `truth.json`, the parameters. Epoch times."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path, start: float, faults: Sequence[Fault]) -> None:
        self._scenario, self._start = scenario, start
        self._file = AppendFile(folder / "truth.jsonl", start)
        about: dict[str, object] = {"scenario": scenario.name, "seed": seed, "start": start}
        about["parameters"] = parameters(scenario)
        if faults:
            about["faults"] = [{"kind": fault.kind, "at": start + fault.at} for fault in faults]
        (folder / "truth.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")

    def trained(self, step: SlimeStep) -> None:
        line = {**self._times(step), **samples(step.generation), **mfu(self._scenario, step), **_state(step)}
        self._file.line(json.dumps(line), self._start + step.end)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _times(self, step: SlimeStep) -> dict[str, float]:
        timing = step.timing
        return {
            "step": step.generation.number,
            "start": self._start + step.start,
            "end": self._start + step.end,
            "step_seconds": timing.total,
            "wait_seconds": timing.wait,
            "compute_seconds": timing.compute,
            "weight_sync_seconds": timing.update,
            "checkpoint_seconds": 0.0,
            "other_seconds": timing.preprocess,
        }


def samples(made: Generation) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    rollouts = list(made.rollouts())
    staleness = made.number - made.version
    return {
        "samples": len(rollouts),
        "groups": len(made.groups),
        "aborted_samples": sum(1 for _ in made.dropped()),
        "aborted_tokens": sum(rollout.generated for rollout in made.dropped()),
        "generation_seconds": made.ended - made.begun,
        "tokens": made.response_tokens,
        "total_tokens": made.total_tokens,
        "staleness_mean": staleness,
        "staleness_max": staleness,
        "zero_advantage_ratio": made.group_ratio("all", "none"),
        "all_solved_ratio": made.group_ratio("all"),
        "none_solved_ratio": made.group_ratio("none"),
        "response_tokens_mean": made.response_tokens / len(rollouts),
        "response_tokens_max": max(rollout.response_tokens for rollout in rollouts),
        "truncated_ratio": fmean(rollout.truncated for rollout in rollouts),
        "reward_mean": fmean(rollout.reward for rollout in rollouts),
    }


def mfu(scenario: Scenario, step: SlimeStep) -> dict[str, float]:
    """6 FLOP per active parameter and token; `busy` counts the training time only."""
    assert scenario.slime is not None
    flops = 6 * scenario.slime.active_parameters_billion * 1e9 * step.generation.total_tokens
    rate = flops / (scenario.train_gpus * scenario.peak_flops)
    return {"mfu_wall": rate / step.timing.total, "mfu_busy": rate / step.timing.compute}


def _state(step: SlimeStep) -> dict[str, float]:
    """Time-weighted means over the step, and totals at its end."""
    return {
        "policy_version": step.version,
        "requests_running": step.means.running,
        "requests_waiting": step.means.waiting,
        "kv_usage": step.means.kv_usage,
        "generation_tokens": step.generation_tokens,
    }
