"""Reads an OpenEnv environment server: health, name and version, and sessions if its state reports them.

`/health` is requested at every poll. For `/metadata` and `/state` the server builds an environment per request
(`http_server.py`), which may start a browser or a container. So `/metadata` is requested once, and `/state` only with
the option ``state = "on"``. The `/state` of a stock server is that of the new environment and is not useful; servers
with one shared state may report ``active_sessions`` and ``max_sessions`` in it.

Not available: sessions of a stock server (no route returns their number), spin-up (measured by its launcher), harness
results (in files of the harness).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from collectors.model import Collector, Limits, Reading, Sample, Sandbox, ScrapeError, State
from collectors.sandbox_providers.provider import Tally, mapping
from collectors.sandboxes.swerex import identity
from collectors.transport.rest import get_json, number, text, total_timeout

# Status -> detail. "ok" and "running" come from older servers and from compatible ones.
_HEALTH = {"healthy": "", "ok": "", "running": "", "degraded": "degraded", "unhealthy": "unhealthy"}


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads one record for the server. ``unhealthy`` and ``degraded`` are valid answers; no answer is an error.

    Raises:
        ScrapeError: as `rest.get_json`; ``garbage`` for an answer that is not a health report.
    """
    options: Mapping[str, str] = state.get("options") or {}
    tally = Tally()
    samples: tuple[Sample, ...] = ()
    async with total_timeout(limits):
        health = mapping((await get_json(client, "/health", {}, limits)).json)
        status = text(health.get("status"), 40).lower()
        if not status:
            raise ScrapeError("garbage", "the answer is not that of an OpenEnv server")
        about = await _about(client, state, limits)
        if options.get("state") == "on":
            samples = _sessions(await _optional(client, "/state", limits))
    if status not in _HEALTH:
        tally.unknown("status", status)
    trouble = _HEALTH.get(status, "")
    row = Sandbox(
        provider="openenv",
        id=identity(client, options),
        state="running" if status in _HEALTH else "unknown",
        name=text(options.get("name"), 200) or text(about.get("name"), 200),
        run_key=text(options.get("run_key"), 200),
        provider_state=status,
        image=text(about.get("version"), 100),
        detail=trouble,
        unreachable=status == "unhealthy",
    )
    return Reading(samples=samples, sandboxes=(row,), unmapped=dict(tally.unmapped))


async def _about(client: httpx.AsyncClient, state: State, limits: Limits) -> Mapping[str, Any]:
    if "about" not in state:
        state["about"] = await _optional(client, "/metadata", limits)
    about: Mapping[str, Any] = state["about"]
    return about


async def _optional(client: httpx.AsyncClient, path: str, limits: Limits) -> Mapping[str, Any]:
    """The JSON at the path, or {}: a missing or late answer does not make the server unhealthy."""
    quarter = replace(limits, timeout_seconds=limits.timeout_seconds / 4)
    try:
        return mapping((await get_json(client, path, {}, quarter)).json)
    except ScrapeError:
        return {}


def _sessions(answer: Mapping[str, Any]) -> tuple[Sample, ...]:
    active, limit = number(answer.get("active_sessions")), number(answer.get("max_sessions"))
    samples = []
    if active is not None and active >= 0:
        samples.append(Sample("sandbox_sessions", active, (("state", "active"),)))
    if limit is not None and limit >= 1:
        samples.append(Sample("sandbox_quota_limit", limit, (("resource", "concurrent"),)))
        if active is not None and active >= 0:
            samples.append(Sample("sandbox_quota_used", active, (("resource", "concurrent"),)))
    return tuple(samples)


COLLECTOR = Collector(
    name="openenv",
    actor="sandbox",
    reads="one OpenEnv environment server: health, metadata, sessions if reported",
    versions="0.3.0 by source (385de5eb)",
    poll=poll,
    options=("name", "run_key", "state"),
)
