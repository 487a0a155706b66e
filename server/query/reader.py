"""Reads the store for the dashboard, the API, `/metrics` and the command line: one attribute per topic.

Thread-safe: every call, or block of one state, has its own read connection. Only constants and names of series are
cached.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from collectors import record_formats
from server.alerts.settings import AlertSettings
from server.lib.clock import Clock
from server.query import health, what_if
from server.query.alerts import AlertReader, alert_now
from server.query.engines import EngineReader
from server.query.metrics import MetricReader
from server.query.preflight import PreflightInfo
from server.query.rollouts import RolloutReader
from server.query.run_state import RunState, one_state, position, state_of, stored_run
from server.query.runs import RunReader
from server.query.sandboxes import SandboxReader
from server.query.signals import (
    TICK_STALE_SECONDS,
    SignalReader,
    duration_text,
    newest_step,
    newest_value,
    step_stale_seconds,
    without_withheld,
)
from server.query.steps import StepReader
from server.query.types import RunSummary, SignalNow, Status, TargetTrust
from server.query.verdicts import NO_VERDICT, VerdictReader, summary
from server.query.what_if import Changes, WhatIfEstimate
from server.signals.model import UNKNOWN, Origin, TargetState
from server.signals.window import TRAINER
from server.store import Store
from server.store.generators import TargetHealth
from server.store.types import RunRow

# Removed targets are shown for a day.
GONE_SECONDS = 86_400.0
COST = "cost_usd_per_hour"
# The rate changes with the number of GPUs and sandboxes.
COST_POINTS = 60
# More changes of the verdict than any run has had; a summary of its time must not grow without bound.
MOST_SPANS = 5000


def _not_configured(run: str) -> PreflightInfo:
    return PreflightInfo("not_configured", run=run)


class Reader:
    """Reads the store. Synchronous: async callers use `asyncio.to_thread`.

    Every method with a run raises `UnknownRun` for a run that does not exist. Records are those of
    `server.query.types`: frozen, with times in epoch seconds.

    Attributes:
        runs: the list of runs, their states, and events.
        signals: definitions, history, and points since a cursor.
        metrics: what targets report, below the level of signals.
        steps: the trainer's steps, and series over steps.
        verdicts: history of the verdict.
        engines, sandboxes, rollouts: their records.
        alerts: alerts, silences, rules and deliveries.
    """

    def __init__(
        self, store: Store, clock: Clock, alerts: AlertSettings | None = None,
        preflight: Callable[[str], PreflightInfo] | None = None, own: Callable[[], Iterable[health.Family]] = tuple,
    ) -> None:  # fmt: skip
        self._store, self._clock, self._own = store, clock, own
        self._preflight = preflight or _not_configured
        self.runs = RunReader(store, clock)
        self.signals = SignalReader(store, clock)
        self.metrics = MetricReader(store)
        self.steps = StepReader(store)
        self.verdicts = VerdictReader(store, clock)
        self.engines = EngineReader(store, clock)
        self.sandboxes = SandboxReader(store, clock)
        self.rollouts = RolloutReader(store, clock)
        self.alerts = AlertReader(store, clock, alerts or AlertSettings())

    def now(self) -> float:
        """The server's clock, epoch seconds; a demo's clock may differ from the wall clock."""
        return self._clock.now()

    def one_state(self) -> AbstractContextManager[None]:
        """Reads of this thread inside the block see one state of the store, and cost less than separate reads."""
        return one_state(self._store)

    def mark(self) -> int | None:
        """A number that changes with every write of any process; None: unavailable, compare each run's cursor.

        Takes microseconds, so that it may be called on an event loop.
        """
        return self._store.mark()

    def health(self) -> dict[str, str]:
        """Rollscope's own health in words, by topic: `server.query.health`."""
        return health.words(self._own())

    def status(self, run: str) -> Status:
        """Everything about a run now."""
        row = stored_run(self._store, run)
        now = self._clock.now()
        by_signal = self.signals.by_name(row)
        targets = self._store.runs.targets(row.name)
        health = _health([target for _, target in targets], now)
        state = state_of(
            row, now, newest_value(by_signal), newest_step(by_signal), step_stale_seconds(by_signal), health
        )
        verdict = self.verdicts.now(row, state)
        signals = {one.name: one for one in without_withheld(self.signals.now(row, by_signal, now, state), verdict)}
        trust = [_trust(owner, target, now, state) for owner, target in targets if _is_shown(target, now)]
        return Status(
            run=row.name,
            framework=row.framework,
            mode=row.mode,
            lifecycle=row.lifecycle or "starting",
            now=now,
            verdict=verdict or NO_VERDICT,
            signals=signals,
            alerts=tuple(alert_now(alert, now) for alert in self.alerts.unresolved(run)),
            trust=tuple(target for target in trust if target.gone_since is None),
            facts=row.facts,
            state=state,
            summary=self._summary(row, state, signals.values()) if state.over else None,
            gone=tuple(target for target in trust if target.gone_since is not None),
        )

    def _summary(self, row: RunRow, state: RunState, signals: Iterable[SignalNow]) -> RunSummary:
        first = None if row.first_ts is None else row.first_ts / 1000
        steps = self._store.fleet.steps([row.id], TRAINER).get(row.id)
        spans = self.verdicts.spans(row.name, first or 0.0, self._clock.now(), MOST_SPANS)
        end = state.as_of
        costs = [] if first is None or end is None else self.signals.series(row.name, (COST,), first, end, COST_POINTS)
        return summary(first, end, steps, signals, spans, [rate for cost in costs for rate in cost.mean])

    def targets(self, run: str | None = None) -> list[TargetTrust]:
        """Health of the targets of one run, or of all."""
        if run is not None:
            position(self._store, run)
        now, states = self._clock.now(), self.runs.states()
        rows = self._store.runs.targets(run)
        return [_trust(owner, target, now, states.get(owner)) for owner, target in rows if _is_shown(target, now)]

    def what_if(self, run: str, changes: Changes) -> WhatIfEstimate:
        """Estimates the effect of changes on a run; raises `OutOfRange` for GPUs or engines that the run has not."""
        return what_if.estimate(self.status(run), changes)

    def preflight(self, run: str) -> PreflightInfo:
        """The last preflight of the run that this process started."""
        return self._preflight(stored_run(self._store, run).name)


def _health(targets: Sequence[TargetState], now: float) -> TargetHealth:
    """As `FleetStore.targets` computes it for all runs at once."""
    present = [target for target in targets if not target.gone]
    answered = max((target.last_ok_ts for target in present if target.last_ok_ts is not None), default=None)
    up = sum(target.up and not _unread(target, now) for target in present)
    return TargetHealth(up, len(present), answered, max((target.last_ts for target in present), default=None))


def _unread(row: TargetState, now: float) -> bool:
    return not row.gone and now - row.last_ts > TICK_STALE_SECONDS + 3 * row.interval_seconds


def _trust(run: str, row: TargetState, now: float, state: RunState | None) -> TargetTrust:
    age = now - row.last_ok_ts if row.last_ok_ts is not None else None
    lost = state is not None and state.name == "not_collected"
    # A catch-up reads targets at times of the history; a collector that is gone makes the state `not_collected`.
    catches = state is not None and state.name == "catching_up"
    silent = (_unread(row, now) and not catches) or (lost and not row.gone)
    read = duration_text(max(0.0, now - row.last_ts))
    error = f"not read for {read}: no collector follows this run" if silent else row.error
    up = row.up and not silent
    health = (row.scrape_seconds, row.samples, row.dropped, row.unmapped)
    origin = row.origin or Origin("")
    return TargetTrust(
        row.name, run, row.collector, row.actor, up, age, error, *health, origin.source, origin.job,
        dict(origin.labels), row.last_ts if row.gone else None, row.collector in record_formats(),
    )  # fmt: skip


def _is_shown(row: TargetState, now: float) -> bool:
    """Whether to show a target. Removed targets are shown for a day: fleets that are replaced hourly have many.

    A target of unknown kind is hidden once it is identified or removed.
    """
    if row.collector == UNKNOWN:
        return not row.gone and now - row.last_ts <= TICK_STALE_SECONDS + 3 * row.interval_seconds
    return not row.gone or now - row.last_ts <= GONE_SECONDS
