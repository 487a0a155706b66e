"""The run directory of verl 0.9.1 with `trainer.logger=['file']`: configuration as printed, metrics, generations.

Keys and their order follow a recorded run (trainer/ppo/metric_utils.py, trainer/ppo/v1): lines of the file logger have
no times. `rollouts/STEP.jsonl` is `trainer.rollout_data_dir`, here with placeholders for texts; the newest are kept.
"""

import hashlib
import json
import os
import pprint
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean

from server.demo.files import Files
from server.demo.scenarios import Scenario
from server.demo.verl_records import VerlObserver, VerlStep

_PROJECT, _EXPERIMENT = "grpo-math", "qwen3-8b-sync"
# Folders of generations kept: more than any window reads. verl keeps them all.
_KEPT_STEPS = 32


class FileLogger(Files):
    """The two files of any verl run below `run_dir`: what it prints, and the lines of `trainer.logger=['file']`."""

    def __init__(self, seed: int, run_dir: Path, start: float, project: str, experiment: str) -> None:
        super().__init__(start)
        self._noise = Random(f"{seed}:learning")
        self._log_path = f"{project}/{experiment}.jsonl"
        (run_dir / project).mkdir()
        self._log = self._open(run_dir / "train.log")
        self._metrics = self._open(run_dir / self._log_path)

    def _print(self, config: Mapping[str, object], now: float) -> None:
        """The configuration as verl prints it when it begins."""
        text = pprint.pformat(config)
        self._log.line(f"{text}\nCreating file logger at {self._log_path}", self._start + now)

    def _line(self, number: int, data: Mapping[str, float], now: float) -> None:
        self._metrics.line(json.dumps({"step": number, "data": data}, separators=(",", ":")), self._start + now)


class VerlRun(FileLogger, VerlObserver):
    """Writes a verl run that began at epoch `start` to `run_dir`. No generation before `since` (epoch) is written."""

    def __init__(self, scenario: Scenario, seed: int, run_dir: Path, start: float, since: float = 0.0) -> None:
        assert scenario.verl is not None
        super().__init__(seed, run_dir, start, _PROJECT, _EXPERIMENT)
        self._scenario, self._seed, self._since = scenario, seed, since
        self.generations = run_dir / "rollouts"
        self.generations.mkdir()

    def started(self, now: float) -> None:
        self._print(_config(self._scenario), now)

    def stepped(self, step: VerlStep) -> None:
        self._line(step.number, self._data(step), step.end)
        if self._start + step.end >= self._since:
            self._dump(step)

    # -- metrics -----------------------------------------------------------------------------------------------

    def _data(self, step: VerlStep) -> dict[str, float]:
        rewards = [rollout.reward for rollout in step.rollouts()]
        lengths = [rollout.response_tokens for rollout in step.rollouts()]
        cut = fmean(rollout.truncated for rollout in step.rollouts())
        prompts = [rollout.group.prompt_tokens for rollout in step.rollouts()]
        return {
            "training/global_step": step.number,
            "training/epoch": 0,
            **spread("critic/score", rewards),
            **spread("critic/rewards", rewards),
            **_lengths("response_length", lengths, cut),
            **_lengths("response_length_non_aborted", lengths, cut),
            "response/aborted_ratio": 0.0,
            **_lengths("prompt_length", prompts, 0.0),
            "num_turns/min": 2,
            "num_turns/max": 2,
            "num_turns/mean": 2.0,
            **self._times(step),
            **self._actor(step),
        }

    def _times(self, step: VerlStep) -> dict[str, float]:
        timing, tokens = step.timing, step.total_tokens
        saved = {"timing_s/save_checkpoint": timing.checkpoint} if timing.checkpoint else {}
        return {
            "timing_s/gen": timing.generation,
            "timing_s/reward": timing.reward,
            "timing_s/old_log_prob": timing.logprob,
            "timing_s/adv": timing.advantage,
            "timing_s/update_actor": timing.actor,
            **saved,
            "timing_s/update_weights": timing.weights,
            "timing_s/step": timing.total,
            "timing_per_token_ms/gen": 1_000 * timing.generation / step.response_tokens,
            "timing_per_token_ms/adv": 1_000 * timing.advantage / tokens,
            "timing_per_token_ms/update_actor": 1_000 * timing.actor / tokens,
            "perf/total_num_tokens": tokens,
            "perf/time_per_step": timing.total,
            "perf/throughput": tokens / timing.total / self._scenario.train_gpus,
        }

    def _actor(self, step: VerlStep) -> dict[str, float]:
        """Entropy decreases slowly. The model's FLOPs are divided by the update's time only."""
        s, noise = self._scenario, self._noise
        flops = 6 * s.parameters_billion * 1e9 * step.total_tokens
        return {
            "perf/mfu/actor": flops / step.timing.actor / (s.train_gpus * s.peak_flops),
            "actor/pg_clipfrac": 0.0009 * noise.lognormvariate(0.0, 0.2),
            "actor/ppo_kl": 0.0004 * noise.lognormvariate(0.0, 0.3),
            "actor/pg_clipfrac_lower": 0.0,
            "actor/pg_loss": noise.gauss(0.0, 0.01),
            "actor/grad_norm": 0.24 * noise.lognormvariate(0.0, 0.15),
            "actor/lr": 1e-06,
            "actor/entropy": 0.5 * (1 - 0.3 * step.number / (step.number + 400)) * noise.lognormvariate(0.0, 0.02),
        }

    # -- generations -------------------------------------------------------------------------------------------

    def _dump(self, step: VerlStep) -> None:
        path, stamp = self.generations / f"{step.number}.jsonl", self._start + step.end
        lines = [json.dumps(row) for row in self._rows(step)]
        path.write_text("\n".join(lines) + "\n", "utf-8")
        os.utime(path, (stamp, stamp))
        (self.generations / f"{step.number - _KEPT_STEPS}.jsonl").unlink(missing_ok=True)

    def _rows(self, step: VerlStep) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for group in step.groups:
            uid = hashlib.sha256(f"{self._seed}:uid:{group.id}".encode()).hexdigest()[:32]
            for index, rollout in enumerate(group.rollouts):
                row = {"input": f"task {group.id}", "output": "...", "gts": "", "score": rollout.reward}
                rows.append(row | {"step": step.number, "uid": f"{uid}_{index}_0"})
        return rows


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}/mean": fmean(values), f"{name}/max": float(max(values)), f"{name}/min": float(min(values))}


def _lengths(name: str, values: Sequence[float], cut: float) -> dict[str, float]:
    return {**spread(name, values), f"{name}/clip_ratio": cut}


def _config(scenario: Scenario) -> dict[str, object]:
    """The part of the configuration that readers use, printed as verl prints all of it."""
    plan = scenario.verl
    assert plan is not None
    rollout = {
        "disable_log_stats": False, "name": "vllm", "n": scenario.group_size, "prometheus": {"enable": True},
        "tensor_model_parallel_size": plan.engine_gpus,
    }  # fmt: skip
    return {
        "actor_rollout_ref": {
            "actor": {"optim": {"lr": 1e-06}, "ppo_mini_batch_size": scenario.batch_groups},
            "hybrid_engine": True,
            "model": {"path": f"/models/{scenario.model.rpartition('/')[2]}"},
            "rollout": rollout,
        },
        "algorithm": {"adv_estimator": "grpo"},
        "data": {
            "max_prompt_length": 512, "max_response_length": scenario.max_tokens,
            "train_batch_size": scenario.batch_groups,
        },
        "trainer": {
            "experiment_name": _EXPERIMENT, "logger": ["file"], "n_gpus_per_node": scenario.train_gpus, "nnodes": 1,
            "project_name": _PROJECT, "rollout_data_dir": "rollouts", "save_freq": scenario.checkpoint_every,
            "total_training_steps": 2_000, "use_v1": True, "v1": {"trainer_mode": "sync"},
        },
    }  # fmt: skip
