"""Health of the targets: one row per target, the worst first."""

import re
from datetime import UTC, datetime
from typing import Any

from dashboard.state.status import View
from server.query.types import Status, TargetTrust

# A fleet of a thousand engines must not make a page of a thousand rows: the healthy ones fold into a count.
MOST = 40
_KEYS = 3
_NUMBER = re.compile(r"([0-9]+)")


def trust(status: Status) -> View:
    """Keys ``t.*``: a summary and rows ``t.0`` .., drawn by `assets/widgets/trust.mjs`."""
    here = status.trust
    rows = sorted([*here, *status.gone], key=_badness)
    idle = unread(status)
    cells: View = {f"t.{i}": _row(target, status.now, idle) for i, target in enumerate(rows[:MOST])}
    up, gone = sum(target.up for target in here), len(rows) - len(here)
    hidden = len(rows) - MOST
    # Engines of a kind report the same keys: one that is unknown is one, not one per engine.
    unmapped = len({(target.kind, key) for target in rows for key in target.unmapped})
    count = f"{len(here)} target{'' if len(here) == 1 else 's'}, not read now" if idle else f"{up} of {len(here)} up"
    cells["t.sum"] = (count if rows else "no targets") + (f", {gone} gone" if gone else "")
    health = "ok" if up == len(here) else "critical" if up == 0 else "watch"
    cells["t.s"] = "unknown" if not here or idle else health
    cells["t.more"] = f"and {hidden} more, none in worse health" if hidden > 0 else ""
    cells["t.keys"] = f"{unmapped} unmapped key{'s' if unmapped > 1 else ''}" if unmapped else ""
    cells["t.none"] = "" if rows else "No targets: the run sends pushes, or no collector follows it."
    return cells


def unread(status: Status) -> bool:
    """Whether the run is over or has no collector: its targets are not read, which is not down."""
    return status.state.name in ("finished", "not_collected")


def _badness(target: TargetTrust) -> tuple[bool, bool, bool, bool, list[str | int]]:
    gone = target.gone_since is not None
    return (gone, target.up, not target.error, not target.dropped, counted(target.target))


def counted(name: str) -> list[str | int]:
    """Sorts as one counts: engine-2 before engine-10."""
    return [int(part) if at % 2 else part for at, part in enumerate(_NUMBER.split(name))]


def kind_words(target: TargetTrust) -> str:
    """``vllm (rollout, from engines)``: the job and the list that names it, where one does."""
    found = ", ".join(filter(None, (target.job, target.source and f"from {target.source}")))
    return f"{target.kind} ({found})" if found else target.kind


def _error(target: TargetTrust) -> str:
    if target.gone_since is None:
        return target.error
    return f"gone since {datetime.fromtimestamp(target.gone_since, UTC):%H:%M} UTC: {target.error}"


def _row(target: TargetTrust, now: float, idle: bool) -> dict[str, Any]:
    """``unmapped``: the most frequent keys without a mapping, ``keys`` how many there are."""
    # To the second: finer times would change, and be sent, on every tick.
    seen = round(now - target.age_seconds) if target.age_seconds is not None else None
    gone = target.gone_since is not None
    return {
        "target": target.target,
        "actor": target.actor,
        "kind": kind_words(target),
        "state": "gone" if gone else "unread" if idle else "up" if target.up else "down",
        "seen_at": seen,
        "error": "" if idle and not gone else _error(target),
        "samples": target.samples,
        "dropped": target.dropped,
        "unmapped": unmapped_words(target),
        "keys": len(target.unmapped),
    }


def unmapped_words(target: TargetTrust) -> str:
    """The most frequent keys without a mapping; a renamed key shows up here."""
    keys = sorted(target.unmapped, key=lambda key: (-target.unmapped[key], key))
    more = f" and {len(keys) - _KEYS} more" if len(keys) > _KEYS else ""
    return ", ".join(keys[:_KEYS]) + more
