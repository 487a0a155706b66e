"""The writer: order, bounds, retries, and one bad batch that fails alone. No sleeps: the clock is not in it."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Table, delete, text
from sqlalchemy.exc import IntegrityError, OperationalError

from server.store import QueueFull, Store, Writer, WriterClosed, bulk
from server.store.store import write_batch
from server.store.tables import runs
from server.store.types import Batch, Push
from server.store.writer import RETRY_SECONDS, batch_rows, is_transient, merge
from tests.store.helpers import FOREVER, SIGNAL, T0, one

LOCKED = OperationalError("COMMIT", {}, sqlite3.OperationalError("database is locked"))
BROKEN = IntegrityError("INSERT", {}, sqlite3.IntegrityError("NOT NULL constraint failed"))


KILL_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid()"
)


class Recorder:
    """In place of a store: notes what is written, fails as told, and waits while ``gate`` is closed."""

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        self.batches: list[Batch] = []
        self.transactions = 0
        self.errors = list(errors)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.gate.set()

    def write_many(self, batches: Sequence[Batch]) -> list[int]:
        self.entered.set()
        self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        if any("bad" in batch.cursors for batch in batches):
            raise BROKEN
        self.transactions += 1
        self.batches += batches
        return [len(self.batches)] * len(batches)

    def samples(self) -> list[tuple[int, int, float]]:
        return [row for batch in self.batches for row in batch.samples]


def writer_of(recorder: Recorder, **options: float) -> Writer:
    settings = {"commit_seconds": 3600.0, **options}
    return Writer(recorder, pause=lambda _: None, **settings)  # type: ignore[arg-type]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def writer(recorder: Recorder) -> Iterator[Writer]:
    made = writer_of(recorder)
    yield made
    recorder.gate.set()
    made.close()


def rows(n: int, run: str = "run", first: int = 0) -> Batch:
    return Batch(run, samples=[(1, first + i, 0.0) for i in range(n)])


def test_flush_commits_at_once_and_merges(writer: Writer, recorder: Recorder) -> None:
    futures = [writer.submit(rows(2, first=2 * n)) for n in range(5)]
    writer.flush()
    assert all(future.done() for future in futures)
    assert (recorder.transactions, len(recorder.batches)) == (1, 1)
    assert [ts for _, ts, _ in recorder.samples()] == list(range(10))


def test_enough_rows_commit_without_waiting(recorder: Recorder) -> None:
    writer = writer_of(recorder, commit_rows=100)
    futures = [writer.submit(rows(50)) for _ in range(4)]
    assert [future.result(timeout=30) for future in futures[:4]]
    writer.close()


def test_close_drains_and_then_refuses(recorder: Recorder) -> None:
    writer = writer_of(recorder)
    futures = [writer.submit(rows(1)) for _ in range(3)]
    writer.close()
    writer.close()
    assert all(future.done() for future in futures)
    assert len(recorder.samples()) == 3
    with pytest.raises(WriterClosed):
        writer.submit(rows(1))


def test_a_full_queue_refuses_pushes_and_drops_scrapes(recorder: Recorder) -> None:
    writer = writer_of(recorder, queue_rows=10, commit_rows=1)
    recorder.gate.clear()
    first = writer.submit(rows(1))
    recorder.entered.wait()  # the thread has it: the queue itself is empty again
    writer.submit(rows(10))
    with pytest.raises(QueueFull, match="10 rows behind"):
        writer.submit(rows(1))
    assert writer.offer(rows(3)) is None
    assert (writer.dropped, writer.queued_rows) == (3, 10)
    recorder.gate.set()
    assert first.result() == 1
    writer.close()
    assert len(recorder.samples()) == 11


def test_a_tail_waits_for_room(recorder: Recorder) -> None:
    writer = writer_of(recorder, queue_rows=10, commit_rows=1)
    recorder.gate.clear()
    writer.submit(rows(1))
    recorder.entered.wait()
    writer.submit(rows(10))
    tail = threading.Thread(target=lambda: writer.submit(rows(5), block=True))
    tail.start()
    recorder.gate.set()
    tail.join()
    writer.close()
    assert len(recorder.samples()) == 16
    assert writer.dropped == 0


def test_a_batch_larger_than_the_queue_still_gets_in(recorder: Recorder) -> None:
    writer = writer_of(recorder, queue_rows=10)
    writer.submit(rows(50))
    writer.close()
    assert len(recorder.samples()) == 50


def test_one_bad_batch_fails_alone(writer: Writer, recorder: Recorder) -> None:
    good = [writer.submit(rows(1, first=0)), None, writer.submit(rows(1, first=1))]
    bad = writer.submit(Batch("run", cursors={"bad": ""}))
    last = writer.submit(rows(1, first=2))
    writer.flush()
    assert isinstance(bad.exception(), IntegrityError)
    assert all(future.exception() is None for future in (good[0], good[2], last) if future)
    assert [ts for _, ts, _ in recorder.samples()] == [0, 1, 2]


def test_transient_errors_are_retried_in_place() -> None:
    recorder = Recorder([LOCKED, LOCKED])
    writer = writer_of(recorder)
    futures = [writer.submit(rows(1, first=n)) for n in range(3)]
    writer.close()
    assert [future.exception() for future in futures] == [None] * 3
    assert writer.retries == 2
    assert [ts for _, ts, _ in recorder.samples()] == [0, 1, 2]


def test_a_lasting_error_fails_its_futures_only() -> None:
    recorder = Recorder([LOCKED] * (len(RETRY_SECONDS) + 1))
    writer = writer_of(recorder)
    lost = writer.submit(rows(1))
    writer.flush()
    kept = writer.submit(rows(1))
    writer.close()
    assert lost.exception() is LOCKED
    assert kept.result() == 1


def test_a_caller_that_cancels_does_not_stop_the_writer(writer: Writer, recorder: Recorder) -> None:
    assert not writer.submit(rows(1)).cancel()
    writer.flush()
    assert len(recorder.samples()) == 1


@settings(max_examples=50, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), max_size=30),
    limit=st.integers(1, 60),
    errors=st.lists(st.just(LOCKED), max_size=3),
)
def test_order_is_kept_per_run(jobs: list[tuple[str, int]], limit: int, errors: list[Exception]) -> None:
    recorder = Recorder(errors)
    writer = writer_of(recorder, commit_rows=limit)
    for n, (run, size) in enumerate(jobs):
        writer.submit(Batch(run, samples=[(1, n, float(i)) for i in range(size)], cursors={"t": str(n)}))
    writer.close()
    for run in "abc":
        want = [(1, n, float(i)) for n, (name, size) in enumerate(jobs) if name == run for i in range(size)]
        written = [batch for batch in recorder.batches if batch.run == run]
        assert [row for batch in written for row in batch.samples] == want
        cursors = [int(batch.cursors["t"]) for batch in written]
        assert cursors == sorted(cursors)


def test_merging_is_writing_one_after_the_other(store: Store) -> None:
    series = one(store, key=SIGNAL)
    parts = [
        Batch("run", points=[(series, T0, 1.0, 0)], counters={series: 1.0}, facts={"a": 1.0}, run_fields={"mode": "a"}),
        Batch("run", points=[(series, T0, 2.0, 0)], counters={series: 2.0}, facts={"b": 1.0}, run_fields={"mode": "b"}),
    ]
    assert batch_rows(merge(parts)) == 6  # two points, two facts, one counter, one run field
    store.write(merge(parts))
    assert store.samples.points([series], 0, FOREVER)[series] == [(T0, 2.0, 0)]
    assert store.runs.counters("run") == {series: 2.0}
    assert store.runs.facts("run") == {"a": 1.0, "b": 1.0}


def test_against_the_real_store(store: Store) -> None:
    series = one(store, key=SIGNAL)
    writer = Writer(store)
    futures = [writer.submit(Batch("run", points=[(series, T0 + n, float(n), 0)])) for n in range(100)]
    bad = writer.submit(Batch("run", cursors={"t": None}))  # type: ignore[dict-item]
    other = writer.submit(Batch("other", cursors={"t": "1"}))
    writer.close()
    assert futures[-1].result() == 100
    assert bad.exception() is not None
    assert other.result() == 0
    assert [value for _, value, _ in store.samples.points([series], 0, FOREVER)[series]] == [
        float(n) for n in range(100)
    ]


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (LOCKED, True),
        (BROKEN, False),
        (ValueError("no"), False),
        (OperationalError("", {}, sqlite3.OperationalError("no such table: runs")), False),
        (OperationalError("", {}, sqlite3.OperationalError("database or disk is full")), False),
    ],
)
def test_what_is_transient(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.postgres
def test_a_connection_the_server_ends_is_replaced(postgres_store: Store) -> None:
    """pg_terminate_backend under the writer: the batch is repeated on a new connection, nothing is lost."""
    series = one(postgres_store, key=SIGNAL)
    writer = Writer(postgres_store, pause=lambda _: None)
    engine = postgres_store._engines.writable()
    for n in range(5):
        writer.submit(Batch("run", points=[(series, T0 + n, 1.0, 0)]))
        with engine.begin() as connection:
            connection.execute(KILL_OTHERS)
        writer.flush()
    writer.close()
    assert len(postgres_store.samples.points([series], 0, FOREVER)[series]) == 5


@pytest.mark.postgres
def test_a_connection_lost_inside_a_copy(postgres_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own error, in the middle of a transaction: repeated, and stored once."""
    series = one(postgres_store)
    real, kills = bulk._load_table, [1]

    def load_and_kill(connection: Connection, table: Table, columns: tuple[str, ...]) -> str:
        name = real(connection, table, columns)
        if kills:
            kills.pop()
            with postgres_store._engines.writable().begin() as other:
                other.execute(KILL_OTHERS)
        return name

    monkeypatch.setattr(bulk, "_load_table", load_and_kill)
    writer = Writer(postgres_store, pause=lambda _: None)
    done = writer.submit(rows(500))
    writer.close()
    assert done.exception() is None
    assert (writer.retries, kills) == (1, [])
    postgres_store.write(Batch("run", samples=[(series, 0, 0.0)]))
    assert len(postgres_store.samples.after("run", -1)) == 500


def test_a_push_does_not_wait_for_the_writer(postgres_store: Store) -> None:
    run = postgres_store.ensure_run("run")
    push = Push("run", "pushed", "generator", 5.0, 0, 1, b"{}")
    with ThreadPoolExecutor(1) as other, postgres_store._engines.writable().begin() as connection:
        write_batch(connection, Batch("run", facts={"gpus": 8.0}), {})
        pushed = other.submit(postgres_store.pushes.offer, [push])
        pushed.result(timeout=10)
        assert postgres_store.runs.facts("run") == {}
    assert [one.body for one in postgres_store.pushes.waiting("run", 9)] == [b"{}"]
    assert postgres_store.ensure_run("run").id == run.id


def test_a_push_waits_for_the_end_of_a_deletion(postgres_store: Store) -> None:
    run = postgres_store.ensure_run("run")
    with ThreadPoolExecutor(1) as other:
        with postgres_store._engines.writable().begin() as connection:
            connection.execute(delete(runs).where(runs.c.id == run.id))
            created = other.submit(postgres_store.ensure_run, "run")
            with pytest.raises(TimeoutError):
                created.result(timeout=0.3)
        assert created.result(timeout=10).id > run.id
