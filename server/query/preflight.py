"""Records of a run's preflight; `server.preflight` runs the checks."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

PreflightState = Literal["not_configured", "never", "running", "done", "failed"]


class CheckInfo(Struct, frozen=True):
    """The result of one check, as of `server.preflight.model.Check`.

    Attributes:
        status: ok, warn, fail, unknown or not_applicable.
        value, limit: the measured number and the limit it is compared with, in ``unit``; None: unknown. Either may be
            "unlimited".
        commands: the provider's own commands that remove the objects in ``ids``.
    """

    name: str
    status: str
    summary: str
    fix: str = ""
    value: float | str | None = None
    limit: float | str | None = None
    unit: str = ""
    details: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class PreflightInfo(Struct, frozen=True):
    """The last preflight of a run. Times are epoch seconds.

    Attributes:
        state: ``not_configured`` where this process has no configuration of the run, so nothing to read it with;
            ``failed`` when it could not be brought to an end. What was found before stays until there is news.
        started_at: of the newest attempt; `finished_at`: of the attempt that produced these checks.
        retry_at: earliest time of the next attempt.
        plan: the configured numbers of the run (keys of ``[run.NAME.preflight]``); None: not configured.
        outcome: the worst status; "" before the first answer.
    """

    state: PreflightState
    started_at: float | None = None
    finished_at: float | None = None
    retry_at: float | None = None
    error: str = ""
    plan: Mapping[str, Any] = {}
    outcome: str = ""
    checks: tuple[CheckInfo, ...] = ()
    run: str = ""
