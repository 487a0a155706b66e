"""Answers of the API whose shape differs from the records of `server.query`.

A route returns a dataclass of `server.query` directly where JSON has the same fields. `rollscope status --json` prints
the same status as the API.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

# pydantic reads `typing.TypedDict` only from Python 3.12 on.
from typing_extensions import TypedDict

from server.query.preflight import PreflightInfo
from server.query.run_state import RunState
from server.query.types import (
    AlertInfo,
    CensusState,
    EventInfo,
    GroupInfo,
    RolloutDetail,
    RolloutInfo,
    RuleInfo,
    RunInfo,
    RunSummary,
    SandboxInfo,
    Series,
    SignalInfo,
    SignalNow,
    SignalState,
    Status,
    StepSeries,
    TargetTrust,
    VerdictSpan,
)
from server.verdict.model import RULES_VERSION

Fact = bool | int | float | str
"""A fact of a run: a setting or a measured constant."""


# ---- verdicts


class EvidenceAnswer(TypedDict):
    """One fact behind a verdict. ``bound``: the limit that the value is compared with, in the same unit."""

    text: str
    signal: str
    value: float | None
    unit: str
    bound: float | None
    age_seconds: float | None


class LimiterAnswer(TypedDict):
    """One thing that keeps useful samples below the trainer's capacity; see `server.verdict.model.Limiter`."""

    outcome: str
    cause: str
    factor: float
    gain: float
    share: float
    text: str


class ContradictionAnswer(TypedDict):
    """Two sources whose numbers cannot both be right."""

    name: str
    text: str
    values: Mapping[str, float]


class LastVerdict(TypedDict):
    """The verdict that was withheld because it no longer describes the present."""

    outcome: str
    cause: str | None
    confidence: float
    since: float | None
    summary: str
    as_of: float


class VerdictAnswer(TypedDict, total=False):
    """A verdict; see `server.verdict.model.Verdict`.

    Older rules stored fewer fields. ``as_of`` is absent in the history. ``last`` is present only if the verdict is
    withheld.
    """

    outcome: str
    cause: str | None
    confidence: float
    since: float | None
    summary: str
    evidence: list[EvidenceAnswer]
    shares: Mapping[str, float]
    next: LimiterAnswer | None
    usd_per_hour: float | None
    usd_lacks: str
    rule: str
    completeness: float
    limiters: list[LimiterAnswer]
    advice: str
    numbers: Mapping[str, float | None]
    missing: list[str]
    disagreements: list[str]
    contradictions: list[ContradictionAnswer]
    buffer: str
    rules_version: int
    as_of: float | None
    last: LastVerdict


NO_VERDICT: VerdictAnswer = {
    "outcome": "unknown",
    "cause": None,
    "confidence": 0.0,
    "since": None,
    "summary": "no verdict yet: it is computed from the run's first tick on",
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


@dataclass(frozen=True, slots=True)
class VerdictSpanAnswer:
    """As `VerdictSpan`; ``cause`` is null where no cause was identified."""

    start: float
    end: float | None
    since: float
    outcome: str
    cause: str | None
    rule: str
    confidence: float
    summary: str
    rules_version: int
    replayed: bool
    verdict: VerdictAnswer


def verdict(span: VerdictSpan) -> VerdictSpanAnswer:
    """A row of `/api/v1/runs/{run}/verdicts`."""
    row = {field.name: getattr(span, field.name) for field in fields(VerdictSpan)}
    return VerdictSpanAnswer(**row | {"cause": span.cause or None})


# ---- runs


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """As `RunInfo`, with the run's state; ``state`` is null for a run beyond the 500 that were active last."""

    name: str
    framework: str
    mode: str
    lifecycle: str
    first_ts: float | None
    last_ts: float | None
    facts: Mapping[str, Fact]
    state: RunState | None


def run(info: RunInfo, state: RunState | None) -> RunAnswer:
    """A row of `/api/v1/runs`."""
    return RunAnswer(
        info.name, info.framework, info.mode, info.lifecycle, info.first_ts, info.last_ts, info.facts,
        None if state is None else _rounded(state),
    )  # fmt: skip


def _rounded(state: RunState) -> RunState:
    """Progress in tenths of a percent, the remaining time in whole seconds: both are estimates."""
    progress = None if state.progress is None else round(state.progress, 3)
    seconds_left = None if state.seconds_left is None else round(state.seconds_left)
    return replace(state, progress=progress, seconds_left=seconds_left)


@dataclass(frozen=True, slots=True)
class SignalNowAnswer:
    """A signal's newest value; attributes as of `SignalNow`."""

    value: float | None
    unit: str
    state: SignalState
    age_seconds: float | None
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class TrustAnswer:
    """Whether a target answers; attributes as of `TargetTrust`."""

    target: str
    kind: str
    up: bool
    age_seconds: float | None
    error: str


class AlertNow(TypedDict):
    """An alert within a run's status: what a script acts on.

    Attributes:
        since: epoch seconds at which its condition became true.
        age_seconds: how long it has been in its state: pending since ``since``, firing since it fired.
    """

    name: str
    signal: str
    state: str
    severity: str
    value: float | None
    unit: str
    since: float
    age_seconds: float
    summary: str
    muted: str
    held: bool
    labels: Mapping[str, str]
    fingerprint: str
    url: str


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The contract for scripts. ``signals``: by name with labels. ``summary``: of a finished run only."""

    run: str
    framework: str
    mode: str
    lifecycle: str
    state: RunState
    summary: RunSummary | None
    now: float
    verdict: VerdictAnswer
    signals: Mapping[str, SignalNowAnswer]
    alerts: Sequence[AlertNow]
    trust: Sequence[TrustAnswer]
    facts: Mapping[str, Fact]


def status_answer(current: Status) -> StatusAnswer:
    """`/api/v1/runs/{run}/status`."""
    return StatusAnswer(
        run=current.run,
        framework=current.framework,
        mode=current.mode,
        lifecycle=current.lifecycle,
        state=_rounded(current.state),
        summary=current.summary,
        now=current.now,
        verdict=NO_VERDICT if current.verdict is None else cast(VerdictAnswer, current.verdict),
        signals={signal.name: _signal(signal) for signal in current.signals},
        alerts=[cast(AlertNow, alert) for alert in current.alerts],
        # A target that was removed from the configuration is not down and does not affect today's numbers.
        trust=[_trust(target) for target in current.trust if target.gone_since is None],
        facts=current.facts,
    )


def status(current: Status) -> dict[str, Any]:
    """The same as a dictionary, for `rollscope status`."""
    return asdict(status_answer(current))


def _signal(signal: SignalNow) -> SignalNowAnswer:
    return SignalNowAnswer(signal.value, signal.unit, signal.state, signal.age_seconds, signal.source, signal.why)


def _trust(target: TargetTrust) -> TrustAnswer:
    return TrustAnswer(target.target, target.kind, target.up, target.age_seconds, target.error)


@dataclass(frozen=True, slots=True)
class SeriesNow:
    """The newest value of one series of a signal."""

    value: float | None
    state: SignalState


@dataclass(frozen=True, slots=True)
class SignalAnswer:
    """What a signal is, and its series by name with labels. ``enable``: how to make it available."""

    name: str
    title: str
    unit: str
    help: str
    enable: str
    actor: str
    watch: float | None
    critical: float | None
    series: Mapping[str, SeriesNow]


def signal(info: SignalInfo, series: Mapping[str, SeriesNow]) -> SignalAnswer:
    """A row of `/api/v1/runs/{run}/signals`."""
    return SignalAnswer(
        info.name, info.title, info.unit, info.help, info.why, info.actor, info.watch, info.critical, series
    )


@dataclass(frozen=True, slots=True)
class SeriesAnswer:
    """Series column by column: half the bytes of rows. ``cursor``: pass it as ``since`` for newer points only."""

    cursor: str
    now: float
    series: Sequence[Series | StepSeries]


# ---- alerts


@dataclass(frozen=True, slots=True)
class AlertsAnswer:
    """``alerts``: firing and pending. ``history``: resolved, if requested."""

    alerts: Sequence[AlertInfo]
    history: Sequence[AlertInfo]


def alert_now(alert: AlertInfo, now: float) -> AlertNow:
    """An alert within a run's status."""
    return {
        "name": alert.name,
        "signal": alert.signal,
        "state": alert.state,
        "severity": alert.severity,
        "value": alert.value,
        "unit": alert.unit,
        "since": alert.active_at,
        "age_seconds": max(0.0, now - (alert.active_at if alert.fired_at is None else alert.fired_at)),
        "summary": alert.annotations.get("summary", ""),
        "muted": alert.muted,
        "held": alert.held,
        "labels": dict(alert.labels),
        "fingerprint": alert.fingerprint,
        "url": alert.url,
    }


RuleAnswer = TypedDict(
    "RuleAnswer",
    {
        "name": str,
        "severity": str,
        "class": str,
        "expression": str,
        "summary": str,
        "builtin": bool,
        "why": str,
        "signal": str,
        "threshold": float | None,
        "recover": float | None,
    },
)
"""As `RuleInfo`; a field of a class cannot be called ``class``."""


def rule(info: RuleInfo) -> RuleAnswer:
    """A row of `/api/v1/rules`."""
    row = {("class" if key == "class_" else key): value for key, value in asdict(info).items()}
    return cast(RuleAnswer, row)


# ---- sandboxes


@dataclass(frozen=True, slots=True)
class SandboxesAnswer:
    """``funnel``: number of the run's sandboxes by the stage that they reached."""

    funnel: Mapping[str, int | None]
    sandboxes: Sequence[SandboxInfo]


# ---- rollouts


@dataclass(frozen=True, slots=True)
class RolloutsAnswer:
    """A page of rollouts. ``after``: pass it for the next page; null: this is the last page."""

    rollouts: Sequence[RolloutInfo]
    after: str | None
    complete: bool


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """One phase of a rollout; ``end`` is null while it lasts."""

    kind: str
    start: float
    end: float | None
    version: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class RolloutDetailAnswer:
    """One rollout with its timeline; attributes as of `RolloutDetail`. ``token_versions``: [version, tokens] pairs."""

    rollout: RolloutInfo
    token_versions: Sequence[tuple[int, int]]
    consumptions: Sequence[Mapping[str, Any]]
    turns: Sequence[Mapping[str, Any]]
    spans: Sequence[SpanAnswer]
    spans_told: bool
    siblings: Sequence[RolloutInfo]
    sandboxes: Sequence[Mapping[str, Any]]


def rollout_detail(detail: RolloutDetail) -> RolloutDetailAnswer:
    """One rollout: its row, its timeline, and the other rollouts of its group."""
    return RolloutDetailAnswer(
        rollout=detail.row,
        token_versions=detail.token_versions,
        consumptions=detail.consumptions,
        turns=detail.turns,
        spans=[SpanAnswer(*span) for span in detail.spans],
        spans_told=detail.spans_reported,
        siblings=detail.siblings,
        sandboxes=detail.sandboxes,
    )


@dataclass(frozen=True, slots=True)
class GroupsAnswer:
    """A page of groups. ``after``: pass it for the next page; null: this is the last page."""

    groups: Sequence[GroupInfo]
    after: str | None


@dataclass(frozen=True, slots=True)
class CensusAnswer:
    """Rollouts in flight by state, in the order in which a rollout passes through the states."""

    census: Sequence[CensusState]


@dataclass(frozen=True, slots=True)
class CellsAnswer:
    """A distribution over time: ``cells`` are [start of a bucket, {bin: count}] pairs, empty buckets left out."""

    kind: str
    cells: Sequence[tuple[float, Mapping[int, int]]]


@dataclass(frozen=True, slots=True)
class EventsAnswer:
    """Events of a run, oldest first."""

    events: Sequence[EventInfo]


# ---- preflight


@dataclass(frozen=True, slots=True)
class PreflightAnswer(PreflightInfo):
    """The last preflight of a run; each check as `rollscope preflight --json` prints it."""

    run: str = ""


def preflight(run: str, info: PreflightInfo) -> PreflightAnswer:
    """`/api/v1/runs/{run}/preflight`."""
    return PreflightAnswer(**{field.name: getattr(info, field.name) for field in fields(PreflightInfo)}, run=run)
