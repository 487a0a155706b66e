"""Files written by other systems: read on change, off the event loop, and never assumed to be complete.

Writers may not write atomically. A file that cannot be read completely keeps the last list, and so does a missing file
for a while. Read-only.
"""

import asyncio
import glob
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
import yaml

from collectors.model import Limits, ScrapeError
from collectors.transport import http
from server.lib.file_thread import FileReadThread, StillReadingError
from server.lib.outbound_policy import refuse_target
from server.targets.model import BYTES, DiscoveryError, Found, Listing, Parsed

# The list of a missing file is kept for this long, s. Writers may delete a file first; a scheduler may take minutes.
KEEP_SECONDS = 300.0
# Most files that a pattern may match.
FILES = 100

T = TypeVar("T")
Signature = tuple[int, int, int]
_NOTHING: Signature = (0, 0, 0)


@dataclass(slots=True)
class FileState(Generic[T]):
    """One file as read last. ``gone``: since when it is missing (epoch s)."""

    value: T | None = None
    signature: Signature = _NOTHING
    error: str = ""
    missing_since: float | None = None
    # A text without a final line feed may be incomplete: it is accepted if it is unchanged at the next read.
    settling: Signature = _NOTHING


@dataclass(slots=True)
class WatchedFile(Generic[T]):
    """Files by path or pattern, each parsed when it changes.

    Args:
        patterns: paths; the last part of one may contain ``*``.
        parse: (bytes, file) -> its content; raises `DiscoveryError`.
    """

    patterns: Sequence[str]
    parse: Callable[[bytes, Path], T]
    files: dict[str, FileState[T]] = field(default_factory=dict)
    _thread: FileReadThread[bool] = field(default_factory=lambda: FileReadThread("discovery"))

    async def look(self, now: float) -> bool:
        """Reads changed files; did any change? One read at a time: a hanging file system blocks only a thread.

        Raises:
            DiscoveryError: the previous read has not returned.
        """
        try:
            return await self._thread.read(partial(self.read, now))
        except StillReadingError as error:
            raise DiscoveryError(str(error)) from None

    def read(self, now: float) -> bool:
        """Like `look`, on the calling thread."""
        changed, files = False, dict[str, FileState[T]]()
        for name in dict.fromkeys([*self._matches(), *self.files]):
            state = self.files.get(name) or FileState()
            before = state.value
            self._read_one(name, state, now)
            changed = changed or state.value != before
            # A missing file found by a pattern is forgotten with its list; a named file is still expected.
            if state.value is not None or state.missing_since is None or name in self.patterns:
                files[name] = state
        self.files = files
        return changed

    def _matches(self) -> list[str]:
        paths: list[str] = []
        for pattern in self.patterns:
            paths += sorted(glob.glob(pattern))[:FILES] if "*" in Path(pattern).name else [pattern]
        return paths

    def _read_one(self, name: str, state: FileState[T], now: float) -> None:
        try:
            stat = Path(name).stat()
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if signature == state.signature and state.missing_since is None:
                return
            with Path(name).open("rb") as file:
                data = file.read(BYTES + 1)
        except OSError as error:
            self._missing(name, state, error, now)
            return
        state.missing_since = None
        if len(data) > BYTES:
            state.error, state.signature = f"{name}: larger than {BYTES} bytes", signature
        elif data.endswith((b"\n", b"]", b"}")) or signature == state.settling:
            self._parsed(name, state, data, signature)
        else:
            state.error = f"{name}: is being written"
        state.settling = signature

    def _parsed(self, name: str, state: FileState[T], data: bytes, signature: Signature) -> None:
        try:
            state.value = self.parse(data, Path(name))
        except DiscoveryError as error:
            # Without its signature, so that it is read again until it is valid.
            state.error, state.signature = f"{name}: {error}", _NOTHING
        else:
            state.error, state.signature = "", signature

    def _missing(self, name: str, state: FileState[T], error: OSError, now: float) -> None:
        state.missing_since = now if state.missing_since is None else state.missing_since
        state.signature = _NOTHING
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({type(error).__name__})"
        if now - state.missing_since > KEEP_SECONDS:
            state.value = None
        remains = f"; its last list is kept for {KEEP_SECONDS / 60:.0f} minutes" if state.value is not None else ""
        state.error = f"{name}: {why}{remains}"

    def error(self) -> str:
        """Returns the errors of all files in one line."""
        return "; ".join(state.error for state in self.files.values() if state.error)


# ---- parsing
# Parses JSON and YAML of external files, with clear errors.

# The C loader reads a list of 10,000 targets in a tenth of a second, the Python loader in seconds.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def from_json(data: bytes) -> Any:
    """Parses a JSON document.

    Raises:
        DiscoveryError: invalid, with the line.
    """
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise DiscoveryError(f"invalid or incomplete JSON: line {error.lineno}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DiscoveryError(f"invalid JSON: {type(error).__name__}") from None


def from_yaml(data: bytes) -> Any:
    """Parses a YAML document. An empty one is refused, because it is probably being written.

    Raises:
        DiscoveryError: invalid, with the line.
    """
    try:
        document = yaml.load(data, _LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        raise DiscoveryError(f"invalid or incomplete YAML: line {line}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DiscoveryError(f"invalid YAML: {type(error).__name__}") from None
    if document is None:
        raise DiscoveryError("is empty; an empty list is written []")
    return document


# ---- http polling
# Lists requested over HTTP: one bounded GET per interval; the last good list counts until the next.

LIMITS = Limits(body_bytes=BYTES, timeout_seconds=10.0)


async def document(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], limits: Limits = LIMITS) -> Any:
    """Returns the JSON answer of a GET; None for a 404 or 405.

    Raises:
        DiscoveryError: no valid answer.
    """
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            plain = {**headers, "accept-encoding": "identity"}
            async with client.stream("GET", url, headers=plain, follow_redirects=False) as response:
                if response.status_code in (404, 405):
                    return None
                _check(response)
                return from_json(await http.body(response, limits))
    except (TimeoutError, httpx.TimeoutException):
        raise DiscoveryError(f"no complete answer within {limits.timeout_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
        raise DiscoveryError(http.sentence(error)) from None
    except ScrapeError as error:
        raise DiscoveryError(str(error)) from None


def _check(response: httpx.Response) -> None:
    if response.status_code != 200:
        raise DiscoveryError(http.status_text(response.status_code))
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise DiscoveryError("the answer is not application/json")


def client(limits: Limits = LIMITS) -> httpx.AsyncClient:
    """Returns an HTTP client, one per list."""
    return httpx.AsyncClient(timeout=limits.timeout_seconds, follow_redirects=False, trust_env=False)


@dataclass(slots=True)
class HttpList:
    """A list that is requested every `interval_seconds`; see `Provider`. Subclasses implement the request.

    ``headers``: sent with every request (a bearer token, if the list needs one).
    """

    url: str
    interval_seconds: float = 60.0
    limits: Limits = LIMITS
    headers: Mapping[str, str] = field(default_factory=dict)
    _client: httpx.AsyncClient | None = None
    _due: float = float("-inf")
    _last: tuple[Found, ...] = ()
    _error: str = ""
    _left_out: str = ""

    async def targets(self, now: float) -> Listing:
        """See `Provider`. After an error the last list counts; an empty list is a valid list."""
        if now < self._due:
            return Listing(self._last, error=self._error, left_out=self._left_out)
        self._due = now + self.interval_seconds
        before = self._last
        try:
            if refusal := refuse_target(self.url):
                raise DiscoveryError(f"its address {refusal}")
            self._client = self._client or client(self.limits)
            parsed = await self.ask(self._client)
        except DiscoveryError as error:
            remains = f"; its last {len(before)} targets are kept" if before else ""
            self._error = f"{self.name()}: {error}{remains}"
            return Listing(before, error=self._error)
        self._last = tuple(dict.fromkeys(parsed.found))
        self._error, self._left_out = "", "; ".join(f"{self.name()}: {problem}" for problem in parsed.problems)
        return Listing(self._last, self._last != before, left_out=self._left_out)

    def name(self) -> str:
        """Name of the list in errors; never its URL, which may contain a secret."""
        return "the list"

    async def ask(self, client: httpx.AsyncClient) -> Parsed:
        """Sends one request; raises `DiscoveryError`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes its connections."""
        if self._client is not None:
            await self._client.aclose()
