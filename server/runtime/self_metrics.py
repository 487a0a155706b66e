"""Rollscope's own numbers on `/metrics`: processes, ticks, the writer, retention and the size of tables.

The collecting process records its numbers in `CollectorNumbers` and publishes a copy after every step: in one process
directly, from a child through its pipe. Nothing here scans a table.
"""

import math
import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from server.api import PROMETHEUS_PREFIX as PREFIX
from server.config import settings
from server.store import Store, StoreError, Writer
from server.store.retention import Retention, StoreSize
from server.store.types import RetentionSettings

# Sizes of tables are read again after this time (s): PostgreSQL opens every file of a table for them.
SIZES_SECONDS = 60.0
SIZES_KEPT = 61
# For a rate of growth.
LEAST_SECONDS = 600.0
# And after this many times the seconds that reading them took: SQLite reads its whole file.
SIZES_FACTOR = 100


@dataclass(slots=True)
class TickTotals:
    """Steps of one run. ``at``: end of the newest one, epoch seconds."""

    count: int = 0
    seconds: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """One process; None: the system does not report it."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    written_bytes: int | None


@dataclass(slots=True)
class CollectorNumbers:
    """Numbers of the collecting process.

    Attributes:
        behind_since: since when retention has had more to delete than one step, or retention or packing have failed
            (epoch seconds); None: no row is due.
        unpacked_hours: hours of runs that are due to be packed.
        process: of the collecting process; None if it is also the serving one.
        sizes: (epoch s, bytes in use, rows written by this process) of the last hour, one a minute.
    """

    ticks: dict[str, TickTotals] = field(default_factory=dict)
    rows: int = 0
    commits: int = 0
    retries: int = 0
    dropped: int = 0
    queued: int = 0
    behind_since: float | None = None
    unpacked_hours: int = 0
    process: ProcessNumbers | None = None
    sizes: list[tuple[float, int, int]] = field(default_factory=list)

    def size(self, used: int) -> None:
        """Notes the bytes in use, at most once a minute."""
        now = time.time()
        if not self.sizes or now - self.sizes[-1][0] >= SIZES_SECONDS:
            self.sizes = [*self.sizes, (now, used, self.rows)][-SIZES_KEPT:]

    def per_hour(self) -> tuple[float, float] | None:
        """(bytes, rows) by which the store grew in the last hour, as a rate; None below ten minutes."""
        if not self.sizes or self.sizes[-1][0] - self.sizes[0][0] < LEAST_SECONDS:
            return None
        (begin, before, rows_before), (end, after, rows_after) = self.sizes[0], self.sizes[-1]
        hours = (end - begin) / 3600
        return (after - before) / hours, (rows_after - rows_before) / hours

    def tick(self, run: str, seconds: float, writer: Writer) -> None:
        """Adds one step of a run, and the state of the writer after it."""
        totals = self.ticks.setdefault(run, TickTotals())
        totals.count, totals.seconds, totals.at = totals.count + 1, totals.seconds + seconds, time.time()
        self.rows, self.commits, self.retries = writer.rows, writer.committed, writer.retries
        self.dropped, self.queued = writer.dropped, writer.queued_rows


def process_numbers() -> ProcessNumbers:
    """Returns the numbers of this process, from /proc where it exists."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessNumbers(
        used.ru_utime + used.ru_stime,
        None if (pages := _number("/proc/self/statm", 1)) is None else pages * resource.getpagesize(),
        _open_files(),
        _written(),
    )


def _number(path: str, at: int) -> int | None:
    try:
        with open(path) as file:
            return int(file.read().split()[at])
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def _written() -> int | None:
    try:
        with open("/proc/self/io") as file:
            rows = dict(line.split(":") for line in file)
        return int(rows["write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


class SelfMetrics:
    """Families of this server's own numbers, for one scrape each."""

    def __init__(self, store: Store | None, numbers: "Numbers", retention: RetentionSettings | None = None) -> None:
        self._store, self._numbers, self._kept = store, numbers, retention or RetentionSettings()
        self._limits = Retention.of(self._kept)
        self._sizes: Mapping[str, int] = {}
        self._sizes_due = -math.inf

    def __call__(self) -> Iterator[Metric]:
        found = self._numbers.current
        processes = {"web": process_numbers()}
        if found.process is not None:
            processes["collect"] = found.process
        yield from _processes(processes)
        yield from _ticks(found.ticks)
        yield from _writer(found)
        lag = 0.0 if found.behind_since is None else max(0.0, time.time() - found.behind_since)
        text = "Seconds for which retention has had more to delete than it could, or has failed; 0 when no row is due."
        yield GaugeMetricFamily(PREFIX + "retention_lag_seconds", text, value=lag)
        text = "Hours of raw samples, summed over runs, that are due to be packed and are not packed yet."
        yield GaugeMetricFamily(PREFIX + "packing_backlog_hours", text, value=found.unpacked_hours)
        yield from self._size()
        yield from self._growth(found)
        yield self._tables()
        yield from self._queues()
        yield self._retention()

    def _size(self) -> Iterator[Metric]:
        try:
            size, deleted = self._read_size()
        except StoreError:
            return
        rows: list[tuple[str, str, float | None]] = [
            ("store_bytes", "Size of the database in bytes, without its free pages.", size.bytes),
            ("store_free_bytes", "Bytes of free pages in the database file, which are reused.", size.free_bytes),
            ("store_disk_bytes", "Bytes on disk, with free pages and SQLite's write-ahead log.", size.on_disk),
            ("store_limit_bytes", "Size limit of the database (max_size); absent without one.", self._kept.max_bytes),
            (
                "store_oldest_sample_timestamp_seconds",
                "Time of the oldest raw sample that is still stored; absent without samples.",
                None if size.oldest_raw is None else size.oldest_raw / 1000,
            ),
        ]
        for name, text, value in rows:
            if value is not None:
                yield GaugeMetricFamily(PREFIX + name, text, value=value)
        text = "Time before which the size limit deleted rows of a kind that retention keeps; absent if it did not."
        family = GaugeMetricFamily(PREFIX + "store_deleted_before_timestamp_seconds", text, labels=("kind",))
        for kind, before in deleted.items() if self._kept.max_bytes is not None else ():
            family.add_metric((kind,), before / 1000)
        yield family

    def _read_size(self) -> tuple[StoreSize, Mapping[str, int]]:
        """The size, and what the size limit deleted; of no store where the families alone are asked for."""
        if self._store is None:
            return StoreSize(0, 0, 0), {}
        of = self._store.retention
        return of.size(), of.deleted_by_size(self._limits, round(time.time() * 1000))

    def _growth(self, found: CollectorNumbers) -> Iterator[Metric]:
        rates = found.per_hour()
        if rates is None:
            return
        grows, rows = rates
        text = "Bytes by which the database grows per hour, over the last hour; absent for ten minutes."
        yield GaugeMetricFamily(PREFIX + "store_growth_bytes_per_hour", text, value=grows)
        text = "Rows that the collecting process writes per hour, over the last hour; absent for ten minutes."
        yield GaugeMetricFamily(PREFIX + "store_rows_per_hour", text, value=rows)
        if self._kept.max_bytes is not None and grows > 0:
            left = max(0.0, self._kept.max_bytes - found.sizes[-1][1])
            text = "Seconds until the size limit is reached at this rate; absent without a limit or growth."
            yield GaugeMetricFamily(PREFIX + "store_limit_reached_seconds", text, value=3600 * left / grows)

    def _retention(self) -> Metric:
        text = "Seconds that rows of a kind are kept; +Inf: permanently."
        family = GaugeMetricFamily(PREFIX + "retention_seconds", text, labels=("kind",))
        for kind in settings.RETENTION_KEYS:
            seconds = getattr(self._kept, kind)
            family.add_metric((kind,), math.inf if seconds is None else seconds)
        return family

    def _queues(self) -> Iterator[Metric]:
        if self._store is None:
            return
        try:
            inbox, unsent = self._store.pushes.depth(), self._store.alerts.unsent()
        except StoreError:
            return
        for name, text, value in (
            ("inbox_pushes", "Pushes that are acknowledged and wait to be collected.", inbox.pushes),
            ("inbox_rows", "Rows in these pushes; above 200,000 further ones are refused.", inbox.rows),
            ("inbox_bytes", "Bytes of these pushes; above 256 MiB further ones are refused.", inbox.bytes),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        text = "Notifications that wait to be sent to a receiver of alerts."
        family = GaugeMetricFamily(PREFIX + "outbox_notifications", text, labels=("receiver",))
        for receiver, count in unsent.items():
            family.add_metric((receiver,), count)
        yield family

    def _tables(self) -> Metric:
        text = "Bytes of a table with its indexes (SQLite: of files up to 1 GiB, which are read whole)."
        family = GaugeMetricFamily(PREFIX + "store_table_bytes", text, labels=("table",))
        begun = time.monotonic()
        if self._store is not None and begun >= self._sizes_due:
            try:
                self._sizes = self._store.retention.table_bytes()
            except StoreError:
                self._sizes = {}
            ended = time.monotonic()
            self._sizes_due = ended + max(SIZES_SECONDS, SIZES_FACTOR * (ended - begun))
        for table, size in self._sizes.items():
            family.add_metric((table,), size)
        return family


@dataclass(slots=True)
class Numbers:
    """The newest published numbers of the collecting process; shared by the threads that collect and serve."""

    current: CollectorNumbers = field(default_factory=CollectorNumbers)


def _processes(found: Mapping[str, ProcessNumbers]) -> Iterator[Metric]:
    cpu = CounterMetricFamily(PREFIX + "process_cpu_seconds", "CPU time of the process.", labels=("process",))
    written = CounterMetricFamily(
        PREFIX + "process_written_bytes", "Bytes that the process wrote to disks.", labels=("process",)
    )
    resident = GaugeMetricFamily(
        PREFIX + "process_resident_bytes", "Memory of the process that is in RAM.", labels=("process",)
    )
    files = GaugeMetricFamily(
        PREFIX + "process_open_files", "Open files and sockets of the process.", labels=("process",)
    )
    for name, one in found.items():
        cpu.add_metric((name,), one.cpu_seconds)
        for family, value in ((written, one.written_bytes), (resident, one.resident_bytes), (files, one.open_files)):
            if value is not None:
                family.add_metric((name,), value)
    yield from (cpu, written, resident, files)


def _ticks(found: Mapping[str, TickTotals]) -> Iterator[Metric]:
    text = "Duration of the run's steps: reading targets, storing, deriving. One is due every 5 s."
    seconds = SummaryMetricFamily(PREFIX + "tick_seconds", text, labels=("run",))
    newest = GaugeMetricFamily(
        PREFIX + "tick_timestamp_seconds", "Time at which the run's newest step ended.", labels=("run",)
    )
    for run, one in dict(found).items():
        seconds.add_metric((run,), one.count, one.seconds)
        newest.add_metric((run,), one.at)
    yield from (seconds, newest)


def _writer(found: CollectorNumbers) -> Iterator[Metric]:
    for name, text, value in (
        ("store_rows_written", "Rows that the collecting process has committed.", found.rows),
        ("store_commits", "Transactions that the collecting process has committed.", found.commits),
        ("store_retries", "Transactions that were repeated because the database was busy or gone.", found.retries),
        ("store_dropped_rows", "Rows that were dropped because the writer's queue was full.", found.dropped),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)
    yield GaugeMetricFamily(PREFIX + "store_queued_rows", "Rows that wait for the writer.", value=found.queued)
