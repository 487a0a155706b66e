"""Requests in the engines and rollouts in flight, of the same instants, over the last minutes. Pure.

Means of signals have windows of their own; who is where is a ratio of two of them, and must speak of one time.
"""

from collections.abc import Iterable, Mapping, Sequence

from server.verdict.inputs import Seen

# Engines saw once per step: a window holds one, at least two minutes and at most the five of every tick signal.
LEAST_SECONDS, MOST_SECONDS = 120.0, 300.0
# Twenty instants of five minutes. A synchronous step is filled and emptied once: three whole ones are looked at.
SPACING, SYNC_STEPS, MOST = 15.0, 3.0, 90
REQUESTS, ROLLOUTS, CAP, BUBBLE = "requests:", "rollouts:", "cap", "bubble"

LEAST_BUSY = 6

Instant = tuple[float, Mapping[str, float]]


def instant(seen: Seen) -> dict[str, float]:
    """What is there now, by series."""
    requests = {REQUESTS + row.get("state", ""): value for row, value in seen.rows("generator_requests_now")}
    cap = seen.get("in_flight_ratio")
    requests |= {CAP: cap} if cap is not None else {}
    return requests | {ROLLOUTS + row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def add(kept: Sequence[Instant], seen: Seen) -> list[Instant]:
    """With the newest, when it is time for one; older ones than the window are left out."""
    step = seen.get("trainer_step_seconds") or 0.0
    span = max(MOST_SECONDS, SYNC_STEPS * step) if seen.synchronous else min(MOST_SECONDS, max(LEAST_SECONDS, step))
    since = seen.now - span
    within = [one for one in kept if one[0] > since]
    found = instant(seen)
    if not found or (within and seen.now - within[-1][0] < max(SPACING, span / MOST)):
        return within
    return [*within, (seen.now, found)]


def means(kept: Sequence[Instant]) -> dict[str, float]:
    """Mean of each series over the instants; a state nobody is in counts there as 0, where its like are told at all."""
    totals: dict[str, float] = {}
    told: dict[str, int] = {}
    for _, found in kept:
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + value
        for kind in {_kind(name) for name in found}:
            told[kind] = told.get(kind, 0) + 1
    means_ = {name: total / told[_kind(name)] for name, total in totals.items()}
    return means_ | _bubble([told.get(REQUESTS + "running", 0.0) for _, told in kept])


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _bubble(running: Sequence[float]) -> dict[str, float]:
    """How far below their peak the requests ran on average, while any ran; of enough instants to have seen a tail."""
    busy = [one for one in running if one > 0]
    return {BUBBLE: 1.0 - sum(busy) / len(busy) / max(busy)} if len(busy) >= LEAST_BUSY else {}


def bubble(seen: Seen) -> float | None:
    """Emptiness of the engines while they generate: the signal's, which sees five minutes; else of the whole step."""
    longer = (seen.get("trainer_step_seconds") or 0.0) > MOST_SECONDS
    found = seen.recent.get(BUBBLE) if longer and seen.synchronous else None
    return found if found is not None else seen.get("tail_bubble_ratio")


def requests(seen: Seen, state: str) -> float | None:
    """Requests in a state: of the last minutes, else the signal's own mean."""
    found = seen.recent.get(REQUESTS + state)
    return found if found is not None else seen.total("generator_requests", state=state)


def cap(seen: Seen) -> float | None:
    """Rollouts under way over their cap: of the last minutes, else of now."""
    found = seen.recent.get(CAP)
    return found if found is not None else seen.get("in_flight_ratio")


def census(seen: Seen) -> dict[str, float]:
    """Rollouts by state: of the last minutes, else of now."""
    found = dict(_named(seen.recent.items(), ROLLOUTS))
    return found or {row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def _named(items: Iterable[tuple[str, float]], prefix: str) -> Iterable[tuple[str, float]]:
    return ((name.removeprefix(prefix), value) for name, value in items if name.startswith(prefix))
