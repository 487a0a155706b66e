"""The page of TransferQueue's controller (0.1.11), the store between generators and trainer in verl's V1 trainers.

`transfer_queue.metrics.enabled=True` turns it on. In partition ``train`` a sample is a key: one per prompt, which never
has data, and one per trajectory, which has data when it is finished. So the queue is the samples with data. A batch in
training is counted until its step ends.

Not available: groups (a trajectory of an unfinished group counts), staleness, current generations.
"""

import math
import re
from collections.abc import Iterator

import httpx

from collectors.formats import exposition
from collectors.formats.exposition import Page
from collectors.model import Collector, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http

SAMPLES, PRODUCED = "tq_partition_samples_total", "tq_partition_production_progress"
# The controller's own health: request times, storage, memory.
_OTHER_METRICS = re.compile(
    r"tq_(?:controller|storage|global_index)_.*|tq_partitions_total|tq_partition_(?:samples_total|(?:pro|con)\w+_progress)"
)
_PAGE = re.compile(rb"^tq_(?:controller_uptime_seconds|partitions_total) ", re.MULTILINE)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page of another system, or a truncated one.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    names = {series.name for series, _ in page.samples if series.name.startswith("tq_")}
    if not names:
        raise ScrapeError("garbage", "not a page of TransferQueue: it has no tq_* series")
    return Reading(
        samples=tuple(_queue(page)),
        unmapped={name: 1 for name in sorted(names) if not _OTHER_METRICS.fullmatch(name)},
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=len(page.samples),
    )


def _queue(page: Page) -> Iterator[Sample]:
    """Absent while nothing has been produced: then the controller exports no share."""
    train_values = {
        (series.name, series.label("task_name")): value
        for series, value in page.samples
        if series.label("partition_id") == "train"
    }
    count, share = train_values.get((SAMPLES, "")), train_values.get((PRODUCED, "all"))
    if count is not None and share is not None and math.isfinite(count * share):
        # A share of whole samples: rounding removes the error of the division.
        yield Sample("queue_samples", float(round(count * share)))


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """One page over HTTP.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return parse(await http.metrics_page(client, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Returns whether the page has the controller's gauges."""
    return _PAGE.search(body) is not None


COLLECTOR = Collector(
    name="verl_transfer_queue",
    actor="trainer",
    reads="the TransferQueue controller's page of verl's V1 trainers: the queue",
    versions="TransferQueue 0.1.11 by a page of its exporter",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    report_seconds=10.0,
    gives={("queue_samples", ()): "derived"},
)
