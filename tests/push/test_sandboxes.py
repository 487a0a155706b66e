"""Sandboxes that are pushed: bodies, answers, and the same signals as from a provider. Both databases."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Sandbox
from server.api.runs import add_sandboxes
from server.ingest.readings import Ingest
from server.push.records import parse, records_of
from server.store import Store
from tests.api.test_alerts import Web as AlertWeb
from tests.derive.test_alerts import running
from tests.driven_run import T0, Bench, bench

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


class Web(AlertWeb):
    """With the sandbox routes."""

    routes = (add_sandboxes,)


@pytest.fixture
def run(store: Store) -> Iterator[Bench]:
    with bench(store) as made:
        running(made)
        made.advance(T0)
        yield made


def look(run: Bench, at: float) -> None:
    run.driver.feed(run.ingest.pushed(T0 + at))
    run.advance(T0 + at, live=True)


def test_a_recipes_lines_become_the_signals_of_a_provider(run: Bench) -> None:
    web = Web(run)
    run.clock.set(T0 + 1)
    lines = [
        {"id": "a", "provider": "e2b", "requested_at": T0},
        {"id": "b", "provider": "e2b", "requested_at": T0 - 40},
    ]
    answer = web("POST", "/api/v1/runs/run/sandboxes", content="\n".join(map(json.dumps, lines)))
    assert (answer.status_code, answer.json()) == (200, {"taken": 2, "refused": []})
    look(run, 5)
    assert run.value('sandboxes{state="starting"}') == 2.0
    assert run.value("sandbox_oldest_pending_seconds") == 45.0
    run.clock.set(T0 + 6)
    more = [
        {"id": "a", "provider": "e2b", "ready_at": T0 + 6},
        {"id": "b", "provider": "e2b", "state": "failed", "detail": "429 Too Many"},
    ]
    web("POST", "/api/v1/runs/run/sandboxes", json=more)
    look(run, 10)
    assert run.value('sandbox_spinup_latency_seconds{image="all",stat="max"}') == 6.0
    assert run.value('sandbox_failures_total{cause="rate_limit"}') == 1.0
    assert run.value("sandboxes_created_total") == 2.0
    look(run, 15)
    assert run.value("sandboxes_created_total") == 2.0
    found = web("GET", "/api/v1/runs/run/sandboxes").json()
    assert found["funnel"] == {
        "requested": 2, "started": 0, "ready": 1, "first_exec": None, "first_exec_of": 0, "ended": 1, "failed": 1,
        "met_ended": 0,
    }  # fmt: skip
    assert {row["id"]: row["latency_source"] for row in found["sandboxes"]} == {"a": "client", "b": None}


def test_a_pushed_first_command_is_told_and_the_sandbox_is_found_by_its_trace(run: Bench) -> None:
    web = Web(run)
    run.clock.set(T0 + 9)
    body = [
        {"id": "a", "name": "trace-7f", "requested_at": T0, "ready_at": T0 + 3, "first_exec_at": T0 + 4.5},
        {"id": "b", "name": "trace-80", "requested_at": T0},
    ]
    assert web("POST", "/api/v1/runs/run/sandboxes", json=body).status_code == 200
    found = web("GET", "/api/v1/runs/run/sandboxes?find=TRACE-7").json()
    assert [(row["id"], row["first_exec_at"]) for row in found["sandboxes"]] == [("a", T0 + 4.5)]
    assert (found["funnel"]["first_exec"], found["funnel"]["first_exec_of"]) == (1, 2)
    bad = web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": "c", "first_exec_at": "soon"}])
    assert bad.json()["refused"][0]["detail"] == "first_exec_at must be a number of epoch seconds"


def test_pushing_again_changes_nothing(run: Bench) -> None:
    web = Web(run)
    body = [{"id": "a", "requested_at": T0, "ready_at": T0 + 3, "ended_at": T0 + 4}]
    for at in (5, 10, 15):
        run.clock.set(T0 + at)
        web("POST", "/api/v1/runs/run/sandboxes", json=body)
        look(run, at)
    assert run.value("sandboxes_created_total") == 1.0
    assert run.value("sandbox_spinup_count_total") == 1.0


def test_a_clock_that_goes_back_counts_nothing_again(run: Bench) -> None:
    """It jumps an hour ahead for a minute, and back: what was pushed in that minute is read again, and not counted."""
    running(run)
    run.advance(T0)
    web = Web(run)
    for at in (5, 3605, 3635, 3665, 20, 25, 3670):
        run.clock.set(T0 + at - 1)
        web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": f"s{at}", "requested_at": T0 + at - 2}])
        look(run, at)
    assert len(run.store.sandboxes.page("run")) == 7
    assert run.value("sandboxes_created_total") == 7.0


def test_a_restart_counts_what_was_pushed_meanwhile_once(store: Store) -> None:
    with bench(store) as run:
        running(run)
        run.advance(T0)
        run.clock.set(T0 + 2)
        Web(run)("POST", "/api/v1/runs/run/sandboxes", json=[{"id": "a", "requested_at": T0}])
    with bench(store) as run:
        run.ingest = Ingest(store, "run", T0 + 3)
        run.ingest.mark_recovered(run.driver.recovered)
        look(run, 5)
        assert run.value("sandboxes_created_total") == 1.0
        assert run.value('sandboxes{state="starting"}') == 1.0


def test_counters_are_exact_when_the_process_dies_after_each_tick(store: Store) -> None:
    """A tick at `t` is computed some time after `t`: rows of that time must not be counted by two processes.

    Sandbox n is pushed 0.25 s after a grid instant, becomes ready 1 s later, and fails 4 s after that.
    Each tick reads the rows 0.5 s late, and then the process dies.
    """
    for n in range(6):
        at = 5 * n
        with bench(store) as run:
            run.ingest = Ingest(store, "run", T0 + at - 1)
            run.ingest.mark_recovered(run.driver.recovered)
            if n == 0:
                running(run)
                run.advance(T0)
            web = Web(run)
            run.clock.set(T0 + at + 0.25)
            web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": f"s{n}", "requested_at": T0 + at}])
            if n:
                late = {"id": f"s{n - 1}", "state": "failed", "cause": "quota"}
                web("POST", "/api/v1/runs/run/sandboxes", json=[late])
            look(run, at)
            run.clock.set(T0 + at + 1.25)
            web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": f"s{n}", "ready_at": T0 + at + 1.25}])
    with bench(store) as run:
        run.ingest = Ingest(store, "run", T0 + 29)
        run.ingest.mark_recovered(run.driver.recovered)
        look(run, 30)
        assert len(store.sandboxes.page("run")) == 6
        assert run.value("sandboxes_created_total") == 6.0
        assert run.value("sandbox_spinup_count_total") == 6.0
        assert run.value('sandbox_failures_total{cause="quota"}') == 5.0


def test_a_push_that_commits_after_the_tick_of_its_time_is_counted_when_the_process_dies(store: Store) -> None:
    """The tick at 5 s reads before the pushes of 4.9 s are committed, and the process dies before the next tick.

    Sandbox a is counted at 5 s. Its failure and sandbox b with its start come too late for that tick.
    """
    with bench(store) as run:
        running(run)
        run.advance(T0)
        web = Web(run)
        run.clock.set(T0 + 2)
        web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": "a", "requested_at": T0, "ready_at": T0 + 1}])
        look(run, 5)
        assert run.value("sandboxes_created_total") == 1.0
        run.clock.set(T0 + 4.9)
        web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": "a", "state": "failed", "cause": "quota"}])
        web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": "b", "requested_at": T0 + 1, "ready_at": T0 + 4}])
    for at in (10, 15):
        with bench(store) as run:
            run.ingest = Ingest(store, "run", T0 + at - 1)
            run.ingest.mark_recovered(run.driver.recovered)
            look(run, at)
            assert run.value("sandboxes_created_total") == 2.0
            assert run.value("sandbox_spinup_count_total") == 2.0
            assert run.value("sandbox_spinup_sum_total") == 1.0 + 3.0
            assert run.value('sandbox_failures_total{cause="quota"}') == 1.0


@pytest.mark.parametrize("null", ["unreachable", "state", "provider", "image_cached", "cause", "name", "ready_at"])
def test_a_null_is_an_absent_field(run: Bench, null: str) -> None:
    web = Web(run)
    assert web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": "a", null: None}]).status_code == 200
    (row,) = run.store.sandboxes.page("run")
    assert [Sandbox(*map(row.__getattribute__, Sandbox.__struct_fields__))] == records_of(
        "sandboxes", [b'{"id": "a"}'], T0
    )[0]


def test_a_push_that_is_committed_while_its_run_is_adopted_counts(store: Store) -> None:
    """4,000 records take seconds to write: their stamps are older than the look that found nothing."""
    with bench(store) as run:
        run.ingest = Ingest(store, "run", T0)
        run.clock.set(T0 - 4)
        done = {"ready_at": T0 - 5}
        many = [{"id": f"{n}", "requested_at": T0 - 9, **(done if n % 2 else {})} for n in range(10)]
        Web(run)("POST", "/api/v1/runs/run/sandboxes", json=many)
        look(run, 5)
        look(run, 10)
        assert run.value("sandboxes_created_total") == 10.0
        assert run.value("sandbox_spinup_count_total") == 5.0


def test_bad_lines_are_named_and_the_rest_is_taken(run: Bench) -> None:
    text = '{"id": "a"}\nnot json\n{"id": ""}\n{"id": "b", "colour": 1}\n{"id": "c", "ready_at": "soon"}\n{"id": "d"}\n'
    answer = Web(run)("POST", "/api/v1/runs/run/sandboxes", content=text)
    assert answer.status_code == 207 and answer.json()["taken"] == 2
    assert [(one["line"], one["detail"].split(";")[0]) for one in answer.json()["refused"]] == [
        (2, "not JSON: Expecting value at column 1"),
        (3, "id must be a text of 1 to 200 characters"),
        (4, "unknown field 'colour'"),
        (5, "ready_at must be a number of epoch seconds"),
    ]


@pytest.mark.parametrize("body", [b"", b"   ", b"[", b"[1", b"\xff\xfe"])
def test_a_body_that_cannot_be_read_is_a_400_or_a_named_line(run: Bench, body: bytes) -> None:
    answer = Web(run)("POST", "/api/v1/runs/run/sandboxes", content=body)
    assert answer.status_code in (400, 207)
    assert run.store.sandboxes.page("run") == []


@pytest.mark.parametrize("sent", ["a\0b", "ab\0", "a\ud800b"])
def test_an_id_no_database_takes_is_one_sandbox_however_often_it_is_pushed(run: Bench, sent: str) -> None:
    web, kept = Web(run), sent.replace("\0", "").replace("\ud800", "?")
    for at, times in ((1, {"requested_at": T0}), (5, {"ready_at": T0 + 4})):
        run.clock.set(T0 + at)
        answer = web("POST", "/api/v1/runs/run/sandboxes", content=json.dumps({"id": sent, "provider": sent, **times}))
        assert (answer.status_code, answer.json()) == (200, {"taken": 1, "refused": []})
    (row,) = web("GET", "/api/v1/runs/run/sandboxes").json()["sandboxes"]
    assert (row["provider"], row["id"]) == (kept, kept)
    assert (row["requested_at"], row["ready_at"]) == (T0, T0 + 4)


def test_an_id_that_is_none_or_too_long_is_refused_and_the_rest_is_taken(run: Bench) -> None:
    body = [{"id": "\0"}, {"id": "x" * 201}, {"id": "a", "provider": "p" * 201}, {"id": "x" * 200}]
    answer = Web(run)("POST", "/api/v1/runs/run/sandboxes", content="\n".join(map(json.dumps, body)))
    assert answer.status_code == 207 and answer.json()["taken"] == 1
    assert [(one["line"], one["detail"]) for one in answer.json()["refused"]] == [
        (1, "id must be a text of 1 to 200 characters"),
        (2, "id must be a text of 1 to 200 characters"),
        (3, "provider must be a text of 1 to 200 characters"),
    ]


def test_a_line_ends_where_ndjson_says_and_not_within_a_text() -> None:
    lines = [{"id": "a", "detail": "one\u2028two\x85three"}, {"id": "b"}]
    found = parse("\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode(), "sandboxes", T0)
    records, _, _ = records_of("sandboxes", found.lines, T0)
    assert [(one.id, one.detail) for one in records] == [("a", "one\u2028two\x85three"), ("b", "")]
    assert found.refused == []


def test_an_impossible_run_name_is_refused(run: Bench) -> None:
    assert Web(run)("POST", f"/api/v1/runs/{'x' * 300}/sandboxes", json=[{"id": "a"}]).status_code == 400


def test_pages_by_the_last_id(run: Bench) -> None:
    web = Web(run)
    for n in range(5):
        run.clock.set(T0 + n)
        web("POST", "/api/v1/runs/run/sandboxes", json=[{"id": f"s{n}"}])
    first = web("GET", "/api/v1/runs/run/sandboxes?limit=2").json()["sandboxes"]
    second = web("GET", f"/api/v1/runs/run/sandboxes?limit=2&before={first[-1]['id']}").json()["sandboxes"]
    assert [row["id"] for row in first + second] == ["s4", "s3", "s2", "s1"]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*Sandbox.__struct_fields__, "x"]),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        ),
        max_size=4,
    )
)
def test_any_json_is_records_or_named_lines(items: list[object]) -> None:
    try:
        found = parse(json.dumps(items).encode(), "sandboxes", T0)
    except ValueError:
        assert items == []
        return
    assert len(found.lines) + len(found.refused) == len(items)
