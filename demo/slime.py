"""The printed log of a slime job (624b824a) as the simulation goes: `job.log`, with Ray's prefixes.

Dicts and their keys follow slime/observability (rollout_metrics.py:268, train_metric_utils.py:148 and 401, timer.py)
and model.py:918. The launch command stands at its head, as scripts with `set -x` leave it.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

from demo.faults import Fault, timeline
from demo.fleet import BatchFleet
from demo.pages import SglangStats
from demo.pushes import Telling
from demo.records import Files, Groups, Means, Watcher
from demo.rollouts import Group, Rollout
from demo.scenarios import Scenario
from demo.truth import TruthFiles, engine_state, outcomes

# ---- slime records
# Records that the simulation of slime passes to its writers.


@dataclass(frozen=True)
class Generation(Groups):
    """One rollout in slime's sense: the groups that were complete first, and those aborted then."""

    number: int
    begun: float
    ended: float
    # The policy version that made it: no weights are sent during generation.
    version: int
    groups: tuple[Group, ...]
    aborted: tuple[Group, ...]

    def dropped(self) -> Iterator[Rollout]:
        return (rollout for group in self.aborted for rollout in group.rollouts)


@dataclass(frozen=True)
class SlimeTiming:
    """The parts of one step, which begins with the end of the training before: they add up to it."""

    wait: float
    update: float
    preprocess: float
    logprob: float
    train: float

    @property
    def compute(self) -> float:
        """slime's `train`: old log-probabilities, forward and backward."""
        return self.logprob + self.train

    @property
    def total(self) -> float:
        return self.wait + self.update + self.preprocess + self.compute


@dataclass(frozen=True)
class SlimeStep:
    """Trained on `generation`; `version`: what was sent to the engines last."""

    generation: Generation
    start: float
    end: float
    timing: SlimeTiming
    version: int
    means: Means
    generation_tokens: int


class SlimeObserver(Watcher):
    """Writers override the calls that they need. Calls come in the order of event time."""

    def started(self, now: float) -> None: ...

    def dispatched(self, now: float, rollout: Rollout) -> None: ...

    def generated(self, generation: Generation) -> None: ...

    def training(self, now: float, generation: Generation, timing: SlimeTiming) -> None: ...

    def trained(self, step: SlimeStep) -> None: ...

    def updating(self, now: float) -> None: ...

    def updated(self, now: float, version: int) -> None: ...


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


# ---- slime hook
# Posts of a function for `--custom-rollout-log-function-path` about each sample of slime: data its log lacks.


class SlimeHook(Telling, SlimeObserver):
    """Collects lines as events happen. A rollout (in slime's sense) that ended before `since` is left out."""

    def go_live(self, under_way: Iterable[Rollout]) -> None:
        """From now on also posts starts; the given rollouts have begun already."""
        self.is_live = True
        for rollout in under_way:
            self._say(rollout, **self._about(rollout))

    def dispatched(self, now: float, rollout: Rollout) -> None:
        if self.is_live:
            self._say(rollout, **self._about(rollout))

    def generated(self, generation: Generation) -> None:
        if generation.ended < self._since:
            return
        for group in generation.groups:
            for rollout in group.rollouts:
                self._ended(rollout, scored_at=self._at(rollout.scored), reward=rollout.reward, max_reward=1.0,
                            solved=rollout.reward == 1.0, group_complete_at=self._at(group.completed))  # fmt: skip
        for rollout in generation.dropped():
            self._ended(rollout, exit="aborted_oversample", exited_at=self._at(generation.ended))

    def _ended(self, rollout: Rollout, **values: object) -> None:
        tokens = rollout.generated
        self._say(
            rollout, first_token_at=self._at(rollout.first_token) if rollout.first_token else None,
            finished_at=self._at(rollout.finished), prompt_tokens=rollout.group.prompt_tokens, response_tokens=tokens,
            token_versions=[[rollout.group.version, tokens]] if tokens else [], turns=1, tool_calls=0,
            version_finish=rollout.group.version, **values, **self._about(rollout),
        )  # fmt: skip

    def training(self, now: float, generation: Generation, timing: SlimeTiming) -> None:
        if now < self._since:
            return
        for rollout in generation.rollouts():
            self._say(rollout, exit="trained", consumed_at=self._at(now), version_consumed=generation.number)

    def _about(self, rollout: Rollout) -> dict[str, object]:
        group = rollout.group
        return {
            "group_id": f"g{group.id}", "group_size": group.size, "purpose": "train",
            "environment": self._scenario.environment, "version_dispatched": group.version,
            "version_start": group.version, "engine": f"engine-{group.engine}",
            "dispatched_at": self._at(rollout.dispatched), "started_at": self._at(rollout.dispatched),
        }  # fmt: skip

    def _name(self, rollout: Rollout) -> str:
        return hashlib.sha256(f"{self._seed}:sample:{rollout.id}".encode()).hexdigest()[:16]


# ---- slime cluster
# slime's `train_async.py` (624b824a): generation and training in parallel, and a weight update after both.


class SlimeCluster(BatchFleet):
    """See `demo.fleet`."""

    def __init__(self, scenario: Scenario, seed: int, faults: Sequence[Fault] = ()) -> None:
        assert scenario.slime is not None
        super().__init__(scenario, seed, faults, SglangStats)
        self.plan = scenario.slime
        self.version = 0
        self.observers: list[SlimeObserver] = []
        self._begun_at, self._number = 0.0, -1
        # The groups of the rollout that is being generated, by id; and those that are complete.
        self.open: dict[int, Group] = {}
        self._complete: list[Group] = []
        self._ready: Generation | None = None
        self._is_training = self._is_updating = False
        # End of the training before; the last update's seconds, which belong to the step that follows it.
        self._idle_since = self._update = 0.0

    def _begin(self) -> None:
        self.agenda.plan(0.0, self._generate)
        timeline(self.faults, self.agenda, self._befall, 0.0)

    # -- the generator -----------------------------------------------------------------------------------------

    def _generate(self, now: float) -> None:
        """`RolloutManager.generate`: requests everything it samples at once."""
        self._number, self._begun_at = self._number + 1, now
        self._complete = []
        for _ in range(self.plan.over_sampling_groups):
            engine = self._idlest()
            group = self._tasks.group(self.version, engine.index)
            self.open[group.id] = group
            for _ in range(group.size):
                rollout = self._tasks.rollout(group, now)
                for observer in self.observers:
                    observer.dispatched(now, rollout)
                engine.submit(rollout, now)

    @property
    def open_groups(self) -> Iterable[Group]:
        """Groups whose rollouts are being generated."""
        return self.open.values()

    def _unanswered(self) -> Iterable[Group]:
        return self.open.values()

    def _answered(self, rollout: Rollout, now: float) -> None:
        self.agenda.plan(now + self._tasks.scoring_seconds(), lambda at: self._scored(rollout, at))

    def _scored(self, rollout: Rollout, now: float) -> None:
        group = rollout.group
        rollout.scored, rollout.reward = now, self._tasks.score(rollout)
        group.scored += 1
        # If its rollout has ended, the reward is not used.
        if group.scored < group.size or group.id not in self.open:
            return
        group.completed = now
        self._complete.append(self.open.pop(group.id))
        if len(self._complete) == self.scenario.batch_groups:
            self._collected(now)

    def _collected(self, now: float) -> None:
        """A batch is complete: the engines abort the other requests."""
        for engine in self.engines:
            stats = engine.stats
            assert isinstance(stats, SglangStats)
            for rollout in engine.drop(now):
                rollout.finished = now
                stats.abort(rollout)
        aborted, self.open = tuple(self.open.values()), {}
        made = Generation(self._number, self._begun_at, now, self.version, tuple(self._complete), aborted)
        self._ready = made
        for observer in self.observers:
            observer.generated(made)
        self._meet(now)

    # -- the trainer -------------------------------------------------------------------------------------------

    def _meet(self, now: float) -> None:
        """The driver's loop: continues when the next rollout is complete and the last one is trained."""
        if self._ready is None or self._is_training or self._is_updating:
            return
        if self._ready.number == 0:
            self._turn(now)
            return
        self._is_updating = True
        for observer in self.observers:
            observer.updating(now)
        self._update = self._around(self.scenario.broadcast_seconds, 0.08) * self._conditions.sync
        self.agenda.plan(now + self._update, self._updated)

    def _updated(self, now: float) -> None:
        self._is_updating = False
        self.version += 1
        for observer in self.observers:
            observer.updated(now, self.version)
        self._turn(now)

    def _turn(self, now: float) -> None:
        """Starts the next rollout, and training on the complete one."""
        made = self._ready
        assert made is not None
        self._ready, self._is_training = None, True
        self._generate(now)
        timing = self._draw(made, now)
        begin = now + timing.preprocess
        self.agenda.plan(begin, lambda at: self._training(at, made, timing))
        self.agenda.plan(begin + timing.compute, lambda at: self._trained(at, made, timing))

    def _draw(self, made: Generation, now: float) -> SlimeTiming:
        """Draws everything of the step now, so that later events cannot change it."""
        s = self.scenario
        seconds = self._around(made.total_tokens / s.train_tokens_per_second, s.compute_noise)
        return SlimeTiming(
            wait=now - self._idle_since - self._update,
            update=self._update,
            preprocess=self._around(self.plan.preprocess_seconds, 0.1),
            logprob=seconds * self.plan.logprob_share,
            train=seconds * (1 - self.plan.logprob_share),
        )

    def _training(self, now: float, made: Generation, timing: SlimeTiming) -> None:
        if not self._hangs:
            for observer in self.observers:
                observer.training(now, made, timing)

    def _trained(self, now: float, made: Generation, timing: SlimeTiming) -> None:
        if self._hangs:
            return
        for engine in self.engines:
            engine.sync(now)
        start, self._idle_since = self._idle_since, now
        tokens = sum(engine.generated_at(now) for engine in self.engines)
        step = SlimeStep(made, start, now, timing, self.version, self._means(start, now), tokens)
        for observer in self.observers:
            observer.trained(step)
        self._is_training = False
        self._meet(now)


# ---- slime truth
# The true state of a slime run, step by step.


class SlimeTruth(TruthFiles, SlimeObserver):
    """Like `Truth`, for slime: generations, and no checkpoints."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path, start: float, faults: Sequence[Fault]) -> None:
        super().__init__(scenario, seed, folder, start, faults)
        self._scenario = scenario

    def trained(self, step: SlimeStep) -> None:
        state = engine_state(step.version, step.means, step.generation_tokens)
        values = {**_parts(step.timing), **samples(step.generation), **mfu(self._scenario, step), **state}
        self._write(step.generation.number, step.start, step.end, step.timing.total, values)


def _parts(timing: SlimeTiming) -> dict[str, float]:
    return {
        "wait_seconds": timing.wait,
        "compute_seconds": timing.compute,
        "weight_sync_seconds": timing.update,
        "checkpoint_seconds": 0.0,
        "other_seconds": timing.preprocess,
    }


def samples(made: Generation) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    staleness = made.number - made.version
    return {
        "samples": len(list(made.rollouts())),
        "groups": len(made.groups),
        "aborted_samples": sum(1 for _ in made.dropped()),
        "aborted_tokens": sum(rollout.generated for rollout in made.dropped()),
        "generation_seconds": made.ended - made.begun,
        "tokens": made.response_tokens,
        "total_tokens": made.total_tokens,
        "staleness_mean": staleness,
        "staleness_max": staleness,
        **outcomes(made),
    }


def mfu(scenario: Scenario, step: SlimeStep) -> dict[str, float]:
    """`busy` counts the training time only."""
    assert scenario.slime is not None
    flops = scenario.slime.train_flops(step.generation.lengths())
    rate = flops / (scenario.train_gpus * scenario.peak_flops)
    return {"mfu_wall": rate / step.timing.total, "mfu_busy": rate / step.timing.compute}
