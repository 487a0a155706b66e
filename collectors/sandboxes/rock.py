"""Reads sandboxes of Alibaba's ROCK from the list of its admin or proxy service.

Only the list is requested (`GET /apis/envs/sandbox/v1/sandboxes`). `/get_status` and `/is_alive` of a sandbox have side
effects: they renew its expiry and advance its state, so polling them would keep abandoned sandboxes alive.
`/get_sandbox_statistics` (CPU and memory through the sandbox's actor) is not needed.

The list contains pending and running sandboxes only. A stopped one disappears. One with a failed phase stays listed as
pending until it is cleared; that is where failures are visible. Its `is_alive` is a constant. Errors are answered with
HTTP 200 and ``"status": "Failed"``. Each page is cut from a new unordered scan, so a sandbox may be missed between two
pages: in a listing of several pages only a sandbox that is missing twice has ended. OTLP metrics (`xrl_gateway.*`) are
pushed by ROCK to an OTLP endpoint and not read here.
"""

import re
from collections.abc import Mapping
from typing import Any

import httpx

from collectors.model import Collector, ErrorKind, FailureCause, Limits, Reading, Sandbox, SandboxState, ScrapeError
from collectors.model import State as Memory
from collectors.sandbox_providers.provider import Tally, mapping, objects
from collectors.sandbox_providers.provider import cause as cause_of
from collectors.sandbox_providers.sweep import Budget, Walk, WalkPage, finish, walk
from collectors.transport.rest import clean, epoch, get_json, text, total_timeout

PROVIDER = "rock"
PATH = "/apis/envs/sandbox/v1/sandboxes"
# The service's default maximum (`batch_get_status_max_count`); a smaller one is read from its error message.
PAGE_ROWS = 2_000
FILTERS = ("namespace", "experiment_id", "user_id")

_STATES: Mapping[str, SandboxState] = {
    "pending": "starting",
    "running": "running",
    "stopped": "terminated",
    "archiving": "stopping",
    "archived": "terminated",
    "deleted": "terminated",
}
_KINDS: Mapping[FailureCause, ErrorKind] = {
    "rate_limit": "throttled",
    "quota": "quota",
    "credit": "credit",
    "auth": "auth",
}
_PAGE_SIZE = re.compile(r"page_size exceeds maximum (\d{1,6})")


async def poll(client: httpx.AsyncClient, state: Memory, limits: Limits) -> Reading:
    """Reads the pending and running sandboxes that match the options' filters. Long lists take several polls.

    Raises:
        ScrapeError: as `rest.get_json`; also for an error inside a 200 answer.
    """
    options: Mapping[str, str] = state.get("options") or {}
    tally = Tally()
    async with total_timeout(limits):
        listing = await _sandboxes(client, options, state, limits, tally)
    rows = listing.fresh
    if listing.done:
        finish(state, "rock")
        rows = listing.rows if listing.pages == 1 else _with_shifted(listing.rows, state)
        state["last"] = rows
    return tally.reading(PROVIDER, rows.values(), listing.extent())


def _with_shifted(rows: Mapping[str, Sandbox], state: Memory) -> dict[str, Sandbox]:
    """The rows, and those of the last listing that are missing for the first time: they may be between two pages."""
    last: Mapping[str, Sandbox] = state.get("last") or {}
    missed: frozenset[str] = state.get("missed") or frozenset()
    unlisted = {uid: record for uid, record in last.items() if uid not in rows and uid not in missed}
    state["missed"] = frozenset(unlisted)
    return {**rows, **unlisted}


async def _sandboxes(
    client: httpx.AsyncClient, options: Mapping[str, str], state: Memory, limits: Limits, tally: Tally
) -> Walk[Sandbox]:
    label = options.get("run_label", "run")

    async def fetch(token: str) -> WalkPage[Sandbox]:
        result, page = await _page(client, options, state, limits, int(token or 1))
        items = result.get("items")
        if not isinstance(items, list):
            raise ScrapeError("garbage", "the answer contains no list of sandboxes")
        built = [row(item, label, tally) for item in map(mapping, items)]
        rows = {sandbox.id: sandbox for sandbox in built if sandbox is not None}
        more = result.get("has_more")
        more = more if isinstance(more, bool) else len(items) >= state["page_size"]
        return WalkPage(rows, str(page + 1) if more and items else "", sum(sandbox is None for sandbox in built))

    return await walk(state, "rock", fetch, Budget(limits))


async def _page(
    client: httpx.AsyncClient, options: Mapping[str, str], state: Memory, limits: Limits, page: int
) -> tuple[Mapping[str, Any], int]:
    """The result of one page, and its number. With smaller pages of the service the listing starts at the first one."""
    size = state.setdefault("page_size", PAGE_ROWS)
    params: dict[str, str | int | list[str]] = {name: options[name] for name in FILTERS if options.get(name)}
    answer = mapping((await get_json(client, PATH, params | {"page": page, "page_size": size}, limits)).json)
    if answer.get("status") == "Success":
        return mapping(answer, "result"), page
    message = f"{text(answer.get('message'), 200)}: {text(answer.get('error'), 400)}"
    smaller = _PAGE_SIZE.search(message)
    if smaller is not None and 0 < int(smaller.group(1)) < size:
        state["page_size"] = int(smaller.group(1))
        return await _page(client, options, state, limits, 1)
    if answer.get("status") != "Failed":
        raise ScrapeError("garbage", "the answer is not that of a ROCK service")
    raise ScrapeError(_KINDS.get(cause_of(message), "status"), f"the service refused: {clean(message, 120)}")


def row(item: Mapping[str, Any], run_label: str, tally: Tally) -> Sandbox | None:
    """Converts an item of the list; None (counted in the tally) without an id.

    The run is the sandbox's metadata under ``run_label``, else its experiment.
    """
    uid = text(item.get("sandbox_id"), 100)
    if not uid:
        tally.drop("a sandbox without an id")
        return None
    provider_state = text(item.get("state"), 40).lower()
    phases = mapping(item, "status")
    if provider_state not in _STATES:
        tally.unknown("state", provider_state)
    state, cause, detail = _STATES.get(provider_state, "unknown"), None, ""
    if provider_state == "pending":
        state, cause, detail = _pending(phases)
    experiment = text(item.get("experiment_id"), 200)
    requested = _requested(item)
    ready = _ready(item, requested) if provider_state != "pending" else None
    ended = (epoch(item.get(key)) for key in ("stop_time", "delete_time"))
    return Sandbox(
        provider=PROVIDER,
        id=uid,
        state=state,
        run_key=text(mapping(item, "metadata").get(run_label), 200) or ("" if experiment == "default" else experiment),
        provider_state=provider_state,
        requested_at=requested,
        started_at=epoch(mapping(phases, "docker_run").get("started_at")),
        ready_at=ready,
        ended_at=next((at for at in ended if at is not None), None) if state == "terminated" else None,
        image=text(item.get("image"), 300),
        image_cached=_cached(mapping(phases, "image_pull")),
        latency_source="server" if ready is not None and requested is not None else None,
        cause=cause,
        detail=detail,
        expires_at=epoch(item.get("auto_stop_time")),
    )


def _pending(phases: Mapping[str, Any]) -> tuple[SandboxState, FailureCause | None, str]:
    """State of a pending sandbox, derived from its phases."""
    statuses = {name: text(mapping(phases, name).get("status"), 40) for name in phases}
    for name, status in statuses.items():
        if status in ("failed", "timeout"):
            message = text(mapping(phases, name).get("message"), 800)
            return "failed", _cause(name, status, message), clean(f"{name}: {message}", 200)
    if statuses.get("docker_run") == "running" or statuses.get("image_pull") == "success":
        return "starting", None, ""
    return ("building_image" if statuses.get("image_pull") == "running" else "queued"), None, ""


def _cause(phase: str, status: str, message: str) -> FailureCause:
    failure_cause = cause_of(message)
    if phase == "image_pull":
        return failure_cause if failure_cause in ("rate_limit", "auth", "capacity") else "image"
    if status == "timeout":
        return "timeout"
    return failure_cause if failure_cause != "unknown" else "internal"


def _requested(item: Mapping[str, Any]) -> float | None:
    """Time of the creation; after a restart or restore the time of the last change to pending."""
    history = objects(item.get("state_history"))
    pending_times = [epoch(change.get("timestamp")) for change in history if change.get("to_state") == "pending"]
    return pending_times[-1] if pending_times and pending_times[-1] is not None else epoch(item.get("create_time"))


def _ready(item: Mapping[str, Any], requested: float | None) -> float | None:
    """Time of the first answer of the server inside, in whole seconds. `start_time` may be later: the first poll."""
    ready = epoch(mapping(item, "status", "docker_run").get("completed_at"))
    if ready is None or (requested is not None and ready < requested):
        ready = epoch(item.get("start_time"))
    return None if ready is None or (requested is not None and ready < requested) else ready


def _cached(phase: Mapping[str, Any]) -> bool | None:
    """Was the image cached? Only the message of the pull phase shows that the pull was skipped."""
    status, message = text(phase.get("status"), 40), text(phase.get("message"), 200)
    if status == "success":
        return "skip image pull" in message
    return False if status in ("running", "failed", "timeout") else None


COLLECTOR = Collector(
    name="rock",
    actor="sandbox",
    reads="sandboxes of ROCK (Alibaba) over its REST list",
    versions="1.11.0 by source (4889118bd)",
    poll=poll,
    key_header="x-api-key",
    options=(*FILTERS, "run_label"),
)
