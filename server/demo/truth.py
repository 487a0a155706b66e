"""The true state, step by step, from the simulation itself. No collector reads it; tests compare with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from server.demo.faults import Fault
from server.demo.files import Files
from server.demo.harness import Harness
from server.demo.records import Batch, Groups, Means, Observer, Step
from server.demo.sandbox_truth import sandbox_state
from server.demo.scenarios import Scenario


class TruthFiles(Files):
    """Writes `truth.jsonl`, one line a trainer step, and `truth.json`, the parameters. Epoch times.

    `age`: seconds between the run's start and the clock's, from which faults count; `more`: beside the parameters.
    """

    def __init__(
        self, scenario: Scenario, seed: int, folder: Path, start: float, faults: Sequence[Fault], age: float = 0.0,
        **more: object,
    ) -> None:  # fmt: skip
        super().__init__(start)
        self._file = self._open(folder / "truth.jsonl")
        about = {"scenario": scenario.name, "seed": seed, "start": start, "parameters": parameters(scenario), **more}
        if faults:
            about["faults"] = [{"kind": fault.kind, "at": start + age + fault.at} for fault in faults]
        (folder / "truth.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")

    def _write(self, number: int, start: float, end: float, seconds: float, values: Mapping[str, object]) -> None:
        """The line of a step, whose parts are the stack's own."""
        times = {"step": number, "start": self._start + start, "end": self._start + end, "step_seconds": seconds}
        self._file.line(json.dumps({**times, **values}), self._start + end)


class Truth(TruthFiles, Observer):
    """Of prime-rl, and of whatever else trains on batches that an orchestrator ships."""

    def __init__(
        self, scenario: Scenario, seed: int, folder: Path, start: float, harness: Harness | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        age = scenario.sandboxes.age_seconds if scenario.sandboxes else 0.0
        super().__init__(scenario, seed, folder, start, faults, age, expected=expected(scenario))
        self._harness = harness

    def stepped(self, step: Step) -> None:
        values: dict[str, object] = {**_parts(step), **_samples(step.batch), **_state(step), **self._more(step)}
        if self._harness:
            values["sandboxes"] = sandbox_state(self._harness, step.end)
        self._write(step.batch.step, step.start, step.end, step.timing.total, values)

    def _more(self, step: Step) -> dict[str, float]:
        """Parts of only some stacks."""
        return {}


def _parts(step: Step) -> dict[str, float]:
    timing = step.timing
    return {
        "wait_seconds": timing.wait,
        "compute_seconds": timing.compute,
        "weight_sync_seconds": timing.broadcast,
        "checkpoint_seconds": timing.checkpoint,
        "other_seconds": timing.load,
    }


def _samples(batch: Batch) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    totals, in_flight, in_queue = zip(*batch.staleness(), strict=True)
    return {
        "samples": len(list(batch.rollouts())),
        "groups": len(batch.groups),
        "tokens": batch.response_tokens,
        "total_tokens": batch.total_tokens,
        "staleness_mean": fmean(totals),
        "staleness_max": max(totals),
        "staleness_in_flight_mean": fmean(in_flight),
        "staleness_in_queue_mean": fmean(in_queue),
        **outcomes(batch),
        "dropped_samples": sum(group.size for group in batch.dropped),
        "gate_seconds": batch.gate_seconds,
    }


def outcomes(made: Groups) -> dict[str, float]:
    """What became of the samples that one step trains on, in any stack."""
    rollouts = list(made.rollouts())
    return {
        "zero_advantage_ratio": made.group_ratio("all", "none"),
        "all_solved_ratio": made.group_ratio("all"),
        "none_solved_ratio": made.group_ratio("none"),
        "response_tokens_mean": fmean(rollout.response_tokens for rollout in rollouts),
        "response_tokens_max": max(rollout.response_tokens for rollout in rollouts),
        "truncated_ratio": fmean(rollout.truncated for rollout in rollouts),
        "reward_mean": fmean(rollout.reward for rollout in rollouts),
    }


def engine_state(version: int, means: Means, generation_tokens: int) -> dict[str, float]:
    """Of a stack without a queue: time-weighted means over the step, and totals at its end."""
    return {
        "policy_version": version,
        "requests_running": means.running,
        "requests_waiting": means.waiting,
        "kv_usage": means.kv_usage,
        "generation_tokens": generation_tokens,
    }


def _state(step: Step) -> dict[str, float]:
    """Time-weighted means over the step, and totals at its end."""
    return {
        "policy_version": step.version,
        "queue_samples": step.means.queue,
        "requests_running": step.means.running,
        "requests_waiting": step.means.waiting,
        "kv_usage": step.means.kv_usage,
        "in_flight": step.means.in_flight,
        "requests_finished": step.requests_finished,
        "generation_tokens": step.generation_tokens,
    }


def parameters(scenario: Scenario) -> dict[str, object]:
    """Returns all parameters that are set; parts that a scenario lacks are omitted."""
    return {name: value for name, value in asdict(scenario).items() if value is not None}


def expected(scenario: Scenario) -> dict[str, float]:
    """What the parameters alone predict: rates in samples (rollouts) per second, times in seconds."""
    tool_tokens = scenario.sandboxes.mean_tool_tokens if scenario.sandboxes else 0.0
    tokens = scenario.batch_samples * (scenario.mean_prompt_tokens + tool_tokens + scenario.mean_response_tokens)
    # Mean step: means of the parts; their noise is symmetric enough to leave out.
    compute = tokens / scenario.train_tokens_per_second
    overhead = (
        scenario.load_seconds + scenario.broadcast_seconds + scenario.checkpoint_seconds / scenario.checkpoint_every
    )
    return {
        "compute_seconds": compute,
        "overhead_seconds": overhead,
        "capacity_samples_per_second": scenario.batch_samples / (compute + overhead),
        "compute_capacity_samples_per_second": scenario.batch_samples / compute,
        "response_tokens_mean": scenario.mean_response_tokens,
        "gpus": scenario.train_gpus + scenario.engines,
    }
