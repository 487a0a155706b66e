"""Reads a SWE-ReX runtime: is the server inside a sandbox alive? (`GET /is_alive`)

One target is one server. States and times of its sandbox come from the collector of the provider that SWE-ReX deploys
to; providers do not report whether the server inside answers. SWE-ReX has no metrics, no list and no times. Spin-up is
in its log lines ("Runtime started in X s").
"""

import hashlib
from collections.abc import Mapping

import httpx

from collectors.model import Collector, Limits, Reading, Sandbox, ScrapeError, State
from collectors.transport.rest import clean, get_json, text, total_timeout


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads the server's state. "Not alive" is a valid answer (running but unreachable); no answer is an error.

    Raises:
        ScrapeError: as `rest.get_json`; ``garbage`` for any other answer.
    """
    options: Mapping[str, str] = state.get("options") or {}
    async with total_timeout(limits):
        answer = await get_json(client, "/is_alive", {}, limits)
    alive = answer.json.get("is_alive") if isinstance(answer.json, dict) else None
    if not isinstance(alive, bool):
        raise ScrapeError("garbage", "the answer is not that of a SWE-ReX server")
    row = Sandbox(
        provider="swerex",
        id=identity(client, options),
        state="running",
        name=text(options.get("name"), 200),
        run_key=text(options.get("run_key"), 200),
        provider_state="alive" if alive else "not alive",
        detail="" if alive else clean(answer.json.get("message"), 200),
        unreachable=not alive,
    )
    return Reading(sandboxes=(row,))


def identity(client: httpx.AsyncClient, options: Mapping[str, str]) -> str:
    """The option ``name``, else a digest of host, port and path: stable, and does not disclose the URL."""
    url = client.base_url
    address = f"{url.host}:{url.port}{url.path.rstrip('/')}"
    return text(options.get("name"), 200) or hashlib.sha256(address.encode()).hexdigest()[:12]


COLLECTOR = Collector(
    name="swerex",
    actor="sandbox",
    reads="one SWE-ReX server: whether it is alive",
    versions="1.4.0 by source (5c995c3)",
    poll=poll,
    key_variable="SWEREX_AUTH_TOKEN",
    key_header="x-api-key",
    options=("name", "run_key"),
)
