"""A trainer nobody has met: the user's own table over its log, from TOML to samples."""

import json
from pathlib import Path

import pytest

from collectors.model import Limits, Reading, Sample
from collectors.trainers import custom
from server.config.settings import build
from server.lib.errors import ConfigError
from server.targets.resolve import attach

MAPS = [
    {"key": "clock/step_ms", "metric": "trainer_step_seconds", "unit": "ms"},
    {"key": "clock/wait_.*", "metric": "trainer_wait_seconds", "unit": "s"},
    {"key": "util.mfu", "metric": "trainer_mfu_ratio", "unit": "percent", "labels": {"basis": "wall"}},
    {"key": "tokens_seen", "metric": "trained_tokens", "reduction": "total"},
    {"key": "buffer", "metric": "queue_samples", "scale": 8},
    {"key": "lr_.*", "ignore": True},
]
ROWS = [
    {
        "iteration": 7, "time": 1_800_000_000, "clock/step_ms": 30_000, "clock/wait_batch": 12.5,
        "util": {"mfu": 40}, "tokens_seen": 1000, "buffer": 4, "lr_a": 1, "mystery": 3,
    },
    {
        "iteration": 8, "time": 1_800_000_030_000, "clock/step_ms": 31_000, "clock/wait_batch": "13",
        "tokens_seen": 1600, "note": "x",
    },
    {"iteration": 9, "time": "2027-01-15T08:01:00Z", "tokens_seen": 100, "clock/step_ms": None},
]  # fmt: skip


def options(**more: str) -> dict[str, str]:
    return {"map": json.dumps(MAPS), **more}


def write(path: Path, rows: list[dict]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path, cursor: dict | None = None, **more: str) -> Reading:
    tail = custom.configured(options(**more)).tail
    assert tail is not None
    return tail(path, json.loads(json.dumps(cursor or {})), Limits(), 1_800_000_500.0)


def said(reading: Reading) -> set[tuple[str, float, int | None, float | None]]:
    return {(sample.metric, sample.value, sample.step, sample.ts) for sample in reading.samples}


def test_a_table_over_json_lines(tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", ROWS)
    reading = read(tmp_path)
    first, second, third = 1_800_000_000.0, 1_800_000_030.0, 1_800_000_060.0
    assert said(reading) == {
        ("trainer_step_seconds", 30.0, 7, first), ("trainer_wait_seconds", 12.5, 7, first),
        ("trainer_mfu_ratio", 0.4, 7, first), ("queue_samples", 32.0, 7, first),
        ("trainer_step_seconds", 31.0, 8, second),
        # A total's first value says nothing of its step; a decrease is a process that began anew.
        ("trained_tokens", 600.0, 8, second), ("trained_tokens", 100.0, 9, third),
    }  # fmt: skip
    assert Sample("trainer_mfu_ratio", 0.4, (("basis", "wall"),), first, 7, "trainer") in reading.samples
    assert reading.unmapped == {"mystery": 1}
    assert not {"framework", "mode"} & reading.facts.keys()


def test_totals_go_on_over_restarts(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    write(log, ROWS[:1])
    before = read(log)
    write(log, [{"iteration": 8, "time": 1_800_000_030, "tokens_seen": 1600}])
    assert said(read(log, dict(before.cursor or {}))) == {("trained_tokens", 600.0, 8, 1_800_000_030.0)}


def test_named_fields_win(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"step": 1, "outer": 5, "ts": 1_800_000_000, "at": 1_800_000_100, "buffer": 1}])
    assert said(read(tmp_path, step_key="outer", time_key="at")) == {("queue_samples", 8.0, 5, 1_800_000_100.0)}


def test_the_configuration_says_what_is_wrong_all_at_once() -> None:
    maps = [
        {"key": "(", "metric": "trainer_step_seconds"},
        {"key": "a", "metric": "trainer_stp_seconds"},
        {"key": "a", "metric": "trainer_step_seconds", "unit": "percent"},
        {"metric": "reward_mean", "scale": 0, "reduction": "sum", "colour": 1},
        "x",
    ]
    target = {"path": "/x", "collector": "custom", "map": maps, "options": {"format": "excel"}}
    with pytest.raises(ConfigError) as caught:
        build({"run": {"a": {"target": [target, {"path": "/y", "collector": "custom"}]}}}, {"HOME": "/h"})
    where = "run.a.target[0].map"
    assert caught.value.problems == [
        f"run.a.target[0].options.format: must be one of {', '.join(custom.FORMATS)}",
        f"{where}[0]: key: not a regular expression: missing ), unterminated subpattern at position 0",
        f"{where}[1]: metric: 'trainer_stp_seconds' is not a metric; did you mean trainer_step_seconds or "
        "trainer_wait_seconds or trainer_other_seconds?",
        f"{where}[2]: unit: trainer_step_seconds is in seconds; units that can be converted: "
        "s, seconds, ms, milliseconds, us, ns, min, h",
        f"{where}[3]: colour: unknown key; known: key, metric, unit, scale, reduction, fold, labels, axis, ignore",
        f"{where}[3]: key: is missing: a regular expression that matches the whole of the source's key",
        f"{where}[3]: scale: must be a number that is not 0: stored value = source value * scale",
        f"{where}[3]: reduction: must be one of value, per_step, total, cumulative",
        f"{where}[4]: must be a table",
        "run.a.target[1].map: is missing: collector custom reads what [[run.NAME.target.map]] names",
    ]


def test_from_toml_to_a_target(tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", ROWS)
    raw = {"run": {"forge": {"target": [{"path": str(tmp_path), "collector": "custom", "map": MAPS}]}}}
    (target,) = attach(build(raw, {"HOME": "/h"}).runs[0]).targets
    tail = custom.configured(dict(target.options)).tail
    assert tail is not None
    assert len(tail(Path(target.path), {}, Limits(), 1_800_000_500.0).samples) == 7
