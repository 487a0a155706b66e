"""SGLang's /metrics page: load, KV cache, tokens, latencies, retractions, idle time, weight updates.

Reads names of 0.4 to 0.5.23 (tables in `names`), plain, behind Ray (`ray_sglang_...`) and with `_` for `:`
(sgl-router's `/engine_metrics`, Prometheus 2). Data-parallel ranks come under the label ``engine``. An engine without
`--enable-metrics` is read over `/v1/loads`, which has its load and KV cache, and no counters.

Does not know: why requests finished (only how many, and how many were aborted). Scheduler gauges are as old as 40
decode steps (`--decode-log-interval`), 30 s when idle. `live_sequence_tokens` is 0 until something was decoded.
"""

import re
from dataclasses import replace
from typing import Any

import httpx

from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages import paused, prefix_cache, side_requests
from collectors.engine_pages.pages import Decision, PagePlan, Unmapped, Vocabulary
from collectors.engine_pages.side_requests import Question, SideAnswer
from collectors.formats.exposition.parser import Series
from collectors.generators.sglang import names
from collectors.model import Collector, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http, rest

_FAMILY = re.compile(r"(?:ray_)?sglang[:_](.+)")
_PAGE = re.compile(
    rb"^(?:ray_)?sglang[:_](?:num_(?:running|queue|waiting|used)_\w+|token_usage|gen_throughput|cache_hit_rate"
    rb"|(?:prompt|generation|realtime)_tokens(?:_total)?|num_requests_total)\{(?![^}\n]*\bdynamo_component=)",
    re.MULTILINE,
)
_LOADS = "/v1/loads?format=prometheus"


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series of an engine's page."""
    own = _FAMILY.fullmatch(family)
    if own is None:
        return None
    base = own.group(1)
    # With priorities the total stands under "" and every priority adds a part of it.
    if base.endswith("_created") or base in names.USELESS or series.label("priority"):
        return None
    if part := engine_pages_pages.untyped_part(base, kind, names.HISTOGRAMS):
        base, family, kind = base.removesuffix(part), family.removesuffix(part), "histogram"
    if kind == "histogram":
        return _histogram(series, family, base)
    while base.endswith("_total"):  # Ray may add its own to theirs
        base = base.removesuffix("_total")
    if base == "cache_config_info":
        return _cache_config(series)
    if base.startswith("http_"):
        return _call(series, base)
    take = names.VALUES.get(base)
    if take is None:
        return Unmapped(base)
    # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
    doubled = base in names.COUNTERS and series.name.startswith("ray_") and not series.name.endswith("_total")
    plan = engine_pages_pages.value_of(take, series, labels(series), int(doubled))
    return _told_once(plan, series) if plan is not None else None


def _histogram(series: Series, family: str, base: str) -> Decision:
    take = names.HISTOGRAMS.get(base)
    if take is None:
        return Unmapped(base)
    plan = engine_pages_pages.bucket_of(take, series, family, labels(series))
    return replace(plan, copy=_copy(series)) if plan is not None else None


def _told_once(plan: PagePlan, series: Series) -> PagePlan:
    """Of the ranks of one model one is taken. The tokenizer's names, without a dp_rank, yield to the schedulers'."""
    also = _told_once(plan.also, series) if plan.also is not None else None
    return replace(plan, copy=_copy(series), scope=engine_pages_pages.replica_of(series), also=also)


def _copy(series: Series) -> Labels:
    return tuple((name, series.label(name).rjust(6, "0")) for name in names.COPY_LABELS)


def _cache_config(series: Series) -> Decision:
    """0.5.9 only: pages and their size in labels."""
    pages, size = (
        engine_pages_pages.number(series.label("num_pages")),
        engine_pages_pages.number(series.label("page_size")),
    )
    if pages is None or size is None:
        return None
    plan = PagePlan("kv_cache_capacity_tokens", labels(series), rank=1, scale=pages * size)
    return _told_once(plan, series)


def _call(series: Series, base: str) -> Decision:
    """The HTTP server's counts by route (0.5.23): the only trace of pauses and weight updates."""
    call = names.CALLS.get(series.label("endpoint"))
    if call is None:
        return None
    own = (("call", call), *engine_pages_pages.replica_of(series))
    if base == "http_responses" and series.label("status_code") == "200":
        return PagePlan("generator_control_requests_total", own, fold="sum")
    if base == "http_requests_active":
        return PagePlan("generator_control_requests_active", own, fold="sum")
    return None


def labels(series: Series) -> Labels:
    """The canonical labels: the data-parallel rank as engine, and the replica where a page holds several processes."""
    rank = series.label("dp_rank")
    return ((("engine", rank),) if rank else ()) + engine_pages_pages.replica_of(series)


def _proves(series: Series) -> bool:
    # A Ray page may lack the engine now and then.
    return series.name.startswith("ray_") or _FAMILY.fullmatch(series.name) is not None


WORDS = Vocabulary(
    name="sglang",
    decide=decide,
    proves=_proves,
    stranger="a metrics page without sglang: series (a router's own? give the engines' URLs, or its /engine_metrics)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `pages.read`. `generator_paused` is worked out of the calls that the HTTP server counts."""
    return paused.judged(prefix_cache.counted_once(engine_pages_pages.read(body, state, limits, WORDS)), state)


def _configured(answer: Any) -> SideAnswer:
    """The cap on running requests of every data-parallel rank, and the version: only `/v1/loads` has them."""
    loads = answer.get("loads") if isinstance(answer, dict) else None
    rows = [row for row in loads if isinstance(row, dict)] if isinstance(loads, list) else []
    found = [(row, rest.number(row.get("max_running_requests"))) for row in rows]
    ranked = len(rows) > 1  # an engine without data parallelism has no dp_rank on its page
    samples = [
        Sample("generator_request_limit", limit, (("engine", str(row.get("dp_rank"))),) if ranked else ())
        for row, limit in found
        if limit is not None
    ]
    return SideAnswer(tuple(samples), side_requests.version("SGLang")(answer).events)


# Not /get_weight_version: gone in 0.5.23. The old name of /model_info logs a warning in newer engines, so it is last.
SIDE = (
    Question(("/model_info", "/get_model_info"), side_requests.OFTEN_SECONDS, side_requests.weights),
    Question(("/v1/loads",), side_requests.SELDOM_SECONDS, _configured),
)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page, or `/v1/loads` of an engine that has none. Beside it, every 15 s, the version of the weights.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    page = await engine_pages_pages.parsed(parse, await _page(client, limits), state, limits)
    # A page made of loads has them already.
    known = any(sample.metric == "generator_request_limit" for sample in page.samples)
    return side_requests.joined(page, await side_requests.ask(client, state, limits, SIDE[:1] if known else SIDE))


async def _page(client: httpx.AsyncClient, limits: Limits) -> bytes:
    try:
        return await engine_pages_pages.fetch(client, limits)
    except ScrapeError as error:
        if error.kind != "status" or "404" not in str(error) or client.base_url.path.rstrip("/").endswith("metrics"):
            raise
        return await _loads(client, limits, error)


async def _loads(client: httpx.AsyncClient, limits: Limits, first: ScrapeError) -> bytes:
    try:
        return await http.get(client, _LOADS, limits)
    except ScrapeError:
        raise ScrapeError("status", f"{first}: started without --enable-metrics?") from None


def matches_page(body: bytes) -> bool:
    """Is it an SGLang engine's page, or engines' pages merged by a router?"""
    return _PAGE.search(body) is not None


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Does an engine without a metrics page answer?"""
    try:
        return matches_page(await http.get(client, _LOADS, limits))
    except ScrapeError:
        return False


COLLECTOR = Collector(
    name="sglang",
    actor="generator",
    reads="SGLang engines over their /metrics page, a router's /engine_metrics, or /v1/loads",
    versions="0.4.3 to 0.5.23 by source, 0.5.23 by pages of its own collectors",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    matches_server=matches_server,
)
