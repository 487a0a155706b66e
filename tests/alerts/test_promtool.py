"""Differential test: the state machine against Prometheus' own, on random series. One promtool call for all cases."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from server.alerts.model import Rule
from server.alerts.rules import Evaluator
from server.alerts.text import duration
from tests.alerts.support import T0, OneFrame, Row, rule, table

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)

INTERVAL, STEPS, SERIES, RULES = 10, 80, 3, 60
LEVELS = [0.0, 0.5, 1.0, 1.5]


def some_rules(rng: random.Random) -> list[Rule]:
    """Rules on their own series: `for` and `keep_firing_for` on, off and beside the grid."""
    times = [0, 0, 4, 10, 15, 20, 30, 70]
    return [
        rule(
            f"A{n}", on=f"s{n}", threshold=rng.choice(LEVELS), op=rng.choice([">", ">=", "<", "<=", "==", "!="]),
            for_seconds=rng.choice(times), keep_firing_seconds=rng.choice(times),
            also=(rule(on=f"s{n - 1}", threshold=0.5).condition,) if n % 4 == 3 else (),
        )
        for n in range(RULES)
    ]  # fmt: skip


def some_values(rng: random.Random) -> list[float | None]:
    """One series, None where it is gone; runs of equal values, or nothing would ever last."""
    found: list[float | None] = []
    while len(found) < STEPS:
        found += [rng.choice([*LEVELS, 2.0, None])] * rng.choice([1, 1, 2, 3, 6, 10])
    return found[:STEPS]


def written(values: list[float | None]) -> str:
    """In promtool's notation; a series that goes is marked stale, as a scrape that does not find it would."""
    words, there = [], False
    for value in values:
        words.append(str(value) if value is not None else "stale" if there else "_")
        there = value is not None
    return " ".join(words)


def promql(one: Rule) -> str:
    texts = [f"{c.name} {c.op} {c.threshold}" for c in one.conditions]
    return " and ".join(texts)


def rule_file(rules: list[Rule]) -> dict[str, Any]:
    entries = [
        {"alert": r.name, "expr": promql(r), "for": duration(r.for_seconds),
         "keep_firing_for": duration(r.keep_firing_seconds)}
        for r in rules
    ]  # fmt: skip
    return {"groups": [{"name": "g", "interval": f"{INTERVAL}s", "rules": entries}]}


def frame_at(step: int, series: dict[str, dict[str, list[float | None]]]) -> OneFrame:
    tables = {}
    for name, by_label in series.items():
        row: Row = {f"i={i}": value for i, values in by_label.items() if (value := values[step]) is not None}
        tables[name] = table(row)
    return OneFrame(T0 + step * INTERVAL, tables)


def ours(rules: list[Rule], series: dict[str, dict[str, list[float | None]]]) -> list[dict[str, Any]]:
    """What Prometheus' ALERTS must be after each evaluation."""
    evaluator, tests = Evaluator(rules, "r"), []
    for step in range(STEPS):
        evaluator.evaluate(frame_at(step, series))
        found = [alert for alert in evaluator.active if alert.state in ("pending", "firing")]
        samples = [
            f'ALERTS{{alertname="{alert.rule}",alertstate="{alert.state}",i="{dict(alert.series)["i"]}"}}'
            for alert in found
        ]
        tests.append(
            {"expr": "ALERTS", "eval_time": f"{step * INTERVAL}s",
             "exp_samples": [{"labels": labels, "value": 1} for labels in samples]}
        )  # fmt: skip
    return tests


def promtool(folder: Path, rules: list[Rule], series: dict[str, Any], tests: list[dict[str, Any]]) -> str:
    given = [
        {"series": f'{name}{{i="{i}"}}', "values": written(values)}
        for name, by_label in series.items()
        for i, values in by_label.items()
    ]
    # JSON, which is YAML that is written in no time.
    test = {"interval": f"{INTERVAL}s", "input_series": given, "promql_expr_test": tests}
    (folder / "rules.yml").write_text(json.dumps(rule_file(rules)))
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": f"{INTERVAL}s", "tests": [test]}
    (folder / "test.yml").write_text(json.dumps(whole))
    done = subprocess.run(
        ["promtool", "test", "rules", folder / "test.yml"], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr + done.stdout


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_timelines_equal_those_of_prometheus(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rules = some_rules(rng)
    series = {f"s{n}": {str(i): some_values(rng) for i in range(SERIES)} for n in range(RULES)}
    tests = ours(rules, series)
    assert promtool(tmp_path, rules, series, tests) == ""
    # The comparison says something only if much happens: both states, in many evaluations.
    said = [sample["labels"] for test in tests for sample in test["exp_samples"]]
    assert sum("pending" in text for text in said) > 500
    assert sum("firing" in text for text in said) > 1_000
    # And it must be able to fail: one state changed is found.
    wrong = next(sample for test in tests for sample in test["exp_samples"] if "pending" in sample["labels"])
    wrong["labels"] = wrong["labels"].replace("pending", "firing")
    assert "FAILED" in promtool(tmp_path, rules, series, tests)
