"""Alerts as cells: order, numbers, words, and what a tick costs."""

import json
from typing import Any

import pytest
from msgspec import structs

from dashboard import callbacks
from dashboard.callbacks import cells as of_page
from dashboard.pages import PAGES, by_key, by_path
from dashboard.pages.alerts import data as alerts_data
from dashboard.shell.page import RuleCache, Scope
from dashboard.state.deltas import SentViews
from server.query.types import RuleInfo
from tests.dashboard import fake, fake_alerts
from tests.dashboard.memory_reader import MemoryReader


@pytest.fixture
def reader() -> MemoryReader:
    return fake_alerts.fill(fake.reader(600))


def cells(reader: MemoryReader, key: str = "alerts", everything: bool = False, **more: Any) -> dict[str, Any]:
    page = by_key(key)
    assert page is not None
    return of_page(page, Scope(reader, fake.RICH, everything, **more))


def row(found: dict[str, Any], alert: Any, part: str = "") -> Any:
    return found[f"alert.{alerts_data.key(alert)}{part}"]


def test_lists_hold_each_alert_once_the_gravest_first(reader: MemoryReader) -> None:
    found = cells(reader)
    assert found["alerts.firing"] == [alerts_data.key(fake_alerts.STARVED), alerts_data.key(fake_alerts.FULL)]
    assert found["alerts.pending"] == [alerts_data.key(fake_alerts.WAITS)]
    assert set(found["alerts.muted"]) == {alerts_data.key(fake_alerts.STALE), alerts_data.key(fake_alerts.DOWN)}
    assert len(found["alerts.history"]) == 5
    assert (found["alerts.head"], found["header.firing"], found["alerts.s"]) == ("2 alerts firing", 2, "critical")
    assert found["alerts.sub"] == "1 pending · 2 muted · 17 rules active · 8 without data"


def test_value_stands_beside_the_limit_in_the_same_unit(reader: MemoryReader) -> None:
    found = cells(reader)
    starved, full = row(found, fake_alerts.STARVED), row(found, fake_alerts.FULL)
    assert (row(found, fake_alerts.STARVED, ".v"), starved["limit"], starved["sev"]) == ("74%", "> 40%", "Critical")
    assert (row(found, fake_alerts.FULL, ".v"), full["limit"], full["s"]) == ("98%", "≥ 97%", "watch")
    assert row(found, fake_alerts.WAITS)["for"] == "10m"
    assert "for" not in starved
    assert row(found, fake_alerts.STALE, ".v") == "6.4 versions"


@pytest.mark.parametrize(
    ("expression", "unit", "value", "shown"),
    [
        ('kv_concurrency_limit_forecast_seconds{bound="mid"} < 21600 for 30m', "seconds", 600.0, ("10 min", "< 6 h")),
        # Of a state the number says nothing: the title does.
        ('bottleneck{verdict=~"generator_bound|stalled"} == 1 for 15m', "", 1.0, ("", None)),
        ("target_up == 0 for 1m", "", 0.0, ("", None)),
        ("gradient_nonfinite_steps == 1", "steps", 1.0, ("1 steps", "= 1 steps")),
    ],
)
def test_a_limit_behind_labels_is_a_limit(
    reader: MemoryReader, expression: str, unit: str, value: float, shown: tuple[str, str | None]
) -> None:
    made = structs.replace(fake_alerts.STARVED, name="Own", value=value, unit=unit)
    reader.rule_rows = [RuleInfo("Own", "warning", "tuning", expression, "", True, "", "", None)]
    reader.set_alerts(made)
    found = cells(reader)
    assert (row(found, made, ".v"), row(found, made).get("limit")) == shown
    assert ("rule" in row(found, made)) == (shown[1] is not None)


def test_charts_are_those_of_its_moment(reader: MemoryReader) -> None:
    began = round(fake_alerts.STARVED.active_at)
    assert row(cells(reader), fake_alerts.FULL)["chart"] == {
        "start": began - 1440 - 1800, "end": began - 1440 + 900, "page": "overview", "panel": "kv",
    }  # fmt: skip
    # No panel draws the wait ratio as such, but one shows it; nothing at all draws a target.
    assert row(cells(reader), fake_alerts.STARVED)["chart"]["panel"] == "steps"
    assert row(cells(reader), fake_alerts.WAITS)["chart"]["panel"] == "zero"
    assert row(cells(reader), fake_alerts.DOWN)["chart"]["panel"] == ""
    over = next(a for a in reader.alert_rows if a.name == "SandboxSpinUpSlow")
    assert row(cells(reader), over)["chart"] == {
        "start": round(over.active_at) - 1800, "end": round(fake.NOW) - 5400 + 900, "page": "overview", "panel": "",
    }  # fmt: skip


def test_who_was_told_is_the_newest_of_each_receiver(reader: MemoryReader) -> None:
    told = row(cells(reader), fake_alerts.STARVED, ".x")["told"]
    sent = round(fake.NOW - 719 + 0.4)
    assert told == [
        {"receiver": "grafana", "state": "watch", "text": "retry 3", "at": round(fake.NOW) + 20},
        {"receiver": "oncall", "state": "ok", "text": "sent", "at": sent},
        {"receiver": "team", "state": "ok", "text": "sent", "at": sent},
    ]
    # What was sent of an earlier episode is not said of this one.
    later = structs.replace(fake_alerts.STARVED, active_at=fake.NOW - 300)
    reader.set_alerts(later)
    assert [one["receiver"] for one in row(cells(reader), later, ".x")["told"]] == ["grafana"]
    # Nor is what told that it was over.
    reader.delivery_rows = [fake_alerts.sent("team", "slack", ("TrainerStarved resolved",), 10)]
    assert row(cells(reader), later, ".x")["told"] == []


def test_muted_says_by_whom_and_until_when(reader: MemoryReader) -> None:
    found = cells(reader)
    assert row(found, fake_alerts.DOWN, ".x") == {
        "told": [],
        "muted": "silenced by alice until 12:30 UTC: node drained for a new driver (id 5ile-0001)",
        "silence": "5ile-0001",
        "by": "alice",
        "comment": "node drained for a new driver",
        "until": round(fake.NOW) + 3300,
    }
    assert row(found, fake_alerts.STALE, ".x") == {"told": [], "muted": "inhibited by TargetDown (liveness)"}


def test_what_is_silenced_is_among_the_muted(reader: MemoryReader) -> None:
    name = reader.put_silence({"alertname": "TrainerStarved", "run": fake.RICH}, fake.NOW, fake.NOW + 60, "bob", "")
    found = cells(reader)
    assert (found["alerts.firing"], found["header.firing"]) == ([alerts_data.key(fake_alerts.FULL)], 1)
    assert row(found, fake_alerts.STARVED, ".x")["silence"] == name
    reader.end_silence("5ile-0001")
    assert set(cells(reader)["alerts.firing"]) == {alerts_data.key(fake_alerts.FULL), alerts_data.key(fake_alerts.DOWN)}
    # What inhibits is not ended with a silence.
    assert alerts_data.key(fake_alerts.STALE) in cells(reader)["alerts.muted"]


def test_a_thousand_alerts_are_a_number(reader: MemoryReader) -> None:
    reader.set_alerts(*(fake_alerts.alert("TargetDown", 0.0, "", 600, target=f"e-{i}") for i in range(1000)))
    found = cells(reader)
    assert (len(found["alerts.firing"]), found["header.firing"]) == (alerts_data.MOST, 1000)
    assert found["alerts.firing.more"] == "and 900 more; /api/v1/alerts lists all"


def test_resolved_says_how_long_and_why(reader: MemoryReader) -> None:
    found = cells(reader)
    first, last = (found[f"alert.{found['alerts.history'][i]}"] for i in (0, -1))
    assert (first["name"], first["lasted"], first["ended"]) == ("Sandbox spin up slow", "13 min", fake.NOW - 5400)
    assert (last["lasted"], last["why"]) == ("25 min", "the run is paused")


def test_rules_say_whether_they_can_fire(reader: MemoryReader) -> None:
    found = cells(reader)
    named = {found[f"rules.{i}"]["name"]: found[f"rules.{i}"] for i in range(len(fake_alerts.RULES))}
    now = {name: (rule["now"], rule["state"]) for name, rule in named.items()}
    assert now["TrainerStarved"] == ("1 firing", "critical")
    assert now["TargetDown"] == ("1 muted", "unknown")
    assert now["RunStalled"] == ("active", "ok")
    assert now["QuotaLow"] == ("no source yet: quota_remaining_ratio", "unknown")
    assert named["QuotaLow"]["expression"] == "quota_remaining_ratio < 0.1"


def test_rules_are_read_now_and_then(reader: MemoryReader) -> None:
    """To know which can fire costs a look at every series of the run: not on each tick of each browser."""
    now = [100.0]
    rules = RuleCache(lambda: now[0])
    assert cells(reader, rule_cache=rules)["rules.0"]["now"] == "active"
    reader.rule_rows = [structs.replace(reader.rule_rows[0], why="no source: nothing counted yet")]
    now[0] += 30
    assert cells(reader, rule_cache=rules)["rules.0"]["now"] == "active"
    now[0] += 1
    assert cells(reader, rule_cache=rules)["rules.0"]["now"] == "no source: nothing counted yet"


@pytest.mark.parametrize(
    ("receivers", "sent", "none", "how"),
    [
        ((), True, "No receivers: alerts appear only here.", "1"),
        (("team",), False, "None sent yet.", ""),
        (None, False, "None sent yet.", "1"),
        (None, True, "", ""),
    ],
)
def test_how_to_add_a_receiver(reader: MemoryReader, receivers: Any, sent: bool, none: str, how: str) -> None:
    if not sent:
        reader.delivery_rows = []
    found = cells(reader, receivers=receivers)
    assert (found["deliveries.none"], found["deliveries.how"]) == (none, how)


def test_nothing_fires(reader: MemoryReader) -> None:
    reader.set_alerts()
    found = cells(reader)
    assert (found["alerts.head"], found["alerts.s"], found["header.firing"]) == ("No active alerts", "ok", "")
    assert found["alerts.none"] == "17 rules active. 8 lack data; see Rules."
    reader.rule_rows = [rule for rule in reader.rule_rows if rule.why]
    assert cells(reader)["alerts.none"].startswith("No rule has data yet")
    reader.rule_rows = []
    assert cells(reader)["alerts.none"] == "There are no rules, so no alert can fire."


def test_all_runs_or_one(reader: MemoryReader) -> None:
    other = fake_alerts.alert("RunStalled", 1200.0, "seconds", 900, run=fake.POOR)
    reader.set_alerts(*reader.alert_rows, other)
    assert cells(reader)["header.firing"] == 2
    assert cells(reader, everything=True)["header.firing"] == 3
    assert row(cells(reader, everything=True), other)["run"] == fake.POOR


def test_brief_shows_what_fires_before_what_is_over(reader: MemoryReader) -> None:
    found = cells(reader, "overview")
    states = [found[f"alert.{name}"]["state"] for name in found["brief_alerts.al"]]
    assert states == ["firing", "firing", "pending", "resolved", "resolved"]
    assert (found["brief_alerts.sum"], found["brief_alerts.s"], found["brief_alerts.more"]) == (
        "2 firing",
        "critical",
        {"hidden": 0, "note": "2 muted"},
    )
    many = [fake_alerts.alert("TargetDown", 0.0, "", 600 + i, target=f"e-{i}") for i in range(9)]
    reader.silence_rows = []
    reader.set_alerts(*many)
    found = cells(reader, "overview")
    # Alerts of one rule are one row, that of the newest.
    newest = alerts_data.key(min(many, key=lambda alert: reader.clock - alert.active_at))
    assert (found["brief_alerts.al"][0], found["brief_alerts.n"], found["brief_alerts.more"]) == (
        newest, {newest: 9}, {"hidden": 0, "note": ""},
    )  # fmt: skip
    names = [rule.name for rule in reader.alerts.rules()[:9]]
    reader.set_alerts(*(fake_alerts.alert(name, 0.0, "", 600 + i) for i, name in enumerate(names)))
    found = cells(reader, "overview")
    assert (len(found["brief_alerts.al"]), found["brief_alerts.n"], found["brief_alerts.more"]) == (
        6,
        {},
        {"hidden": 3, "note": ""},
    )
    assert [found[f"alert.{name}"]["alert"] for name in found["brief_alerts.al"]] == names[:6]


def test_severity_of_ones_own_is_shown_and_not_judged(reader: MemoryReader) -> None:
    state, word = alerts_data._severity("page")
    assert (state, word) == ("unknown", "page")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("TrainerStarved", "Trainer starved"), ("KVCacheExhausted", "KV cache exhausted"), ("p95_slow", "p 95 slow")],
)  # fmt: skip
def test_titles(name: str, shown: str) -> None:
    assert alerts_data.title(name) == shown


# The wire.


def pull(have: str, **changes: Any) -> dict[str, Any]:
    return {"page": 1, "key": "alerts", "run": fake.RICH, "have": have, "n": 1} | changes


def test_idle_tick_carries_nothing(reader: MemoryReader) -> None:
    views = SentViews()

    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything)

    first = callbacks.tick(look, views, pull(""))
    reader.clock += 5
    second = callbacks.tick(look, views, pull(first["have"]))
    assert second == {"page": 1, "now": reader.clock, "have": first["have"]}
    # A new value is its number and its sentence, not its labels, its rule or its neighbours.
    louder = structs.replace(fake_alerts.STARVED, value=0.81, annotations={"summary": "The trainer waits 81%."})
    reader.set_alerts(*(louder if a is fake_alerts.STARVED else a for a in reader.alert_rows))
    third = callbacks.tick(look, views, pull(second["have"]))
    name = alerts_data.key(louder)
    assert third["view"] == {f"alert.{name}.v": "81%", f"alert.{name}.n": "The trainer waits 81%."}
    assert len(json.dumps(third)) < 250


def test_one_that_ends_does_not_send_its_neighbours(reader: MemoryReader) -> None:
    views = SentViews()
    have = views.remember(cells(reader))
    reader.set_alerts(*(a for a in reader.alert_rows if a is not fake_alerts.STARVED))
    changed = views.changes(have, cells(reader))[0]
    assert changed["alerts.firing"] == [alerts_data.key(fake_alerts.FULL)]
    assert {key for key in changed if key.startswith("alert.") and changed[key] is not None} == set()


# Pages.


def test_pages_have_addresses_of_their_own() -> None:
    assert len({page.path for page in PAGES}) == len({page.key for page in PAGES}) == len(PAGES)
    found = by_path("/alerts/")
    assert found is not None and found.key == "alerts"
    assert by_path("nowhere") is None


@pytest.mark.parametrize(
    ("path", "have", "sent"), [("", [], ["overview"]), ("alerts", ["overview"], ["alerts"]), ("alerts", ["alerts"], [])]
)
def test_elements_are_sent_at_the_first_visit(
    reader: MemoryReader, path: str, have: list[str], sent: list[str]
) -> None:
    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything)

    boot, _, _, *places = callbacks.build(look, SentViews(), {"path": path, "search": "?all=1", "have": have, "n": 1})
    assert [page.key for page, place in zip(PAGES, places, strict=True) if isinstance(place, list)] == sent
    # A page without charts reads no cursor and no series; one with charts shows one run only.
    assert ("cursor" in boot, boot["all"]) == (path == "", path == "alerts")


def test_an_address_without_a_page(reader: MemoryReader) -> None:
    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything)

    boot = callbacks.build(look, SentViews(), {"path": "nowhere", "search": "", "n": 1})[0]
    assert boot["error"] == "There is no page at /nowhere."
