"""Opens a separate HTTP client for targets that need a unix socket, a private CA or a token file.

The client is closed at the end of each poll. So nothing stays open when a target is dropped, and rotated files (the
token of a Kubernetes service account, hourly) are read again. A local handshake costs 1 to 2 ms.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from collectors.model import Limits, ScrapeError

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
