"""For how many steps the mean reward has not risen: flat reward at full cost.

The rise is the Theil-Sen slope over a window times the window's length. A window is flat when even the upper end of the
rise's 95 % interval is below a tenth of the spread of rewards, and no longer window rises as fast as this one may: a
short or noisy window proves nothing, and is not flat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from server.signals._model import STEP_WINDOW, Answer, Signal, Unknown, Value, View, fold
from server.signals._trend import trend
from server.signals._window import KEPT_STEPS, Step

_HINT = "this trainer reports no reward: log its mean per step (TRL `reward`, verl `critic/score/mean`)"
_REWARD, _SPREAD = ("reward_mean", ()), ("reward_std", ())
# A rise of a tenth of what rollouts differ by is the least that is worth a window's compute.
TOLERATED = 0.1
# Windows that are tried, in blocks: the longest that is flat counts. Thirty steps are the least that say anything.
WINDOWS = (30, 40, 60)
# As many blocks are kept. Then two become one: memory stays of constant size, and windows grow with the run.
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

    def add(self, row: Step, tolerated: float) -> None:
        """The row of a later step than any before, or of a step that a resumed run plays again."""
        if row.incarnation > self.life:
            self.life = row.incarnation
            self.blocks = [one for one in self.blocks if one.last < row.number]
        if self.blocks and row.number <= self.blocks[-1].last:
            return
        if not self.blocks or self.blocks[-1].count >= self.size:
            self.blocks.append(_Block(row.number, row.number, 0.0, 0))
        block = self.blocks[-1]
        block.last, block.total, block.count = row.number, block.total + row.values[_REWARD], block.count + 1
        if block.count < self.size:
            return
        if len(self.blocks) > MOST_BLOCKS:
            self._halve()
        self._look(tolerated)

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
            # A window that may be rising as a longer one is: too short to show it.
            if found.high * steps <= tolerated and all(slope > found.high for slope in rising):
                self.flat, self.rise = steps, found.slope * steps
                return
            rising += [found.slope] if found.low > 0 else []

    def saved(self) -> dict[str, Any]:
        """As JSON."""
        blocks = [[one.first, one.last, one.total, one.count] for one in self.blocks]
        return {"size": self.size, "blocks": blocks, "life": self.life, "flat": self.flat, "rise": self.rise}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "_History":
        return cls(**{**saved, "blocks": [_Block(*one) for one in saved["blocks"]]})


def _scale(view: View, rows: list[Step]) -> float:
    """What rewards differ by: their logged spread over rollouts, else the largest possible reward, else their level."""
    spreads = [row.values[_SPREAD] for row in rows[-STEP_WINDOW:] if _SPREAD in row.values]
    largest = view.fact("max_reward")
    if spreads and fmean(spreads) > 0:
        return fmean(spreads)
    return largest if largest else abs(median(row.values[_REWARD] for row in rows))


def _remember(memory: Any, view: View) -> tuple[Any, Answer]:
    history = _History.load(memory) if memory else _History()
    rows = view.steps.rows(_REWARD, count=KEPT_STEPS, until=view.now)
    # Once, and not for each of the 64 rows: it was half of what all step signals cost.
    tolerated = TOLERATED * _scale(view, rows) if rows else 0.0
    for row in rows:
        history.add(row, tolerated)
    saved, steps = history.saved(), sum(one.count for one in history.blocks)
    if not rows:
        return saved, Unknown(_HINT)
    if steps < WINDOWS[0]:
        return saved, Unknown(f"{steps} of the {WINDOWS[0]} steps needed so far; it fills by itself")
    why = f"reward {history.rise:+.3g} over {history.flat} steps" if history.flat else "rises, or varies too much"
    return saved, [Value(float(history.flat), why=why)]


SIGNAL = Signal(
    name="reward_plateau_steps",
    title="Reward flat for",
    unit="steps",
    actor="trainer",
    help="Steps over which the mean reward has not risen; 0 while it rises or is unknown. The longest window of at "
    "least 30 points up to now whose Theil-Sen rise, at the upper end of its 95 % interval, is below a tenth of the "
    "spread of rewards over rollouts.",
    inputs=("reward_mean", "reward_std"),
    cadence="step",
    hint=_HINT,
    **fold(_remember),
)
