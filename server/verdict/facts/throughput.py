"""The arithmetic of a verdict: the numbers that the rules compare. Pure.

A number that is not reported is None. Rates are in trainer samples per second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from server.verdict.facts import instants
from server.verdict.facts.gradient import Gradient, gradient
from server.verdict.facts.in_flight import PHASES, InFlight, in_flight, plateau
from server.verdict.facts.steps import Late, Present, open_since, present
from server.verdict.inputs import VerdictInput
from server.verdict.model import Contradiction
from server.verdict.thresholds import (
    ALL_PLACED,
    BUSY_SCORER,
    CONTRADICTED,
    ENOUGH,
    FULL,
    HOLDS,
    LEAST_WINDOW,
    LITTLE_WAIT,
    MOST_OF,
    MOST_SECONDS,
    MUCH_OVERHEAD,
    MUCH_STALE,
    PLATEAU_SECONDS,
    QUEUED,
    WAITS,
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """See docs/concepts/verdict-rules.md for each.

    Attributes:
        wait: share of the step as the trainer reports it, of the ``steps`` present steps, else of the last ten.
        capacity, compute_capacity: samples/s without waiting; with computing alone.
        trained: samples/s that the trainer takes.
        arrivals: samples/s that reach the queue, from producers, or from trained samples and growth of the queue.
        hold_ratio, gated: share of the time that production was held; and that the trainer waited in the same steps.
        overheads: seconds per step by cause; step: seconds.
        running, waiting, kv, limit: of all engines.
        engines: by state.
        slow: name of an engine that is slower than the others -> its tokens per request over their median.
        time_shares: share of a rollout's time per phase (`PHASES`).
        in_flight: all rollouts in flight, from every source.
        zero: groups without a gradient; filtered: they are dropped before training.
        lost: share of rollouts by exit.
        same_steps: arrivals cover the same steps as the wait.
        reported: the wait of the last ten steps, from the signal.
        stopped: the run stood still in one of the last three steps.
        opened: the trainer's open step compared with those before it.
        changed: the last ten steps contain a clear change, and the numbers cover the steps after it.
        first: the first step that belongs to the present as a whole, as `VerdictInput.first`.
        begun: time of the first instant of the means of requests and rollouts; None: these are the signals' values.
    """

    seen: VerdictInput
    wait: float | None
    steps: int
    capacity: float | None
    compute_capacity: float | None
    trained: float | None
    arrivals: float | None
    hold_ratio: float | None
    gated: float | None
    overheads: Mapping[str, float]
    step: float | None
    running: float | None
    waiting: float | None
    kv: float | None
    limit: float | None
    engines: Mapping[str, float]
    slow: Mapping[str, float]
    time_shares: Mapping[str, float]
    cap: float | None
    zero: Gradient
    filtered: bool
    lost: Mapping[str, float]
    stale: float | None
    drift: float | None
    batches: float | None
    in_flight: InFlight = field(default_factory=InFlight)
    same_steps: bool = False
    reported: float | None = None
    stopped: bool = False
    opened: Late | None = None
    changed: bool = False
    first: tuple[int, int] | None = None
    begun: float | None = None
    extra: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def potential(self) -> float | None:
        """Arrivals without the hold. Production that is held has filled the queue, so it delivers what is trained.

        If the trainer waits and the queue is short of a batch, the hold comes and goes and does not count.
        """
        return self._without_hold(0.0 if self.short else self.hold_ratio or 0.0)

    def _without_hold(self, hold_ratio: float) -> float | None:
        """Returns arrivals without a hold of this share of the time."""
        if self.arrivals is None:
            return None
        steady = max(self.arrivals, self.trained or 0.0) if hold_ratio >= HOLDS else self.arrivals
        return steady / max(0.05, 1.0 - min(hold_ratio, 0.95))

    @property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """Numbers of two sources that cannot both be right."""
        return (*self.in_flight.contradictions, *self.zero.contradictions)

    @property
    def short(self) -> bool:
        """Whether the trainer waits now and then and the queue mostly holds less than a batch."""
        return (self.wait or 0.0) >= LITTLE_WAIT and self.batches is not None and self.batches < 1.0

    @property
    def dropped(self) -> bool:
        """Whether enough arrives and much of it is dropped as stale; the wait is then those drops."""
        enough = self.potential is not None and self.capacity is not None and self.potential >= ENOUGH * self.capacity
        return enough and (self.stale or 0.0) >= MUCH_STALE

    @property
    def lacking(self) -> float | None:
        """Share of the trainer's capacity that production does not deliver.

        It is the wait, or the predicted wait if the trainer still consumes the stock in its queue.
        """
        predicted = self.predicted_wait
        stock = self.batches is not None and self.batches < 1.0
        if self.wait is None or predicted is None or not self.same_steps or not stock:
            return self.wait
        return predicted if predicted >= max(self.wait, WAITS) + CONTRADICTED else self.wait

    @property
    def placed(self) -> float:
        """Share of a rollout's time that some source places."""
        return min(1.0, sum(self.time_shares.values()))

    @property
    def scorer_full(self) -> bool:
        """Whether the one scorer of an asynchronous run is never idle."""
        return not self.seen.synchronous and (self.extra.get("scoring_busy_ratio") or 0.0) >= BUSY_SCORER

    @property
    def offered(self) -> float | None:
        """Production over what the trainer takes; None if no source reports a hold.

        With a fifth of overhead or more the hold is caused by it, also if the queue is short of a batch afterwards.
        """
        long = (self.overhead or 0.0) >= MUCH_OVERHEAD and (self.hold_ratio or 0.0) > (self.wait or 0.0)
        brought = self._without_hold(self.hold_ratio or 0.0) if long else self.potential
        if brought is None or not self.trained or self.hold_ratio is None:
            return None
        return max(1.0, brought / self.trained)

    @property
    def places(self) -> float | None:
        """Used share of the in-flight limit, with the slots of rollouts that wait for a score.

        It is not below the share that the requests in the engines show. A trainer that reports its rollouts once per
        step does so when its batch has just arrived and the fewest are in flight.
        """
        scored = min(self.extra.get("time_unscored_ratio") or 0.0, 0.95)
        return None if self.cap is None else min(1.0, max(self.cap / (1.0 - scored), self._requested or 0.0))

    @property
    def _requested(self) -> float | None:
        """Share of the in-flight limit by the requests in the engines and the time that rollouts spend there.

        None if a source is missing, or if the engines have more requests than the limit: they serve others too.
        """
        inside, limit = self.time_shares.get("generating", 0.0), instants.limit(self.seen)
        if self.running is None or not limit or self.placed < ALL_PLACED or inside <= 0.0:
            return None
        share = (self.running + (self.waiting or 0.0)) / inside / limit
        return share if share <= 1.0 + CONTRADICTED else None

    @property
    def gap(self) -> float | None:
        """Factor of what the trainer could take over what it gets."""
        if self.lacking is None:
            return None
        return 1.0 / max(0.02, 1.0 - self.lacking)

    @property
    def predicted_wait(self) -> float | None:
        """Wait that follows from arrivals; a cross-check of the reported wait."""
        if self.arrivals is None or not self.capacity:
            return None
        return max(0.0, 1.0 - self.arrivals / self.capacity)

    @property
    def overhead(self) -> float | None:
        """Share of the step that is weight sync, checkpoint or evaluation."""
        if not self.step or not self.overheads:
            return None
        return sum(value for name, value in self.overheads.items() if name != "other") / self.step

    @property
    def busy(self) -> float | None:
        """Running requests over the number that fits into the engines."""
        return self.running / self.limit if self.running is not None and self.limit else None

    @property
    def saturated(self) -> bool | None:
        """Whether further requests would not be served faster. None: not reported."""
        if self.running is None and self.kv is None:
            return None
        queued = (self.waiting or 0.0) >= max(1.0, QUEUED * (self.running or 0.0))
        return (self.kv or 0.0) >= FULL or queued or (self.busy or 0.0) >= FULL

    @property
    def quiet(self) -> bool | None:
        """Whether the engines have room and hold less than half of the rollouts' time. None: not reported."""
        if self.saturated is None:
            return None
        inside = self.time_shares.get("generating")
        return not self.saturated and inside is not None and inside < MOST_OF

    @property
    def room(self) -> float | None:
        """Factor of the requests that fit over those that run; None: not reported."""
        # The mean of the cache has another window, so it is only used without running requests.
        used = self.busy if self.busy is not None else self.kv
        return 1.0 / max(0.02, used) if used is not None else None

    @property
    def roomy(self) -> bool:
        """Whether all rollouts would fit into the engines; then the limit is outside the engines."""
        inside = self.time_shares.get("generating")
        return bool(self.quiet and inside is not None and self.room is not None and inside * self.room >= 1.0)

    def table(self) -> dict[str, float | None]:
        """Returns the arithmetic as it is shown."""
        return {
            "capacity_samples_per_second": self.capacity,
            "compute_capacity_samples_per_second": self.compute_capacity,
            "trained_samples_per_second": self.trained,
            "arrivals_samples_per_second": self.arrivals,
            "potential_samples_per_second": self.potential,
            "reported_wait_ratio": self.reported if self.reported is not None else self.wait,
            "wait_ratio": self.wait,
            "predicted_wait_ratio": self.predicted_wait,
            "gap_factor": self.gap,
            "compute_gap_factor": _over(self.compute_capacity, self.trained),
            "overhead_ratio": self.overhead,
            "held_ratio": self.hold_ratio,
            "engine_occupancy_ratio": self.busy,
            "kv_cache_usage_ratio": self.kv,
            "zero_advantage_ratio": self.zero.share,
            "zero_advantage_groups": self.zero.groups,
            "drift_ratio": self.drift,
            "stale_drop_ratio": self.stale,
            **{f"time_{name}_ratio": self.time_shares.get(name) for name in PHASES},
            **self.extra,
        }


def _over(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def numbers(seen: VerdictInput) -> Numbers:
    """Computes all numbers from the signals of one instant."""
    trainer_facts, first_instant = present(seen), None
    if seen.instants:
        # The means of engines and rollouts cover the same steps as the trainer's numbers.
        begun = max(seen.now - MOST_SECONDS, trainer_facts.begun) if trainer_facts.begun is not None else -inf
        if plateau(seen.instants, seen.now) is not None:
            begun = max(begun, seen.now - PLATEAU_SECONDS)  # the queue behind a limit grows: its mean would lag
        begun = -inf if seen.synchronous else min(begun, seen.now - LEAST_WINDOW)
        seen = replace(seen, recent=instants.means(seen.instants, begun))
        first_instant = instants.judged(seen.instants, begun)[0][0]
    produced = seen.get("production_samples_per_second", stage="delivered")
    running, waiting = (instants.requests(seen, state) for state in ("running", "waiting"))
    batches = trainer_facts.batches if trainer_facts.batches is not None else seen.get("queue_batches")
    zero = gradient(
        seen, trainer_facts.trained * trainer_facts.step if trainer_facts.trained and trainer_facts.step else None
    )
    busy = _scorer(seen, trainer_facts.scoring, zero)
    requests = running + (waiting or 0.0) if running is not None else None
    where = in_flight(seen, requests, busy)
    return Numbers(
        seen=seen,
        wait=trainer_facts.wait,
        steps=trainer_facts.steps,
        capacity=trainer_facts.capacity,
        compute_capacity=seen.get("compute_capacity_samples_per_second"),
        trained=trainer_facts.trained,
        arrivals=_arrivals(trainer_facts, produced, seen),
        hold_ratio=trainer_facts.hold_ratio,
        gated=trainer_facts.gated,
        overheads=trainer_facts.overheads,
        step=trainer_facts.step,
        running=running,
        waiting=waiting,
        kv=seen.get("kv_cache_usage_ratio"),
        limit=seen.get("kv_concurrency_limit"),
        engines={row["state"]: value for row, value in seen.rows("generator_engines") if "state" in row},
        slow={
            row.get("engine") or row.get("target", ""): value
            for row, value in seen.rows("generator_outlier_ratio", side="slowest")
            if len(row) > 1
        },
        time_shares=where.time_shares,
        in_flight=where,
        cap=instants.cap(seen),
        zero=zero,
        filtered=_filtered(seen),
        lost={row["exit"]: value for row, value in seen.rows("rollout_exit_ratio") if "exit" in row},
        stale=trainer_facts.stale if trainer_facts.stale is not None else _stale(seen),
        drift=max((value for name in DRIFTS for _, value in seen.rows(name)), default=None),
        batches=batches,
        same_steps=trainer_facts.same_steps,
        reported=seen.get("trainer_wait_ratio"),
        stopped=trainer_facts.stopped,
        opened=open_since(seen),
        changed=trainer_facts.since,
        first=trainer_facts.first,
        begun=first_instant,
        extra={
            "tail_index_ratio": max((value for _, value in seen.rows("tail_index_ratio")), default=None),
            "tail_bubble_ratio": instants.bubble(seen),
            "scoring_busy_ratio": busy,
            "time_unscored_ratio": where.unscored,
            "queue_batches": batches,
            "in_flight_ratio": instants.cap(seen),
        },
    )


def _arrivals(trainer_facts: Present, produced: float | None, seen: VerdictInput) -> float | None:
    """Returns the arrivals at the queue; a synchronous run has no queue. Samples dropped as stale have arrived too."""
    if seen.synchronous:
        return None
    return trainer_facts.arrivals if trainer_facts.arrivals is not None else _with_stale(produced, seen)


DRIFTS = ("response_length_drift_ratio", "turns_drift_ratio", "tool_calls_drift_ratio")


def _with_stale(produced: float | None, seen: VerdictInput) -> float | None:
    stale = _stale(seen)
    return produced / (1.0 - stale) if produced is not None and stale is not None and stale < 0.95 else produced


def _stale(seen: VerdictInput) -> float | None:
    """Returns the share of rollouts in the queue that were dropped as stale."""
    if seen.synchronous:
        return None
    exits = seen.get("rollout_exit_ratio", exit="stale")
    if exits is not None:
        return exits
    # With a trainable share the rest is discarded for any reason, mostly errors and filtered groups.
    metrics = {metric for row in seen.steps for metric, _ in row.values}
    if "stale_dropped_rollouts" not in metrics or "trainable_ratio" in metrics:
        return None
    arrivals, trained = seen.get("queue_arrivals_samples_per_second"), seen.get("trainer_samples_per_second")
    return seen.get("discarded_rollout_ratio") if arrivals is not None and trained is not None else None


def _scorer(seen: VerdictInput, of_steps: float | None, zero: Gradient) -> float | None:
    """Returns the busy share of the scorer; filtered groups without a gradient were scored too."""
    busy = of_steps if of_steps is not None else seen.get("scoring_busy_ratio")
    if busy is None or zero.share is None or seen.synchronous or not _filtered(seen):
        return busy
    return busy / max(0.05, 1.0 - zero.certain)


def _filtered(seen: VerdictInput) -> bool:
    """Returns whether groups without a gradient are filtered, from exits of records or from the admitted share."""
    if (seen.get("rollout_exit_ratio", exit="zero_advantage") or 0.0) > 0.05:
        return True
    done = seen.get("zero_advantage_ratio", basis="completed")
    admitted = seen.get("zero_advantage_ratio", basis="admitted")
    stated = seen.fact("filters_zero_advantage")
    if done is not None and admitted is not None and done > 0.1:
        return admitted < 0.5 * done
    return bool(stated)
