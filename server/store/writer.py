"""The single writer: a bounded queue, one thread, one transaction per quarter second.

Batches are committed in the order they were accepted. What is retried is retried in place, so a later batch
never overtakes an earlier one.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby

from sqlalchemy.exc import DBAPIError, OperationalError

from server.store.store import Store
from server.store.types import Batch

# Errors of both drivers, for layers that do not import SQLAlchemy.
DatabaseError = DBAPIError

COMMIT_SECONDS = 0.25
COMMIT_ROWS = 10_000
QUEUE_ROWS = 200_000
"""About 15 s of 1,000 targets: longer than a checkpoint or a fail-over, short enough to stay small in memory."""

RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts on a transient error; about as long as a PostgreSQL fail-over takes."""

_LISTS = (
    "samples", "steps", "step_values", "histograms", "events", "incarnations", "targets", "points", "latest", "alerts",
    "groups", "outbox", "verdicts", "sandboxes", "rollouts", "rollout_groups", "rollout_sums", "rollout_bins", "taken",
)  # fmt: skip
_DICTS = ("facts", "cursors", "states", "counters", "run_fields")

# serialization failure, deadlock, too many connections, server going down, starting up, crashed
_TRANSIENT_STATES = frozenset({"40001", "40P01", "53300", "57P01", "57P02", "57P03"})


class QueueFull(Exception):
    """The writer cannot keep up. A push answers 429; a scrape is dropped and counted."""


class WriterClosed(Exception):
    """The writer has been closed: nothing more is accepted."""


@dataclass(slots=True)
class _Job:
    batch: Batch
    rows: int
    done: "Future[int]" = field(default_factory=Future)


def batch_rows(batch: Batch) -> int:
    """How much a batch weighs in the queue; at least 1."""
    return max(1, sum(len(getattr(batch, name)) for name in (*_LISTS, *_DICTS)))


def merge(batches: Sequence[Batch]) -> Batch:
    """Batches of one run as one, as if written one after the other: of two values for a key the later wins."""
    if len(batches) == 1:
        return batches[0]
    whole = Batch(batches[0].run)
    for batch in batches:
        for name in _LISTS:
            getattr(whole, name).extend(getattr(batch, name))
        for name in _DICTS:
            getattr(whole, name).update(getattr(batch, name))
    return whole


def is_transient(error: BaseException) -> bool:
    """May the same transaction succeed in a moment?"""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _TRANSIENT_STATES:
        return True
    said = str(error.orig).lower()
    # SQLite distinguishes busy and locked only in the message; psycopg has no SQLSTATE if it cannot connect.
    locked = "database is locked" in said or "database table is locked" in said or "busy" in said
    return isinstance(error, OperationalError) and (locked or "connection" in said)


class Writer:
    """Give it batches; it answers each with a future of the run's newest seq, done once the batch is committed.

    A tail waits for that future before it reads on: if its batch failed and the next, with a later cursor, did
    not, the rows between would be lost.

    Attributes:
        dropped: rows that `offer` refused because the queue was full.
        committed: transactions committed so far.
        rows: rows committed so far.
        retries: attempts repeated after a transient error.
    """

    def __init__(
        self,
        store: Store,
        *,
        commit_seconds: float = COMMIT_SECONDS,
        commit_rows: int = COMMIT_ROWS,
        queue_rows: int = QUEUE_ROWS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.dropped = 0
        self.committed = 0
        self.rows = 0
        self.retries = 0
        self._store = store
        self._seconds = commit_seconds
        self._commit_rows = commit_rows
        self._queue_rows = queue_rows
        self._pause = pause
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._rows = 0  # queued, not yet taken
        self._accepted = 0  # batches, ever
        self._finished = 0
        self._urgent = 0  # commit without delay up to this one
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # -- for every thread

    def submit(self, batch: Batch, *, block: bool = False) -> "Future[int]":
        """Queue a batch. ``block``: wait for room (a tail may), else refuse (a push must not).

        Raises:
            QueueFull: no room and not ``block``.
            WriterClosed: after `close`.
        """
        job = _Job(batch, batch_rows(batch))
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._has_room(job.rows) or self._closing)
            if self._closing:
                raise WriterClosed("the writer is closed")
            if not self._has_room(job.rows):
                raise QueueFull(f"the store is {self._rows} rows behind; try again in a moment")
            # A caller that goes away (asyncio cancels wrapped futures) must not take the batch with it.
            job.done.set_running_or_notify_cancel()
            self._queue.append(job)
            self._rows += job.rows
            self._accepted += 1
            self._changed.notify_all()
        return job.done

    def offer(self, batch: Batch) -> "Future[int] | None":
        """Queue a scrape, or drop it and count its rows: the next scrape brings newer values."""
        try:
            return self.submit(batch)
        except QueueFull:
            with self._changed:
                self.dropped += batch_rows(batch)
            return None

    @property
    def queued_rows(self) -> int:
        """Rows accepted but not yet being written."""
        return self._rows

    def flush(self) -> None:
        """Commit what was accepted so far, now; return when done. Errors stay in the futures."""
        with self._changed:
            upto = self._accepted
            self._urgent = max(self._urgent, upto)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._finished >= upto)

    def hurry(self) -> None:
        """Let what was accepted so far be committed now, without waiting for it."""
        with self._changed:
            self._urgent = max(self._urgent, self._accepted)
            self._changed.notify_all()

    def close(self) -> None:
        """Accept nothing more, commit everything accepted, stop the thread. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _has_room(self, rows: int) -> bool:
        # A batch larger than the queue gets in when the queue is empty, or it never would.
        return not self._queue or self._rows + rows <= self._queue_rows

    # -- the thread

    def _run(self) -> None:
        while jobs := self._take():
            self._commit(jobs)
            with self._changed:
                self._finished += len(jobs)
                self._changed.notify_all()

    def _take(self) -> list[_Job]:
        """The next jobs for one transaction; empty when closed and drained."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            self._changed.wait_for(self._due, timeout=self._seconds)
            jobs: list[_Job] = []
            rows = 0
            while self._queue and (not jobs or rows + self._queue[0].rows <= self._commit_rows):
                jobs.append(self._queue.popleft())
                rows += jobs[-1].rows
            self._rows -= rows
            self._changed.notify_all()
            return jobs

    def _due(self) -> bool:
        return self._closing or self._rows >= self._commit_rows or self._urgent > self._finished

    def _commit(self, jobs: list[_Job]) -> None:
        """Commit the jobs together; if that cannot be, one by one, so that only the bad one fails."""
        try:
            answers = self._write(jobs)
        except Exception as error:  # noqa: BLE001 - outermost loop of the writer: it must outlive any one batch
            if len(jobs) == 1 or is_transient(error):
                for job in jobs:
                    job.done.set_exception(error)
                return
            for job in jobs:
                self._commit([job])
            return
        self.committed += 1
        self.rows += sum(job.rows for job in jobs)
        for job, seq in zip(jobs, answers, strict=True):
            job.done.set_result(seq)

    def _write(self, jobs: list[_Job]) -> list[int]:
        """One transaction, repeated while the error is transient. Batches of one run in a row are merged."""
        groups = [list(group) for _, group in groupby(sorted(jobs, key=_run_of), key=_run_of)]
        merged = [merge([job.batch for job in group]) for group in groups]
        answers = self._attempt(merged)
        seqs = {batch.run: seq for batch, seq in zip(merged, answers, strict=True)}
        return [seqs[job.batch.run] for job in jobs]

    def _attempt(self, batches: list[Batch]) -> list[int]:
        for pause in RETRY_SECONDS:
            try:
                return self._store.write_many(batches)
            except DBAPIError as error:
                if not is_transient(error):
                    raise
            self.retries += 1
            self._pause(pause)
        return self._store.write_many(batches)


def _run_of(job: _Job) -> str:
    return job.batch.run


def words_of(error: Exception) -> str:
    """The database's error message, without the statement and its parameters."""
    return f"{type(error).__name__}: {getattr(error, 'orig', None) or error}".splitlines()[0][:200]
