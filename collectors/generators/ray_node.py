"""Reads Ray's page of a node: its GPUs, and the queues and replicas of Ray Serve.

A gauge is exported once per report (10 s), so a page between two reports may lack it: the previous value still holds.
`gram` is in MiB, although Ray's description says bytes. GPUs have an index and no UUID.

Not read: the engines behind Ray Serve, whose series are on the same page (`ray_vllm_...` or `ray_vllm:...`: collector
vllm reads them).
Utilisation does not show useful work: it is 1 while a collective waits. A DCGM exporter reports activity.
"""

import re
from collections.abc import Mapping

import httpx
from msgspec import structs

from collectors.engine_pages import pages
from collectors.engine_pages.pages import Decision, MetricRule, PageRules, Unmapped
from collectors.formats.exposition import Series
from collectors.model import Collector, Labels, Limits, Reading, State
from collectors.transport import http, rest

_PAGE = re.compile(rb"^ray_(?:node_gpus_utilization|node_gram_used|serve_\w+|node_cpu_utilization)\{", re.MULTILINE)
_SERIES = re.compile(rb"^ray_(?:node_gpus_utilization|node_gram_used|serve_\w+)\{", re.MULTILINE)
_OTHERS = re.compile(rb"^(?:ray_skyrl_|(?:[a-z0-9]+_)?(?:vllm|sglang)[_:])", re.MULTILINE)
_DEVICE = re.compile(rb'\bGpuDeviceName="([^"\\\n]{1,64})"')

MIB = float(1 << 20)

# ray 2.60 (dashboard/modules/reporter/reporter_agent.py, serve/_private/). Names without `ray_` and `_total`.
GPUS: Mapping[str, MetricRule] = {
    "node_gpus_utilization": MetricRule("gpu_utilization_ratio", scale=0.01),
    "node_gram_used": MetricRule("gpu_memory_used_bytes", scale=MIB),
    "node_gram_available": MetricRule("gpu_memory_free_bytes", scale=MIB),
    "node_gpu_power_milliwatts": MetricRule("gpu_power_watts", scale=0.001),
    "node_gpu_temperature_celsius": MetricRule("gpu_temperature_celsius"),
}
SERVE: Mapping[str, MetricRule] = {
    "serve_deployment_queued_queries": MetricRule("router_requests_queued", fold="sum"),
    # Measured by the replicas; `serve_num_ongoing_requests_at_replicas` is the same measured by their callers.
    "serve_replica_processing_queries": MetricRule("router_requests_in_flight", fold="sum"),
    "serve_deployment_replica_healthy": MetricRule("router_worker_healthy", fold="min"),
    "serve_deployment_request_counter": MetricRule("router_requests_total", fold="sum"),
    "serve_deployment_error_counter": MetricRule("router_errors_total", fold="sum"),
}


def decide(series: Series, family: str, kind: str) -> Decision:
    """Maps one series of the node's page."""
    if not family.startswith("ray_"):
        return None
    base = family.removeprefix("ray_").removesuffix("_total")
    if base in GPUS:
        return pages.value_of(GPUS[base], series, _gpu(series))
    if base in SERVE:
        # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
        doubled = SERVE[base].metric.endswith("_total") and not series.name.endswith("_total")
        return pages.value_of(SERVE[base], series, _replica(series), int(doubled))
    # Ray has hundreds of families about itself: only those similar to mapped ones are reported as unmapped.
    relevant = kind != "histogram" and base.startswith(("node_gpu_", "node_gram_", "serve_deployment_queue"))
    return Unmapped(base) if relevant else None


def _gpu(series: Series) -> Labels:
    series_labels = dict(pages.labels_of(series, {"GpuIndex": "gpu", "ip": "host"}))
    return tuple(sorted((series_labels | ({"index": series_labels["gpu"]} if "gpu" in series_labels else {})).items()))


def _replica(series: Series) -> Labels:
    return pages.labels_of(series, {"application": "application", "deployment": "deployment", "replica": "worker"})


RULES = PageRules(
    name="ray_node",
    decide=decide,
    proves=lambda series: series.name.startswith("ray_"),
    mismatch="a metrics page without ray_ series",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`."""
    page = pages.read(body, state, limits, RULES)
    models = set(_DEVICE.findall(body))
    name = rest.text(models.pop().decode(), 64) if len(models) == 1 else ""
    return structs.replace(page, facts={"gpu_type": name} if name else {})


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs the page of a node's agent (:8080 by convention; else a random port, named in Ray's discovery file).

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return await pages.parsed(parse, await http.metrics_page(client, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Is it a node's page without an engine or trainer on it? With one, the page is read twice: see `has_series`.

    Gauges are shown once per report, so one page does not prove an absence. Callers pass several pages together.
    """
    return _PAGE.search(body) is not None and _OTHERS.search(body) is None


def has_series(body: bytes) -> bool:
    """Returns whether a page contains GPU or queue series of this collector, even if it is an engine's or trainer's."""
    return _SERIES.search(body) is not None


COLLECTOR = Collector(
    name="ray_node",
    actor="generator",
    reads="GPUs of a Ray node and Ray Serve's queues over the node's metrics page",
    versions="2.60.0 by source",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    has_series=has_series,
    report_seconds=10.0,
)
