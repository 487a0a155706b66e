"""vLLM's own /metrics page: load, KV cache, requests, latencies, sleep, weight updates.

Reads names of 0.8 to 0.33 (tables below: newest name first), plain, behind Ray (`ray_vllm_...`) and with `_` for
`:` (sgl-router, Prometheus 2), data-parallel engines under the label ``engine``. Series of the production-stack
router, which re-uses vLLM's names, are dropped: they count the engines' requests a second time.

Does not know: whether generation is paused (`/pause` leaves no trace on the page, gauges freeze), which policy
version is loaded (no metric), what a request was for (train, eval, judge). `generator_asleep` 0 is no proof: verl
before 0.9 sleeps past the gauge. Request histograms and finish counters move only when a request finishes.
"""

import asyncio
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from math import isfinite

import httpx

from collectors.generators import _vllm_names as names
from collectors.model import Collector, Histogram, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.readers import exposition, http
from collectors.readers.exposition import Page, Series

# A page this big takes long enough to parse (5 ms, measured) to be worth leaving the event loop for.
THREAD_BYTES = 512 << 10

_FAMILY = re.compile(r"(?:ray_)?vllm[:_](.+)")
_PAGE = re.compile(
    rb"^(?:ray_)?vllm[:_](?:num_requests_(?:running|waiting)|generation_tokens(?:_total)?|cache_config_info)"
    rb"\{(?![^}\n]*\bserver=)",
    re.MULTILINE,
)
_ADDRESS = re.compile(r"^[a-z]+://(?:[^/@]*@)?([^/]*).*$")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do with one series, decided once: where its value goes, and how new its name is (0 is newest)."""

    metric: str
    labels: Labels
    rank: int = 0
    part: str = ""  # of a histogram
    bound: float = 0.0


@dataclass(slots=True)
class _Plans:
    """Decisions per series of one target, good while the page's TYPE lines stay the same."""

    types: dict[str, str] = field(default_factory=dict)
    of: dict[Series, _Plan | None] = field(default_factory=dict)
    unmapped: dict[Series, str] = field(default_factory=dict)
    config: dict[Series, tuple[Sample, ...]] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page. Values as the page has them; counters and histograms since the engine's API process began.

    Raises:
        ScrapeError: as `exposition.parse`; ``garbage`` also for a page that was cut or is not a vLLM engine's.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    plans = _plans(page, state)
    samples: dict[tuple[str, Labels], tuple[int, float]] = {}
    grouper = exposition.Grouper()
    ranks: MutableMapping[tuple[str, Labels], int] = {}
    extra: list[Sample] = []
    for series, value in page.samples:
        plan = plans.of[series]
        if plan is None:
            extra += plans.config.get(series, ())
        elif plan.part:
            key = (plan.metric, plan.labels)
            # inter_token_latency and time_per_output_token are one thing under two names (0.10.2 to 0.11.2 emit
            # both): only the newest name's buckets may reach the histogram, or every token counts twice.
            if plan.rank <= ranks.get(key, plan.rank):
                if plan.rank < ranks.get(key, plan.rank):
                    grouper.drop(key)
                ranks[key] = plan.rank
                grouper.add(key, plan.part, plan.bound, value)
        elif isfinite(value):
            _offer(samples, plan, value)
    _refuse_strangers(page, plans)
    return Reading(
        samples=(*(Sample(metric, value, labels) for (metric, labels), (_, value) in samples.items()), *extra),
        histograms=tuple(
            Histogram(metric, edges, counts, total, labels)
            for (metric, labels), (edges, counts, total) in grouper.done()
        ),
        unmapped=_unmapped(page, plans),
        samples_scraped=len(page.samples),
    )


def _offer(samples: dict[tuple[str, Labels], tuple[int, float]], plan: _Plan, value: float) -> None:
    key = (plan.metric, plan.labels)
    held = samples.get(key)
    if held is None or plan.rank < held[0]:
        samples[key] = (plan.rank, value)
    elif plan.metric == "generator_asleep":
        samples[key] = (0, max(held[1], value))


def _plans(page: Page, state: State) -> _Plans:
    plans: _Plans = state.setdefault("vllm", _Plans())
    if plans.types != page.types or len(plans.of) > 2 * len(page.samples) + 1000:
        # Also forgets series that are gone, so that the plans stay as bounded as the key cache.
        plans = state["vllm"] = _Plans(types=page.types)
    for series, _ in page.samples:
        if series not in plans.of:
            plans.of[series] = _decide(series, page, plans)
    return plans


def _decide(series: Series, page: Page, plans: _Plans) -> _Plan | None:
    family, kind = page.family(series.name)
    own = _FAMILY.fullmatch(family)
    if own is None:
        return _of_the_server(series)
    if series.label("server") and not series.label("engine"):
        return None  # production-stack router
    if series.label("engine") or series.label("model_name") or own.group(1) == "cache_config_info":
        plans.families.add(family)  # only an engine labels so: a router's own families prove nothing
    if own.group(1).endswith("_created"):
        return None
    # Without a TYPE line (federation) the name is all there is.
    base = own.group(1) if kind in ("histogram", "summary") else own.group(1).removesuffix("_total")
    if base == "cache_config_info":
        plans.config[series] = tuple(_cache_config(series))
    elif kind == "histogram":
        return _histogram_plan(series, family, base, plans)
    elif base == "engine_sleep_state":
        return _sleep_plan(series)
    elif base in names.VALUES:
        metric, label, rank = names.VALUES[base]
        # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
        doubled = base in names.COUNTERS and not series.name.endswith("_total")
        return _Plan(metric, _labels(series, label), rank + doubled)
    else:
        plans.unmapped[series] = base
    return None


def _histogram_plan(series: Series, family: str, base: str, plans: _Plans) -> _Plan | None:
    if base not in names.HISTOGRAMS:
        plans.unmapped[series] = base
        return None
    metric, label, rank = names.HISTOGRAMS[base]
    part, bound, labels = exposition.split_bucket(series, family)
    if part not in ("bucket", "sum"):
        return None
    return _Plan(metric, _labels(Series(series.name, labels), label), rank, part, bound)


def _sleep_plan(series: Series) -> _Plan | None:
    # Levels 1 and 2 both mean "not awake"; either one at 1 is certain.
    if series.label("sleep_state") == "awake":
        return None
    return _Plan("generator_asleep", _labels(series, ""))


def _of_the_server(series: Series) -> _Plan | None:
    """Families of the HTTP server around the engine: a weight update as prime-rl drives it shows only there."""
    if series.name == "process_start_time_seconds":
        return _Plan("generator_start_time_seconds", ())
    call = names.CALLS.get(series.label("handler"))
    if call is None or series.label("method") not in ("POST", ""):
        return None
    labels = (("call", call),)
    if series.name == "http_requests_total" and series.label("status") == "2xx":
        return _Plan("generator_control_requests_total", labels)
    if series.name == "http_request_duration_seconds_sum":
        return _Plan("generator_control_seconds_total", labels)
    return None


def _labels(series: Series, split: str) -> Labels:
    """The canonical labels: engine, the replica where one page holds several processes, and one split."""
    kept = {}
    if engine := series.label("engine"):
        kept["engine"] = engine
    replica = next((value for name in names.REPLICA_LABELS if (value := series.label(name))), "")
    if replica:
        # A worker's address may be a URL with credentials; labels are shown.
        kept["replica"] = _ADDRESS.sub(r"\1", replica)
    if split:
        source, _, target = split.partition(">")
        kept[target or source] = series.label(source)
    return tuple(sorted(kept.items()))


def _cache_config(series: Series) -> Iterator[Sample]:
    labels = _labels(series, "")
    capacity = _number(series.label("kv_cache_size_tokens"))
    if capacity is None:
        blocks, size = _number(series.label("num_gpu_blocks")), _number(series.label("block_size"))
        capacity = blocks * size if blocks is not None and size is not None else None
    if capacity is not None:
        yield Sample("kv_cache_capacity_tokens", capacity, labels)
    limit = _number(series.label("kv_cache_max_concurrency"))
    if limit is not None:
        yield Sample("kv_concurrency_limit", limit, labels)


def _number(text: str) -> float | None:
    """A label's number; vLLM writes Python's None as text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _unmapped(page: Page, plans: _Plans) -> dict[str, int]:
    """Families of this page nobody maps, each once: a family of 200 buckets is one thing to add, not 200."""
    return dict.fromkeys(sorted({plans.unmapped[series] for series, _ in page.samples if series in plans.unmapped}), 1)


def _refuse_strangers(page: Page, plans: _Plans) -> None:
    if plans.families or any(series.name.startswith("ray_") for series, _ in page.samples):
        return  # a Ray agent's page may lack the engine's series now and then
    raise ScrapeError(
        "garbage",
        "a metrics page without an engine's vllm: series (--disable-log-stats, or a router: give the engines' URLs)",
    )


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET the page: at the client's base URL when that names one (`.../engine_metrics`), else at /metrics under it.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    path = client.base_url.path.rstrip("/")
    url: httpx.URL | str = client.base_url.copy_with(path=path) if path.endswith("metrics") else "/metrics"
    body = await http.get(client, url, limits)
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(parse, body, state, limits)
    return parse(body, state, limits)


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
