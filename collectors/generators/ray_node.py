"""Ray's page of a node: its GPUs, and Ray Serve's queues and replicas.

A gauge is exported once per report (10 s), so that the page between two reports may lack it: that is not zero, and the
value before is carried. `gram` is in MiB in spite of Ray's word "bytes". GPUs have an index and no UUID.

Does not know: the engines behind Ray Serve, whose series are on the same page (`ray_vllm_...`: collector vllm reads
them), and whether a GPU works: utilisation is 1 while a collective spins. A DCGM exporter tells.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import httpx

from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages.pages import Decision, Take, Unmapped, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.model import Collector, Labels, Limits, Reading, State
from collectors.transport import rest

# A node's page is its engines' too, where it has some: those say more, and one URL is one collector unless it is named.
_PAGE = re.compile(rb"^ray_(?:node_gpus_utilization|node_gram_used|serve_\w+|node_cpu_utilization)\{", re.MULTILINE)
_OWN = re.compile(rb"^ray_(?:node_gpus_utilization|node_gram_used|serve_\w+)\{", re.MULTILINE)
_OTHERS = re.compile(rb"^ray_(?:vllm|sglang|skyrl)_", re.MULTILINE)
_DEVICE = re.compile(rb'\bGpuDeviceName="([^"\\\n]{1,64})"')

MIB = float(1 << 20)

# ray 2.60 (dashboard/modules/reporter/reporter_agent.py, serve/_private/). Names without `ray_` and `_total`.
GPUS: Mapping[str, Take] = {
    "node_gpus_utilization": Take("gpu_utilization_ratio", scale=0.01),
    "node_gram_used": Take("gpu_memory_used_bytes", scale=MIB),
    "node_gram_available": Take("gpu_memory_free_bytes", scale=MIB),
    "node_gpu_power_milliwatts": Take("gpu_power_watts", scale=0.001),
    "node_gpu_temperature_celsius": Take("gpu_temperature_celsius"),
}
SERVE: Mapping[str, Take] = {
    "serve_deployment_queued_queries": Take("router_requests_queued", fold="sum"),
    # As the replicas say; `serve_num_ongoing_requests_at_replicas` is the same as their callers have it.
    "serve_replica_processing_queries": Take("router_requests_in_flight", fold="sum"),
    "serve_deployment_replica_healthy": Take("router_worker_healthy", fold="min"),
    "serve_deployment_request_counter": Take("router_requests_total", fold="sum"),
    "serve_deployment_error_counter": Take("router_errors_total", fold="sum"),
}


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series of the node's page."""
    if not family.startswith("ray_"):
        return None
    base = family.removeprefix("ray_").removesuffix("_total")
    if base in GPUS:
        return engine_pages_pages.value_of(GPUS[base], series, _gpu(series))
    if base in SERVE:
        # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
        doubled = SERVE[base].metric.endswith("_total") and not series.name.endswith("_total")
        return engine_pages_pages.value_of(SERVE[base], series, _replica(series), int(doubled))
    # Ray has hundreds of families about itself: only what resembles ours is worth a word.
    own = kind != "histogram" and base.startswith(("node_gpu_", "node_gram_", "serve_deployment_queue"))
    return Unmapped(base) if own else None


def _gpu(series: Series) -> Labels:
    found = dict(engine_pages_pages.labels_of(series, {"GpuIndex": "gpu", "ip": "host"}))
    return tuple(sorted((found | ({"index": found["gpu"]} if "gpu" in found else {})).items()))


def _replica(series: Series) -> Labels:
    return engine_pages_pages.labels_of(
        series, {"application": "application", "deployment": "deployment", "replica": "worker"}
    )


WORDS = Vocabulary(
    name="ray_node",
    decide=decide,
    proves=lambda series: series.name.startswith("ray_"),
    stranger="a metrics page without ray_ series",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `pages.read`."""
    page = engine_pages_pages.read(body, state, limits, WORDS)
    models = set(_DEVICE.findall(body))
    name = rest.text(models.pop().decode(), 64) if len(models) == 1 else ""
    return replace(page, facts={"gpu_type": name} if name else {})


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page of a node's agent (docs convention :8080; else a random port, told by Ray's discovery file).

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return await engine_pages_pages.parsed(parse, await engine_pages_pages.fetch(client, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Is it a node's page without an engine or trainer on it? (With an engine, name this collector: ``ray_node=URL``.)

    One page proves no absence, gauges being shown once per report: whoever asks does so of several pages together.
    """
    return _PAGE.search(body) is not None and _OTHERS.search(body) is None


def has_own(body: bytes) -> bool:
    """Is anything there that is read here (GPUs or queues), whoever's the page is?"""
    return _OWN.search(body) is not None


COLLECTOR = Collector(
    name="ray_node",
    actor="generator",
    reads="GPUs of a Ray node and Ray Serve's queues over the node's metrics page",
    versions="2.60.0 by source",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    report_seconds=10.0,
)
