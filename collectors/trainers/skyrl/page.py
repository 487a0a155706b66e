"""SkyRL's live gauges on the page of a Ray metrics agent (a9564572: train/utils/metrics.py, ray.util.metrics).

Ray exports a gauge only after a new report, so every second page may lack them: such a page is unknown, not zero. Only
the agent on the driver's node has them. 0.3.0 has none.
"""

import re
from collections.abc import Iterator, MutableMapping

import httpx

from collectors.formats.exposition import parser
from collectors.formats.exposition.parser import Page, Series
from collectors.model import Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http

# SkyRL's macro-phases -> our phases of a step. Generation is not among them: it runs in parallel with all.
PHASES = {
    "wait_for_generation_buffer": "wait",
    "convert_to_training_input": "other",
    "run_training": "compute",
    "sync_weights": "weight_sync",
    "eval": "eval",
    "save_checkpoints": "checkpoint",
    "save_hf_model": "checkpoint",
}
# Groups; the page has no number of rollouts per group.
QUEUES = {
    "ray_skyrl_gen_buffer_qsize": "queue_groups",
    "ray_skyrl_gen_buffer_maxsize": "queue_capacity_groups",
}
# Numbers of a step, which the run's log has with the step.
STEP_NUMBERS = frozenset(("ray_skyrl_mini_batch_size", "ray_skyrl_gen_group_keep_rate"))
_PREFIX = "ray_skyrl_"
_PAGE = re.compile(rb"^ray_skyrl_(?:training_phase|gen_buffer_qsize)\{", re.MULTILINE)

Values = MutableMapping[tuple[str, Labels], float]


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page of the agent; empty when the gauges are missing from it.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page of another system, or a truncated one.
    """
    page = parser.parse(body, state, limits)
    parser.check_whole(body)
    if not any(series.name.startswith("ray_") for series, _ in page.samples):
        raise ScrapeError("garbage", "not a page of a Ray metrics agent: it has no ray_ series")
    values: Values = {}
    unmapped: dict[str, int] = {}
    series_values = list(_skyrl_series(page))
    for series, value in series_values:
        if not _gauge(series, value, values) and series.name not in STEP_NUMBERS:
            unmapped[series.name.removeprefix(_PREFIX)] = 1
    return Reading(
        samples=tuple(Sample(metric, value, labels) for (metric, labels), value in values.items()),
        facts={"framework": "skyrl", "mode": "async"} if series_values else {},
        unmapped=unmapped,
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=len(series_values),
    )


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page: at the client's base URL when that names one, else at /metrics under it.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    path = client.base_url.path.rstrip("/")
    url: httpx.URL | str = client.base_url.copy_with(path=path) if path.endswith("metrics") else "/metrics"
    return parse(await http.get(client, url, limits), state, limits)


def matches(body: bytes) -> bool:
    """Returns whether this page has SkyRL's gauges at the moment."""
    return _PAGE.search(body) is not None


def _skyrl_series(page: Page) -> Iterator[tuple[Series, float]]:
    return ((series, value) for series, value in page.samples if series.name.startswith(_PREFIX))


def _gauge(series: Series, value: float, values: Values) -> bool:
    """Adds one gauge; False if it is unknown."""
    if series.name == "ray_skyrl_training_phase":
        phase = PHASES.get(series.label("phase"), "other")
        key = ("trainer_phase_active", (("phase", phase),))
        # Two of SkyRL's phases may map to one of ours, and only one of them is 1.
        values[key] = max(value, values.get(key, 0.0))
        return True
    if series.name not in QUEUES:
        return False
    values[QUEUES[series.name], ()] = value
    return True
