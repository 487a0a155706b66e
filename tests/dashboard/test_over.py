"""What a chart is compared with, and alert thresholds on it."""

from typing import Any

import pytest

from dashboard import callbacks
from dashboard.charts.panels import PANELS
from dashboard.shell.page import Scope
from dashboard.state.deltas import SentViews
from dashboard.widgets.chart import thresholds
from server.query.types import RuleInfo, StepAt
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader

BY_KEY = {panel.key: panel for panel in PANELS}
NOW, OTHER = fake.NOW, "other-run"


@pytest.fixture
def reader() -> MemoryReader:
    """Two hours of one line that counts minutes, and another run that began 10 min before, counting from 1,000."""
    made = MemoryReader(NOW, fake.INFOS)
    reward = fake.signal("reward", unit="reward", stat="mean")
    for run, first, base in ((fake.RICH, 7200, 0.0), (OTHER, 7800, 1000.0)):
        made.add_run(run, facts=fake.FACTS)
        made.append(run, reward, [(NOW - first + 60 * i, base + i) for i in range(first // 60 + 1)])
    return made


def boot(reader: MemoryReader, search: str) -> dict[str, Any]:
    wanted = {"search": f"?run={fake.RICH}&{search}", "path": "", "have": ["overview"], "n": 1}
    found = callbacks.build(lambda run, every: Scope(reader, run, every), SentViews(), wanted)[0]
    assert isinstance(found, dict)
    return found


def behind(reader: MemoryReader, search: str) -> tuple[list[float], list[float | None]]:
    """(minutes before now, values) of what lies behind the reward."""
    data = boot(reader, search)["figures"]["reward"]["data"]
    (trace,) = (one for one in data if one["meta"] == "over:reward.0")
    assert trace["line"]["dash"] == "dash" and data[0] is trace
    return [(NOW * 1000 - x) / 60_000 for x in trace["x"]], trace["y"]


def test_an_hour_ago_is_drawn_where_now_is(reader: MemoryReader) -> None:
    minutes, values = behind(reader, "range=1h&over=1h")
    # An hour before, the count was 0 to 60; a quarter of the time is read ahead.
    assert (minutes[0], values[0]) == (60, 0) and (minutes[60], values[60]) == (0, 60)
    assert (minutes[-1], values[-1]) == (-15, 75)
    assert boot(reader, "range=1h&over=1h")["behind"] == ["an hour ago", ["reward.0"]]


def test_another_run_from_its_start_or_at_its_end(reader: MemoryReader) -> None:
    minutes, values = behind(reader, f"range=1h&over={OTHER}")
    # Both began together: after an hour each had counted to 60.
    assert (minutes[0], values[0]) == (60, 1060)
    minutes, values = behind(reader, f"range=1h&over={OTHER}&align=now")
    assert (minutes[0], values[0]) == (60, 1070) and (minutes[-1], values[-1]) == (0, 1130)


def test_another_run_at_the_same_step(reader: MemoryReader) -> None:
    reader.records(fake.RICH).steps = [StepAt(NOW - 7200 + 600 * i, i, 0) for i in range(13)]
    reader.records(OTHER).steps = [StepAt(NOW - 7800 + 300 * i, i, 0) for i in range(27)]
    minutes, values = behind(reader, f"range=1h&over={OTHER}&axis=step")
    # Here a step takes 10 min, there 5: what it had after 30 min (step 6) lies at our hour ago (step 6).
    assert (minutes[0], values[0]) == (60, 1030) and (minutes[1], values[1]) == (58, 1031)
    assert (minutes[-1], values[-1]) == (0, 1060)


@pytest.mark.parametrize("over", ["nobody", "%3Cb%3E", OTHER + "&axis=step"])
def test_nothing_to_compare_with_is_said(reader: MemoryReader, over: str) -> None:
    found = boot(reader, f"over={over}")
    assert found["behind"][0].startswith("nothing to compare with: ") and found["behind"][1] == []
    assert [t["meta"] for t in found["figures"]["reward"]["data"]] == ["reward.0"]


def test_parts_of_a_whole_and_thin_lines_have_nothing_behind() -> None:
    found = boot(fake.reader(7200), "over=1h")["figures"]
    metas = {key: [t["meta"] for t in figure["data"] if t["meta"][:5] == "over:"] for key, figure in found.items()}
    assert metas["steps"] == metas["zero"] == []
    assert metas["queue"] == ["over:queue.1"]
    assert metas["requests"] == ["over:requests.0", "over:requests.1"]


def test_without_asking_nothing_more_is_read(reader: MemoryReader) -> None:
    found = boot(reader, "range=1h")
    assert "behind" not in found and "stepped" not in found
    assert not [call for call in reader.calls if OTHER in call]


def rule(name: str, signal: str, threshold: float | None, severity: str = "warning", why: str = "") -> RuleInfo:
    return RuleInfo(name, severity, "tuning", "", "", True, why, signal, threshold)


def test_thresholds_are_three_lines_with_the_bands() -> None:
    kv, queue, infos = BY_KEY["kv"], BY_KEY["queue"], {one.name: one for one in fake.INFOS}
    rules = [
        rule("Full", "kv_cache_usage_ratio", 0.97), rule("Filling", "kv_cache_usage_ratio", 0.8),
        rule("Emptying", "kv_cache_usage_ratio", 0.2), rule("Grave", "kv_cache_usage_ratio", 0.5, "critical"),
    ]  # fmt: skip
    bands = [("watch", 0.9, ""), ("critical", 0.97, "")]
    # One at a band has its line; of the others the gravest has the one that is left.
    assert thresholds(kv, rules, bands, infos) == [("critical", 0.5, "alert at 50%")]
    assert thresholds(kv, rules[:1], bands, infos) == []
    assert thresholds(kv, rules[:2], [], infos) == [("watch", 0.97, "alert at 97%"), ("watch", 0.8, "alert at 80%")]
    same = [
        rule("A", "queue_samples", 64.0),
        rule("B", "queue_samples_now", 64.0, "critical"),
        rule("C", "reward", 1.0),
    ]
    assert thresholds(queue, same, [], infos) == [("critical", 64.0, "alert at 64")]
    silent = [rule("Never", "queue_samples", 8.0, why="no source"), rule("Drift", "queue_samples", None)]
    assert thresholds(queue, silent, [], infos) == []
    assert thresholds(BY_KEY["steps"], [rule("Slow", "trainer_phase_seconds", 9.0)], [], infos) == []


def test_a_threshold_far_off_is_named_and_not_drawn() -> None:
    made = fake.reader(600)
    made.rule_rows = [rule("Near", "reward", 0.7), rule("Far", "reward", 5.0)]
    found = boot(made, "")
    assert found["rules"] == {"reward": [["watch", "alert at 0.7", True], ["watch", "alert at 5", False]]}
    shapes = found["figures"]["reward"]["layout"]["shapes"]
    assert [(shape["y0"], shape["line"]["dash"]) for shape in shapes] == [(0.7, "dash")]
