"""Classifies engines without current series in a Prometheus store: down, removed, or without engine metrics. Pure.

A failed scrape ends the series of an engine at once (Prometheus writes staleness markers); only `up` remains. A target
is identified as an engine by earlier readings.
"""

from collections.abc import Collection, Mapping

Target = tuple[str, str]
"""Cluster and instance: one engine's page."""
Scrape = tuple[str, ...]
"""Cluster, instance, job, and the labels of the Prometheus replica that scraped."""
# Prometheus' lookback: a query returns samples up to this age.
LOOKBACK_SECONDS = 300.0

# Reasons, as shown in gaps.
DOWN = "down, by the store's up"
ENDED = "no longer a target"
EMPTY = "up without an engine's numbers"
OTHERS = "further targets of the engines' jobs are down"


def silent(
    seen: Collection[Scrape], up: Mapping[Scrape, bool], read: Mapping[Target, float], at: float
) -> dict[str, set[Target]]:
    """Reason -> engines without current series.

    Args:
        seen: scrapes of engines with current series.
        up: (cluster, instance, job) -> did the last scrape succeed?
        read: time of our last reading of each engine, by the store's clock (as `at`).
    """
    present, jobs = {(cluster, instance) for cluster, instance, *_ in seen}, {scrape[2] for scrape in seen}
    answers: dict[Target, bool] = {}
    for (cluster, instance, _), success in up.items():
        answers[cluster, instance] = success or answers.get((cluster, instance), False)
    down = {target for target, success in answers.items() if not success} - present
    same_jobs = {(cluster, instance) for cluster, instance, job in up if job in jobs}
    recent = {target for target, ts in read.items() if at - ts <= LOOKBACK_SECONDS}
    return {
        DOWN: down & read.keys(),
        ENDED: recent - answers.keys() - present,
        EMPTY: {target for target in read if answers.get(target)} - present,
        OTHERS: (down & same_jobs) - read.keys(),
    }
