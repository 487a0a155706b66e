"""What really happened in a run of verl, step by step. No collector reads it; tests judge by it."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from server.demo.faults import Fault
from server.demo.prime_run import AppendFile
from server.demo.scenarios import Scenario
from server.demo.truth import parameters
from server.demo.verl_records import VerlObserver, VerlStep


class VerlTruth(VerlObserver):
    """Writes `truth.jsonl`, one line a trainer step, and `truth.json`, the parameters. Epoch times."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path, start: float, faults: Sequence[Fault]) -> None:
        self._start = start
        self._file = AppendFile(folder / "truth.jsonl", start)
        about: dict[str, object] = {"scenario": scenario.name, "seed": seed, "start": start}
        about["parameters"] = parameters(scenario)
        if faults:
            about["faults"] = [{"kind": fault.kind, "at": start + fault.at} for fault in faults]
        (folder / "truth.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")

    def stepped(self, step: VerlStep) -> None:
        line = {**self._times(step), **_samples(step), **_state(step)}
        self._file.line(json.dumps(line), self._start + step.end)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _times(self, step: VerlStep) -> dict[str, float]:
        timing = step.timing
        return {
            "step": step.number,
            "start": self._start + step.start,
            "end": self._start + step.end,
            "step_seconds": timing.total,
            "generation_seconds": timing.generation,
            "compute_seconds": timing.compute,
            "weight_sync_seconds": timing.weights,
            "checkpoint_seconds": timing.checkpoint,
            "other_seconds": timing.reward,
            "tail_bubble_ratio": step.bubble,
        }


def _samples(step: VerlStep) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    rollouts = list(step.rollouts())
    return {
        "samples": len(rollouts),
        "groups": len(step.groups),
        "tokens": step.response_tokens,
        "total_tokens": step.total_tokens,
        "zero_advantage_ratio": step.group_ratio("all", "none"),
        "all_solved_ratio": step.group_ratio("all"),
        "none_solved_ratio": step.group_ratio("none"),
        "response_tokens_mean": step.response_tokens / len(rollouts),
        "response_tokens_max": max(rollout.response_tokens for rollout in rollouts),
        "truncated_ratio": fmean(rollout.truncated for rollout in rollouts),
        "reward_mean": fmean(rollout.reward for rollout in rollouts),
    }


def _state(step: VerlStep) -> dict[str, float]:
    """Time-weighted means over the step, and totals at its end."""
    return {
        "policy_version": step.number,
        "requests_running": step.means.running,
        "requests_waiting": step.means.waiting,
        "kv_usage": step.means.kv_usage,
        "generation_tokens": step.generation_tokens,
    }
