"""Records of `Reader`: frozen, plain, serialisable by `dataclasses.asdict`. Times are epoch seconds.

The dashboard, the API, `/metrics` and the command line show only these records, so that the dashboard never
shows a value that the API does not have.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from server.query.alert_types import AlertInfo as AlertInfo
from server.query.alert_types import AlertState as AlertState
from server.query.alert_types import DeliveryInfo as DeliveryInfo
from server.query.alert_types import RuleInfo as RuleInfo
from server.query.alert_types import SilenceInfo as SilenceInfo
from server.query.engine_types import EngineQueries
from server.query.preflight import PreflightInfo
from server.query.rollouts.types import (
    Cells,
    CensusState,
    EventInfo,
    Funnel,
    GroupInfo,
    RolloutDetail,
    RolloutFilter,
    RolloutPage,
    Sort,
)
from server.query.run_state import LIVE, RunState
from server.query.step_axis import StepAt
from server.query.verdicts import VerdictSpan
from server.query.what_if_types import Changes, WhatIfAnswer

if TYPE_CHECKING:
    from server.query.summary import RunSummary
    from server.store.retention import StoreSize

SignalState = Literal["ok", "watch", "critical", "unknown", "not_applicable"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One row of the run list."""

    name: str
    framework: str
    mode: str
    lifecycle: str
    first_ts: float | None
    last_ts: float | None
    facts: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SignalInfo:
    """The definition of a signal: constant, from the code. ``watch`` and ``critical`` are its bands (None: no band).

    ``inputs``: the catalogue metrics it reads. ``cadence``: ``tick``, ``step`` or ``counter``.
    """

    name: str
    title: str
    unit: str
    help: str
    why: str
    actor: str
    watch: float | None = None
    critical: float | None = None
    higher_is_worse: bool = True
    inputs: tuple[str, ...] = ()
    cadence: str = ""


@dataclass(frozen=True, slots=True)
class SignalNow:
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


@dataclass(frozen=True, slots=True)
class RunNow:
    """One row of the list of all runs.

    Attributes:
        verdict: as in `Status`.
        signals: the few that stand in the list, as in `Status`.
        step: number of the trainer's newest step; None when none is known.
        newest: when its youngest number was true; None when there never was any.
        up, targets: how many of its targets answer, of how many; without those that no list names any more.
        state: as in `Status`.
    """

    info: RunInfo
    verdict: Mapping[str, Any] | None
    signals: tuple[SignalNow, ...]
    step: int | None
    newest: float | None
    up: int
    targets: int
    state: RunState = LIVE


@dataclass(frozen=True, slots=True)
class TargetTrust:
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
    labels: Mapping[str, str] = field(default_factory=dict)
    # When it was removed from the discovery list (epoch s): it is not down, and no alert fires for it.
    gone_since: float | None = None
    # It reports rollout records and is no engine.
    records: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """The contract for scripts (`GET /api/v1/runs/{run}/status`, `rollscope status --json`)."""

    run: str
    framework: str
    mode: str
    lifecycle: str
    now: float
    # As `server.verdict.model.Verdict.to_json` has it, with ``as_of``; None before the first.
    verdict: Mapping[str, Any] | None
    signals: tuple[SignalNow, ...]
    alerts: tuple[Mapping[str, object], ...]
    trust: tuple[TargetTrust, ...]
    facts: Mapping[str, str | float]
    state: RunState = LIVE
    # Of a run that is over.
    summary: "RunSummary | None" = None


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart, at most as many buckets as requested. ``mean[i] is None``: the line breaks there.

    ``low`` and ``high`` are the extremes inside each bucket, so no spike is averaged away.
    """

    name: str
    unit: str
    ts: tuple[float, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class StepSeries:
    """As `Series`, over the trainer's steps: ``step`` ascends; of a step trained twice the newer incarnation counts.

    A tick's points belong to the step in progress. If there are more steps than requested points, steps are merged.
    """

    name: str
    unit: str
    step: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New points since a cursor. ``reset``: history was rewritten, fetch the whole range again.

    ``points``: series name -> [(ts, value or None)], oldest first.
    """

    cursor: str
    reset: bool
    now: float
    points: Mapping[str, tuple[tuple[float, float | None], ...]]


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox as last reported. Times are epoch seconds; None: unknown.

    Attributes:
        name: given by its creator; harnesses use the id of the rollout's trace.
        own: of this run; else of another run in a shared account.
        first_exec_at: first command in it; few sources report it.
        spinup_seconds: requested to ready, if both are known; `latency_source` names the clock.
        pending_seconds: how long it has been waited for, while it is not ready.
    """

    provider: str
    id: str
    name: str
    target: str
    run_key: str
    own: bool
    dangling: bool
    state: str
    provider_state: str
    requested_at: float | None
    started_at: float | None
    ready_at: float | None
    first_exec_at: float | None
    ended_at: float | None
    spinup_seconds: float | None
    pending_seconds: float | None
    image: str
    image_cached: bool | None
    latency_source: str
    cause: str
    detail: str
    unreachable: bool
    seen_at: float


class Reader(EngineQueries, Protocol):
    """Reads the store. Synchronous and thread-safe: async callers use `asyncio.to_thread`.

    Every method raises `UnknownRun` for a run that does not exist. A series' name is `SignalNow.name`.
    """

    def now(self) -> float:
        """The server's clock, epoch seconds; a demo's clock may differ from the wall clock."""

    def one_state(self) -> AbstractContextManager[None]:
        """Reads of this thread inside the block see one state of the store, and cost less than separate reads."""

    def mark(self) -> int | None:
        """A number that changes with every write of any process; None: unavailable, compare each run's `cursor`.

        Takes microseconds, so that it may be called on an event loop.
        """

    def runs(self) -> list[RunInfo]:
        """All runs, the most recently active first."""

    def store_size(self) -> "StoreSize":
        """What the database takes on disk, and when its oldest raw sample was taken."""

    def states(self) -> Mapping[str, RunState]:
        """The state of each run, by name; of more than 500 those that were active last."""

    def fleet(self) -> list[RunNow]:
        """All runs with their verdicts, by name, in a few reads; of more than 500 those that were active last."""

    def infos(self) -> Mapping[str, SignalInfo]:
        """Every signal this version can derive, by name, in the order of the README."""

    def status(self, run: str) -> Status:
        """Everything about a run now."""

    def series(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[Series]:
        """One `Series` per name in the given order; unknown names give an empty series."""

    def by_step(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[StepSeries]:
        """As `series`, with the trainer's steps for time; a run without steps gives empty series."""

    def cursor(self, run: str) -> str:
        """The newest position: `since` it gives only later points."""

    def since(self, run: str, cursor: str) -> Delta:
        """Points of all signals written after `cursor`. A foreign or old cursor answers `reset`."""

    def verdicts(self, run: str, start: float, end: float, limit: int = 1000) -> list[VerdictSpan]:
        """Verdicts within [start, end], oldest first; of more than ``limit`` changes the newest."""

    def targets(self, run: str | None = None) -> list[TargetTrust]:
        """Health of the targets of one run, or of all."""

    def sandboxes(
        self, run: str, states: Sequence[str] = (), *, dangling: bool | None = None, find: str = "", limit: int = 100,
        before: str | None = None,
    ) -> list[SandboxInfo]:  # fmt: skip
        """Sandboxes of a run's providers, newest first. ``before``: id of the last one of the previous page.

        ``find``: part of an id or a name, case-insensitive.
        """

    def sandbox_funnel(self, run: str) -> Mapping[str, int | None]:
        """How many of the run's own got how far: requested, started, ready, first_exec, ended, failed.

        ``first_exec`` counts among the ``first_exec_of`` whose source reports it, and is None if no source does;
        ``met_ended`` had ended before their source was watched, and spoil a share of failures.
        """

    def spinups(self, run: str, start: float, end: float, buckets: int = 60) -> list[tuple[float, Mapping[str, int]]]:
        """(bucket's start, {upper edge in seconds: how many became ready}) for a heat map; empty buckets left out."""

    def rollouts(
        self, run: str, wanted: RolloutFilter = RolloutFilter(), *, sort: Sort = "seconds", descending: bool = True,  # noqa: B008
        limit: int = 100, after: str = "",
    ) -> RolloutPage:  # fmt: skip
        """A page of rollouts; by default the stragglers first. ``after``: `RolloutPage.after` of the page before.

        Raises `ValueError` for an ``after`` that is not of this order; `rollout_groups` does, too.
        """

    def rollout(self, run: str, rollout_id: str, life: int | None = None) -> RolloutDetail | None:
        """One rollout with its timeline (``life`` None: its newest incarnation); None if it is unknown."""

    def rollout_traces(self, run: str, start: float, end: float, limit: int = 5000) -> list[RolloutDetail]:
        """What moved within [start, end) with its timeline, oldest first; of more than ``limit`` the newest."""

    def rollout_groups(
        self, run: str, outcomes: Sequence[str] = (), *, environment: str = "", limit: int = 100, after: str = ""
    ) -> tuple[list[GroupInfo], str]:
        """Groups, the newest moved first, and where the next page begins ("": nowhere)."""

    def rollout_funnel(self, run: str, start: float, end: float, *, purpose: str = "train") -> Funnel:
        """How rollouts left within [start, end), in rollouts, tokens, GPU-seconds and dollars."""

    def rollout_census(self, run: str) -> list[CensusState]:
        """What is in flight now, by state, in the order a rollout goes through them."""

    def rollout_cells(self, run: str, kind: str, start: float, end: float, buckets: int = 60) -> Cells:
        """A distribution over time: ``response_tokens``, ``turns``, ``staleness``, ``seconds``, ``solve_ratio``.

        Bins of tokens and seconds are powers of 2^(1/2): bin b holds values in [2^(b/2), 2^((b+1)/2)); of staleness
        and turns the number itself; of solve ratio tenths.
        """

    def rollout_environments(self, run: str) -> list[str]:
        """Environments that rollouts named, by name; at most 100."""

    def events(
        self, run: str, start: float, end: float, kinds: Sequence[str] = (), limit: int = 1000
    ) -> list[EventInfo]:
        """What happened within [start, end), oldest first; of more than ``limit`` the newest."""

    def step_times(self, run: str, start: float, end: float, most: int = 1000) -> list[StepAt]:
        """The trainer's within [start, end] and the one before, oldest first; of more than ``most`` some."""

    def what_if(self, run: str, changes: Changes) -> WhatIfAnswer:
        """What the changes would make of a run: an estimate (`server.verdict.what_if.answer`).

        Raises `OutOfRange` for GPUs or engines that the run has not.
        """

    def preflight(self, run: str) -> PreflightInfo:
        """The last pre-flight of the run that this process started."""

    def alerts(self, run: str | None = None) -> list[AlertInfo]:
        """Pending and firing alerts of one run or of all: firing first, the gravest first, then the oldest.

        What inhibits one is as of the run's last tick; a silence counts from when it is made to when it ends.
        """

    def alert_history(self, run: str | None = None, limit: int = 100) -> list[AlertInfo]:
        """Resolved alerts that had fired, the newest first."""

    def silences(self, expired: bool = False) -> list[SilenceInfo]:
        """Active and pending silences; with ``expired`` those of the last days too. The one that ends first first."""

    def rules(self, run: str | None = None) -> list[RuleInfo]:
        """Every rule, in the order of evaluation; with a run, `why` names the input that the run lacks."""

    def deliveries(self, run: str | None = None, limit: int = 50) -> list[DeliveryInfo]:
        """The newest notifications, newest first."""


class UnknownRun(KeyError):
    """No run of that name."""
