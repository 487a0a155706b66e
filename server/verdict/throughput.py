"""The arithmetic of a verdict: the numbers that the rules compare. Pure.

A number that is not reported is None. Rates are in trainer samples per second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, sqrt
from typing import Literal

from server.signals.window import Step
from server.verdict import steps as verdict_steps
from server.verdict.model import Contradiction, VerdictInput
from server.verdict.steps import Late, Present, open_since, present
from server.verdict.thresholds import (
    ALL_PLACED,
    AT_CAP,
    BEYOND_LIMIT,
    BUSY_SCORER,
    CONTRADICTED,
    DETAILED_STATES,
    EARLIER,
    ENOUGH,
    FILTER_KEEPS,
    FILTER_SHOWS,
    FILTERED_EXITS,
    FREE_CACHE,
    FULL,
    FULL_COMPUTE,
    HOLDS,
    LEAST_SHARE,
    LEAST_STARTING,
    LEAST_USED,
    LEAST_WINDOW_SECONDS,
    LESS,
    LITTLE_WAIT,
    MOST_OF,
    MOST_SECONDS,
    MOST_SHARE,
    MUCH_OVERHEAD,
    MUCH_STALE,
    NEAR_LINE,
    NORMAL_95,
    PLAINLY_QUEUED,
    PLATEAU_SECONDS,
    PLATEAU_SPREAD,
    QUEUE_GAP,
    QUEUE_KEPT,
    QUEUE_LEAST,
    QUEUE_PER_STEP,
    QUEUE_SPACING_SECONDS,
    QUEUED,
    SAME_WAIT,
    SAMPLED,
    STILL_SECONDS,
    STILL_STEPS,
    WAITS,
    WINDOW_STEPS,
)

# ---- gradient
# The share of groups without a gradient, with its sample size and the bound from the trainer's log.

_SPREAD = ("reward_group_std_mean", ())
_REWARD = ("reward_mean", ())


@dataclass(frozen=True, slots=True)
class Gradient:
    """Groups without a gradient.

    Attributes:
        share: of all completed groups; for a sample the middle of its interval, at most ``upper_bound``; None: not
            reported.
        counted: the reported share.
        groups: number of counted groups; None: not reported.
        low, high: 95 % interval (Wilson) of the share for that number.
        is_sample: fewer than half of the groups of ten steps were counted.
        upper_bound: the largest share that the spread of rewards within groups allows; None: it allows any.
    """

    share: float | None = None
    counted: float | None = None
    groups: float | None = None
    low: float = 0.0
    high: float = 1.0
    is_sample: bool = False
    upper_bound: float | None = None
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def certain(self) -> float:
        """The share that is certain enough to act on: for a sample the lower end of its interval."""
        return self.low if self.is_sample else self.share or 0.0

    @property
    def likely(self) -> float:
        """The largest likely share: for a sample the upper end, otherwise a tenth or two standard errors more."""
        if self.share is None:
            return 0.0
        return self.high if self.is_sample else max(self.share / NEAR_LINE, self.high)


def gradient(seen: VerdictInput, per_step: float | None) -> Gradient:
    """Computes the share. ``per_step``: samples trained per step."""
    upper_bound = _upper_bound(seen, seen.steps)
    share, groups = _of(seen, "zero_advantage_ratio"), _of(seen, "zero_advantage_groups")
    size = seen.fact("group_size")
    every = WINDOW_STEPS * per_step / size if per_step and size else None
    if share is None:
        return Gradient(upper_bound=upper_bound)
    if groups is None and every is None:
        return Gradient(share, share, low=share, high=share, upper_bound=upper_bound)
    is_sample = groups is not None and every is not None and groups < SAMPLED * every
    low, high = interval(share, (groups if is_sample or every is None else every) or 0.0)
    contradictions: tuple[Contradiction, ...] = ()
    if is_sample and upper_bound is not None and share > upper_bound:
        text = (
            f"{share:.0%} of the {groups:.0f} groups counted carry no gradient; the spread of rewards within groups "
            f"that the trainer logs allows {upper_bound:.0%} at most"
        )
        contradictions = (Contradiction("gradient", text, {"counted": share, "most": upper_bound}),)
    if not is_sample:
        return Gradient(share, share, groups, low, high, upper_bound=upper_bound)
    top = 1.0 if upper_bound is None else upper_bound
    low, high = min(low, top), min(high, top)
    return Gradient(
        (low + high) / 2,
        share,
        groups,
        low,
        high,
        is_sample=True,
        upper_bound=upper_bound,
        contradictions=contradictions,
    )


def interval(share: float, count: float) -> tuple[float, float]:
    """Returns the 95 % interval of a share of ``count`` draws (Wilson, 1927): 3 of 6 are 19 to 81 %."""
    if count <= 0:
        return 0.0, 1.0
    square = NORMAL_95 * NORMAL_95 / count
    half = NORMAL_95 * sqrt(max(0.0, share * (1 - share) / count + square / (4 * count)))
    middle = share + square / 2
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def _of(seen: VerdictInput, signal: str) -> float | None:
    completed = seen.get(signal, basis="completed")
    return completed if completed is not None else seen.get(signal)


def _upper_bound(seen: VerdictInput, steps: Sequence[Step]) -> float | None:
    """Returns the largest share that the mean standard deviation within groups allows.

    Rewards from 0 to R deviate by at most R / 2, in a group in which half of the rewards are 0 and half are R. R is the
    task's largest reward, else twice the mean reward and at least 1.
    """
    rows = [row for row in steps if _SPREAD in row.values and _REWARD in row.values]
    if len(rows) < EARLIER:
        return None
    spread = sum(row.values[_SPREAD] for row in rows) / len(rows)
    mean = sum(row.values[_REWARD] for row in rows) / len(rows)
    largest = seen.fact("max_reward") or max(1.0, 2 * mean)
    return max(0.0, 1.0 - 2 * spread / largest) if mean >= 0 and spread > 0 else None


# ---- queue
# The state of the queue over a window: whether both sides move, as Burrow judges the lag of a consumer.

State = Literal["unknown", "ok", "starved", "stall", "stop", "rewind", "gated"]

TEXTS: dict[State, str] = {
    "unknown": "the queue's window is not full yet",
    "ok": "samples arrive in the queue and are taken",
    "starved": "less than one batch waits when the trainer is ready",
    "stall": "batches wait and the trainer takes none",
    "stop": "no samples arrive and none are taken",
    "rewind": "the policy version went back: the trainer restarted",
    "gated": "production is held although the trainer waits or takes",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Both sides at one instant: samples in the queue, the published policy version, samples per batch."""

    ts: float
    queue: float
    version: float
    batch: float


def spacing(step: float | None) -> float:
    """Returns the seconds between two samples."""
    return max(QUEUE_SPACING_SECONDS, (step or 0.0) / QUEUE_PER_STEP)


def add(samples: Sequence[Sample], new: Sample, step: float | None) -> list[Sample]:
    """Returns the samples of the window with the newest one, if the spacing has passed."""
    if samples and new.ts - samples[-1].ts < spacing(step):
        return list(samples)
    return [*samples, new][-QUEUE_KEPT:]


def state(samples: Sequence[Sample], step: float | None, hold_ratio: float | None, wait: float | None) -> State:
    """Returns the state that the window shows.

    Args:
        step: seconds of a step; hold_ratio: share of the time production was held; wait: the trainer's.
    """
    gaps = [after.ts - before.ts for before, after in pairwise(samples)]
    if len(samples) < QUEUE_LEAST or max(gaps) > QUEUE_GAP * spacing(step):
        return "unknown"
    if any(after.version < before.version for before, after in pairwise(samples)):
        return "rewind"
    if _still(samples, step):
        return "stall" if min(sample.queue / sample.batch for sample in samples) >= 1 else "stop"
    if (hold_ratio or 0.0) >= HOLDS:
        return "gated"
    return "starved" if _starved(samples) and (wait or 0.0) > LITTLE_WAIT else "ok"


def _still(samples: Sequence[Sample], step: float | None) -> bool:
    """Returns whether no version was published and no batch was taken for longer than a step can take."""
    newest = samples[-1].ts
    limit = max(STILL_SECONDS, STILL_STEPS * (step or 0.0))
    within = [sample for sample in samples if newest - sample.ts <= limit]
    if newest - samples[0].ts < limit:
        return False
    is_consumed = any(after.queue < before.queue for before, after in pairwise(within))
    return not is_consumed and within[0].version == within[-1].version


def _starved(samples: Sequence[Sample]) -> bool:
    """Returns whether the queue mostly holds less than a batch just before one is taken: 500 of 512 is starved."""
    before_updates = [before for before, after in pairwise(samples) if after.version > before.version]
    ready = before_updates or samples
    return sum(sample.queue < sample.batch for sample in ready) > len(ready) / 2


# ---- in flight
# Places every rollout in flight once, from all sources.

OVER = ("waiting_group", "queued")
"""States of rollouts that have ended and wait for training."""
PHASES = ("booting", "in_tool", "scoring", "generating")
_OF_LOG = {"booting": "setup", "in_tool": "tools", "scoring": "scoring", "generating": "model"}
_PENDING = ("queued", "building_image", "starting")

Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rollouts in flight by phase.

    Attributes:
        time_shares: share of a rollout's time per phase (`PHASES`); below 1 in total if no source places the rest.
        counted: the shares follow from counts of rollouts, requests or sandboxes, not from phases in the log.
        unscored: share of their time that rollouts have ended and are not scored, for any reason.
        queued, starting: sandboxes that are not ready; None: no provider reports them.
        starting_limit: highest number that starts at once, if it is constant while others wait; None: no plateau.
        is_limit_open: others wait, and the sandboxes have been counted for less time than a plateau needs.
    """

    time_shares: Counts = field(default_factory=dict)
    counted: bool = False
    unscored: float | None = None
    queued: float | None = None
    starting: float | None = None
    starting_limit: float | None = None
    is_limit_open: bool = False
    contradictions: tuple[Contradiction, ...] = ()


@dataclass(slots=True)
class _Sources:
    """The reports of each source for the same instants; None: not reported."""

    rollouts: dict[str, float]
    requests: float | None
    boxes: Counts
    logged: dict[str, float]
    whole: float | None
    contradictions: list[Contradiction] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.rollouts.values())

    @property
    def splits(self) -> bool:
        """Whether the log reports enough phases to compute shares: two phases, or one and the whole time."""
        return len(self.logged) > 1 or bool(self.logged and self.whole)

    @property
    def pending(self) -> float | None:
        return sum(self.boxes.get(state, 0.0) for state in _PENDING) if self.boxes else None

    def contradict(self, name: str, text: str, **values: float) -> None:
        self.contradictions.append(Contradiction(name, text, values))


def in_flight(seen: VerdictInput, requests: float | None, scorer_busy: float | None) -> InFlight:
    """Places every rollout in flight once. ``requests``: running and waiting in all engines."""
    logged = {phase: seen.get("rollout_phase_seconds", phase=name) for phase, name in _OF_LOG.items()}
    sources = _Sources(
        rollouts={state: count for state, count in verdict_steps.census(seen).items() if state not in OVER},
        requests=requests,
        boxes={} if seen.fact("has_sandbox") == 0 else verdict_steps.sandboxes(seen),
        logged={phase: seconds for phase, seconds in logged.items() if seconds is not None},
        whole=seen.get("rollout_phase_seconds", phase="all"),
    )
    if seen.fact("has_sandbox") == 0:
        _without_sandboxes(sources)
    unscored = sources.rollouts["scoring"] / sources.total if sources.total and "scoring" in sources.rollouts else None
    by_state = len(sources.rollouts) >= DETAILED_STATES and sources.total > 0
    if by_state:
        _within_requests(sources)
        _within_sandboxes(sources)
        time_shares = _of_census(_at_the_scorer(seen, sources.rollouts, scorer_busy))
    elif sources.pending is not None:
        time_shares = _of_providers(sources)
    else:
        time_shares = _of_log(sources)
    return InFlight(
        time_shares=time_shares,
        counted=by_state or sources.pending is not None or not sources.splits,
        unscored=unscored if unscored is not None else time_shares.get("scoring"),
        queued=sources.boxes.get("queued"),
        starting=sources.boxes.get("starting"),
        starting_limit=plateau(seen.instants, seen.now) if sources.boxes else None,
        is_limit_open=bool(sources.boxes) and _is_limit_open(seen, sources.boxes),
        contradictions=tuple(sources.contradictions),
    )


# ---- bounds


def _without_sandboxes(sources: _Sources) -> None:
    """Counts booting rollouts of a task without sandboxes as generating."""
    booting = sources.rollouts.get("booting", 0.0)
    sources.logged.pop("booting", None)
    if booting <= 0:
        return
    sources.rollouts["booting"] = 0.0
    sources.rollouts["generating"] = sources.rollouts.get("generating", 0.0) + booting
    if sources.requests is None:
        text = f"{booting:.0f} rollouts are reported as booting, and this task uses no sandbox"
        sources.contradict("booting_without_sandboxes", text, booting=booting, sandboxes=0.0)
        return
    text = (
        f"{booting:.0f} rollouts are reported as booting, and this task uses no sandbox; the engines run "
        f"{sources.requests:.0f} requests"
    )
    sources.contradict("booting_without_sandboxes", text, booting=booting, sandboxes=0.0, requests=sources.requests)


def _within_requests(sources: _Sources) -> None:
    """Bounds the generating rollouts by the requests in the engines, in both directions."""
    requests, rollouts = sources.requests, sources.rollouts
    if requests is None:
        return
    generating = rollouts.get("generating", 0.0)
    others = {phase: sources.logged.get(phase, 0.0) for phase in ("in_tool", "scoring")}
    if requests < LESS * generating and sum(others.values()) > 0:
        # Records of a rollout's start and end do not report its tool calls; the log of ended rollouts does.
        text = f"{generating:.0f} rollouts are reported as generating, and the engines run {requests:.0f} requests"
        sources.contradict("generating_without_requests", text, generating=generating, requests=requests)
        rollouts["generating"] = requests
        if not sources.splits:
            rollouts["unknown"] = rollouts.get("unknown", 0.0) + generating - requests
        for phase, seconds in others.items() if sources.splits else ():
            rollouts[phase] = rollouts.get(phase, 0.0) + (generating - requests) * seconds / sum(others.values())
    explained = generating + rollouts.get("eval", 0.0) + rollouts.get("scoring", 0.0)
    if LESS * requests > explained:
        missing = min(requests - explained, rollouts.get("booting", 0.0))
        if missing <= 0:
            return
        text = f"the engines run {requests:.0f} requests, and {generating:.0f} rollouts are reported as generating"
        sources.contradict("requests_without_rollouts", text, generating=generating, requests=requests)
        rollouts["booting"] -= missing
        rollouts["generating"] = generating + missing


def _within_sandboxes(sources: _Sources) -> None:
    """Bounds the booting rollouts by the pending sandboxes; no source places the others."""
    booting, pending = sources.rollouts.get("booting", 0.0), sources.pending
    if pending is None or LESS * booting <= pending + 1:
        return
    text = (
        f"{booting:.0f} rollouts are reported as booting, and the providers report {pending:.0f} sandboxes as pending"
    )
    sources.contradict("booting_without_pending", text, booting=booting, pending=pending)
    sources.rollouts["booting"] = pending
    sources.rollouts["unknown"] = sources.rollouts.get("unknown", 0.0) + booting - pending


# ---- shares


def _of_census(rollouts: Counts) -> dict[str, float]:
    """Returns shares by Little's law: the share of rollouts in a phase is the share of a rollout's time in it."""
    total = sum(rollouts.values())
    return {phase: rollouts.get(phase, 0.0) / total for phase in PHASES}


def _of_providers(sources: _Sources) -> dict[str, float]:
    """Returns shares from pending sandboxes and requests; the log of ended rollouts splits the rest.

    A rollout that ended was not held up, so the log's share of boots does not count next to pending sandboxes.
    """
    pending, running = sources.pending or 0.0, sources.boxes.get("running", 0.0)
    total = sources.total or pending + running
    if total <= 0:
        return {}
    inside = min(total, sources.requests) if sources.requests is not None else 0.0
    # A rollout whose sandbox runs does not boot: further pending sandboxes belong to a pool.
    booting = max(0.0, min(pending, total - inside, total - min(running, total)))
    rest = total - inside - booting
    phases = ("in_tool", "scoring") if sources.requests is not None else ("in_tool", "scoring", "generating")
    seconds = {phase: sources.logged.get(phase, 0.0) for phase in phases}
    whole = sum(seconds.values())
    shares = {phase: rest * part / whole / total for phase, part in seconds.items()} if whole > 0 else {}
    shares["booting"] = booting / total
    if sources.requests is not None:
        shares["generating"] = inside / total
    return shares


def _of_log(sources: _Sources) -> dict[str, float]:
    """Returns shares of ended rollouts, bounded by the requests in the engines; else the requests alone."""
    total, logged, whole = sources.total, sources.logged, sources.whole
    inside = sources.requests / total if total > 0 and sources.requests is not None else None
    if sources.splits:
        return _at_most(inside, _shares(logged, whole))
    return {"generating": min(1.0, inside)} if inside is not None else {}


def _at_the_scorer(seen: VerdictInput, rollouts: dict[str, float], busy: float | None) -> dict[str, float]:
    """Limits the scoring rollouts to those before one scorer; other unscored rollouts wait for their group.

    A scorer that is busy a share b of the time has b + b^2 / (2 (1 - b)) groups on average (Pollaczek-Khinchine: random
    arrivals, equal times).
    """
    size = seen.fact("group_size")
    if busy is None or size is None or seen.synchronous or busy >= BUSY_SCORER or "scoring" not in rollouts:
        return rollouts
    groups = busy + busy**2 / (2 * (1 - busy))
    return rollouts | {"scoring": min(rollouts["scoring"], groups * size)}


def _at_most(inside: float | None, logged: dict[str, float]) -> dict[str, float]:
    """Bounds the log of ended rollouts: no more rollouts generate than the engines have requests."""
    before = logged.get("generating", 0.0)
    return logged if inside is None or inside >= LESS * before else logged | {"generating": inside}


def _shares(logged: Counts, whole: float | None) -> dict[str, float]:
    """Returns shares of the whole time if it is reported; the model's time is the rest."""
    total = max(sum(logged.values()), whole or 0.0)
    if total <= 0:
        return {}
    shares = {phase: seconds / total for phase, seconds in logged.items()}
    if "generating" not in shares and whole:
        shares["generating"] = max(0.0, 1.0 - sum(shares.values()))
    return shares


# ---- the providers' limit on what starts at once


def _is_limit_open(seen: VerdictInput, boxes: Counts) -> bool:
    """Returns whether sandboxes wait and were observed for less time than a plateau needs."""
    times = [ts for ts, counts in seen.instants if verdict_steps.STARTING in counts]
    first = max(verdict_steps.first_sandboxes(seen.instants), min(times, default=seen.now))
    starting = boxes.get("starting", 0.0)
    waits = starting >= LEAST_STARTING and boxes.get("queued", 0.0) >= max(1.0, QUEUED * starting)
    return waits and first > seen.now - PLATEAU_SECONDS


def plateau(window: Sequence[verdict_steps.Instant], now: float) -> float | None:
    """Returns the number of starting sandboxes if it was constant for a while and others were queued all the time."""
    first = verdict_steps.first_sandboxes(window)
    reads = [(ts, counts) for ts, counts in window if verdict_steps.STARTING in counts and ts >= first]
    since = now - PLATEAU_SECONDS
    recent = [counts for ts, counts in reads if ts >= since]
    if not recent or reads[0][0] > since:
        return None
    starting = [counts[verdict_steps.STARTING] for counts in recent]
    queued = [counts.get(verdict_steps.QUEUED, 0.0) for counts in recent]
    largest = max(starting)
    is_flat = largest >= LEAST_STARTING and largest - min(starting) <= PLATEAU_SPREAD * largest
    # Each new sandbox is queued for a moment: a few are no queue.
    return largest if is_flat and min(queued) >= max(1.0, QUEUED * largest) else None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one instant that the rules compare, each reconciled from all sources.

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
        load_share: share of a token's time that depends on the other requests of its batch; None: the run has not shown
            its engines at different loads.
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
    load_share: float | None = None

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
        return steady / (1.0 - min(hold_ratio, MOST_SHARE))

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
        scored = min(self.extra.get("time_unscored_ratio") or 0.0, MOST_SHARE)
        return None if self.cap is None else min(1.0, max(self.cap / (1.0 - scored), self._requested or 0.0))

    @property
    def _requested(self) -> float | None:
        """Share of the in-flight limit by the requests in the engines and the time that rollouts spend there.

        None if a source is missing, or if the engines have more requests than the limit: they serve others too.
        """
        inside, limit = self.time_shares.get("generating", 0.0), verdict_steps.limit(self.seen)
        if self.running is None or not limit or self.placed < ALL_PLACED or inside <= 0.0:
            return None
        share = (self.running + (self.waiting or 0.0)) / inside / limit
        return share if share <= 1.0 + BEYOND_LIMIT else None

    @property
    def gap(self) -> float | None:
        """Factor of what the trainer could take over what it gets."""
        if self.lacking is None:
            return None
        return 1.0 / max(LEAST_USED, 1.0 - self.lacking)

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
    def computes_fully(self) -> bool:
        """Whether more requests would hardly make more tokens: the engines compute as fast as they can."""
        return self.load_share is not None and self.load_share >= FULL_COMPUTE

    @property
    def idle_room(self) -> bool:
        """Whether the engines could run more requests and none waits: the number of rollouts started limits them."""
        full = self.places is None or self.places >= AT_CAP
        return self.saturated is False and not self.computes_fully and full and bool(self.running)

    @property
    def few_seats(self) -> bool:
        """Whether requests wait while the cache has room: the engine's own limit on requests (max_num_seqs) is low."""
        waits = (self.waiting or 0.0) >= max(PLAINLY_QUEUED, QUEUED * (self.running or 0.0))
        return waits and self.kv is not None and self.kv < FREE_CACHE

    @property
    def uses_sandboxes(self) -> bool:
        """Whether the run has sandboxes, as far as any source shows."""
        stated = self.seen.fact("has_sandbox")
        if stated is not None:
            return stated != 0
        shown = self.time_shares.get("booting") or self.in_flight.starting is not None
        return bool(shown) or any(name.startswith("sandbox") for name in self.seen.signals)

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
        return 1.0 / max(LEAST_USED, used) if used is not None else None

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
            "sandbox_starting_limit": self.in_flight.starting_limit,
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
        begun = -inf if seen.synchronous else min(begun, seen.now - LEAST_WINDOW_SECONDS)
        seen = replace(seen, recent=verdict_steps.means(seen.instants, begun))
        first_instant = verdict_steps.judged(seen.instants, begun)[0][0]
    produced = seen.get("production_samples_per_second", stage="delivered")
    running, waiting = (verdict_steps.requests(seen, state) for state in ("running", "waiting"))
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
        cap=verdict_steps.cap(seen),
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
            "tail_bubble_ratio": verdict_steps.bubble(seen),
            "scoring_busy_ratio": busy,
            "time_unscored_ratio": where.unscored,
            "queue_batches": batches,
            "in_flight_ratio": verdict_steps.cap(seen),
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
    return produced / (1.0 - stale) if produced is not None and stale is not None and stale < MOST_SHARE else produced


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
    return busy / max(LEAST_SHARE, 1.0 - zero.certain)


def _filtered(seen: VerdictInput) -> bool:
    """Returns whether groups without a gradient are filtered, from exits of records or from the admitted share."""
    if (seen.get("rollout_exit_ratio", exit="zero_advantage") or 0.0) > FILTERED_EXITS:
        return True
    done = seen.get("zero_advantage_ratio", basis="completed")
    admitted = seen.get("zero_advantage_ratio", basis="admitted")
    stated = seen.fact("filters_zero_advantage")
    if done is not None and admitted is not None and done > FILTER_SHOWS:
        return admitted < FILTER_KEEPS * done
    return bool(stated)


def requests_text(n: Numbers) -> str:
    """Returns ``286 requests run and 110 wait``, of the signal's five minutes, as the dashboard shows them."""
    totals = [n.seen.total("generator_requests", state=state) for state in ("running", "waiting")]
    running, waiting = (
        own if total is None else total for total, own in zip(totals, (n.running, n.waiting), strict=True)
    )
    if running is None:
        return "the requests of the engines are not reported"
    return f"{running:.0f} requests run" + (f" and {waiting:.0f} wait" if waiting is not None else "")


def is_reported_wait(n: Numbers) -> bool:
    """Returns whether the wait of the judged steps is that of the signal, so that its text needs no steps."""
    return n.reported is None or abs((n.wait or 0.0) - n.reported) < SAME_WAIT


def wait(n: Numbers) -> str:
    """Returns the text on the trainer's wait, with its steps if they are not the last ten of the signal."""
    share = n.wait or 0.0
    if n.reported is None or is_reported_wait(n):
        # The number of the Trainer wait card, so that the two do not differ by a rounding.
        return f"the trainer waits {share if n.reported is None else n.reported:.0%} of each step"
    last = f"in its last {n.steps} steps" if n.steps > 1 else "in its open step"
    return f"the trainer waited {share:.0%} of the time {last} ({n.reported:.0%} in the last ten)"
