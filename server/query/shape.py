"""The JSON shapes of DESIGN section 6, made once: the API and `rollscope status --json` print the same object."""

from dataclasses import asdict, fields
from typing import Any

from server.query.preflight import PreflightInfo
from server.query.rollouts.types import (
    Cells,
    CensusState,
    EventInfo,
    Funnel,
    GroupInfo,
    RolloutDetail,
    RolloutInfo,
    RolloutPage,
)
from server.query.run_state import RunState
from server.query.run_state import to_json as state_json
from server.query.types import (
    AlertInfo,
    DeliveryInfo,
    Delta,
    RuleInfo,
    RunInfo,
    SandboxInfo,
    Series,
    SignalNow,
    SilenceInfo,
    Status,
    StepSeries,
    TargetTrust,
)
from server.query.verdicts import VerdictSpan
from server.verdict.model import RULES_VERSION

NO_VERDICT: dict[str, Any] = {
    "outcome": "unknown",
    "cause": None,
    "confidence": 0.0,
    "since": None,
    "summary": "no verdict yet: the rules judge a run from its first tick on",
    "evidence": [],
    "shares": {},
    "next": None,
    "usd_per_hour": None,
    "usd_lacks": "",
    "rule": "",
    "completeness": 0.0,
    "limiters": [],
    "advice": "",
    "numbers": {},
    "missing": [],
    "disagreements": [],
    "contradictions": [],
    "rules_version": RULES_VERSION,
    "as_of": None,
}


def status(found: Status) -> dict[str, Any]:
    """The contract for scripts."""
    return {
        "run": found.run,
        "framework": found.framework,
        "mode": found.mode,
        "lifecycle": found.lifecycle,
        "state": state_json(found.state),
        "summary": None if found.summary is None else asdict(found.summary),
        "now": found.now,
        "verdict": dict(found.verdict) if found.verdict is not None else NO_VERDICT,
        "signals": {signal.name: _signal(signal) for signal in found.signals},
        "alerts": [dict(alert) for alert in found.alerts],
        # What is gone on purpose is not down, and says nothing about today's numbers.
        "trust": [_trust(target) for target in found.trust if target.gone_since is None],
        "facts": dict(found.facts),
    }


def _signal(signal: SignalNow) -> dict[str, Any]:
    return {
        "value": signal.value,
        "unit": signal.unit,
        "state": signal.state,
        "age_seconds": signal.age_seconds,
        "source": signal.source,
        "why": signal.why,
    }


def _trust(target: TargetTrust) -> dict[str, Any]:
    return {
        "target": target.target,
        "kind": target.kind,
        "up": target.up,
        "age_seconds": target.age_seconds,
        "error": target.error,
    }


def target(found: TargetTrust) -> dict[str, Any]:
    """A row of `/api/v1/targets`: everything about a target's health."""
    return asdict(found) | {"unmapped": dict(found.unmapped), "labels": dict(found.labels)}


def run(found: RunInfo, state: RunState | None) -> dict[str, Any]:
    """A row of `/api/v1/runs`. ``state``: None for a run beyond those that the fleet reads."""
    return asdict(found) | {"facts": dict(found.facts), "state": None if state is None else state_json(state)}


def series(found: Series | StepSeries) -> dict[str, Any]:
    """Buckets column by column: half the bytes of rows."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(found).items()}


def delta(found: Delta) -> dict[str, Any]:
    """What is new: ``points`` = {series: [[ts, value or null], ...]}."""
    points = {name: [list(point) for point in rows] for name, rows in found.points.items()}
    return {"cursor": found.cursor, "reset": found.reset, "now": found.now, "points": points}


def alert_now(found: AlertInfo, now: float) -> dict[str, Any]:
    """An alert within a run's status: what a script acts on."""
    return {
        "name": found.name,
        "state": found.state,
        "severity": found.severity,
        "value": found.value,
        "unit": found.unit,
        "since": found.active_at,
        "age_seconds": max(0.0, now - found.active_at),
        "summary": found.annotations.get("summary", ""),
        "muted": found.muted,
        "held": found.held,
        "labels": dict(found.labels),
        "fingerprint": found.fingerprint,
        "url": found.url,
    }


def alert(found: AlertInfo) -> dict[str, Any]:
    """A row of `/api/v1/alerts`."""
    return asdict(found) | {"labels": dict(found.labels), "annotations": dict(found.annotations)}


def silence(found: SilenceInfo) -> dict[str, Any]:
    """A row of `/api/v1/silences`."""
    return asdict(found) | {"matchers": list(found.matchers)}


def rule(found: RuleInfo) -> dict[str, Any]:
    """A row of `/api/v1/rules`."""
    row = asdict(found)
    return {("class" if key == "class_" else key): value for key, value in row.items()}


def delivery(found: DeliveryInfo) -> dict[str, Any]:
    """A row of `/api/v1/notifications`."""
    return asdict(found) | {"alerts": list(found.alerts)}


def sandbox(found: SandboxInfo) -> dict[str, Any]:
    """A row of `/api/v1/runs/{run}/sandboxes`."""
    return asdict(found)


_ROLLOUT = tuple(field.name for field in fields(RolloutInfo))


def rollout(found: RolloutInfo) -> dict[str, Any]:
    """A row of `/api/v1/runs/{run}/rollouts`."""
    # Not asdict, which copies what is in them: a page has a thousand.
    row = {name: getattr(found, name) for name in _ROLLOUT}
    return row | {"times": dict(found.times), "sandbox_ids": list(found.sandbox_ids)}


def rollout_page(found: RolloutPage) -> dict[str, Any]:
    """`/api/v1/runs/{run}/rollouts`."""
    rows = [rollout(row) for row in found.rows]
    return {"rollouts": rows, "after": found.after or None, "complete": found.complete}


def rollout_detail(found: RolloutDetail) -> dict[str, Any]:
    """One rollout: its row, its timeline, and who was with it."""
    spans = [
        {"kind": kind, "start": start, "end": end, "version": version, "detail": detail}
        for kind, start, end, version, detail in found.spans
    ]
    return {
        "rollout": rollout(found.row),
        "token_versions": [list(pair) for pair in found.token_versions],
        "consumptions": [dict(one) for one in found.consumptions],
        "turns": [dict(one) for one in found.turns],
        "spans": spans,
        "spans_told": found.spans_told,
        "siblings": [rollout(one) for one in found.siblings],
        "sandboxes": [dict(one) for one in found.sandboxes],
    }


def group(found: GroupInfo) -> dict[str, Any]:
    """A row of `/api/v1/runs/{run}/groups`."""
    return asdict(found)


def funnel(found: Funnel) -> dict[str, Any]:
    """`/api/v1/runs/{run}/funnel`."""
    return asdict(found) | {"bars": [asdict(bar) for bar in found.bars]}


def census(found: CensusState) -> dict[str, Any]:
    """A row of `/api/v1/runs/{run}/census`."""
    return asdict(found)


def cells(found: Cells) -> list[Any]:
    """[[bucket's start, {bin: how many}], ...]; the bins are texts, as keys of JSON are."""
    return [[ts, {str(bin_): n for bin_, n in counts.items()}] for ts, counts in found]


def event(found: EventInfo) -> dict[str, Any]:
    """A row of `/api/v1/runs/{run}/events`."""
    return asdict(found)


def verdict(found: VerdictSpan) -> dict[str, Any]:
    """A row of `/api/v1/runs/{run}/verdicts`."""
    names = (field.name for field in fields(VerdictSpan))
    return {name: getattr(found, name) for name in names} | {"cause": found.cause or None}


def preflight(run: str, found: PreflightInfo) -> dict[str, Any]:
    """The last pre-flight of a run; each check as `rollscope preflight --json` has it."""
    return {"run": run} | asdict(found) | {"plan": dict(found.plan)}
