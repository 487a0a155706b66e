"""Maps names that systems send over OpenTelemetry to metrics of the catalogue. Pure.

Checked by source: Daytona SDK 0.226.1 (`_utils/otel_decorator.py`: histograms in ms, labels component, method,
status) and its Datadog dashboard (quotas), ROCK 026e924a (`rock/admin/metrics/monitor.py`), torchtitan 36850ca1
(`experiments/rl/observability/vllm_otel_stat_logger.py`), agent-sandbox 2fd412d5 and its client 1.0.8; Modal's by its
documentation only. Canonical names need no row here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from collectors.generators import vllm
from collectors.model import Labels

Attributes = Mapping[str, str]

# The SDK's classes are Daytona and AsyncDaytona, Process and AsyncProcess; both kinds have the same timers.
_EXEC = ("process_exec", "process_code_run", "async_process_exec", "async_process_code_run")


@dataclass(frozen=True, slots=True)
class Rule:
    """The metric of one name.

    Attributes:
        factor: divide by it to get the metric's unit (1000: milliseconds to seconds); 0: the unit sent decides.
        labels: a point's labels from its attributes and, behind those, its resource's.
        rank: of several names that time the same thing, the lowest that a request holds is used.
        failures: histogram points with status "error" are no durations: their count is added to this metric.
    """

    metric: str
    factor: float = 1.0
    labels: Callable[[Attributes], Labels] = lambda attributes: ()
    rank: int = 0
    failures: str = ""


Maps = Mapping[tuple[str, str], Rule | None]
"""(run, name as sent) -> rule; run "": every run. None: the metric is ignored."""


def _image(attributes: Attributes) -> Labels:
    """A sandbox from a warm pool has its image; for others it is unknown whether the node had it."""
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
    # The gateway counts sandboxes in any state, neither running nor starting in particular.
    "xrl_gateway.sandbox.count.total": Rule("sandboxes", 1, _fixed("state", "unknown")),
    "xrl_gateway.sandbox.phase.failure": Rule(_FAILURES, 1, _cause),
    "modal.container.running": Rule("sandboxes", 1, _fixed("state", "running")),
    "agent_sandbox_claim_startup_latency_ms": Rule(_SPINUP, 1000, _image),
    "agent_sandbox_creation_latency_ms": Rule(_SPINUP, 1000, _image, 1),
    "agent_sandbox_client_claim_startup_latency_ms": Rule(_SPINUP, 1000, _image, 2),
    "sandbox_client_restore_latency_ms": Rule(_SPINUP, 1000, _fixed("image", "cached"), failures=_FAILURES),
    "sandbox_router_request_duration_seconds": Rule("sandbox_exec_seconds"),
}

# torchtitan's names for its engines (prefix `vllm.`), if they differ from vLLM's.
_TORCHTITAN: Mapping[str, str] = {
    "num_running_requests": "generator_requests_running",
    "num_waiting_requests": "generator_requests_waiting",
    "kv_cache_usage": "kv_cache_usage_ratio",
    "preempted_requests": "generator_preemptions_total",
    "finished_requests": "generator_requests_finished_total",
    "time_to_first_token": "time_to_first_token_seconds",
    "inter_token_latency": "inter_token_latency_seconds",
    "decode_time": "generator_decode_seconds",
    "queue_time": "generator_queue_seconds",
    "e2e_latency": "e2e_request_seconds",
}
_VLLM = re.compile(r"vllm[.:_](.+)")

# Units of UCUM and common spellings -> the divisor that gives our unit.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "seconds": {"s": 1, "ms": 1e3, "milliseconds": 1e3, "us": 1e6, "ns": 1e9, "min": 1 / 60, "h": 1 / 3600},
    "ratio": {"1": 1, "%": 100, "percent": 100},
    "bytes": {"By": 1, "kBy": 1e-3, "MBy": 1e-6, "GBy": 1e-9, "KiBy": 2**-10, "MiBy": 2**-20, "GiBy": 2**-30},
}


def factor_of(unit: str, target_unit: str) -> float | None:
    """The divisor that converts a value in `unit` to our unit; None if unknown."""
    return 1.0 if unit == target_unit else _UNITS.get(target_unit, {}).get(unit)


def vllm_rule(name: str) -> Rule | None:
    """The rule of an engine's name: torchtitan's name, or vLLM's with dots for colons."""
    match = _VLLM.fullmatch(name)
    if match is None:
        return None
    base = match.group(1).replace(".", "_")
    if base in _TORCHTITAN:
        return Rule(_TORCHTITAN[base], 0.0, _engine)
    metric_rule = vllm.HISTOGRAMS.get(base) or vllm.VALUES.get(base.removesuffix("_total"))
    if metric_rule is None:
        return None
    source, _, target = metric_rule.split.partition(">")

    def labels(attributes: Attributes) -> Labels:
        split_label = ((target or source, attributes[source]),) if source and attributes.get(source) else ()
        return tuple(sorted((*_engine(attributes), *metric_rule.put, *split_label)))

    return Rule(metric_rule.metric, 0.0, labels, metric_rule.rank)


def _engine(attributes: Attributes) -> Labels:
    """One of several engines: its index, and its process (torchtitan: every generator has an engine 0)."""
    engine = attributes.get("engine_index") or attributes.get("engine") or ""
    return tuple((name, value) for name, value in (("engine", engine), ("replica", replica(attributes))) if value)


def replica(attributes: Attributes) -> str:
    """The process of the engine, if several send the same names; "" if unknown."""
    named = [attributes[key] for key in ("generator_name", "rank") if attributes.get(key)]
    return "/".join(named) or attributes.get("service.instance.id", "")


# ROCK and Daytona send totals together with what is free or used; used is the difference, if one request has both.
QUOTAS: Mapping[str, tuple[str, str]] = {
    f"xrl_gateway.resource.{word}.{part}": (resource, part)
    for word, resource in (("cpu", "cpu"), ("mem", "memory"), ("disk", "disk"))
    for part in ("total", "available")
} | {
    f"daytona.sandbox.{part}_{word}": (resource, part)
    for word, resource in (("cpu", "cpu"), ("ram", "memory_gb"), ("storage", "disk_gb"))
    for part in ("total", "used")
}
