"""Names that systems send over OpenTelemetry -> metrics of the vocabulary. Pure.

Checked by source: Daytona SDK 0.226.1 (`_utils/otel_decorator.py`: histograms in ms, labels component, method,
status), ROCK 026e924a (`rock/admin/metrics/monitor.py`), agent-sandbox 2fd412d5 and its client 1.0.8; Modal's by its
documentation only. Canonical names need no row here: they are taken as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from collectors.model import Labels

Attributes = Mapping[str, str]

# The SDK's classes are Daytona and AsyncDaytona, Process and AsyncProcess; both kinds are timed the same way.
_EXEC = ("process_exec", "process_code_run", "async_process_exec", "async_process_code_run")


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of one name.

    Attributes:
        factor: divide by it to get the metric's unit (1000: milliseconds to seconds).
        labels: a point's labels from its attributes.
        rank: of several names that time the same thing, the lowest that a request holds is used.
        failures: histogram points with status "error" are no durations: their count is added to this metric.
    """

    metric: str
    factor: float = 1.0
    labels: Callable[[Attributes], Labels] = lambda attributes: ()
    rank: int = 0
    failures: str = ""


def _image(attributes: Attributes) -> Labels:
    """A sandbox out of a warm pool has its image; of another one nobody says whether the node had it."""
    return (("image", "cached" if attributes.get("launch_type") == "warm" else "unknown"),)


def _cause(attributes: Attributes) -> Labels:
    """ROCK's phases end in success, failed or timeout."""
    if attributes.get("phase_status") == "timeout":
        return (("cause", "timeout"),)
    return (("cause", "image" if "image" in attributes.get("phase_name", "") else "unknown"),)


def _fixed(name: str, value: str) -> Callable[[Attributes], Labels]:
    return lambda attributes: ((name, value),)


_SPINUP, _FAILURES = "sandbox_spinup_seconds", "sandbox_failures_total"

RULES: Mapping[str, Rule] = {
    "daytona_create_duration": Rule(_SPINUP, 1000, _image, failures=_FAILURES),
    "async_daytona_create_duration": Rule(_SPINUP, 1000, _image, failures=_FAILURES),
    **{f"{name}_duration": Rule("sandbox_exec_seconds", 1000) for name in _EXEC},
    # The gateway counts what it knows, in whatever state: neither running nor starting is claimed.
    "xrl_gateway.sandbox.count.total": Rule("sandboxes", 1, _fixed("state", "unknown")),
    "xrl_gateway.sandbox.phase.failure": Rule(_FAILURES, 1, _cause),
    "modal.container.running": Rule("sandboxes", 1, _fixed("state", "running")),
    "agent_sandbox_claim_startup_latency_ms": Rule(_SPINUP, 1000, _image),
    "agent_sandbox_creation_latency_ms": Rule(_SPINUP, 1000, _image, 1),
    "agent_sandbox_client_claim_startup_latency_ms": Rule(_SPINUP, 1000, _image, 2),
    "sandbox_client_restore_latency_ms": Rule(_SPINUP, 1000, _fixed("image", "cached"), failures=_FAILURES),
    "sandbox_router_request_duration_seconds": Rule("sandbox_exec_seconds"),
}

# ROCK tells totals and what is free; what is used is their difference, where one request holds both.
QUOTAS: Mapping[str, tuple[str, str]] = {
    f"xrl_gateway.resource.{word}.{part}": (resource, part)
    for word, resource in (("cpu", "cpu"), ("mem", "memory"), ("disk", "disk"))
    for part in ("total", "available")
}
