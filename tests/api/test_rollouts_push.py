"""Rollouts pushed over HTTP: through the whole application with its gate, and into its rows. Both databases."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Event
from server.ingest.readings import PUSHED, Ingest
from server.push.inbox import pack_records
from server.push.records import WEIGHT
from server.store import Store
from server.store import inbox as store_inbox
from server.store.types import Push
from tests.api.rollouts_web import MS, complete, post, totals, web
from tests.push.test_pushed_targets import T0, Lived, lived, value, waiting

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


@pytest.fixture
def run(store: Store) -> Iterator[Lived]:
    with lived(store) as made:
        yield made


def test_pushed_lines_become_rows_once(store: Store, run: Lived) -> None:
    body = [complete("a"), complete("b", exit="infra_error", version_consumed=None, consumed_at=None, reward=None)]
    answer = post(run, "rollouts", body)
    assert (answer.status_code, answer.json()) == (200, {"taken": 2, "refused": [], "refused_count": 0})
    assert waiting(store) == 1
    run.at(5)
    assert waiting(store) == 0
    before = store.rollouts.get("run", ["a", "b"])
    assert [(row.state, row.staleness, row.seconds) for row in before] == [
        ("trained", 2, 35.0),
        ("infra_error", None, 35.0),
    ]
    assert totals(store) == {"trained": 1, "infra_error": 1}
    post(run, "rollouts", body)
    post(run, "rollouts", body[::-1])
    status = run.at(10)
    assert store.rollouts.get("run", ["a", "b"]) == before
    assert totals(store) == {"trained": 1, "infra_error": 1}
    assert value(status, 'rollouts_total{exit="trained"}') == 1.0
    # Records come when something happens: nobody is down for their absence.
    assert [one.target for one in status.trust] == []


def test_parts_in_any_order_give_the_same_row(store: Store, run: Lived) -> None:
    whole = complete("a")
    parts = [
        {"rollout_id": "a", name: at}
        for name, at in whole.items()
        if name not in ("rollout_id", "version_consumed", "consumed_at")
    ]
    parts.append({"rollout_id": "a", "version_consumed": 3, "consumed_at": T0 - 4})
    for part in reversed(parts):
        assert post(run, "rollouts", [part]).status_code == 200
    post(run, "rollouts", [whole | {"rollout_id": "b"}])
    run.at(5)
    a, b = store.rollouts.get("run", ["a", "b"])
    assert (
        (a.state, a.staleness, a.moved_at, a.seconds)
        == (b.state, b.staleness, b.moved_at, b.seconds)
        == ("trained", 2, T0 - 4, 35.0)
    )


def test_a_bad_line_is_answered_with_its_number(store: Store, run: Lived) -> None:
    answer = post(run, "rollouts", '{"rollout_id": "a"}\nno\n{"rollout_id": "b", "reward": NaN}\n')
    assert answer.status_code == 207
    assert [(one["line"], one["detail"][:18]) for one in answer.json()["refused"]] == [
        (2, "not JSON: Expectin"),
        (3, "NaN is not a numbe"),
    ]
    run.at(5)
    assert [row.rollout_id for row in store.rollouts.get("run", ["a", "b"])] == ["a"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400), (b"[", {}, 400), (b"{}\n" * 10_001, {}, 413), (b" " * (17 << 20), {}, 413),
        (b"{}", {"content-type": "application/x-protobuf"}, 415), (b"{}", {"content-encoding": "br"}, 415),
        (b"{}", {"content-encoding": "gzip"}, 400),
        (gzip.compress(b" " * (17 << 20)), {"content-encoding": "gzip"}, 413),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_taken(run: Lived, body: bytes, headers: dict[str, str], status: int) -> None:
    assert post(run, "rollouts", body, headers=headers).status_code == status
    assert waiting(run.store) == 0


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/x-ndjson; charset=utf-8", "text/plain", "application/x-www-form-urlencoded"],
)
def test_bodies_are_called_many_things_and_may_be_packed(run: Lived, kind: str) -> None:
    headers = {"content-type": kind, "content-encoding": "gzip"}
    assert post(run, "rollouts", gzip.compress(b'{"rollout_id": "a"}'), headers=headers).json()["taken"] == 1


def test_what_is_called_json_is_one_document(run: Lived) -> None:
    torn, called = '{"rollout_id": "a",\n "reward": ', {"content-type": "application/json"}
    answer = post(run, "rollouts", torn, headers=called)
    assert (answer.status_code, answer.json()["detail"]) == (400, "the body is not JSON")
    assert post(run, "rollouts", torn + "1}", headers=called).json() == {"taken": 1, "refused": [], "refused_count": 0}


def test_a_run_that_cannot_be(run: Lived) -> None:
    assert web(run)("POST", f"/api/v1/runs/{'x' * 300}/rollouts", content='{"rollout_id": "a"}').status_code == 400


def test_one_rollout_a_request_is_not_refused(store: Store, run: Lived) -> None:
    """Two hundred a second: a thousand bodies wait when a step comes, and it takes them all."""
    lines = [json.dumps({"rollout_id": f"r{n}", "exit": "surplus"}).encode() for n in range(1_100)]
    held = [Push("run", PUSHED, "generator", 1200.0, MS, WEIGHT, pack_records("rollouts", [line])) for line in lines]
    store.pushes.offer(held)
    assert post(run, "rollouts", [complete("last")]).status_code == 200
    run.at(5)
    assert waiting(store) == 0
    assert totals(store) == {"surplus": 1_100, "trained": 1}


def test_a_full_inbox_is_told(run: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_inbox, "INBOX_ROWS", 11)
    assert [post(run, "rollouts", [complete(str(n))]).status_code for n in range(3)] == [200, 200, 429]
    monkeypatch.setattr(store_inbox, "INBOX_ROWS", 10**9)
    monkeypatch.setattr(store_inbox, "INBOX_BYTES", 10)
    answer = post(run, "rollouts", [complete("d")])
    assert (
        answer.status_code == 429 and "bytes wait" in answer.json()["detail"] and answer.headers["retry-after"] == "5"
    )


def test_a_body_that_no_database_takes_hurts_no_other(
    store: Store, run: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "bad", "c"):
        post(run, "rollouts", [complete(name)])
    plain = Ingest.records

    def records(self: Ingest, target: Any, reading: Any, now: float) -> Any:
        batch, arrivals = plain(self, target, reading, now)
        if any(one.rollout_id == "bad" for one in reading.rollouts):
            batch.run_fields["nonsense"] = 1  # what no transaction takes
        return batch, arrivals

    monkeypatch.setattr(Ingest, "records", records)
    run.at(5, 10)
    assert waiting(store) == 0
    assert [row.rollout_id for row in store.rollouts.get("run", ["a", "bad", "c"])] == ["a", "c"]
    assert totals(store) == {"trained": 2}


def test_history_that_takes_too_long_is_left_for_after_the_tick(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.push.targets._WEIGHT_AT_ONCE", 5)
    with lived(store) as run:
        for n in range(4):
            post(run, "rollouts", [complete(str(n))])
        rows, plain = [], run.loop.pipeline.driver.advance

        def advance(*args: Any, **kwargs: Any) -> Any:
            rows.append(len(store.rollouts.get("run", "0123")))
            return plain(*args, **kwargs)

        monkeypatch.setattr(run.loop.pipeline.driver, "advance", advance)
        run.clock.set(T0 + 8)  # the step at 5 begins late: one body, the tick, then the rest
        asyncio.run(run.loop.step(T0 + 5))
    assert (rows, len(store.rollouts.get("run", "0123"))) == ([1], 4)


def test_a_backlog_fills_the_tick_and_ends_before_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that take 0.8 s each, and as long to be stored: two by half of the tick, three more by its end."""
    monkeypatch.setattr("server.push.targets._WEIGHT_AT_ONCE", 5)
    plain = Ingest.records
    with lived(store) as run:
        for n in range(9):
            post(run, "rollouts", [complete(str(n))])
        now, rows = [5.0], []

        def records(*args: Any) -> Any:
            now[0] += 0.8
            run.clock.set(T0 + now[0])
            return plain(*args)

        def derive(*args: Any, **kwargs: Any) -> Any:
            rows.append(9 - waiting(store))
            return advance(*args, **kwargs)

        advance = run.loop.pipeline.driver.advance
        monkeypatch.setattr(Ingest, "records", records)
        monkeypatch.setattr(run.loop.pipeline.driver, "advance", derive)
        run.at(5)
    assert (rows, 9 - waiting(store), round(now[0], 1)) == ([2], 5, 9.0)


def test_what_one_cell_adds_up_fits_every_database(store: Store, run: Lived) -> None:
    """1,100 of the most tokens each in one minute, and one of more than can be meant."""
    body = [complete(f"r{n}", response_tokens=10**9, loss_tokens=None, token_versions=None) for n in range(1100)]
    answer = post(run, "rollouts", [*body, complete("huge", response_tokens=2**53)])
    assert answer.status_code == 207 and answer.json()["refused"] == [
        {"line": 1101, "detail": "response_tokens must be a whole number from 0 to 1000000000"}
    ]
    run.at(5)
    (found,) = [one for one in store.rollouts.sums("run", MS - 3_600_000, MS + 60_000) if one.exit == "trained"]
    assert (found.rollouts, found.response_tokens) == (1100, 1_100_000_000_000)


def test_the_interface_is_described(run: Lived) -> None:
    found = web(run)("GET", "/openapi.json").json()["paths"]["/api/v1/runs/{run}/rollouts"]["post"]["requestBody"]
    items = found["content"]["application/x-ndjson"]["schema"]
    assert items["required"] == ["rollout_id"] and "version_consumed" in items["properties"]


def test_an_event_is_not_a_rollout(run: Lived) -> None:
    assert Event("eval", "k").version is None
    assert post(run, "rollouts", [{"kind": "eval"}]).status_code == 207
