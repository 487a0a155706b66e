"""A full or read-only disk: one clear answer, one line in the log, no acknowledged row lost; writing resumes."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.lib.clock import ScaledClock
from server.push import otlp
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.store.engine import FULL, READ_ONLY, StoreUnavailable
from server.targets.model import Attached
from tests.api.test_push import NOW, Web, one_point
from tests.scrape.test_run_loop import drive

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

# Incompressible labels, so that a stored body needs pages that a full disk does not have.
NOISE = random.Random(0)
LARGE = "".join(f'queue_samples{{queue="{NOISE.randbytes(16).hex()}"}} 7\n' for _ in range(2_000))


@contextmanager
def full(store: Store) -> Iterator[None]:
    """Lets the database report its own "disk full": SQLite by a limit of pages, PostgreSQL by a trigger's SQLSTATE."""
    if store.dialect == "postgresql":
        with refusing(store, "53100"):
            yield
        return
    with store._engines.writable().begin() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        with store._engines.writable().begin() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1073741823")


@contextmanager
def refusing(store: Store, state: str) -> Iterator[None]:
    """Lets PostgreSQL refuse new rows with this SQLSTATE."""
    with store._engines.writable().begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'refused by a test' USING ERRCODE = '{state}'; END $$"
        )
        for table in ("inbox", "series", "sandboxes"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
    try:
        yield
    finally:
        with store._engines.writable().begin() as connection:
            connection.exec_driver_sql("DROP FUNCTION refuse CASCADE")


def test_requests_get_one_clear_503_and_the_log_one_line(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    web = Web(store)
    boxes = json.dumps([{"id": NOISE.randbytes(60).hex(), "detail": "x" * 400} for _ in range(2_000)])
    points = one_point("x" * 900_000)
    kind = {"content-type": otlp.JSON, "content-encoding": ""}
    with full(store):
        for _ in range(3):
            answer = web.write(LARGE)
            assert (answer.status_code, answer.json()) == (503, {"detail": FULL})
            assert answer.headers["retry-after"] == "30"
            assert web("POST", "/api/v1/runs/r/sandboxes", content=boxes).json() == {"detail": FULL}
        assert web("GET", "/api/v1/runs").status_code == 200
    assert [(record.levelname, bool(record.exc_info)) for record in caplog.records] == [("ERROR", False)]
    assert web.otlp(points, "?run=r", **kind).status_code == 200
    assert web.write(LARGE).json()["taken"] == 2_000


def test_an_acknowledged_body_stays_in_the_inbox_until_there_is_room(store: Store) -> None:
    """A body that the full disk refuses is not the sender's fault: discarding it would lose acknowledged rows."""
    clock = ScaledClock(NOW)
    assert Web(store).write(LARGE).json()["taken"] == 2_000
    writer = Writer(store, pause=lambda seconds: None)
    try:
        loop = RunLoop(Attached("r", ()), LoopServices(store, writer, clock), adopted=True)
        with full(store), pytest.raises(StoreUnavailable, match="the store is full"):
            drive(loop, clock, [NOW + 5])
        assert len(store.pushes.waiting("r", 10)) == 1
        drive(RunLoop(Attached("r", ()), LoopServices(store, writer, clock), adopted=True), clock, [NOW + 10])
        assert store.pushes.waiting("r", 10) == []
        assert len([key for _, key in store.series.listed("r", "push") if key.metric == "queue_samples"]) == 2_000
    finally:
        writer.close()


@contextmanager
def read_only(store: Store) -> Iterator[None]:
    """SQLite: the writing connection is read-only to its end, as one that was opened on a read-only file system."""
    if store.dialect == "postgresql":
        with refusing(store, "25006"):
            yield
        return
    with store._engines.writable().begin() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    yield


def test_a_read_only_store_is_a_503_and_writing_resumes_with_a_new_connection(store: Store) -> None:
    web = Web(store)
    assert web.write("queue_samples 1\n").status_code == 200
    with read_only(store):
        answer = web.write("queue_samples 2\n")
        assert (answer.status_code, answer.json()) == (503, {"detail": READ_ONLY})
        assert answer.headers["retry-after"] == "30"
        assert web("GET", "/api/v1/runs").status_code == 200
    assert web.write("queue_samples 3\n").status_code == 200
    assert [push.rows for push in store.pushes.waiting("r", 10)] == [1, 1]
