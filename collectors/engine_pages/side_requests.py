"""What an engine tells beside its page: small JSON answers, asked seldom, never at the page's cost.

A server without the route (404, 405), or one that wants a key for it (401, 403), does not have it: it is asked again
after 10 minutes, without a word. Any other failure is told once, as a gap of the reading it happened in. The page's
own numbers are never touched by either.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from collectors.formats import weight_versions
from collectors.model import Event, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import rest

# Three pages of the usual 5 s: a pause or a new version shows in time, and two tiny answers cost less than one page.
OFTEN_SECONDS = 15.0
# Version and sequence limit change with a restart only; a route that is not there comes with one, too.
SELDOM_SECONDS = 600.0
# An engine whose event loop hangs would hold up its own page: all answers together get this much of its time.
BUDGET_SECONDS = 1.0
BODY_BYTES = 1 << 20
ABSENT = frozenset({400, 401, 403, 404, 405, 410, 501})
NOTHING = Reading()
# Names of weights are shown: as long as a path's last parts may be.
NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class SideAnswer:
    """What one answer says. Events are told once."""

    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask.

    Attributes:
        paths: routes (and what is asked of them, after "?") in order of preference, newest name first.
        seconds: how often.
        read: the answer's JSON -> what it says. Pure; anything of the wrong shape says nothing.
        holds: its samples hold until the next answer; else they are told with the answer only.
    """

    paths: tuple[str, ...]
    seconds: float
    read: Callable[[Any], SideAnswer]
    holds: bool = True


@dataclass(slots=True)
class _Memory:
    asked: float | None = None
    wait: float = 0.0
    told: SideAnswer = field(default_factory=SideAnswer)
    path: str = ""
    failing: bool = False

    def due(self, now: float) -> bool:
        # A clock that went back (a replay) asks again rather than never.
        return self.asked is None or not 0 <= now - self.asked < self.wait


async def ask(client: httpx.AsyncClient, state: State, limits: Limits, questions: Iterable[Question]) -> Reading:
    """What is known beside the page now: fresh answers, and samples of those that still hold. Never raises.

    ``state["now"]`` is the event time; without one each question is asked once.
    """
    now, known = float(state.get("now", 0.0)), state.setdefault("side", {})
    found, failed, root = NOTHING, False, None
    for question in questions:
        memory: _Memory | None = known.get(question.paths[0])
        if memory is None:
            memory = known[question.paths[0]] = _Memory()
        # One that does not answer speaks for the others: they wait for the next poll.
        if not failed and memory.due(now):
            # With two polls of three nothing is due: where it would be asked is worked out when something is.
            root = root or _root(client)
            if root is None:
                return NOTHING
            fresh = await _ask(client, root, question, memory, now, _bounds(limits))
            failed, found = memory.failing, joined(found, fresh)
        elif question.holds and memory.told.samples:
            found = joined(found, Reading(samples=memory.told.samples))
    return found


def _bounds(limits: Limits) -> Limits:
    return replace(limits, body_bytes=BODY_BYTES, timeout_seconds=min(BUDGET_SECONDS, limits.timeout_seconds / 4.0))


def _root(client: httpx.AsyncClient) -> httpx.URL | None:
    """The server behind the page; None behind a router's merged page, where it would be the router's."""
    path = client.base_url.path.rstrip("/")
    if path.endswith("metrics") and not path.endswith("/metrics"):
        return None
    return client.base_url.copy_with(path=path.removesuffix("/metrics") + "/")


async def _ask(
    client: httpx.AsyncClient, root: httpx.URL, question: Question, memory: _Memory, now: float, limits: Limits
) -> Reading:
    """Put it to each route until one answers."""
    memory.asked, memory.wait = now, question.seconds
    known, memory.failing = memory.failing, False
    try:
        async with rest.whole(limits):
            for path in (memory.path,) if memory.path else question.paths:
                if (found := await _answer(client, root, path, limits)) is not None:
                    memory.told, memory.path = question.read(found), path
                    return Reading(samples=memory.told.samples, events=memory.told.events)
    except ScrapeError as error:
        memory.told, memory.failing = SideAnswer(), True
        return Reading(gaps=() if known else (f"{question.paths[0].lstrip('/')}: {error}",))
    # The engine behind the URL may have been replaced by one of another version: all names are tried again.
    memory.told, memory.path, memory.wait = SideAnswer(), "", SELDOM_SECONDS
    return Reading()


async def _answer(client: httpx.AsyncClient, root: httpx.URL, path: str, limits: Limits) -> Any:
    """The JSON, or None where the server does not have it for us."""
    route, _, query = path.partition("?")
    url = root.copy_with(path=root.path.rstrip("/") + route)
    try:
        return (await rest.get_json(client, str(url), dict(httpx.QueryParams(query)), limits)).json
    except rest.Refusal as refusal:
        if refusal.status in ABSENT:
            return None
        raise


def joined(page: Reading, side: Reading) -> Reading:
    """The page's reading and what was told beside it; where both have a value the page's is newer."""
    if not (side.samples or side.events or side.gaps):
        return page
    have = {(sample.metric, sample.labels) for sample in page.samples}
    added = tuple(sample for sample in side.samples if (sample.metric, sample.labels) not in have)
    return replace(page, samples=page.samples + added, events=page.events + side.events, gaps=page.gaps + side.gaps)


# ---- answers that several engines give alike


def weights(answer: Any) -> SideAnswer:
    """The version of the weights served: a number as a metric, another name as an event, "default" as nothing.

    ``{"weight_version": str}``: vLLM's /weight_info (0.29 on), SGLang's /model_info. "default" until one was set.
    """
    found = answer.get("weight_version") if isinstance(answer, dict) else None
    version = rest.number(found)
    if version is not None:
        return SideAnswer((Sample("generator_policy_version", version),))
    name = rest.clean(found, NAME_CHARACTERS) if isinstance(found, str) else ""
    if name in ("", "default"):
        return SideAnswer()
    # The name is the key: every engine tells it, and once is enough.
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
    """``{"version": str}`` as an event: the same for a fleet of one version, two for a mixed one."""

    def read(answer: Any) -> SideAnswer:
        found = answer.get("version") if isinstance(answer, dict) else None
        name = rest.clean(found, NAME_CHARACTERS) if isinstance(found, str) else ""
        key = f"engine:{system}:{name}"
        return SideAnswer(events=(Event("config_change", key, detail=f"an engine is {system} {name}"),) if name else ())

    return read
