"""Reads limits and balance of an account, at a lower rate than the listing and without delaying it."""

import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from collectors.formats.rows import mapping as mapping
from collectors.formats.rows import objects as objects
from collectors.model import FailureCause, Limits, Reading, Sample, Sandbox, ScrapeError, State
from collectors.transport import rest

# ---- causes
# Maps providers' error texts and codes to canonical failure causes.

# The order matters: the text of a failed image pull often contains "timed out", and so does that of missing capacity.
_PATTERNS: tuple[tuple[FailureCause, str], ...] = (
    ("oom", r"\boom\b|oom[_ ]?kill|out[_ ]of[_ ]memory|cannot allocate memory"),
    ("rate_limit", r"rate[_ ]?limit|too many requests|throttl"),
    ("credit", r"\bcredits?\b|payment|suspended|insufficient (?:funds|balance)"),
    ("quota", r"quota|limit (?:exceeded|reached)|maximum (?:allowed|number)|exceed\w* (?:the |your )?(?:\w+ )?limit"),
    (
        "image",
        r"image|manifest (?:unknown|for)|\bregistry\b|dockerfile|build[_ ](?:failed|error)|pull access denied|"
        r"snapshot .*(?:not found|failed|missing)",
    ),
    (
        "capacity",
        r"capacity|no (?:available |suitable |compatible |healthy )?(?:runner|node|host|worker|gpu)s?\b|"
        r"unschedulable|evict|preempt|out[_ ]of[_ ]disk|no space left|insufficient|resource[_ ]?exhausted",
    ),
    ("timeout", r"time[_ ]?out|timed[_ ]out|deadline"),
    ("auth", r"unauthori[sz]ed|forbidden|permission|access denied|credentials"),
    ("internal", r"internal|crash|panic|health[_ ]?check|execution[_ ]failed|node (?:lost|failure)|unexpected"),
)
_CAUSES = tuple((cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _PATTERNS)

# An HTTP status at the start of a text or marked as one; other numbers of three digits do not count.
_STATUS = re.compile(r"(?:^|http(?:/[\d.]+)?|status(?: code)?|error|code)[\s:=(]{0,3}([45]\d\d)\b", re.IGNORECASE)
_STATUSES: dict[str, FailureCause] = {
    "401": "auth",
    "402": "credit",
    "403": "auth",
    "408": "timeout",
    "429": "rate_limit",
}


def cause_of(*texts: str) -> FailureCause:
    """The cause in the first text that has one. Pass codes before messages."""
    return next(_causes(texts), "unknown")


def _causes(texts: tuple[str, ...]) -> Iterator[FailureCause]:
    for text in texts:
        for cause, pattern in _CAUSES:
            if text and pattern.search(text):
                yield cause
        status = _STATUS.search(text or "")
        if status and (status[1] in _STATUSES or status[1].startswith("5")):
            yield _STATUSES.get(status[1], "internal")


# ---- failures
# Maps texts of container runtimes and schedulers to canonical failure causes.

# Checked before the providers' texts. "OutOfmemory" means a node without capacity, not a killed process. The scheduler
# writes "0/12 nodes are available". runc's "no such file" means that the image lacks the command.
_FIRST: tuple[tuple[FailureCause, str], ...] = (
    ("rate_limit", r"too ?many ?requests|rate[_ ]limit|creation rate"),
    (
        "capacity",
        r"outof(?:cpu|memory|pods|ephemeral)|nodes are available|node.?(?:lost|shutdown|affinity)"
        r"|terminated by node|disk.?pressure|unexpectedadmission|low on resource",
    ),
    ("image", r"\bpull(?:ing)?\b|no such file or directory|executable file not found|exec format error"),
)
# Checked after the providers' texts, because a runtime wraps the text of the original error.
_LAST: tuple[tuple[FailureCause, str], ...] = (
    (
        "internal",
        r"runtime create|container_linux|runc|cannotrun|starterror|createcontainer|runcontainer|mount"
        r"|reconciler|daemon|network|connection (?:refused|reset)|driver",
    ),
)


def cause(*texts: str) -> FailureCause:
    """The cause in the first text that has one. Pass codes and reasons before messages."""
    for text in texts:
        for result in (_match(_FIRST, text), cause_of(text), _match(_LAST, text)):
            if result != "unknown":
                return result
    return "unknown"


def _match(table: tuple[tuple[FailureCause, str], ...], text: str) -> FailureCause:
    return next((result for result, pattern in table if re.search(pattern, text, re.IGNORECASE)), "unknown")


# ---- listing
# Completeness of a listing, and the rows and values of a poll that could not be used.

# A listing that takes longer is reported as incomplete, because the numbers derived from it are that old.
SLOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a listing a poll returned.

    Attributes:
        listed: the poll's records contain every live sandbox.
        more: the listing continues with the next poll.
        partial: message for the user about an incomplete listing.
    """

    listed: bool
    more: bool = False
    partial: str = ""

    def and_(self, other: "Extent") -> "Extent":
        """The extent of two listings that are used as one."""
        return Extent(self.listed and other.listed, self.more or other.more, self.partial or other.partial)


def under_way(count: int, seconds: float) -> Extent:
    """Extent of a listing that has returned ``count`` rows in ``seconds`` and continues."""
    return Extent(False, True, f"listing incomplete: {count} so far" if seconds > SLOW_SECONDS else "")


def ended(count: int, unread: int, *, cut: bool, lost: int = 0) -> Extent:
    """Extent of a listing of ``count`` rows that was read to its end, or to the maximum that is read (``cut``).

    Args:
        unread: rows that could not be parsed: each may be a live sandbox.
        lost: live sandboxes of earlier listings that are missing.
    """
    doubts = (
        (cut, f"it continues after {count} rows, the maximum that is read"),
        (unread, f"{unread} rows could not be read"),
        (lost, f"{lost} live sandboxes are missing from it"),
    )
    reason = next((text for doubt, text in doubts if doubt), "")
    return Extent(not reason, partial=f"listing incomplete: {reason}" if reason else "")


@dataclass(slots=True)
class Tally:
    """Counts what a poll could not use: unmapped values, dropped rows with the first reason, and failed requests."""

    unmapped: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    why: str = ""
    gaps: list[str] = field(default_factory=list)

    def drop(self, why: str) -> None:
        """Counts a dropped row."""
        self.dropped += 1
        self.why = self.why or why

    def gap(self, why: str) -> None:
        """Records that a request in addition to the listing failed."""
        self.gaps.append(why)

    def reading(
        self, provider: str, sandboxes: Iterable[Sandbox], extent: Extent, samples: Iterable[Sample] = ()
    ) -> Reading:
        """The reading of the poll, with the counts of this tally."""
        records = tuple(sandboxes)
        return Reading(
            samples=tuple(samples),
            sandboxes=records,
            listed=(provider,) if extent.listed else (),
            more=extent.more,
            partial=extent.partial,
            gaps=tuple(self.gaps),
            unmapped=dict(self.unmapped),
            dropped=self.dropped,
            why_dropped=self.why,
            samples_scraped=len(records),
        )

    def unknown(self, kind: str, value: str) -> None:
        """Counts a provider's value without a canonical one. The number of different values is bounded."""
        key = f"{kind}={value[:64]}"
        self.unmapped[key if key in self.unmapped or len(self.unmapped) < 100 else f"{kind}=..."] += 1


# Interval of the requests: limits and balances change slowly. A gauge holds that long (Collector.report_seconds).
ACCOUNT_SECONDS = 30.0


def due(state: State, begun: float) -> bool:
    """Is the next request due? If so it counts as sent. ``begun``: monotonic seconds, used without an event time.

    The interval is in event time (``state["now"]``), because a replayed hour passes in seconds and needs all its
    balances.
    """
    now, last = state.get("now", begun), state.get("account_read")
    if last is not None and 0 <= now - last < ACCOUNT_SECONDS:
        return False
    state["account_read"] = now
    return True


async def fetch(client: httpx.AsyncClient, path: str, params: rest.Params, limits: Limits, tally: Tally) -> Any:
    """The JSON at ``path``; None, and a gap, if the key has no access to it or there is no answer.

    Takes at most a quarter of the poll's time.

    Raises:
        ScrapeError: ``throttled`` and ``unreachable``, because the listing would fail with them, too.
    """
    try:
        quarter = replace(limits, timeout_seconds=limits.timeout_seconds / 4.0)
        return (await rest.get_json(client, path, params, quarter)).json
    except ScrapeError as error:
        if error.kind in ("throttled", "unreachable"):
            raise
        tally.gap(f"{path.rsplit('/', 1)[-1]}: {error}")
        return None


def quota(resource: str, used: float | None, limit: float | None) -> list[Sample]:
    """Used and granted amount of a resource. Unknown and negative values (no limit) are left out."""
    labels = (("resource", resource),)
    pairs = (("sandbox_quota_used", used), ("sandbox_quota_limit", limit))
    return [Sample(metric, value, labels) for metric, value in pairs if value is not None and value >= 0.0]


def configured(options: Mapping[str, str]) -> list[Sample]:
    """Limits from the configuration (``limit_RESOURCE``), for providers that do not report them."""
    samples = []
    for key, value in options.items():
        if key.startswith("limit_"):
            samples += quota(key.removeprefix("limit_"), None, rest.number(value))
    return samples


# ---- own client
# Opens a separate HTTP client for targets that need a unix socket, a private CA or a token file.

# Longest token that is read.
TOKEN_BYTES = 64 << 10
# Parallel connections of one poll.
CONNECTIONS = 8
TLS_OPTIONS = ("ca_file", "cert_file", "key_file")


@asynccontextmanager
async def opened(
    client: httpx.AsyncClient, options: Mapping[str, str], limits: Limits, socket: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    """The target's client, or a copy of it that uses ``socket`` or the CA, certificate and token of the options.

    Options: ``ca_file``, ``cert_file``, ``key_file`` (PEM), ``token_file`` (sent as a bearer token).

    Raises:
        ScrapeError: ``missing`` if a file of the options cannot be read or used.
    """
    token = _token(options.get("token_file", ""))
    if not socket and not token and not any(options.get(name) for name in TLS_OPTIONS):
        yield client
        return
    headers = httpx.Headers(client.headers)
    if token:
        headers["authorization"] = f"Bearer {token}"
    pool = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    transport = (
        httpx.AsyncHTTPTransport(uds=socket, limits=pool)
        if socket
        else httpx.AsyncHTTPTransport(verify=_context(options), limits=pool, trust_env=False)
    )
    async with httpx.AsyncClient(
        base_url=client.base_url,
        headers=headers,
        params=client.params,
        timeout=limits.timeout_seconds,
        transport=transport,
        follow_redirects=False,
        trust_env=False,
    ) as separate_client:
        yield separate_client


def _token(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            token = file.read(TOKEN_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        raise ScrapeError("missing", "the file of option token_file cannot be read") from None
    if not token.isprintable():
        raise ScrapeError("missing", "the file of option token_file contains no token")
    return token


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca_file") or None)
        if options.get("cert_file"):
            # Without a password function OpenSSL would prompt for the password of an encrypted key on the terminal.
            context.load_cert_chain(options["cert_file"], options.get("key_file") or None, password=lambda: b"")
    except (OSError, ValueError):
        raise ScrapeError("missing", "ca_file, cert_file or key_file cannot be read as PEM") from None
    return context
