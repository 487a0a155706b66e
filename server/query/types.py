"""Records of `server.query.reader.Reader`: frozen, and what the API answers. Times are epoch seconds.

The dashboard, the API, `/metrics` and the command line show only these records, so that the dashboard never
shows a value that the API does not have.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, get_args

from msgspec import Struct, field

from collectors.model import Labels, Sandbox, Span
from server.query.run_state import LIVE, RunState
from server.rollouts.model import RolloutRow
from server.verdict.model import CAUSES as CAUSES
from server.verdict.model import Advice as Advice
from server.verdict.model import Contradiction as Contradiction
from server.verdict.model import Evidence as Evidence
from server.verdict.model import Limiter as Limiter
from server.verdict.model import Outcome
from server.verdict.model import Verdict as Verdict

SignalState = Literal["ok", "watch", "critical", "unknown", "not_applicable"]

Fact = bool | int | float | str
"""A fact of a run: a setting or a measured constant."""


# ---- verdicts


class VerdictSpan(Struct, frozen=True):
    """A period with one verdict. Times are epoch seconds.

    Attributes:
        start, end: when it was current; end None while it is.
        since: when its condition began; before `start` by the time that the rules needed to confirm it.
        cause: None where no cause was identified.
        rules_version: of the rules that produced it.
        replayed: evaluated while history was read.
        verdict: the whole of it as it was at `start`, as in the status.
    """

    start: float
    end: float | None
    since: float
    outcome: Outcome
    cause: str | None
    rule: str
    confidence: float
    summary: str
    rules_version: int
    replayed: bool
    verdict: Verdict


# ---- runs and signals


class RunSummary(Struct, frozen=True):
    """A run from its first datum to its last.

    Attributes:
        seconds: how long it lasted; None without data.
        steps: number of the trainer's last step.
        usd: `seconds` at the mean hourly rate: GPUs are held for the whole run.
        idle_usd: what idle GPUs cost, all causes together.
        limiters: outcome of the verdict -> seconds for which it was the verdict.
        reward: mean reward of the last step.
    """

    seconds: float | None
    steps: int | None
    usd: float | None
    idle_usd: float | None
    limiters: Mapping[str, float]
    reward: float | None


class RunInfo(Struct, frozen=True):
    """A run. ``state``: None where only the run is asked for, and beyond the 500 runs that were active last."""

    name: str
    framework: str
    mode: str
    lifecycle: str
    first_ts: float | None
    last_ts: float | None
    facts: Mapping[str, Fact] = {}
    state: RunState | None = None


class SeriesNow(Struct, frozen=True):
    """The newest value of one series of a signal.

    Attributes:
        ts: time of the data behind it, or of the last value where there is none now; None when there never was any.
    """

    value: float | None
    state: SignalState
    ts: float | None = None


class SignalInfo(Struct, frozen=True):
    """What a signal is: constant, from the code.

    Attributes:
        enable: how to make it available.
        watch, critical: its bands; None: no band.
        inputs: the catalogue metrics it reads.
        cadence: ``tick``, ``step`` or ``counter``.
        series: of a run: its series by name with labels.
    """

    name: str
    title: str
    unit: str
    help: str
    enable: str
    actor: str
    watch: float | None = None
    critical: float | None = None
    higher_is_worse: bool = True
    inputs: tuple[str, ...] = ()
    cadence: str = ""
    series: Mapping[str, SeriesNow] = {}


class MetricSeries(Struct, frozen=True):
    """One series of a metric as a target reports it.

    Attributes:
        name: as the parameter `metric` of `/series` takes it: the metric with its labels, `target`, and `axis` of a
            value that comes with a step.
        ts: when its newest sample was true; None: none is stored any more.
    """

    name: str
    target: str
    labels: Mapping[str, str]
    axis: str
    ts: float | None


class MetricInfo(Struct, frozen=True):
    """A metric that collectors report: what it is, and the series that a run has of it.

    Attributes:
        unit: the base unit; "" for a pure number.
        kind: Prometheus' type: ``gauge``, ``counter`` or ``histogram``.
        reduction: what one value covers: ``instant``, ``cumulative``, ``per_step`` or ``window_delta``.
        actor: the actor that it describes; "" for a number about reading any target.
        lowest, highest: values outside are refused; None: no bound.
        newest: time of the newest sample of all series; None without any.
        series: of a run: its series by target and labels, at most `LISTED_SERIES`.
        unlisted: how many more there are.
    """

    name: str
    unit: str
    kind: str
    reduction: str
    actor: str
    help: str
    lowest: float | None = None
    highest: float | None = None
    newest: float | None = None
    series: tuple[MetricSeries, ...] = ()
    unlisted: int = 0


class SignalNow(Struct, frozen=True):
    """A signal's newest value.

    Attributes:
        name: Prometheus name without prefix, with labels: ``staleness_versions{level="trajectory",stat="mean"}``.
        signal: the name without labels (a `SignalInfo.name`).
        age_seconds: since the data behind it; None when there never was any.
        why: for unknown and not applicable: the reason, and what to log to change it.
    """

    name: str
    signal: str
    labels: Mapping[str, str]
    value: float | None
    unit: str
    state: SignalState
    age_seconds: float | None
    source: str
    why: str
    ts: float | None


class RunNow(Struct, frozen=True):
    """One row of the list of all runs.

    Attributes:
        verdict: as in `Status`; None before the first.
        signals: the few that stand in the list.
        step: number of the trainer's newest step; None when none is known.
        newest: when its youngest number was true; None when there never was any.
        up, targets: how many of its targets answer, of how many; without those that no list names any more.
        state: as in `Status`.
    """

    info: RunInfo
    verdict: Verdict | None
    signals: tuple[SignalNow, ...]
    step: int | None
    newest: float | None
    up: int
    targets: int
    state: RunState = LIVE


class TargetTrust(Struct, frozen=True):
    """The health of a target, shown next to every number from it."""

    target: str
    run: str
    kind: str
    actor: str
    up: bool
    age_seconds: float | None
    error: str
    scrape_seconds: float
    samples: int
    dropped: int
    unmapped: Mapping[str, int]
    # Of a discovered target: the discovery list, its job and its labels.
    source: str = ""
    job: str = ""
    labels: Mapping[str, str] = {}
    # When it was removed from the discovery list (epoch s): it is not down, and no alert fires for it.
    gone_since: float | None = None
    # It reports rollout records and is no engine.
    records: bool = False


class AlertNow(Struct, frozen=True):
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


class Status(Struct, frozen=True):
    """The contract for scripts (`GET /api/v1/runs/{run}/status`, `rollscope status --json`).

    Attributes:
        verdict: unknown before the first.
        signals: by name with labels.
        trust: the targets that the run has.
        gone: those that were removed from their list: they are not down, and affect no number of today.
        summary: of a finished run only.
    """

    run: str
    framework: str
    mode: str
    lifecycle: str
    now: float
    verdict: Verdict
    signals: Mapping[str, SignalNow]
    alerts: tuple[AlertNow, ...]
    trust: tuple[TargetTrust, ...]
    facts: Mapping[str, Fact]
    state: RunState = LIVE
    summary: RunSummary | None = None
    gone: tuple[TargetTrust, ...] = ()


class Series(Struct, frozen=True):
    """One line of a chart, at most as many buckets as requested. ``mean[i] is None``: the line breaks there.

    ``low`` and ``high`` are the extremes inside each bucket, so no spike is averaged away.
    """

    name: str
    unit: str
    ts: tuple[float, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


class StepSeries(Struct, frozen=True):
    """As `Series`, over the trainer's steps: ``step`` ascends; of a step trained twice the newer incarnation counts.

    A tick's points belong to the step in progress. If there are more steps than requested points, steps are merged.
    """

    name: str
    unit: str
    step: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Delta(Struct, frozen=True):
    """New points since a cursor. ``reset``: history was rewritten, fetch the whole range again.

    ``points``: series name -> [(ts, value or None)], oldest first.
    """

    cursor: str
    reset: bool
    now: float
    points: Mapping[str, tuple[tuple[float, float | None], ...]]


# ---- engines and steps

EngineMetric = Literal["kv", "running", "waiting", "preemptions", "tokens"]
"""History of each engine: share of its KV cache used, requests, preemptions per minute, tokens per second."""

METRICS: tuple[EngineMetric, ...] = get_args(EngineMetric)
# Engines whose history is read at once: more rows than a screen can show.
MOST_ENGINES = 64
# Steps that are read at once.
MOST_STEPS = 200


class EngineInfo(Struct, frozen=True):
    """One engine at one time; None: the engine does not report it.

    Attributes:
        key: identifies it within its run: its target, and which of the target's engines it is.
        running, waiting, kv_ratio: its newest values, at most five minutes old.
        mean_running, mean_waiting, mean_kv_ratio: over the last five whole minutes.
        tokens_per_second, preemptions_per_minute: over those minutes.
        prefix_hit_ratio: share of prompt tokens found in its prefix cache, over those minutes.
        request_limit: requests it runs at once at most.
        held: ``paused``, ``asleep``, or "".
        role: ``prefill``, ``decode``, or "": it does both.
        last_ts: time of its newest value.
    """

    key: str
    target: str
    labels: Mapping[str, str]
    last_ts: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_ratio: float | None = None
    mean_running: float | None = None
    mean_waiting: float | None = None
    mean_kv_ratio: float | None = None
    tokens_per_second: float | None = None
    preemptions_per_minute: float | None = None
    prefix_hit_ratio: float | None = None
    request_limit: float | None = None
    version: float | None = None
    held: str = ""
    role: str = ""


class StepInfo(Struct, frozen=True):
    """One step of the trainer as it was logged: canonical metric (with its labels, where it has some) -> value.

    ``life``: the trainer's incarnation: 0, or the number of restarts before it.
    """

    step: int
    ts: float
    life: int
    values: Mapping[str, float] = {}


class StepAt(Struct, frozen=True):
    """When a trainer step was reported (epoch seconds). ``life``: the incarnation; it rises with each restart."""

    ts: float
    step: int
    life: int


# ---- alerts

AlertState = Literal["pending", "firing", "resolved"]


class AlertInfo(Struct, frozen=True):
    """One episode of an alert.

    Attributes:
        value: newest value that the rule evaluated, in `unit`.
        muted: why no notification is sent: ``silenced ...`` or ``inhibited ...``; "" if they are sent.
        reason: why it is resolved, or that its series is unknown now.
        held: its series is unknown now, so its state is held.
        url: relative address of the charts at its moment.
        replayed: it began in history that was read back.
    """

    run: str
    name: str
    state: AlertState
    severity: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    value: float | None
    unit: str
    signal: str
    active_at: float
    fired_at: float | None
    resolved_at: float | None
    fingerprint: str
    muted: str = ""
    reason: str = ""
    held: bool = False
    url: str = ""
    replayed: bool = False


class SilenceInfo(Struct, frozen=True):
    """A silence. ``matchers``: as written, e.g. ``alertname="RunStalled"``. ``state``: pending, active, expired."""

    id: str
    state: str
    matchers: tuple[str, ...]
    starts_at: float
    ends_at: float
    created_by: str
    comment: str


class RuleInfo(Struct, frozen=True):
    """A rule as configured.

    Attributes:
        expression: the condition as text, e.g. ``trainer_wait_ratio > 0.4 for 5m``.
        why: "" when it can fire; else what is missing ("no source yet: ...").
        signal, threshold, recover: for drawing its line into the signal's chart; threshold None where it has none.
    """

    name: str
    severity: str
    class_: str = field(name="class")
    expression: str
    summary: str
    builtin: bool
    why: str = ""
    signal: str = ""
    threshold: float | None = None
    recover: float | None = None


class DeliveryInfo(Struct, frozen=True):
    """A notification and the result of its delivery, without secrets. ``status``: pending, sent, failed, superseded."""

    run: str
    receiver: str
    kind: str
    status: str
    alerts: tuple[str, ...]
    created_at: float
    sent_at: float | None
    attempts: int
    next_at: float | None
    answer: str
    group_key: str = ""


# ---- types
# Records of rollouts: frozen, plain, serialisable.

SORTS = ("moved", "seconds", "response_tokens", "staleness", "reward")
"""Columns a page of rollouts may be sorted by: each has an index."""

Sort = Literal["moved", "seconds", "response_tokens", "staleness", "reward"]


class RolloutFilter(Struct, frozen=True):
    """Which rollouts. Empty fields do not restrict.

    Attributes:
        states: exits and census states.
        find: an id, or the beginning of one; group ids too. Of more than 10,000 that lie together, far from where the
            order begins, those whose ids come last; all of them in pages of 1,000.
        mixed, sampled: only those that are (or are not).
        start, end: moved within, epoch seconds.
    """

    states: tuple[str, ...] = ()
    environment: str = ""
    purpose: str = ""
    group: str = ""
    find: str = ""
    mixed: bool | None = None
    start: float | None = None
    end: float | None = None


class RolloutPage(Struct, frozen=True):
    """Rows in the requested order. ``after``: pass it for the next page; None: this is the last page.

    ``complete``: the pages hold all matches. False: so many ids begin with ``find`` that only those
    whose ids come last are given (see `RolloutFilter`).
    """

    rollouts: tuple[RolloutRow, ...]
    after: str | None
    complete: bool = True


class RolloutDetail(Struct, frozen=True):
    """One rollout with its timeline.

    Attributes:
        rollout: with its turns and spans as reported, where they are kept (`rollout.detailed`).
        spans: by start; made of the reported times where the source reported none; then ``spans_told`` is False.
        siblings: the group's other members.
        sandboxes: those of `rollout.sandbox_ids` that a provider reports.
    """

    rollout: RolloutRow
    spans: tuple[Span, ...]
    spans_told: bool
    siblings: tuple[RolloutRow, ...]
    sandboxes: tuple[Sandbox, ...] = ()


class FunnelBar(Struct, frozen=True):
    """One exit in a window. None: not known (no engine counter, no price). ``derived``: not counted from records.

    Attributes:
        told: how many of ``rollouts`` report their tokens; the amounts cover only these.
        bound: ``lower``: some do not report tokens, so there are more; ``upper``: may include tokens of others.
    """

    exit: str
    rollouts: int
    response_tokens: int | None
    gpu_seconds: float | None
    usd: float | None
    derived: bool = False
    told: int = 0
    bound: Literal["", "lower", "upper"] = ""


class Discards(Struct, frozen=True):
    """Rollouts of one environment that were trained on against those that were not (all other exits).

    Attributes:
        environment: "" if the rollouts name none.
        trained, discarded: number of rollouts.
        trained_measured, discarded_measured: number of those that report their tokens.
        trained_tokens, discarded_tokens: mean response tokens of these; None: none reports them.
        cut: number of discarded rollouts that were aborted or failed: whole, they would be longer.
    """

    environment: str
    trained: int
    discarded: int
    trained_measured: int
    discarded_measured: int
    trained_tokens: float | None
    discarded_tokens: float | None
    cut: int


class Funnel(Struct, frozen=True):
    """Exits within [start, end), and what is in flight now.

    Attributes:
        discards: by environment; the first is of all of them.
        why: what is unknown, and what to log or configure.
        wasted_usd: dollars of rollouts that were not trained on, as far as reported; None: unknown.
    """

    start: float
    end: float
    bars: tuple[FunnelBar, ...]
    in_flight: int
    why: str = ""
    wasted_usd: float | None = None
    discards: tuple[Discards, ...] = ()


class CensusState(Struct, frozen=True):
    """How many are in a state now, and for how long the oldest of them."""

    state: str
    rollouts: int
    oldest_seconds: float | None


class EventInfo(Struct, frozen=True):
    """One event. ``version``: the published policy version, if reported."""

    ts: float
    kind: str
    key: str
    detail: str
    version: int | None = None


Cells = Sequence[tuple[float, Mapping[int, int]]]
"""(bucket's start, {bin: how many}), empty buckets left out."""


# ---- names
# Series names as Prometheus writes them: ``staleness_versions{level="trajectory",stat="mean"}``.

_PAIR_TEXT = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_NAME = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:{_PAIR_TEXT}(?:,{_PAIR_TEXT})*)?)\}})?", re.DOTALL)
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


@lru_cache(maxsize=1 << 14)
def format_name(signal: str, labels: Labels) -> str:
    """The written form; labels sorted, values escaped as in the exposition format."""
    if not labels:
        return signal
    pairs = (f'{name}="{"".join(_ESCAPES.get(char, char) for char in value)}"' for name, value in sorted(labels))
    return f"{signal}{{{','.join(pairs)}}}"


def parse_name(text: str) -> tuple[str, Labels]:
    """The reverse of `format_name`; labels come back sorted.

    Raises:
        ValueError: not a series name.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        example = 'kv_cache_usage_ratio{target="engine-0"}'
        raise ValueError(f"not a series name: {text[:80]!r}; example: {example}")
    return match[1], tuple(sorted((name, _unescape(value)) for name, value in _PAIR.findall(match[2] or "")))


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value, flags=re.DOTALL)


def mode_words(mode: str, facts: Mapping[str, str | float]) -> str:
    """``async``, ``unknown``, or ``unknown (usually async)``."""
    usual = facts.get("usual_mode")
    return mode or (f"unknown (usually {usual})" if usual else "unknown")
