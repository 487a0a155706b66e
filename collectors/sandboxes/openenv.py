"""An OpenEnv environment server: health, name and version, and sessions where its state tells them.

`/health` is asked at every poll. `/metadata` and `/state` make the server build an environment for each request
(`http_server.py`), which may start a browser or a container: `/metadata` is asked once, `/state` only where the
option ``state = "on"`` says that it is cheap there. A stock server's `/state` is that of the new environment and says
nothing; servers that share one state may tell ``active_sessions`` and ``max_sessions`` in it.

Does not know: sessions of a stock server (its count is no HTTP route), spin-up (its launcher's to time), harness
results (files of the harness).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from collectors.model import Collector, Limits, Reading, Sample, Sandbox, ScrapeError, State
from collectors.sandbox_providers.listing import Tally, mapping
from collectors.sandboxes.swerex import identity
from collectors.transport.rest import get_json, number, text, whole

# "ok" and "running": servers from before the status was an enum, and OpenEnv look-alikes.
_HEALTH = {"healthy": "", "ok": "", "running": "", "degraded": "degraded", "unhealthy": "unhealthy"}


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """One record for the server. ``unhealthy`` and ``degraded`` are answers; silence is an error.

    Raises:
        ScrapeError: as `rest.get_json`; ``garbage`` for an answer that is no health report.
    """
    options: Mapping[str, str] = state.get("options") or {}
    tally = Tally()
    samples: tuple[Sample, ...] = ()
    async with whole(limits):
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
    """What the path says, or nothing: the server is healthy whether or not it has it, or in time."""
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
