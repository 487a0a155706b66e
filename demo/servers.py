"""A small HTTP server for one simulated system: a function answers each GET, on its own thread."""

import asyncio
import base64
import hashlib
import hmac
import json
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

from demo.provider import INIT_FAILURE, INIT_TEXT, KERNEL_OOM_KILL, LIVE, Judge, Judges, Provider, Sandbox


@dataclass(frozen=True)
class Reply:
    """Status, content type ("": none), body and further headers."""

    status: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


# Path with its query, and the request's headers, names in lower case.
Respond = Callable[[str, Mapping[str, str]], Reply]
NOT_FOUND = Reply(404, "application/json", b'{"detail":"Not Found"}')


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Ends open connections too, because a process that dies leaves none."""
        super().server_close()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect early; reports other errors as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def serve(name: str, respond: Respond) -> ThreadingHTTPServer:
    """Starts a server on a free port of this machine."""
    server = _Server(("127.0.0.1", 0), _handler(respond))
    # The interval only bounds how long `close` takes; requests are served at once.
    threading.Thread(target=server.serve_forever, args=(0.1,), name=name, daemon=True).start()
    return server


def by_path(routes: Mapping[str, Callable[[], Reply]]) -> Respond:
    """Answers each of these paths with any query; other paths are not found."""

    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        route = routes.get(path.split("?", 1)[0])
        return route() if route else NOT_FOUND

    return respond


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def _handler(respond: Respond) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "uvicorn"
        # Head and body leave in one write, which is flushed after each request. A body that is too large for that is
        # a second one: with Nagle's algorithm it would wait 40 ms for the client's delayed ACK.
        wbufsize = 1 << 17
        disable_nagle_algorithm = True
        sys_version = ""

        def do_GET(self) -> None:
            reply = respond(self.path, {key.lower(): value for key, value in self.headers.items()})
            self.send_response(reply.status)
            self.send_header("content-length", str(len(reply.body)))
            if reply.kind:
                self.send_header("content-type", reply.kind)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            """Does nothing, because standard error is for failures."""

    return Handler


# ---- grpc server
# A gRPC server for one simulated system, on its own event loop and thread.

# Longest wait for calls in flight at close, s.
_CLOSE_SECONDS = 5.0

# A request and the call's metadata, names in lower case -> the reply; or Refusal.
Answer = Callable[[Any, Mapping[str, str]], Any]


class Refusal(Exception):
    """Refusal of a call. ``status``: the name of a gRPC status; the text is the message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Call:
    """One method: the classes of its messages, and its handler."""

    request: Any
    reply: Any
    answer: Answer


class GrpcServer:
    """Serves `calls`, path -> call, on a free port of this machine, until `close`.

    Raises:
        ImportError: grpclib is not installed.
    """

    def __init__(self, name: str, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._const = import_module("grpclib.const")
        self._errors = import_module("grpclib")
        grpc = import_module("grpclib.server")
        self._loop = asyncio.new_event_loop()
        # Named as TCP, asyncio switches Nagle's algorithm off; else each reply waits 40 ms for a delayed ACK.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._server = self._wait(self._start(grpc, sock))

    def __mapping__(self) -> dict[str, Any]:
        """Returns the service description that grpclib requires."""
        unary = self._const.Cardinality.UNARY_UNARY
        return {
            path: self._const.Handler(self._handler(call.answer), unary, call.request, call.reply)
            for path, call in self._calls.items()
        }

    def _handler(self, answer: Answer) -> Callable[[Any], Awaitable[None]]:
        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            metadata = {key: value for key, value in stream.metadata.items() if isinstance(value, str)}
            try:
                reply = answer(request, metadata)
            except Refusal as refusal:
                raise self._errors.GRPCError(self._errors.Status[refusal.status], str(refusal)) from None
            await stream.send_message(reply)

        return handle

    async def _start(self, grpc: Any, sock: socket.socket) -> Any:
        server = grpc.Server([self])
        await server.start(sock=sock)
        return server

    async def _stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CLOSE_SECONDS)

    def close(self) -> None:
        """Stops serving, with connections and thread."""
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()


# ---- prime api
# The read-only part of Prime Intellect's sandbox REST API, as prime-sandboxes 0.5.1 and prime 0.18.0 use it.

# Requests at once, and per second after that: six listings of 1,000 sandboxes by pages of 50.
BURST_REQUESTS = 240.0
REQUESTS_PER_SECOND = 20.0
PER_PAGE, PER_PAGE_MAX = 50, 1_000
STATUSES = frozenset({*LIVE, "PAUSED", "ERROR", "TERMINATED", "TIMEOUT"})
ROOT = "/api/v1"
_BILLINGS = 20
Query = Mapping[str, list[str]]


class BadQuery(ValueError):
    """An invalid parameter; answered with 422."""


class PrimeApi:
    """Answers for one account. `now` is in seconds since the run began at epoch `start`."""

    def __init__(self, provider: Provider, seed: int, start: float) -> None:
        self.key = "pit_" + hashlib.sha256(f"{seed}:key".encode()).hexdigest()[:40]
        self._provider = provider
        self._user = _id("us", seed, "user")
        self._wallet = _id("wa", seed, "wallet")
        self._start = start
        self._tokens = BURST_REQUESTS
        self._refilled = 0.0

    def respond(self, target: str, headers: Mapping[str, str], now: float) -> Reply:
        """Returns the answer to a GET of `target`, path and query."""
        url = urlsplit(target)
        if not url.path.startswith(f"{ROOT}/"):
            return NOT_FOUND
        if headers.get("authorization") != f"Bearer {self.key}":
            return _refusal(401, "Invalid or missing API key")
        if not self._take(now):
            wait = {"retry-after": str(math.ceil(1 / REQUESTS_PER_SECOND))}
            return _refusal(429, "Rate limit exceeded", wait)
        try:
            return self._route(url.path.removeprefix(ROOT), parse_qs(url.query), now)
        except BadQuery as error:
            return _refusal(422, str(error))

    def _take(self, now: float) -> bool:
        """Takes one request from the bucket, which event time fills."""
        filled = self._tokens + max(0.0, now - self._refilled) * REQUESTS_PER_SECOND
        self._tokens, self._refilled = min(BURST_REQUESTS, filled), max(now, self._refilled)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _route(self, path: str, query: Query, now: float) -> Reply:
        if path == "/sandbox":
            return _reply(self._list(query))
        if path == "/user/whoami":
            return _reply({"data": self._whoami()})
        if path == "/billing/wallet":
            return _reply(self._billing(query, now))
        if match := re.fullmatch(r"/sandbox/(\w+)", path):
            return self._one(match[1])
        return NOT_FOUND

    # -- sandboxes ---------------------------------------------------------------------------------------------

    def _list(self, query: Query) -> dict[str, Any]:
        """Lists newest first. `labels` must all match; `is_active=true` leaves out ended ones."""
        page, per_page = _number(query, "page", 1, 10**6), _number(query, "per_page", PER_PAGE, PER_PAGE_MAX)
        found = self._matching(query)
        begin = (page - 1) * per_page
        return {
            "sandboxes": [self._row(sandbox) for sandbox in found[begin : begin + per_page]],
            "total": len(found),
            "page": page,
            "perPage": per_page,
            "hasNext": begin + per_page < len(found),
        }

    def _matching(self, query: Query) -> list[Sandbox]:
        active = query.get("is_active", ["false"])[-1].lower()
        if active not in ("true", "false"):
            raise BadQuery("is_active: must be true or false")
        pool: Iterable[Sandbox] = (self._provider.live if active == "true" else self._provider.records).values()
        labels = set(query.get("labels", []))
        if labels:
            pool = (sandbox for sandbox in pool if labels <= {sandbox.label})
        status = query.get("status", [""])[-1]
        if status:
            if status not in STATUSES:
                raise BadQuery(f"status: must be one of {', '.join(sorted(STATUSES))}")
            pool = (sandbox for sandbox in pool if sandbox.status == status)
        return list(pool)[::-1]

    def _one(self, id: str) -> Reply:
        sandbox = self._provider.records.get(id)
        return _reply(self._row(sandbox)) if sandbox else _refusal(404, "Sandbox not found")

    def _row(self, sandbox: Sandbox) -> dict[str, Any]:
        plan = self._provider.plan
        is_left_over = sandbox.label == plan.dangling_run
        return {
            "id": sandbox.id,
            "name": sandbox.name,
            "dockerImage": sandbox.image,
            "startCommand": None,
            "cpuCores": plan.cpu_cores,
            "memoryGB": plan.memory_gb,
            "diskSizeGB": plan.disk_gb,
            "diskMountPath": "/sandbox-workspace",
            "gpuCount": 0,
            "gpuType": None,
            "vm": True,
            "status": sandbox.status,
            # verifiers sets no time limit for a VM sandbox except an hour of idleness; the older run set a day.
            "timeoutMinutes": 1_440 if is_left_over else -1,
            "idleTimeoutMinutes": None if is_left_over else 60,
            "terminationReason": None,
            "environmentVars": None,
            "labels": [sandbox.label],
            "createdAt": self._time(sandbox.created),
            "updatedAt": self._time(sandbox.updated),
            "startedAt": self._time(sandbox.started),
            "terminatedAt": self._time(sandbox.ended),
            "exitCode": 137 if sandbox.error_type == "OOM_KILLED" else None,
            "errorType": sandbox.error_type,
            "errorMessage": sandbox.error_message,
            "userId": self._user,
            "teamId": None,
            "region": "us-east",
            "pendingImageBuildId": sandbox.build_id,
        }

    def _time(self, now: float | None) -> str | None:
        if now is None:
            return None
        return datetime.fromtimestamp(self._start + now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    # -- account -----------------------------------------------------------------------------------------------

    def _whoami(self) -> dict[str, Any]:
        limit = self._provider.plan.concurrent_limit
        return {
            "id": self._user,
            "email": "lab@example.org",
            "name": "Example Lab",
            "slug": "example-lab",
            "scope": {"sandbox": {"read": True, "write": True}, "billing": {"read": True, "write": False}},
            # None is "no such limit". The limit of simultaneous starts is in no answer.
            "account_limits": {
                "vm_sandbox_limit": limit,
                "sandbox_total_cpu_limit": 4_096,
                "vm_sandbox_gpu_limit": 0,
                "vm_sandbox_creation_burst_limit": 400,
                "tunnel_limit": 20,
                "tunnel_creations_per_hour_limit": 120,
                "tunnel_ttl_hours": 24,
            },
            "key_limits": {
                "max_concurrent_sandboxes": 2 * limit,
                "max_sandbox_creations_per_hour": None,
                "max_sandbox_cpu_cores": None,
                "max_sandbox_gpu_count": None,
                "max_concurrent_tunnels": None,
                "max_tunnel_creations_per_hour": None,
                "max_tunnel_ttl_hours": None,
            },
        }

    def _billing(self, query: Query, now: float) -> dict[str, Any]:
        limit, offset = _number(query, "limit", _BILLINGS, 100), _number(query, "offset", 0, 10**6, least=0)
        billed = (sandbox for sandbox in reversed(self._provider.over) if sandbox.started is not None)
        return {
            "wallet_id": self._wallet,
            "team_id": None,
            "balance_usd": round(self._provider.plan.credit_usd - self._provider.spent_usd(now), 4),
            "currency": "USD",
            "total_billings": self._provider.billed,
            "recent_billings": [self._bill(sandbox) for sandbox in islice(billed, offset, offset + limit)],
        }

    def _bill(self, sandbox: Sandbox) -> dict[str, Any]:
        assert sandbox.started is not None and sandbox.ended is not None
        hours = (sandbox.ended - sandbox.started) / 3_600.0
        return {
            "id": _id("bi", sandbox.id),
            "created_at": self._time(sandbox.ended),
            "updated_at": self._time(sandbox.ended),
            "last_billed_at": self._time(sandbox.ended),
            "amount_usd": round(hours * self._provider.plan.usd_per_hour, 6),
            "currency": "USD",
            "resource_type": "SANDBOX",
            "resource_id": sandbox.id,
        }


def _number(query: Query, name: str, default: int, most: int, least: int = 1) -> int:
    text = query.get(name, [str(default)])[-1]
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise BadQuery(f"{name}: must be between {least} and {most}")
    return int(text)


def _reply(body: object) -> Reply:
    return Reply(200, "application/json", json.dumps(body, separators=(",", ":")).encode())


def _refusal(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, "application/json", json.dumps({"detail": detail}).encode(), headers or {})


def _id(prefix: str, *parts: object) -> str:
    return prefix + hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:22]


# ---- modal api
# The read-only part of Modal's gRPC control plane, as its SDK 1.6.4 uses it.

PAGE = 100
SERVICE = "/modal.client.ModalClient/"
# Lifetime of a token, s; the SDK requests a new one before the old one expires.
_TOKEN_SECONDS = 1_200
Metadata = Mapping[str, str]


class ModalApi:
    """Answers for one workspace. Sandboxes have epoch times: the run began at `start`.

    `calls` is what a `GrpcServer` serves. `look` advances the simulation to the time of a request and locks it
    while the request is answered.

    Raises:
        ImportError: the extra is not installed.
    """

    def __init__(self, judges: Judges, seed: int, start: float, look: Callable[[Callable[[], Any]], Any]) -> None:
        self._api = import_module("modal_proto.api_pb2")
        self._judges = judges
        self._start = start
        self._look = look
        self.app = judges.plan.app
        self.token_id = "ak-" + _hash(22, seed, "token")
        self.token_secret = "as-" + _hash(22, seed, "secret")
        self._app_id = "ap-" + _hash(22, seed, "app")
        self._image_id = "im-" + _hash(22, seed, "image")
        self.calls = self._calls()

    def _calls(self) -> dict[str, Call]:
        api, empty = self._api, import_module("google.protobuf.empty_pb2").Empty
        calls = {
            "ClientHello": Call(empty, api.ClientHelloResponse, self._hello),
            "AuthTokenGet": Call(api.AuthTokenGetRequest, api.AuthTokenGetResponse, self._token),
            "AppGetOrCreate": Call(api.AppGetOrCreateRequest, api.AppGetOrCreateResponse, self._find_app),
            "SandboxListV2": Call(api.SandboxListRequest, api.SandboxListResponse, self._list),
        }
        return {SERVICE + name: call for name, call in calls.items()}

    # -- authentication ----------------------------------------------------------------------------------------

    def _check(self, metadata: Metadata) -> None:
        if (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != (
            self.token_id,
            self.token_secret,
        ):
            raise Refusal("UNAUTHENTICATED", "Token missing or not valid")

    def _hello(self, request: Any, metadata: Metadata) -> Any:
        self._check(metadata)
        return self._api.ClientHelloResponse()

    def _token(self, request: Any, metadata: Metadata) -> Any:
        """Returns a JSON web token. Its time is the wall clock's, because the SDK compares it with that."""
        self._check(metadata)
        head, body = _base64({"alg": "HS256"}), _base64({"exp": int(time.time()) + _TOKEN_SECONDS})
        return self._api.AuthTokenGetResponse(token=f"{head}.{body}.{self._sign(head, body)}")

    def _sign(self, head: str, body: str) -> str:
        return hmac.new(self.token_secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).hexdigest()

    def _check_token(self, metadata: Metadata) -> None:
        head, body, signature = (*metadata.get("x-modal-auth-token", "").split("."), "", "", "")[:3]
        if not body or signature != self._sign(head, body):
            raise Refusal("UNAUTHENTICATED", "Auth token missing or not valid")
        if json.loads(base64.urlsafe_b64decode(body + "=="))["exp"] < time.time():
            raise Refusal("UNAUTHENTICATED", "Auth token expired")

    # -- listing -----------------------------------------------------------------------------------------------

    def _find_app(self, request: Any, metadata: Metadata) -> Any:
        self._check(metadata)
        if request.object_creation_type != self._api.OBJECT_CREATION_TYPE_UNSPECIFIED:
            raise Refusal("PERMISSION_DENIED", "This token may only read")
        if request.app_name != self.app:
            raise Refusal("NOT_FOUND", f"App '{request.app_name}' not found")
        return self._api.AppGetOrCreateResponse(app_id=self._app_id)

    def _list(self, request: Any, metadata: Metadata) -> Any:
        """Lists sandboxes newest first, created before the request's time (0: any); an empty page is the end."""
        self._check(metadata)
        self._check_token(metadata)
        return self._look(lambda: self._page(request))

    def _page(self, request: Any) -> Any:
        judges = self._judges
        pool = judges.records if request.include_finished else judges.live
        found = (judge for judge in reversed(pool.values()) if self._is_asked_for(judge, request))
        return self._api.SandboxListResponse(sandboxes=[self._info(judge) for judge in islice(found, PAGE)])

    def _is_asked_for(self, judge: Judge, request: Any) -> bool:
        before = request.before_timestamp
        return (
            request.app_id in ("", self._app_id)
            and (not before or self._start + judge.created < before)
            and all((tag.tag_name, tag.tag_value) == ("run", judge.run) for tag in request.tags)
        )

    def _info(self, judge: Judge) -> Any:
        api = self._api
        return api.SandboxInfo(
            id=judge.id,
            created_at=self._start + judge.created,
            task_info=self._task(judge),
            app_id=self._app_id,
            tags=[api.SandboxTag(tag_name="run", tag_value=judge.run)],
            name=judge.name,
            image_id=self._image_id,
            regions=["us-east"],
            timeout_secs=judge.timeout_seconds,
        )

    def _task(self, judge: Judge) -> Any:
        """Protobuf's 0 means "not yet": a task without a worker has neither id nor times."""
        api = self._api
        result = api.GenericResult(
            status=judge.status,
            exception=INIT_TEXT if judge.status == INIT_FAILURE else "",
            exitcode=137 if judge.status == KERNEL_OOM_KILL else 0,
        )
        return api.TaskInfo(
            id="" if judge.enqueued is None else "ta-" + judge.id[3:],
            enqueued_at=self._time(judge.enqueued),
            started_at=self._time(judge.started),
            finished_at=self._time(judge.finished),
            result=result if judge.status else None,
            sandbox_id=judge.id,
        )

    def _time(self, now: float | None) -> float:
        return 0.0 if now is None else self._start + now


def _base64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _hash(length: int, *parts: object) -> str:
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:length]
