"""Writes the run directory of verl's V1 trainer `separate_async` (0.9.1, `trainer.logger=['file']`), and its truth.

Keys and their order follow trainer/ppo/v1/{trainer_separate_async,replay_buffer}.py and metric_utils.py; the file
logger's lines have no times. `timing_s/gen` is the wait for a batch; verl counts groups and calls them samples.
"""

from collections import Counter, deque
from pathlib import Path
from statistics import fmean

from server.demo.orchestrator import Orchestrator
from server.demo.records import Batch, Observer, Step
from server.demo.rollouts import Rollout
from server.demo.scenarios import Scenario
from server.demo.truth import Truth
from server.demo.verl_run import FileLogger, spread

_PROJECT, _EXPERIMENT = "grpo-agents", "glm5-search"
# Steps over which the truth counts completed groups by outcome.
_WINDOW = 10


class AgentRun(FileLogger, Observer):
    """Writes a verl run that began at epoch `start` to `run_dir`."""

    def __init__(self, scenario: Scenario, seed: int, orchestrator: Orchestrator, run_dir: Path, start: float) -> None:
        assert scenario.agents is not None
        super().__init__(seed, run_dir, start, _PROJECT, _EXPERIMENT)
        self._scenario, self._plan, self._orchestrator = scenario, scenario.agents, orchestrator
        self._filtered, self._ready = 0, 0.0

    def started(self, now: float) -> None:
        self._print(_config(self._scenario), now)

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        self._ready = self._orchestrator.queue.value / self._scenario.group_size

    def stepped(self, step: Step) -> None:
        self._line(step.batch.step, self._data(step), step.end)

    def _data(self, step: Step) -> dict[str, float]:
        rollouts = list(step.batch.rollouts())
        rewards = [rollout.reward for rollout in rollouts]
        return {
            **self._actor(step),
            "training/global_step": step.batch.step,
            "training/epoch": 0,
            **spread("critic/score", rewards),
            **spread("critic/rewards", rewards),
            **spread("response_length", [rollout.response_tokens for rollout in rollouts]),
            "response_length/clip_ratio": fmean(rollout.truncated for rollout in rollouts),
            "response/aborted_ratio": 0.0,
            **spread("prompt_length", [rollout.group.prompt_tokens for rollout in rollouts]),
            **spread("num_turns", [2 * rollout.turns for rollout in rollouts]),
            **spread("tool_call_counts", [rollout.turns - 1 for rollout in rollouts]),
            **self._policy(step.batch),
            **self._times(step),
        }

    def _actor(self, step: Step) -> dict[str, float]:
        """Entropy decreases slowly. The model's FLOPs are divided by the update's time only."""
        s, noise, number = self._scenario, self._noise, step.batch.step
        update = step.timing.compute * (1 - self._plan.logprob_share)
        flops = 6 * s.parameters_billion * 1e9 * step.batch.total_tokens
        return {
            "actor/entropy": 0.5 * (1 - 0.3 * number / (number + 400)) * noise.lognormvariate(0.0, 0.02),
            "actor/pg_loss": noise.gauss(0.0, 0.01),
            "actor/grad_norm": 0.3 * noise.lognormvariate(0.0, 0.15),
            "actor/lr": 1e-06,
            "actor/pg_clipfrac": 0.004 * noise.lognormvariate(0.0, 0.2),
            "perf/mfu/actor": flops / update / (s.train_gpus * s.peak_flops),
        }

    def _policy(self, batch: Batch) -> dict[str, float]:
        """Staleness since the weights that began a trajectory, and the contents of the group filter and buffer."""
        totals, in_flight, in_queue = (list(column) for column in zip(*batch.staleness(), strict=True))
        filtered, self._filtered = self._filtered, self._orchestrator.filtered_groups
        return {
            **spread("training/off_policy/trajectory_spans", [one + 1 for one in in_flight]),
            **spread("training/off_policy/trajectory_staleness", in_queue),
            **spread("training/off_policy/trajectory_staleness_worst", totals),
            "training/off_policy/evicted_samples": float(len(batch.dropped)),
            "training/filter_groups/evicted_samples": float(self._filtered - filtered),
            "training/filter_groups/discarded_surplus_samples": 0.0,
            "separate_async/decision/sampleable_count": self._ready,
        }

    def _times(self, step: Step) -> dict[str, float]:
        timing, share = step.timing, self._plan.logprob_share
        saved = {"timing_s/save_checkpoint": timing.checkpoint} if timing.checkpoint else {}
        return {
            "timing_s/gen": timing.wait,
            "timing_s/old_log_prob": timing.compute * share,
            "timing_s/update_actor": timing.compute * (1 - share),
            **saved,
            "timing_s/update_weights": timing.broadcast,
            "timing_s/step": timing.total,
            "perf/total_num_tokens": step.batch.total_tokens,
            "perf/time_per_step": timing.total,
            "perf/throughput": step.batch.total_tokens / timing.total / self._scenario.train_gpus,
        }


class AgentTruth(Truth):
    """Like `Truth`, plus outcomes of groups before they are filtered."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self._outcomes: deque[Counter[str]] = deque([Counter()], maxlen=_WINDOW)

    def scored(self, now: float, rollout: Rollout) -> None:
        if rollout.group.scored == rollout.group.size:
            self._outcomes[-1][rollout.group.outcome] += 1

    def _more(self, step: Step) -> dict[str, float]:
        counted = sum(self._outcomes, Counter[str]())
        calls = [rollout.turns - 1 for rollout in step.batch.rollouts()]
        found = {
            "tool_calls_mean": fmean(calls),
            "tool_calls_max": max(calls),
            "completed_all_solved_ratio": counted["all"] / counted.total(),
            "completed_zero_advantage_ratio": 1 - counted["some"] / counted.total(),
        }
        self._outcomes.append(Counter())
        return found


def _config(scenario: Scenario) -> dict[str, object]:
    """The part of the configuration that readers use, printed as verl prints all of it."""
    plan = scenario.agents
    assert plan is not None
    return {
        "actor_rollout_ref": {
            "actor": {"optim": {"lr": 1e-06}},
            "hybrid_engine": True,
            "model": {"path": f"/models/{scenario.model.rpartition('/')[2]}"},
            "rollout": {
                "disable_log_stats": False, "multi_turn": {"enable": True}, "n": scenario.group_size, "name": "vllm",
                "n_gpus_per_node": 8, "nnodes": scenario.engines * plan.engine_gpus // 8,
                "prometheus": {"enable": True}, "tensor_model_parallel_size": plan.engine_gpus,
            },
        },
        "algorithm": {"adv_estimator": "grpo", "filter_groups": {"enable": True, "metric": "acc"}},
        "data": {"max_response_length": scenario.max_tokens, "train_batch_size": scenario.batch_groups},
        "trainer": {
            "experiment_name": _EXPERIMENT, "logger": ["file"], "n_gpus_per_node": 8,
            "nnodes": scenario.train_gpus // 8,
            "project_name": _PROJECT, "save_freq": scenario.checkpoint_every, "total_training_steps": 2_000,
            "use_v1": True,
            "v1": {
                "sampler": {"max_off_policy_threshold": scenario.max_off_policy_steps},
                "trainer_mode": "separate_async",
            },
        },
    }  # fmt: skip
