"""Reads metrics pages about sandboxes on Kubernetes: agent-sandbox's controller and router, the kubelet's pod starts.

The controller's histograms are converted from milliseconds to seconds, with their edges. The largest edge is 240 or
600 s, so longer starts are not resolved: the age of the oldest pending sandbox comes from the collector `kubernetes`.
Latencies are recorded for claims; a Sandbox created without a claim appears only in the counts.

A page may measure the same start several times: by claim, by sandbox, by client, by controller. The family that covers
most of a rollout's wait is used and the others are dropped. The kubelet's page covers all pods of its node, also those
without sandboxes; of its three histograms the one that includes image pulls is used.

Series of different templates and namespaces are summed by launch type (image cached or not).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isfinite

import httpx

from collectors.formats import exposition
from collectors.formats.exposition import Bucketed, Page, Series
from collectors.model import Collector, Histogram, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http

# family -> (metric, factor to seconds, rank: of one metric's families the lowest one present is used).
_HISTOGRAMS: Mapping[str, tuple[str, float, int]] = {
    "agent_sandbox_claim_startup_latency_ms": ("sandbox_spinup_seconds", 1e-3, 0),
    "agent_sandbox_creation_latency_ms": ("sandbox_spinup_seconds", 1e-3, 1),
    "kubelet_pod_start_total_duration_seconds": ("sandbox_spinup_seconds", 1.0, 2),
    "kubelet_pod_start_duration_seconds": ("sandbox_spinup_seconds", 1.0, 3),
    "sandbox_router_request_duration_seconds": ("sandbox_exec_seconds", 1.0, 0),
}
# Dropped on purpose: other measurements of the same starts, starts without the image pull, build information.
_LEFT_OUT = {
    "agent_sandbox_claim_controller_startup_latency_ms",
    "agent_sandbox_client_claim_startup_latency_ms",
    "agent_sandbox_build_info",
    "kubelet_pod_start_sli_duration_seconds",
    "sandbox_router_requests_total",
    "sandbox_router_inflight_requests",
    "sandbox_router_upstream_errors_total",
}
_OURS = ("agent_sandbox", "sandbox_router_", "sandbox_client_", "kubelet_pod_start_")
_PREFIXES = tuple(prefix.encode() for prefix in (*_HISTOGRAMS, "agent_sandboxes", "agent_sandbox_claim_creation_total"))
_IMAGE = {"warm": "cached"}


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page. Counts and histograms count from the start of the process; times are in seconds.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page that is truncated or has none of the families.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    families = {page.family(series.name)[0].removesuffix("_total") for series, _ in page.samples}
    ours = {family for family in families if family.startswith(_OURS)}
    if not ours:
        raise ScrapeError("garbage", "the page has no family of agent-sandbox, its router or the kubelet's pod starts")
    histograms, odd = _histograms(page)
    left_out = {name.removesuffix("_total") for name in _LEFT_OUT}
    mapped_families = _HISTOGRAMS.keys() | left_out | {"agent_sandboxes", "agent_sandbox_claim_creation"}
    return Reading(
        samples=tuple(_samples(page)),
        histograms=histograms,
        unmapped=dict.fromkeys(sorted(ours - mapped_families | odd), 1),
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=len(page.samples),
    )


def _histograms(page: Page) -> tuple[tuple[Histogram, ...], set[str]]:
    """One histogram per metric and image, and the families with series that cannot be added."""
    by_family: dict[tuple[str, int], list[Bucketed]] = defaultdict(list)
    for histogram in exposition.histograms(page):
        if histogram.family in _HISTOGRAMS:
            metric, _, rank = _HISTOGRAMS[histogram.family]
            by_family[metric, rank].append(histogram)
    best = {metric: min(rank for name, rank in by_family if name == metric) for metric, _ in by_family}
    summed: list[Histogram] = []
    odd: set[str] = set()
    for metric, rank in best.items():
        by_image: dict[str, list[Bucketed]] = defaultdict(list)
        for histogram in by_family[metric, rank]:
            by_image[_image(histogram.labels)].append(histogram)
        for image, members in sorted(by_image.items()):
            if len({member.edges for member in members}) > 1:
                odd.add(members[0].family)
                continue
            summed.append(_sum(metric, image, members))
    return tuple(summed), odd


def _image(labels: Labels) -> str:
    """ "cached" for a sandbox of a warm pool; for a cold start it is not reported."""
    return _IMAGE.get(dict(labels).get("launch_type", ""), "unknown")


def _sum(metric: str, image: str, members: list[Bucketed]) -> Histogram:
    factor = _HISTOGRAMS[members[0].family][1]
    return Histogram(
        metric,
        # Division yields exactly 0.25 s for 250 ms; multiplication by 0.001 has a rounding error.
        tuple(edge / round(1 / factor) for edge in members[0].edges),
        tuple(map(sum, zip(*(member.counts for member in members), strict=True))),
        sum(member.total for member in members) / round(1 / factor),
        (("image", image),) if metric == "sandbox_spinup_seconds" else (),
    )


def _samples(page: Page) -> Iterator[Sample]:
    states: dict[str, float] = defaultdict(float)
    created: list[float] = []
    for series, value in page.samples:
        if not isfinite(value) or value < 0:
            continue
        if series.name == "agent_sandboxes":
            states[_state(series)] += value
        elif series.name == "agent_sandbox_claim_creation_total":
            created.append(value)
    for state, count in sorted(states.items()):
        yield Sample("sandboxes", count, (("state", state),))
    if created:
        yield Sample("sandboxes_created_total", sum(created))


def _state(series: Series) -> str:
    """The state of a series. "Not ready" may be starting, suspended or failed, so it is unknown."""
    if series.label("expired") == "true":
        return "terminated"
    return "running" if series.label("ready_condition") == "true" else "unknown"


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs the page, wherever the client's base URL names it (`http.metrics_page`).

    Raises:
        ScrapeError: as `http.metrics_page` and `parse`.
    """
    return parse(await http.metrics_page(client, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Does a line start with one of the families?"""
    return any(body.startswith(prefix) or b"\n" + prefix in body for prefix in _PREFIXES)


COLLECTOR = Collector(
    name="agent_sandbox_metrics",
    actor="sandbox",
    reads="agent-sandbox controller and router pages, and the kubelet's pod start histograms",
    versions="agent-sandbox by source (2fd412d5); kubelet names of Kubernetes 1.30",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
)
