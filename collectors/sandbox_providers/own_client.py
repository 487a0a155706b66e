"""A client of the collector's own, where the target's cannot do: a unix socket, a private CA, a token in a file.

Opened and closed within one poll: nothing is left open when a target is dropped, and files that are rotated (a
Kubernetes service account's token, hourly) are read anew. Local handshakes cost a millisecond or two.
"""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from collectors.model import Limits, ScrapeError

TOKEN_BYTES = 64 << 10
CONNECTIONS = 8
TLS_OPTIONS = ("ca_file", "cert_file", "key_file")


@asynccontextmanager
async def opened(
    client: httpx.AsyncClient, options: Mapping[str, str], limits: Limits, socket: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    """The target's client, or one like it through ``socket`` or with the options' CA, certificate and token.

    Options: ``ca_file``, ``cert_file``, ``key_file`` (PEM), ``token_file`` (sent as a bearer token).

    Raises:
        ScrapeError: ``missing`` when a file of the options cannot be read or used.
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
    ) as own:
        yield own


def _token(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            token = file.read(TOKEN_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        raise ScrapeError("missing", "the file of option token_file cannot be read") from None
    if not token.isprintable():
        raise ScrapeError("missing", "the file of option token_file holds no token")
    return token


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca_file") or None)
        if options.get("cert_file"):
            # An encrypted key must fail here, not ask for its password on the server's terminal.
            context.load_cert_chain(options["cert_file"], options.get("key_file") or None, password=lambda: b"")
    except (OSError, ValueError):
        raise ScrapeError("missing", "ca_file, cert_file or key_file cannot be read as PEM") from None
    return context
