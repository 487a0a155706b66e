"""Rollouts over HTTP: pushed, collected, read; through the whole application with its gate. Both databases."""

import asyncio
import csv
import gzip
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from collectors.model import Consumption, Event, Rollout, Sandbox, Span, Turn
from server.api_rollouts import add_rollouts
from server.ingest import PUSHED, Ingest
from server.rollout_push import WEIGHT, pack
from server.store import Store, pushes
from server.store.types import Batch, Push, RolloutBin, RolloutRow, RolloutSum, SandboxRow, SeriesKey
from tests.server.test_api_alerts import Web as AlertWeb
from tests.server.test_pushes import T0, Lived, lived, value, waiting

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")
MS = round(T0 * 1000)


class Web(AlertWeb):
    """With the rollout routes."""

    routes = (add_rollouts,)


@pytest.fixture
def run(store: Store) -> Iterator[Lived]:
    with lived(store) as made:
        yield made


def web(run: Any) -> Web:
    return Web(run)


def complete(name: str, **more: Any) -> dict[str, Any]:
    """A rollout from dispatch to its use at version 3."""
    return {
        "rollout_id": name, "purpose": "train", "environment": "math", "version_start": 1, "version_finish": 1,
        "token_versions": [[1, 100]], "dispatched_at": T0 - 50, "started_at": T0 - 45, "finished_at": T0 - 15,
        "scored_at": T0 - 14, "response_tokens": 100, "loss_tokens": 100, "reward": 1.0, "version_consumed": 3,
        "consumed_at": T0 - 4,
    } | more  # fmt: skip


def post(run: Any, what: str, body: Any, **kwargs: Any) -> httpx.Response:
    content = body if isinstance(body, (bytes, str)) else "\n".join(json.dumps(one) for one in body)
    return web(run)("POST", f"/api/v1/runs/run/{what}", content=content, **kwargs)


def totals(store: Store) -> dict[str, int]:
    return {one.exit: one.rollouts for one in store.rollouts.sums("run", MS - 3_600_000, MS + 60_000)}


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
        == ("trained", 2, MS - 4000, 35.0)
    )


def test_a_bad_line_is_answered_with_its_number(store: Store, run: Lived) -> None:
    answer = post(run, "rollouts", '{"rollout_id": "a"}\nno\n{"rollout_id": "b", "reward": NaN}\n')
    assert answer.status_code == 207
    assert [(one["line"], one["detail"][:18]) for one in answer.json()["refused"]] == [
        (2, "not JSON: Expectin"),
        (3, "NaN is not a numbe"),
    ]
    run.at(5)
    assert [row.record.rollout_id for row in store.rollouts.get("run", ["a", "b"])] == ["a"]


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


def test_a_run_that_cannot_be(run: Lived) -> None:
    assert web(run)("POST", f"/api/v1/runs/{'x' * 300}/rollouts", content='{"rollout_id": "a"}').status_code == 400


def test_one_rollout_a_request_is_not_refused(store: Store, run: Lived) -> None:
    """Two hundred a second: a thousand bodies wait when a step comes, and it takes them all."""
    lines = [json.dumps({"rollout_id": f"r{n}", "exit": "surplus"}).encode() for n in range(1_100)]
    held = [Push("run", PUSHED, "generator", 1200.0, MS, WEIGHT, pack("rollouts", [line])) for line in lines]
    store.pushes.offer(held)
    assert post(run, "rollouts", [complete("last")]).status_code == 200
    run.at(5)
    assert waiting(store) == 0
    assert totals(store) == {"surplus": 1_100, "trained": 1}


def test_a_full_inbox_is_told(run: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "INBOX_ROWS", 11)
    assert [post(run, "rollouts", [complete(str(n))]).status_code for n in range(3)] == [200, 200, 429]
    monkeypatch.setattr(pushes, "INBOX_ROWS", 10**9)
    monkeypatch.setattr(pushes, "INBOX_BYTES", 10)
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
    assert [row.record.rollout_id for row in store.rollouts.get("run", ["a", "bad", "c"])] == ["a", "c"]
    assert totals(store) == {"trained": 2}


def test_history_that_takes_too_long_is_left_for_after_the_tick(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.pushes._WEIGHT_AT_ONCE", 5)
    with lived(store) as run:
        for n in range(4):
            post(run, "rollouts", [complete(str(n))])
        rows, plain = [], run.loop.driver.advance

        def advance(*args: Any, **kwargs: Any) -> Any:
            rows.append(len(store.rollouts.get("run", "0123")))
            return plain(*args, **kwargs)

        monkeypatch.setattr(run.loop.driver, "advance", advance)
        run.clock.set(T0 + 8)  # the step at 5 begins late: one body, the tick, then the rest
        asyncio.run(run.loop.step(T0 + 5))
    assert (rows, len(store.rollouts.get("run", "0123"))) == ([1], 4)


def test_events_are_pushed_and_read(run: Lived) -> None:
    body = [{"kind": "weights_published", "version": n, "ts": T0 - 10 + n} for n in range(3)] + [
        {"kind": "eval", "ts": T0 - 1}
    ]
    for _ in range(2):
        assert post(run, "events", body).status_code == 200
    run.at(5)
    found = web(run)("GET", "/api/v1/runs/run/events?kind=weights_published&limit=2").json()["events"]
    assert [(one["ts"], one["version"]) for one in found] == [(T0 - 9, 1), (T0 - 8, 2)]
    assert len(web(run)("GET", f"/api/v1/runs/run/events?start={T0 - 100}").json()["events"]) == 4
    assert web(run)("GET", "/api/v1/runs/run/events?start=5&end=5").status_code == 422
    assert web(run)("GET", "/api/v1/runs/none/events").status_code == 404


# ---- read


def rows(store: Store) -> None:
    """Five rollouts, the fourth with all there is to tell."""
    made = [
        RolloutRow(
            "t", Rollout(f"r{n}", "g", purpose="train", reward=float(n)), 0, MS, MS, "trained", MS + n, seconds=10.0 * n
        )
        for n in range(3)
    ]
    record = Rollout(
        "4/a b", "g", 8, purpose="train", environment='=cmd|"x"', engine="e1", version_start=1, version_finish=2,
        token_versions=((1, 30), (2, 10)), consumptions=(Consumption(5, T0 + 60),), dispatched_at=T0,
        started_at=T0 + 10,
        first_token_at=T0 + 12, finished_at=T0 + 52, scored_at=T0 + 53, group_complete_at=T0 + 56, sandbox_ids=("box",),
        response_tokens=40, turns=(Turn(1, 2, True), Turn(2)), reward=-1.0,
    )  # fmt: skip
    made.append(RolloutRow("t", record, 2, MS, MS, "trained", MS + 60_000, 52.0, 2, 5, MS + 60_000, 4, detailed=True))
    told = Rollout(
        "told", engine="e1", spans=(Span("generate", T0 + 20, T0 + 30, 1), Span("tool", T0 + 22, None, None, "sh"))
    )
    made.append(RolloutRow("t", told, 2, MS, MS, "in_tool", MS + 30_000, detailed=True))
    box = Sandbox("e2b", "box", "running", requested_at=T0 + 1, ready_at=T0 + 9)
    store.write(Batch("run", rollouts=made, sandboxes=[SandboxRow("t", box, True, False, MS, MS)]))


def test_pages_filters_and_keys(run: Lived) -> None:
    rows(run.store)
    ask = web(run)
    first = ask("GET", "/api/v1/runs/run/rollouts?limit=2").json()
    assert [row["rollout_id"] for row in first["rollouts"]] == ["4/a b", "r2"]
    second = ask("GET", f"/api/v1/runs/run/rollouts?limit=9&after={first['after']}").json()
    assert [row["rollout_id"] for row in second["rollouts"]] == ["r1", "r0", "told"] and second["after"] is None
    assert first["complete"] is second["complete"] is True
    assert ask("GET", "/api/v1/runs/run/rollouts?sort=reward&order=asc&limit=1").json()["rollouts"][0]["reward"] == -1.0
    for query, names in (
        ("state=in_tool", ["told"]),
        ("find=r", ["r2", "r1", "r0"]),
        ("group=g&sort=reward", ["r2", "r1", "r0", "4/a b"]),
    ):
        found = ask("GET", f"/api/v1/runs/run/rollouts?{query}").json()["rollouts"]
        assert [row["rollout_id"] for row in found] == names
    assert ask("GET", f"/api/v1/runs/run/rollouts?sort=reward&after={first['after']}").status_code == 400
    assert ask("GET", "/api/v1/runs/run/rollouts?after=nonsense").status_code == 400
    assert ask("GET", "/api/v1/runs/run/groups?after=nonsense").status_code == 400
    for query in ("sort=colour", "order=up", "limit=1001", "limit=0", "format=xml", "start=-1"):
        assert ask("GET", f"/api/v1/runs/run/rollouts?{query}").status_code == 422
    assert ask("GET", "/api/v1/runs/none/rollouts").status_code == 404


def test_a_purpose_that_nobody_told_is_training_everywhere(run: Lived) -> None:
    """Two tell none, one that it is for training, one an evaluation, one a judge's."""
    told = {"a": {}, "b": {}, "c": {"purpose": "train"}, "d": {"purpose": "eval"}, "e": {"purpose": "judge"}}
    body = [{"rollout_id": name, "exit": "stale", "exited_at": T0 - 4, **more} for name, more in told.items()]
    assert post(run, "rollouts", body).status_code == 200
    run.at(5)
    for query, names in (("purpose=train", "abc"), ("purpose=eval", "d"), ("purpose=", "abcde")):
        found = web(run)("GET", f"/api/v1/runs/run/rollouts?sort=moved&{query}").json()["rollouts"]
        assert sorted(row["rollout_id"] for row in found) == [*names]
        table = web(run)("GET", f"/api/v1/runs/run/rollouts?format=csv&sort=moved&{query}").text
        assert sorted(row["rollout_id"] for row in csv.DictReader(io.StringIO(table))) == [*names]
        bars = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0 - 60}&end={T0 + 60}&{query}").json()["bars"]
        assert {bar["exit"]: bar["rollouts"] for bar in bars}["stale"] == len(names)


def test_what_one_cell_adds_up_fits_every_database(store: Store, run: Lived) -> None:
    """1,100 of the most tokens each in one minute, and one of more than can be meant."""
    body = [complete(f"r{n}", response_tokens=10**9, loss_tokens=None, token_versions=None) for n in range(1100)]
    answer = post(run, "rollouts", [*body, complete("huge", response_tokens=2**53)])
    assert answer.status_code == 207 and answer.json()["refused"] == [
        {"line": 1101, "detail": "response_tokens must be a whole number up to 1000000000"}
    ]
    run.at(5)
    (found,) = [one for one in store.rollouts.sums("run", MS - 3_600_000, MS + 60_000) if one.exit == "trained"]
    assert (found.rollouts, found.response_tokens) == (1100, 1_100_000_000_000)


def test_a_table_for_a_spreadsheet_runs_nothing(run: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api_rollouts.CSV_PAGE", 2)
    rows(run.store)
    answer = web(run)("GET", "/api/v1/runs/run/rollouts?format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["rollout_id"] for row in found] == ["4/a b", "r2", "r1", "r0", "told"]
    assert (found[0]["environment"], found[0]["reward"], found[0]["finished_at"]) == (
        '\'=cmd|"x"',
        "-1.0",
        str(T0 + 52),
    )
    assert (found[1]["staleness"], found[0]["staleness"], found[0]["sandbox_ids"]) == ("", "4", "box")


def test_one_rollout_with_its_timeline(run: Lived) -> None:
    rows(run.store)
    found = web(run)("GET", "/api/v1/runs/run/rollouts/4%2Fa%20b").json()
    assert [(one["kind"], one["start"] - T0, one["end"] - T0, one["version"]) for one in found["spans"]] == [
        ("queued", 0, 10, None), ("boot", 1, 9, None), ("prefill", 10, 12, 1), ("generate", 12, 42, 1),
        ("generate", 42, 52, 2), ("scoring", 52, 53, None), ("waiting_group", 53, 56, None), ("in_queue", 56, 60, None),
    ]  # fmt: skip
    assert (found["spans_told"], found["rollout"]["staleness"], found["sandboxes"][0]["id"]) == (False, 4, "box")
    assert [turn["version"] for turn in found["turns"]] == [1, 2] and found["token_versions"] == [[1, 30], [2, 10]]
    assert found["siblings"] == []  # of another life
    assert found["consumptions"] == [{"version": 5, "at": T0 + 60, "incarnation": None}]
    told = web(run)("GET", "/api/v1/runs/run/rollouts/told?life=2").json()
    assert told["spans_told"] and told["spans"][1] == {
        "kind": "tool",
        "start": T0 + 22,
        "end": None,
        "version": None,
        "detail": "sh",
    }
    assert [one["rollout_id"] for one in web(run)("GET", "/api/v1/runs/run/rollouts/r1").json()["siblings"]] == [
        "r0",
        "r2",
    ]
    for path in ("none", "told?life=1", "4"):
        assert web(run)("GET", f"/api/v1/runs/run/rollouts/{path}").status_code == 404


def test_a_timeline_for_a_trace_viewer(run: Lived) -> None:
    rows(run.store)
    one = web(run)("GET", "/api/v1/runs/run/rollouts/4%2Fa%20b/trace").json()
    bars = [event for event in one["traceEvents"] if event["ph"] == "X"]
    assert [(bar["name"], bar["ts"] - MS * 1000, bar["dur"]) for bar in bars][2:5] == [
        ("prefill v1", 10_000_000, 2_000_000), ("generate v1", 12_000_000, 30_000_000),
        ("generate v2", 42_000_000, 10_000_000),
    ]  # fmt: skip
    run.clock.set(T0 + 40)
    whole = web(run)("GET", f"/api/v1/runs/run/rollouts/trace?start={T0}&end={T0 + 100}").json()["traceEvents"]
    slots = {
        event["name"]: (event["pid"], event["tid"], event["dur"]) for event in whole if event.get("cat") == "rollout"
    }
    # They were on one engine at once, so in two slots; the open tool call lasts until now.
    assert slots == {"4/a b": (1, 1, 60_000_000), "told": (1, 2, 20_000_000)}
    assert {event["args"]["name"] for event in whole if event["ph"] == "M"} == {"e1", "slot 1", "slot 2"}
    assert web(run)("GET", "/api/v1/runs/run/rollouts/none/trace").status_code == 404


def test_the_funnel_in_tokens_gpu_seconds_and_dollars(run: Lived) -> None:
    """An hour of two engines' 100 tokens/s on 8 GPUs at 2 dollars; 270,000 tokens are recorded."""
    store, series = run.store, run.store.intern("run", [SeriesKey("", "generator_tokens_per_second")])[0]
    sums = [
        RolloutSum(3_600_000, MS, "trained", "math", "train", 90, 0, 180_000, 0, 0.0, 90),
        RolloutSum(3_600_000, MS, "stale", "code", "", 30, 0, 60_000, 0, 0.0, 30),
        RolloutSum(3_600_000, MS, "trained", "math", "eval", 10, 0, 30_000, 0, 0.0, 10),
        RolloutSum(3_600_000, MS, "surplus", "math", "train", 5, 0, 0, 0, 0.0),
    ]
    points = [(series, MS + 5000 * n, 100.0, 0) for n in range(721)]
    facts: dict[str, str | float] = {
        "generator_gpus": 8.0, "usd_per_gpu_hour": 3.0, "generator_usd_per_gpu_hour": 2.0
    }  # fmt: skip
    live = RolloutRow("t", Rollout("x"), 0, MS, MS, "generating", MS)
    store.write(Batch("run", points=points, rollout_sums=sums, facts=facts, rollouts=[live]))
    run.clock.set(T0 + 3600)
    found = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0}&end={T0 + 3600}").json()
    bars = {
        bar["exit"]: (bar["rollouts"], bar["response_tokens"], bar["gpu_seconds"], bar["usd"]) for bar in found["bars"]
    }
    assert bars["trained"] == (90, 180_000, 14_400.0, 8.0)  # half of 8 GPUs for an hour
    assert bars["stale"] == (30, 60_000, 4_800.0, pytest.approx(2.6667, abs=1e-4))
    assert bars["unrecorded"] == (0, 90_000, 7_200.0, 4.0)
    assert bars["surplus"] == (5, None, None, None) and bars["env_error"] == (0, 0, 0.0, 0.0)
    assert (found["in_flight"], found["why"]) == (
        1, "130 of 135 rollouts tell their response_tokens: amounts are of those",
    )  # fmt: skip
    assert found["wasted_usd"] == pytest.approx(2.6667 + 4.0, abs=1e-4)  # all that is known but the trained
    assert [bar["exit"] for bar in found["bars"] if bar["derived"]] == ["unrecorded"]


def _funnel(run: Lived, *, engines: bool) -> dict[str, Any]:
    """An hour at 2 dollars of 8 GPUs: of 90 trained 60 tell 120,000 tokens, all 30 stale ones tell 60,000."""
    store = run.store
    sums = [
        RolloutSum(3_600_000, MS, "trained", "math", "train", 90, 0, 120_000, 0, 0.0, 60),
        RolloutSum(3_600_000, MS, "stale", "code", "train", 30, 0, 60_000, 0, 0.0, 30),
    ]
    points = []
    if engines:
        series = store.intern("run", [SeriesKey("", "generator_tokens_per_second")])[0]
        points = [(series, MS + 5000 * n, 100.0, 0) for n in range(721)]
    facts: dict[str, str | float] = {"generator_gpus": 8.0, "usd_per_gpu_hour": 2.0}
    store.write(Batch("run", points=points, rollout_sums=sums, facts=facts, rollouts=[live_row()]))
    run.clock.set(T0 + 3600)
    found: dict[str, Any] = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0}&end={T0 + 3600}").json()
    return found | {"bars": {bar["exit"]: bar for bar in found["bars"]}}


def live_row() -> RolloutRow:
    return RolloutRow("t", Rollout("x"), 0, MS, MS, "generating", MS)


def test_tokens_that_only_some_tell_are_a_lower_bound(run: Lived) -> None:
    found = _funnel(run, engines=True)
    names = ("rollouts", "told", "response_tokens", "gpu_seconds", "usd", "bound")
    # A third of the engines' 360,000 tokens, at least; what nobody tells is at most half of them.
    assert [found["bars"]["trained"][name] for name in names] == [90, 60, 120_000, 9_600.0, 5.3333333333333333, "lower"]
    assert [found["bars"]["stale"][name] for name in names[:4]] == [30, 30, 60_000, 4_800.0]
    assert (found["bars"]["stale"]["bound"], found["bars"]["unrecorded"]["bound"]) == ("", "upper")
    assert found["why"] == "90 of 120 rollouts tell their response_tokens: amounts are of those"


def test_shares_of_what_only_some_tell_are_unknown_without_the_engines(run: Lived) -> None:
    found = _funnel(run, engines=False)
    assert [found["bars"][name]["gpu_seconds"] for name in ("trained", "stale")] == [None, None]
    assert [found["bars"][name]["usd"] for name in ("trained", "stale")] == [None, None]
    assert found["bars"]["trained"]["response_tokens"] == 120_000
    assert "and shares of the GPUs' time are not known" in found["why"]


def test_a_funnel_says_what_it_lacks(run: Lived) -> None:
    run.store.ensure_run("run")
    found = web(run)("GET", "/api/v1/runs/run/funnel").json()
    assert found["bars"] == [] and all(
        word in found["why"] for word in ("no rollout", "engines", "generator_gpus", "usd_per_gpu_hour")
    )


def test_census_and_cells(run: Lived) -> None:
    rows(run.store)
    old = RolloutRow("t", Rollout("old"), 1, MS, MS, "generating", MS)
    bins = [RolloutBin(60_000, MS + 60_000 * n, "turns", n, 2) for n in range(4)] + [
        RolloutBin(3_600_000, MS, "turns", 9, 8)
    ]
    run.store.write(Batch("run", rollouts=[old], rollout_bins=bins))
    run.clock.set(T0 + 40)
    assert web(run)("GET", "/api/v1/runs/run/census").json()["census"] == [
        {"state": "in_tool", "rollouts": 1, "oldest_seconds": 10.0}
    ]
    path = f"/api/v1/runs/run/cells?kind=turns&start={T0}&end={T0 + 240}"
    assert web(run)("GET", f"{path}&buckets=4").json()["cells"] == [[T0 + 60 * n, {str(n): 2}] for n in range(4)]
    assert web(run)("GET", f"{path}&buckets=2").json()["cells"] == [
        [T0, {"0": 2, "1": 2}],
        [T0 + 120, {"2": 2, "3": 2}],
    ]
    assert web(run)("GET", f"/api/v1/runs/run/cells?kind=turns&start={T0}&end={T0 + 7200}&buckets=2").json()[
        "cells"
    ] == [[T0, {"9": 8}]]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("cells?kind=zz", "kind must be one of response_tokens, seconds, turns, tool_calls, staleness, solve_ratio"),
        ("rollouts?state=queued&state=nope", "state must be one of waiting_slot, booting, generating"),
        ("groups?outcome=nope", "outcome must be one of open, mixed, all_solved"),
        ("events?kind=nope", "kind must be one of weights_published"),
        ("rollouts?purpose=trian", "purpose must be one of train, eval, judge"),
        ("rollouts?format=csv&purpose=x", "purpose must be one of train, eval, judge"),
        ("funnel?purpose=training", "purpose must be one of train, eval, judge"),
    ],
)  # fmt: skip
def test_a_word_that_nobody_uses_is_refused_with_those_that_are(run: Lived, path: str, why: str) -> None:
    answer = web(run)("GET", f"/api/v1/runs/run/{path}")
    assert answer.status_code == 422 and answer.json()["detail"].startswith(why)


@pytest.mark.parametrize(
    "path",
    ["rollouts?state=queued&state=trained&state=ended", "groups?outcome=too_few_valid", "events?kind=restart",
     "rollouts?purpose=eval", "rollouts?purpose=", "funnel?purpose=judge", "funnel?purpose=",
     "cells?kind=outcome"],
)  # fmt: skip
def test_known_words_are_taken(run: Lived, path: str) -> None:
    rows(run.store)
    assert web(run)("GET", f"/api/v1/runs/run/{path}").status_code == 200


def test_what_is_called_json_is_one_document(run: Lived) -> None:
    rows(run.store)
    torn, called = '{"rollout_id": "a",\n "reward": ', {"content-type": "application/json"}
    answer = post(run, "rollouts", torn, headers=called)
    assert (answer.status_code, answer.json()["detail"]) == (400, "the body is not JSON")
    assert post(run, "rollouts", torn + "1}", headers=called).json() == {"taken": 1, "refused": [], "refused_count": 0}


def test_the_interface_is_described(run: Lived) -> None:
    found = web(run)("GET", "/openapi.json").json()["paths"]["/api/v1/runs/{run}/rollouts"]["post"]["requestBody"]
    items = found["content"]["application/x-ndjson"]["schema"]
    assert items["required"] == ["rollout_id"] and "version_consumed" in items["properties"]


def test_an_event_is_not_a_rollout(run: Lived) -> None:
    assert Event("eval", "k").version is None
    assert post(run, "rollouts", [{"kind": "eval"}]).status_code == 207
