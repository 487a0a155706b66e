"""Requests in the engines and rollouts in flight, of the same instants, over the last minutes. Pure.

Means of signals have windows of their own; who is where is a ratio of two of them, and must speak of one time.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from server.verdict.inputs import VerdictInput
from server.verdict.thresholds import (
    INSTANTS,
    LEAST_BUSY,
    LEAST_SECONDS,
    MOST_INSTANTS,
    MOST_SECONDS,
    SYNC_STEPS,
    WINDOW_STEPS,
)

REQUESTS = "requests:"
ROLLOUTS = "rollouts:"
SANDBOXES = "sandboxes:"
RUNNING = REQUESTS + "running"
WAITING = REQUESTS + "waiting"
STARTING = SANDBOXES + "starting"
QUEUED = SANDBOXES + "queued"
CAP = "cap"
BUBBLE = "bubble"


Instant = tuple[float, Mapping[str, float]]


def instant(seen: VerdictInput) -> dict[str, float]:
    """What is there now, by series."""
    requests = {REQUESTS + row.get("state", ""): value for row, value in seen.rows("generator_requests_now")}
    cap = seen.get("in_flight_ratio")
    requests |= {CAP: cap} if cap is not None else {}
    requests |= {SANDBOXES + row.get("state", ""): value for row, value in seen.rows("sandboxes")}
    return requests | {ROLLOUTS + row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def add(kept: Sequence[Instant], seen: VerdictInput) -> list[Instant]:
    """The instants of the window with the newest, when it is time for one."""
    step = seen.get("trainer_step_seconds") or 0.0
    steps = SYNC_STEPS if seen.synchronous else WINDOW_STEPS
    span = max(LEAST_SECONDS, steps * step)
    span = max(MOST_SECONDS, span) if seen.synchronous else min(MOST_SECONDS, span)
    within = [one for one in kept if one[0] > seen.now - span]
    found = instant(seen)
    if not found or (within and seen.now - within[-1][0] < span / (MOST_INSTANTS if seen.synchronous else INSTANTS)):
        return within
    return [*within, (seen.now, found)]


def means(kept: Sequence[Instant], since: float = -inf) -> dict[str, float]:
    """Mean of each series over the instants from ``since`` on, at least the newest.

    A state that is missing from an instant counts as 0 there, where others of its kind are reported. Instants whose
    rollouts are counted by other states are of another source, and are left out. Zero sandboxes before the first
    sandbox are left out too: history is judged before the provider is read.
    """
    within = [one for one in kept if one[0] >= since] or list(kept[-1:])
    first_box = first_sandboxes(kept)
    names = _rollout_states(within[-1][1]) if within else frozenset()
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for ts, found in within:
        same = _rollout_states(found) == names
        kinds = {_kind(name) for name in found} - (set() if same else {ROLLOUTS.rstrip(":"), CAP})
        if ts < first_box:
            kinds.discard(SANDBOXES.rstrip(":"))
        for name, value in found.items():
            if _kind(name) in kinds:
                totals[name] = totals.get(name, 0.0) + value
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    means_ = {name: total / counts[_kind(name)] for name, total in totals.items()}
    return means_ | _bubble([found.get(REQUESTS + "running", 0.0) for _, found in within])


def first_sandboxes(kept: Sequence[Instant]) -> float:
    """Time of the first instant with a sandbox; infinite without any."""
    times = (
        ts for ts, found in kept if any(value > 0 and _kind(name) + ":" == SANDBOXES for name, value in found.items())
    )
    return next(times, inf)


def _rollout_states(found: Mapping[str, float]) -> frozenset[str]:
    return frozenset(name for name in found if name.startswith(ROLLOUTS))


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _bubble(running: Sequence[float]) -> dict[str, float]:
    """How far below their peak the requests ran on average, while any ran; of enough instants to have seen a tail."""
    busy = [one for one in running if one > 0]
    return {BUBBLE: 1.0 - sum(busy) / len(busy) / max(busy)} if len(busy) >= LEAST_BUSY else {}


def bubble(seen: VerdictInput) -> float | None:
    """Emptiness of the engines while they generate: the signal's, which sees five minutes; else of the whole step."""
    longer = (seen.get("trainer_step_seconds") or 0.0) > MOST_SECONDS
    found = seen.recent.get(BUBBLE) if longer and seen.synchronous else None
    return found if found is not None else seen.get("tail_bubble_ratio")


def requests(seen: VerdictInput, state: str) -> float | None:
    """Requests in a state: of the last minutes, else the signal's own mean."""
    found = seen.recent.get(REQUESTS + state)
    return found if found is not None else seen.total("generator_requests", state=state)


def cap(seen: VerdictInput) -> float | None:
    """Rollouts under way over their cap: of the last minutes, else of now."""
    found = seen.recent.get(CAP)
    return found if found is not None else seen.get("in_flight_ratio")


def sandboxes(seen: VerdictInput) -> dict[str, float]:
    """The run's sandboxes by state: of the last minutes, else of now."""
    found = dict(_named(seen.recent.items(), SANDBOXES))
    return found or {row.get("state", ""): value for row, value in seen.rows("sandboxes")}


def census(seen: VerdictInput) -> dict[str, float]:
    """Rollouts by state: of the last minutes, else of now."""
    found = dict(_named(seen.recent.items(), ROLLOUTS))
    return found or {row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def _named(items: Iterable[tuple[str, float]], prefix: str) -> Iterable[tuple[str, float]]:
    return ((name.removeprefix(prefix), value) for name, value in items if name.startswith(prefix))
