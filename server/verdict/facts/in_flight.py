"""Places every rollout in flight once, from all sources. Pure.

Engines, sandbox providers, rollout records and orchestrator counters each see a part. No state may hold more rollouts
than the engines or the providers report, and a run without sandboxes has no rollouts that boot. If two sources
contradict each other, both numbers are reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from server.verdict.facts import instants
from server.verdict.inputs import VerdictInput
from server.verdict.model import Contradiction
from server.verdict.thresholds import (
    BUSY_SCORER,
    LEAST_STARTING,
    LESS,
    PLATEAU_SECONDS,
    PLATEAU_SPREAD,
    QUEUED,
)

OVER = ("waiting_group", "queued")
"""States of rollouts that have ended and wait for training."""
PHASES = ("booting", "in_tool", "scoring", "generating")
_OF_LOG = {"booting": "setup", "in_tool": "tools", "scoring": "scoring", "generating": "model"}
_PENDING = ("queued", "building_image", "starting")
# With fewer states the source is a counter of all rollouts in flight, whatever the name of the state.
_DETAILED = 3

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
        rollouts={state: count for state, count in instants.census(seen).items() if state not in OVER},
        requests=requests,
        boxes={} if seen.fact("has_sandbox") == 0 else instants.sandboxes(seen),
        logged={phase: seconds for phase, seconds in logged.items() if seconds is not None},
        whole=seen.get("rollout_phase_seconds", phase="all"),
    )
    if seen.fact("has_sandbox") == 0:
        _without_sandboxes(sources)
    unscored = sources.rollouts["scoring"] / sources.total if sources.total and "scoring" in sources.rollouts else None
    by_state = len(sources.rollouts) >= _DETAILED and sources.total > 0
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
    times = [ts for ts, counts in seen.instants if instants.STARTING in counts]
    first = max(instants.first_sandboxes(seen.instants), min(times, default=seen.now))
    starting = boxes.get("starting", 0.0)
    waits = starting >= LEAST_STARTING and boxes.get("queued", 0.0) >= max(1.0, QUEUED * starting)
    return waits and first > seen.now - PLATEAU_SECONDS


def plateau(window: Sequence[instants.Instant], now: float) -> float | None:
    """Returns the number of starting sandboxes if it was constant for a while and others were queued all the time."""
    first = instants.first_sandboxes(window)
    reads = [(ts, counts) for ts, counts in window if instants.STARTING in counts and ts >= first]
    since = now - PLATEAU_SECONDS
    recent = [counts for ts, counts in reads if ts >= since]
    if not recent or reads[0][0] > since:
        return None
    starting = [counts[instants.STARTING] for counts in recent]
    queued = [counts.get(instants.QUEUED, 0.0) for counts in recent]
    largest = max(starting)
    is_flat = largest >= LEAST_STARTING and largest - min(starting) <= PLATEAU_SPREAD * largest
    # Each new sandbox is queued for a moment: a few are no queue.
    return largest if is_flat and min(queued) >= max(1.0, QUEUED * largest) else None
