"""Requests small JSON answers of an engine in addition to its metrics page, at a low rate.

A route that the server lacks (404, 405) or that requires a key (401, 403) is requested again after 10 minutes, without
a message. Any other failure is reported once, as a gap of the reading in which it occurred. Failures do not change the
values of the page.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from collectors.formats import weight_versions
from collectors.model import Event, Limits, Reading, Sample, ScrapeError, State
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
            failed, reading = request_state.failing, joined(reading, fresh)
        elif request.repeats and request_state.answer.samples:
            reading = joined(reading, Reading(samples=request_state.answer.samples))
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


def joined(page: Reading, side: Reading) -> Reading:
    """Combines the reading of the page and that of the side requests. If both have a value, the page's is newer."""
    if not (side.samples or side.events or side.gaps):
        return page
    present = {(sample.metric, sample.labels) for sample in page.samples}
    added = tuple(sample for sample in side.samples if (sample.metric, sample.labels) not in present)
    return replace(page, samples=page.samples + added, events=page.events + side.events, gaps=page.gaps + side.gaps)


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
