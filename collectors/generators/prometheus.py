"""Reads engines from an existing Prometheus-compatible store: Prometheus, VictoriaMetrics, Mimir, Thanos.

The series of vLLM and SGLang are queried by PromQL (`queries`) and assembled to one page per engine, which the engines'
own collectors parse. The label ``replica`` is added: host and port, after the cluster's name if there is one. Values
have the time of their scrape, converted to our clock.

A store returns samples up to five minutes old. An engine is ignored if the store's `up` is 0 or missing, or if its last
sample is older than three scrape intervals (option ``scrape_seconds``, default 60). A failed scrape ends the series of
an engine at once. An engine that was read before and is down is reported as ``generator_up`` 0 until it answers again.
Each scrape is queried only once.

Not read: native histograms, and side requests of an engine (/is_paused, /weight_info).
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import httpx
from msgspec import structs

from collectors.engine_pages.pages import REPLICA_LABELS, MetricRule
from collectors.engine_pages.routers import address
from collectors.generators import sglang, vllm
from collectors.model import Collector, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import rest

# ---- queries
# Builds PromQL queries for the series that the engines' collectors read, and validates the user's selector.

# Labels of a scrape. Several scrapes of one engine (two jobs, a highly available pair) are never added up.
TARGET = ("cluster", "instance", "job")
# Labels of the Prometheus replica that scraped.
PAIR = ("prometheus", "prometheus_replica", "replica")

# Labels that the collectors use in code, in addition to those of their tables.
_KV_LABELS = (
    "kv_cache_size_tokens",
    "num_gpu_blocks",
    "num_gpu_blocks_override",
    "block_size",
    "kv_cache_max_concurrency",
)
_ENGINE_LABELS = ("model_name", "engine", "server", "sleep_state", "dp_rank", "priority", "num_pages", "page_size")
_HTTP_LABELS = ("endpoint", "status_code", "handler", "method", "status")

_STRING = r'"(?:[^"\\\n]|\\[abfnrtv\\"\'])*"'
_MATCHER = re.compile(rf"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*({_STRING})\s*", re.ASCII)
# Longest accepted selector.
SELECTOR_CHARACTERS = 500


def matchers(selector: str) -> str:
    """The matchers of a user's ``{name="value", ...}``, to be joined with our own; "" for none.

    Raises:
        ValueError: for anything but matchers: no function, comment or second selector is accepted.
    """
    text = selector.strip()
    if len(text) > SELECTOR_CHARACTERS:
        raise ValueError(f"longer than {SELECTOR_CHARACTERS} characters")
    if not text:
        return ""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError('must be matchers in braces, as {job="vllm"}')
    return ",".join(_each(text[1:-1]))


def _each(inside: str) -> Iterator[str]:
    at = 0
    while inside[at:].strip():
        match = _MATCHER.match(inside, at)
        if match is None or (match.end() < len(inside) and inside[match.end()] != ","):
            raise ValueError('must be matchers in braces, as {job="vllm"}: label, one of = != =~ !~, text in ""')
        if match.group(1) == "__name__":
            raise ValueError("__name__ is the collector's own")
        yield "".join(match.groups())
        at = match.end() + 1


def _labels(tables: Iterable[Mapping[str, MetricRule]]) -> Iterator[str]:
    """Labels that rows of the tables split by or require."""
    for table in tables:
        for row in table.values():
            rule: MetricRule | None = row
            while rule is not None:
                yield from (name for name in (rule.split.partition(">")[0], *dict(rule.only)) if name)
                rule = rule.also


SUM_LABELS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *_ENGINE_LABELS,
            *_KV_LABELS,
            *_HTTP_LABELS,
            *sglang.COPY_LABELS,
            *(name for name in REPLICA_LABELS if name != "replica"),
            *_labels((vllm.VALUES, sglang.VALUES, vllm.HISTOGRAMS, sglang.HISTOGRAMS)),
        )
    )
)
"""Labels that the engines' collectors use."""

_VALUES = {
    "vllm": ("cache_config_info", "engine_sleep_state", *vllm.VALUES),
    "sglang": ("cache_config_info", "http_responses", "http_requests_active", *sglang.VALUES),
}
# Series on every page of an engine. Behind Ray a gauge is on every second page, a counter after its first increase.
_ALWAYS = {
    "vllm": ("num_requests_running", "generation_tokens_total"),
    "sglang": ("num_running_reqs", "realtime_tokens_total", "generation_tokens_total"),
}
_HISTOGRAMS = {"vllm": tuple(vllm.HISTOGRAMS), "sglang": tuple(sglang.HISTOGRAMS)}


def _select(names: str, inside: str) -> str:
    return f'{{__name__=~"{names}"{"," if inside else ""}{inside}}}'


def seen_by_query(inside: str) -> str:
    """Time of the last scrape of each engine: one row per scrape, in epoch seconds of the store's clock."""
    # timestamp() drops the name, so a query for several names at once could return several series with equal labels.
    forms = ("{engine}:{name}", "{engine}_{name}", "ray_{engine}_{name}")
    every = [(form, engine, name) for form in forms for engine, names in _ALWAYS.items() for name in names]
    return " or ".join(_last(form.format(engine=engine, name=name), inside) for form, engine, name in every)


def _last(name: str, inside: str) -> str:
    # Behind Ray `replica` identifies an engine of the page; elsewhere it is a replica of the Prometheus that scraped.
    by = (*TARGET, *(PAIR[:-1] if name.startswith("ray_") else PAIR))
    selector = f'__name__="{name}"' + (f",{inside}" if inside else "")
    return f"max by ({', '.join(by)}) (timestamp({{{selector}}}))"


def up_by_query(inside: str) -> str:
    """Did the last scrape of each target succeed, for at least one Prometheus of a pair?"""
    return f"max by ({', '.join(TARGET)}) (up{{{inside}}})"


def values(inside: str) -> str:
    """Gauges and counters."""
    each = "|".join(f"{engine}[:_](?:{'|'.join(names)})" for engine, names in _VALUES.items())
    return _sum((), _select(f"(?:ray_)?(?:{each})(?:_total)*", inside))


def histograms_by_query(inside: str) -> str:
    """Buckets and sums; a histogram's count is its last bucket."""
    each = "|".join(f"{engine}[:_](?:{'|'.join(names)})" for engine, names in _HISTOGRAMS.items())
    return _sum(("le",), _select(f"(?:ray_)?(?:{each})_(?:bucket|sum)", inside))


def servers(inside: str) -> str:
    """Counters of the HTTP server around an engine (pauses, resumes, weight updates), and its start time."""
    handlers = "|".join(vllm.CALLS)
    selector = f'handler=~"{handlers}",method="POST"' + (f",{inside}" if inside else "")
    counted = _sum((), _select("http_requests_total|http_request_duration_seconds_sum", selector))
    return f"{counted} or {_sum((), _select('process_start_time_seconds', inside))}"


def _sum(more: tuple[str, ...], selected: str) -> str:
    return f"sum by ({', '.join(('__name__', *TARGET, *PAIR, *SUM_LABELS, *more))}) ({selected})"


# ---- silent
# Classifies engines without current series in a Prometheus store: down, removed, or without engine metrics.

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


OPTIONS = ("selector", "tenant", "scrape_seconds")
# Prometheus' default scrape interval.
SCRAPE_SECONDS = 60.0
# Age in scrape intervals from which an engine is considered gone.
MAX_AGE_SCRAPES = 3
# Answers with more rows are parsed in a thread, because they would block the event loop (8 us a row, 28 us for a new
# series, measured).
THREAD_ROWS = 5_000
# Most gaps of one poll, and the longest text from the store in one.
MAX_GAPS = 5
GAP_CHARACTERS = 120

_ENGINE = re.compile(r"(?:ray_)?(vllm|sglang)[:_]")
_TENANT = re.compile(r"[\w!.*'()|-]{1,150}", re.ASCII)
_PARTS = ("_bucket", "_sum")


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: str

    @property
    def scrape(self) -> Scrape:
        ray = self.labels.get("__name__", "").startswith("ray_")
        pair = PAIR[:-1] if ray else PAIR
        return (*_label_values(self.labels, (*TARGET, *pair)), *([""] if ray else []))


@dataclass(slots=True)
class _Engine:
    """State of one engine: time of the last reading, states of its collectors, and whether it was down."""

    ts: float = float("-inf")
    down: bool = False
    states: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(slots=True)
class _Session:
    """One poll: the client, the time left, and the gaps so far.

    Attributes:
        inside: matchers of the user's selector.
        at: evaluation time of the first query, used for all others.
    """

    client: httpx.AsyncClient
    limits: Limits
    user_matchers: str
    deadline: float
    at: float | None = None
    gaps: list[str] = field(default_factory=list)
    rows: int = 0

    def add_gap(self, text: str) -> None:
        if text not in self.gaps and len(self.gaps) < MAX_GAPS:
            self.gaps.append(text)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads each engine that was scraped since the last poll. Gaps: missing engines, and the store's warnings.

    Raises:
        ScrapeError: as `rest.form_json`; ``missing`` for an invalid option or a store without series of engines;
            ``garbage`` for an answer that is not Prometheus'.
    """
    options: Mapping[str, str] = state.get("options") or {}
    user_matchers, bound = _selected(options), MAX_AGE_SCRAPES * scrape_seconds(options)
    if tenant := _tenant(options):
        client.headers["X-Scope-OrgID"] = tenant
    session = _Session(client, limits, user_matchers, time.monotonic() + limits.timeout_seconds)
    engines: dict[Target, _Engine] = state.setdefault("prometheus", {})
    seen = await _last_scrapes(session, engines)
    up = await _up(session)
    alive = _alive(session, seen, up, bound)
    down = _down_engines(session, seen, up, engines)
    _forget(engines, {*alive, *down}, session, bound)
    new_scrapes = {
        target: newest_scrape
        for target, newest_scrape in alive.items()
        if newest_scrape[1] > engines.setdefault(target, _Engine()).ts
    }
    rows = await _rows(session) if new_scrapes else []
    session.rows += len(rows)
    now = float(state.get("now", session.at or 0.0))
    if len(rows) > THREAD_ROWS:
        reading = await asyncio.to_thread(_read, session, rows, new_scrapes, engines, now)
    else:
        reading = _read(session, rows, new_scrapes, engines, now)
    return structs.replace(
        reading, samples=(*reading.samples, *_ups(engines, alive.keys(), down, session.at or now, now))
    )


def _ups(
    engines: Mapping[Target, _Engine], alive: Collection[Target], down: Collection[Target], at: float, now: float
) -> Iterator[Sample]:
    """`generator_up` of engines that are down (0), and once of engines that answer again (1)."""
    for target, engine in engines.items():
        if target in down or (engine.down and target in alive):
            when = now if target in down else now - max(0.0, at - engine.ts)
            yield Sample("generator_up", float(target not in down), (("replica", _name(target)),), when)
        engine.down = target in down


def _forget(engines: dict[Target, _Engine], alive: Collection[Target], session: _Session, bound: float) -> None:
    """Drops the state of engines that are gone for long. The state of an engine that comes back soon is still valid."""
    assert session.at is not None
    for target in [key for key, engine in engines.items() if key not in alive and session.at - engine.ts > 10 * bound]:
        del engines[target]


# ---- options


def _selected(options: Mapping[str, str]) -> str:
    try:
        return matchers(options.get("selector", ""))
    except ValueError as error:
        raise ScrapeError("missing", f"option selector: {error}") from None


def _tenant(options: Mapping[str, str]) -> str:
    tenant = options.get("tenant", "")
    if tenant and not _TENANT.fullmatch(tenant):
        raise ScrapeError("missing", "option tenant must be a tenant's name (150 letters, digits, !-_.*'()| at most)")
    return tenant


def scrape_seconds(options: Mapping[str, str]) -> float:
    """How often the store scrapes, as configured.

    Raises:
        ScrapeError: ``missing`` if it is not a number from 1 to 3600.
    """
    text = options.get("scrape_seconds", "")
    seconds = rest.number(text) if text else SCRAPE_SECONDS
    if seconds is None or not 1 <= seconds <= 3600:
        raise ScrapeError("missing", "option scrape_seconds must be a number from 1 to 3600")
    return seconds


def configured(options: Mapping[str, str]) -> Collector:
    """The collector of one target: its gauges hold as long as the store's scrape interval requires."""
    try:
        return replace(COLLECTOR, report_seconds=scrape_seconds(options), configured=None)
    except ScrapeError:
        return COLLECTOR  # the poll reports the error


# ---- queries


async def _query(session: _Session, query: str) -> list[QueryRow]:
    """Sends an instant query, evaluated at the time of the poll's first query."""
    left = max(0.1, session.deadline - time.monotonic())
    form = {"query": query, "timeout": f"{left:.3f}"} | ({} if session.at is None else {"time": f"{session.at:.3f}"})
    answer = await rest.form_json(session.client, "/api/v1/query", form, replace(session.limits, timeout_seconds=left))
    vector = _vector(answer.json)
    for warning in _texts(answer.json.get("warnings")):
        session.add_gap(f"the store warns: {warning}")
    if len(vector) > session.limits.samples:
        raise ScrapeError("too_large", f"more than {session.limits.samples} series: narrow option selector")
    rows = [row for element in vector if (row := _row(element)) is not None]
    if len(rows) < len(vector):
        session.add_gap("native histograms are not read")
    if session.at is None and rows:
        session.at = rest.number(vector[0]["value"][0])
    return rows


def _vector(answer: Any) -> Sequence[Any]:
    """The elements of an answer's vector.

    Raises:
        ScrapeError: ``status`` with the store's message for an error with HTTP 200; ``garbage``.
    """
    body = answer if isinstance(answer, dict) else {}
    if body.get("status") == "error":
        raise ScrapeError("status", f"the store refused: {rest.clean(body.get('error'), GAP_CHARACTERS)}")
    data = body.get("data")
    result = data.get("result") if isinstance(data, dict) and data.get("resultType") == "vector" else None
    if body.get("status") != "success" or not isinstance(result, list):
        raise ScrapeError("garbage", "the answer is not that of a Prometheus query")
    return result


def _row(element: Any) -> QueryRow | None:
    labels, value = (element.get("metric"), element.get("value")) if isinstance(element, dict) else (None, None)
    if not isinstance(labels, dict) or not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        return None
    return QueryRow(labels, value[1]) if all(isinstance(text, str) for text in labels.values()) else None


def _texts(warnings: Any) -> Iterator[str]:
    for text in warnings[:MAX_GAPS] if isinstance(warnings, list) else ():
        yield rest.clean(text, GAP_CHARACTERS)


async def _last_scrapes(session: _Session, engines: Mapping[Target, _Engine]) -> Mapping[Scrape, float]:
    """Time of the last scrape of each engine, by the store's clock."""
    rows = await _query(session, seen_by_query(session.user_matchers))
    times = {row.scrape: when for row in rows if (when := rest.number(row.value)) is not None}
    if not times or session.at is None:
        before = f"; {len(engines)} engines were read before, {_name(min(engines))} first" if engines else ""
        raise ScrapeError(
            "missing", f"the store has no series of vLLM or SGLang now (option selector, tenant?){before}"
        )
    return times


async def _up(session: _Session) -> Mapping[Scrape, bool]:
    rows = await _optional(session, "up", up_by_query(session.user_matchers))
    return {_label_values(row.labels, TARGET): rest.number(row.value) != 0 for row in rows}


async def _optional(session: _Session, query_name: str, query: str) -> list[QueryRow]:
    """Sends a query of which a failure is only a gap."""
    try:
        return await _query(session, query)
    except ScrapeError as error:
        session.add_gap(f"{query_name}: {error}")
        return []


async def _rows(session: _Session) -> list[QueryRow]:
    rows = await _query(session, values(session.user_matchers))
    rows += await _optional(session, "servers", servers(session.user_matchers))
    return rows + await _optional(session, "histograms", histograms_by_query(session.user_matchers))


# ---- which engines are present


def _alive(
    session: _Session, seen: Mapping[Scrape, float], up: Mapping[Scrape, bool], bound: float
) -> dict[Target, tuple[Scrape, float]]:
    """The newest scrape of each engine that is up."""
    assert session.at is not None
    jobs = {job for *_, job in up}
    alive: dict[Target, tuple[Scrape, float]] = {}
    lost: dict[str, set[Target]] = defaultdict(set)
    # Scrapes of the same age are sorted by labels, so that the same one of a pair is used each time.
    for scrape, when in sorted(seen.items(), key=lambda item: (-item[1], item[0])):
        target, scraped = (scrape[0], scrape[1]), scrape[: len(TARGET)]
        # A job without any `up` is pushed, not scraped by this store: only the age of its samples counts.
        if not up.get(scraped, scraped[-1] not in jobs):
            lost["down or no longer a target, by the store's `up`"].add(target)
        elif session.at - when > bound:
            lost[f"without a sample for more than {bound:g} s"].add(target)
        else:
            alive.setdefault(target, (scrape, when))
    for reason, targets in lost.items():
        if missing := sorted(targets - alive.keys()):
            session.add_gap(
                f"{len(missing)} of {len({key[:2] for key in seen})} engines {reason} ({_name(missing[0])})"
            )
    return alive


def _down_engines(
    session: _Session, seen: Mapping[Scrape, float], up: Mapping[Scrape, bool], engines: Mapping[Target, _Engine]
) -> set[Target]:
    """Returns engines that were read before and are down. All engines without current series become gaps."""
    reasons = silent(seen, up, {target: engine.ts for target, engine in engines.items()}, session.at or 0.0)
    for reason, targets in reasons.items():
        if targets:
            count = len({key[:2] for key in seen} | engines.keys())
            text = f"{len(targets)} {reason}" if reason == OTHERS else f"{len(targets)} of {count} engines {reason}"
            session.add_gap(f"{text} ({_name(min(targets))})")
    return reasons[DOWN]


def _label_values(labels: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in names)


def _name(target: Target) -> str:
    """An engine's name, without credentials if the instance is a URL."""
    cluster, instance = target
    return rest.text("/".join(filter(None, (cluster, address(instance)))), 200)


# ---- reading


def _read(
    session: _Session,
    rows: Sequence[QueryRow],
    new_scrapes: Mapping[Target, tuple[Scrape, float]],
    engines: Mapping[Target, _Engine],
    now: float,
) -> Reading:
    """Parses the pages of engines with a new scrape, each with the engine's collector and the time of its scrape."""
    assert session.at is not None
    pages = _pages(rows, {scrape: target for target, (scrape, _) in new_scrapes.items()})
    readings: list[Reading] = []
    for (target, engine), lines in pages.items():
        when = now - max(0.0, session.at - new_scrapes[target][1])
        parse = vllm.parse if engine == "vllm" else sglang.parse
        try:
            page = parse("".join(lines).encode(), engines[target].states[engine], session.limits)
        except ScrapeError as error:
            session.add_gap(f"{_name(target)}: {error}")
        else:
            readings.append(_labelled(page, _name(target), when))
            engines[target].ts = new_scrapes[target][1]
    return Reading(
        samples=tuple(sample for page in readings for sample in page.samples),
        histograms=tuple(histogram for page in readings for histogram in page.histograms),
        samples_scraped=session.rows,
        gaps=tuple(session.gaps),
    )


def _pages(rows: Iterable[QueryRow], targets: Mapping[Scrape, Target]) -> dict[tuple[Target, str], list[str]]:
    """Rows as exposition text, by engine and kind of engine."""
    pages: dict[tuple[Target, str], list[str]] = defaultdict(list)
    families: set[tuple[tuple[Target, str], str]] = set()
    for row in rows:
        target = targets.get(row.scrape)
        name = row.labels.get("__name__", "")
        if target is None or not name:
            continue
        match = _ENGINE.match(name)
        page = (target, match.group(1) if match else "vllm")
        family = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")
        if match and family and (page, family) not in families:
            families.add((page, family))
            pages[page].append(f"# TYPE {family} histogram\n")
        pages[page].append(_line(name, row))
    # Rows of another service that matches the selector, without an engine's series, are no page.
    return {page: lines for page, lines in pages.items() if any(map(_ENGINE.match, lines))}


def _line(name: str, row: QueryRow) -> str:
    dropped = {"__name__", *TARGET, *(PAIR[:-1] if name.startswith("ray_") else PAIR)}
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in row.labels.items() if label not in dropped)
    return f"{name}{{{inside}}} {row.value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labelled(page: Reading, name: str, when: float) -> Reading:
    """A page's reading with the engine's name and time. Replicas of a Ray page stay distinct."""

    def labels(base_labels: Labels) -> Labels:
        replica = "/".join(filter(None, (name, dict(base_labels).get("replica", ""))))
        return tuple(sorted({**dict(base_labels), **({"replica": replica} if replica else {})}.items()))

    samples = tuple(
        Sample(sample.metric, sample.value, labels(sample.labels), when)
        for sample in page.samples
        if isfinite(sample.value)
    )
    histograms = tuple(
        structs.replace(histogram, labels=labels(histogram.labels), ts=when) for histogram in page.histograms
    )
    return structs.replace(page, samples=samples, histograms=histograms)


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Does a server answer to PromQL?"""
    try:
        _vector((await rest.get_json(client, "/api/v1/query", {"query": "vector(1)"}, limits)).json)
    except ScrapeError:
        return False
    return True


COLLECTOR = Collector(
    name="prometheus",
    actor="generator",
    reads="vLLM and SGLang engines from an existing Prometheus, VictoriaMetrics, Mimir or Thanos, by PromQL",
    versions="a running Prometheus 2.42; VictoriaMetrics, Mimir and Thanos by documentation",
    poll=poll,
    matches_server=matches_server,
    report_seconds=SCRAPE_SECONDS,
    options=OPTIONS,
    configured=configured,
    merges_servers=True,
)
