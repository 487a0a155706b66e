"""The Rollouts page without a browser: its address, its cells, and what a tick sends."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

from dashboard import callbacks, columns, rollout_records, ticks
from dashboard.columns import grid
from dashboard.figures import layout
from dashboard.live import Views
from dashboard.page import Scope
from dashboard.page import cells as of_page
from dashboard.pages import by_key
from dashboard.panels import PANELS
from dashboard.rollout_asked import CENSUS, Asked, parse
from dashboard.rollout_tables import MANY
from dashboard.rollouts import recipe
from dashboard.turns import ages
from dashboard.updates import MOST, cells
from dashboard.urlstate import Span
from server.query.rollout_types import EventInfo, FunnelBar, RolloutFilter
from tests.dashboard import fake
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader

HOUR = Span(made.NOW - 3600, made.NOW, True)


@pytest.fixture
def reader() -> MemoryReader:
    return made.reader()


def view(reader: MemoryReader, run: str = made.ASYNC, search: str = "", span: Span = HOUR) -> dict[str, Any]:
    page = by_key("rollouts")
    assert page is not None
    return dict(of_page(page, Scope(reader, run, span=span, search=search)))


# ---- the address


def test_address_is_read_whole() -> None:
    query = {"state": "infra_error,stale",
             "environment": "swe <b>", "purpose": "eval", "mixed": "0", "find": "r-1",
             "group": "g/1", "sort": "reward", "order": "asc", "outcome": "mixed,open",
             "rollout": "a&b", "life": "2"}  # fmt: skip
    assert parse("?" + urlencode(query)) == Asked(
        RolloutFilter(("stale", "infra_error"), "swe <b>", "eval", "g/1", "r-1", False),
        "reward", False, ("mixed", "open"), "a&b", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "typed", ["", "state=&sort=&order=&mixed=&life=", "state=no&sort=rowid;drop&mixed=2&life=-1&purpose=x&outcome=y",
              "life=99999999999", "%ff%00=1&&&="],
)  # fmt: skip
def test_address_typed_by_hand_opens_the_page(typed: str) -> None:
    assert parse(typed) == Asked()


def test_in_flight_is_every_state_before_the_end() -> None:
    asked = parse("state=in_flight")
    assert asked.wanted.states == CENSUS and asked.in_flight_only
    assert not parse("state=queued,trained").in_flight_only and not Asked().in_flight_only


# ---- columns of time


@pytest.mark.parametrize(("seconds", "width"), [(900, 60), (3600, 60), (3601, 120), (21_600, 360), (86_400, 1440),
                                                (216_001, 7200), (604_800, 10_800)])  # fmt: skip
def test_columns_are_whole_minutes_or_hours(seconds: float, width: float) -> None:
    found = grid(Span(made.NOW - seconds, made.NOW, True))
    assert found.width == width and found.count <= columns.COLUMNS + 2
    assert found.start <= made.NOW - seconds < found.start + width and found.end - width <= made.NOW < found.end


# ---- weight updates


def published(times: list[float]) -> list[EventInfo]:
    return [EventInfo(at, "weights_published", str(i), "", 10 + i) for i, at in enumerate(times)]


def test_weight_updates_stand_in_columns() -> None:
    columns_of = grid(Span(600, 1200, True))
    found = cells(published([605.0, 630.5, 1190.0]), columns_of)
    assert found == {
        "w.10": [[5.0, 10], [30.5, 11]], "w.19": [[50.0, 12]], "w.width": 60.0, "w.n": 3,
        "w.note": "3 weight updates in this time, v10 to v12",
    }  # fmt: skip


def test_change_points_stand_beside_weight_updates_and_are_none() -> None:
    columns_of = grid(Span(600, 1200, True))
    drift = EventInfo(642.5, "drift", "drift:tool_calls::40", "tool calls x2.5 from step 40 on")
    assert cells([*published([605.0]), drift], columns_of) == {
        "w.10": [[5.0, 10]], "w.d.10": [[42.5, "tool calls x2.5 from step 40 on"]], "w.width": 60.0, "w.n": 1,
        "w.note": "1 weight update in this time",
    }  # fmt: skip


def test_many_weight_updates_are_thinned_and_that_is_said() -> None:
    found = cells(published([2.0 * i for i in range(1800)]), grid(Span(0, 3599, True)))
    drawn = [cell for key, cell in found.items() if key.removeprefix("w.").isdigit()]
    assert len(drawn) == 60 and all(len(cell) == 3 for cell in drawn if isinstance(cell, list))
    assert found["w.n"] == 1800
    assert found["w.note"] == "1,800 weight updates in this time, v10 to v1,809; 180 of them drawn"
    whole = cells(published([18.0 * i for i in range(MOST)]), grid(Span(0, 3599, True)))
    assert sum(len(cell) for key, cell in whole.items() if isinstance(cell, list)) == MOST


def test_weight_updates_are_on_every_page_with_charts(reader: MemoryReader) -> None:
    made.publish(reader, made.BARE, 600)
    for key in ("overview", "rollouts", "sandboxes"):
        page = by_key(key)
        assert page is not None
        found = of_page(page, Scope(reader, made.BARE, span=HOUR))
        assert found["w.note"] == "14 weight updates in this time, v558 to v571"


# ---- cells


def test_head_says_how_far_behind_and_in_what_parts(reader: MemoryReader) -> None:
    found = view(reader)
    assert [found[f"ro.{key}"] for key in ("mode", "head", "num", "tail")] == [
        "ok", "Trained rollouts are ", "2.4 versions", " behind",
    ]  # fmt: skip
    assert found["ro.text"] == "p95 5 · max 6 · bound 6 · those on their way: 2.7 ± 1, estimated"
    assert [found[f"ro.w.{part}"] for part in ("in_flight", "in_group", "in_queue")] == [62.5, 20.8, 16.7]
    assert found["ro.split.n"] == "1.5 in flight + 0.5 in group + 0.4 in queue"


def test_cards_say_their_numbers_and_what_stands_beside(reader: MemoryReader) -> None:
    found = view(reader)
    cards = {key: (found[f"k.ro_{key}.v"], found[f"k.ro_{key}.n"]) for key in
             ("policy", "token", "env", "mixed", "zero", "tail", "age", "infra")}  # fmt: skip
    assert cards == {
        "policy": ("2.4", "p95 5 · max 6"),
        "token": ("1.9", "p95 4.2 · max 5.5"),
        "env": ("0.8", "upper bound · p95 3 · max 4"),
        "mixed": ("31", "12 % of turns on state of an older policy"),
        "zero": ("48", "30 % all solved · 18 % none solved"),
        "tail": ("6.2", "p99 / p50 of tokens · of time 8.1"),
        "age": ("21", "p95 when consumed 2.9 min"),
        "infra": ("1.1", "watch ≥ 5 % · critical ≥ 15 %"),
    }
    # A quotient is no share of a hundred.
    assert found["k.ro_tail.u"] == "×"


def test_unknown_says_what_to_log(reader: MemoryReader) -> None:
    found = view(reader, made.BARE)
    assert found["ro.mode"] == "none" and found["ro.head"] == "No rollout record is read"
    assert found["k.ro_policy.n"] == found["k.ro_env.n"] == made.TOLD
    assert found["k.ro_infra.n"] == "log the exit"
    assert "rt.order" not in found and "ro.f.in" not in found
    reader.put_rollouts(made.BARE, made.made("one", "generating", 5))
    late = view(reader, made.BARE)
    assert (late["ro.mode"], late["ro.head"], late["ro.text"]) == (
        "ok", "Staleness is not known", "Push rollouts, or log version_start and version_consumed",
    )  # fmt: skip


def test_synchronous_run_is_fresh_by_definition(reader: MemoryReader) -> None:
    found = view(reader, made.SYNC)
    assert found["ro.head"] == "Every rollout is fresh" and "0 by definition" in str(found["ro.text"])
    assert found["k.ro_policy.v"] == "0" and found["k.ro_policy.n"] == "synchronous: by definition"
    assert found["hs.none"] == "Synchronous: staleness is 0 by definition." and found["hl.none"] == ""
    # Records that say otherwise are believed.
    reader.append(made.SYNC, made.of("staleness_versions", "versions", level="trajectory", stat="mean"),
                  [(made.NOW, 0.5)])  # fmt: skip
    assert view(reader, made.SYNC)["ro.num"] == "0.5 versions"


def test_funnel_has_exact_numbers_and_marks_what_is_derived(reader: MemoryReader) -> None:
    found = view(reader)
    bars = [found[f"ro.f.{i}"] for i in range(5)]
    rows = [row for row in reader.records(made.ASYNC).rows.values() if row.moved_at >= made.NOW - 3600]
    for name, count, tokens, *_ in bars[:4]:
        mine = [row for row in rows if row.state == name]
        assert (count, tokens) == (len(mine), sum(row.response_tokens or 0 for row in mine))
    assert [bar[0] for bar in bars] == ["trained", "zero_advantage", "stale", "infra_error", "unrecorded"]
    assert bars[0][3:] == [212_400.5, 118.0, 0, None, ""] and bars[2][3:] == [None, None, 0, None, ""]
    assert bars[4] == ["unrecorded", 0, 1_204_000, 31_000.0, 17.22, 1, None, ""]
    assert found["ro.f.in"] == 127


def test_funnel_says_what_is_missing(reader: MemoryReader) -> None:
    kept = reader.records(made.ASYNC)
    kept.why, kept.extra = "dollars are not known: set usd_per_gpu_hour", [FunnelBar("surplus", 0, 0, None, None)]
    found = view(reader, search="purpose=eval")
    assert (found["ro.f.why"], found["ro.f.of"]) == ("Dollars are not known: set usd_per_gpu_hour.", "eval")
    assert found["ro.f.none"] == "No rollout left in this time." and "ro.f.0" not in found


def test_census_has_every_state_in_order(reader: MemoryReader) -> None:
    found = view(reader)
    rows = [found[f"ro.c.{i}"] for i in range(8)]
    assert [row[0] for row in rows] == list(CENSUS)
    assert [row[1] for row in rows] == [0, 0, 26, 11, 2, 80, 8, 0] and sum(row[1] for row in rows) == found["ro.f.in"]
    assert rows[0][2:] == [0, None] and rows[5][2] == 100
    oldest = min(row.moved_at for row in reader.records(made.ASYNC).rows.values() if row.state == "generating")
    assert rows[2][3] == round(oldest)


def test_heat_maps_count_every_rollout_of_the_time(reader: MemoryReader) -> None:
    found = view(reader)
    rows = reader.records(made.ASYNC).rows.values()
    first = grid(HOUR).start
    trained = [row for row in rows if row.state == "trained" and row.moved_at >= first]
    assert found["hs.total"] == len(trained) > 500
    column = grid(HOUR).number(trained[0].moved_at)
    same = [row.staleness for row in trained if grid(HOUR).number(row.moved_at) == column]
    assert found[f"hs.{column}"] == [[value, same.count(value)] for value in sorted({v for v in same if v is not None})]
    assert found["hs.bound"] == 6.0 and found["hc.width"] == 60.0


def test_solve_rates_name_the_productive_share(reader: MemoryReader) -> None:
    found = view(reader)
    solve = found["ro.solve"]
    assert isinstance(solve, list) and len(solve) == 10 and sum(solve) == 235
    assert found["ro.solve.n"] == "34 % of 235 groups solve 20 to 80 %: they have something to learn from."
    assert round(100 * sum(solve[2:8]) / 235) == 34


def test_zero_advantage_by_environment_worst_first(reader: MemoryReader) -> None:
    found = view(reader)
    assert [found[f"ro.z.{i}"] for i in range(3)] == [
        ["math", "61 %", 61.0], ["swe-bench", "42 %", 42.0], ["terminal", "40 %", 40.0],
    ]  # fmt: skip


# ---- tables


def ids(found: dict[str, Any], prefix: str = "rt") -> list[str]:
    return [found[f"{prefix}.r.{handle}"][0] for handle in found[f"{prefix}.order"]]


def test_table_has_the_stragglers_first(reader: MemoryReader) -> None:
    found = view(reader)
    rows = [row for row in reader.records(made.ASYNC).rows.values() if row.moved_at >= grid(HOUR).start]
    slow = sorted((row for row in rows if row.seconds is not None), key=lambda row: -(row.seconds or 0))
    assert ids(found) == [row.rollout_id for row in slow[:50]]
    assert found["rt.n"] == "that moved in the time shown" and found["rt.timed"] == 1


@pytest.mark.parametrize(
    ("search", "words"),
    [("state=in_flight", "in flight, since whenever"), ("find=r-0", "of any time"), ("group=g-0001", "of any time")],
)
def test_what_is_old_is_found(reader: MemoryReader, search: str, words: str) -> None:
    """A straggler that has not moved for hours is what somebody looks for."""
    old = made.made("r-0old", "generating", 30_000, group_id="g-0001")
    reader.put_rollouts(made.ASYNC, old)
    assert "r-0old" not in ids(view(reader, search="state=generating,trained&sort=moved&order=asc"))
    found = view(reader, search=search + "&sort=moved&order=asc")
    assert ids(found)[0] == "r-0old" and found["rt.n"] == words


def test_pages_follow_each_other_by_key(reader: MemoryReader) -> None:
    seen: list[str] = []
    found = view(reader, search="environment=math")
    seen += ids(found)
    after = found["rt.after"]
    while after:
        found = view(reader, search="environment=math&" + urlencode({"after": after}))
        asked, rows, following = found["rt.more"]
        assert asked == after
        seen += [row[0] for row in rows]
        after = following
    rows = [row for row in reader.records(made.ASYNC).rows.values()
            if row.environment == "math" and row.moved_at >= grid(HOUR).start]  # fmt: skip
    assert len(seen) == len(set(seen)) == len(rows) > 500


def test_key_of_another_order_is_an_empty_page(reader: MemoryReader) -> None:
    assert view(reader, search="after=garbage")["rt.more"] == ["garbage", [], ""]


def test_groups_by_outcome(reader: MemoryReader) -> None:
    found = view(reader, search="outcome=none_solved")
    rows = [found[f"rg.r.{handle}"] for handle in found["rg.order"]]
    assert len(rows) == 12 and {row[12] for row in rows} == {"none_solved"} and {tuple(row[8:12]) for row in rows} == {
        (0.0, 0.0, 0.0, 0.0)
    }  # fmt: skip
    assert found["rg.after"]


# ---- one rollout


def test_open_rollout_has_its_timeline(reader: MemoryReader) -> None:
    found = view(reader, search=f"rollout={made.OPEN}&life=1")["rd"]
    assert [span[0] for span in found["spans"]] == ["queued", "boot", "prefill", "decode", "tool", "decode",
        "suspended", "decode", "scoring", "waiting_group", "in_queue"]  # fmt: skip
    first = found["versions"][0][0]
    assert found["versions"] == [[first, 1000], [first + 1, 1200], [first + 2, 1800]]
    # The state was changed by the first turn; a reset makes it young.
    assert [turn[5] for turn in found["turns"]] == [None, 1, 2, None]
    assert len(found["siblings"]) == 7 and found["told"] is True
    assert [version for _, version in found["updates"]] == [first + 1, first + 2, first + 3, first + 4]


def test_a_sandbox_known_by_its_id_alone_is_shown(reader: MemoryReader) -> None:
    kept = reader.records(made.ASYNC).details
    detail = kept[made.OPEN, 1]
    row = replace(detail.row, sandbox_ids=("sbx-9", "sbx-1"))
    kept[made.OPEN, 1] = replace(detail, row=row, turns=({"version": 1, "sandbox_id": "sbx-t"},))
    assert view(reader, search=f"rollout={made.OPEN}&life=1")["rd"]["boxes"] == [
        ["sbx-9", "", "its provider is not collected"], ["sbx-1", "prime", "terminated"],
        ["sbx-t", "", "its provider is not collected"],
    ]  # fmt: skip


def test_a_page_that_does_not_hold_all_says_so(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reader.rollouts
    monkeypatch.setattr(reader, "rollouts", lambda *args, **kwargs: replace(whole(*args, **kwargs), complete=False))
    assert view(reader, search="find=r-0")["rt.n"] == "of any time · " + MANY


def test_nobody_by_that_name(reader: MemoryReader) -> None:
    found = view(reader, search="rollout=nobody")
    assert found["rd.none"] == "nobody" and "rd" not in found
    assert view(reader, search=f"rollout={made.OPEN}&life=7")["rd.none"] == made.OPEN


def test_age_of_a_state() -> None:
    def turn(version: int | None, tools: int = 0, **more: Any) -> dict[str, Any]:
        return {"version": version, "tool_calls": tools, "mutated": None, "sandbox_id": "a"} | more

    told = [
        turn(3, 1),
        turn(5),  # reads on: the state is of version 3
        turn(6, 2, mutated=False),  # a call that changed nothing leaves no trace
        turn(8, 1),
        turn(9),  # oldest change 3, latest 8
        turn(9, sandbox_id="b", forked_from="a"),  # a fork inherits
        turn(10, 1, reset=True),
        turn(11),
        turn(None, 1),
        turn(12, sandbox_id="c"),
    ]
    assert ages(told) == [
        (None, None), (2, 2), (3, 3), (5, 5), (6, 1), (6, 1), (None, None), (1, 1), (None, None), (None, None),
    ]  # fmt: skip


# ---- ticks


def tick(reader: MemoryReader, views: Views, **more: Any) -> dict[str, Any]:
    cursor = reader.cursor(made.ASYNC)
    pull = {"page": 1, "key": "rollouts", "run": made.ASYNC, "cursor": cursor, "have": "", "n": 1,
            "span": [HOUR.start, HOUR.end, True]}  # fmt: skip
    looking: callbacks.Looking = lambda run, everything: Scope(reader, run, everything)  # noqa: E731
    return ticks.tick(looking, views, pull | more)


def test_tick_sends_what_changed(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_records, "KEEP_SECONDS", 0)
    views = Views()
    first = tick(reader, views, ask="state=trained")
    assert first["view"]["ro.mode"] == "ok"
    idle = tick(reader, views, ask="state=trained", have=first["have"])
    assert "view" not in idle and len(json.dumps(idle)) < 120
    # One straggler comes: its row, the order, and what is counted.
    slow = made.made("slow", "trained", 0, seconds=9000.0, response_tokens=5000, staleness=5, consumed=570)
    reader.put_rollouts(made.ASYNC, slow)
    news = tick(reader, views, ask="state=trained", have=first["have"])["view"]
    assert ids(view(reader, search="state=trained"))[0] == "slow"
    rows = [key for key, cell in news.items() if key.startswith("rt.r.") and cell is not None]
    assert len(rows) == 1 and news["ro.f.0"][1] == first["view"]["ro.f.0"][1] + 1
    assert len(json.dumps(news)) < 2000


def test_hostile_names_are_data(reader: MemoryReader) -> None:
    names = ["<script>alert(1)</script>", "\u202egnp.exe", "🦊" * 60, "x" * 200, "__proto__", "a/b?c#d", "\ud800"]
    rows = [made.made(name, "infra_error", 1, seconds=90_000.0 - i, error=name, environment=name, engine=name)
            for i, name in enumerate(names)]  # fmt: skip
    reader.put_rollouts(made.ASYNC, *rows)
    found = view(reader, search="state=infra_error")
    assert ids(found)[: len(names)] == names
    assert json.loads(json.dumps(found))["rt.order"] == found["rt.order"]


def test_lives_of_one_id_are_two_rows(reader: MemoryReader) -> None:
    for life in (1, 2):
        reader.put_rollouts(made.ASYNC, replace(made.made("twice", "stale", 1, seconds=90_000.0), life=life))
    assert ids(view(reader))[:2] == ["twice", "twice"]


def test_recipe_names_the_run_and_compiles() -> None:
    code = recipe("a run/1", "http://here")
    compile(code, "recipe", "exec")
    assert 'URL = "http://here/api/v1/runs/a%20run%2F1/rollouts"' in code


def test_seconds_on_an_axis_are_not_read_as_minutes() -> None:
    axes = {panel.key: layout(panel, HOUR, 0, "r")["yaxis"] for panel in PANELS}
    for key in ("ttft", "itl"):
        assert axes[key]["ticksuffix"] == "s" and [stop["value"] for stop in axes[key]["tickformatstops"]] == [
            "~s",
            ",~f",
        ]
    assert "tickformatstops" not in axes["queue"] and axes["steps"]["ticksuffix"] == "%"
    assert fake.NOW == made.NOW
