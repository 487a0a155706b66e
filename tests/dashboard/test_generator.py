"""The Generator page as cells: the answer, who is sick, room in the caches, the heat map, and what is unknown."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.pages.generator import engines
from dashboard.shell.page import Scope
from dashboard.state.url import Span
from server.query.types import EngineInfo
from tests.dashboard import fake
from tests.dashboard import fake_actors as actors
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

HOUR = Span(actors.NOW - 3600, actors.NOW, follow=True)


@pytest.fixture
def reader() -> MemoryReader:
    return actors.reader(600)


def cells(reader: MemoryReader, run: str = actors.RUN, search: str = "", span: Span | None = HOUR) -> dict[str, Any]:
    page = by_key("generator")
    assert page is not None
    return shown(of_page(page, Scope(reader, run, span=span, search=search)))


def rows(found: dict[str, Any], prefix: str) -> list[Any]:
    """The values of the rows, without their names."""
    return [list(found[f"{prefix}{i}"].values()) for i in range(200) if f"{prefix}{i}" in found]


def test_what_does_not_work_is_said_first(reader: MemoryReader) -> None:
    found = cells(reader)
    expected = {
        "head.generator.before": "", "head.generator.figure": "vllm-3", "head.generator.after": " is hung (1 of 8)",
        "head.generator.state": "critical",
        "card.ge_up.figure": "7", "card.ge_up.note": "of 8 · 1 hung", "card.ge_up.word": "Critical",
        "card.ge_kv.note": "fullest 95%", "card.ge_prefix.figure": "63", "card.ge_ttft.note": "p50 0.8 s",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["head.generator.text"].startswith(
        "5 min means: 426 requests running · 31.5 waiting · KV cache 91% full · 48"
    )
    assert rows(found, "engine_states.") == [["7", "up", "ok"], ["1", "hung", "critical"]]


def test_engines_held_for_a_weight_update_are_up(reader: MemoryReader) -> None:
    for state, value in (("up", 1.0), ("paused", 6.0)):
        reader.append(actors.RUN, actors.one("generator_engines", "engines", state=state), [(actors.NOW, value)])
    found = cells(reader)
    assert (found["card.ge_up.figure"], found["card.ge_up.note"]) == ("7", "of 8 · 1 hung · 6 paused")


def test_verdict_answers_where_all_work(reader: MemoryReader) -> None:
    for state, value in (("up", 8.0), ("hung", 0.0)):
        reader.append(actors.RUN, actors.one("generator_engines", "engines", state=state), [(actors.NOW, value)])
    for name, labels in (("generator_engine_state", {"engine": "0", "state": "hung"}), ("generator_frozen", {})):
        gone = actors.one(name, "", "not_applicable", target=actors.FROZEN, **labels)
        reader.silence(actors.RUN, gone)
    found = cells(reader)
    assert (found["head.generator.before"], found["head.generator.figure"], found["head.generator.state"]) == (
        "The engines are the limit: ",
        "KV capacity",
        "critical",
    )
    reader.set_verdict(actors.RUN, actors.VERDICT | {"outcome": "trainer_bound", "cause": "compute"})
    found = cells(reader)
    assert (found["head.generator.before"], found["head.generator.figure"], found["head.generator.state"]) == (
        "The engines are not the limit",
        "",
        "ok",
    )
    assert found["head.generator.text"].startswith("The run is trainer-bound (compute) · 5 min means: ")
    reader.set_verdict(actors.RUN, None)
    assert cells(reader)["head.generator.before"] == "The KV cache is "


def test_the_sick_are_named_with_numbers(reader: MemoryReader) -> None:
    found = cells(reader)
    assert rows(found, "outliers.") == [
        ["vllm-3", "no tokens for over a minute with requests running", "critical"],
        ["vllm-5", "tokens/s per request 40, median 120 (33%)", "watch"],
        ["vllm-6", "running 6, median 60 (10%)", "watch"],
    ]
    assert (found["outliers.p"], found["outliers.s"], found["outliers.none"], found["outliers.more"]) == (
        "3 of 8",
        "critical",
        "",
        "",
    )


def fleet(*found: EngineInfo) -> list[engines.Engine]:
    return engines._compared([engines.Engine(info, "up") for info in found])


def test_each_way_of_being_unlike_the_others() -> None:
    alike = [actors.engine(number) for number in range(5)]
    odd = {
        "KV cache 96%, median 80%": actors.engine(5, mean_kv_ratio=0.96),
        "running 130, median 60 (2.17×)": actors.engine(5, mean_running=130.0, tokens_per_second=15600.0),
        "waiting 30, median 4 (7.5×)": actors.engine(5, mean_waiting=30.0),
        "preemptions per minute 12, median 1.5 (8×)": actors.engine(5, preemptions_per_minute=12.0),
        "serves v410; newest is v412": actors.engine(5, version=410.0),
    }
    for words, info in odd.items():
        assert [row[1] for one in fleet(*alike, info) for row in engines._complaints(one)] == [words]
    # Twice of next to nothing, a full cache among full ones, and what nobody tells are nothing to look at.
    for info in (
        actors.engine(5, preemptions_per_minute=2.9), actors.engine(5, mean_kv_ratio=0.84),
        actors.engine(5, mean_running=None, tokens_per_second=None, version=None, mean_kv_ratio=None),
    ):  # fmt: skip
        assert not any(one.sick for one in fleet(*alike, info))
    assert not fleet(actors.engine(1, mean_running=0.0))[0].odd


def test_words_where_nobody_is_sick(reader: MemoryReader) -> None:
    assert engines._none(fleet(actors.engine(1), actors.engine(2, mean_running=66.0))) == (
        "60 to 66 running requests per engine (5 min mean)."
    )
    assert engines._none(fleet(actors.engine(1))) == "Only one engine: nothing to compare."
    bare = cells(reader, actors.BARE)
    assert (
        bare["outliers.none"] == bare["engine_rows.none"].replace("has told", "tells") == "No engine has reported yet."
    )
    assert bare["engine_heat.none"] == "No engine has reported yet: add the engines' /metrics as targets."
    assert bare["head.generator.before"] == "No engine is monitored" and bare["head.generator.state"] == "unknown"
    assert bare["card.ge_running.figure"] == "–" and bare["card.ge_running.note"] == "no engine is a target yet"
    assert bare["chart.gload.state"] == "unknown" and bare["chart.gload.why"] == actors.NO_ENGINES


def test_states_of_engines(reader: MemoryReader) -> None:
    down = structs.replace(
        fake.target("vllm-1", "generator", "vllm", up=False, error="connection refused"), run=actors.RUN
    )
    never = fake.target("vllm-9", "generator", "vllm", up=False, error="no route")
    reader.set_targets(actors.RUN, down, never, *(fake.target(f"vllm-{n}", "generator", "vllm") for n in range(2, 8)))
    reader.put_engines(actors.RUN, actors.engine(2, held="paused"))
    silent = actors.one(
        "generator_engine_state", "", engine="1", replica="10.0.0.4:80", state="silent", target="router"
    )
    reader.append(actors.RUN, silent, [(actors.NOW, 1.0)])
    found = engines.fleet(Scope(reader, actors.RUN, span=HOUR))
    assert [(one.name, one.state, one.error) for one in found if one.state != "up"] == [
        ("vllm-1", "down", "connection refused"), ("vllm-9", "down", "no route"), ("vllm-3", "hung", ""),
        ("router/10.0.0.4:80:1", "silent", ""), ("vllm-2", "paused", ""),
    ]  # fmt: skip
    # Of a time that is over only what was told then is known, and nobody is judged by what holds now.
    then = engines.fleet(Scope(reader, actors.RUN, span=Span(actors.NOW - 7200, actors.NOW - 3600, follow=False)))
    assert {one.state for one in then} == {"up", "paused"} and len(then) == 8


def test_room_in_the_caches_and_when_it_ends(reader: MemoryReader) -> None:
    found = cells(reader)
    ceiling = rows(found, "kv_room.")[0]
    assert ceiling[:2] == ["KV ceiling", "504"] and ceiling[2] == 100.0
    assert [row[0] for row in rows(found, "kv_room.")] == [
        "KV ceiling", "running now", "running and waiting", "configured in flight",
    ]  # fmt: skip
    assert rows(found, "kv_room.")[3] == ["configured in flight", "480", 95.2, "load"]
    assert found["kv_room.next"] == "Reached in 2.25 h (95% interval: 80 min to 5 h)"
    assert (found["kv_room.why"], found["kv_room.s"]) == ("At 3,100 tokens a sequence", "watch")
    zero = actors.one(
        "kv_concurrency_limit_forecast_seconds", "seconds", why="crossed: 470 fit, against 480", bound="mid"
    )
    reader.append(actors.RUN, zero, [(actors.NOW, 0.0)])
    reader.append(actors.RUN, actors.one("kv_concurrency_limit", "requests"), [(actors.NOW, 470.0)])
    found = cells(reader)
    assert (found["kv_room.next"], found["kv_room.why"], found["kv_room.s"]) == (
        "Already reached",
        "470 fit, against 480",
        "critical",
    )
    assert rows(found, "kv_room.")[3] == ["configured in flight", "480", 100.0, "over"]
    assert cells(reader, actors.BARE)["kv_room.none"] == "KV ceiling not reported"


def test_heat_map_has_a_column_a_minute_and_the_sick_first(reader: MemoryReader) -> None:
    found = cells(reader)
    names = [row["name"] for row in found["engine_heat.names"]]
    assert names == ["vllm-3", "vllm-5", "vllm-6", "vllm-0", "vllm-1", "vllm-2", "vllm-4", "vllm-7"]
    assert [row["state"] for row in found["engine_heat.names"]][:4] == ["hung", "odd", "odd", "up"]
    columns = {
        key: cell for key, cell in found.items() if key.startswith("engine_heat.") and key.rpartition(".")[2].isdigit()
    }
    # Ten minutes are stored, the rest of the hour is blank, not zero.
    assert len(columns) == 11 and found["engine_heat.width"] == 60 and found["engine_heat.top"] == 1.0
    last = columns[f"engine_heat.{int((actors.NOW - 60) // 60)}"]
    assert last == pytest.approx([0.8, 0.8, 0.1, 0.8, 0.8, 0.8, 0.8, 0.8], abs=0.02)


def test_heat_map_of_something_else(reader: MemoryReader) -> None:
    found = cells(reader, search="?heat=preemptions")
    column = found[f"engine_heat.{int((actors.NOW - 60) // 60)}"]
    # In the order of the rows; the last engine is not reported.
    assert column == [3, 5, 6, 0, 1, 2, 4, None] and found["engine_heat.top"] == 6
    assert (found["engine_heat.metric"], found["engine_heat.unit"]) == ("preemptions", "per minute")
    assert cells(reader, search="?heat=waiting")["engine_heat.none"] == "No engine reported waiting in this range."
    assert cells(reader, search="?heat=<script>")["engine_heat.metric"] == "kv"


def test_a_thousand_engines_are_64_rows_and_the_outliers_are_among_them(reader: MemoryReader) -> None:
    many = [actors.engine(number) for number in range(20, 1020)]
    many[777] = actors.engine(797, mean_running=3.0, tokens_per_second=360.0)
    reader.put_engines(actors.RUN, *many)
    found = cells(reader)
    assert len(rows(found, "engine_rows.")) == len(found["engine_heat.names"]) == 64
    assert [row["name"] for row in found["engine_heat.names"]][:4] == ["vllm-3", "vllm-5", "vllm-6", "vllm-797"]
    assert found["engine_heat.more"] == "64 of 1,008 engines shown, outliers first"
    assert found["engine_rows.more"] == "and 944 more, all up and without outliers"
    assert len(msgspec.json.encode(of_page(by_key("generator"), Scope(reader, actors.RUN)))) < 30_000


def test_table_says_what_is_told_and_nothing_else(reader: MemoryReader) -> None:
    reader.put_engines(actors.RUN, EngineInfo('vllm-7{engine="1"}', "vllm-7", {"engine": "1"}, last_ts=actors.NOW - 1))
    found = {row[0]: row for row in rows(cells(reader), "engine_rows.")}
    assert found["vllm-0"] == [
        "vllm-0", "up", "ok", "61 of 128", "4", "81%", "7,200", "63%", "1.5", "v412", round(actors.NOW - 3), [], "",
    ]  # fmt: skip
    assert found["vllm-5"][2] == "watch" and found["vllm-5"][11] == ["tokens/s per request"]
    assert found["vllm-7:1"][3:10] == ["", "", "", "", "", "", ""]


def test_a_fleet_is_read_once_for_all_browsers(reader: MemoryReader) -> None:
    scope = Scope(reader, actors.RUN, span=HOUR)
    page = by_key("generator")
    assert page is not None
    for _ in range(3):
        of_page(page, Scope(reader, actors.RUN, span=HOUR, shared=scope.shared))
    assert reader.calls.count(f"engines {actors.RUN}") == reader.calls.count(f"engine_cells {actors.RUN}") == 1


def test_an_engine_that_changes_is_all_that_a_tick_sends(reader: MemoryReader) -> None:
    before = cells(reader)
    reader.put_engines(actors.RUN, actors.engine(0, running=99.0))
    after = cells(reader)
    assert [key for key in after if before[key] != after[key]] == ["engine_rows.3"]


def test_the_speed_of_an_engine_against_its_requests(reader: MemoryReader) -> None:
    found = cells(reader)
    assert (found["engine_speed"], found["engine_speed.none"][:35], found["generator.try"]) == (
        None,
        "No request runs.",
        "",
    )
    reader.set_verdict(actors.RUN, actors.VERDICT | {"engine_speed": actors.SPEED, "advice": [actors.MORE]})
    found = cells(reader)
    drawn = found["engine_speed"]
    assert (drawn["most"], drawn["fitted"], len(drawn["x"])) == (128, True, 33)
    # 60 / (0.017 (1 + 60 / 80)) and 120 / (0.017 (1 + 120 / 80)).
    assert drawn["marks"] == [["now", 60.0, 2016.8], ["best", 120.0, 2823.5]]
    assert [row[-1] for row in drawn["laws"]] == [1997.5, 2895.9, 3871.0]
    assert (
        "fitted to the points" in found["engine_speed.note"]
        and "axis ends at the requests that fit" in found["engine_speed.note"]
    )
    assert found["generator.next"] == "Try next: Raise the rollouts in flight from 480 to 960. Gain 1.1× to 1.6×."
    assert found["generator.try"] == "concurrency=960"
    unknown = actors.SPEED | {"alone": None, "points": [], "fitted": False}
    reader.set_verdict(actors.RUN, actors.VERDICT | {"engine_speed": unknown})
    assert cells(reader)["engine_speed.none"].startswith("No point yet")
