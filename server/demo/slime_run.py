"""The printed log of a slime job (624b824a) as the simulation goes: `job.log`, with Ray's prefixes.

Dicts and their keys follow slime/observability (rollout_metrics.py:268, train_metric_utils.py:148 and 401, timer.py)
and model.py:918. The launch command stands at its head, as scripts with `set -x` leave it.
"""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import fmean, median

from server.demo.files import Files
from server.demo.scenarios import Scenario
from server.demo.slime_records import Generation, SlimeObserver, SlimeStep, SlimeTiming

_MANAGER = "(RolloutManager pid=4117)"
_TRAINER = "(MegatronTrainRayActor pid=5230, ip=10.12.0.4)"
_GPUS_PER_NODE = 8


class SlimeRun(Files, SlimeObserver):
    """`run_dir/job.log` of a job that began at epoch `start`."""

    def __init__(self, scenario: Scenario, seed: int, run_dir: Path, start: float) -> None:
        assert scenario.slime is not None
        super().__init__(start)
        self._scenario, self._plan = scenario, scenario.slime
        self._noise = Random(f"{seed}:learning")
        self._file = self._open(run_dir / "job.log")

    def started(self, now: float) -> None:
        self._file.line(f"+ {_command(self._scenario)}", self._start + now)
        self._say(now, _TRAINER, "timer.py:24", "Timer train_wait start")

    def generated(self, generation: Generation) -> None:
        found = self._generated(generation)
        self._say(generation.ended, _MANAGER, "rollout_metrics.py:268", f"perf {generation.number}: {found}")

    def training(self, now: float, generation: Generation, timing: SlimeTiming) -> None:
        waited = timing.total - timing.compute
        self._say(now, _TRAINER, "timer.py:32", f"Timer train_wait end (elapsed: {waited:.1f}s)")
        self._say(now, _TRAINER, "timer.py:24", "Timer train start")
        text = f"rollout {generation.number}: {self._rollout(generation)}"
        self._say(now + timing.logprob, _TRAINER, "train_metric_utils.py:148", text)

    def trained(self, step: SlimeStep) -> None:
        number, timing = step.generation.number, step.timing
        self._say(step.end, _TRAINER, "model.py:918", f"step {number}: {self._optimizer(step)}")
        self._say(step.end, _TRAINER, "timer.py:32", f"Timer train end (elapsed: {timing.compute:.1f}s)")
        self._say(step.end, _TRAINER, "timer.py:24", "Timer train_wait start")
        self._say(step.end, _TRAINER, "train_metric_utils.py:401", f"perf {number}: {self._trained(step)}")

    def updating(self, now: float) -> None:
        self._say(now, _TRAINER, "timer.py:24", "Timer update_weights start")
        self._began_update = now

    def updated(self, now: float, version: int) -> None:
        elapsed = now - self._began_update
        self._say(now, _TRAINER, "timer.py:32", f"Timer update_weights end (elapsed: {elapsed:.1f}s)")

    def _say(self, now: float, actor: str, place: str, message: str) -> None:
        stamp = self._start + now
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp))
        self._file.line(f"{actor} [{clock}] {place} - {message}", stamp)

    # -- the dicts ---------------------------------------------------------------------------------------------

    def _generated(self, made: Generation) -> Mapping[str, float]:
        """The generator's half of a rollout; counts of equal rewards are left out where there are none."""
        lengths = [rollout.response_tokens for rollout in made.rollouts()]
        scoring = [rollout.scored - rollout.finished for rollout in made.rollouts()]
        equal = Counter(group.rollouts[0].reward for group in made.groups if group.outcome != "some")
        seconds = made.ended - made.begun
        gpus = self._scenario.engines * self._plan.engine_gpus
        longest = max(made.rollouts(), key=lambda rollout: rollout.response_tokens)
        return {
            **_spread("rollout/response_len", lengths),
            **{f"rollout/zero_std/count_{reward}": count for reward, count in equal.items()},
            "rollout/repetition_frac": 0.0,
            "rollout/truncated_ratio": fmean(rollout.truncated for rollout in made.rollouts()),
            "perf/rollout_time": seconds,
            **_spread("perf/non_generation_time", scoring),
            "perf/tokens_per_gpu_per_sec": sum(lengths) / seconds / gpus,
            "perf/longest_sample_tokens_per_sec": longest.response_tokens / seconds,
        }

    def _rollout(self, made: Generation) -> Mapping[str, float]:
        rewards = fmean(rollout.reward for rollout in made.rollouts())
        noise = self._noise.lognormvariate(0.0, 0.03)
        return {
            "rollout/response_lengths": made.response_tokens / self._scenario.batch_samples,
            "rollout/rewards": 0.0,
            "rollout/truncated": fmean(rollout.truncated for rollout in made.rollouts()),
            "rollout/raw_reward": rewards,
            "rollout/total_lengths": made.total_tokens / self._scenario.batch_samples,
            "rollout/log_probs": -0.31 * noise,
            "rollout/rollout_log_probs": -0.312 * noise,
            "rollout/advantages": 0.0,
            "rollout/returns": 0.0,
        }

    def _optimizer(self, step: SlimeStep) -> Mapping[str, float]:
        """One optimizer step a rollout: the global batch is all of it. Entropy falls slowly."""
        number, noise = step.generation.number, self._noise
        return {
            "train/loss": noise.gauss(0.0, 0.01),
            "train/pg_loss": noise.gauss(0.0, 0.01),
            "train/entropy_loss": 0.42 * (1 - 0.3 * number / (number + 400)) * noise.lognormvariate(0.0, 0.02),
            "train/pg_clipfrac": 0.004 * noise.lognormvariate(0.0, 0.2),
            "train/ppo_kl": 0.0,
            "train/train_rollout_logprob_abs_diff": 0.016 * noise.lognormvariate(0.0, 0.08),
            "train/grad_norm": 0.21 * noise.lognormvariate(0.0, 0.15),
            "train/lr-pg_0": 1e-06,
            "train/global_batch_size": self._scenario.batch_samples,
            "train/step": number,
        }

    def _trained(self, step: SlimeStep) -> Mapping[str, float]:
        timing, tokens = step.timing, step.generation.total_tokens
        flops = self._plan.train_flops(step.generation.lengths())
        waited = timing.total - timing.compute
        update = {"perf/update_weights_time": timing.update} if timing.update else {}
        return {
            "perf/train_wait_time": waited,
            "perf/train_time": timing.compute,
            "perf/data_preprocess_time": timing.preprocess,
            "perf/log_probs_time": timing.logprob,
            "perf/actor_train_time": timing.train,
            **update,
            "perf/actor_train_tflops": flops / timing.train / self._scenario.train_gpus / 1e12,
            "perf/actor_train_tok_per_s": tokens / timing.train,
            "perf/step_time": timing.total,
            "perf/wait_time_ratio": waited / timing.total,
        }


def _spread(name: str, values: list[float] | list[int]) -> dict[str, float]:
    return {
        f"{name}/mean": fmean(values), f"{name}/median": float(median(values)),
        f"{name}/max": max(values), f"{name}/min": min(values),
    }  # fmt: skip


def _command(scenario: Scenario) -> str:
    plan = scenario.slime
    assert plan is not None
    arguments = {
        "actor-num-nodes": scenario.train_gpus // _GPUS_PER_NODE,
        "actor-num-gpus-per-node": _GPUS_PER_NODE,
        "rollout-num-gpus": scenario.engines * plan.engine_gpus,
        "rollout-num-gpus-per-engine": plan.engine_gpus,
        "hf-checkpoint": f"/models/{scenario.model.rpartition('/')[2]}",
        "num-rollout": 3_000,
        "rollout-batch-size": scenario.batch_groups,
        "n-samples-per-prompt": scenario.group_size,
        "over-sampling-batch-size": plan.over_sampling_groups,
        "global-batch-size": scenario.batch_samples,
        "rollout-max-response-len": scenario.max_tokens,
        "advantage-estimator": "grpo",
        "update-weights-interval": 1,
    }
    words = " ".join(f"--{name} {value}" for name, value in arguments.items())
    return f"ray job submit --address=http://127.0.0.1:8265 -- python3 train_async.py {words}"
