"""Access control: the token, the login page, and the Host and Origin checks.

Any bind address but loopback needs a token; then everything but the health checks requires it, browsers by a login
page and a signed cookie. On loopback, which all accounts of a host reach, an admin token is required for changes:
deleting, silencing, starting a check. Reading and pushing stay open, unless the server is private. Host and Origin are
checked always: a page on the internet must not reach a dashboard on a developer's machine through DNS rebinding or a
cross-site POST.
"""

import asyncio
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
# Dash reads pages by POST.
READ_PATHS = frozenset({"/_dash-update-component", "/login"})
# Seconds. Wrong tokens are answered one at a time and this late, so that they cannot be tried in masses.
WRONG_SECONDS = 0.5
ADMIN_NEEDED = (
    "this change needs the admin token: open the address with ?token= that the server printed at its start, or send "
    "Authorization: Bearer with the token in the file admin-token of its state folder"
)
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
        admin: of a server without a token: what changes require.
        private: the admin token is required for everything.
        csp: value of the Content-Security-Policy header for HTML pages, evaluated for each response.
    """

    def __init__(
        self, app: App, *, hosts: Sequence[str], token: str | None = None, admin: str | None = None,
        private: bool = False, csp: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        self._app, self._csp = app, csp
        self._hosts = frozenset(host.lower() for host in hosts)
        self._for_all = bool(token) or private
        self._token = token = token or admin
        self._wrong = asyncio.Lock()
        # Derived, so that sessions survive a restart and end when the token changes.
        self._session = hmac.new(token.encode(), b"rollscope session", hashlib.sha256).hexdigest() if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        send = self._with_headers(send)
        receive = (body := _Body(receive, _limit(scope["path"]))).receive
        if refusal is not None:
            await _refuse(scope, send, *refusal)
        elif self._token and scope["path"] == "/login" and scope["type"] == "http":
            await self._login(scope, receive, send)
        elif self._token and (given := _token_in_address(scope, headers)):
            await self._enter(scope, send, given)
        elif self._token and self._is_guarded(scope) and not self._authorised(headers):
            if "authorization" in headers:
                await self._delay()
            await self._redirect_to_login(scope, headers, send)
        else:
            await self._served(scope, body, send)

    async def _served(self, scope: Scope, body: "_Body", send: Send) -> None:
        """Runs the application. If the body turns out to be too large, the answer is 413 whatever it makes of that."""
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if begun or not body.is_too_large:
                begun = True
                await send(message)

        try:
            await self._app(scope, body.receive, answer)
        except Exception:
            if begun or not body.is_too_large:
                raise
        if body.is_too_large and not begun:
            await _refuse(scope, send, *_too_large(scope))

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
        if not length.isascii() or not length.isdigit() or int(length[:20]) > _limit(scope["path"]):
            return _too_large(scope)
        return None

    def _is_guarded(self, scope: Scope) -> bool:
        return not _is_open(scope["path"]) if self._for_all else _is_change(scope)

    async def _delay(self) -> None:
        async with self._wrong:
            await asyncio.sleep(WRONG_SECONDS)

    async def _enter(self, scope: Scope, send: Send, given: str) -> None:
        """Logs a browser in by an address with the token, as printed at the start of the server."""
        assert self._token is not None
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            await self._delay()
            await _answer(scope, send, 401, "the token in this address is not that of the server")
            return
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        query.pop("token")
        rest = urlencode(query, doseq=True)
        await self._open_session(scope, send, quote(scope["path"]) + (f"?{rest}" if rest else ""))

    async def _open_session(self, scope: Scope, send: Send, location: str) -> None:
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{COOKIE}={self._session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000{secure}"
        await _answer(scope, send, 303, "", [(b"location", location.encode()), (b"set-cookie", cookie.encode())])

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
            text = "token missing or wrong" if self._for_all else ADMIN_NEEDED
            await _refuse(scope, send, 401, text, [(b"www-authenticate", b"Bearer")])

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
            await self._delay()
            await _answer(scope, send, 401, page, [(b"content-type", b"text/html; charset=utf-8")])
            return
        await self._open_session(scope, send, quote(_next(scope["query_string"]), safe="/?&=%+-._~:"))

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


def _is_push(path: str) -> bool:
    return path in PUSH_PATHS or PUSH_PATTERN.fullmatch(path) is not None


def _is_change(scope: Scope) -> bool:
    """Does the request change more than it adds: does it delete, silence, start a check?"""
    if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return False
    path = scope["path"]
    return not (path in READ_PATHS or _is_push(path) or _is_open(path))


def _token_in_address(scope: Scope, headers: dict[str, str]) -> str:
    """The token in the address of a page that a browser opens."""
    is_page = scope["type"] == "http" and scope["method"] == "GET" and "text/html" in headers.get("accept", "")
    if not is_page or scope["path"].startswith("/api/"):
        return ""
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]


def _too_large(scope: Scope) -> tuple[int, str]:
    return 413, f"a request body may have at most {_limit(scope['path'])} bytes"


def _limit(path: str) -> int:
    return PUSH_BYTES if _is_push(path) else BODY_BYTES


class _Body:
    """A request body of at most ``limit`` bytes, also where the header states no length (chunked bodies)."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._seen = receive, limit, 0

    @property
    def is_too_large(self) -> bool:
        return self._seen > self._limit

    async def receive(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.is_too_large else message


LOGIN_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Rollscope</title>
<meta name="viewport" content="width=device-width"><style>body{font:16px system-ui;display:grid;place-items:center;
min-height:90vh;color-scheme:light dark}form{display:grid;gap:12px;width:min(320px,90vw)}input,button{font:inherit;
padding:10px;border-radius:8px;border:1px solid #8888}</style><form method="post" action="/login?next=@next@">
<h1>Rollscope</h1><label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button>Open the dashboard</button></form></html>"""


async def _refuse(
    scope: Scope, send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Answers an error: JSON for API and OTLP paths, plain text for pages."""
    if scope["path"].startswith(("/api/", "/v1/")):
        kind = (b"content-type", b"application/json")
        await _answer(scope, send, status, json.dumps({"detail": text}), [kind, *headers])
    else:
        await _answer(scope, send, status, text, [*headers])


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
