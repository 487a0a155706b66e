"""Reads the store for the dashboard, the API, `/metrics` and the command line.

Modules are loaded at first use: a client that needs only types loads neither the store nor the rules.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectors.model import Turn
    from server.query.preflight import CheckInfo, PreflightInfo
    from server.query.reader import Reader
    from server.query.run_state import UnknownRun
    from server.query.types import (
        AlertInfo,
        DeliveryInfo,
        Delta,
        RuleInfo,
        RunInfo,
        RunNow,
        Series,
        SignalInfo,
        SignalNow,
        SilenceInfo,
        Status,
        StepSeries,
        TargetTrust,
        VerdictSpan,
    )
    from server.rollouts.model import RolloutGroupRow, RolloutRow
    from server.store.types import SandboxRow
else:
    _HOMES = {
        "CheckInfo": "preflight", "PreflightInfo": "preflight", "Reader": "reader", "UnknownRun": "run_state",
        "RolloutGroupRow": "rollouts", "SandboxRow": "sandboxes", "Turn": "rollouts",
    }  # fmt: skip

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'types')}"), name)


__all__ = [
    "AlertInfo",
    "CheckInfo",
    "DeliveryInfo",
    "Delta",
    "PreflightInfo",
    "Reader",
    "RolloutGroupRow",
    "RolloutRow",
    "RuleInfo",
    "RunInfo",
    "RunNow",
    "SandboxRow",
    "Series",
    "SignalInfo",
    "SignalNow",
    "SilenceInfo",
    "Status",
    "StepSeries",
    "TargetTrust",
    "Turn",
    "UnknownRun",
    "VerdictSpan",
]
