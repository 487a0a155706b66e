"""Access control: the token, the login page, and the Host and Origin checks.

Loopback needs no token. Any other bind address does; then everything but the health checks requires it,
browsers by a login page and a signed cookie. Host and Origin are checked always: a page on the internet
must not reach a dashboard on a developer's machine through DNS rebinding or a cross-site POST.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "rollscope_session"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
# What follows is a token of its own: a trainer's bare GET can carry no header.
HEARTBEAT_PATH = "/api/v1/heartbeat/"
# A login form with a token; anything longer is not one.
LOGIN_BYTES = 4096
# The largest request there is: a browser asking for its charts. Checked before anything is parsed.
BODY_BYTES = 1 << 20
# But a push: what a collector of a hundred engines sends at once is some 5 MB.
PUSH_BYTES = 16 << 20
PUSH_PATHS = frozenset({"/api/v1/write", "/v1/metrics", "/api/v1/readings"})
# 10,000 records with their times and texts: the most that one body may hold.
PUSH_PATTERN = re.compile(r"/api/v1/runs/[^/]+/(sandboxes|rollouts|events)")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def host_of(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1 : header.find("]")].lower()
    return header.rsplit(":", 1)[0].lower() if ":" in header else header.lower()


class Gate:
    """ASGI middleware around everything, HTTP and WebSocket alike: host, origin, token, security headers.

    Args:
        hosts: names a Host header may carry; empty allows any (a token is then required by the caller).
        token: None on loopback.
        csp: value of the Content-Security-Policy header for HTML pages, evaluated for each response.
    """

    def __init__(
        self, app: App, *, hosts: Sequence[str], token: str | None = None, csp: Callable[[], str] | None = None
    ) -> None:
        self._app, self._csp = app, csp
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token
        # Derived, so that sessions survive a restart and end when the token changes.
        self._session = hmac.new(token.encode(), b"rollscope session", hashlib.sha256).hexdigest() if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        send, receive = self._with_headers(send), _bounded(receive, _limit(scope["path"]))
        if refusal is not None:
            await _refuse(scope, send, *refusal)
        elif self._token and scope["path"] == "/login" and scope["type"] == "http":
            await self._login(scope, receive, send)
        elif self._token and not _is_open(scope["path"]) and not self._authorised(headers):
            await self._redirect_to_login(scope, headers, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if self._hosts and host_of(headers.get("host", "")) not in self._hosts:
            return 421, "this host name is not allowed: add it to [server] allowed_hosts"
        # Names never contain NUL, and PostgreSQL would refuse it in the middle of a query.
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return 400, "the path or the query contains a NUL character"
        # Decoders replace such bytes by U+FFFD, so that different names would become one.
        if not all(map(_is_utf8, (scope.get("raw_path") or b"", scope.get("query_string", b"")))):
            return 400, "the path or the query is not UTF-8"
        origin = headers.get("origin")
        writes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if writes and origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            return 403, "cross-origin requests are refused"
        length = headers.get("content-length", "0")
        limit = _limit(scope["path"])
        if not length.isascii() or not length.isdigit() or int(length[:20]) > limit:
            return 413, f"a request body may have at most {limit} bytes"
        return None

    def _authorised(self, headers: dict[str, str]) -> bool:
        assert self._token is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Header bytes were read as latin-1; the token may be any UTF-8.
        if scheme.lower() == "bearer" and secrets.compare_digest(given.encode("latin-1"), self._token.encode()):
            return True
        # Parsed by hand: the standard parser stops at the first malformed cookie of another application, and
        # cookies are shared by all ports of a host.
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        cookies = [value for name, _, value in pairs if name == COOKIE]
        return any(secrets.compare_digest(value.encode("latin-1"), self._session.encode()) for value in cookies)

    async def _redirect_to_login(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        browser = scope["type"] == "http" and "text/html" in headers.get("accept", "")
        if browser:
            # A link in a notification must open its moment, also if the user must log in first.
            target = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
            location = "/login?" + urlencode({"next": target})
            await _answer(scope, send, 303, "", [(b"location", location.encode())])
        else:
            await _answer(scope, send, 401, "token missing or wrong", [(b"www-authenticate", b"Bearer")])

    async def _login(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = LOGIN_PAGE.replace("@next@", quote(_next(scope["query_string"]), safe=""))
        if scope["method"] != "POST":
            await _answer(scope, send, 200, page, [(b"content-type", b"text/html; charset=utf-8")])
            return
        body = b""
        more = True
        while more and len(body) <= LOGIN_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        assert self._token is not None
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            await _answer(scope, send, 401, page, [(b"content-type", b"text/html; charset=utf-8")])
            return
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{COOKIE}={self._session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000{secure}"
        location = quote(_next(scope["query_string"]), safe="/?&=%+-._~:")
        await _answer(scope, send, 303, "", [(b"location", location.encode()), (b"set-cookie", cookie.encode())])

    def _with_headers(self, send: Send) -> Send:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                headers += [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin")]
                html = any(name == b"content-type" and value.startswith(b"text/html") for name, value in headers)
                if html and self._csp is not None:
                    headers.append((b"content-security-policy", self._csp().encode()))
                message["headers"] = headers
            await send(message)

        return wrapped


def _is_utf8(quoted: bytes) -> bool:
    try:
        unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        return False
    return True


def _next(query: bytes) -> str:
    """The page after the login: a path of this server, never another host (``//host``, ``/\\host``)."""
    target = parse_qs(query.decode("latin-1")).get("next", ["/"])[0]
    is_local = target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
    return target if is_local and len(target) < LOGIN_BYTES else "/"


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(HEARTBEAT_PATH)


def _limit(path: str) -> int:
    return PUSH_BYTES if path in PUSH_PATHS or PUSH_PATTERN.fullmatch(path) else BODY_BYTES


def _bounded(receive: Receive, limit: int) -> Receive:
    """Limits the size of a request body also where the header states no length (chunked bodies)."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > limit else message

    return limited


LOGIN_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Rollscope</title>
<meta name="viewport" content="width=device-width"><style>body{font:16px system-ui;display:grid;place-items:center;
min-height:90vh;color-scheme:light dark}form{display:grid;gap:12px;width:min(320px,90vw)}input,button{font:inherit;
padding:10px;border-radius:8px;border:1px solid #8888}</style><form method="post" action="/login?next=@next@">
<h1>Rollscope</h1><label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button>Open the dashboard</button></form></html>"""


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    """Answers an error: JSON for API and OTLP paths, plain text for pages."""
    if scope["path"].startswith(("/api/", "/v1/")):
        headers = [(b"content-type", b"application/json")]
        await _answer(scope, send, status, json.dumps({"detail": text}), headers)
    else:
        await _answer(scope, send, status, text)


async def _answer(
    scope: Scope, send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text[:100]})
        return
    names = {name for name, _ in headers or []}
    kind = [] if b"content-type" in names else [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *(headers or [])]})
    await send({"type": "http.response.body", "body": text.encode()})
