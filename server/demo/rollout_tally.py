"""Totals of a batch's rollouts, as integers: computed once, added up for every window that contains the batch."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from server.demo.records import Batch
from server.demo.rollouts import Rollout

Numbers = dict[str, object]
Ages = Counter[int]
"""Age in versions -> how many rollouts, tokens or turns have it."""

_SUMS = ("response_tokens", "turns", "tool_calls", "reward", "mixed_dispatched", "mixed_tokens")
_PARTS = ("origin_dispatched", "origin_tokens", "version_end", "version_complete", "used")


@dataclass(slots=True)
class Tally:
    """Of rollouts at their use.

    Attributes:
        dispatched, trajectory: by the version of their group's dispatch, and of their oldest token.
        token, turns: of their tokens, and of the states their turns met.
        sums: over `count` rollouts. Versions and tokens are whole, and so are rewards here: no order of adding matters.
        finished: when each was generated, ascending, seconds since the run began.
    """

    count: int = 0
    dispatched: Ages = field(default_factory=Counter)
    trajectory: Ages = field(default_factory=Counter)
    token: Ages = field(default_factory=Counter)
    turns: Ages = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    finished: list[float] = field(default_factory=list)

    def add(self, rollout: Rollout, at: int) -> None:
        """Used at version ``at``."""
        group, oldest = rollout.group, rollout.made[0][0]
        self.count += 1
        self.dispatched[at - group.version] += 1
        self.trajectory[at - oldest] += 1
        for version, tokens in rollout.made:
            self.token[at - version] += tokens
        self.turns.update(turn_ages(rollout))
        amounts = (
            rollout.response_tokens, rollout.turns, rollout.turns - 1, int(rollout.reward),
            rollout.version_end != group.version, len(rollout.made) > 1,
        )  # fmt: skip
        versions = (group.version, oldest, rollout.version_end, group.version_complete, at)
        for name, amount in zip((*_SUMS, *_PARTS), (*amounts, *versions), strict=True):
            self.sums[name] += amount
        self.finished.append(rollout.finished)

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.count if self.count else None

    def parts(self, origin: str) -> dict[str, float]:
        """Mean versions that passed while it was generated, waited for its siblings, stood in the queue."""
        if not self.count:
            return {}
        stops = [self.sums[name] for name in (origin, "version_end", "version_complete", "used")]
        names = ("in_flight", "in_group", "in_queue")
        return {name: (stops[at + 1] - stops[at]) / self.count for at, name in enumerate(names)}

    def shape(self) -> Numbers:
        means = {f"{name}_mean": self.mean(name) for name in _SUMS[:4]}
        return means if self.count else {}  # type: ignore[return-value]


def of_batch(batch: Batch) -> Tally:
    """Of what it holds, at the version just before its update."""
    found = Tally()
    for rollout in batch.rollouts():
        found.add(rollout, batch.step - 1)
    found.finished.sort()
    return found


def together(tallies: Sequence[Tally]) -> Tally:
    """Of several."""
    found = Tally()
    for one in tallies:
        found.count += one.count
        for name in ("dispatched", "trajectory", "token", "turns", "sums"):
            held: Counter[object] = getattr(found, name)
            held.update(getattr(one, name))
        found.finished += one.finished
    return found


def staleness(tally: Tally) -> Numbers:
    """Returns every level, as a run directory can show it (``dispatched``) and as it was (``tokens``)."""
    turns = tally.turns
    return {
        "dispatched": {
            "trajectory": _spread(tally.dispatched),
            "parts": tally.parts("origin_dispatched"),
            "mixed": tally.mean("mixed_dispatched"),
        },
        "tokens": {
            "trajectory": _spread(tally.trajectory),
            "token": _spread(tally.token),
            "environment_state": _spread(turns),
            "parts": tally.parts("origin_tokens"),
            "mixed": tally.mean("mixed_tokens"),
            "old_state_turns": sum(turns[age] for age in turns if age > 0) / turns.total() if turns else None,
        },
    }


def turn_ages(rollout: Rollout) -> Iterable[int]:
    """Returns the age of each turn's state: the acting version minus that of the oldest change in the state."""
    changed: int | None = None
    for call in rollout.calls:
        changed = None if call.reset else changed
        yield 0 if changed is None else call.version - changed
        if call.mutated and changed is None:
            changed = call.version


def _spread(ages: Ages) -> dict[str, float] | None:
    total = ages.total()
    if not total:
        return None
    seen, p95 = 0, 0
    for age, count in sorted(ages.items()):
        seen, p95 = seen + count, age
        if seen >= 0.95 * total:
            break
    mean = sum(age * count for age, count in ages.items()) / total
    return {"mean": mean, "p95": float(p95), "max": float(max(ages))}
