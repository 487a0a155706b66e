"""Writes the run directory of prime-rl as the simulation goes: metrics.jsonl, logs, broadcasts, configs.

Trainer and orchestrator append to one metrics.jsonl, as in the real thing. Everything carries event time: the stamps
inside, and the files' modification times.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from statistics import fmean

from demo.engine import MAX_MODEL_LEN
from demo.orchestrator import INFRA, Orchestrator, trace_id
from demo.records import AppendFile, Batch, Files, Observer, Step
from demo.rollouts import Call, Group, Rollout
from demo.scenarios import Scenario

# ---- prime rows
# The rows of prime-rl's `metrics.jsonl` (559b44772): one of the orchestrator and five of the trainer per step.

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


def _pool(trained: tuple[Group, ...], dropped: tuple[Group, ...], subset: str) -> Row:
    # Dropped groups arrived in the window, so `all` counts them; `effective` is what was shipped.
    groups = (*trained, *dropped)
    members = [rollout for group in groups for rollout in group.rollouts]
    rewarded = [rollout for rollout in members if not rollout.error]
    rollouts = members if subset == "all" else rewarded
    cancelled = 1 - len(trained) / len(groups)
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


# ---- prime configs
# The resolved configs prime-rl's launcher leaves in `<run_dir>/configs` before anything runs.

Config = dict[str, object]


def write_configs(scenario: Scenario, run_dir: Path, start: float, engines: list[str]) -> None:
    """rl.json and its parts, with the modification time of the launch (epoch `start`)."""
    folder = run_dir / "configs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in _configs(scenario, str(run_dir), engines).items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config, indent=2) + "\n")
        os.utime(path, (start, start))


def _configs(scenario: Scenario, run_dir: str, engines: list[str]) -> dict[str, Config]:
    trainer = _trainer(scenario, run_dir)
    orchestrator = _orchestrator(scenario, run_dir, engines)
    inference = _inference(scenario)
    launcher: Config = {
        "run": {"name": scenario.run},
        "output_dir": run_dir,
        "max_steps": None,
        "max_off_policy_steps": scenario.max_off_policy_steps,
        "deployment": _deployment(scenario),
        "trainer": trainer,
        "orchestrator": orchestrator,
        "inference": inference,
    }
    return {"rl": launcher, "trainer": trainer, "orchestrator": orchestrator, "inference": inference}


def _deployment(scenario: Scenario) -> Config:
    return {
        "type": "single_node",
        "gpus_per_node": 8,
        "num_train_gpus": scenario.train_gpus,
        "num_infer_gpus": scenario.engines,
    }


def _monitors() -> Config:
    return {"wandb": None, "file": {"path": "metrics.jsonl"}, "prime": None}


def _trainer(scenario: Scenario, run_dir: str) -> Config:
    return {
        "model": {"name": scenario.model, "seq_len": MAX_MODEL_LEN},
        "optim": {"type": "adamw", "lr": 1e-06},
        "ckpt": {"interval": scenario.checkpoint_every},
        "weight_broadcast": {"type": "filesystem"},
        "log": {"level": "info", "json_logging": False},
        "monitors": _monitors(),
        # Opt-in in prime-rl; left off, as most runs leave it.
        "metrics_server": None,
        "output_dir": run_dir,
        "max_steps": None,
    }


def _orchestrator(scenario: Scenario, run_dir: str, engines: list[str]) -> Config:
    return {
        "model": {
            "name": scenario.model,
            # base_url would be the router's; there is none here, so it is the first engine's.
            "client": {"base_url": f"{engines[0]}/v1" if engines else "", "admin_base_url": engines},
        },
        "train": {
            "source": [{"name": scenario.environment, "group_size": scenario.group_size}],
            "sampling": {"temperature": 1.0, "max_completion_tokens": scenario.max_tokens},
        },
        "eval": None,
        # Default 10; the cluster's TICK_SECONDS is this.
        "log": {"level": "info", "json_logging": False, "interval": 2.0},
        "monitors": _monitors(),
        "weight_broadcast": {"type": "filesystem"},
        "concurrency": {"max_inflight": scenario.max_in_flight},
        "output_dir": run_dir,
        "batch_size": scenario.batch_samples,
        "token_batch_size": None,
        "group_size": scenario.group_size,
        "seq_len": MAX_MODEL_LEN,
        "num_train_workers": scenario.train_gpus,
        "max_steps": None,
        "max_off_policy_steps": scenario.max_off_policy_steps,
    }


def _inference(scenario: Scenario) -> Config:
    return {
        "model": {"name": scenario.model, "max_model_len": MAX_MODEL_LEN},
        "vllm": {
            "tensor_parallel_size": 1,
            "data_parallel_size": scenario.engines,
            "max_num_seqs": scenario.max_num_seqs,
        },
    }


_ROW_GAP_SECONDS = 2.5e-05  # between two rows of one step, as recorded
_KEEP_BROADCASTS = 3  # enough for every version still in flight


class Log:
    """Lines as loguru writes them for prime-rl: local time, level right-aligned to 7, message. Without the colours."""

    def __init__(self, file: AppendFile, start: float) -> None:
        self._file = file
        self._start = start

    def write(self, now: float, message: str, level: str = "INFO") -> None:
        stamp = self._start + now
        clock = time.strftime("%H:%M:%S", time.localtime(stamp))
        self._file.line(f"{clock} {level:>7} {message}", stamp)


class PrimeRun(Files, Observer):
    """Writes a prime-rl run that began at epoch `start` to `run_dir`."""

    def __init__(
        self, scenario: Scenario, seed: int, orchestrator: Orchestrator, run_dir: Path, start: float, engines: list[str]
    ) -> None:
        super().__init__(start)
        self._scenario = scenario
        self._orchestrator = orchestrator
        self._dir = run_dir
        self._noise = Random(f"{seed}:learning")
        self._progress = Progress()
        write_configs(scenario, run_dir, start, engines)
        self._metrics = self._open(run_dir / "metrics.jsonl")
        logs = _attempt_dir(run_dir)
        self._trainer_log = Log(self._open(logs / "trainer.log"), start)
        self._orchestrator_log = Log(self._open(logs / "orchestrator.log"), start)

    def started(self, now: float) -> None:
        self._trainer_log.write(now, "Starting training loop (max_steps=infinite)")
        self._trainer_log.write(now, "Broadcasting startup policy weights (v0) to inference engines")
        self._broadcast(now, 0)
        self._orchestrator_log.write(now, "Policy inference pool ready", "SUCCESS")
        self._orchestrator_log.write(now, "Training from scratch")
        self._orchestrator_log.write(now, "Starting orchestrator loop (max_steps=infinite)")

    def tick(self, now: float) -> None:
        """Returns the pipeline line. The part of a batch and the excess beyond it add up to the buffer."""
        queued = self._orchestrator.queue.value
        target = self._scenario.batch_samples
        batch = min(queued, target)
        buffered = f" (+{queued - batch} buffered)" if queued > batch else ""
        flight = self._orchestrator.in_flight.value
        self._orchestrator_log.write(
            now,
            f"Train batch {batch}/{target} ({batch / target:.1%}){buffered}; "
            f"{flight} inflight episodes (train={flight}, eval=0)",
        )

    def gate(self, now: float, is_open: bool) -> None:
        # prime-rl's text, including its grammar, because log readers match it.
        ahead = "Pausing dispatcher to prevent orchestrator from racing from trainer. Waiting for new policy..."
        self._orchestrator_log.write(now, "Resuming dispatcher" if is_open else ahead)

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        row = orchestrator_row(self._scenario, batch, now, pack_seconds, self._progress)
        self._row(batch.step, now, row)
        self._orchestrator_log.write(now, _orchestrator_line(batch, row), "SUCCESS")

    def published(self, now: float, version: int) -> None:
        self._broadcast(now, version)
        if version % self._scenario.checkpoint_every == 0:
            self._trainer_log.write(now, f"Saving checkpoint at step {version}")

    def stepped(self, step: Step) -> None:
        rows = trainer_rows(self._scenario, step, self._noise)
        for index, row in enumerate(rows):
            self._row(step.batch.step, step.end + index * _ROW_GAP_SECONDS, row)
        merged = {key: value for row in rows for key, value in row.items()}
        self._trainer_log.write(step.end, _trainer_line(step, merged), "SUCCESS")

    def _row(self, step: int, now: float, row: Row) -> None:
        stamp = self._start + now
        self._metrics.line(json.dumps({"step": step, "time": stamp, **row}), stamp)

    def _broadcast(self, now: float, version: int) -> None:
        marker = self._dir / "broadcasts" / f"step_{version}" / "STABLE"
        marker.parent.mkdir(parents=True)
        marker.touch()
        stamp = self._start + now
        for path in (marker, marker.parent):
            os.utime(path, (stamp, stamp))
        shutil.rmtree(self._dir / "broadcasts" / f"step_{version - _KEEP_BROADCASTS}", ignore_errors=True)


def _attempt_dir(run_dir: Path) -> Path:
    """`logs/attempt_1`, with `logs/latest` pointing at it, as a first launch leaves it."""
    attempt = run_dir / "logs" / "attempt_1"
    attempt.mkdir(parents=True)
    (run_dir / "logs" / "latest").symlink_to(attempt.name)
    return attempt


def _seconds(seconds: float) -> str:
    """prime-rl's format_time, padded as its step lines are."""
    if seconds >= 60:
        text = f"{seconds // 60:.0f}m {seconds % 60 // 1:.0f}s"
    elif seconds < 1:
        text = f"{seconds * 1e3:.0f}ms"
    else:
        text = f"{seconds:.2f}s"
    return f"{text:>7}"


def _orchestrator_line(batch: Batch, row: Row) -> str:
    samples = sum(len(group.rollouts) for group in batch.groups)
    share = row["train/agg/effective/agent/is_trainable/mean"]
    return (
        f"Step {batch.step} | {_seconds(row['time/step'])} | "
        f"Reward {row['train/agg/effective/agent/reward/mean']:.4f} | "
        f"Trainable {round(share * samples)}/{samples} ({share:.1%}) | "
        f"Turns {row['train/agg/effective/num_turns/mean']:.1f} | Branches 1.0 | "
        f"Max Off-Policy {row['off_policy/max']:.0f} | "
        f"Error {row['train/agg/all/has_error/mean']:.1%} | "
        f"Cancelled {row['train/agg/all/cancelled/mean']:.1%} | "
        f"Truncation {row['train/agg/effective/agent/is_truncated/mean']:.1%}"
    )


def _trainer_line(step: Step, row: Row) -> str:
    return (
        f"Step {step.batch.step} | {_seconds(step.timing.total)} | Loss {row['loss/mean']:.4f} | "
        f"Entropy {row['entropy/all/mean']:.4f} | Mismatch KL {row['mismatch_kl/all/mean']:.4f} | "
        f"Grad. Norm {row['optim/grad_norm']:.4f} | LR {row['optim/lr']:.2e} | "
        f"Throughput {row['perf/throughput']:.0f} tokens/s | MFU {row['perf/mfu']:.1f}% | "
        f"Peak Mem. {row['perf/peak_memory']:.1f} GiB"
    )


# ---- traces
# Writes `rollouts/step_N/train/{all,effective}/traces.jsonl` as prime-rl's file monitor does (verifiers 0.4.0).

KEPT_STEPS = 64
_INFO = '"info":{}'
_EMPTY_MESSAGE = {"user": "Solve the task.", "assistant": "Done.", "tool": "ok"}
Record = dict[str, object]


class Traces(Observer):
    """One `Rollout` is one episode with one trace. `start` is the run's, epoch seconds.

    Nothing is written of rollouts scored before `since` (epoch seconds): during the fast first hour, records of every
    rollout would take twice as long as everything else.
    """

    def __init__(
        self, scenario: Scenario, seed: int, orchestrator: Orchestrator, run_dir: Path, start: float,
        since: float = 0.0,
    ) -> None:  # fmt: skip
        self._since = since - start
        self._scenario = scenario
        self._seed = seed
        self._orchestrator = orchestrator
        self._dir = run_dir / "rollouts"
        self._start = start
        self._step = 0
        self._file: AppendFile | None = None
        # Episodes that wait to be shipped, as written.
        self._waiting: dict[Rollout, str] = {}

    def scored(self, now: float, rollout: Rollout) -> None:
        if now < self._since:
            return
        line = self._line(rollout, now)
        if not rollout.error:
            self._waiting[rollout] = line
        self._all(self._orchestrator.taken_batches + 1).line(line, self._start + now)

    def evaluated(self, now: float, rollout: Rollout) -> None:
        """Into a file of its own, below the step that is being collected."""
        if now < self._since:
            return
        stamp, path = self._start + now, self._new_path(self._orchestrator.taken_batches + 1, "all", "eval")
        # A few lines at a time, so the file is not kept open.
        with path.open("ab") as file:
            file.write(self._line(rollout, now).encode() + b"\n")
        os.utime(path, (stamp, stamp))

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        if now < self._since:
            return
        stamp = self._start + now
        file = AppendFile(self._new_path(batch.step, "effective"), stamp)
        for rollout in batch.rollouts():
            if rollout not in self._waiting:
                continue
            advantage = f'"info":{{"advantage":{rollout.reward - fmean(rollout.group.rewards):.6g}}}'
            file.line(self._waiting.pop(rollout).replace(_INFO, advantage, 1), stamp)
        file.flush()
        file.close()
        for group in batch.dropped:
            for rollout in group.rollouts:
                self._waiting.pop(rollout, None)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _all(self, step: int) -> AppendFile:
        if self._file is None or step != self._step:
            self.flush()
            self.close()
            self._step, self._file = step, AppendFile(self._new_path(step, "all"), self._start)
            shutil.rmtree(self._dir / f"step_{step - KEPT_STEPS}", ignore_errors=True)
        return self._file

    def _new_path(self, step: int, cohort: str, kind: str = "train") -> Path:
        folder = self._dir / f"step_{step}" / kind / cohort
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "traces.jsonl"

    # -- one episode -------------------------------------------------------------------------------------------

    def _line(self, rollout: Rollout, now: float) -> str:
        # The default separators would cost a tenth of the file.
        return json.dumps(self._episode(rollout, now), separators=(",", ":"))

    def _episode(self, rollout: Rollout, now: float) -> Record:
        scenario, group = self._scenario, rollout.group
        policy = {"start": group.version, "end": rollout.version_end}
        environment, kind = group.evaluates or scenario.environment, "eval" if group.evaluates else "train"
        return {
            "id": _hash(self._seed, "episode", rollout.id),
            "env": {"id": environment, "name": environment},
            "task": {"type": "Task", "data": {"idx": group.id}, "key": str(group.id)},
            "group": {"id": group_id(self._seed, group)},
            "run": {
                "type": kind,
                "id": _hash(self._seed, "run"),
                "name": scenario.run,
                "work": {"type": kind, "step": group.version + 1, "policy": policy},
            },
            "ok": not rollout.error,
            "errors": [],
            "traces": [self._trace(rollout, now)],
        }

    def _trace(self, rollout: Rollout, now: float) -> Record:
        return {
            "version": 1,
            "id": trace_id(self._seed, rollout),
            "verifiers": {"version": "0.4.0"},
            "agent": {"name": "agent", "trainable": True, "runtime": _runtime(rollout)},
            "nodes": list(_nodes(rollout.calls)),
            "calls": [self._call(rollout, index, call) for index, call in enumerate(rollout.calls)],
            "rewards": {} if rollout.error else {"solved": {"score": rollout.reward, "weight": 1.0}},
            "metrics": {"num_turns": float(rollout.turns)},
            "info": {},
            "is_completed": True,
            "ok": not rollout.error,
            "stop_condition": "max_output_tokens" if rollout.truncated else "agent_completed",
            "errors": list(_errors(rollout)),
            "timing": self._timing(rollout, now),
        }

    def _call(self, rollout: Rollout, index: int, call: Call) -> Record:
        is_last = index == len(rollout.calls) - 1
        return {
            "node": 2 * index + 1,
            "model": self._scenario.model,
            "finish_reason": "tool_calls" if not is_last else "length" if rollout.truncated else "stop",
            "time": self._span(call.start, call.end),
            "usage": {"prompt_tokens": call.input_tokens, "completion_tokens": call.output_tokens},
        }

    def _timing(self, rollout: Rollout, now: float) -> Record:
        set_up = rollout.ready - (rollout.setup_seconds if rollout.sandbox else 0.0)
        timing: Record = {"start": self._at(rollout.dispatched)}
        if rollout.sandbox is not None:
            timing["boot"] = self._span(rollout.sandbox.created, set_up)
        answered = sum(call.end - call.start for call in rollout.calls)
        return timing | {
            "setup": self._span(set_up, rollout.ready),
            "agent": {**self._span(rollout.ready, rollout.finished), "model": {"duration": round(answered, 3)}},
            "finalize": self._span(rollout.finished, rollout.finished),
            "scoring": self._span(rollout.finished, now),
        }

    def _span(self, start: float, end: float) -> dict[str, float]:
        return {"start": self._at(start), "end": self._at(end)}

    def _at(self, seconds: float) -> float:
        return round(self._start + seconds, 3)


def _errors(rollout: Rollout) -> Iterator[Record]:
    """Oldest first: boots that were tried again, and what it was lost by."""
    for text in rollout.boot_errors:
        yield {"type": INFRA, "message": text}
    if rollout.error:
        yield {"type": rollout.error, "message": "while it was scored"}


def group_id(seed: int, group: Group) -> str:
    """A group's id, as long as a trace's."""
    return _hash(seed, "group", group.id)


def _nodes(calls: list[Call]) -> Iterator[Record]:
    """Returns the conversation, a chain: question, answer, the command's output, answer, ..."""
    yield {"message": _message("user"), "sampled": False}
    for index in range(len(calls)):
        answer = _message("assistant")
        is_last = index == len(calls) - 1
        if not is_last:
            answer["tool_calls"] = [{"id": f"c{index}", "name": "bash", "arguments": "{}"}]
        yield {"parent": 2 * index, "message": answer, "sampled": True}
        if not is_last:
            message = {**_message("tool"), "tool_call_id": f"c{index}"}
            yield {"parent": 2 * index + 1, "message": message, "sampled": False}


def _message(role: str) -> Record:
    return {"role": role, "content": _EMPTY_MESSAGE[role]}


def _runtime(rollout: Rollout) -> Record:
    if rollout.sandbox is None:
        return {"type": "subprocess"}
    return {"type": "prime", "id": rollout.sandbox.id, "borrowed": False, "image": rollout.sandbox.image}


def _hash(*parts: object) -> str:
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:32]
