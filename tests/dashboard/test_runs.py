"""The Runs, Targets and Help pages as cells, with numbers by hand; and that a list of all runs is one read."""

import re
from typing import Any

import pytest
from msgspec import structs

from dashboard.callbacks import build, tick
from dashboard.pages import PAGES
from dashboard.pages.help import data as help_page
from dashboard.pages.runs import data as runs_data
from dashboard.pages.sources import data as targets_data
from dashboard.shell.page import RuleCache, Scope
from dashboard.shell.shortcuts import SHORTCUTS
from dashboard.state import deltas
from dashboard.state.cache import TimedCache
from server.query.run_state import RunState
from server.query.signals import Coverage
from server.query.types import RunInfo, RunNow, SignalInfo, TargetTrust
from tests.dashboard import fake
from tests.dashboard import fake_fleet as fleet
from tests.dashboard.memory_reader import MemoryReader

NOW = fake.NOW


def scope(reader: MemoryReader, search: str = "", run: str = fleet.STAR) -> Scope:
    return Scope(reader, run, True, search=search)


def cell(found: Any, key: str) -> Any:
    return found[key]


# ---- navigation


def test_pages_are_in_the_order_of_the_navigation() -> None:
    assert [page.title for page in PAGES if page.kind == "page"] == [
        "Overview", "Sandboxes", "Generator", "Rollouts", "Trainer", "Alerts", "Runs",
    ]  # fmt: skip
    assert [(page.title, page.kind) for page in PAGES[7:]] == [
        ("Explore", "tool"), ("Sources", "tool"), ("What-if", "drawer"), ("Help", "drawer"),
    ]  # fmt: skip


def test_every_page_of_the_keyboard_is_one() -> None:
    keys = [key for key, _ in SHORTCUTS]
    assert len(set(keys)) == len(keys)
    assert [key[-1] for key in keys if key.startswith("g ")] == list("osgrtauexpwh")


# ---- list


def test_a_row_says_what_holds_the_run_back() -> None:
    one = RunNow(
        RunInfo("a", "slime", "async", "running", NOW - 7200.4, NOW, {}),
        fleet.verdict("generator_bound", "kv_capacity", 0.9, NOW - 720.3, "Full"),
        (
            fleet.number(0.624, "trainer_wait_ratio", "ratio", "critical"),
            # Of a million tokens that are trained on, whatever else a million of costs.
            fleet.number(0.5, "cost_usd_per_million_tokens", "USD", of="prefill"),
            fleet.number(3.456, "cost_usd_per_million_tokens", "USD", of="trained"),
        ),
        1204, NOW, 2, 3,
    )  # fmt: skip
    found = runs_data.row(one, [fleet.alert("a"), structs.replace(fleet.alert("a"), muted="silenced by me")])
    assert (found["verdict"], found["colour"], found["cause"]) == ("Generator-bound", "generator", "KV capacity")
    assert (found["sure"], found["since"], found["about"]) == ("high confidence", round(NOW - 720), "slime · async")
    assert found["wait"] == {"text": "62%", "state": "critical", "why": "", "value": 0.624}
    assert found["cost"] == {"text": "3.46", "state": "ok", "why": "", "value": 3.456}
    # Nobody told of it: a dash, and no number to be sorted by.
    assert found["stale"] == {"text": "–", "state": "unknown", "why": "", "value": None}
    assert (found["step"], found["fire"], found["grave"]) == (1204, 1, "critical")
    assert (found["up"], found["down"]) == ("2 of 3 up", 1)


def test_what_is_over_is_missed_by_nobody() -> None:
    info = RunInfo("a", "unknown", "", "finished", None, None)
    found = runs_data.row(
        RunNow(info, fleet.verdict("balanced", None, 0.8, NOW, ""), (), None, None, 0, 5, RunState("finished")), []
    )
    assert (found["since"], found["up"], found["down"], found["start"]) == (None, "", 0, None)
    assert (found["about"], found["grave"]) == ("", "")


def test_a_run_is_live_only_while_it_is_collected() -> None:
    reader = fleet.reader()
    reader.set_state(fleet.STAR, RunState("not_collected", NOW - 600, NOW - 600))
    reader.set_state(fleet.SLOW, RunState("catching_up", NOW - 9, NOW - 5, 0.41, 38.0, NOW))
    rows = {row["name"]: row for row in _rows(reader)}
    star, slow = rows[fleet.STAR], rows[fleet.SLOW]
    assert star["state"] == {"name": "not_collected", "word": "Not collected", "tone": "watch", "says": ""}
    # None of its targets is down and none of its alerts fires: nobody looks.
    assert (star["up"], star["down"], star["fire"], star["dark"], star["since"]) == ("", 0, 0, True, None)
    catching_up = {"name": "catching_up", "word": "Catching up", "tone": "unknown", "says": "41% · 38 s left"}
    assert (slow["state"], slow["fire"]) == (catching_up, 0)
    assert rows[fleet.DEAD]["state"] == {"name": "finished", "word": "Crashed", "tone": "critical", "says": ""}
    found = runs_data.cells(scope(reader))
    assert (found["runs.head"], found["runs.sub"]) == (
        "2 live runs",
        "1 catching up · 1 not collected · 2 finished or crashed · Select two to eight runs to compare",
    )
    assert "run_state" not in found
    for name in (fleet.SYNC, fleet.EVIL):
        reader.set_state(name, RunState("stale"))
    assert runs_data.cells(scope(reader))["run_state"] == {"name": "none", "word": "No live run"}


def test_not_applicable_is_no_dash_and_no_zero() -> None:
    rows = {row["name"]: row for row in _rows(fleet.reader())}
    none = {"text": "n/a", "state": "not_applicable", "why": "a synchronous trainer does not wait", "value": None}
    assert rows[fleet.SYNC]["wait"] == none
    assert rows[fleet.SYNC]["stale"]["text"] == "0"
    assert rows[fleet.EVIL]["wait"] == {"text": "–", "state": "unknown", "why": "log <b>time/wait</b>", "value": None}
    assert rows[fleet.EVIL]["verdict"] == "No verdict yet"


def _rows(reader: MemoryReader) -> list[dict[str, Any]]:
    cells = runs_data.cells(scope(reader))
    return [cell(cells, key) for key in cells if key.rpartition(".")[2].isdigit()]


def test_two_hundred_runs_are_one_read_for_all_browsers() -> None:
    reader, shared = fleet.reader(200), TimedCache()
    for _ in range(5):
        found = runs_data.cells(Scope(reader, fleet.STAR, True, shared=shared))
    assert reader.calls == ["fleet"]
    assert len([key for key in found if key.rpartition(".")[2].isdigit()]) == 206
    # 3 of the story live, as do the sync and the evil one; of the others each third: 0, 3, .. 198.
    assert found["runs.head"] == f"{4 + 67} live runs"
    assert found["newest"] == round(NOW)


def test_only_what_moved_is_sent_again() -> None:
    reader, views = fleet.reader(20), deltas.SentViews()
    first = views.remember(runs_data.cells(scope(reader)))
    reader.append(fleet.STAR, fleet.number(0, "reward", "reward", stat="mean"), [(NOW + 5, 0.5)])
    changed, fields = views.changes(first, runs_data.cells(scope(reader)))
    assert (set(changed), fields) == ({"runs.at", "newest"}, {})


def test_without_a_run_these_pages_open_all_the_same() -> None:
    reader, views = MemoryReader(NOW, fleet.INFOS), deltas.SentViews()

    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything, None, RuleCache(), TimedCache())

    for path in ("runs", "help"):
        boot = build(look, views, {"path": path, "search": "", "n": 1})[0]
        assert "error" not in boot and boot["run"] == "" and boot["over"] is False
        delta = tick(look, views, {"page": 1, "key": path, "run": "", "all": True, "have": boot["have"]})
        assert "view" not in delta and "reset" not in delta
    assert "No run yet" in build(look, views, {"path": "", "search": "", "n": 1})[0]["error"]


def test_a_tick_of_the_list_reads_no_single_run() -> None:
    reader = fleet.reader(3)

    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything, None, RuleCache(), TimedCache())

    boot = build(look, deltas.SentViews(), {"path": "runs", "search": f"?run={fleet.STAR}", "n": 1})[0]
    assert (boot["all"], boot["run"]) == (True, fleet.STAR)
    tick(look, deltas.SentViews(), {"page": 1, "key": "runs", "run": fleet.STAR, "all": True, "have": ""})
    assert reader.calls == ["fleet", "fleet"]


# ---- targets


def health(up: bool, error: str = "", age: float | None = 3.0, **more: Any) -> TargetTrust:
    return fleet.target("r", "vllm-0", up, error, age, **more)


@pytest.mark.parametrize(
    ("target", "state", "healthy"),
    [
        (health(True), "up", True),
        (health(True, "old answer"), "up", False),
        (health(True, dropped=1), "up", False),
        (health(False, "refused"), "down", False),
        (health(False, "refused", None), "down", False),
        (health(False, "", None), "waiting", False),
        (health(False, "no answer", None, kind="unknown"), "waiting", False),
        (structs.replace(health(False, "left"), gone_since=NOW - 60), "gone", True),
    ],
)
def test_states_of_a_target(target: TargetTrust, state: str, healthy: bool) -> None:
    assert (targets_data.state(target), targets_data.healthy(target)) == (state, healthy)


def test_of_a_thousand_targets_the_unhealthy_are_drawn() -> None:
    reader = MemoryReader(NOW, fleet.INFOS)
    for run in range(4):
        reader.add_run(f"r{run}")
        rows = [fleet.target(f"r{run}", f"e{i}", i % 100 != 7, "refused" if i % 100 == 7 else "") for i in range(250)]
        reader.set_targets(f"r{run}", *rows)
    found = targets_data.cells(scope(reader, run="r0"))
    drawn = [cell(found, key) for key in found if re.fullmatch(r"targets\.\d+", key)]
    # Three of each run's 250 are down: numbers 7, 107 and 207.
    assert [row["state"] for row in drawn].count("down") == 12 and {row["state"] for row in drawn[:12]} == {"down"}
    assert [row["target"] for row in drawn[:3]] == ["e7", "e107", "e207"]
    assert len(drawn) == targets_data.MOST == len(cell(found, "targets.n"))
    assert found["targets.more"] == "800 more are not shown, none in worse health. Use the filter."
    assert (found["targets.head"], found["targets.s"]) == ("988 of 1,000 targets up", "watch")
    only = targets_data.cells(scope(reader, "unhealthy=1&find=R2", run="r0"))
    rows = [cell(only, key) for key in only if re.fullmatch(r"targets\.\d+", key)]
    assert [(row["run"], row["target"]) for row in rows] == [("r2", "e7"), ("r2", "e107"), ("r2", "e207")]
    assert only["targets.head"] == "988 of 1,000 targets up" and only["targets.more"] == ""


def test_the_chip_and_the_page_count_the_same_targets() -> None:
    """One of the run's three does not answer; those of other runs are on the page on request only."""
    reader = fleet.reader()

    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything, None, RuleCache(), TimedCache())

    def opened(search: str) -> Any:
        return build(look, deltas.SentViews(), {"path": "sources", "search": f"?run={fleet.STAR}{search}"})[0]["view"]

    found = opened("")
    assert [found[key] for key in ("header.src", "header.src.w", "header.src.s")] == ["2/3", ", 1 down", "watch"]
    assert (found["targets.head"], found["targets.s"], found["targets.sub"]) == (
        "2 of 3 targets up",
        "watch",
        "1 down · 1 run",
    )
    every = opened("&all=1")
    assert (every["header.src"], every["targets.head"]) == ("2/3", "4 of 6 targets up")
    reader.set_state(fleet.STAR, RunState("finished"))
    over = opened("")
    assert [over[key] for key in ("header.src", "header.src.w", "header.src.s")] == ["3", ", not read now", "unknown"]
    assert (over["targets.head"], over["targets.s"]) == ("3 targets, not read now", "unknown")
    assert [row["state"] for key, row in over.items() if re.fullmatch(r"targets\.\d+", key)] == ["unread", "up", "up"]
    setup = opened("&tab=setup")
    assert setup["sources.tab"] == "setup" and "targets.head" not in setup and setup["preflight.mode"] == "nc"


def test_the_ways_back_from_an_address_that_is_wrong() -> None:
    reader = fleet.reader()

    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything, None, RuleCache(), TimedCache())

    def opened(path: str, search: str) -> Any:
        found = build(look, deltas.SentViews(), {"path": path, "search": search})[0]
        return found["error"], found["back"]

    newest = reader.runs.all()[0].name
    run = {"text": "Open " + newest, "page": "alerts", "query": f"?run={newest}&range=6h"}
    assert opened("alerts", "?run=gone&range=6h") == ("No run is named “gone”.", run)
    error, back = opened("trainer", f"?run={fleet.STAR}&range=90m")
    assert error == "“90m” is not a time range. Ranges: 15m, 1h, 6h, 24h, 7d, all."
    assert back == {"text": "Show the last hour", "page": "trainer", "query": f"?run={fleet.STAR}&range=1h"}
    back = {"text": "Go to Overview", "page": "", "query": ""}
    assert opened("nowhere/", "") == ("There is no page at /nowhere.", back)
    assert opened("x" * 500, "") == (f"There is no page at /{'x' * 120}.", back)


def test_keys_are_told_of_the_target_that_was_asked_for() -> None:
    reader = fleet.reader()
    found = targets_data.cells(scope(reader, f"of={fleet.STAR}&keys=trainer-log"))
    assert found["targets.keys"] == {
        "run": fleet.STAR, "target": "trainer-log", "more": 0,
        "keys": [{"key": "perf/new_key", "count": 12}, {"key": "rollout/<b>x</b>", "count": 3}],
    }  # fmt: skip
    assert "targets.keys" not in targets_data.cells(scope(reader, f"of={fleet.SLOW}&keys=absent"))


def test_coverage_says_what_to_log() -> None:
    found = targets_data.cells(scope(fleet.reader(), run=fleet.SYNC))
    assert found["coverage.run"] == fleet.SYNC
    groups = {group: [row["signal"] for row in targets_of(found, group)] for group in targets_data.GROUPS}
    assert groups == {
        "lack": ["generator_tokens_per_second", "reward", "cost_usd_per_million_tokens"],
        "silent": [],
        "has": ["staleness_versions"],
        "none": ["trainer_wait_ratio"],
    }
    assert targets_of(found, "none")[0]["text"] == "a synchronous trainer does not wait"
    # verl logs rewards by itself; engines do not depend on the framework.
    engines, reward, _ = ((row["text"], row["can"]) for row in targets_of(found, "lack"))
    assert (reward, engines) == (("log rewards", "verl can report it"), ("add engines", ""))


def targets_of(found: Any, group: str) -> list[Any]:
    return [found[key] for key in found if key.startswith(f"coverage.{group}.")]


def test_a_signal_that_had_a_value_is_silent_and_not_lacking() -> None:
    info = fleet.INFOS[0]
    lost = fake.signal(info.name, unit="ratio", state="unknown", why="no step for 3 h; the last value was 0.66")
    assert (
        targets_data.covered([lost], {info.name: info})["silent"][0]["text"]
        == "no step for 3 h; the last value was 0.66"
    )
    two = [fleet.number(1, info.name, "ratio", by="a"), fleet.number(2, info.name, "ratio", by="b"), lost]
    assert targets_data.covered(two, {info.name: info})["has"][0]["text"] == "2 series"


# ---- help


def test_a_signal_is_explained_by_its_own_description() -> None:
    cells = {"a": "native", "b": "derived", "c": "-", "d": "n/a"}
    hints = {"trainer_wait_ratio": {"c": "set log_wait"}}
    known = Coverage(("a", "b", "c", "d"), {"trainer_wait_ratio": cells}, hints)
    assert help_page.row(fleet.INFOS[0], known) == {
        "name": "trainer_wait_ratio",
        "title": "Trainer wait",
        "actor": "Trainer",
        "unit": "ratio",
        "help": "Share of the step the trainer waits.",
        "bands": "watch ≥ 15% · critical ≥ 40%",
        "cadence": "one point per trainer step",
        "inputs": ("trainer_wait_seconds", "trainer_step_seconds"),
        "enable": "log the wait",
        "reported": [{"framework": "a", "text": "reported directly"}, {"framework": "b", "text": "derived"}],
        "not_applicable": ["d"],
        "hints": [{"framework": "c", "text": "set log_wait"}],
        "frameworks": 4,
    }


def test_bands_of_what_is_bad_when_low() -> None:
    low = SignalInfo("x", "X", "batches", "", "", "queue", 1.0, 0.6, higher_is_worse=False)
    assert help_page.bands(low) == "watch < 1 batches · critical < 0.6 batches"
    assert help_page.bands(SignalInfo("x", "X", "", "", "", "queue")) == ""
