"""One run from readings to answers: ingests readings, commits their rows, derives signals, verdict and alerts.

The run loop, the view of a long log's end and `rollscope check` read at different times into different stores; what
follows is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import collectors
from collectors.model import Collector, Reading, ScrapeError, Target
from server.alerts.settings import AlertSettings
from server.derive.driver import RunDriver, Submit, carry_of
from server.derive.source_priority import SourcePriority
from server.ingest.readings import Arrivals, Ingest
from server.store import Store
from server.store.types import Batch, LatestRow, SeriesKey


def collector_of(target: Target) -> Collector:
    """Returns the collector of a target, configured by the target's options."""
    collector = collectors.load()[target.collector]
    return collector.configured(dict(target.options)) if collector.configured is not None else collector


@dataclass(slots=True)
class RunTargets:
    """The targets of a run, which come and go.

    Attributes:
        known: name -> (target, seconds between its reports); pushed targets are added with their first push.
        trust: ranks targets that report the same.
        others: further names with a health row: heartbeats, target lists, pending sources.
    """

    known: dict[str, tuple[Target, float]]
    trust: SourcePriority
    others: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, targets: Sequence[Target]) -> "RunTargets":
        known = {target.name: (target, collector_of(target).report_seconds) for target in targets}
        return cls(known, SourcePriority.of(targets, collectors.load()))

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self.others

    def names(self) -> set[str]:
        return {*self.known, *self.others}

    def add(self, target: Target) -> None:
        collector = collector_of(target)
        if collector.actor == "trainer" or target.path:
            self.trust.meet(target.name, collector)
        self.known[target.name] = (target, collector.report_seconds)

    def rank_forwarded(self, name: str, kind: str) -> None:
        """Ranks a forwarded target like one that is read here. ``kind``: name of its collector."""
        if (collector := collectors.load().get(kind)) is not None:
            self.trust.meet(name, collector)

    def remove(self, name: str) -> None:
        self.known.pop(name, None)
        self.others.discard(name)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Settings of a pipeline.

    Attributes:
        facts: stated by the user; they win over what collectors find.
        since: pushed rows are read from this time on (default: the watermark).
        address_of: target -> its address without secrets, or "".
        on_outbox: called when a notification waits to be sent.
        carry: target -> seconds a gauge of it is held (default: by its reports).
    """

    facts: Mapping[str, str | float] = field(default_factory=dict)
    alerts: AlertSettings | None = None
    since: float | None = None
    address_of: Callable[[str], str] = lambda _: ""
    on_outbox: Callable[[], None] = lambda: None
    carry: Callable[[str], float] | None = None


class RunPipeline:
    """Owns the `Ingest` and the `RunDriver` of one run. Not thread-safe.

    Args:
        submit: hands a batch to the store's writer (default: written at once).
    """

    def __init__(
        self, store: Store, run: str, targets: RunTargets, settings: PipelineSettings, submit: Submit | None = None
    ) -> None:
        self.run, self.targets, self.settings = run, targets, settings
        self._store, self._submit = store, submit or self._write
        self.driver = self._new_driver()
        self.ingest = Ingest(store, run, settings.since, targets.trust.complaint)
        self.ingest.facts.update(settings.facts)
        self.ingest.mark_recovered(self.driver.recovered)

    def _new_driver(self) -> RunDriver:
        own, targets = self.settings, self.targets
        driver = RunDriver(
            self._store, self._submit, self.run, own.carry or carry_of(targets.known), own.facts, own.alerts,
            targets=targets, trust=targets.trust, address_of=own.address_of,
        )  # fmt: skip
        driver.on_outbox = own.on_outbox
        return driver

    def _write(self, batch: Batch) -> "Future[int]":
        done: Future[int] = Future()
        done.set_result(self._store.write_many([batch])[0])
        return done

    def rows(
        self, target: Target, outcome: Reading | ScrapeError, now: float, seconds: float = 0.0
    ) -> tuple[Batch, Arrivals]:
        """Returns the rows of a reading or a failure, and what the driver is fed when they are committed."""
        if isinstance(outcome, Reading):
            return self.ingest.reading(target, outcome, now, seconds)
        return self.ingest.failure(target, outcome, now, seconds)

    def feed(self, target: Target, outcome: Reading | ScrapeError, now: float, seconds: float = 0.0) -> Arrivals:
        """Commits a reading or a failure, and feeds it to the driver."""
        batch, arrivals = self.rows(target, outcome, now, seconds)
        self._submit(batch).result()
        self.driver.feed(arrivals)
        return arrivals

    def advance(self, t: float, *, live: bool = False, present: float | None = None) -> None:
        """Derives up to event time `t`; see `RunDriver.advance`."""
        self.driver.advance(t, live=live, present=present)

    def newest(self) -> tuple[list[tuple[SeriesKey, LatestRow]], Mapping[str, tuple[int, str]]]:
        """Returns the newest answer of every series, and the verdict as a state."""
        return self.driver.newest()

    def recover(self) -> None:
        """Builds the driver again from the store, because after a failed write it has more than the store."""
        self.driver = self._new_driver()
        self.ingest.mark_recovered(self.driver.recovered)

    def reload(self) -> None:
        """Loads `Ingest` again from the store, because it counted rows that were not stored."""
        self.ingest = self.ingest.reloaded()
