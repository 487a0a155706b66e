"""Reads sandboxes of Modal with the SDK's gRPC client (the extra ``modal``), which is loaded at the first poll.

The SDK's public list has no times and no failures, but the response has. So the private stub of the SDK is called
directly; the version is pinned, and a contract test runs against the real SDK. Both generations of sandboxes are listed
(`SandboxListV2`). Only three calls are made: `AuthTokenGet`, `AppGetOrCreate` as a lookup (for option ``app``) and
`SandboxListV2`. None is retried, so that throttling is visible here instead of delays in the SDK.

Not available: limits of the workspace (configure them), credit, whether an image was cached. A sandbox without a
readiness probe counts as ready at its start.
"""

import importlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from math import inf, nextafter
from typing import Any

import httpx

from collectors.model import (
    Collector,
    ErrorKind,
    FailureCause,
    Limits,
    Reading,
    Sandbox,
    SandboxState,
    ScrapeError,
    State,
)
from collectors.sandbox_providers.provider import Tally
from collectors.sandbox_providers.provider import cause as cause_of
from collectors.sandbox_providers.sweep import ListedRow, ListingPage, ListingSource, sweep
from collectors.transport.rest import clean, epoch, number, text, total_timeout

# ---- rows
# Converts a Modal `SandboxInfo` (protobuf message) to a sandbox row.

PROVIDER = "modal"

# GenericResult.GenericStatus: number -> (name, state, cause if the number determines it).
_RESULTS: Mapping[int, tuple[str, SandboxState, FailureCause | None]] = {
    1: ("SUCCESS", "terminated", None),
    2: ("FAILURE", "failed", None),
    3: ("TERMINATED", "terminated", None),
    4: ("TIMEOUT", "terminated", None),  # its lifetime is over; before the start it is a failure
    5: ("INIT_FAILURE", "failed", None),
    6: ("INTERNAL_FAILURE", "failed", "internal"),
    7: ("IDLE_TIMEOUT", "terminated", None),
    8: ("MEMORY_MANAGER_EVICTION", "failed", "capacity"),  # out of memory on the worker, not in the sandbox
    9: ("MEMORY_THRASHING_EVICTION", "failed", "oom"),
    10: ("KERNEL_OOM_KILL", "failed", "oom"),
}
# 128 + SIGINT, SIGKILL, SIGTERM: ended from outside.
_KILLED = (130, 137, 143)


def row(info: Any, run_label: str, tally: Tally) -> Sandbox | None:
    """Converts a listed sandbox; None (counted in the tally) without an id."""
    uid = text(info.id, 100)
    if not uid:
        tally.drop("a sandbox without an id")
        return None
    requested, started = epoch(info.created_at), epoch(info.task_info.started_at)
    state, provider_state, cause, detail = _state(info, started, tally)
    ready = _ready(info, started)
    if ready is not None and requested is not None and ready < requested:
        ready = None
    lifetime, begun = number(info.timeout_secs), started if started is not None else requested
    return Sandbox(
        provider=PROVIDER,
        id=uid,
        state=state,
        name=text(info.name, 253),
        run_key=next((value for name, value in _tags(info) if name == run_label), ""),
        provider_state=provider_state,
        requested_at=requested,
        started_at=started,
        ready_at=ready,
        ended_at=epoch(info.task_info.finished_at),
        image=text(info.image_id, 300),
        latency_source="server" if ready is not None and requested is not None else None,
        cause=cause,
        detail=detail,
        expires_at=begun + lifetime if lifetime and lifetime > 0 and begun is not None else None,
    )


def _state(info: Any, started: float | None, tally: Tally) -> tuple[SandboxState, str, FailureCause | None, str]:
    result = info.task_info.result
    if result.status:
        return _ended(result, started, tally)
    if epoch(info.task_info.finished_at) is not None:
        return "terminated", "finished", None, ""
    if started is None:
        # A task exists once the scheduler has it: waiting for a worker, loading the image, creating the container.
        placed = info.task_info.id or epoch(info.task_info.enqueued_at) is not None
        return ("starting", "enqueued", None, "") if placed else ("queued", "created", None, "")
    if _probed(info) and epoch(info.ready_at) is None:
        return "starting", "started, not ready", None, ""
    return "running", "running", None, ""


def _ended(result: Any, started: float | None, tally: Tally) -> tuple[SandboxState, str, FailureCause | None, str]:
    if result.status not in _RESULTS:
        tally.unknown("status", str(result.status))
        return "unknown", f"status {result.status}", None, ""
    status_name, state, cause = _RESULTS[result.status]
    detail = clean(result.exception or result.propagation_reason, 200)
    if status_name == "TIMEOUT" and started is None:
        return "failed", status_name, "timeout", detail
    if status_name == "FAILURE" and result.exitcode in _KILLED and started is not None:
        return "terminated", status_name, None, f"exit code {result.exitcode}"
    if state != "failed":
        return state, status_name, None, detail
    cause = cause or cause_of(detail)
    if cause == "unknown" and status_name == "INIT_FAILURE":
        cause = "internal"
    return "failed", status_name, cause, detail or (f"exit code {result.exitcode}" if result.exitcode else "")


def _ready(info: Any, started: float | None) -> float | None:
    """The first success of the readiness probe, if there is one, else the start."""
    return epoch(info.ready_at) if _probed(info) else started


def _probed(info: Any) -> bool:
    return bool(info.HasField("readiness_probe") or info.ready_at)


def _tags(info: Any) -> Iterator[tuple[str, str]]:
    for tag in info.tags:
        yield text(tag.tag_name, 200), text(tag.tag_value, 200)


TESTED = "1.6.4"
# A token is used this long. Its lifetime is longer, but only the server knows it.
TOKEN_SECONDS = 300.0
DEFAULT_URL = "https://api.modal.com"
ABSENT = "the Modal SDK is not installed: it needs the extra modal (uv tool install '.[modal]')"

_KINDS: Mapping[str, ErrorKind] = {
    "UNAUTHENTICATED": "auth",
    "PERMISSION_DENIED": "auth",
    "RESOURCE_EXHAUSTED": "throttled",
    "UNAVAILABLE": "unreachable",
    "DEADLINE_EXCEEDED": "timeout",
    "CANCELLED": "unreachable",
}


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads the live sandboxes of the options' app (else of the environment), and the newest ended ones.

    Of the target's client only URL and key (``TOKEN_ID:TOKEN_SECRET``) are used. Without a key the configuration of the
    SDK is used (``MODAL_TOKEN_ID`` and ``MODAL_TOKEN_SECRET``, ``~/.modal.toml``).

    Raises:
        ScrapeError: ``missing`` without the SDK; ``garbage`` for an SDK that differs from the pinned one.
    """
    options: Mapping[str, str] = state.get("options") or {}
    tally, begun = Tally(), time.monotonic()
    async with total_timeout(limits), _opened(client, state) as (api, stub, metadata):
        app = await _app(api, stub, options, state)
        request = partial(api.SandboxListRequest, app_id=app, environment_name=options.get("environment", ""))

        async def fetch(finished: bool, before: float | None) -> ListingPage:
            message = request(include_finished=finished, before_timestamp=before or 0.0)
            answer = await stub.SandboxListV2(message, retry=None, metadata=metadata)
            return ListingPage(list(answer.sandboxes), _next(answer.sandboxes, before))

        source = ListingSource(
            live=(False,), ended=(True,), fetch=fetch, row=partial(_row, options.get("run_label", "run"), tally)
        )
        swept = await sweep(source, state, limits, begun)
    return tally.reading(PROVIDER, (listed_row.sandbox for listed_row in swept.rows), swept.extent)


def _row(run_label: str, tally: Tally, info: Any) -> ListedRow | None:
    sandbox = row(info, run_label, tally)
    return ListedRow(sandbox) if sandbox is not None else None


def _next(page: Any, before: float | None) -> float | None:
    """Time before which the next page starts; the list is newest first and ends with an empty page.

    Sandboxes created by one call have equal times, and "before" excludes all of them. So the next page starts with
    those of the last time again, and continues after them if it has no others.
    """
    if not page:
        return None
    last = float(min(info.created_at for info in page))
    start = nextafter(last, inf)
    return start if start != before else last


@asynccontextmanager
async def _opened(client: httpx.AsyncClient, state: State) -> AsyncIterator[tuple[Any, Any, Any]]:
    """The SDK's messages, its stub, and the metadata for calls of the second generation."""
    try:
        errors = importlib.import_module("modal.exception")
        wire = importlib.import_module("grpclib.exceptions")
        config = importlib.import_module("modal.config").config
        api = importlib.import_module("modal_proto.api_pb2")
        make = importlib.import_module("modal.client")._Client
    except ImportError:
        raise ScrapeError("missing", ABSENT) from None
    try:
        sdk = make(_url(client, config), api.CLIENT_TYPE_CLIENT, _credentials(client, config))
        try:
            await sdk._open()
            yield api, sdk._stub, [("x-modal-auth-token", await _token(api, sdk._stub, state))]
        finally:
            await sdk.close()
    except errors.Error as error:
        state.pop("token", None)
        raise _refusal(error) from None
    except (wire.GRPCError, wire.ProtocolError, wire.StreamTerminatedError, OSError) as error:
        raise ScrapeError("unreachable", f"no answer: {type(error).__name__}") from None
    except (AttributeError, TypeError, ImportError) as error:
        version = text(getattr(importlib.import_module("modal"), "__version__", ""), 40)
        raise ScrapeError(
            "garbage", f"Modal SDK {version} is not the tested version {TESTED}: {type(error).__name__}"
        ) from None


async def _token(api: Any, stub: Any, state: State) -> str:
    """A cached token for calls of the second generation. The SDK's own manager would sleep when throttled."""
    token, since = state.get("token", ("", -inf))
    if time.monotonic() - since > TOKEN_SECONDS:
        token = (await stub.AuthTokenGet(api.AuthTokenGetRequest(), retry=None)).token
        state["token"] = (token, time.monotonic())
    return str(token)


def _url(client: httpx.AsyncClient, config: Any) -> str:
    """The target's URL, else that of the SDK (``MODAL_SERVER_URL``, a fail-over list)."""
    url = str(client.base_url).rstrip("/")
    return str(config["server_url"]) if url in ("", DEFAULT_URL) else url


def _credentials(client: httpx.AsyncClient, config: Any) -> tuple[str, str]:
    key = client.headers.get("authorization", "").removeprefix("Bearer ").strip()
    token, _, secret = key.partition(":")
    if not key:
        token, secret = config["token_id"] or "", config["token_secret"] or ""
    if not token or not secret:
        raise ScrapeError("auth", "no Modal token; set the key to TOKEN_ID:TOKEN_SECRET, or configure the SDK")
    return token, secret


async def _app(api: Any, stub: Any, options: Mapping[str, str], state: State) -> str:
    """Id of the option's app, looked up once; "" lists the whole environment."""
    name = options.get("app", "")
    if options.get("app_id") or not name:
        return options.get("app_id", "")
    if "app" not in state:
        request = api.AppGetOrCreateRequest(
            app_name=name,
            environment_name=options.get("environment", ""),
            object_creation_type=api.OBJECT_CREATION_TYPE_UNSPECIFIED,  # looks up, creates nothing
        )
        state["app"] = text((await stub.AppGetOrCreate(request, retry=None)).app_id, 100)
    return str(state["app"])


def _refusal(error: Any) -> ScrapeError:
    status = getattr(getattr(error, "_grpc_status", None), "name", "")
    message = text(getattr(error, "_grpc_message", "") or str(error), 400)
    kind: ErrorKind = _KINDS.get(status, "status" if status else _unnamed(error))
    if status in ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED"):
        cause = cause_of(message)
        kind = cause if cause in ("quota", "credit") else "throttled" if cause == "rate_limit" else kind
    waits = (getattr(detail, "retry_after_secs", None) for detail in getattr(error, "_grpc_details", None) or ())
    wait = next((seconds for seconds in waits if seconds is not None), None)
    if wait is not None and kind in ("status", "quota"):
        kind = "throttled"  # a retry time means throttling, with any message
    # The message of a rejected token contains the token.
    shown_message = "the credentials are missing or wrong" if kind == "auth" else clean(message, 120)
    return ScrapeError(kind, f"{status or type(error).__name__}: {shown_message}", wait)


def _unnamed(error: Any) -> ErrorKind:
    """Kind of an error that the SDK raises without an answer."""
    name = type(error).__name__
    return "auth" if "Auth" in name else "timeout" if "Timeout" in name else "unreachable"


COLLECTOR = Collector(
    name="modal",
    actor="sandbox",
    reads="Modal sandboxes over the SDK's gRPC client (the extra modal)",
    versions=f"SDK {TESTED} against a simulated gRPC server; not against a live account",
    poll=poll,
    default_url=DEFAULT_URL,
    options=("app", "app_id", "environment", "run_label"),
)
