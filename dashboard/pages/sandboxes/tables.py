"""The lists of the Sandboxes page as cells: funnel, failures by cause, quotas, pending and dangling ones."""

from collections.abc import Mapping

from dashboard.pages.sandboxes.records import SandboxRecords, over_at
from dashboard.shell.page import Json
from dashboard.widgets.format import number, text
from dashboard.widgets.status import StatusFacts, View, first_clause, joined
from server.query import SandboxRow
from server.query.types import SignalInfo

Infos = Mapping[str, SignalInfo]

STATE_WORDS: Mapping[str, str] = {
    "queued": "queued",
    "building_image": "building image",
    "starting": "starting",
    "running": "running",
    "paused": "paused",
    "stopping": "stopping",
    "unknown": "unknown",
}
_RESOURCES: Mapping[str, str] = {
    "starting": "starting at once",
    "creates_per_second": "creations per second",
    "creates_per_hour": "creations per hour",
    "cpu": "CPU",
    "memory_gb": "memory",
    "disk_gb": "disk",
    "gpu": "GPU",
}
# By the reader's names, in lifecycle order.
_STAGES: Mapping[str, str] = {
    "requested": "requested", "started": "started", "ready": "ready", "first_exec": "first exec", "ended": "ended",
    "failed": "failed",
}  # fmt: skip
_CAUSES: Mapping[str, str] = {"rate_limit": "rate limit", "oom": "out of memory"}
ROWS = 10
_FAILED = 5


def tables(facts: StatusFacts, boxes: SandboxRecords, infos: Infos) -> View:
    """All of them."""
    found = _funnel(boxes) | _causes(facts, boxes) | _quota(facts, infos) | _failures(boxes)
    return found | _pending(boxes) | _dangling(facts, boxes)


def by_cause(facts: StatusFacts) -> list[tuple[str, float]]:
    """(cause, how many failed), the most frequent first."""
    counted = [(s.labels.get("cause", ""), s.value) for s in facts.signals if s.signal == "sandbox_failures_total"]
    counts = [(cause, value) for cause, value in counted if value]
    return sorted(counts, key=lambda pair: (-pair[1], pair[0]))


# ---- funnel, causes, quotas


def _funnel(boxes: SandboxRecords) -> View:
    """``sandboxes.funnel``: a row per stage, ``share`` of the requested; ``count`` None: no provider reports it.

    A first command's share is of those that report it.
    """
    reported = {stage: boxes.funnel.get(stage) or 0 for stage in _STAGES}
    requested, started, ready = reported["requested"], reported["started"], reported["ready"]
    counts: dict[str, int | None] = dict(reported)
    basis = {"first_exec": boxes.funnel.get("first_exec_of") or 0}
    counts["first_exec"] = boxes.funnel.get("first_exec")
    # E2B and Daytona have no start time: a dip or a zero would look like a loss.
    counts["started"] = started or None
    late = boxes.funnel.get("met_ended") or 0
    rows = [
        {
            "stage": _STAGES[stage],
            "count": count,
            "share": round((count or 0) / (basis.get(stage) or requested), 4),
        }
        for stage, count in counts.items()
        if requested
    ]
    notes = (
        f"{late:,} ended before Rollscope started and others may no longer be listed, so no shares." if late else "",
        _start_note(started, ready),
        _command_note(counts["first_exec"], basis["first_exec"], requested),
    )
    note = " ".join(line for line in notes if line) if rows else ""
    none = "" if rows else "No sandbox of this run reported yet."
    return {
        "sandboxes.funnel": rows,
        "sandboxes.funnel.n": note,
        "sandboxes.funnel.none": none,
        "sandboxes.funnel.shares": int(not late),
    }


def _start_note(started: int, ready: int) -> str:
    if not ready and not started:
        return "No start reported yet."
    if started >= ready:
        return ""
    return "Not every provider reports start times." if started else "No provider reports start times."


def _command_note(count: int | None, basis: int, requested: int) -> str:
    if count is None:
        return "First exec: not reported by provider."
    return f"First exec: {count:,} of the {basis:,} that report it." if basis < requested else ""


def _causes(facts: StatusFacts, boxes: SandboxRecords) -> View:
    """Keys ``failure_causes.0`` ..: a row per cause; ``width`` in percent, ``detail`` and ``at`` of the newest."""
    rows = by_cause(facts)
    most = max((value for _, value in rows), default=1.0)
    found: View = {}
    for i, (cause, value) in enumerate(rows):
        last = next((row for row in boxes.failed if row.cause == cause), None)
        detail, at = (last.detail, round(over_at(last))) if last else ("", None)
        found[f"failure_causes.{i}"] = {
            "cause": _CAUSES.get(cause, cause) or "unknown",
            "count": f"{value:,.0f}",
            "width": _percent(value / most),
            "detail": detail,
            "at": at,
        }
    silent = not rows and not boxes.any
    none = "" if rows else "No failure data." if silent else "No sandbox has failed."
    return found | {"failure_causes.none": none}


def _percent(share: float) -> float:
    return round(100 * min(1.0, max(0.0, share)), 1)


def _quota(facts: StatusFacts, infos: Infos) -> View:
    """Keys ``quotas.0`` ..: a row per resource, the fullest first; ``used``: as text, ``width``: in percent."""
    why, info = facts.find("sandbox_quota_used_ratio"), infos.get("sandbox_quota_used_ratio")
    rows = _quotas(facts)
    several = len({account for account, *_ in rows}) > 1
    found: View = {}
    for i, (account, what, used, limit) in enumerate(rows):
        share = used / limit if used is not None and limit else None
        name = joined(_resource(what), account if several else "")
        state = _judged(share, info) if share is not None else "unknown"
        found[f"quotas.{i}"] = {
            "resource": name,
            "used": _filled(used, limit),
            "width": _percent(share or 0),
            "state": state,
        }
    bands = (("watch", info.watch), ("critical", info.critical)) if info else ()
    limits = joined(*(f"{level} ≥ {text(band, 'ratio')}" for level, band in bands if band is not None))
    # The signal's advice is for the command line and for preflights, and has no effect on this page.
    silent = first_clause(why.why if why else "") or "no provider reports its quota"
    silent = silent[0].upper() + silent[1:] + "."
    return found | {"quotas.none": "" if rows else silent, "quotas.limits": limits if rows else ""}


def _quotas(facts: StatusFacts) -> list[tuple[str, str, float | None, float | None]]:
    """(account, resource, used, limit); the fullest first, then those of which one number is not known."""
    numbers: dict[tuple[str, str], dict[str, float]] = {}
    for signal in facts.signals:
        if signal.signal in ("sandbox_quota_used", "sandbox_quota_limit") and signal.value is not None:
            key = signal.labels.get("target", ""), signal.labels.get("resource", "")
            numbers.setdefault(key, {})[signal.signal] = signal.value
    # The rate of all accounts together is an account's only if there is one.
    rate = facts.value("sandbox_creates_per_second") if len({account for account, _ in numbers}) == 1 else None
    for (_, resource), has in numbers.items():
        if resource == "creates_per_second" and rate is not None:
            has.setdefault("sandbox_quota_used", rate)
    rows = [(*key, has.get("sandbox_quota_used"), has.get("sandbox_quota_limit")) for key, has in numbers.items()]
    return sorted(rows, key=lambda row: (-(row[2] / row[3] if row[2] is not None and row[3] else -1.0), row[:2]))


def _filled(used: float | None, limit: float | None) -> str:
    """``14 of 128 · 11%``; or which of the two is not reported."""
    if not used and limit == 0:
        return "none allowed"
    if used is None:
        return f"limit {number(limit or 0)}, usage not reported"
    if limit is None:
        return f"{number(used)}, limit not reported"
    return joined(f"{number(used)} of {number(limit)}", text(used / limit, "ratio") if limit else "")


def _judged(share: float, info: SignalInfo | None) -> str:
    """By the bands of the ratio, which is the fullest account's: each is judged by itself."""
    bands = (("critical", info.critical), ("watch", info.watch)) if info else ()
    return next((level for level, band in bands if band is not None and share >= band), "ok")


def _resource(name: str) -> str:
    return _RESOURCES.get(name, name) or "quota"


# ---- tables
# Rows are fields of the record, as the API answers them: `assets/widgets/find.mjs` draws its answers, too.

_NAMES = ("id", "name", "provider", "state")


def _fields(row: SandboxRow, *names: str) -> Json:
    return {name: getattr(row, name) for name in (*_NAMES, *names)}


def _failures(boxes: SandboxRecords) -> View:
    """Keys ``failed_boxes.0`` ..: failed sandboxes, newest first."""
    found: View = {f"failed_boxes.{i}": _failure(row) for i, row in enumerate(boxes.failed[:_FAILED])}
    none = "" if boxes.failed else "No sandbox has failed." if boxes.any else "No failure data."
    return found | {"failed_boxes.none": none}


def _failure(row: SandboxRow) -> Json:
    # `seen_at` changes on every poll, and is shown only without an end.
    seen: Json = {"seen_at": row.seen_at} if row.ended_at is None else {}
    return _fields(row, "cause", "detail", "ended_at") | seen


def _pending(boxes: SandboxRecords) -> View:
    """Keys ``pending.0`` ..: pending sandboxes, oldest first."""
    names = ("image", "image_cached", "requested_at", "provider_state")
    found: View = {f"pending.{i}": _fields(row, *names) for i, row in enumerate(boxes.pending[:ROWS])}
    more = len(boxes.pending) - ROWS
    others = f"and {more:,} newer" if more > 0 else ""
    cut = f"Only the newest {len(boxes.pending):,} were read; older ones may be pending." if boxes.cut else ""
    none = "" if boxes.pending else "Nothing is pending." if boxes.any else "No data on pending sandboxes."
    return found | {"pending.more": joined(others, cut), "pending.none": none}


def _dangling(facts: StatusFacts, boxes: SandboxRecords) -> View:
    """Keys ``dangling.0`` ..: dangling sandboxes, oldest first."""
    rows, names = boxes.dangling, ("run_key", "requested_at", "started_at")
    found: View = {f"dangling.{i}": _fields(row, *names) for i, row in enumerate(rows[:ROWS])}
    counted = facts.value("sandboxes_dangling")
    total = max(len(rows), int(counted or 0))
    more = f"and {total - ROWS:,} more: /api/v1/runs/{facts.status.run}/sandboxes?dangling=true" if total > ROWS else ""
    if not rows and total:
        more = f"{total:,} sandboxes of this run are still alive although it is over."
    none = "" if total else "None." if counted is not None else "No data on dangling sandboxes."
    return found | {"dangling.more": more, "dangling.none": none}
