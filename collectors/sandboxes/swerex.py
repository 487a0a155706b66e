"""A SWE-ReX runtime: is the server inside one sandbox alive? (`GET /is_alive`)

One target is one server; its sandbox belongs to whatever provider SWE-ReX deploys to, whose collector knows states
and times. What a target adds is the one thing no provider says: that the server in the sandbox answers. SWE-ReX has
no metrics, no list and no times; spin-up is in its log lines ("Runtime started in X s").
"""

import hashlib
from collections.abc import Mapping

import httpx

from collectors.model import Collector, Limits, Reading, Sandbox, ScrapeError, State
from collectors.transport.rest import clean, get_json, text, whole

# An exception inside the runtime comes as this status.
RUNTIME_ERROR = 511


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """The server's word on itself. "Not alive" is an answer (running, but unreachable), silence is an error.

    Raises:
        ScrapeError: as `rest.get_json`; ``garbage`` for an answer that says neither.
    """
    options: Mapping[str, str] = state.get("options") or {}
    async with whole(limits):
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
    """The option ``name``, else a digest of host, port and path: stable, and no URL that leaves the configuration."""
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
