"""The lists of the Sandboxes page as cells: funnel, failures by cause, quotas, pending and dangling ones."""

from collections.abc import Mapping
from typing import Any

from dashboard.facts import Facts, View, joined
from dashboard.format import DASH, text
from dashboard.sandbox_records import Records
from server.query.types import SandboxInfo, SignalInfo

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
_CAUSES: Mapping[str, str] = {"rate_limit": "rate limit", "oom": "out of memory"}
ROWS = 10


def tables(facts: Facts, known: Records, infos: Infos) -> View:
    """All of them."""
    found = _funnel(known) | _causes(facts, known) | _quota(facts, infos)
    return found | _pending(known) | _dangling(facts, known)


def by_cause(facts: Facts) -> list[tuple[str, float]]:
    """(cause, how many failed), the most frequent first."""
    counted = [(s.labels.get("cause", ""), s.value) for s in facts.signals if s.signal == "sandbox_failures_total"]
    known = [(cause, value) for cause, value in counted if value]
    return sorted(known, key=lambda pair: (-pair[1], pair[0]))


# ---- funnel, causes, quotas


def _funnel(known: Records) -> View:
    """``sb.funnel``: [[stage, how many or None, share of the requested]]; None: no provider tells it."""
    stages = ("requested", "started", "ready", "ended", "failed")
    counts: dict[str, int | None] = {stage: int(known.funnel.get(stage, 0)) for stage in stages}
    requested, started, ready = (counts[stage] or 0 for stage in stages[:3])
    note = ""
    if started < ready:
        # E2B and Daytona have no such time: a dip in the middle would look like a loss.
        note = "Not every provider tells when they start." if started else "No provider tells when they start."
        counts["started"] = started or None
    rows = [[stage, count, round((count or 0) / requested, 4)] for stage, count in counts.items() if requested]
    none = "" if rows else "No sandbox of this run is known yet."
    return {"sb.funnel": rows, "sb.funnel.n": note if rows else "", "sb.funnel.none": none}


def _causes(facts: Facts, known: Records) -> View:
    """Keys ``sb.f.0`` ..: [cause, how many, width in percent, newest text, when]."""
    rows = by_cause(facts)
    most = max((value for _, value in rows), default=1.0)
    found: View = {}
    for i, (cause, value) in enumerate(rows):
        last = next((row for row in known.failed if row.cause == cause), None)
        words, at = (last.detail, _when(last.ended_at, last.seen_at)) if last else ("", None)
        found[f"sb.f.{i}"] = [
            _CAUSES.get(cause, cause) or "unknown",
            f"{value:,.0f}",
            _percent(value / most),
            words,
            at,
        ]
    silent = not rows and not known.any
    none = "" if rows else "Nothing is known of failures." if silent else "No sandbox has failed."
    return found | {"sb.f.none": none}


def _percent(share: float) -> float:
    return round(100 * min(1.0, max(0.0, share)), 1)


def _when(*times: float | None) -> int | None:
    return next((round(at) for at in times if at is not None), None)


def _quota(facts: Facts, infos: Infos) -> View:
    """Keys ``sb.q.0`` ..: [resource, share in words, width in percent, state], the fullest first."""
    name = "sandbox_quota_used_ratio"
    rows = [s for s in facts.signals if s.signal == name and s.value is not None]
    rows.sort(key=lambda s: (-(s.value or 0), s.name))
    found: View = {
        f"sb.q.{i}": [_resource(s.labels.get("resource", "")), text(s.value, "ratio"), _percent(s.value or 0), s.state]
        for i, s in enumerate(rows)
    }
    why, info = facts.find(name), infos.get(name)
    bands = (("watch", info.watch), ("critical", info.critical)) if info else ()
    limits = joined(*(f"{level} ≥ {text(band, 'ratio')}" for level, band in bands if band is not None))
    silent = (why.why if why else "") or "No provider tells its quota."
    return found | {"sb.q.none": "" if rows else silent, "sb.q.limits": limits if rows else ""}


def _resource(name: str) -> str:
    return _RESOURCES.get(name, name) or "quota"


# ---- tables


def _pending(known: Records) -> View:
    """Keys ``sb.p.0`` ..: [id, name, image, built?, since when, state, the provider's word, provider]."""
    found: View = {f"sb.p.{i}": _waits(row) for i, row in enumerate(known.pending[:ROWS])}
    more = len(known.pending) - ROWS
    words = f"and {more:,} younger" if more > 0 else ""
    cut = f"Only the newest {len(known.pending):,} were looked at: older ones may wait." if known.cut else ""
    none = "" if known.pending else "Nothing is pending." if known.any else "Nothing is known of pending sandboxes."
    return found | {"sb.p.more": joined(words, cut), "sb.p.none": none}


def _waits(row: SandboxInfo) -> list[Any]:
    built = "image not cached" if row.image_cached is False else ""
    said = row.provider_state if row.provider_state.lower() != row.state else ""
    state = STATE_WORDS.get(row.state, row.state)
    return [row.id, row.name, row.image or DASH, built, _when(row.requested_at), state, said, row.provider]


def _dangling(facts: Facts, known: Records) -> View:
    """Keys ``sb.d.0`` ..: [id, run key, since when, provider, state]."""
    rows = known.dangling
    found: View = {
        f"sb.d.{i}": [
            r.id,
            r.run_key,
            _when(r.requested_at, r.started_at),
            r.provider,
            STATE_WORDS.get(r.state, r.state),
        ]
        for i, r in enumerate(rows[:ROWS])
    }
    counted = facts.value("sandboxes_dangling")
    total = max(len(rows), int(counted or 0))
    more = f"and {total - ROWS:,} more: /api/v1/runs/{facts.status.run}/sandboxes?dangling=true" if total > ROWS else ""
    if not rows and total:
        more = f"{total:,} of this run itself live on although it is over."
    none = "" if total else "None." if counted is not None else "Nothing is known of dangling sandboxes."
    return found | {"sb.d.more": more, "sb.d.none": none}
