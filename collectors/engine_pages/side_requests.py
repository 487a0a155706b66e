"""Requests small JSON answers of an engine in addition to its metrics page, at a low rate.

A route that the server lacks (404, 405) or that requires a key (401, 403) is requested again after 10 minutes, without
a message. Any other failure is reported once, as a gap of the reading in which it occurred. Failures do not change the
values of the page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from msgspec import structs

from collectors.formats import weight_versions
from collectors.model import Event, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import rest

# For values that change in operation (pause, weight version): every third page at the usual 5 s.
OFTEN_SECONDS = 15.0
# For values that change only with a restart (version, sequence limit, missing routes).
SELDOM_SECONDS = 600.0
# Timeout for all answers of one poll together, because an engine with a blocked event loop would delay its page.
BUDGET_SECONDS = 1.0
# Largest answer that is read.
BODY_BYTES = 1 << 20
# HTTP statuses that mean: this server does not offer the route to us.
ABSENT = frozenset({400, 401, 403, 404, 405, 410, 501})
NOTHING = Reading()
# Limit for displayed names of weights and versions: enough for the last parts of a path.
NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class SideAnswer:
    """Samples and events from one answer. Events are reported once."""

    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class SideRequest:
    """One side request.

    Attributes:
        paths: routes with query in order of preference, newest name first.
        seconds: interval.
        read: converts the answer's JSON. Pure; an answer of an unexpected shape yields nothing.
        repeats: are the samples repeated until the next answer; else they are reported once.
    """

    paths: tuple[str, ...]
    seconds: float
    read: Callable[[Any], SideAnswer]
    repeats: bool = True


@dataclass(slots=True)
class _RequestState:
    """State of one side request: when it was sent, the last answer, the route that answered."""

    requested: float | None = None
    wait: float = 0.0
    answer: SideAnswer = field(default_factory=SideAnswer)
    path: str = ""
    failing: bool = False

    def due(self, now: float) -> bool:
        # A clock that went backwards (a replay) makes the request due.
        return self.requested is None or not 0 <= now - self.requested < self.wait


async def poll(client: httpx.AsyncClient, state: State, limits: Limits, requests: Iterable[SideRequest]) -> Reading:
    """Sends the requests that are due. Returns new answers and repeated samples of earlier ones. Never raises.

    ``state["now"]`` is the event time; without it each request is sent once.
    """
    now, states = float(state.get("now", 0.0)), state.setdefault("side", {})
    reading, failed, root = NOTHING, False, None
    for request in requests:
        request_state: _RequestState | None = states.get(request.paths[0])
        if request_state is None:
            request_state = states[request.paths[0]] = _RequestState()
        # After a failure the other requests wait for the next poll: they would probably fail, too.
        if not failed and request_state.due(now):
            # The URL is computed only here, because in two of three polls nothing is due.
            root = root or _root(client)
            if root is None:
                return NOTHING
            fresh = await _request(client, root, request, request_state, now, _bounds(limits))
            failed, reading = request_state.failing, joined_answers(reading, fresh)
        elif request.repeats and request_state.answer.samples:
            reading = joined_answers(reading, Reading(samples=request_state.answer.samples))
    return reading


def _bounds(limits: Limits) -> Limits:
    return replace(limits, body_bytes=BODY_BYTES, timeout_seconds=min(BUDGET_SECONDS, limits.timeout_seconds / 4.0))


def _root(client: httpx.AsyncClient) -> httpx.URL | None:
    """URL of the engine; None for a router's merged page, because the router would answer instead of the engines."""
    path = client.base_url.path.rstrip("/")
    if path.endswith("metrics") and not path.endswith("/metrics"):
        return None
    return client.base_url.copy_with(path=path.removesuffix("/metrics") + "/")


async def _request(
    client: httpx.AsyncClient,
    root: httpx.URL,
    request: SideRequest,
    request_state: _RequestState,
    now: float,
    limits: Limits,
) -> Reading:
    """Tries each route until one answers."""
    request_state.requested, request_state.wait = now, request.seconds
    reported, request_state.failing = request_state.failing, False
    try:
        async with rest.total_timeout(limits):
            for path in (request_state.path,) if request_state.path else request.paths:
                if (answer := await _answer(client, root, path, limits)) is not None:
                    request_state.answer, request_state.path = request.read(answer), path
                    return Reading(samples=request_state.answer.samples, events=request_state.answer.events)
    except ScrapeError as error:
        request_state.answer, request_state.failing = SideAnswer(), True
        return Reading(gaps=() if reported else (f"{request.paths[0].lstrip('/')}: {error}",))
    # An engine of another version may run behind the URL next time, so all routes are tried again.
    request_state.answer, request_state.path, request_state.wait = SideAnswer(), "", SELDOM_SECONDS
    return Reading()


async def _answer(client: httpx.AsyncClient, root: httpx.URL, path: str, limits: Limits) -> Any:
    """The JSON, or None if the server does not offer the route to us."""
    route, _, query = path.partition("?")
    url = root.copy_with(path=root.path.rstrip("/") + route)
    try:
        return (await rest.get_json(client, str(url), dict(httpx.QueryParams(query)), limits)).json
    except rest.Refusal as refusal:
        if refusal.status in ABSENT:
            return None
        raise


def joined_answers(page: Reading, side: Reading) -> Reading:
    """Combines the reading of the page and that of the side requests. If both have a value, the page's is newer."""
    if not (side.samples or side.events or side.gaps):
        return page
    present = {(sample.metric, sample.labels) for sample in page.samples}
    added = tuple(sample for sample in side.samples if (sample.metric, sample.labels) not in present)
    return structs.replace(
        page, samples=page.samples + added, events=page.events + side.events, gaps=page.gaps + side.gaps
    )


# ---- answers that several engines have in common


def weights(answer: Any) -> SideAnswer:
    """The version of the served weights: a number becomes a metric, another name an event, "default" nothing.

    ``{"weight_version": str}``: vLLM's /weight_info (0.29 on), SGLang's /model_info. "default" until one was set.
    """
    raw = answer.get("weight_version") if isinstance(answer, dict) else None
    version = rest.number(raw)
    if version is not None:
        return SideAnswer((Sample("generator_policy_version", version),))
    name = rest.clean(raw, NAME_CHARACTERS) if isinstance(raw, str) else ""
    if name in ("", "default"):
        return SideAnswer()
    # The name is the event's key, because every engine reports it and one event is enough.
    event = Event(
        "weights_published", f"served:{name}", detail=f"an engine serves weights {name}",
        version=weight_versions.number_of(name),
    )  # fmt: skip
    return SideAnswer(events=(event,))


def sequence_limit(answer: Any) -> SideAnswer:
    """The longest sequence in tokens: ``data[0].max_model_len`` of the OpenAI-compatible /v1/models."""
    data = answer.get("data") if isinstance(answer, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    limit = rest.number(first.get("max_model_len")) if isinstance(first, dict) else None
    return SideAnswer((Sample("generator_max_sequence_tokens", limit),) if limit is not None else ())


def version(system: str) -> Callable[[Any], SideAnswer]:
    """``{"version": str}`` as an event: one for a fleet with one version, two for a mixed fleet."""

    def read(answer: Any) -> SideAnswer:
        raw = answer.get("version") if isinstance(answer, dict) else None
        name = rest.clean(raw, NAME_CHARACTERS) if isinstance(raw, str) else ""
        key = f"engine:{system}:{name}"
        return SideAnswer(events=(Event("config_change", key, detail=f"an engine is {system} {name}"),) if name else ())

    return read


# ---- paused
# Derives whether generation is paused from the engine's HTTP counters: no engine has a metric for it.

METRIC = "generator_paused"
# Pages in a row with token progress that prove that generation runs. One page is not enough: it may still show tokens
# generated before the pause, or by the step that the pause let finish.
PROOF_PAGES = 2


@dataclass(frozen=True, slots=True)
class _Server:
    """State of one HTTP server at its last page.

    Attributes:
        balance: pauses minus resumes; None if neither was ever called.
        baseline: the balance at which generation runs.
        answer: the engine's last own answer.
        moves: pages in a row on which the tokens had increased and the balance had not changed.
    """

    pauses: float
    balance: float | None
    tokens: float
    baseline: float = 0.0
    answer: bool | None = None
    moves: int = 0


def with_paused(reading: Reading, state: State) -> Reading:
    """The reading with `generator_paused`, if the page or a valid earlier answer shows it."""
    previous: dict[Labels, _Server] = state.get("paused", {})
    servers = {labels: _updated(now, previous.get(labels)) for labels, now in _servers(reading)}
    state["paused"] = servers
    states = [(labels, _paused(server)) for labels, server in servers.items()]
    return _with(reading, {labels: paused for labels, paused in states if paused is not None})


def joined_pauses(page: Reading, side: Reading, state: State) -> Reading:
    """Combines a reading from `with_paused` and the reading of the side requests."""
    if side is NOTHING:
        return page
    answers = [bool(sample.value) for sample in side.samples if sample.metric == METRIC]
    rest = structs.replace(side, samples=tuple(sample for sample in side.samples if sample.metric != METRIC))
    return joined_answers(_answered(page, state, answers[0]) if answers else page, rest)


def _answered(reading: Reading, state: State, paused: bool) -> Reading:
    """Applies the server's own answer: valid until tokens prove otherwise, and the new baseline of the calls."""
    servers: dict[Labels, _Server] = state["paused"]
    server = servers[()]
    baseline = server.baseline if server.balance is None else server.balance - paused
    servers[()] = replace(server, baseline=baseline, answer=paused, moves=0)
    return _with(reading, {(): paused})


def _updated(now: _Server, before: _Server | None) -> _Server:
    if before is None or now.pauses < before.pauses or now.tokens < before.tokens:
        return now  # the first page, or another process
    moves = before.moves + 1 if now.tokens > before.tokens and now.balance == before.balance else 0
    if moves < PROOF_PAGES:
        return replace(now, baseline=before.baseline, answer=before.answer, moves=moves)
    answer = None if before.answer is None else False
    return replace(now, baseline=before.baseline if now.balance is None else now.balance, answer=answer, moves=moves)


def _paused(server: _Server) -> bool | None:
    return server.balance > server.baseline if server.balance is not None else server.answer


def _servers(reading: Reading) -> Iterator[tuple[Labels, _Server]]:
    """One entry per HTTP server on the page (a router's merged page holds several)."""
    calls: dict[Labels, dict[str, float]] = {(): {}}
    tokens: dict[Labels, float] = {}
    for sample in reading.samples:
        if sample.metric == "generator_control_requests_total":
            calls.setdefault(_replica(sample), {})[dict(sample.labels)["call"]] = sample.value
        elif sample.metric == "generator_tokens_total":
            tokens[_replica(sample)] = tokens.get(_replica(sample), 0.0) + sample.value
    for replica, counts in calls.items():
        pauses, resumes = counts.get("pause", 0.0), counts.get("resume", 0.0)
        balance = pauses - resumes if {"pause", "resume"} & counts.keys() else None
        yield replica, _Server(pauses, balance, tokens.get(replica, 0.0))


def _replica(sample: Sample) -> Labels:
    return tuple(pair for pair in sample.labels if pair[0] == "replica")


def _with(reading: Reading, paused: dict[Labels, bool]) -> Reading:
    if not paused:
        return reading
    others = tuple(s for s in reading.samples if s.metric != METRIC or s.labels not in paused)
    added = tuple(Sample(METRIC, float(value), labels) for labels, value in paused.items())
    return structs.replace(reading, samples=others + added)


# ---- prefix cache
# Selects one of SGLang's two kinds of prefix-cache counters: live, or updated when a request ends.

QUERIES = "prefix:queries_total"
HITS = "prefix:hits_total"
_NAMES: Mapping[str, str] = {QUERIES: "prefix_cache_queries_total", HITS: "prefix_cache_hits_total"}
_FROM_ENDED_REQUESTS = frozenset(_NAMES.values())


def select_counters(reading: Reading) -> Reading:
    """The reading with the live counters of each process that uses them, else with those of its ended requests."""
    queries: dict[Labels, float] = {}
    for sample in reading.samples:
        if sample.metric == QUERIES:
            queries[_process(sample)] = queries.get(_process(sample), 0.0) + sample.value
    if not queries:
        return reading
    ended = {_process(sample) for sample in reading.samples if sample.metric in _FROM_ENDED_REQUESTS}
    live = {process for process, count in queries.items() if count > 0 or process not in ended}
    samples = [_renamed(sample) for sample in reading.samples if _selected(sample, live)]
    return structs.replace(reading, samples=tuple(samples))


def _process(sample: Sample) -> Labels:
    return tuple(pair for pair in sample.labels if pair[0] == "replica")


def _selected(sample: Sample, live: set[Labels]) -> bool:
    if sample.metric in _NAMES:
        return _process(sample) in live
    return sample.metric not in _FROM_ENDED_REQUESTS or _process(sample) not in live


def _renamed(sample: Sample) -> Sample:
    return structs.replace(sample, metric=_NAMES[sample.metric]) if sample.metric in _NAMES else sample
