"""Drives a run step by step: readings in, signals out, through the real ingest, writer, driver and reader."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from collectors.model import Reading, Sample, ScrapeError, Target
from server.alerts.settings import AlertSettings
from server.derive.driver import RunDriver, carry_of
from server.derive.results import Judge
from server.derive.source_priority import SourcePriority
from server.ingest.readings import Ingest
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store, Writer

T0 = 1_800_000_000.0
# For tests with hours of ticks about rules, not about the store: run once, on the faster database.
ON_SQLITE = pytest.mark.parametrize("store_url", [pytest.param("sqlite", marks=pytest.mark.sqlite)], indirect=True)
ENGINE = Target("engine-0", "run", "vllm", "generator", url="http://127.0.0.1:1")
TRAINER = Target("trainer", "run", "prime_rl", "trainer", path="/nowhere")


class Bench:
    """One run in a store. `commit` stores a reading, `advance` moves event time and the clock."""

    def __init__(
        self, store: Store, writer: Writer, facts: dict[str, str | float] | None = None,
        alerts: AlertSettings | None = None, trust: SourcePriority | None = None, judge: Judge | None = None,
        name: str = "run",
    ) -> None:  # fmt: skip
        self.store, self.writer, self.name = store, writer, name
        trust = trust or SourcePriority()
        self.clock = ScaledClock(T0)
        self.reader = Reader(store, self.clock, alerts)
        self.ingest = Ingest(store, name, complaint=trust.complaint)
        self.driver = RunDriver(
            store,
            self._submit,
            name,
            carry_of({"engine-0": (ENGINE, 5.0), "trainer": (TRAINER, 5.0)}),
            facts or {},
            alerts,
            trust=trust,
            judge=judge,
        )
        self.ingest.mark_recovered(self.driver.recovered)

    def _submit(self, batch):  # type: ignore[no-untyped-def]
        future = self.writer.submit(batch, block=True)
        self.writer.flush()
        return future

    def commit(self, target: Target, reading: Reading, now: float) -> None:
        batch, arrivals = self.ingest.reading(target, reading, now, 0.01)
        self._submit(batch).result()
        self.driver.feed(arrivals)

    def records(self, target: Target, reading: Reading, now: float) -> None:
        """Pushed rollouts and events."""
        batch, arrivals = self.ingest.records(target, reading, now)
        self._submit(batch).result()
        self.driver.feed(arrivals)

    def commit_only(self, target: Target, reading: Reading, now: float) -> None:
        """As if the process died between commit and derivation."""
        batch, _ = self.ingest.reading(target, reading, now, 0.01)
        self._submit(batch).result()

    def fail(self, target: Target, kind: str, text: str, now: float) -> None:
        batch, arrivals = self.ingest.failure(target, ScrapeError(kind, text), now, 0.5)  # type: ignore[arg-type]
        self._submit(batch).result()
        self.driver.feed(arrivals)

    def advance(self, t: float, *, live: bool = False) -> None:
        self.clock.set(t)
        self.driver.advance(t, live=live)

    def value(self, name: str) -> float | None:
        return self.reader.status(self.name).signals[name].value

    def state(self, name: str) -> str:
        return self.reader.status(self.name).signals[name].state

    def why(self, name: str) -> str:
        return self.reader.status(self.name).signals[name].why


@contextmanager
def bench(
    store: Store, alerts: AlertSettings | None = None, trust: SourcePriority | None = None, judge: Judge | None = None,
    name: str = "run", **facts: str | float,
) -> Iterator[Bench]:  # fmt: skip
    writer = Writer(store)
    try:
        yield Bench(store, writer, facts, alerts, trust, judge, name)
    finally:
        writer.close()


def page(running: float, tokens: float, waiting: float = 0.0) -> Reading:
    """A reading of an engine's page."""
    return Reading(
        samples=(
            Sample("generator_requests_running", running),
            Sample("generator_requests_waiting", waiting),
            Sample("generator_tokens_total", tokens),
            Sample("kv_cache_usage_ratio", 0.5),
        ),
        samples_scraped=4,
    )


def steps(
    first: int, last: int, seconds: float = 30.0, wait: float = 12.0, start: float = T0, **facts: str | float
) -> Reading:
    """Trainer rows `first`..`last`, one every `seconds`, step n ending at start + n * seconds."""
    samples = []
    for number in range(first, last + 1):
        ts = start + number * seconds
        for metric, value in (
            ("trainer_step_seconds", seconds),
            ("trainer_wait_seconds", wait),
            ("trained_tokens", 1000.0),
        ):
            samples.append(Sample(metric, value, ts=ts, step=number, axis="trainer"))
    return Reading(
        samples=tuple(samples), facts={"framework": "prime_rl", "mode": "async", **facts}, cursor={"row": last}
    )
