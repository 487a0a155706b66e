"""Writes the run directory of prime-rl as the simulation goes: metrics.jsonl, logs, broadcasts, configs.

Trainer and orchestrator append to one metrics.jsonl, as in the real thing. Everything carries event time: the stamps
inside, and the files' modification times.
"""

import json
import os
import shutil
import time
from pathlib import Path
from random import Random

from server.demo.files import AppendFile, Files
from server.demo.orchestrator import Orchestrator
from server.demo.prime_configs import write_configs
from server.demo.prime_rows import Progress, Row, orchestrator_row, trainer_rows
from server.demo.records import Batch, Observer, Step
from server.demo.scenarios import Scenario

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
