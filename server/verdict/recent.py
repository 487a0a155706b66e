"""Requests in the engines and rollouts in flight, of the same instants, over the last minutes. Pure.

Means of signals have windows of their own; who is where is a ratio of two of them, and must speak of one time.
"""

from collections.abc import Iterable, Mapping, Sequence

from server.verdict.inputs import Seen

# Engines saw once per step: a window holds one, at least two minutes and at most the five of every tick signal.
LEAST_SECONDS, MOST_SECONDS = 120.0, 300.0
# Twenty instants of five minutes.
SPACING = 15.0
REQUESTS, ROLLOUTS = "requests:", "rollouts:"

Instant = tuple[float, Mapping[str, float]]


def instant(seen: Seen) -> dict[str, float]:
    """What is there now, by series."""
    requests = {REQUESTS + row.get("state", ""): value for row, value in seen.rows("generator_requests_now")}
    return requests | {ROLLOUTS + row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def add(kept: Sequence[Instant], seen: Seen) -> list[Instant]:
    """With the newest, when it is time for one; older ones than the window are left out."""
    step = seen.get("trainer_step_seconds") or 0.0
    since = seen.now - min(MOST_SECONDS, max(LEAST_SECONDS, step))
    within = [one for one in kept if one[0] > since]
    found = instant(seen)
    if not found or (within and seen.now - within[-1][0] < SPACING):
        return within
    return [*within, (seen.now, found)]


def means(kept: Sequence[Instant]) -> dict[str, float]:
    """Mean of each series over the instants; a state nobody is in at one of them counts there as 0."""
    totals: dict[str, float] = {}
    for _, found in kept:
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + value
    return {name: total / len(kept) for name, total in totals.items()}


def requests(seen: Seen, state: str) -> float | None:
    """Requests in a state: of the last minutes, else the signal's own mean."""
    found = seen.recent.get(REQUESTS + state)
    return found if found is not None else seen.total("generator_requests", state=state)


def census(seen: Seen) -> dict[str, float]:
    """Rollouts by state: of the last minutes, else of now."""
    found = dict(_named(seen.recent.items(), ROLLOUTS))
    return found or {row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def _named(items: Iterable[tuple[str, float]], prefix: str) -> Iterable[tuple[str, float]]:
    return ((name.removeprefix(prefix), value) for name, value in items if name.startswith(prefix))
