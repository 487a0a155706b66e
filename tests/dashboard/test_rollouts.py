"""The Rollouts page without a browser: its address, its cells, and what a tick sends."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from dashboard import callbacks
from dashboard.charts.figures import layout
from dashboard.charts.panels import PANELS
from dashboard.charts.time_columns import grid
from dashboard.pages.rollouts import data as rollouts_data
from dashboard.pages.rollouts import records as rollouts_records
from dashboard.pages.rollouts.data import recipe
from dashboard.pages.rollouts.filters import CENSUS, RolloutQuery, parse
from dashboard.shell.page import Scope
from dashboard.state.deltas import SentViews
from dashboard.widgets.base import Part
from server.query.types import CensusState, FunnelBar, RolloutFilter
from tests.dashboard import fake
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.rollout_cells import HOUR, ids, view


@pytest.fixture
def reader() -> MemoryReader:
    return made.reader()


# ---- the address


def test_address_is_read_whole() -> None:
    query = {"state": "infra_error,stale",
             "environment": "swe <b>", "purpose": "eval", "mixed": "0", "find": "r-1",
             "group": "g/1", "sort": "reward", "order": "asc", "outcome": "mixed,open",
             "rollout": "a&b", "life": "2"}  # fmt: skip
    assert parse("?" + urlencode(query)) == RolloutQuery(
        RolloutFilter(("stale", "infra_error"), "swe <b>", "eval", "g/1", "r-1", False),
        "reward", False, ("mixed", "open"), "a&b", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "typed", ["", "state=&sort=&order=&mixed=&life=", "state=no&sort=rowid;drop&mixed=2&life=-1&purpose=x&outcome=y",
              "life=99999999999", "%ff%00=1&&&="],
)  # fmt: skip
def test_address_typed_by_hand_opens_the_page(typed: str) -> None:
    assert parse(typed) == RolloutQuery()


def test_in_flight_is_every_state_before_the_end() -> None:
    asked = parse("state=in_flight")
    assert asked.filter.states == CENSUS and asked.in_flight_only
    assert not parse("state=queued,trained").in_flight_only and not RolloutQuery().in_flight_only


# ---- cells


def test_head_says_how_far_behind_and_in_what_parts(reader: MemoryReader) -> None:
    found = view(reader)
    assert [found["rollouts.mode"], *(found[f"head.rollouts.{key}"] for key in ("before", "figure", "after"))] == [
        "ok", "Trained rollouts are ", "2.4 versions", " behind",
    ]  # fmt: skip
    assert found["head.rollouts.text"] == "p95 5 · max 6 · bound 6 · in flight: 2.7 ± 1 (estimate)"
    assert found["head.rollouts.split"] == [
        Part("in_flight", "In flight", 0.625), Part("in_group", "In group", 0.208), Part("in_queue", "In queue", 0.167),
    ]  # fmt: skip
    assert found["rollouts.parts"] == "1.5 in flight + 0.5 in group + 0.4 in queue"


def test_cards_say_their_numbers_and_what_stands_beside(reader: MemoryReader) -> None:
    found = view(reader)
    cards = {key: (found[f"card.ro_{key}.figure"], found[f"card.ro_{key}.note"]) for key in
             ("policy", "token", "env", "mixed", "zero", "tail", "age", "infra")}  # fmt: skip
    assert cards == {
        "policy": ("2.4", "p95 5 · max 6"),
        "token": ("1.9", "p95 4.2 · max 5.5"),
        "env": ("0.8", "upper bound · p95 3 · max 4"),
        "mixed": ("31", "12% of turns on state of an older policy"),
        "zero": ("48", "30% all solved · 18% none solved"),
        "tail": ("6.2", "p99 / p50 of tokens · of time 8.1"),
        "age": ("21", "p95 when consumed 2.9 min"),
        "infra": ("1.1", "watch ≥ 5%"),
    }
    # A quotient is no share of a hundred.
    assert found["card.ro_tail.unit"] == "×"


def test_unknown_says_what_to_log(reader: MemoryReader) -> None:
    found = view(reader, made.BARE)
    assert found["rollouts.mode"] == "none" and found["head.rollouts.before"] == "No rollout records"
    assert found["card.ro_policy.note"] == found["card.ro_env.note"] == made.TOLD
    assert found["card.ro_infra.note"] == "log the exit"
    assert "rollout_rows.order" not in found and "exits.in" not in found
    reader.put_rollouts(made.BARE, made.made("one", "generating", 5))
    late = view(reader, made.BARE)
    assert (late["rollouts.mode"], late["head.rollouts.before"], late["head.rollouts.text"]) == (
        "ok", "Staleness unknown", "Push rollouts, or log version_start and version_consumed",
    )  # fmt: skip


def test_synchronous_run_is_fresh_by_definition(reader: MemoryReader) -> None:
    found = view(reader, made.SYNC)
    assert found["head.rollouts.before"] == "Every rollout is fresh" and "0 by definition" in str(
        found["head.rollouts.text"]
    )
    assert found["card.ro_policy.figure"] == "0" and found["card.ro_policy.note"] == "synchronous: by definition"
    assert (
        found["staleness_heat.none"] == "Synchronous: staleness is 0 by definition." and found["length_heat.none"] == ""
    )
    # Records that say otherwise are believed.
    reader.append(made.SYNC, made.of("staleness_versions", "versions", level="trajectory", stat="mean"),
                  [(made.NOW, 0.5)])  # fmt: skip
    assert view(reader, made.SYNC)["head.rollouts.figure"] == "0.5 versions"


def test_funnel_has_exact_numbers_and_marks_what_is_derived(reader: MemoryReader) -> None:
    found = view(reader)
    bars = [found[f"exits.{i}"] for i in range(5)]
    rows = [row for row in reader.records(made.ASYNC).rows.values() if row.moved_at >= made.NOW - 3600]
    for bar in bars[:4]:
        mine = [row for row in rows if row.state == bar["exit"]]
        tokens = sum(row.response_tokens or 0 for row in mine)
        assert (bar["rollouts"], bar["response_tokens"]) == (len(mine), tokens)
    assert [bar["exit"] for bar in bars] == ["trained", "zero_advantage", "stale", "infra_error", "unrecorded"]
    amounts = [(bar["gpu_seconds"], bar["usd"], bar["derived"], bar["bound"]) for bar in bars]
    assert amounts[0] == (212_400.5, 118.0, False, "") and amounts[2] == (None, None, False, "")
    assert bars[4] == {
        "exit": "unrecorded", "rollouts": 0, "response_tokens": 1_204_000, "gpu_seconds": 31_000.0, "usd": 17.22,
        "derived": True, "told": 0, "bound": "",
    }  # fmt: skip
    assert found["exits.in"] == 127
    # 88.95 with a record, 17.22 without one.
    assert found["exits.lost"] == "$106.17 is not linked to trained rollouts; $17.22 of it is not in any record."
    reader.records(made.ASYNC).extra = []
    assert view(reader)["exits.lost"] == "$88.95 was spent on rollouts that were not trained on."


def test_dollars_of_which_no_record_tells_are_told_once(reader: MemoryReader) -> None:
    records = reader.records(made.ASYNC)
    records.rows = {name: row for name, row in records.rows.items() if row.state == "trained"}
    assert view(reader)["exits.lost"] == "$17.22 is not linked to trained rollouts and is not in any record."


def test_funnel_says_where_records_began_after_the_tokens(reader: MemoryReader) -> None:
    records = reader.records(made.ASYNC)
    assert view(reader)["exits.first"] is None
    records.rows = {name: row for name, row in records.rows.items() if row.moved_at >= made.NOW - 900}
    first = view(reader)["exits.first"]
    # The column in which it ended, of the 60 of an hour.
    assert made.NOW - 960 <= first <= min(row.moved_at for row in records.rows.values() if row.response_tokens)
    # Nothing went by before them that nobody recorded.
    records.extra = []
    assert view(reader)["exits.first"] is None


def test_funnel_says_what_is_missing(reader: MemoryReader) -> None:
    kept = reader.records(made.ASYNC)
    kept.why, kept.extra = "dollars are not known: set usd_per_gpu_hour", [FunnelBar("surplus", 0, 0, None, None)]
    found = view(reader, search="purpose=eval")
    assert (found["exits.why"], found["exits.of"]) == ("Dollars are not known: set usd_per_gpu_hour.", "eval")
    assert found["exits.none"] == "No rollout ended in this range." and "exits.0" not in found


def test_census_has_every_state_in_order(reader: MemoryReader) -> None:
    found = view(reader)
    rows = [found[f"census.{i}"] for i in range(8)]
    assert [row["state"] for row in rows] == list(CENSUS)
    counts = [row["rollouts"] for row in rows]
    assert counts == [0, 0, 26, 11, 2, 80, 8, 0] and sum(counts) == found["exits.in"]
    assert (rows[0]["width"], rows[0]["since"], rows[5]["width"]) == (0, None, 100)
    oldest = min(row.moved_at for row in reader.records(made.ASYNC).rows.values() if row.state == "generating")
    assert rows[2]["since"] == round(oldest)


def test_one_number_of_rollouts_in_flight_is_not_called_generating() -> None:
    """An orchestrator counted 960 in flight while 77 requests ran: the others booted their sandboxes."""

    class Records(rollouts_records.RolloutRecords):
        def census(self) -> list[CensusState]:
            return states

    records = Records(None, RolloutQuery())  # type: ignore[arg-type]
    states = [CensusState("generating", 960, None), CensusState("waiting_group", 345, 300.0)]
    found = rollouts_data._census(records, 1000.0)
    row = {"state": "generating", "rollouts": 960, "width": 100.0, "since": None, "label": ""}
    assert found["census.2"] == row | {"label": "in flight, stage not reported"}
    waiting = {"state": "waiting_group", "rollouts": 345, "width": 35.9, "since": 700, "label": ""}
    assert found["census.5"] == waiting
    # With another stage, and of records, it is what it is called.
    states = [CensusState("booting", 0, None), CensusState("generating", 960, None)]
    assert rollouts_data._census(records, 1000.0)["census.2"] == row
    states = [CensusState("generating", 12, 30.0)]
    assert rollouts_data._census(records, 1000.0)["census.2"] == row | {"rollouts": 12, "since": 970}


def test_heat_maps_count_every_rollout_of_the_time(reader: MemoryReader) -> None:
    found = view(reader)
    rows = reader.records(made.ASYNC).rows.values()
    first = grid(HOUR).start
    trained = [row for row in rows if row.state == "trained" and row.moved_at >= first]
    assert found["staleness_heat.total"] == len(trained) > 500
    column = grid(HOUR).number(trained[0].moved_at)
    same = [row.staleness for row in trained if grid(HOUR).number(row.moved_at) == column]
    assert found[f"staleness_heat.{column}"] == [
        [value, same.count(value)] for value in sorted({v for v in same if v is not None})
    ]
    assert found["staleness_heat.bound"] == 6.0 and found["rollout_columns.width"] == 60.0


def test_solve_rates_name_the_productive_share(reader: MemoryReader) -> None:
    found = view(reader)
    solve = found["rollouts.solve"]
    assert isinstance(solve, list) and sum(row["groups"] for row in solve) == 235
    assert found["solve_rates.n"] == "34% of 235 groups have a solve rate of 20% to 80%, the useful range."
    assert round(100 * sum(row["groups"] for row in solve if row["productive"]) / 235) == 34


@pytest.mark.parametrize(
    ("size", "labels", "groups"),
    [
        # Of eight members each number of solved ones has a bar of its own: 3 of 8 is 37.5%, 4 of 8 is 50%.
        (8, ["0", "1", "2", "3", "4", "5", "6", "7", "8"], [7, 0, 0, 2, 1, 0, 0, 0, 5]),
        # 9 of 10 and 10 of 10 share a tenth, so tenths stand.
        (10, [f"{n}% to {n + 10}%" for n in range(0, 100, 10)], [7, 0, 0, 2, 0, 1, 0, 0, 0, 5]),
        (None, [f"{n}% to {n + 10}%" for n in range(0, 100, 10)], [7, 0, 0, 2, 0, 1, 0, 0, 0, 5]),
    ],
)
def test_a_bar_per_number_of_solved_members(size: int | None, labels: list[str], groups: list[int]) -> None:
    found = rollouts_data._solved([(0.0, {0: 7, 3: 2}), (60.0, {5: 1, 9: 5})], size)
    assert [row["label"] for row in found["rollouts.solve"]] == labels  # type: ignore[union-attr]
    assert [row["groups"] for row in found["rollouts.solve"]] == groups  # type: ignore[union-attr]


def test_zero_advantage_by_environment_worst_first(reader: MemoryReader) -> None:
    found = view(reader)
    assert [found[f"zero_causes.{i}"] for i in range(3)] == [
        {"environment": "math", "share": "61%", "width": 61.0},
        {"environment": "swe-bench", "share": "42%", "width": 42.0},
        {"environment": "terminal", "share": "40%", "width": 40.0},
    ]


# ---- ticks


def tick(reader: MemoryReader, views: SentViews, **more: Any) -> dict[str, Any]:
    cursor = reader.cursor(made.ASYNC)
    pull = {"page": 1, "key": "rollouts", "run": made.ASYNC, "cursor": cursor, "have": "", "n": 1,
            "span": [HOUR.start, HOUR.end, True]}  # fmt: skip
    looking: callbacks.Looking = lambda run, everything: Scope(reader, run, everything)  # noqa: E731
    return callbacks.tick(looking, views, pull | more)


def test_tick_sends_what_changed(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts_records, "KEEP_SECONDS", 0)
    views = SentViews()
    first = tick(reader, views, ask="state=trained")
    assert first["view"]["rollouts.mode"] == "ok"
    idle = tick(reader, views, ask="state=trained", have=first["have"])
    assert "view" not in idle and len(json.dumps(idle)) < 120
    # One straggler comes: its row, the order, and what is counted.
    slow = made.made("slow", "trained", 0, seconds=9000.0, response_tokens=5000, staleness=5, consumed=570)
    reader.put_rollouts(made.ASYNC, slow)
    answer = tick(reader, views, ask="state=trained", have=first["have"])
    news = answer["view"] | answer["fields"]
    assert ids(view(reader, search="state=trained"))[0] == "slow"
    rows = [key for key, cell in news.items() if key.startswith("rollout_rows.r.") and cell is not None]
    assert len(rows) == 1 and news["exits.0"]["rollouts"] == first["view"]["exits.0"]["rollouts"] + 1
    assert len(json.dumps(news)) < 2000


def test_recipe_names_the_run_and_compiles() -> None:
    code = recipe("a run/1", "http://here")
    compile(code, "recipe", "exec")
    assert 'URL = "http://here/api/v1/runs/a%20run%2F1/rollouts"' in code


def test_seconds_on_an_axis_are_not_read_as_minutes() -> None:
    axes = {panel.key: layout(panel, HOUR, 0, "r")["yaxis"] for panel in PANELS}
    assert axes["ttft"]["ticksuffix"] == " s"
    assert [stop["value"] for stop in axes["ttft"]["tickformatstops"]] == ["~g", ",~f"]
    # Half a sample is 0.5, not "500m"; two thousand are 2k.
    assert [stop["value"] for stop in axes["queue"]["tickformatstops"]] == ["~g", "~s"]
    assert axes["steps"]["ticksuffix"] == "%"
    assert fake.NOW == made.NOW
