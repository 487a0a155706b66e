"""vLLM's own /metrics page: load, KV cache, requests, latencies, sleep, weight updates.

Reads names of 0.8 to 0.33 (tables below: newest name first), plain, behind Ray (`ray_vllm_...`) and with `_` for
`:` (sgl-router, Prometheus 2), data-parallel engines under the label ``engine``. Series of the production-stack
router, which re-uses vLLM's names, are dropped: they count the engines' requests a second time.

Does not know: whether generation is paused (`/pause` leaves no trace on the page, gauges freeze), which policy
version is loaded (no metric), what a request was for (train, eval, judge). `generator_asleep` 0 is no proof: verl
before 0.9 sleeps past the gauge. Request histograms and finish counters move only when a request finishes.
"""

import re
from collections.abc import Iterator

import httpx

from collectors.generators import _pages
from collectors.generators import _vllm_names as names
from collectors.generators._pages import Decision, Plan, Said, Unmapped, Vocabulary
from collectors.model import Collector, Labels, Limits, Reading, Sample, State
from collectors.readers.exposition import Series

_FAMILY = re.compile(r"(?:ray_)?vllm[:_](.+)")
_PAGE = re.compile(
    rb"^(?:ray_)?vllm[:_](?:num_requests_(?:running|waiting)|generation_tokens(?:_total)?|cache_config_info)"
    rb"\{(?![^}\n]*\bserver=)",
    re.MULTILINE,
)
_ADDRESS = re.compile(r"^[a-z]+://(?:[^/@]*@)?([^/]*).*$")


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series of an engine's page."""
    own = _FAMILY.fullmatch(family)
    if own is None:
        return _of_the_server(series)
    # The production-stack router re-uses vLLM's names for what it sees of its servers.
    if (series.label("server") and not series.label("engine")) or own.group(1).endswith("_created"):
        return None
    # Without a TYPE line (federation) the name is all there is.
    base = own.group(1) if kind in ("histogram", "summary") else own.group(1).removesuffix("_total")
    if base == "cache_config_info":
        return Said(tuple(_cache_config(series)))
    if base == "engine_sleep_state":
        # Levels 1 and 2 both mean "not awake"; either one at 1 is certain.
        awake = series.label("sleep_state") == "awake"
        return None if awake else Plan("generator_asleep", labels(series), fold="max")
    if kind == "histogram" and base in names.HISTOGRAMS:
        return _pages.bucket_of(names.HISTOGRAMS[base], series, family, labels(series))
    if kind != "histogram" and base in names.VALUES:
        # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
        doubled = base in names.COUNTERS and not series.name.endswith("_total")
        return _pages.value_of(names.VALUES[base], series, labels(series), int(doubled))
    return Unmapped(base)


def _of_the_server(series: Series) -> Plan | None:
    """Families of the HTTP server around the engine: a weight update as prime-rl drives it shows only there."""
    if series.name == "process_start_time_seconds":
        return Plan("generator_start_time_seconds", ())
    call = names.CALLS.get(series.label("handler"))
    if call is None or series.label("method") not in ("POST", ""):
        return None
    own = (("call", call),)
    if series.name == "http_requests_total" and series.label("status") == "2xx":
        return Plan("generator_control_requests_total", own)
    if series.name == "http_request_duration_seconds_sum":
        return Plan("generator_control_seconds_total", own)
    return None


def labels(series: Series) -> Labels:
    """The canonical labels: engine, and the replica where one page holds several processes."""
    kept = {"engine": engine} if (engine := series.label("engine")) else {}
    replica = next((value for name in names.REPLICA_LABELS if (value := series.label(name))), "")
    if replica:
        # A worker's address may be a URL with credentials; labels are shown.
        kept["replica"] = _ADDRESS.sub(r"\1", replica)
    return tuple(sorted(kept.items()))


def _cache_config(series: Series) -> Iterator[Sample]:
    capacity = _pages.number(series.label("kv_cache_size_tokens"))
    if capacity is None:
        blocks, size = _pages.number(series.label("num_gpu_blocks")), _pages.number(series.label("block_size"))
        capacity = blocks * size if blocks is not None and size is not None else None
    if capacity is not None:
        yield Sample("kv_cache_capacity_tokens", capacity, labels(series))
    limit = _pages.number(series.label("kv_cache_max_concurrency"))
    if limit is not None:
        yield Sample("kv_concurrency_limit", limit, labels(series))


def _proves(series: Series) -> bool:
    """Only an engine labels so: a router's own families prove nothing. A Ray page may lack the engine now and then."""
    if series.name.startswith("ray_"):
        return True
    own = _FAMILY.fullmatch(series.name)
    if own is None or (series.label("server") and not series.label("engine")):
        return False
    return bool(series.label("engine") or series.label("model_name")) or own.group(1) == "cache_config_info"


WORDS = Vocabulary(
    name="vllm",
    decide=decide,
    proves=_proves,
    stranger="a metrics page without an engine's vllm: series "
    "(--disable-log-stats, or a router: give the engines' URLs)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `_pages.read`."""
    return _pages.read(body, state, limits, WORDS)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page: at the client's base URL when that names one (`.../engine_metrics`), else at /metrics under it.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return await _pages.parsed(parse, await _pages.fetch(client, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Is it a vLLM engine's page (not that of a router borrowing the names)?"""
    return _PAGE.search(body) is not None


COLLECTOR = Collector(
    name="vllm",
    actor="generator",
    reads="vLLM engines over their /metrics page",
    versions="0.8 to 0.33 by source, 0.32.0 by recorded pages",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
)
