"""The run directory of verl 0.9.1 with `trainer.logger=['file']`: configuration as printed, metrics, generations.

Keys and their order follow a recorded run (trainer/ppo/metric_utils.py, trainer/ppo/v1): lines of the file logger have
no times. `rollouts/STEP.jsonl` is `trainer.rollout_data_dir`, here with placeholders for texts; the newest are kept.
"""

import hashlib
import json
import os
import pprint
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

from demo.engine import EngineStats
from demo.faults import Fault, timeline
from demo.fleet import BatchFleet
from demo.orchestrator import Orchestrator
from demo.records import Batch, Files, Groups, Means, Observer, Step, Watcher
from demo.rollouts import Group, Rollout
from demo.scenarios import Scenario
from demo.truth import Truth, TruthFiles, engine_state, outcomes

# ---- verl records
# Records that the simulation of verl passes to its writers.


@dataclass(frozen=True)
class VerlTiming:
    """The parts of one synchronous step, one after the other: they add up to it. `generation` holds waking up."""

    generation: float
    reward: float
    logprob: float
    advantage: float
    actor: float
    weights: float
    checkpoint: float

    @property
    def compute(self) -> float:
        return self.logprob + self.advantage + self.actor

    @property
    def total(self) -> float:
        return self.generation + self.reward + self.compute + self.weights + self.checkpoint


@dataclass(frozen=True)
class VerlStep(Groups):
    """One step. `bubble`: idle share of the generation's engine time: 1 - mean running / most running."""

    number: int
    groups: tuple[Group, ...]
    start: float
    end: float
    timing: VerlTiming
    means: Means
    bubble: float
    generation_tokens: int


class VerlObserver(Watcher):
    """Writers override the calls that they need. Calls come in the order of event time."""

    def started(self, now: float) -> None: ...

    def stepped(self, step: VerlStep) -> None: ...


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


# ---- verl cluster
# verl's synchronous trainer (0.9.1: trainer/ppo/v1): generator and trainer alternate on the same GPUs.


class VerlCluster(BatchFleet):
    """See `demo.fleet`."""

    def __init__(self, scenario: Scenario, seed: int, faults: Sequence[Fault] = ()) -> None:
        assert scenario.verl is not None
        super().__init__(scenario, seed, faults, EngineStats)
        self.plan = scenario.verl
        self.number = 0
        self.observers: list[VerlObserver] = []
        self._groups: list[Group] = []
        self._start, self._left = 0.0, 0

    def _begin(self) -> None:
        self.agenda.plan(0.0, self._next_step)
        timeline(self.faults, self.agenda, self._befall, 0.0)

    # -- generation --------------------------------------------------------------------------------------------

    def _next_step(self, now: float) -> None:
        self.number, self._start = self.number + 1, now
        self.agenda.plan(now + self._around(self.plan.wake_seconds, 0.1), self._generate)

    def _generate(self, now: float) -> None:
        self._groups, self._left = [], self.scenario.batch_samples
        for engine in self.engines:
            engine.is_asleep = engine.is_dead
        for _ in range(self.scenario.batch_groups):
            engine = self._idlest()
            group = self._tasks.group(self.number - 1, engine.index)
            self._groups.append(group)
            for _ in range(group.size):
                engine.submit(self._tasks.rollout(group, now), now)

    def _unanswered(self) -> Iterable[Group]:
        return self._groups

    def _answered(self, rollout: Rollout, now: float) -> None:
        self._left -= 1
        if not self._left:
            self._generated(now)

    def _generated(self, now: float) -> None:
        """After the last answer the engines release their memory, and the trainer does the rest of the step."""
        running = sum(engine.stats.running_seconds for engine in self.engines) - self._integrals_before[0]
        seconds = now - self._groups[0].rollouts[0].dispatched
        bubble = 1 - running / (self.scenario.batch_samples * seconds)
        for engine in self.engines:
            engine.is_asleep = True
        timing = self._draw(now - self._start)
        for group in self._groups:
            for rollout in group.rollouts:
                rollout.reward, rollout.scored = self._tasks.score(rollout), now + timing.reward
            group.scored, group.completed = group.size, now + timing.reward
        groups = tuple(self._groups)
        self.agenda.plan(self._start + timing.total, lambda at: self._stepped(groups, timing, bubble, at))

    # -- training ----------------------------------------------------------------------------------------------

    def _draw(self, generation: float) -> VerlTiming:
        """Draws everything of the step now, so that later events cannot change it."""
        s, plan = self.scenario, self.plan
        tokens = sum(one.group.prompt_tokens + one.response_tokens for group in self._groups for one in group.rollouts)
        seconds = self._around(tokens / s.train_tokens_per_second, s.compute_noise)
        saves = self.number % s.checkpoint_every == 0
        return VerlTiming(
            generation=generation,
            reward=self._around(plan.reward_seconds, 0.15) * self._conditions.scoring,
            logprob=seconds * plan.logprob_share,
            advantage=self._around(plan.advantage_seconds, 0.1),
            actor=seconds * (1 - plan.logprob_share),
            weights=self._around(s.broadcast_seconds, 0.08) * self._conditions.sync,
            checkpoint=self._around(s.checkpoint_seconds, 0.1) if saves else 0.0,
        )

    def _stepped(self, groups: tuple[Group, ...], timing: VerlTiming, bubble: float, now: float) -> None:
        if self._hangs:
            return
        for engine in self.engines:
            engine.sync(now)
        tokens = sum(engine.generated_at(now) for engine in self.engines)
        means = self._means(self._start, now)
        step = VerlStep(self.number, groups, self._start, now, timing, means, bubble, tokens)
        for observer in self.observers:
            observer.stepped(step)
        self._next_step(now)


# ---- verl truth
# The true state of a verl run, step by step.


class VerlTruth(TruthFiles, VerlObserver):
    """Like `Truth`, for synchronous verl: nothing waits, and no weights are old."""

    def stepped(self, step: VerlStep) -> None:
        state = engine_state(step.number, step.means, step.generation_tokens)
        self._write(step.number, step.start, step.end, step.timing.total, {**_parts(step), **_samples(step), **state})


def _parts(step: VerlStep) -> dict[str, float]:
    timing = step.timing
    return {
        "generation_seconds": timing.generation,
        "compute_seconds": timing.compute,
        "weight_sync_seconds": timing.weights,
        "checkpoint_seconds": timing.checkpoint,
        "other_seconds": timing.reward,
        "tail_bubble_ratio": step.bubble,
    }


def _samples(step: VerlStep) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    return {
        "samples": len(list(step.rollouts())),
        "groups": len(step.groups),
        "tokens": step.response_tokens,
        "total_tokens": step.total_tokens,
        **outcomes(step),
    }


# ---- agent run
# Writes the run directory of verl's V1 trainer `separate_async` (0.9.1, `trainer.logger=['file']`), and its truth.

_AGENT_PROJECT, _AGENT_EXPERIMENT = "grpo-agents", "glm5-search"
# Steps over which the truth counts completed groups by outcome.
_WINDOW = 10


class AgentRun(FileLogger, Observer):
    """Writes a verl run that began at epoch `start` to `run_dir`."""

    def __init__(self, scenario: Scenario, seed: int, orchestrator: Orchestrator, run_dir: Path, start: float) -> None:
        assert scenario.agents is not None
        super().__init__(seed, run_dir, start, _AGENT_PROJECT, _AGENT_EXPERIMENT)
        self._scenario, self._plan, self._orchestrator = scenario, scenario.agents, orchestrator
        self._filtered, self._ready = 0, 0.0

    def started(self, now: float) -> None:
        self._print(_agent_run_config(self._scenario), now)

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


def _agent_run_config(scenario: Scenario) -> dict[str, object]:
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
            "experiment_name": _AGENT_EXPERIMENT, "logger": ["file"], "n_gpus_per_node": 8,
            "nnodes": scenario.train_gpus // 8,
            "project_name": _AGENT_PROJECT, "save_freq": scenario.checkpoint_every, "total_training_steps": 2_000,
            "use_v1": True,
            "v1": {
                "sampler": {"max_off_policy_threshold": scenario.max_off_policy_steps},
                "trainer_mode": "separate_async",
            },
        },
    }  # fmt: skip
