"""Whether training is numerically healthy: gradients, entropy, clipping, reward."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean, median
from typing import Any

from server.rollouts.groups import deviation
from server.rollouts.window import Window
from server.signals.aggregates import average, single, stats, too_few, total, window
from server.signals.drift_detector import trend
from server.signals.model import STEP_WINDOW, Answer, Fold, Unknown, Value, View, is_gap, signal
from server.signals.recorded import either, spread
from server.signals.window import KEPT_STEPS, Step


@signal(
    title="Clipped tokens",
    unit="ratio",
    actor="trainer",
    inputs=("clip_ratio",),
    cadence="step",
    hint="this trainer reports no clipped share (verl `actor/pg_clipfrac`, TRL `clip_ratio/region_mean`)",
)
def clip_ratio(view: View) -> Answer:
    """Share of tokens whose importance ratio was clipped or masked, mean over the last 10 steps."""
    return single(view, "clip_ratio", clip_ratio.hint)


@signal(
    title="Entropy",
    unit="nats",
    actor="trainer",
    inputs=("entropy_mean",),
    cadence="step",
    hint="this trainer reports no entropy (TRL `entropy`, prime-rl `entropy/all/mean`)",
)
def entropy(view: View) -> Answer:
    """Policy entropy in nats per token, mean over the last 10 steps."""
    return single(view, "entropy_mean", entropy.hint)


@signal(
    title="Gradient norm",
    unit="",
    actor="trainer",
    inputs=("gradient_norm",),
    cadence="step",
    hint="this trainer reports no gradient norm (TRL `grad_norm`, verl `actor/grad_norm`)",
)
def gradient_norm(view: View) -> Answer:
    """Norm of the gradient before clipping, mean over the last 10 steps, without steps whose norm is not finite.

    It jumps before the reward falls.
    """
    return single(view, "gradient_norm", gradient_norm.hint)


@signal(
    title="Non-finite gradients",
    unit="steps",
    actor="trainer",
    inputs=("gradient_nonfinite",),
    cadence="step",
    hint="this trainer reports no gradient norm",
    critical=1.0,
)
def gradient_nonfinite_steps(view: View) -> Answer:
    """Steps of the last 10 whose gradient norm was NaN or infinite."""
    rows = window(view, "gradient_nonfinite")
    broken = total(rows, "gradient_nonfinite")
    # One such step is evidence; a result of zero needs the usual three steps.
    return [Value(broken)] if broken else too_few(rows, gradient_nonfinite_steps.hint) or [Value(0.0)]


@signal(
    title="Learning rate",
    unit="",
    actor="trainer",
    inputs=("learning_rate",),
    cadence="step",
    hint="this trainer reports no learning rate (TRL `learning_rate`, verl `actor/lr`)",
)
def learning_rate(view: View) -> Answer:
    """Learning rate of the newest step that reports it.

    It is a setting: a mean would lag behind its warm-up.
    """
    rows = view.steps.rows(("learning_rate", ()), count=1, until=view.now)
    return [Value(rows[-1].values[("learning_rate", ())])] if rows else Unknown(learning_rate.hint)


@signal(
    title="Mismatch KL",
    unit="nats",
    actor="trainer",
    inputs=("mismatch_kl_mean",),
    cadence="step",
    hint="this trainer reports no mismatch KL (prime-rl `mismatch_kl/all/mean`)",
)
def mismatch_kl(view: View) -> Answer:
    """KL between generator and trainer on the trained tokens, mean over the last 10 steps."""
    return single(view, "mismatch_kl_mean", mismatch_kl.hint)


@signal(
    title="Log-prob difference",
    unit="nats",
    actor="trainer",
    inputs=("mismatch_logprob_difference_mean", "mismatch_logprob_difference_max"),
    cadence="step",
    hint="this trainer reports no log-prob difference (TRL `sampling/sampling_logp_difference/mean`, "
    "SkyRL `policy/rollout_train_logprobs_abs_diff_mean`)",
)
def mismatch_logprob_difference(view: View) -> Answer:
    """Absolute difference of the log-probs that trainer and generator give the same token, over the last 10 steps: mean
    of the steps' means, and maximum of their maxima.
    """
    hint, largest = mismatch_logprob_difference.hint, ("max", "mismatch_logprob_difference_max", max)
    found = stats(view, hint, ("mean", "mismatch_logprob_difference_mean", average), largest)
    return stats(view, hint, largest) if is_gap(found) else found


@signal(
    title="Importance ratio",
    unit="",
    actor="trainer",
    inputs=("importance_ratio_mean",),
    cadence="step",
    hint="this trainer reports no importance ratio (TRL `sampling/importance_sampling_ratio/mean`, "
    "verl `rollout_corr/rollout_is_mean`)",
)
def importance_ratio(view: View) -> Answer:
    """Probability of a token for the trainer over that for the generator, mean over the last 10 steps. It is 1 where
    both agree; a truncated ratio, as slime's `train/tis`, is below 1 where they do not.
    """
    return single(view, "importance_ratio_mean", importance_ratio.hint)


@signal(
    title="Effective samples",
    unit="ratio",
    actor="trainer",
    inputs=("effective_sample_ratio",),
    cadence="step",
    hint="this trainer reports no effective sample size (verl `rollout_corr/rollout_is_eff_sample_size`, "
    "PipelineRL `rl/ess`)",
)
def effective_sample_ratio(view: View) -> Answer:
    """Effective sample size of the importance weights as a share of all samples, mean over the last 10 steps. It is 1
    where all weights are equal.
    """
    return single(view, "effective_sample_ratio", effective_sample_ratio.hint)


def _reward_logged(view: View) -> Answer:
    return stats(view, reward.hint, ("mean", "reward_mean", average), ("std", "reward_std", average))


@signal(
    title="Reward",
    unit="reward",
    actor="trainer",
    inputs=("reward_mean", "reward_std"),
    cadence="step",
    hint="this trainer reports no reward: log its mean per step "
    "(TRL `reward`, prime-rl `train/agg/all/<agent>/reward/mean`)",
    records=True,
)
@either(_reward_logged, log_first=True)
def reward(_: View, found: Window) -> Answer:
    """Reward of the trained rollouts, mean and standard deviation: means of the last 10 steps in the trainer's log.
    What the log lacks comes from records of the last 10 consumed versions.
    """
    rewards = found.made.values.get("reward")
    if not rewards:
        return Unknown("no record of the window has a reward: log `reward`")
    return [*spread(rewards, "mean"), Value(deviation(rewards), (("stat", "std"),))]


_REWARD, _SPREAD = ("reward_mean", ()), ("reward_std", ())
# Share of the spread of rewards; a smaller rise over a window is not worth its compute.
TOLERATED = 0.1
# Window lengths in blocks; the longest flat window counts. Fewer than thirty steps show nothing.
WINDOWS = (30, 40, 60)
# Blocks that are kept. Beyond that, pairs are merged: memory is constant and windows grow with the run.
MOST_BLOCKS = 60


@dataclass(slots=True)
class _Block:
    """Some steps in a row: first and last step, sum of their mean rewards, number of steps."""

    first: int
    last: int
    total: float
    count: int


@dataclass(slots=True)
class _History:
    """Mean rewards of a run by blocks of ``size`` steps; the last block may be open. ``flat``: the answer so far."""

    size: int = 1
    blocks: list[_Block] = field(default_factory=list)
    life: int = -1
    flat: int = 0
    rise: float = 0.0

    def new_rows(self, rows: list[Step]) -> list[Step]:
        """The rows later than any before. A resumed run's first row drops the steps that it plays again."""
        if rows and rows[0].incarnation > self.life:
            self.life = rows[0].incarnation
            self.blocks = [block for block in self.blocks if block.last < rows[0].number]
        newest = self.blocks[-1].last if self.blocks else -1
        return rows[bisect_right(rows, newest, key=attrgetter("number")) :]

    def add(self, row: Step, tolerated: Callable[[], float]) -> None:
        """Add the row of a step later than any before. ``tolerated`` is called when the row completes a block."""
        if not self.blocks or self.blocks[-1].count >= self.size:
            self.blocks.append(_Block(row.number, row.number, 0.0, 0))
        block = self.blocks[-1]
        block.last, block.total, block.count = row.number, block.total + row.values[_REWARD], block.count + 1
        if block.count < self.size:
            return
        if len(self.blocks) > MOST_BLOCKS:
            self._halve()
        self._look(tolerated())

    def _halve(self) -> None:
        pairs = zip(self.blocks[::2], self.blocks[1::2], strict=False)
        odd = self.blocks[-1:] if len(self.blocks) % 2 else []
        self.blocks = [_Block(a.first, b.last, a.total + b.total, a.count + b.count) for a, b in pairs] + odd
        self.size *= 2

    def _look(self, tolerated: float) -> None:
        self.flat, self.rise = 0, 0.0
        whole = [one for one in self.blocks if one.count >= self.size]
        rising: list[float] = []  # slopes of longer windows that rise
        for count in reversed(WINDOWS):
            window = whole[-count:]
            found = trend([((one.first + one.last) / 2, one.total / one.count) for one in window])
            if len(window) < count or found is None:
                continue
            steps = window[-1].last - window[0].first + 1
            # The window is too short to exclude the rise of a longer one.
            if found.high * steps <= tolerated and all(slope > found.high for slope in rising):
                self.flat, self.rise = steps, found.slope * steps
                return
            rising += [found.slope] if found.low > 0 else []

    def shorter_than(self, steps: int) -> bool:
        """Whether the blocks contain fewer steps than that."""
        return len(self.blocks) < steps and self.steps < steps

    @property
    def steps(self) -> int:
        return sum(block.count for block in self.blocks)

    def saved(self) -> dict[str, Any]:
        """As JSON."""
        blocks = [[one.first, one.last, one.total, one.count] for one in self.blocks]
        return {"size": self.size, "blocks": blocks, "life": self.life, "flat": self.flat, "rise": self.rise}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "_History":
        return cls(**{**saved, "blocks": [_Block(*one) for one in saved["blocks"]]})


def _scale(view: View, rows: list[Step]) -> float:
    """The scale of rewards: their logged spread over rollouts, else the largest possible reward, else their level."""
    spreads = [row.values[_SPREAD] for row in rows[-STEP_WINDOW:] if _SPREAD in row.values]
    largest = view.fact("max_reward")
    if spreads and fmean(spreads) > 0:
        return fmean(spreads)
    return largest if largest else abs(median(row.values[_REWARD] for row in rows))


@signal(
    title="Reward flat for",
    unit="steps",
    actor="trainer",
    inputs=("reward_mean", "reward_std"),
    cadence="step",
    hint="this trainer reports no reward: log its mean per step (TRL `reward`, verl `critic/score/mean`)",
)
@Fold
def reward_plateau_steps(memory: Any, view: View) -> tuple[Any, Answer]:
    """Steps over which the mean reward has not risen; 0 while it rises or is unknown. The longest window of at least 30
    points up to now whose Theil-Sen rise, at the upper end of its 95% interval, is below a tenth of the spread of
    rewards over rollouts.

    A window is flat only if no longer window rises as fast as this one may: a short or noisy window proves nothing.
    """
    history = memory if isinstance(memory, _History) else _History.load(memory) if memory else _History()
    rows = view.steps.rows(_REWARD, count=KEPT_STEPS, until=view.now)
    fresh = history.new_rows(rows)
    for row in fresh:
        history.add(row, lambda: TOLERATED * _scale(view, rows))
    if not rows:
        return history, Unknown(reward_plateau_steps.hint)
    if history.shorter_than(WINDOWS[0]):
        return history, Unknown(f"{history.steps} of the {WINDOWS[0]} steps needed so far; no action needed")
    why = f"reward {history.rise:+.3g} over {history.flat} steps" if history.flat else "rises, or varies too much"
    return history, [Value(float(history.flat), why=why)]
