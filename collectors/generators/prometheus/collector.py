"""Engines as an existing Prometheus-compatible store has them: Prometheus, VictoriaMetrics, Mimir, Thanos.

vLLM's and SGLang's series are asked for by PromQL (`queries`: sums keep the labels that matter), put together to a page
per engine, and read by those engines' own collectors: what is told is what they would tell, with the label ``replica``
(host and port, behind the cluster's name where there is one). Values carry the time of the scrape behind them, by our
clock.

A store answers for five minutes with what it last heard. An engine is left out when the store's `up` says that it does
not answer or no longer is a target, and when its last sample is older than three scrapes (option ``scrape_seconds``,
60 where nothing is said). A failed scrape ends an engine's series at once, so that `up` alone still tells of it: what
was read before and does not answer is told as ``generator_up`` 0 until it does. Nothing is asked twice for one scrape.

Does not know: native histograms; /is_paused, /weight_info and whatever else is asked of an engine itself.
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

from collectors.engine_pages.routers import address
from collectors.generators.prometheus import queries
from collectors.generators.prometheus.silent import DOWN, OTHERS, Place, Scrape, silent
from collectors.generators.sglang import collector as sglang
from collectors.generators.vllm import collector as vllm
from collectors.model import Collector, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import rest

OPTIONS = ("selector", "tenant", "scrape_seconds")
SCRAPE_SECONDS = 60.0  # Prometheus' own default
SCRAPES_KEPT = 3
# More would hold up the event loop (8 us a row, 28 at first sight, measured).
THREAD_ROWS = 5_000
GAPS_MOST, GAP_CHARACTERS = 5, 120

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
        pair = queries.PAIR[:-1] if ray else queries.PAIR
        return (*_of(self.labels, (*queries.TARGET, *pair)), *([""] if ray else []))


@dataclass(slots=True)
class _Engine:
    """What is remembered of one engine: when it was last read, its collectors' memories, and whether it was down."""

    ts: float = float("-inf")
    down: bool = False
    states: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(slots=True)
class _Asked:
    """One poll: what may still be asked, and what was said beside the answers."""

    client: httpx.AsyncClient
    limits: Limits
    inside: str
    deadline: float
    at: float | None = None
    gaps: list[str] = field(default_factory=list)
    rows: int = 0

    def tell(self, words: str) -> None:
        """Once, and not without end."""
        if words not in self.gaps and len(self.gaps) < GAPS_MOST:
            self.gaps.append(words)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Every engine that was scraped since the last poll. Its gaps: engines that are gone, and the store's warnings.

    Raises:
        ScrapeError: as `rest.form_json`; ``missing`` for an option that cannot be used and where the store has no
            engine's series; ``garbage`` for an answer that is not Prometheus'.
    """
    options: Mapping[str, str] = state.get("options") or {}
    inside, bound = _selected(options), SCRAPES_KEPT * scrape_seconds(options)
    if tenant := _tenant(options):
        client.headers["X-Scope-OrgID"] = tenant
    asked = _Asked(client, limits, inside, time.monotonic() + limits.timeout_seconds)
    engines: dict[Place, _Engine] = state.setdefault("prometheus", {})
    seen = await _seen(asked, engines)
    up = await _up(asked)
    alive = _alive(asked, seen, up, bound)
    down = _silent(asked, seen, up, engines)
    _forget(engines, {*alive, *down}, asked, bound)
    news = {place: one for place, one in alive.items() if one[1] > engines.setdefault(place, _Engine()).ts}
    rows = await _rows(asked) if news else []
    asked.rows += len(rows)
    now = float(state.get("now", asked.at or 0.0))
    if len(rows) > THREAD_ROWS:
        reading = await asyncio.to_thread(_read, asked, rows, news, engines, now)
    else:
        reading = _read(asked, rows, news, engines, now)
    return replace(reading, samples=(*reading.samples, *_ups(engines, alive.keys(), down, asked.at or now, now)))


def _ups(
    engines: Mapping[Place, _Engine], alive: Collection[Place], down: Collection[Place], at: float, now: float
) -> Iterator[Sample]:
    """Who does not answer, and once who does again: of all others their numbers say so."""
    for place, engine in engines.items():
        if place in down or (engine.down and place in alive):
            when = now if place in down else now - max(0.0, at - engine.ts)
            yield Sample("generator_up", float(place not in down), (("replica", _name(place)),), when)
        engine.down = place in down


def _forget(engines: dict[Place, _Engine], alive: Collection[Place], asked: _Asked, bound: float) -> None:
    """Of an engine that comes back soon what was remembered still holds."""
    assert asked.at is not None
    for place in [one for one, engine in engines.items() if one not in alive and asked.at - engine.ts > 10 * bound]:
        del engines[place]


# ---- options


def _selected(options: Mapping[str, str]) -> str:
    try:
        return queries.matchers(options.get("selector", ""))
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
        ScrapeError: ``missing`` when it is no number from 1 to 3600.
    """
    told = options.get("scrape_seconds", "")
    seconds = rest.number(told) if told else SCRAPE_SECONDS
    if seconds is None or not 1 <= seconds <= 3600:
        raise ScrapeError("missing", "option scrape_seconds must be a number from 1 to 3600")
    return seconds


def configured(options: Mapping[str, str]) -> Collector:
    """The collector of one target: its gauges are held as long as its store's interval asks for."""
    try:
        return replace(COLLECTOR, report_seconds=scrape_seconds(options), configured=None)
    except ScrapeError:
        return COLLECTOR  # the poll says so


# ---- asking


async def _query(asked: _Asked, query: str) -> list[QueryRow]:
    """One instant query, at the time of the first."""
    left = max(0.1, asked.deadline - time.monotonic())
    form = {"query": query, "timeout": f"{left:.3f}"} | ({} if asked.at is None else {"time": f"{asked.at:.3f}"})
    answer = await rest.form_json(asked.client, "/api/v1/query", form, replace(asked.limits, timeout_seconds=left))
    vector = _vector(answer.json)
    for warning in _texts(answer.json.get("warnings")):
        asked.tell(f"the store warns: {warning}")
    if len(vector) > asked.limits.samples:
        raise ScrapeError("too_large", f"more than {asked.limits.samples} series: narrow option selector")
    rows = [row for one in vector if (row := _row(one)) is not None]
    if len(rows) < len(vector):
        asked.tell("native histograms are not read")
    if asked.at is None and rows:
        asked.at = rest.number(vector[0]["value"][0])
    return rows


def _vector(answer: Any) -> Sequence[Any]:
    """The elements of an answer's vector.

    Raises:
        ScrapeError: ``status`` with the store's own words where an error came with HTTP 200, ``garbage``.
    """
    told = answer if isinstance(answer, dict) else {}
    if told.get("status") == "error":
        raise ScrapeError("status", f"the store refused: {rest.clean(told.get('error'), GAP_CHARACTERS)}")
    data = told.get("data")
    result = data.get("result") if isinstance(data, dict) and data.get("resultType") == "vector" else None
    if told.get("status") != "success" or not isinstance(result, list):
        raise ScrapeError("garbage", "the answer is not that of a Prometheus query")
    return result


def _row(one: Any) -> QueryRow | None:
    labels, value = (one.get("metric"), one.get("value")) if isinstance(one, dict) else (None, None)
    if not isinstance(labels, dict) or not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        return None
    return QueryRow(labels, value[1]) if all(isinstance(text, str) for text in labels.values()) else None


def _texts(found: Any) -> Iterator[str]:
    for text in found[:GAPS_MOST] if isinstance(found, list) else ():
        yield rest.clean(text, GAP_CHARACTERS)


async def _seen(asked: _Asked, engines: Mapping[Place, _Engine]) -> Mapping[Scrape, float]:
    """When each engine was last scraped, by the store's clock."""
    rows = await _query(asked, queries.seen(asked.inside))
    found = {row.scrape: when for row in rows if (when := rest.number(row.value)) is not None}
    if not found or asked.at is None:
        said = f"; {len(engines)} engines were read before, {_name(min(engines))} first" if engines else ""
        raise ScrapeError("missing", f"the store has no series of vLLM or SGLang now (option selector, tenant?){said}")
    return found


async def _up(asked: _Asked) -> Mapping[Scrape, bool]:
    rows = await _optional(asked, "up", queries.up(asked.inside))
    return {_of(row.labels, queries.TARGET): rest.number(row.value) != 0 for row in rows}


async def _optional(asked: _Asked, what: str, query: str) -> list[QueryRow]:
    """What may fail without taking the rest with it."""
    try:
        return await _query(asked, query)
    except ScrapeError as error:
        asked.tell(f"{what}: {error}")
        return []


async def _rows(asked: _Asked) -> list[QueryRow]:
    rows = await _query(asked, queries.values(asked.inside))
    rows += await _optional(asked, "servers", queries.servers(asked.inside))
    return rows + await _optional(asked, "histograms", queries.histograms(asked.inside))


# ---- who is there


def _alive(
    asked: _Asked, seen: Mapping[Scrape, float], up: Mapping[Scrape, bool], bound: float
) -> dict[Place, tuple[Scrape, float]]:
    """The newest scrape of each engine that is there."""
    assert asked.at is not None
    jobs = {job for *_, job in up}
    found: dict[Place, tuple[Scrape, float]] = {}
    lost: dict[str, set[Place]] = defaultdict(set)
    # The same one of a pair wherever both are equally new.
    for scrape, when in sorted(seen.items(), key=lambda one: (-one[1], one[0])):
        place, target = scrape[:2], scrape[: len(queries.TARGET)]
        # A job none of whose targets has an `up` is not scraped by this store (pushed): times are all there is.
        if not up.get(target, target[-1] not in jobs):
            lost["down or no target any more, by the store's up"].add((place[0], place[1]))
        elif asked.at - when > bound:
            lost[f"without a sample for more than {bound:g} s"].add((place[0], place[1]))
        else:
            found.setdefault((place[0], place[1]), (scrape, when))
    for why, places in lost.items():
        if missing := sorted(places - found.keys()):
            asked.tell(f"{len(missing)} of {len({one[:2] for one in seen})} engines {why} ({_name(missing[0])})")
    return found


def _silent(
    asked: _Asked, seen: Mapping[Scrape, float], up: Mapping[Scrape, bool], engines: Mapping[Place, _Engine]
) -> set[Place]:
    """Engines that were read and whose scrapes all fail; those and others of which nothing is seen are told of."""
    found = silent(seen, up, {place: one.ts for place, one in engines.items()}, asked.at or 0.0)
    for why, places in found.items():
        if places:
            count = len({one[:2] for one in seen} | engines.keys())
            of = f"{len(places)} {why}" if why == OTHERS else f"{len(places)} of {count} engines {why}"
            asked.tell(f"{of} ({_name(min(places))})")
    return found[DOWN]


def _of(labels: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in names)


def _name(place: Place) -> str:
    """An engine's name: never with credentials, should an instance be a URL."""
    cluster, instance = place
    return rest.text("/".join(filter(None, (cluster, address(instance)))), 200)


# ---- reading


def _read(
    asked: _Asked,
    rows: Sequence[QueryRow],
    news: Mapping[Place, tuple[Scrape, float]],
    engines: Mapping[Place, _Engine],
    now: float,
) -> Reading:
    """The pages of what was scraped since, each by its collectors and with its own time."""
    assert asked.at is not None
    pages = _pages(rows, {scrape: place for place, (scrape, _) in news.items()})
    found: list[Reading] = []
    for (place, engine), lines in pages.items():
        when = now - max(0.0, asked.at - news[place][1])
        parse = vllm.parse if engine == "vllm" else sglang.parse
        try:
            page = parse("".join(lines).encode(), engines[place].states[engine], asked.limits)
        except ScrapeError as error:
            asked.tell(f"{_name(place)}: {error}")
        else:
            found.append(_placed(page, _name(place), when))
            engines[place].ts = news[place][1]
    return Reading(
        samples=tuple(sample for page in found for sample in page.samples),
        histograms=tuple(histogram for page in found for histogram in page.histograms),
        samples_scraped=asked.rows,
        gaps=tuple(asked.gaps),
    )


def _pages(rows: Iterable[QueryRow], places: Mapping[Scrape, Place]) -> dict[tuple[Place, str], list[str]]:
    """Rows as exposition text, by engine and kind of engine."""
    pages: dict[tuple[Place, str], list[str]] = defaultdict(list)
    families: set[tuple[tuple[Place, str], str]] = set()
    for row in rows:
        place = places.get(row.scrape)
        name = row.labels.get("__name__", "")
        if place is None or not name:
            continue
        own = _ENGINE.match(name)
        page = (place, own.group(1) if own else "vllm")
        family = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")
        if own and family and (page, family) not in families:
            families.add((page, family))
            pages[page].append(f"# TYPE {family} histogram\n")
        pages[page].append(_line(name, row))
    # What was counted by some other service under the selector is nobody's page.
    return {page: lines for page, lines in pages.items() if any(map(_ENGINE.match, lines))}


def _line(name: str, row: QueryRow) -> str:
    dropped = {"__name__", *queries.TARGET, *(queries.PAIR[:-1] if name.startswith("ray_") else queries.PAIR)}
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in row.labels.items() if label not in dropped)
    return f"{name}{{{inside}}} {row.value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _placed(page: Reading, name: str, when: float) -> Reading:
    """A page's reading with the engine's name and time. Behind Ray a page's own replicas stay apart."""

    def labels(own: Labels) -> Labels:
        replica = "/".join(filter(None, (name, dict(own).get("replica", ""))))
        return tuple(sorted({**dict(own), **({"replica": replica} if replica else {})}.items()))

    samples = tuple(
        Sample(one.metric, one.value, labels(one.labels), when) for one in page.samples if isfinite(one.value)
    )
    histograms = tuple(replace(one, labels=labels(one.labels), ts=when) for one in page.histograms)
    return replace(page, samples=samples, histograms=histograms)


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
    versions="Prometheus 2.42 against a running one; the others' API by documentation",
    poll=poll,
    matches_server=matches_server,
    report_seconds=SCRAPE_SECONDS,
    options=OPTIONS,
    configured=configured,
    merges_servers=True,
)
