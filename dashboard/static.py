"""Static files, compressed once and cached: Dash reads and hashes 4.8 MB of plotly.js on every load, uncompressed.

An ASGI layer around the app. The first request of a file is answered by Dash, compressed on a thread and
kept; later ones cost a dictionary look-up, and a browser that has the file gets 304. Files that are no files of Dash
(bundles) are given.
"""

import asyncio
import gzip
import hashlib
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FOLDERS = ("/_dash-component-suites/", "/assets/")
# `dash_renderer.v4_4_1m1731.min.js`: Dash puts version and time into the name; our assets carry `?m=`.
_FINGERPRINT = re.compile(r"\.v[\w-]+m\d+\.")
_FOREVER = "public, max-age=31536000, immutable"
# Below this the header costs more than compression saves.
_SMALL = 500
# brotli 9 takes 0.4 s for plotly.js and comes within 11% of level 11, which takes ten.
_BROTLI, _GZIP = 9, 6
# Charts are lines and areas: the basic edition has those, and is a third of the whole (0.4 of 1.5 MB on the wire).
_PLOTLY = "/plotly/package_data/plotly.min.js"
_VERSION = re.compile(rb"v\d+\.\d+\.\d+")
_VENDOR = Path(__file__).parent / "vendor" / "plotly-basic.min.js"
# Compressed per request: level 4 takes 2 ms for a page's first load.
_ANSWERS, _LARGE, _QUICK = ("/_dash-update-component", "/_dash-layout"), 8000, 4
# A bound on the memory of hostile query strings; the whole dashboard is about forty files.
_MOST = 200


@dataclass(frozen=True, slots=True)
class CompressedFile:
    """A file in all its encodings."""

    kind: bytes
    etag: bytes
    bodies: MutableMapping[str, bytes]


class Static:
    """``api.add_middleware(Static)``: inside anything that checks access, outside Dash.

    ``files``: contents of further files, by their path below ``prefix``.
    """

    def __init__(self, app: ASGIApp, prefix: str = "", files: Mapping[str, bytes] | None = None) -> None:
        self.app = app
        self._given = {f"{prefix.rstrip('/')}/{path}": body for path, body in (files or {}).items()}
        self._folders = tuple(prefix.rstrip("/") + folder for folder in _FOLDERS)
        self._files: dict[tuple[str, bytes], CompressedFile] = {}
        self._locks: dict[tuple[str, bytes], asyncio.Lock] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or not self._ours(scope["path"]):
            await self.app(scope, receive, send)
            return
        file = await self._file(scope, receive, send)
        if file is not None:
            await _answer(file, scope, send)

    def _ours(self, path: str) -> bool:
        return path.startswith(self._folders)

    async def _file(self, scope: Scope, receive: Receive, send: Send) -> CompressedFile | None:
        """The cached file; None when the app answered something else, which is then already sent."""
        key = (scope["path"], scope.get("query_string", b""))
        if key in self._files:
            return self._files[key]
        # One compression per file, however many browsers open at once after a start.
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key in self._files:
                return self._files[key]
            try:
                return await self._first(key, scope, receive, send)
            finally:
                self._locks.pop(key, None)

    async def _first(self, key: tuple[str, bytes], scope: Scope, receive: Receive, send: Send) -> CompressedFile | None:
        messages: list[Message] = []

        async def collect(message: Message) -> None:
            messages.append(message)

        if scope["path"] in self._given:
            messages = _messages(self._given[scope["path"]], _kind(scope["path"]))
        elif scope["path"].endswith(_PLOTLY) and (small := await asyncio.to_thread(_small_plotly)) is not None:
            messages = small
        else:
            await self.app(_plain(scope), receive, collect)
        if messages[0]["status"] != 200:
            for message in messages:
                await send(message)
            return None
        file = await asyncio.to_thread(_compress, messages)
        if len(self._files) < _MOST:
            self._files[key] = file
        return file


class Packed:
    """Compresses the long answers of Dash: a page is 45 kB of tree and 120 kB of numbers. A tick is left alone."""

    def __init__(self, app: ASGIApp, prefix: str = "") -> None:
        self._app, self._paths = app, tuple(prefix.rstrip("/") + path for path in _ANSWERS)
        self._packer = GZipMiddleware(app, minimum_size=_LARGE, compresslevel=_QUICK)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and scope["path"] in self._paths
        await (self._packer if ours else self._app)(scope, receive, send)


def _small_plotly() -> list[Message] | None:
    """What `make setup` fetched, as the app would answer with it; None: there is none, or it is of another version."""
    try:
        body, whole = _VENDOR.read_bytes(), files("plotly") / "package_data" / "plotly.min.js"
        with whole.open("rb") as file:
            if _VERSION.findall(body[:200]) != _VERSION.findall(file.read(200)):
                return None
    except OSError:
        return None
    return _messages(body, b"application/javascript")


def _messages(body: bytes, kind: bytes) -> list[Message]:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
    return [start, {"type": "http.response.body", "body": body}]


def _kind(path: str) -> bytes:
    return b"text/css; charset=utf-8" if path.endswith(".css") else b"text/javascript; charset=utf-8"


def _plain(scope: Scope) -> Scope:
    """The same request as an unconditional GET, so that the answer is the whole file."""
    drop = (b"if-none-match", b"if-modified-since", b"accept-encoding", b"range")
    return {**scope, "method": "GET", "headers": [(k, v) for k, v in scope["headers"] if k not in drop]}


def _compress(messages: list[Message]) -> CompressedFile:
    body = b"".join(message.get("body", b"") for message in messages[1:])
    kind = dict(messages[0]["headers"]).get(b"content-type", b"application/octet-stream")
    etag = b'"' + hashlib.sha256(body).hexdigest()[:20].encode() + b'"'
    bodies = {"": body}
    if len(body) >= _SMALL:
        packed = {"br": brotli.compress(body, quality=_BROTLI), "gzip": gzip.compress(body, _GZIP, mtime=0)}
        bodies |= {name: data for name, data in packed.items() if len(data) < len(body)}
    return CompressedFile(kind, etag, bodies)


def _accepted(file: CompressedFile, headers: dict[bytes, bytes]) -> str:
    """The best encoding that the browser takes; ``q=0`` forbids."""
    wanted: dict[str, Any] = {}
    for part in headers.get(b"accept-encoding", b"").decode("latin-1").split(","):
        name, _, quality = part.partition(";")
        wanted[name.strip().lower()] = re.fullmatch(r"\s*q=0(\.0*)?\s*", quality) is None
    return next((name for name in ("br", "gzip") if wanted.get(name) and name in file.bodies), "")


async def _answer(file: CompressedFile, scope: Scope, send: Send) -> None:
    request = dict(scope["headers"])
    fresh = _FINGERPRINT.search(scope["path"]) or scope.get("query_string", b"").startswith(b"m=")
    headers = [
        (b"etag", file.etag),
        # Without a fingerprint the browser revalidates each time and gets 304.
        (b"cache-control", (_FOREVER if fresh else "no-cache").encode()),
        (b"vary", b"accept-encoding"),
    ]
    if _has(request.get(b"if-none-match", b""), file.etag):
        await _send(send, 304, headers, b"")
        return
    name = _accepted(file, request)
    body = file.bodies[name]
    headers += [(b"content-type", file.kind), (b"content-length", str(len(body)).encode())]
    headers += [(b"content-encoding", name.encode())] if name else []
    await _send(send, 200, headers, b"" if scope["method"] == "HEAD" else body)


def _has(etags: bytes, etag: bytes) -> bool:
    # Proxies weaken tags; for a GET a weak match is a match.
    return any(tag.strip().removeprefix(b"W/") in (etag, b"*") for tag in etags.split(b","))


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
