"""Engines that a store no longer has numbers of: which do not answer, and which are simply there no more. Pure.

A failed scrape ends an engine's series at once (Prometheus writes staleness markers): `up` alone still tells of it, and
what was read before is known to be an engine.
"""

from collections.abc import Collection, Mapping

Place = tuple[str, str]
"""Cluster and instance: one engine's page."""
Scrape = tuple[str, ...]
"""Cluster, instance, job, and whatever else tells whose scrape of it."""
# As long as a store answers with what it last heard.
LOOKBACK_SECONDS = 300.0

DOWN, ENDED, EMPTY = "down, by the store's up", "no target any more", "up without an engine's numbers"
OTHERS = "further targets of the engines' jobs are down"


def silent(
    seen: Collection[Scrape], up: Mapping[Scrape, bool], read: Mapping[Place, float], at: float
) -> dict[str, set[Place]]:
    """Why -> engines of which nothing is seen.

    Args:
        seen: scrapes of engines that the store has now.
        up: (cluster, instance, job) -> did the last scrape succeed?
        read: when each engine was last read by us, at (like `at`) by the store's clock.
    """
    told, jobs = {(cluster, instance) for cluster, instance, *_ in seen}, {scrape[2] for scrape in seen}
    answers: dict[Place, bool] = {}
    for (cluster, instance, _), well in up.items():
        answers[cluster, instance] = well or answers.get((cluster, instance), False)
    down = {place for place, well in answers.items() if not well} - told
    near = {(cluster, instance) for cluster, instance, job in up if job in jobs}
    return {
        DOWN: down & read.keys(),
        ENDED: {place for place, ts in read.items() if place not in answers and at - ts <= LOOKBACK_SECONDS} - told,
        EMPTY: {place for place in read if answers.get(place)} - told,
        OTHERS: (down & near) - read.keys(),
    }
