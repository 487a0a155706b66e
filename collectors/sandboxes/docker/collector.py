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
from typing import Any
from urllib.parse import quote

import httpx

from collectors.model import Collector, Limits, Reading, ScrapeError, State
from collectors.sandbox_providers.listing import Tally, mapping
from collectors.sandbox_providers.own_client import CONNECTIONS, opened
from collectors.sandbox_providers.walk import Budget, Walk, WalkPage, finish, walk
from collectors.sandboxes.docker.rows import PROVIDER, Inspected, inspect, key, row
from collectors.transport.rest import Params, Refusal, get_json, text, total_timeout

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
