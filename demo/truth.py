"""The true state, step by step, from the simulation itself. No collector reads it; tests compare with it."""

import json
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from demo.faults import Fault
from demo.orchestrator import EXITS, Harness, Orchestrator
from demo.provider import Judges
from demo.records import Batch, Files, Groups, Means, Observer, Step
from demo.rollouts import Group, Rollout
from demo.scenarios import Scenario

# ---- rollout tally
# Totals of a batch's rollouts, as integers: computed once, added up for every window that contains the batch.

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


# ---- sandbox truth
# The true state of the sandboxes: a line every 30 s, and the same numbers at the end of each step.

EVERY_SECONDS = 30.0


def sandbox_state(harness: Harness, now: float) -> dict[str, object]:
    """Live sandboxes by state (the dangling ones run), totals since the run began, spin-ups of the last 5 minutes.

    The second account is reported separately, below `modal`; it is simulated even if it is not served.
    """
    provider = harness.provider
    pending = provider.pending()
    return {
        "states": provider.counts(),
        "starting": provider.starting,
        "dangling": provider.plan.dangling,
        "oldest_pending_seconds": now - pending[0].created if pending else 0.0,
        "created": provider.created,
        "failures": dict(sorted(provider.failures.items())),
        **_spinups(provider.completed, now),
        "credit_usd": provider.plan.credit_usd - provider.spent_usd(now),
        **({"modal": judge_state(harness.judges, now)} if harness.judges else {}),
    }


def judge_state(judges: Judges, now: float) -> dict[str, object]:
    """The same of the second account; its failures by the provider's own names."""
    pending = judges.oldest_pending()
    return {
        "states": judges.counts(),
        "dangling": judges.plan.dangling,
        "oldest_pending_seconds": now - pending.created if pending else 0.0,
        "created": judges.created,
        "failures": dict(sorted(judges.failures.items())),
        **_spinups(judges.completed, now),
    }


def _spinups(completed: Iterable[tuple[float, float]], now: float) -> dict[str, object]:
    done = sorted(seconds for at, seconds in completed if at > now - 300.0)
    return {
        "spinups": len(done),
        "spinup_p50_seconds": nearest_rank(done, 0.5),
        "spinup_p95_seconds": nearest_rank(done, 0.95),
        "spinup_max_seconds": done[-1] if done else None,
    }


def nearest_rank(ordered: list[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class SandboxTruth(Files, Observer):
    """Writes `truth_sandboxes.jsonl`. Epoch times; no collector reads it."""

    def __init__(self, orchestrator: Orchestrator, harness: Harness, folder: Path, start: float) -> None:
        super().__init__(start)
        self._orchestrator = orchestrator
        self._harness = harness
        self._file = self._open(folder / "truth_sandboxes.jsonl")

    def tick(self, now: float) -> None:
        if now % EVERY_SECONDS:
            return
        census = self._orchestrator.census()
        line = {"t": self._start + now, "in_flight": self._orchestrator.in_flight.value, "census": census}
        self._file.line(json.dumps(line | sandbox_state(self._harness, now)), self._start + now)


class TruthFiles(Files):
    """Writes `truth.jsonl`, one line a trainer step, and `truth.json`, the parameters. Epoch times.

    `age`: seconds between the run's start and the clock's, from which faults count; `more`: beside the parameters.
    """

    def __init__(
        self, scenario: Scenario, seed: int, folder: Path, start: float, faults: Sequence[Fault], age: float = 0.0,
        **more: object,
    ) -> None:  # fmt: skip
        super().__init__(start)
        self._file = self._open(folder / "truth.jsonl")
        about = {"scenario": scenario.name, "seed": seed, "start": start, "parameters": parameters(scenario), **more}
        if faults:
            about["faults"] = [{"kind": fault.kind, "at": start + age + fault.at} for fault in faults]
        (folder / "truth.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")

    def _write(self, number: int, start: float, end: float, seconds: float, values: Mapping[str, object]) -> None:
        """The line of a step, whose parts are the stack's own."""
        times = {"step": number, "start": self._start + start, "end": self._start + end, "step_seconds": seconds}
        self._file.line(json.dumps({**times, **values}), self._start + end)


class Truth(TruthFiles, Observer):
    """Of prime-rl, and of whatever else trains on batches that an orchestrator ships."""

    def __init__(
        self, scenario: Scenario, seed: int, folder: Path, start: float, harness: Harness | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        age = scenario.sandboxes.age_seconds if scenario.sandboxes else 0.0
        super().__init__(scenario, seed, folder, start, faults, age, expected=expected(scenario))
        self._harness = harness

    def stepped(self, step: Step) -> None:
        values: dict[str, object] = {**_parts(step), **_samples(step.batch), **_state(step), **self._more(step)}
        if self._harness:
            values["sandboxes"] = sandbox_state(self._harness, step.end)
        self._write(step.batch.step, step.start, step.end, step.timing.total, values)

    def _more(self, step: Step) -> dict[str, float]:
        """Parts of only some stacks."""
        return {}


def _parts(step: Step) -> dict[str, float]:
    timing = step.timing
    return {
        "wait_seconds": timing.wait,
        "compute_seconds": timing.compute,
        "weight_sync_seconds": timing.broadcast,
        "checkpoint_seconds": timing.checkpoint,
        "other_seconds": timing.load,
    }


def _samples(batch: Batch) -> dict[str, float]:
    """`tokens` are loss tokens (the responses), `total_tokens` those the trainer computes on."""
    totals, in_flight, in_queue = zip(*batch.staleness(), strict=True)
    return {
        "samples": len(list(batch.rollouts())),
        "groups": len(batch.groups),
        "tokens": batch.response_tokens,
        "total_tokens": batch.total_tokens,
        "staleness_mean": fmean(totals),
        "staleness_max": max(totals),
        "staleness_in_flight_mean": fmean(in_flight),
        "staleness_in_queue_mean": fmean(in_queue),
        **outcomes(batch),
        "dropped_samples": sum(group.size for group in batch.dropped),
        "gate_seconds": batch.gate_seconds,
    }


def outcomes(made: Groups) -> dict[str, float]:
    """What became of the samples that one step trains on, in any stack."""
    rollouts = list(made.rollouts())
    return {
        "zero_advantage_ratio": made.group_ratio("all", "none"),
        "all_solved_ratio": made.group_ratio("all"),
        "none_solved_ratio": made.group_ratio("none"),
        "response_tokens_mean": fmean(rollout.response_tokens for rollout in rollouts),
        "response_tokens_max": max(rollout.response_tokens for rollout in rollouts),
        "truncated_ratio": fmean(rollout.truncated for rollout in rollouts),
        "reward_mean": fmean(rollout.reward for rollout in rollouts),
    }


def engine_state(version: int, means: Means, generation_tokens: int) -> dict[str, float]:
    """Of a stack without a queue: time-weighted means over the step, and totals at its end."""
    return {
        "policy_version": version,
        "requests_running": means.running,
        "requests_waiting": means.waiting,
        "kv_usage": means.kv_usage,
        "generation_tokens": generation_tokens,
    }


def _state(step: Step) -> dict[str, float]:
    """Time-weighted means over the step, and totals at its end."""
    return {
        "policy_version": step.version,
        "queue_samples": step.means.queue,
        "requests_running": step.means.running,
        "requests_waiting": step.means.waiting,
        "kv_usage": step.means.kv_usage,
        "in_flight": step.means.in_flight,
        "requests_finished": step.requests_finished,
        "generation_tokens": step.generation_tokens,
    }


def parameters(scenario: Scenario) -> dict[str, object]:
    """Returns all parameters that are set; parts that a scenario lacks are omitted."""
    return {name: value for name, value in asdict(scenario).items() if value is not None}


def expected(scenario: Scenario) -> dict[str, float]:
    """What the parameters alone predict: rates in samples (rollouts) per second, times in seconds."""
    tool_tokens = scenario.sandboxes.mean_tool_tokens if scenario.sandboxes else 0.0
    tokens = scenario.batch_samples * (scenario.mean_prompt_tokens + tool_tokens + scenario.mean_response_tokens)
    # Mean step: means of the parts; their noise is symmetric enough to leave out.
    compute = tokens / scenario.train_tokens_per_second
    overhead = (
        scenario.load_seconds + scenario.broadcast_seconds + scenario.checkpoint_seconds / scenario.checkpoint_every
    )
    return {
        "compute_seconds": compute,
        "overhead_seconds": overhead,
        "capacity_samples_per_second": scenario.batch_samples / (compute + overhead),
        "compute_capacity_samples_per_second": scenario.batch_samples / compute,
        "response_tokens_mean": scenario.mean_response_tokens,
        "gpus": scenario.train_gpus + scenario.engines,
    }


# ---- rollout truth
# The true state of rollouts: `truth_rollouts.jsonl`, a line at the end of each trainer step.

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
        shipped = list(self._shipped)
        last = shipped[-WINDOW_STEPS:]
        start = shipped[-WINDOW_STEPS - 1].at if len(shipped) > WINDOW_STEPS else -1.0
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
