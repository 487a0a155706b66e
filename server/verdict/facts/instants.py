"""Counts of requests, rollouts and sandboxes at the same instants over the last minutes. Pure.

Means of signals have different windows. A ratio of two counts needs counts of the same time.
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
UNCOUNTED = ("waiting_group", "queued", "scoring")
"""States of rollouts that `in_flight_ratio` does not count."""


Instant = tuple[float, Mapping[str, float]]


def instant(seen: VerdictInput) -> dict[str, float]:
    """Returns the counts of now by series."""
    requests = {REQUESTS + row.get("state", ""): value for row, value in seen.rows("generator_requests_now")}
    cap = seen.get("in_flight_ratio")
    requests |= {CAP: cap} if cap is not None else {}
    requests |= {SANDBOXES + row.get("state", ""): value for row, value in seen.rows("sandboxes")}
    return requests | {ROLLOUTS + row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def add(window: Sequence[Instant], seen: VerdictInput) -> list[Instant]:
    """Returns the instants of the window with the newest one, if the spacing has passed."""
    step = seen.get("trainer_step_seconds") or 0.0
    steps = SYNC_STEPS if seen.synchronous else WINDOW_STEPS
    span = max(LEAST_SECONDS, steps * step)
    span = max(MOST_SECONDS, span) if seen.synchronous else min(MOST_SECONDS, span)
    within = [entry for entry in window if entry[0] > seen.now - span]
    values = instant(seen)
    if not values or (within and seen.now - within[-1][0] < span / (MOST_INSTANTS if seen.synchronous else INSTANTS)):
        return within
    return [*within, (seen.now, values)]


def means(window: Sequence[Instant], since: float = -inf) -> dict[str, float]:
    """Returns the mean of each series over the instants from ``since`` on, at least the newest.

    A state that is missing from an instant counts as 0 if others of its kind are reported. Instants with other rollout
    states come from another source and are left out. Zero sandboxes before the first sandbox are left out too, because
    history is judged before the provider is read.
    """
    within = judged(window, since)
    first_box = first_sandboxes(window)
    names = _rollout_states(within[-1][1]) if within else frozenset()
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for ts, values in within:
        same = _rollout_states(values) == names
        kinds = {_kind(name) for name in values} - (set() if same else {ROLLOUTS.rstrip(":"), CAP})
        if ts < first_box:
            kinds.discard(SANDBOXES.rstrip(":"))
        for name, value in values.items():
            if _kind(name) in kinds:
                totals[name] = totals.get(name, 0.0) + value
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    means_ = {name: total / counts[_kind(name)] for name, total in totals.items()}
    return means_ | _bubble([values.get(REQUESTS + "running", 0.0) for _, values in within])


def judged(window: Sequence[Instant], since: float) -> list[Instant]:
    """Returns the instants from ``since`` on, at least the newest."""
    return [entry for entry in window if entry[0] >= since] or list(window[-1:])


def first_sandboxes(window: Sequence[Instant]) -> float:
    """Returns the time of the first instant with a sandbox; infinite without any."""
    times = (
        ts
        for ts, values in window
        if any(value > 0 and _kind(name) + ":" == SANDBOXES for name, value in values.items())
    )
    return next(times, inf)


def _rollout_states(values: Mapping[str, float]) -> frozenset[str]:
    return frozenset(name for name in values if name.startswith(ROLLOUTS))


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _bubble(running: Sequence[float]) -> dict[str, float]:
    """Returns how far below their peak the running requests were on average while any ran; needs several instants."""
    busy = [count for count in running if count > 0]
    return {BUBBLE: 1.0 - sum(busy) / len(busy) / max(busy)} if len(busy) >= LEAST_BUSY else {}


def bubble(seen: VerdictInput) -> float | None:
    """Returns the idle share of the engines while they generate, over whole steps if these exceed the window."""
    longer = (seen.get("trainer_step_seconds") or 0.0) > MOST_SECONDS
    value = seen.recent.get(BUBBLE) if longer and seen.synchronous else None
    return value if value is not None else seen.get("tail_bubble_ratio")


def requests(seen: VerdictInput, state: str) -> float | None:
    """Returns the requests in a state: the mean of the last minutes, else of the signal."""
    value = seen.recent.get(REQUESTS + state)
    return value if value is not None else seen.total("generator_requests", state=state)


def cap(seen: VerdictInput) -> float | None:
    """Returns the used share of the in-flight limit: the mean of the last minutes, else of now."""
    value = seen.recent.get(CAP)
    return value if value is not None else seen.get("in_flight_ratio")


def limit(seen: VerdictInput) -> float | None:
    """Returns the limit of rollouts in flight: their number by the used share, as `in_flight_ratio` counts them."""
    share = seen.get("in_flight_ratio")
    counts = [value for row, value in seen.rows("in_flight_rollouts") if row.get("state") not in UNCOUNTED]
    return sum(counts) / share if counts and share else None


def sandboxes(seen: VerdictInput) -> dict[str, float]:
    """Returns the run's sandboxes by state: means of the last minutes, else of now."""
    counts = dict(_named(seen.recent.items(), SANDBOXES))
    return counts or {row.get("state", ""): value for row, value in seen.rows("sandboxes")}


def census(seen: VerdictInput) -> dict[str, float]:
    """Returns the rollouts by state: means of the last minutes, else of now."""
    counts = dict(_named(seen.recent.items(), ROLLOUTS))
    return counts or {row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def _named(items: Iterable[tuple[str, float]], prefix: str) -> Iterable[tuple[str, float]]:
    return ((name.removeprefix(prefix), value) for name, value in items if name.startswith(prefix))
