"""The true state of rollouts: `truth_rollouts.jsonl`, a line at the end of each trainer step.

Staleness is there twice. `dispatched` is what a run directory of prime-rl can show: the age of the version at which a
rollout's group was dispatched. `tokens` is exact: the age of the version of its oldest token, at three levels.
"""

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from server.demo.fates import EXITS
from server.demo.files import Files
from server.demo.orchestrator import Orchestrator
from server.demo.records import Batch, Observer, Step
from server.demo.rollout_tally import Numbers, Tally, of_batch, staleness, together
from server.demo.rollouts import Group, Rollout
from server.demo.sandbox_truth import nearest_rank

WINDOW_STEPS = 10
# One more step for the begin of the window; another may be in progress.
_KEPT_STEPS = WINDOW_STEPS + 4
_CAUSES = {"all": "all_solved", "none": "none_solved"}


@dataclass(frozen=True, slots=True)
class Shipped:
    """A batch, when the trainer was given it (seconds since the run began), and what it comes to."""

    batch: Batch
    at: float
    tally: Tally


class RolloutTruth(Files, Observer):
    """Epoch times in the file; no collector reads it."""

    def __init__(self, orchestrator: Orchestrator, folder: Path, start: float) -> None:
        super().__init__(start)
        self._orchestrator = orchestrator
        self._file = self._open(folder / "truth_rollouts.jsonl")
        self._shipped: deque[Shipped] = deque(maxlen=_KEPT_STEPS)
        self._groups: deque[Group] = deque()
        self._ended: deque[Rollout] = deque()
        self._dispatched: deque[float] = deque()
        self._exits: deque[tuple[float, str, int]] = deque()
        self.evaluations = 0
        self._bound = orchestrator.scenario.max_off_policy_steps
        # Rollouts too old for any later batch, while their group still exists.
        self._stale: set[Rollout] = set()

    @property
    def batches(self) -> list[Batch]:
        """The newest that were shipped, oldest first."""
        return [one.batch for one in self._shipped]

    def dispatched(self, now: float, rollout: Rollout) -> None:
        self._dispatched.append(now)

    def scored(self, now: float, rollout: Rollout) -> None:
        if rollout.error:
            self._exits.append((now, EXITS[rollout.error], 1))
        else:
            self._ended.append(rollout)
        if rollout.group.scored == rollout.group.size:
            self._groups.append(rollout.group)

    def evaluated(self, now: float, rollout: Rollout) -> None:
        self.evaluations += 1

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        self._shipped.append(Shipped(batch, now, of_batch(batch)))
        self._exits.append((now, "trained", self._shipped[-1].tally.count))
        self._exits.append((now, "stale", self._newly_stale(batch)))
        self._forget(self._shipped[0].at)

    def _newly_stale(self, batch: Batch) -> int:
        """Returns finished rollouts that no later batch may contain; their group may still wait for siblings."""
        here = (*self._orchestrator.incomplete.values(), *self._orchestrator.buffer)
        old = [group for group in (*here, *batch.dropped) if self._is_stale(group, batch.step)]
        found = {rollout for group in old for rollout in group.rollouts if rollout.scored and not rollout.error}
        found -= self._stale
        self._stale |= found
        self._stale -= {rollout for group in batch.dropped for rollout in group.rollouts}
        return len(found)

    def _is_stale(self, group: Group, step: int) -> bool:
        """Once batch `step` is shipped: the next one trains version `step`."""
        return group.version < step - self._bound

    def _forget(self, since: float) -> None:
        """Drops what ended before every window that may still be needed."""
        for times in (self._dispatched, self._exits, self._groups, self._ended):
            while times and _when(times[0]) < since:
                times.popleft()

    def stepped(self, step: Step) -> None:
        rollouts = list(step.batch.rollouts())
        shipped = next(one for one in self._shipped if one.batch is step.batch)
        line = {
            "step": step.batch.step,
            "end": self._start + step.end,
            "shipped": self._start + shipped.at,
            **staleness(shipped.tally),
            "response_tokens_p50": nearest_rank(sorted(one.response_tokens for one in rollouts), 0.5),
            "census": self._orchestrator.census(),
            **({"evaluations": self.evaluations} if self._orchestrator.scenario.evals else {}),
            "window": self.window(step.end),
        }
        self._file.line(json.dumps(line), self._start + step.end)

    # -- the last ten batches ----------------------------------------------------------------------------------

    def window(self, now: float) -> Numbers:
        """Returns the truth over the last ten shipped batches, including what happened since then."""
        known = list(self._shipped)
        last = known[-WINDOW_STEPS:]
        start = known[-WINDOW_STEPS - 1].at if len(known) > WINDOW_STEPS else -1.0
        batches, tally = [one.batch for one in last], together([one.tally for one in last])
        groups = [one for one in self._groups if start < one.completed <= now]
        ended = [one for one in self._ended if start < one.finished]
        return {
            "steps": [batch.step for batch in batches],
            "completed": causes(groups),
            "admitted": causes([group for batch in batches for group in batch.groups]),
            **staleness(tally),
            **_solved(groups),
            "tail": {"response_tokens": _tail([one.response_tokens for one in ended]), "seconds": _tail(_life(ended))},
            **self._ages(last, now),
            **self._rates(last, start),
            **tally.shape(),
            "exits": self._shares(start, now),
        }

    def _ages(self, last: Sequence[Shipped], now: float) -> Numbers:
        """How old samples were when they were shipped, and how old the oldest is that waits."""
        ages = sorted(one.at - finished for one in last for finished in one.tally.finished)
        gone = {id(group) for one in self._shipped for group in _groups(one.batch)}
        step = last[-1].batch.step if last else 0
        waiting = [
            one.finished for one in self._ended if id(one.group) not in gone and not self._is_stale(one.group, step)
        ]
        return {"sample_age_p95": nearest_rank(ages, 0.95), "oldest": now - min(waiting) if waiting else None}

    def _rates(self, last: Sequence[Shipped], start: float) -> Numbers:
        """Per second, from the beginning of the window to its last batch."""
        end = last[-1].at if last else 0.0
        if start < 0 or end <= start:
            return {}
        counts = {
            "dispatched": sum(start < at <= end for at in self._dispatched),
            "completed": sum(start < one.finished <= end for one in self._ended),
            "delivered": sum(one.tally.count for one in last),
        }
        return {"rates": {name: count / (end - start) for name, count in counts.items()}}

    def _shares(self, start: float, end: float) -> dict[str, float]:
        exits: Counter[str] = Counter()
        for at, name, count in self._exits:
            exits[name] += count if start < at <= end else 0
        return {name: count / exits.total() for name, count in exits.items()} if exits.total() else {}


def _groups(batch: Batch) -> tuple[Group, ...]:
    return (*batch.groups, *batch.dropped)


def _when(item: object) -> float:
    if isinstance(item, float):
        return item
    if isinstance(item, tuple):
        return float(item[0])
    return item.completed if isinstance(item, Group) else item.scored if isinstance(item, Rollout) else 0.0


# -- groups and shapes -------------------------------------------------------------------------------------------


def causes(groups: Sequence[Group]) -> dict[str, float]:
    """Share of groups without a gradient, by cause."""
    found = Counter(_CAUSES.get(group.outcome, "") for group in groups)
    return {cause: found[cause] / len(groups) if groups else 0.0 for cause in _CAUSES.values()}


def _solved(groups: Sequence[Group]) -> Numbers:
    ratios = sorted(fmean(rewards) for group in groups if (rewards := group.rewards))
    band = fmean(0.2 <= ratio <= 0.8 for ratio in ratios) if ratios else None
    return {"solve_mean": fmean(ratios) if ratios else None, "solve_band": band}


def _life(rollouts: Sequence[Rollout]) -> list[float]:
    return [one.finished - one.dispatched for one in rollouts]


def _tail(values: Iterable[float]) -> float | None:
    """p99 / p50."""
    ordered = sorted(values)
    high, middle = nearest_rank(ordered, 0.99), nearest_rank(ordered, 0.5)
    return high / middle if high and middle else None
