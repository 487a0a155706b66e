"""Converts a Docker container's JSON (list item and inspection) to a sandbox row. Pure.

Only the inspection has start time, cause of death and health. `StartedAt` is the *latest* start: the first start of a
restarted container is unknown unless it was seen before. Docker writes "0001-01-01T00:00:00Z" for never.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from collectors.model import FailureCause, Sandbox, SandboxState
from collectors.sandbox_providers.failures import cause as cause_of
from collectors.sandbox_providers.listing import Tally, mapping, objects
from collectors.transport.rest import clean, epoch, number, text

PROVIDER = "docker"

_STATES: Mapping[str, SandboxState] = {
    "created": "starting",
    "configured": "starting",  # Podman
    "initialized": "starting",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
    "removing": "stopping",
    "stopping": "stopping",
    "exited": "terminated",
    "stopped": "terminated",
    "dead": "failed",
}
# 128 + SIGINT, SIGKILL, SIGTERM: how `docker stop` and `docker kill` end a container.
_KILLED = (130.0, 137.0, 143.0)
HEALTH_LOG = 5
"""Number of probes that the engine stores."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The result of an inspection. ``seen`` is the `key` of the list item at that time."""

    seen: tuple[str, str]
    state: SandboxState
    started_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    cause: FailureCause | None = None
    detail: str = ""
    unreachable: bool = False


def key(item: Mapping[str, Any]) -> tuple[str, str]:
    """State and health of a list item: if they change, the inspection is out of date."""
    status = text(item.get("Status"), 200)
    health = next(
        (provider_state for provider_state in ("health: starting", "unhealthy", "healthy") if provider_state in status),
        "",
    )
    return text(item.get("State"), 40).lower(), health


def row(item: Mapping[str, Any], run_label: str, inspected: Inspected | None, tally: Tally) -> Sandbox | None:
    """The row of a list item and its inspection; None (counted in the tally) without an id."""
    uid = text(item.get("Id"), 100)
    if not uid:
        tally.drop("a container without an id")
        return None
    provider_state, health = key(item)
    if provider_state not in _STATES:
        tally.unknown("state", provider_state)
    requested = epoch(item.get("Created"))
    result = (
        inspected if inspected is not None else Inspected((provider_state, health), _listed(provider_state, health))
    )
    ready = result.ready_at
    if ready is not None and requested is not None and ready < requested:
        ready = (
            requested if requested - ready < 1.0 else None
        )  # `Created` is in whole seconds, the start in nanoseconds
    names = item.get("Names")
    return Sandbox(
        provider=PROVIDER,
        id=uid,
        state=result.state,
        name=text(names[0], 253).lstrip("/") if isinstance(names, list) and names else "",
        run_key=text(mapping(item, "Labels").get(run_label), 200),
        provider_state=f"{provider_state} ({health})" if health else provider_state,
        requested_at=requested,
        started_at=result.started_at,
        ready_at=ready,
        ended_at=result.ended_at,
        image=text(item.get("Image"), 300),
        latency_source="server" if ready is not None and requested is not None else None,
        cause=result.cause,
        detail=result.detail,
        unreachable=result.unreachable,
    )


def _listed(provider_state: str, health: str) -> SandboxState:
    """The state by the list item. ``dead`` becomes ``failed`` only with the inspection, which has the cause."""
    state = _STATES.get(provider_state, "unknown")
    if state == "running" and health == "health: starting":
        return "starting"
    return "terminated" if state == "failed" else state


def inspect(
    item: Mapping[str, Any], answer: Mapping[str, Any], first_start: MutableMapping[str, tuple[float, float | None]]
) -> Inspected:
    """Converts the answer of ``GET /containers/{id}/json`` for a list item.

    Args:
        first_start: per id the first start and the first readiness; read and updated.
    """
    status = mapping(answer, "State")
    provider_state = text(status.get("Status"), 40).lower()
    health = text(mapping(status, "Health").get("Status"), 40)
    started, ready = _starts(text(item.get("Id"), 100), answer, first_start)
    state = _STATES.get(provider_state, "unknown")
    cause, detail = _failure(provider_state, status)
    if cause is not None:
        return Inspected(key(item), "failed", started, ready, epoch(status.get("FinishedAt")), cause, detail)
    if state == "terminated":
        return Inspected(key(item), state, started, ready, epoch(status.get("FinishedAt")), detail=detail)
    if state == "running" and health == "starting":
        return Inspected(key(item), "starting", started)
    trouble = "restarting" if provider_state == "restarting" else "unhealthy" if health == "unhealthy" else ""
    return Inspected(key(item), state, started, ready, detail=trouble, unreachable=bool(trouble))


def _starts(
    uid: str, answer: Mapping[str, Any], first_start: MutableMapping[str, tuple[float, float | None]]
) -> tuple[float | None, float | None]:
    """First start and first readiness, None if unknown."""
    status = mapping(answer, "State")
    started, finished = epoch(status.get("StartedAt")), epoch(status.get("FinishedAt"))
    first_times = first_start.get(uid)
    if first_times is None:
        restarted = (number(answer.get("RestartCount")) or 0.0) > 0
        # An end before the latest start proves an earlier start.
        restarted = restarted or (finished is not None and started is not None and finished < started)
        if started is None or restarted:
            return None, None
        first_times = first_start[uid] = (started, None)
    if first_times[1] is None and started == first_times[0]:
        first_times = first_start[uid] = (first_times[0], _ready(status, first_times[0]))
    return first_times


def _ready(status: Mapping[str, Any], started: float) -> float | None:
    """The start if there is no health check, else the end of the first successful probe if it is still stored."""
    health = mapping(status, "Health")
    if text(health.get("Status"), 40) in ("", "none"):
        return started
    probes = objects(health.get("Log"))
    for index, probe in enumerate(probes):
        if number(probe.get("ExitCode")) == 0.0:
            is_first = index > 0 or len(probes) < HEALTH_LOG
            return epoch(probe.get("End")) if is_first else None
    return None


def _failure(provider_state: str, status: Mapping[str, Any]) -> tuple[FailureCause | None, str]:
    """Cause (None: no failure) and message. A container that never started stays ``created``; Error has the reason."""
    error, code = clean(status.get("Error"), 200), number(status.get("ExitCode"))
    message = error or ("" if code is None else f"exit code {code:g}")
    if status.get("OOMKilled") is True and provider_state in ("exited", "stopped", "dead"):
        return "oom", message
    if provider_state == "created" and error:
        return cause_of(error), message
    if provider_state == "dead":
        return cause_of(error) if cause_of(error) != "unknown" else "internal", message
    if provider_state not in ("exited", "stopped") or code in (None, 0.0):
        return None, ""
    if code in _KILLED and not error:
        return None, message
    if code in (126.0, 127.0) and not error:
        return "image", message  # the command is not there, or cannot be executed
    return cause_of(error), message
