"""Rollouts over HTTP: collected or pushed, and read; through the whole application with its gate. Both databases."""

import csv
import io
from collections.abc import Iterator

import pytest

from collectors.model import Consumption, Rollout, Sandbox, Span, Turn
from server.store import Store
from server.store.types import Batch, RolloutBin, SandboxRow
from tests.api.rollouts_web import MS, post, web
from tests.push.test_pushed_targets import T0, Lived, lived
from tests.store.helpers import rollout_row

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


@pytest.fixture
def run(store: Store) -> Iterator[Lived]:
    with lived(store) as made:
        yield made


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


def rows(store: Store) -> None:
    """Five rollouts, the fourth with all there is to tell."""
    made = [
        rollout_row(
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
    made.append(rollout_row("t", record, 2, MS, MS, "trained", MS + 60_000, 52.0, 5, MS + 60_000, 4, detailed=True))
    told = Rollout(
        "told", engine="e1", spans=(Span("generate", T0 + 20, T0 + 30, 1), Span("tool", T0 + 22, None, None, "sh"))
    )
    made.append(rollout_row("t", told, 2, MS, MS, "in_tool", MS + 30_000, detailed=True))
    box = Sandbox("e2b", "box", "running", requested_at=T0 + 1, ready_at=T0 + 9)
    store.write(Batch("run", rollouts=made, sandboxes=[SandboxRow.of(box, target="t", first_seen=T0, seen_at=T0)]))


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


def test_a_table_for_a_spreadsheet_runs_nothing(run: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.rollouts.CSV_PAGE", 2)
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
    assert [turn["version"] for turn in found["rollout"]["turns"]] == [1, 2]
    assert found["rollout"]["token_versions"] == [[1, 30], [2, 10]]
    assert found["siblings"] == []  # of another life
    assert found["rollout"]["consumptions"] == [{"version": 5, "at": T0 + 60, "incarnation": None}]
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


def test_census_and_cells(run: Lived) -> None:
    rows(run.store)
    old = rollout_row("t", Rollout("old"), 1, MS, MS, "generating", MS)
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
