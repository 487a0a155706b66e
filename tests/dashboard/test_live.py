"""What goes over the wire, and the view behind it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from dashboard import callbacks
from dashboard.callbacks import cells as of_page
from dashboard.charts.panels import CARDS, PANELS, names_by_slot
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.deltas import SentViews
from dashboard.widgets.signal_lookup import Want
from dashboard.widgets.status import LAST
from server.query.run_state import RunState
from server.query.types import RunSummary, SignalNow
from server.signals.model import LAST_VALUE
from tests.dashboard import fake, fake_alerts
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

NONE_YET = "No verdict yet: it is computed from the run's first tick on"


@pytest.fixture
def reader() -> MemoryReader:
    return fake.reader(600)


def pull(reader: MemoryReader, **changes: Any) -> dict[str, Any]:
    cursor = reader.cursor(fake.RICH)
    return {"page": 1, "key": "overview", "run": fake.RICH, "cursor": cursor, "have": "", "n": 1} | changes


def looking(reader: MemoryReader) -> callbacks.Looking:
    return lambda run, everything: Scope(reader, run, everything)


def tick(reader: MemoryReader, views: SentViews, pull: dict[str, Any]) -> dict[str, Any]:
    return callbacks.tick(looking(reader), views, pull)


def cells(reader: MemoryReader, run: str = fake.RICH) -> dict[str, Any]:
    page = by_key("overview")
    assert page is not None
    return shown(of_page(page, Scope(reader, run)))


# Delta.


def test_tick_sends_only_what_is_new(reader: MemoryReader) -> None:
    views = SentViews()
    first = tick(reader, views, pull(reader))
    assert shown(first["view"])["card.wait.figure"] == "74" and "points" not in first
    reader.append(fake.RICH, fake.TICKS[0][0], [(fake.NOW + 5, 17.0), (fake.NOW + 10, None)])
    second = tick(reader, views, pull(reader, cursor=first["cursor"], have=first["have"]))
    times = [(fake.NOW + 5) * 1000, (fake.NOW + 10) * 1000]
    assert second["points"] == {"queue.0": [times, [17.0, None]]}
    assert second["fields"]["card.queue"].keys() == {"value"}
    assert "card.wait" not in second["fields"] and "view" not in second
    third = tick(reader, views, pull(reader, cursor=second["cursor"], have=second["have"]))
    assert third.keys() == {"page", "cursor", "now", "have"}


def test_tick_is_small(reader: MemoryReader) -> None:
    views = SentViews()
    first = tick(reader, views, pull(reader))
    reader.clock += 5
    for now, curve in fake.TICKS[:4]:
        reader.append(fake.RICH, now, [(reader.clock, curve(reader.clock))])
    second = tick(reader, views, pull(reader, cursor=first["cursor"], have=first["have"]))
    assert len(json.dumps(second)) < 1200


def test_tick_resets(reader: MemoryReader) -> None:
    assert tick(reader, SentViews(), pull(reader, cursor="7:1")) == {"page": 1, "reset": True}
    assert tick(reader, SentViews(), pull(reader, run="nobody")) == {"page": 1, "reset": True}
    assert tick(reader, SentViews(), pull(reader, key="gone")) == {"page": 1, "reset": True}


def test_views_forget_the_oldest_and_then_send_all() -> None:
    views = SentViews(size=1)
    old = views.remember({"a": "1", "b": "2"})
    assert views.changes(old, {"a": "1", "c": "3"}) == ({"c": "3", "b": None}, {})
    views.remember({"a": "9"})
    assert views.changes(old, {"a": "1"}) == ({"a": "1"}, {})


def test_of_an_object_only_the_fields_that_changed_are_sent() -> None:
    views = SentViews()
    old = views.remember({"k": {"value": 1, "unit": "s"}, "gone": {"value": 1, "why": "x"}})
    # Without a value the browser needs the whole: a field that went away would stay.
    new = {"k": {"value": 2, "unit": "s", "note": "n"}, "gone": {"why": "x"}}
    assert views.changes(old, new) == ({"gone": {"why": "x"}}, {"k": {"value": 2, "note": "n"}})


# Which series fill which panel.


def one(name: str, value: float | None = 1.0, **labels: str) -> SignalNow:
    return fake.signal(name, value, "", "ok", "", **labels)


def test_new_labels_do_not_break_a_match() -> None:
    want = Want("response_tokens", (("stat", "mean"),))
    plain, extra = one("response_tokens", stat="mean"), one("response_tokens", stat="mean", environment="swe")
    assert want.find([extra]) is extra
    assert want.find([extra, plain]) is plain
    assert want.find([one("response_tokens", stat="p90")]) is None


def test_alternatives_prefer_the_first() -> None:
    want = Want("response_tokens", (("stat", "p90|max"),))
    p90, top = one("response_tokens", stat="p90"), one("response_tokens", stat="max")
    assert want.find([top, p90]) is p90
    assert want.find([top]) is top
    assert want.names([]) == ['response_tokens{stat="p90"}', 'response_tokens{stat="max"}']


def test_silent_signal_explains_itself() -> None:
    silent = fake.signal("reward", state="unknown", why="log reward/mean")
    want = Want("reward", (("stat", "mean"),))
    assert want.find([silent]) is None
    assert want.explain([silent]) is silent


def test_every_slot_is_fed(reader: MemoryReader) -> None:
    names = names_by_slot(reader.status(fake.RICH).signals.values())
    assert set(names) == {s for p in PANELS for s, _ in p.slots()} | {f"card.{card.key}" for card in CARDS}
    assert names["staleness.0"] == ['staleness_versions{level="trajectory",stat="mean"}']
    assert names["card.queue"] == ["queue_samples_now"]


# Texts.


def test_rich_run(reader: MemoryReader) -> None:
    found = cells(reader)
    expected = {
        "answer.chip": "No verdict yet",
        "answer.before": "The trainer waits ",
        "answer.figure": "74%",
        "answer.split.wait": "Wait 74%",
        "answer.split.overhead": "Overhead 5%",
        "card.wait.word": "Critical",
        "card.wait.note": "critical ≥ 40%",
        "card.kv.note": "room for 526 · critical ≥ 97%",
        "card.length.note": "x1.7 since step 40, from 2,400",
        "card.staleness.note": "max 5 · bound 6",
        "chart.steps.0.text": "74%",
        "chart.kv.critical": "critical 97%",
        "chart.queue.watch": "one batch 64",
        "chart.staleness.critical": "bound 6",
        "actor.generator.sub": "vLLM · 16 × H200 · 1 of 2 down",
        "actor.sandbox.sub": "no sandbox source",
        "actor.sandbox.word": "OK",
        "arrow.to_trainer.sub": "36% of capacity",
    }
    assert {key: found[key] for key in expected} == expected


def test_no_value_has_no_health(reader: MemoryReader) -> None:
    reader.append(fake.RICH, fake.TICKS[3][0], [(fake.NOW + 5, None)])
    found = cells(reader)
    assert (found["card.kv.figure"], found["card.kv.word"], found["chart.kv.state"]) == ("–", "Unknown", "unknown")


def test_poor_run_says_why(reader: MemoryReader) -> None:
    found = cells(reader, fake.POOR)
    expected = {
        "answer.figure": "",
        "answer.split": [],
        "card.wait.state": "unknown",
        "card.wait.figure": "–",
        "card.wait.note": "log time/wait_for_batch",
        "card.queue.state": "not_applicable",
        "chart.queue.state": "not_applicable",
        "chart.queue.why": "a synchronous run has no queue",
        "chart.queue.word": "Not applicable",
        "chart.kv.state": "unknown",
        "chart.kv.why": "add the engines' /metrics as targets",
        "chart.length.why": "nothing has been computed for this run yet",
        "actor.queue.sub": "no queue in this mode",
        "actor.trainer.state": "unknown",
    }
    assert {key: found[key] for key in expected} == expected


def test_finished_run_is_as_of_its_end(reader: MemoryReader) -> None:
    found = cells(reader, fake.DONE)
    assert found["answer.chip"] == "Finished"
    assert (found["answer.at_word"], found["answer.at"]) == ("ended", fake.NOW - 3 * 3600)
    assert (found["answer.before"], found["answer.text"]) == ("Finished: no step was recorded", "")


def test_a_finished_run_is_summed_up_in_the_past_tense(reader: MemoryReader) -> None:
    limiters = {
        "sandbox_bound": 5400.0,
        "generator_bound": 1800.0,
        "balanced": 900.0,
        "unknown": 900.0,
        "stalled": 90.0,
    }
    summary = RunSummary(9090.0, 212, 41.5, 12.25, limiters, 0.5312)
    end = fake.NOW - 3 * 3600
    reader.set_state(fake.DONE, RunState("finished", end, end), summary)
    now = {"evidence": [{"text": "now"}], "missing": ["log now"], "usd_per_hour": 4.0, "summary": ""}
    reader.set_verdict(fake.DONE, {"outcome": "sandbox_bound", "cause": "quota", **now})
    found = cells(reader, fake.DONE)
    # 9,090 s are 2.525 h, as a float a little less; the stall, a hundredth of it, is not worth a word.
    assert (found["answer.before"], found["answer.usd"]) == ("Last step 212 after 2.52 h, final reward 0.53", "$41.50")
    assert found["answer.share"] == "for the whole run at its mean hourly rate, $12.25 of it idle"
    expected = "Limited by: sandbox-bound 59%, generator-bound 20% of the time. Balanced 9.9%. No verdict 9.9%."
    assert found["answer.text"] == f"{expected} At the end: sandbox-bound (quota)."
    # Nothing speaks of it as if it went on.
    assert (found["answer.why"], found["answer.advice"], found["answer.gap"]) == (None, [], [])
    assert (found["run_state"], found["header.src.s"]) == (
        {"name": "finished", "word": "Finished", "since": round(end)},
        "unknown",
    )


def test_a_run_that_catches_up_has_no_verdict(reader: MemoryReader) -> None:
    at = fake.NOW - 2400
    last = {
        "outcome": "generator_bound",
        "cause": "long_tail",
        "confidence": 0.8,
        "since": at - 600,
        "summary": "The trainer waits 74% of its step",
        "as_of": at,
    }
    withheld = {"outcome": "unknown", "cause": "incomplete", "summary": "history is read", "last": last, "as_of": at,
                "evidence": [{"text": "old"}], "advice": []}  # fmt: skip
    reader.set_verdict(fake.RICH, withheld)
    reader.set_state(fake.RICH, RunState("catching_up", at - 1200, at, 0.41, 38.4, fake.NOW))
    found = cells(reader)
    assert (found["answer.chip"], found["answer.before"], found["answer.figure"], found["answer.after"]) == (
        "Catching up", "Reading history: ", "41%", "; 38 s left",
    )  # fmt: skip
    assert (found["answer.at_word"], found["answer.at"], found["answer.last_at"]) == ("numbers as of", at, at)
    assert found["answer.last"] == "Generator-bound (long tail). The trainer waits 74% of its step"
    assert (found["answer.why"], found["answer.advice"], found["answer.gap"]) == (None, [], [])
    # A number of the past is only a number; its health is about the present.
    assert (found["card.wait.figure"] != "–", found["card.wait.word"], found["actor.trainer.word"]) == (True, "", "")
    assert (found["brief_alerts.sum"], found["brief_alerts.al"], found["header.firing"]) == (
        "Not evaluated now",
        [],
        "",
    )
    assert found["run_state"] == {
        "name": "catching_up",
        "word": "Catching up",
        "since": round(at - 1200),
        "says": "41% · 38 s left",
    }


def test_a_run_that_is_not_collected_claims_nothing(reader: MemoryReader) -> None:
    since = fake.NOW - 1080
    reader.set_state(fake.RICH, RunState("not_collected", since, since))
    reader.set_alerts(fake_alerts.alert("RunStalled", 1200.0, "seconds", 900))
    found = cells(reader)
    assert (found["answer.chip"], found["answer.before"], found["answer.clock"]) == (
        "Not collected",
        "Not collected since ",
        since,
    )
    assert (found["header.src"], found["header.src.w"], found["header.src.s"]) == ("3", ", not read now", "unknown")
    assert (found["brief_alerts.sum"], found["brief_alerts.s"]) == ("Not evaluated now", "unknown")
    assert found["brief_alerts.more"] == {"hidden": 0, "note": "1 fired when the run was last collected"}
    assert found["answer.advice"] == []


def test_a_stale_run_says_since_when(reader: MemoryReader) -> None:
    reader.set_state(fake.RICH, RunState("stale", fake.NOW - 900, fake.NOW - 900))
    found = cells(reader)
    assert (found["answer.chip"], found["answer.chip_state"]) == ("Stale", "stale")
    assert (found["answer.before"], found["answer.clock"]) == ("No new data since ", fake.NOW - 900)
    assert found["answer.text"] == "The targets report nothing new, so what the run does now is unknown."
    assert found["answer.advice"] == []


def test_synchronous_run_talks_of_generation() -> None:
    made = MemoryReader(fake.NOW)
    made.add_run("sync")
    made.silence(
        "sync", fake.signal("trainer_wait_ratio", state="not_applicable", why="a synchronous run does not wait")
    )
    for phase, seconds in (("generation", 55.0), ("compute", 45.0)):
        made.append("sync", fake.signal("trainer_phase_seconds", unit="seconds", phase=phase), [(fake.NOW, seconds)])
    found = cells(made, "sync")
    assert (found["answer.before"], found["answer.figure"]) == ("Generation takes ", "55%")
    assert found["answer.split.wait"] == "Generate 55%"
    assert found["chart.steps.0.label"] == "generation"
    assert found["card.wait.word"] == "Not applicable"


def test_synchronous_run_has_no_missing_parts() -> None:
    """What cannot be there is not "not reported": no queue, no capacity beyond what is used."""
    made = MemoryReader(fake.NOW)
    made.add_run("sync", lifecycle="finished")
    made.change("sync", mode="sync_colocated")
    for phase, seconds in (("generation", 25.0), ("compute", 75.0)):
        made.append("sync", fake.signal("trainer_phase_seconds", unit="seconds", phase=phase), [(fake.NOW, seconds)])
    made.append("sync", fake.signal("trainer_samples_per_second", unit="samples/s"), [(fake.NOW, 84.0)])
    made.append("sync", fake.signal("truncation_ratio", unit="ratio", state="critical"), [(fake.NOW, 0.68)])
    made.append("sync", fake.signal("response_tokens", unit="tokens", stat="mean"), [(fake.NOW, 39.4)])
    made.silence("sync", fake.signal("capacity_samples_per_second", state="not_applicable", why="no wait"))
    found = cells(made, "sync")
    expected = {
        "answer.before": "Finished: no step was recorded",
        "answer.text": "",
        "answer.note": "84 samples/s",
        "arrow.to_queue.sub": "directly into the step",
        "arrow.to_trainer.figure": "84 samples/s",
        "arrow.to_trainer.sub": "",
        "actor.generator.bar": 0.25,
        "actor.generator.numbers.0.figure": "25",
        "actor.generator.numbers.0.unit": "% of each step",
        "actor.generator.word": "Unknown",
        # The length has no band of its own: that the cap cuts two of three answers off is what counts.
        "card.length.word": "Critical",
        "card.length.note": "truncated 68%",
    }
    assert {key: found[key] for key in expected} == expected


def _silent(signal: str) -> SignalNow:
    return fake.signal(signal, state="unknown", why="no step for 3 h; the last value was 0.66")


def test_silent_trainer_is_named_and_nothing_looks_young() -> None:
    made = MemoryReader(fake.NOW)
    made.add_run("r")
    for name in ("trainer_step_seconds", "trainer_wait_ratio", "trainer_samples_per_second"):
        made.silence("r", structs.replace(_silent(name), ts=fake.NOW - 10_800))
    # These are as young as our own last tick: they say nothing about the run.
    made.silence("r", structs.replace(fake.signal("turns", state="unknown", why="log it"), ts=fake.NOW - 5))
    made.silence("r", structs.replace(fake.signal("trained_tokens_total", 6e7), ts=fake.NOW - 5))
    found = cells(made, "r")
    expected = {
        "newest": fake.NOW - 10_800,
        "answer.before": "No step for 3 h",
        "answer.text": f"{NONE_YET} · Choose a longer time range to see the last steps.",
        "actor.trainer.sub": "no step for 3 h",
        "arrow.to_trainer.sub": "no step for 3 h",
        "arrow.to_queue.sub": "in flight: not reported",
        "card.wait.note": "no step for 3 h",
        "card.wait.why": "no step for 3 h; the last value was 0.66",
    }
    assert {key: found[key] for key in expected} == expected


def test_the_reader_marks_silence_with_the_words_we_look_for() -> None:
    assert LAST == LAST_VALUE


def test_engines_alone_are_not_a_run_that_loads() -> None:
    made = MemoryReader(fake.NOW)
    made.add_run("e", lifecycle="starting")
    made.set_targets("e", fake.target("engine", "generator", "vllm"))
    found = cells(made, "e")
    assert (found["answer.before"], found["answer.meta"]) == ("No trainer is monitored yet", "")
    made.append("e", fake.TICKS[3][0], [(fake.NOW, 0.5)])
    assert cells(made, "e")["answer.text"] == f"{NONE_YET} · 5 min means: KV cache 50% full"
    made.set_targets("e", fake.target("engine", "generator", "vllm"), fake.target("log", "trainer", "trl"))
    assert cells(made, "e")["answer.meta"].startswith("Starting")


def test_mean_and_instant_are_told_apart(reader: MemoryReader) -> None:
    found = cells(reader)
    assert found["card.queue.note"].startswith("5 min mean ") and found["card.queue.note"].endswith(" batches")
    assert found["actor.queue.numbers.1.unit"] == "batches (5 min mean)"
    assert " · 5 min means: " in found["answer.text"]


def test_panel_keeps_its_colour_apart_from_its_chart(reader: MemoryReader) -> None:
    """`s` says whether there is a chart, `h` how healthy: a green "Watch" would contradict itself."""
    reader.append(fake.RICH, structs.replace(fake.TICKS[3][0], state="watch"), [(fake.NOW + 5, 0.93)])
    found = cells(reader)
    assert (found["chart.kv.state"], found["chart.kv.health"], found["chart.kv.word"]) == ("ok", "watch", "Watch")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("trainer", "trainer"),
        ("engine-0, engine-1, engine-2 and 1 more", "engine-0 and 3 more"),
        # As after a restart of the server.
        (", trainer", "trainer"),
        ("", ""),
    ],
)
def test_sources_are_short(source: str, shown: str) -> None:
    made = MemoryReader(fake.NOW)
    made.add_run("r")
    made.append("r", structs.replace(fake.TICKS[3][0], source=source), [(fake.NOW, 0.5)])
    assert cells(made, "r")["chart.kv.source"] == " · ".join(word for word in ("kv_cache_usage_ratio", shown) if word)


def test_dead_engines_are_the_news(reader: MemoryReader) -> None:
    found = cells(reader)
    assert (found["actor.generator.state"], found["actor.generator.sub"]) == (
        "critical",
        "vLLM · 16 × H200 · 1 of 2 down",
    )
    dead = [fake.target(f"e{i}", "generator", "vllm", up=False, error="refused") for i in range(2)]
    reader.set_targets(fake.RICH, *dead)
    for now, _ in (*fake._labelled()[:4], fake.TICKS[-1]):
        reader.silence(fake.RICH, structs.replace(now, state="unknown", why="add its /metrics as a target"))
    found = cells(reader)
    assert found["answer.text"].startswith(f"{NONE_YET} · Engines: 2 of 2 down · 5 min means: ")
    assert (found["actor.generator.state"], found["actor.generator.word"]) == ("critical", "Critical")
    assert found["chart.requests.why"] == "no engine answers (2 of 2 down: refused)"
    # A finished run has let go of its engines.
    reader.change(fake.RICH, lifecycle="finished")
    assert "down" not in cells(reader)["actor.generator.sub"]


# The first load.


def test_page_of_an_empty_store_tells_what_to_do() -> None:
    boot = callbacks.build(looking(MemoryReader(fake.NOW)), SentViews(), {"search": "", "tz": 0, "n": 3})[0]
    assert boot["page"] == 3 and "rollscope watch" in boot["error"]


def test_page_reads_the_cursor_before_the_series(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            order.append(name)
            return call(*arguments)

        return called

    for name in ("cursor", "series"):
        monkeypatch.setattr(reader, name, watched(name, getattr(reader, name)))
    boot = callbacks.build(looking(reader), SentViews(), {"search": f"?run={fake.RICH}", "tz": 0})[0]
    assert order[0] == "cursor" and boot["cursor"] == reader.cursor(fake.RICH)
    assert {slot.split(".")[0] for slot in boot["drawn"]} == {panel.key for panel in PANELS}
