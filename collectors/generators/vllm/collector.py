"""vLLM's own /metrics page: load, KV cache, requests, latencies, sleep, weight updates.

Reads names of 0.8 to 0.33 (tables below: newest name first), plain, behind Ray (`ray_vllm_...`) and with `_` for
`:` (sgl-router, Prometheus 2), data-parallel engines under the label ``engine``. Series of the production-stack
router, which re-uses vLLM's names, are dropped: they count the engines' requests a second time.

Whether generation is paused and which weights are served no family says: the one is worked out of the calls that the
HTTP server counts, both are asked beside the page where the server has the routes (dev mode).

Does not know: pauses from Python without these routes (gauges freeze), what a request was for (train, eval, judge).
`generator_asleep` 0 is no proof: verl before 0.9 sleeps past the gauge. Request histograms and finish counters move
only when a request finishes.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx

from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages import paused, side_requests
from collectors.engine_pages.pages import Decision, LabelFact, PagePlan, Unmapped, Vocabulary
from collectors.engine_pages.side_requests import Question, SideAnswer
from collectors.formats.exposition.parser import Series
from collectors.generators.vllm import names
from collectors.model import Collector, Labels, Limits, Reading, Sample, State
from collectors.transport import rest

_FAMILY = re.compile(r"(?:ray_)?vllm[:_](.+)")
_PAGE = re.compile(
    rb"^(?:ray_)?vllm[:_](?:num_requests_(?:running|waiting)|generation_tokens(?:_total)?|cache_config_info)"
    rb"\{(?![^}\n]*\b(?:server|dynamo_component)=)",
    re.MULTILINE,
)


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series of an engine's page."""
    own = _FAMILY.fullmatch(family)
    if own is None:
        return _of_the_server(series)
    # The production-stack router re-uses vLLM's names for what it sees of its servers.
    if (series.label("server") and not series.label("engine")) or own.group(1).endswith("_created"):
        return None
    base = own.group(1)
    if part := engine_pages_pages.untyped_part(base, kind, names.HISTOGRAMS):
        base, family, kind = base.removesuffix(part), family.removesuffix(part), "histogram"
    if kind == "histogram":
        take = names.HISTOGRAMS.get(base)
        return (
            engine_pages_pages.bucket_of(take, series, family, labels(series)) if take is not None else Unmapped(base)
        )
    return _value(series, base if kind == "summary" else base.removesuffix("_total"))


def _value(series: Series, base: str) -> Decision:
    if base == "cache_config_info":
        return LabelFact(tuple(_cache_config(series)))
    if base == "engine_sleep_state":
        # Levels 1 and 2 both mean "not awake"; either one at 1 is certain.
        awake = series.label("sleep_state") == "awake"
        return None if awake else PagePlan("generator_asleep", labels(series), fold="max")
    if base in names.VALUES:
        # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
        doubled = base in names.COUNTERS and not series.name.endswith("_total")
        return engine_pages_pages.value_of(names.VALUES[base], series, labels(series), int(doubled))
    return Unmapped(base)


def _of_the_server(series: Series) -> PagePlan | None:
    """Families of the HTTP server around the engine: a weight update as prime-rl drives it shows only there.

    Our own questions (`SIDE`) are counted there too, as GET; only what was posted changed anything.
    """
    if series.name == "process_start_time_seconds":
        return PagePlan("generator_start_time_seconds", engine_pages_pages.replica_of(series))
    call = names.CALLS.get(series.label("handler"))
    if call is None or series.label("method") not in ("POST", ""):
        return None
    own = (("call", call), *engine_pages_pages.replica_of(series))
    if series.name == "http_requests_total" and series.label("status") == "2xx":
        return PagePlan("generator_control_requests_total", own, fold="sum")
    if series.name == "http_request_duration_seconds_sum":
        return PagePlan("generator_control_seconds_total", own, fold="sum")
    return None


def labels(series: Series) -> Labels:
    """The canonical labels: engine, and the replica where one page holds several processes."""
    engine = series.label("engine")
    return ((("engine", engine),) if engine else ()) + engine_pages_pages.replica_of(series)


def _cache_config(series: Series) -> Iterator[Sample]:
    """`cache_config_info`: 1, with the configuration in its labels.

    Blocks times their size is right only without hybrid cache groups: the engine's own word (0.29 on) comes first.
    """
    capacity = engine_pages_pages.number(series.label("kv_cache_size_tokens"))
    if capacity is None:
        # The label of the blocks is not changed by an override (prime-rl saw it 4 times off).
        blocks = engine_pages_pages.number(series.label("num_gpu_blocks_override")) or engine_pages_pages.number(
            series.label("num_gpu_blocks")
        )
        size = engine_pages_pages.number(series.label("block_size"))
        # As the engine counts them itself, the null block included: 8192 blocks of 128: 1048576 (0.32.0).
        capacity = blocks * size if blocks and size else None
    if capacity is not None:
        yield Sample("kv_cache_capacity_tokens", capacity, labels(series))
    limit = engine_pages_pages.number(series.label("kv_cache_max_concurrency"))
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
    """One page; see `pages.read`. `generator_paused` is worked out of the calls that the HTTP server counts."""
    return paused.judged(engine_pages_pages.read(body, state, limits, WORDS), state)


def _is_paused(answer: Any) -> SideAnswer:
    found = answer.get("is_paused") if isinstance(answer, dict) else None
    return SideAnswer((Sample(paused.METRIC, float(found)),) if isinstance(found, bool) else ())


def _request_limit(answer: Any) -> SideAnswer:
    """Most sequences that each engine runs at once: ``vllm_config.scheduler_config.max_num_seqs``."""
    for key in ("vllm_config", "scheduler_config", "max_num_seqs"):
        answer = answer.get(key) if isinstance(answer, dict) else None
    limit = rest.number(answer)
    return SideAnswer((Sample("generator_request_limit", limit),) if limit else ())


# Three only with VLLM_SERVER_DEV_MODE=1; /v1/models with the key that the target has, if any. /server_info looks
# around on its machine when it is first asked, for seconds: it must not hold up the others.
SIDE = (
    Question(("/is_paused",), side_requests.OFTEN_SECONDS, _is_paused, holds=False),
    Question(("/weight_info",), side_requests.OFTEN_SECONDS, side_requests.weights),  # 0.29 on
    Question(("/v1/models",), side_requests.SELDOM_SECONDS, side_requests.sequence_limit),
    Question(("/version",), side_requests.SELDOM_SECONDS, side_requests.version("vLLM")),
    Question(("/server_info?config_format=json",), side_requests.SELDOM_SECONDS, _request_limit),
)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page: at the client's base URL when that names one (`.../engine_metrics`), else at /metrics under it.

    Beside it, every 15 s at most: is generation paused, and which weights are served.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    page = await engine_pages_pages.parsed(parse, await engine_pages_pages.fetch(client, limits), state, limits)
    return paused.joined(page, await side_requests.ask(client, state, limits, SIDE), state)


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
    version_path="/version",
)
