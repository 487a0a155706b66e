"""The only door for readers: the dashboard, the API, `/metrics` and the command line read through it."""

from server.query.reader import StoreReader
from server.query.types import Delta, Reader, RunInfo, Series, SignalInfo, SignalNow, Status, TargetTrust, UnknownRun

__all__ = [
    "Delta",
    "Reader",
    "RunInfo",
    "Series",
    "SignalInfo",
    "SignalNow",
    "Status",
    "StoreReader",
    "TargetTrust",
    "UnknownRun",
]
