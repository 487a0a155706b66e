"""Converts the result of a harbor trial to records. Source: harbor 0.25.0 (models/trial/result.py, trial/trial.py).

`environment_setup` is the wall time of the environment's start, for every provider. Its end is also written after a
failure, so a start counts as successful only if the agent's set-up followed.
"""

from collections.abc import Mapping
from typing import Any

from collectors.model import Sandbox
from collectors.sandbox_providers.failures import cause
from collectors.sandbox_providers.listing import mapping
from collectors.sandbox_providers.trace_rows import TracedRollout
from collectors.transport import rest

# Errors that harbor classifies as `sandbox_failed` (models/trial/error_policy.py).
SANDBOX_FAILED = frozenset(
    (
        "EnvironmentStartTimeoutError", "SandboxBuildFailedError", "AgentSetupTimeoutError", "HealthcheckError",
        "SandboxLikelyOutOfMemoryError", "MemoryLimitExceededError", "SSHAccessError", "GKEExecStreamClosedError",
        "GKEPodNotFoundError", "RuntimeRequestError", "AddTestsDirError", "DownloadVerifierDirError",
    )
)  # fmt: skip
CANCELLED = "CancelledError"
# Causes of error types; for other types the message is searched.
_CAUSES = {"EnvironmentStartTimeoutError": "timeout", "SandboxBuildFailedError": "image build failed",
           "SandboxLikelyOutOfMemoryError": "oom", "MemoryLimitExceededError": "oom"}  # fmt: skip


def is_trial(row: Mapping[str, Any]) -> bool:
    """Is it a `TrialResult` of harbor? The result of a job lacks these keys."""
    return isinstance(row.get("trial_name"), str) and "task_checksum" in row and "environment_setup" in row


def trial(row: Mapping[str, Any]) -> TracedRollout | None:
    """The record of a trial; None for a cancelled trial, which is neither a failure nor a rollout."""
    failed = rest.text(mapping(row, "exception_info").get("exception_type"), 60)
    if failed == CANCELLED:
        return None
    begun, ready = _time(row, "environment_setup", "started_at"), _ready(row)
    lost = failed in SANDBOX_FAILED or (bool(failed) and begun is not None and ready is None)
    return TracedRollout(
        environment=rest.text(row.get("source"), 100) or "harbor",
        run="",
        purpose="",
        ended_at=rest.epoch(row.get("finished_at")),
        boxed=begun is not None or lost,
        lost=lost,
        errors=(failed,) if failed else (),
        sandboxes=(_sandbox(row, failed if lost else "", begun, ready),) if begun is not None else (),
    )


def _sandbox(row: Mapping[str, Any], failed: str, begun: float | None, ready: float | None) -> Sandbox:
    message = mapping(row, "exception_info").get("exception_message")
    # Only the first line: the others may be output of the agent's commands.
    line = message.strip().split("\n", 1)[0][:800] if failed and isinstance(message, str) else ""
    name = rest.text(row.get("trial_name"), 200)
    return Sandbox(
        provider=rest.text(mapping(row, "config", "environment").get("type"), 40) or "harbor",
        # The provider's id is not in the file, so the trial's id is used.
        id=rest.text(row.get("id"), 100) or name,
        state="failed" if failed else "terminated",
        name=name,
        provider_state=failed,
        requested_at=begun,
        ready_at=ready,
        ended_at=rest.epoch(row.get("finished_at")),
        latency_source="trace" if ready is not None else None,
        cause=cause(_CAUSES.get(failed, failed), line) if failed else None,
        detail=rest.clean(f"{failed}: {line}" if line else failed),
    )


def _ready(row: Mapping[str, Any]) -> float | None:
    if _time(row, "agent_setup", "started_at") is None:
        return None
    return _time(row, "environment_setup", "finished_at")


def _time(row: Mapping[str, Any], phase: str, which: str) -> float | None:
    return rest.epoch(mapping(row, phase).get(which))
