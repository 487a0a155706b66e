"""[store]: how long rows are kept, and how large the database may become."""

import re
from collections.abc import Mapping
from typing import Any

from server.alerts.text import parse_duration
from server.config.errors import Problems
from server.store.types import RetentionSettings

KEYS = ("raw", "signals", "rollups", "records")
PERMANENT = "forever"
LEAST_SECONDS = 600.0  # a slot of raw samples: charts of the last minutes, and open rollup buckets, need it
LEAST_BYTES = 10_000_000
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse(problems: Problems, store: Mapping[str, Any]) -> RetentionSettings:
    """The retention keys of [store]; what is wrong with them goes into ``problems``."""
    defaults = RetentionSettings()
    retention = {key: _seconds(problems, store, key, getattr(defaults, key)) for key in KEYS}
    rollups, raw = retention["rollups"], retention["raw"]
    if rollups is not None and (raw is None or rollups < raw):
        problems.add("store.rollups", "must be at least as long as raw: rollups replace the raw rows")
    return RetentionSettings(**retention, max_bytes=_size(problems, store))


def _seconds(problems: Problems, store: Mapping[str, Any], key: str, default: float | None) -> float | None:
    if key not in store:
        return default
    if store[key] == PERMANENT:
        return None
    try:
        seconds = parse_duration(store[key])
    except ValueError as error:
        problems.add(f"store.{key}", f'{error}, or "{PERMANENT}"')
        return default
    if seconds < LEAST_SECONDS:
        problems.add(f"store.{key}", f'must be at least {LEAST_SECONDS / 60:.0f}m, or "{PERMANENT}"')
    return seconds


def _size(problems: Problems, store: Mapping[str, Any]) -> int | None:
    value = problems.take(store, "max_size", str, "", "store")
    if not value:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]B)\s*", value, re.IGNORECASE)
    if match is None:
        problems.add("store.max_size", f"{value[:40]!r} is not a size such as 500MB or 50GB")
        return None
    size = round(float(match[1]) * _UNITS[match[2].upper()])
    if size < LEAST_BYTES:
        problems.add("store.max_size", f"must be at least {LEAST_BYTES // 10**6}MB")
    return size
