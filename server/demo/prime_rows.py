"""The rows of prime-rl's `metrics.jsonl` (559b44772): one of the orchestrator and five of the trainer per step.

Keys and their order follow orchestrator/metrics.py, orchestrator.py and trainer/rl/train.py. Tokens and seconds as
there; `perf/mfu` is a percentage as there.
"""

from collections.abc import Iterable
from random import Random

from server.demo.records import Batch, Step
from server.demo.rollouts import Group, Rollout
from server.demo.scenarios import Scenario

Row = dict[str, float]

AGENT = "agent"  # verifiers' name for the only agent of a single-agent environment
_FINALIZE_SECONDS = 0.001


class Progress:
    """Running totals of the orchestrator; rows show them as before the step, as prime-rl does."""

    def __init__(self) -> None:
        self.tokens = 0
        self.rollouts = 0
        self.tasks = 0
        self.last_ship = 0.0


# -- orchestrator ----------------------------------------------------------------------------------------------


def orchestrator_row(scenario: Scenario, batch: Batch, now: float, pack: float, progress: Progress) -> Row:
    """The row at the shipping of a batch; `now` in seconds since the run began."""
    row = _matrix(scenario.environment, batch)
    row |= _progress(batch, progress)
    row |= {
        "time/step": now - progress.last_ship,
        "time/pack": pack,
        "time/save_ckpt": 0.0,  # the orchestrator's own checkpoint, a few kB
        "time/wait_for_policy": batch.gate_seconds,
    }
    row |= _off_policy(batch)
    # Shares of the batch by environment, of tasks let in by the curriculum: there is one, and no curriculum.
    row[f"batch/{scenario.environment}"] = 1.0
    row[f"curriculum/{scenario.environment}/admission_rate"] = 1.0
    progress.last_ship = now
    return row


def _matrix(environment: str, batch: Batch) -> Row:
    """Episode metrics over {agg, environment} x {all, effective}; with one environment both halves are equal."""
    row: Row = {}
    for subset, dropped in (("all", batch.dropped), ("effective", ())):
        metrics = _pool(batch.groups, dropped, subset)
        for scope in ("agg", environment):
            row |= {f"train/{scope}/{subset}/{key}": value for key, value in metrics.items()}
    return row


def _pool(kept: tuple[Group, ...], dropped: tuple[Group, ...], subset: str) -> Row:
    # Dropped groups arrived in the window, so `all` counts them; `effective` is what was shipped.
    groups = (*kept, *dropped)
    members = [rollout for group in groups for rollout in group.rollouts]
    rewarded = [rollout for rollout in members if not rollout.error]
    rollouts = members if subset == "all" else rewarded
    cancelled = 1 - len(kept) / len(groups)
    lengths = _lengths(rollouts)
    row = dict(lengths)
    failed = 1 - len(rewarded) / len(members)
    errors = {"has_error/mean": failed, "cancelled/mean": cancelled} if subset == "all" else {}
    row |= errors
    agent = distribution("reward", (r.reward for r in rewarded)) | lengths
    agent |= _rates(rollouts) | _timings(rollouts)
    agent |= distribution("rewards/correct_answer", (r.reward for r in rewarded)) | errors
    agent |= _solve_rates(groups) if subset == "all" else {}
    agent |= _stop_conditions(rollouts)
    agent["is_trainable/mean"] = sum(group.outcome == "some" for group in groups) / len(groups)
    agent["is_admitted/mean"] = 1 - cancelled
    return row | {f"{AGENT}/{key}": value for key, value in agent.items()}


def distribution(name: str, values: Iterable[float]) -> Row:
    """prime-rl's five statistics of a list, percentiles interpolated."""
    ordered = sorted(float(value) for value in values)
    return {
        f"{name}/mean": sum(ordered) / len(ordered),
        f"{name}/max": ordered[-1],
        f"{name}/min": ordered[0],
        f"{name}/p10": _percentile(ordered, 0.1),
        f"{name}/p90": _percentile(ordered, 0.9),
    }


def _percentile(ordered: list[float], share: float) -> float:
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def _lengths(rollouts: list[Rollout]) -> Row:
    return {
        **distribution("num_total_tokens", (r.input_tokens + r.response_tokens for r in rollouts)),
        **distribution("num_input_tokens", (r.input_tokens for r in rollouts)),
        **distribution("num_output_tokens", (r.response_tokens for r in rollouts)),
        **distribution("num_turns", (r.turns for r in rollouts)),
        **distribution("num_branches", (1 for _ in rollouts)),
    }


def _rates(rollouts: list[Rollout]) -> Row:
    return {"is_truncated/mean": _truncated(rollouts), "is_completed/mean": 1.0}


def _truncated(rollouts: list[Rollout]) -> float:
    return sum(r.truncated for r in rollouts) / len(rollouts)


def _timings(rollouts: list[Rollout]) -> Row:
    agent = [r.agent_seconds for r in rollouts]
    scoring = [r.scored - r.finished for r in rollouts]
    fixed = [r.setup_seconds + _FINALIZE_SECONDS for r in rollouts]
    return {
        **distribution("timing/setup", (r.setup_seconds for r in rollouts)),
        **distribution("timing/agent", agent),
        **distribution("timing/finalize", (_FINALIZE_SECONDS for _ in rollouts)),
        **distribution("timing/scoring", scoring),
        **distribution("timing/agent/model", (r.agent_seconds - r.tool_seconds for r in rollouts)),
        **distribution("timing/agent/harness", (r.tool_seconds for r in rollouts)),
        **distribution("timing/total", map(sum, zip(agent, scoring, fixed, strict=True))),
    }


def _solve_rates(groups: tuple[Group, ...]) -> Row:
    none, solved = (sum(group.outcome == outcome for group in groups) / len(groups) for outcome in ("none", "all"))
    return {"solved_none": none, "solved_all": solved, "solved_some": 1 - (none + solved)}


def _stop_conditions(rollouts: list[Rollout]) -> Row:
    truncated = _truncated(rollouts)
    return {"stop_condition/generation_truncated": truncated, "stop_condition/agent_completed": 1 - truncated}


def _progress(batch: Batch, progress: Progress) -> Row:
    arrived = [rollout for group in (*batch.groups, *batch.dropped) for rollout in group.rollouts]
    tokens = sum(rollout.input_tokens + rollout.response_tokens for rollout in arrived)
    tasks = len(batch.groups) + len(batch.dropped)
    row: Row = {
        "progress/tokens": tokens,
        "progress/input_tokens": batch.input_tokens,
        "progress/output_tokens": batch.response_tokens,
        "progress/rollouts": len(arrived),
        "progress/tasks": tasks,
        "progress/total_tokens": progress.tokens,
        "progress/total_rollouts": progress.rollouts,
        "progress/total_tasks": progress.tasks,
    }
    progress.tokens += tokens
    progress.rollouts += len(arrived)
    progress.tasks += tasks
    return row


def _off_policy(batch: Batch) -> Row:
    row: Row = {}
    for name, values in zip(("", "in_flight/", "in_queue/"), zip(*batch.staleness(), strict=True), strict=True):
        row[f"off_policy/{name}mean"] = sum(values) / len(values)
        row[f"off_policy/{name}max"] = float(max(values))
    row["off_policy/dropped"] = float(sum(len(group.rollouts) for group in batch.dropped))
    return row


# -- trainer ---------------------------------------------------------------------------------------------------


def trainer_rows(scenario: Scenario, step: Step, noise: Random) -> list[Row]:
    """Five rows: perf, optimiser, tensor statistics, times, disk."""
    learning = _learning(scenario.environment, step, noise)
    return [
        _perf(scenario, step),
        {"optim/lr": 1e-06, "optim/grad_norm": 0.3 * noise.lognormvariate(0.0, 0.15)},
        learning,
        _times(step),
        _disk(step.batch.step),
    ]


def _perf(scenario: Scenario, step: Step) -> Row:
    throughput = step.batch.total_tokens / step.timing.compute
    # Six per parameter and token: forward two, backward four.
    flops = 6 * scenario.parameters_billion * 1e9 * throughput
    return {
        "perf/throughput": throughput,
        "perf/throughput_per_gpu": throughput / scenario.train_gpus,
        "perf/mfu": 100 * flops / (scenario.train_gpus * scenario.peak_flops),
        "perf/peak_memory": 61.0,  # GiB; the reserved memory of a steady trainer does not move
    }


def _learning(environment: str, step: Step, noise: Random) -> Row:
    """Mismatch grows with staleness, entropy falls slowly: what a healthy run looks like."""
    totals = [total for total, _, _ in step.batch.staleness()]
    mismatch = 0.0012 * (1 + 0.3 * sum(totals) / len(totals)) * noise.lognormvariate(0.0, 0.1)
    entropy = 0.6 * (1 - 0.3 * step.batch.step / (step.batch.step + 400)) * noise.lognormvariate(0.0, 0.02)
    row: Row = {"loss/mean": noise.gauss(0.0, 0.01), "is_masked/mean": 0.002 * noise.lognormvariate(0.0, 0.3)}
    for scope in ("all", environment):
        row |= {f"entropy/{scope}/mean": entropy, f"entropy/{scope}/std": entropy * 1.4}
        row |= {f"mismatch_kl/{scope}/mean": mismatch, f"mismatch_kl/{scope}/max": mismatch * 850}
    row["kl_ent_ratio/mean"] = mismatch / entropy
    return row


def _times(step: Step) -> Row:
    timing = step.timing
    return {
        "time/step": timing.total,
        "time/wait_for_batch": timing.wait,
        "time/load_data": timing.load,
        "time/broadcast_weights": timing.broadcast,
        "time/save_ckpt": timing.checkpoint,
        "time/forward_backward": timing.compute,
    }


def _disk(step: int) -> Row:
    used = 312.0 + 0.02 * step
    total = 7_153.5
    return {
        "system/ckpt_disk_free_gib": total - used,
        "system/ckpt_disk_used_gib": used,
        "system/ckpt_disk_total_gib": total,
    }
