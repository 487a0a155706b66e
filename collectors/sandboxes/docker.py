"""Reads sandboxes that are containers of a Docker engine (or Podman's compatible API), over its socket or TCP.

Each container is inspected once per state, newest first, as many as fit into a poll. Not available: the duration of the
image pull (it precedes `Created`), the state of the server inside (unless there is a HEALTHCHECK), quotas, prices.
Removed containers leave no trace.

Only GET requests are sent. The engine's API has full control of its host, so use a read-only proxy of the socket where
that matters.
"""

import asyncio
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from collectors.model import Collector, FailureCause, Limits, Reading, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers.provider import CONNECTIONS, Tally, mapping, objects, opened
from collectors.sandbox_providers.provider import cause as cause_of
from collectors.sandbox_providers.sweep import Budget, Walk, WalkPage, finish, walk
from collectors.transport.rest import Params, Refusal, clean, epoch, get_json, number, text, total_timeout

# ---- rows
# Converts a Docker container's JSON (list item and inspection) to a sandbox row.

PROVIDER = "docker"

_STATES: Mapping[str, SandboxState] = {
    "created": "starting",
    "configured": "starting",  # Podman
    "initialized": "starting",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
    "removing": "stopping",
    "stopping": "stopping",
    "exited": "terminated",
    "stopped": "terminated",
    "dead": "failed",
}
# 128 + SIGINT, SIGKILL, SIGTERM: how `docker stop` and `docker kill` end a container.
_KILLED = (130.0, 137.0, 143.0)
HEALTH_LOG = 5
"""Number of probes that the engine stores."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The result of an inspection. ``seen`` is the `key` of the list item at that time."""

    seen: tuple[str, str]
    state: SandboxState
    started_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    cause: FailureCause | None = None
    detail: str = ""
    unreachable: bool = False


def key(item: Mapping[str, Any]) -> tuple[str, str]:
    """State and health of a list item: if they change, the inspection is out of date."""
    status = text(item.get("Status"), 200)
    health = next(
        (provider_state for provider_state in ("health: starting", "unhealthy", "healthy") if provider_state in status),
        "",
    )
    return text(item.get("State"), 40).lower(), health


def row(item: Mapping[str, Any], run_label: str, inspected: Inspected | None, tally: Tally) -> Sandbox | None:
    """The row of a list item and its inspection; None (counted in the tally) without an id."""
    uid = text(item.get("Id"), 100)
    if not uid:
        tally.drop("a container without an id")
        return None
    provider_state, health = key(item)
    if provider_state not in _STATES:
        tally.unknown("state", provider_state)
    requested = epoch(item.get("Created"))
    result = (
        inspected if inspected is not None else Inspected((provider_state, health), _listed(provider_state, health))
    )
    ready = result.ready_at
    if ready is not None and requested is not None and ready < requested:
        ready = (
            requested if requested - ready < 1.0 else None
        )  # `Created` is in whole seconds, the start in nanoseconds
    names = item.get("Names")
    return Sandbox(
        provider=PROVIDER,
        id=uid,
        state=result.state,
        name=text(names[0], 253).lstrip("/") if isinstance(names, list) and names else "",
        run_key=text(mapping(item, "Labels").get(run_label), 200),
        provider_state=f"{provider_state} ({health})" if health else provider_state,
        requested_at=requested,
        started_at=result.started_at,
        ready_at=ready,
        ended_at=result.ended_at,
        image=text(item.get("Image"), 300),
        latency_source="server" if ready is not None and requested is not None else None,
        cause=result.cause,
        detail=result.detail,
        unreachable=result.unreachable,
    )


def _listed(provider_state: str, health: str) -> SandboxState:
    """The state by the list item. ``dead`` becomes ``failed`` only with the inspection, which has the cause."""
    state = _STATES.get(provider_state, "unknown")
    if state == "running" and health == "health: starting":
        return "starting"
    return "terminated" if state == "failed" else state


def inspect(
    item: Mapping[str, Any], answer: Mapping[str, Any], first_start: MutableMapping[str, tuple[float, float | None]]
) -> Inspected:
    """Converts the answer of ``GET /containers/{id}/json`` for a list item.

    Args:
        first_start: per id the first start and the first readiness; read and updated.
    """
    status = mapping(answer, "State")
    provider_state = text(status.get("Status"), 40).lower()
    health = text(mapping(status, "Health").get("Status"), 40)
    started, ready = _starts(text(item.get("Id"), 100), answer, first_start)
    state = _STATES.get(provider_state, "unknown")
    cause, detail = _failure(provider_state, status)
    if cause is not None:
        return Inspected(key(item), "failed", started, ready, epoch(status.get("FinishedAt")), cause, detail)
    if state == "terminated":
        return Inspected(key(item), state, started, ready, epoch(status.get("FinishedAt")), detail=detail)
    if state == "running" and health == "starting":
        return Inspected(key(item), "starting", started)
    trouble = "restarting" if provider_state == "restarting" else "unhealthy" if health == "unhealthy" else ""
    return Inspected(key(item), state, started, ready, detail=trouble, unreachable=bool(trouble))


def _starts(
    uid: str, answer: Mapping[str, Any], first_start: MutableMapping[str, tuple[float, float | None]]
) -> tuple[float | None, float | None]:
    """First start and first readiness, None if unknown."""
    status = mapping(answer, "State")
    started, finished = epoch(status.get("StartedAt")), epoch(status.get("FinishedAt"))
    first_times = first_start.get(uid)
    if first_times is None:
        restarted = (number(answer.get("RestartCount")) or 0.0) > 0
        # An end before the latest start proves an earlier start.
        restarted = restarted or (finished is not None and started is not None and finished < started)
        if started is None or restarted:
            return None, None
        first_times = first_start[uid] = (started, None)
    if first_times[1] is None and started == first_times[0]:
        first_times = first_start[uid] = (first_times[0], _ready(status, first_times[0]))
    return first_times


def _ready(status: Mapping[str, Any], started: float) -> float | None:
    """The start if there is no health check, else the end of the first successful probe if it is still stored."""
    health = mapping(status, "Health")
    if text(health.get("Status"), 40) in ("", "none"):
        return started
    probes = objects(health.get("Log"))
    for index, probe in enumerate(probes):
        if number(probe.get("ExitCode")) == 0.0:
            is_first = index > 0 or len(probes) < HEALTH_LOG
            return epoch(probe.get("End")) if is_first else None
    return None


def _failure(provider_state: str, status: Mapping[str, Any]) -> tuple[FailureCause | None, str]:
    """Cause (None: no failure) and message. A container that never started stays ``created``; Error has the reason."""
    error, code = clean(status.get("Error"), 200), number(status.get("ExitCode"))
    message = error or ("" if code is None else f"exit code {code:g}")
    if status.get("OOMKilled") is True and provider_state in ("exited", "stopped", "dead"):
        return "oom", message
    if provider_state == "created" and error:
        return cause_of(error), message
    if provider_state == "dead":
        return cause_of(error) if cause_of(error) != "unknown" else "internal", message
    if provider_state not in ("exited", "stopped") or code in (None, 0.0):
        return None, ""
    if code in _KILLED and not error:
        return None, message
    if code in (126.0, 127.0) and not error:
        return "image", message  # the command is not there, or cannot be executed
    return cause_of(error), message


# Host of the default URL; it stands for the engine's socket.
SOCKET_HOST = "docker.sock"
SOCKET = "/var/run/docker.sock"
# Containers per page: each is 1.5 to 3 kB of JSON.
PAGE_ROWS = 1_000

Item = Mapping[str, Any]
Starts = MutableMapping[str, tuple[float, float | None]]


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads all containers with the label of the options. Inspections may take several polls.

    Raises:
        ScrapeError: as `rest.get_json`; ``missing`` if a file of the options cannot be read.
    """
    options: Mapping[str, str] = state.get("options") or {}
    socket = options.get("socket", "") or (SOCKET if client.base_url.host == SOCKET_HOST else "")
    tally = Tally()
    inspected: MutableMapping[str, Inspected] = state.setdefault("inspected", {})
    async with total_timeout(limits), opened(client, options, limits, socket) as engine:
        budget = Budget(limits)
        listing = await _containers(engine, options, state, limits, budget, tally)
        items = listing.rows if listing.done else listing.fresh
        await _inspect(engine, items, inspected, state, limits, budget)
    if listing.done:
        finish(state, "containers")
        _forget(state, listing.rows)
    label = options.get("run_label", "run")
    rows = (row(item, label, inspected.get(uid), tally) for uid, item in items.items())
    return tally.reading(PROVIDER, (sandbox for sandbox in rows if sandbox is not None), listing.extent())


async def _containers(
    engine: httpx.AsyncClient,
    options: Mapping[str, str],
    state: State,
    limits: Limits,
    budget: Budget,
    tally: Tally,
) -> Walk[Item]:
    labels = [label.strip() for label in options.get("label", "").split(",") if label.strip()]

    async def fetch(before: str) -> WalkPage[Item]:
        filters = {"label": labels} | ({"before": [before]} if before else {})
        params: Params = {"all": "true", "limit": PAGE_ROWS, "filters": json.dumps(filters)}
        answer = await get_json(engine, "/containers/json", params, limits)
        if not isinstance(answer.json, list):
            raise ScrapeError("garbage", "the answer is not a list of containers")
        named = [(text(item.get("Id"), 100), item) for item in map(mapping, answer.json)]
        rows = {uid: item for uid, item in named if uid}
        unread = sum(not uid for uid, _ in named)
        for _ in range(unread):
            tally.drop("a container without an id")
        full = len(answer.json) >= PAGE_ROWS
        return WalkPage(rows, next(reversed(rows), "") if full else "", unread)

    try:
        return await walk(state, "containers", fetch, budget)
    except Refusal as error:
        if error.status not in (400, 404, 500) or "o such container" not in str(error):
            raise
        # The last container of the previous page was removed: start again.
        finish(state, "containers")
        return await walk(state, "containers", fetch, budget)


async def _inspect(
    engine: httpx.AsyncClient,
    items: Mapping[str, Item],
    inspected: MutableMapping[str, Inspected],
    state: State,
    limits: Limits,
    budget: Budget,
) -> None:
    """Inspects new and changed containers, a few at a time, until the poll's time is used."""
    starts: Starts = state.setdefault("starts", {})
    to_inspect = [
        uid for uid, item in items.items() if (previous := inspected.get(uid)) is None or previous.seen != key(item)
    ]
    for first in range(0, len(to_inspect), CONNECTIONS):
        if budget.spent():
            return
        batch = to_inspect[first : first + CONNECTIONS]
        # Waits for all requests, so that none is still running when one fails.
        answers = await asyncio.gather(*(_inspect_one(engine, uid, limits) for uid in batch), return_exceptions=True)
        for uid, answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                inspected[uid] = inspect(items[uid], answer, starts)


async def _inspect_one(engine: httpx.AsyncClient, uid: str, limits: Limits) -> Item | None:
    """One inspection; None for a container that was removed since it was listed."""
    try:
        answer = await get_json(engine, f"/containers/{quote(uid, safe='')}/json", {}, limits)
    except Refusal as error:
        if error.status in (404, 409):
            return None
        raise
    return mapping(answer.json)


def _forget(state: State, rows: Mapping[str, Item]) -> None:
    for memory in (state["inspected"], state["starts"]):
        for removed in memory.keys() - rows.keys():
            del memory[removed]


COLLECTOR = Collector(
    name="docker",
    actor="sandbox",
    reads="containers of a Docker engine over its API (unix socket or TCP)",
    versions="engine API 1.41 to 1.51 by documentation",
    poll=poll,
    default_url=f"http://{SOCKET_HOST}",
    options=("socket", "label", "run_label", "ca_file", "cert_file", "key_file"),
)
