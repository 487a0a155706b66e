"""What goes over the wire, the view behind it, and the address of a page."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dashboard import callbacks, urlstate
from dashboard.live import Views, tick
from dashboard.panels import CARDS, PANELS, Want, names_by_slot
from dashboard.trust import MOST, trust
from dashboard.urlstate import Address
from dashboard.view import view
from server.query.types import RunInfo, SignalNow
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader


@pytest.fixture
def reader() -> MemoryReader:
    return fake.reader(600)


def pull(reader: MemoryReader, **changes: Any) -> dict[str, Any]:
    return {"page": 1, "run": fake.RICH, "cursor": reader.cursor(fake.RICH), "have": "", "n": 1} | changes


def cells(reader: MemoryReader, run: str = fake.RICH) -> dict[str, Any]:
    return view(reader.status(run), reader.infos())


# Delta.


def test_tick_sends_only_what_is_new(reader: MemoryReader) -> None:
    views = Views()
    first = tick(reader, views, pull(reader))
    assert first["view"]["k.wait.v"] == "74" and "points" not in first
    reader.append(fake.RICH, fake.TICKS[0][0], [(fake.NOW + 5, 17.0), (fake.NOW + 10, None)])
    second = tick(reader, views, pull(reader, cursor=first["cursor"], have=first["have"]))
    times = [(fake.NOW + 5) * 1000, (fake.NOW + 10) * 1000]
    assert second["points"] == {"queue.0": [times, [17.0, None]]}
    assert "k.queue.v" in second["view"] and "k.wait.v" not in second["view"]
    third = tick(reader, views, pull(reader, cursor=second["cursor"], have=second["have"]))
    assert third.keys() == {"page", "cursor", "now", "have"}


def test_tick_is_small(reader: MemoryReader) -> None:
    views = Views()
    first = tick(reader, views, pull(reader))
    reader.clock += 5
    for now, curve in fake.TICKS[:4]:
        reader.append(fake.RICH, now, [(reader.clock, curve(reader.clock))])
    second = tick(reader, views, pull(reader, cursor=first["cursor"], have=first["have"]))
    assert len(json.dumps(second)) < 1200


def test_tick_resets(reader: MemoryReader) -> None:
    assert tick(reader, Views(), pull(reader, cursor="7:1")) == {"page": 1, "reset": True}
    assert tick(reader, Views(), pull(reader, run="nobody")) == {"page": 1, "reset": True}


def test_views_forget_the_oldest_and_then_send_all() -> None:
    views = Views(size=1)
    old = views.remember({"a": "1", "b": "2"})
    assert views.changes(old, {"a": "1", "c": "3"}) == {"c": "3", "b": None}
    views.remember({"a": "9"})
    assert views.changes(old, {"a": "1"}) == {"a": "1"}


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
    names = names_by_slot(reader.status(fake.RICH).signals)
    assert set(names) == {s for p in PANELS for s, _ in p.slots()} | {f"k.{card.key}" for card in CARDS}
    assert names["staleness.0"] == ['staleness_versions{level="trajectory",stat="mean"}']
    assert names["k.queue"] == ["queue_samples_now"]


# Texts.


def test_rich_run(reader: MemoryReader) -> None:
    found = cells(reader)
    expected = {
        "b.chip": "No verdict yet",
        "b.head": "The trainer waits ",
        "b.num": "74 %",
        "b.l.wait": "Wait 74 %",
        "b.l.overhead": "",
        "k.wait.p": "Critical",
        "k.wait.n": "watch ≥ 15 % · critical ≥ 40 %",
        "k.kv.n": "510 running · 1,161 waiting",
        "k.length.n": "p90 10.2k · cut 3.4 %",
        "k.staleness.n": "max 5",
        "p.steps.0.v": "74 %",
        "p.kv.critical": "critical 97 %",
        "p.queue.watch": "one batch 64",
        "p.staleness.critical": "bound 6",
        "f.generator.sub": "vllm · 16 × H200",
        "f.sandbox.sub": "no sandbox source",
        "f.sandbox.p": "Unknown",
        "f.to_trainer.sub": "36 % of capacity",
        "t.sum": "2 of 3 up",
        "t.s": "watch",
        "t.keys": "2 keys nobody maps",
    }
    assert {key: found[key] for key in expected} == expected
    # The worst first.
    assert found["t.0"][0] == "vllm-1" and found["t.0"][5].startswith("connection refused")


def test_no_value_has_no_health(reader: MemoryReader) -> None:
    reader.append(fake.RICH, fake.TICKS[3][0], [(fake.NOW + 5, None)])
    found = cells(reader)
    assert (found["k.kv.v"], found["k.kv.p"], found["p.kv.s"]) == ("–", "Unknown", "unknown")


def test_poor_run_says_why(reader: MemoryReader) -> None:
    found = cells(reader, fake.POOR)
    expected = {
        "b.num": "",
        "b.split.s": "unknown",
        "k.wait.s": "unknown",
        "k.wait.v": "–",
        "k.wait.n": "log time/wait_for_batch",
        "k.queue.s": "not_applicable",
        "p.queue.s": "not_applicable",
        "p.queue.w": "a synchronous run has no queue",
        "p.queue.p": "Not applicable",
        "p.kv.s": "unknown",
        "p.kv.w": "add the engines' /metrics as targets",
        "p.length.w": "nothing has been computed for this run yet",
        "f.queue.sub": "no queue in this mode",
        "f.trainer.s": "unknown",
        "t.none": "No targets: this run is fed by pushes, or nothing watches it.",
    }
    assert {key: found[key] for key in expected} == expected


def test_finished_run_is_as_of_its_end(reader: MemoryReader) -> None:
    found = cells(reader, fake.DONE)
    assert found["b.chip"] == "Finished"
    assert found["b.meta"] == "as of version 412"
    assert found["b.age"] == fake.NOW - 3 * 3600
    assert found["b.head"] == "The trainer waited "
    assert found["b.text"].startswith("At its end: ")


def test_synchronous_run_talks_of_generation() -> None:
    made = MemoryReader(fake.NOW)
    made.add_run("sync")
    made.silence(
        "sync", fake.signal("trainer_wait_ratio", state="not_applicable", why="a synchronous run does not wait")
    )
    for phase, seconds in (("generation", 55.0), ("compute", 45.0)):
        made.append("sync", fake.signal("trainer_phase_seconds", unit="seconds", phase=phase), [(fake.NOW, seconds)])
    found = cells(made, "sync")
    assert (found["b.head"], found["b.num"]) == ("Generation takes ", "55 %")
    assert found["b.l.wait"] == "Generate 55 %"
    assert found["p.steps.0.l"] == "generation"
    assert found["k.wait.p"] == "Not applicable"


def test_verdict_takes_the_banner(reader: MemoryReader) -> None:
    verdict = {"outcome": "generator_bound", "confidence": "high", "summary": "Engines are full", "next": ["Add 2"]}
    reader.set_verdict(fake.RICH, verdict)
    found = cells(reader)
    assert (found["b.chip"], found["b.head"], found["b.num"]) == ("Generator-bound", "Engines are full", "")
    assert "high confidence" in found["b.meta"]
    assert found["f.next.0"] == "Add 2"


def test_a_thousand_targets_fold(reader: MemoryReader) -> None:
    reader.set_targets(fake.RICH, *(fake.target(f"vllm-{i}", "generator", "vllm", up=i != 999) for i in range(1000)))
    found = trust(reader.status(fake.RICH))
    assert found["t.0"][0] == "vllm-999"  # type: ignore[index]
    assert f"t.{MOST}" not in found and found["t.more"] == "and 960 more, all healthier than these"


# Address.


@pytest.mark.parametrize(
    ("search", "address"),
    [
        ("", Address(None)),
        ("?run=a%2Fb&range=6h", Address("a/b", "6h")),
        ("?run=a&range=9y", Address("a")),
        ("?start=100&end=200", Address(None, "1h", 100.0, 200.0)),
        ("?start=200&end=100", Address(None)),
        ("?start=nan&end=inf", Address(None)),
    ],
)
def test_parse(search: str, address: Address) -> None:
    assert urlstate.parse(search) == address


def run(lifecycle: str) -> RunInfo:
    return RunInfo("r", "", "", lifecycle, 1000.0, 5000.0)


def test_span() -> None:
    assert urlstate.span(Address("r", "15m"), run("running"), 9000.0) == urlstate.Span(8100.0, 9000.0, True)
    assert urlstate.span(Address("r", "all"), run("running"), 9000.0) == urlstate.Span(1000.0, 9000.0, True)
    assert urlstate.span(Address("r", "15m"), run("finished"), 9000.0) == urlstate.Span(4100.0, 5000.0, False)
    fixed = Address("r", "1h", 10.0, 20.0)
    assert urlstate.span(fixed, run("running"), 9000.0) == urlstate.Span(10.0, 20.0, False)


def test_page_of_an_empty_store_tells_what_to_do() -> None:
    boot = callbacks.build(MemoryReader(fake.NOW), Views(), {"search": "", "tz": 0, "n": 3})[0]
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
    boot = callbacks.build(reader, Views(), {"search": f"?run={fake.RICH}", "tz": 0})[0]
    assert order[0] == "cursor" and boot["cursor"] == reader.cursor(fake.RICH)
    assert all(boot["has"].values())
