"""The only door for readers: the dashboard, the API, `/metrics` and the command line read through it."""

from server.query.preflight import CheckInfo, PreflightInfo
from server.query.reader import StoreReader
from server.query.types import (
    AlertInfo,
    DeliveryInfo,
    Delta,
    Reader,
    RuleInfo,
    RunInfo,
    RunNow,
    SandboxInfo,
    Series,
    SignalInfo,
    SignalNow,
    SilenceInfo,
    Status,
    StepSeries,
    TargetTrust,
    UnknownRun,
)
from server.query.verdicts import VerdictSpan

__all__ = [
    "AlertInfo",
    "CheckInfo",
    "DeliveryInfo",
    "Delta",
    "PreflightInfo",
    "Reader",
    "RuleInfo",
    "RunInfo",
    "RunNow",
    "SandboxInfo",
    "Series",
    "SignalInfo",
    "SignalNow",
    "SilenceInfo",
    "Status",
    "StepSeries",
    "StoreReader",
    "TargetTrust",
    "UnknownRun",
    "VerdictSpan",
]
