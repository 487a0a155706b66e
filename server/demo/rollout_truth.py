"""What really happened to the rollouts: `truth_rollouts.jsonl`, a line at the end of each trainer step.

Staleness is there twice. `dispatched` is what a run directory of prime-rl can tell: a rollout is as old as the version
its group was dispatched at. `tokens` is what was: as old as the version of its oldest token, at three levels.
"""

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from server.demo.orchestrator import Orchestrator
from server.demo.prime_run import AppendFile
from server.demo.records import Batch, Observer, Step
from server.demo.rollouts import Group, Rollout
from server.demo.sandbox_truth import nearest_rank

WINDOW_STEPS = 10
# One more tells when the window begins; another may be under way.
_KEPT_STEPS = WINDOW_STEPS + 4
_CAUSES = {"all": "all_solved", "none": "none_solved"}
Numbers = dict[str, object]
Weighted = list[tuple[int, int]]
"""(age in versions, how many tokens or turns have it)."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """A batch and when the trainer was given it, seconds since the run began."""

    batch: Batch
    at: float


class RolloutTruth(Observer):
    """Epoch times in the file; no collector reads it."""

    def __init__(self, orchestrator: Orchestrator, folder: Path, start: float) -> None:
        self._orchestrator = orchestrator
        self._start = start
        self._file = AppendFile(folder / "truth_rollouts.jsonl", start)
        self._shipped: deque[Shipped] = deque(maxlen=_KEPT_STEPS)
        self._groups: deque[Group] = deque()
        self._ended: deque[Rollout] = deque()
        self._dispatched: deque[float] = deque()
        self._exits: deque[tuple[float, str, int]] = deque()
        self._bound = orchestrator.scenario.max_off_policy_steps
        # Those too old for any batch to come, while their group is still here.
        self._stale: set[Rollout] = set()

    def dispatched(self, now: float, rollout: Rollout) -> None:
        self._dispatched.append(now)

    def scored(self, now: float, rollout: Rollout) -> None:
        self._ended.append(rollout)
        if rollout.group.scored == rollout.group.size:
            self._groups.append(rollout.group)

    def shipped(self, now: float, batch: Batch, pack_seconds: float) -> None:
        self._shipped.append(Shipped(batch, now))
        self._exits.append((now, "trained", len(list(batch.rollouts()))))
        self._exits.append((now, "stale", self._newly_stale(batch)))
        self._forget(self._shipped[0].at)

    def _newly_stale(self, batch: Batch) -> int:
        """Finished rollouts that no batch after this one may hold; their group may still wait for siblings."""
        here = (*self._orchestrator.incomplete.values(), *self._orchestrator.buffer)
        old = [group for group in (*here, *batch.dropped) if self._is_stale(group, batch.step)]
        found = {rollout for group in old for rollout in group.rollouts if rollout.scored} - self._stale
        self._stale |= found
        self._stale -= {rollout for group in batch.dropped for rollout in group.rollouts}
        return len(found)

    def _is_stale(self, group: Group, step: int) -> bool:
        """Once batch `step` is shipped: the next one trains version `step`."""
        return group.version < step - self._bound

    def _forget(self, since: float) -> None:
        """What ended before every window that may still be asked for."""
        for times in (self._dispatched, self._exits, self._groups, self._ended):
            while times and _when(times[0]) < since:
                times.popleft()

    def stepped(self, step: Step) -> None:
        rollouts = list(step.batch.rollouts())
        line = {
            "step": step.batch.step,
            "end": self._start + step.end,
            "shipped": next(self._start + one.at for one in self._shipped if one.batch is step.batch),
            **staleness([step.batch]),
            "response_tokens_p50": nearest_rank(sorted(one.response_tokens for one in rollouts), 0.5),
            "census": self._orchestrator.census(),
            "window": self.window(step.end),
        }
        self._file.line(json.dumps(line), self._start + step.end)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    # -- the last ten batches ----------------------------------------------------------------------------------

    def window(self, now: float) -> Numbers:
        """The truth over the last ten batches that are shipped; what goes on since then is in it too."""
        known = list(self._shipped)
        last = known[-WINDOW_STEPS:]
        start = known[-WINDOW_STEPS - 1].at if len(known) > WINDOW_STEPS else -1.0
        batches = [one.batch for one in last]
        groups = [one for one in self._groups if start < one.completed <= now]
        ended = [one for one in self._ended if start < one.finished]
        return {
            "steps": [batch.step for batch in batches],
            "completed": causes(groups),
            "admitted": causes([group for batch in batches for group in batch.groups]),
            **staleness(batches),
            **_solved(groups),
            "tail": {"response_tokens": _tail([one.response_tokens for one in ended]), "seconds": _tail(_life(ended))},
            **self._ages(last, now),
            **self._rates(last, start),
            **_shape([one for batch in batches for one in batch.rollouts()]),
            "exits": self._shares(start, last[-1].at if last else 0.0),
        }

    def _ages(self, last: Sequence[Shipped], now: float) -> Numbers:
        """How old samples were when they were shipped, and how old the oldest is that waits."""
        ages = sorted(one.at - rollout.finished for one in last for rollout in one.batch.rollouts())
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
            "delivered": sum(1 for one in last for _ in one.batch.rollouts()),
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


# -- staleness ---------------------------------------------------------------------------------------------------


def staleness(batches: Sequence[Batch]) -> Numbers:
    """Every level of what these batches hold, at the version just before their updates."""
    used = [(batch.step - 1, rollout) for batch in batches for rollout in batch.rollouts()]
    turns = [pair for _, rollout in used for pair in turn_ages(rollout)]
    return {
        "dispatched": {
            "trajectory": _spread([(at - one.group.version, 1) for at, one in used]),
            "parts": _parts([(at, one, one.group.version) for at, one in used]),
            "mixed": fmean(one.version_end != one.group.version for _, one in used) if used else None,
        },
        "tokens": {
            "trajectory": _spread([(at - one.made[0][0], 1) for at, one in used]),
            "token": _spread([(at - version, count) for at, one in used for version, count in one.made]),
            "environment_state": _spread(turns),
            "parts": _parts([(at, one, one.made[0][0]) for at, one in used]),
            "mixed": fmean(len(one.made) > 1 for _, one in used) if used else None,
            "old_state_turns": sum(count for age, count in turns if age > 0) / len(turns) if turns else None,
        },
    }


def turn_ages(rollout: Rollout) -> Weighted:
    """Age of the state that each turn met: the version that acts, minus that of the oldest change still in it."""
    ages: Weighted = []
    changed: int | None = None
    for call in rollout.calls:
        changed = None if call.reset else changed
        ages.append((0 if changed is None else call.version - changed, 1))
        if call.mutated and changed is None:
            changed = call.version
    return ages


def _spread(ages: Weighted) -> dict[str, float] | None:
    total = sum(count for _, count in ages)
    if not total:
        return None
    seen, p95 = 0, 0
    for age, count in sorted(ages):
        seen, p95 = seen + count, age
        if seen >= 0.95 * total:
            break
    mean = sum(age * count for age, count in ages) / total
    return {"mean": mean, "p95": float(p95), "max": float(max(age for age, _ in ages))}


def _parts(used: list[tuple[int, Rollout, int]]) -> dict[str, float]:
    """Mean versions that passed while it was generated, waited for its siblings, stood in the queue."""
    if not used:
        return {}
    return {
        "in_flight": fmean(one.version_end - origin for _, one, origin in used),
        "in_group": fmean(one.group.version_complete - one.version_end for _, one, _ in used),
        "in_queue": fmean(at - one.group.version_complete for at, one, _ in used),
    }


# -- groups and shapes -------------------------------------------------------------------------------------------


def causes(groups: Sequence[Group]) -> dict[str, float]:
    """Share of groups without a gradient, by cause."""
    found = Counter(_CAUSES.get(group.outcome, "") for group in groups)
    return {cause: found[cause] / len(groups) if groups else 0.0 for cause in _CAUSES.values()}


def _solved(groups: Sequence[Group]) -> Numbers:
    ratios = sorted(fmean(group.rewards) for group in groups)
    band = fmean(0.2 <= ratio <= 0.8 for ratio in ratios) if ratios else None
    return {"solve_mean": fmean(ratios) if ratios else None, "solve_band": band}


def _shape(rollouts: Sequence[Rollout]) -> Numbers:
    if not rollouts:
        return {}
    return {
        "response_tokens_mean": fmean(one.response_tokens for one in rollouts),
        "turns_mean": fmean(one.turns for one in rollouts),
        "tool_calls_mean": fmean(one.turns - 1 for one in rollouts),
        "reward_mean": fmean(one.reward for one in rollouts),
    }


def _life(rollouts: Sequence[Rollout]) -> list[float]:
    return [one.finished - one.dispatched for one in rollouts]


def _tail(values: Iterable[float]) -> float | None:
    """p99 / p50."""
    ordered = sorted(values)
    high, middle = nearest_rank(ordered, 0.99), nearest_rank(ordered, 0.5)
    return high / middle if high and middle else None
