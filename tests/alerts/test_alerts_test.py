"""`rollscope alerts test`: files in promtool's layout, through the real rule reader and the real default pack."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from server.cli import alerts as cli_alerts
from server.config.alerts import load_rules
from server.lib.errors import ConfigError

RULES = """
[alerts]
[[alerts.rule]]
name = "Starved"
signal = "trainer_wait_ratio"
above = 0.5
recover = 0.3
for = "10s"
severity = "critical"
annotations.summary = "waits $value"

[[alerts.rule]]
name = "Preempting"
metric = "generator_preemptions_total"
increase_over = "20s"
above = 5
match = ['target=~"e.*"']
"""
STARVED = {"severity": "critical"}


def write(folder: Path, tests: list[dict[str, Any]], **more: Any) -> Path:
    (folder / "rules.toml").write_text(RULES)
    whole = {"rule_files": ["rules.toml"], "default_pack": False, "evaluation_interval": "5s", "tests": tests, **more}
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(whole))
    return path


def case(
    values: str, expected: dict[str, list[dict[str, Any]]], series: str = "trainer_wait_ratio", **more: Any
) -> Any:
    """One series and what must fire: eval_time -> expected alerts."""
    return {
        "input_series": [{"series": series, "values": values}],
        "alert_rule_test": [
            {"eval_time": at, "alertname": "Starved", "exp_alerts": alerts} for at, alerts in expected.items()
        ],
        **more,
    }


FIRES: list[dict[str, Any]] = [{"exp_labels": STARVED}]


def result(path: Path) -> tuple[str, bool]:
    return cli_alerts.run_cases(path, load_rules)


@pytest.mark.parametrize(
    "one",
    [
        case("0.6x9", {"0s": [], "9s": [], "10s": FIRES, "49s": FIRES}),
        case("0.6x2 0.4 0.4 0.3 0.6", {"10s": FIRES, "20s": FIRES, "25s": []}),
        case("0.6 _x3 0.6 0.6", {"20s": [], "25s": FIRES}),
        case("0.6x2 _x100 0.1", {"500s": FIRES, "515s": []}),
        case("0.6x2 stale 0.6x2", {"10s": FIRES, "15s": [], "25s": [], "30s": FIRES}),
        case("0.6x2 NaN 0.1", {"15s": FIRES, "20s": []}),
        case("0.6x2", {"1h": FIRES}),  # after the last value nothing is known: held
        case("0.6x1", {"1h": []}),
        case("0.6x20", {"10m": []}, lifecycle="paused"),
        case("0.6x20", {"15s": [], "25s": FIRES, "1m": []},
              lifecycle=[{"at": "1m", "state": "finished"}, {"at": "15s", "state": "running"}]),
        case("0.6 0 0.6", {"5s": [], "25s": FIRES, "30s": [], "60s": [], "70s": FIRES}, interval="30s"),
    ],
)  # fmt: skip
def test_when_a_rule_fires(one: dict[str, Any], tmp_path: Path) -> None:
    assert result(write(tmp_path, [one])) == (f"Unit Testing:  {tmp_path / 'test.yml'}\n  SUCCESS", True)


@pytest.mark.parametrize(
    ("values", "at", "fires"),
    [("0+1x10", "40s", False), ("0+2x10", "40s", True), ("0+2x10", "15s", False), ("0+2x10", "20s", True),
     ("100 100 100 100 100 6", "25s", True), ("100 100 100 100 100 5", "25s", False), ("5x9", "40s", False)],
)  # fmt: skip
def test_increase_of_a_counter(values: str, at: str, fires: bool, tmp_path: Path) -> None:
    """More than 5 in 20 s; a decrease is a reset; a series younger than the window says nothing."""
    expected = [{"exp_labels": {"severity": "warning", "target": "e0"}}] if fires else []
    one = {
        "input_series": [
            {"series": 'generator_preemptions_total{target="e0"}', "values": values},
            {"series": 'generator_preemptions_total{ target = "other" }', "values": "0+100x20"},
        ],
        "alert_rule_test": [{"eval_time": at, "alertname": "Preempting", "exp_alerts": expected}],
    }
    assert result(write(tmp_path, [one]))[1]


def test_a_failure_shows_what_was_expected_and_what_was_got(tmp_path: Path) -> None:
    wrong = [{"exp_labels": {"severity": "warning"}, "exp_annotations": {"summary": "waits 60%"}}]
    path = write(tmp_path, [case("0.6x9", {"10s": wrong, "20s": FIRES, "30s": []}, name="one")])
    labels = 'alertname="Starved", class="tuning", run="test", severity="critical"'
    got = f'[\n            Labels:{{{labels}}} Annotations:{{summary="waits 60%"}}]'
    expected = '[\n            Labels:{alertname="Starved", severity="warning"} Annotations:{summary="waits 60%"}]'
    assert result(path) == (
        f"""Unit Testing:  {path}
  FAILED:
    name: one, alertname: Starved, time: 10s,
        exp:{expected}
        got:{got}
    name: one, alertname: Starved, time: 30s,
        exp:[nothing]
        got:{got}""",
        False,
    )


@pytest.mark.parametrize(
    ("alert", "met"),
    [
        ({"exp_labels": STARVED}, True),
        ({"exp_labels": {**STARVED, "class": "tuning", "run": "r7"}}, True),
        ({"exp_labels": {**STARVED, "run": "test"}}, False),
        ({"exp_labels": {}}, False),
        ({"exp_labels": {**STARVED, "more": ""}}, False),
        ({"exp_labels": STARVED, "exp_annotations": {"summary": "waits 60%"}}, True),
        ({"exp_labels": STARVED, "exp_annotations": {}}, False),
    ],
)
def test_labels_and_annotations_are_compared(alert: dict[str, Any], met: bool, tmp_path: Path) -> None:
    assert result(write(tmp_path, [case("0.6x9", {"10s": [alert]}, run="r7")]))[1] is met


def test_an_expected_alert_is_used_once(tmp_path: Path) -> None:
    assert not result(write(tmp_path, [case("0.6x9", {"10s": FIRES * 2})]))[1]


def test_the_default_pack_is_there_unless_switched_off(tmp_path: Path) -> None:
    one = {
        "input_series": [{"series": 'target_up{kind="vllm",target="e0"}', "values": "1 0x20"}],
        "alert_rule_test": [
            {"eval_time": "1m", "alertname": "TargetDown", "exp_alerts": []},
            {"eval_time": "65s", "alertname": "TargetDown",
             "exp_alerts": [{"exp_labels": {"severity": "critical", "kind": "vllm", "target": "e0"}}]},
        ],
    }  # fmt: skip
    path = tmp_path / "pack.yml"
    path.write_text(yaml.safe_dump({"tests": [one]}))
    assert result(path)[1]
    path.write_text(yaml.safe_dump({"tests": [one], "default_pack": False}))
    with pytest.raises(ConfigError, match="there is no rule 'TargetDown'"):
        result(path)


def test_an_error_of_a_rule_is_a_failure(tmp_path: Path) -> None:
    one = case("0.6x9", {"10s": []})
    one["input_series"] = [{"series": f'trainer_wait_ratio{{stat="{n}"}}', "values": "0.6x9"} for n in "ab"]
    path = write(tmp_path, [one])
    (tmp_path / "rules.toml").write_text(
        RULES.replace('severity = "critical"', 'severity = "critical"\nlabels.stat = "x"')
    )
    text, fine = result(path)
    assert not fine
    assert "two of its alerts have the same labels: alertname=Starved, class=tuning" in text


BROKEN: list[tuple[str, str]] = [
    ("tests: [", "not YAML"),
    ("[1, 2]", "must be a table"),
    ("!!python/object/apply:os.system ['true']", "not YAML"),
    ("tests: []", "has no test"),
    ("tests: 5", "must be a list"),
    ("tests: [5]", "tests[0]: must be a table"),
    ("{tests: [{}], evaluation_interval: 0s}", "evaluation_interval: must be longer than 0"),
    ("{tests: [{}], evaluation_interval: -1}", "evaluation_interval: a duration is between"),
    ("{tests: [{}], interval: 5s}", "interval: unknown key"),
    ("{tests: [{interval: five}]}", "tests[0].interval: 'five' is not a duration"),
    ("{tests: [{lifecycle: dead}]}", "tests[0].lifecycle[0].state: must be one of"),
    ("{tests: [{input_series: [{series: 'a b{', values: 1}]}]}", "not a series name"),
    ("{tests: [{input_series: [{series: reward, values: 1y}]}]}", "'1y' is not a value of the notation"),
    ("{tests: [{input_series: [{series: rewrad, values: 1}]}]}", "no rule reads 'rewrad'"),
    ("{tests: [{alert_rule_test: [{eval_time: 1m, alertname: Nobody}]}]}", "there is no rule 'Nobody'"),
    ("{tests: [{alert_rule_test: [{eval_time: 200y, alertname: RunStalled}]}]}", "evaluations away"),
    ("{tests: [{alert_rule_test: [{exp_alerts: [{exp_labels: 5}]}]}]}", "must be a table of texts"),
    ("{tests: [{}], rule_files: [nothing.toml]}", "nothing.toml: No such file"),
    ("{tests: [{}], rule_files: [broken.toml]}", "broken.toml: not TOML"),
    ("{tests: [{}], rule_files: [wrong.toml]}", "needs exactly one of"),
    ("a: &a [1]\nb: [" + "*a, " * 10 + "]", "unknown key"),
    ("[" * 5000, "not YAML"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_broken_file_says_what_is_wrong(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "test.yml").write_text(text)
    (tmp_path / "broken.toml").write_text("[alerts")
    (tmp_path / "wrong.toml").write_text('[[rule]]\nname = "Wrong"\n')
    with pytest.raises(ConfigError) as error:
        result(tmp_path / "test.yml")
    assert problem in str(error.value)


def test_all_problems_at_once(tmp_path: Path) -> None:
    (tmp_path / "test.yml").write_text("{tests: [{interval: a, lifecycle: b}, {input_series: [{values: c}]}], more: 1}")
    with pytest.raises(ConfigError) as error:
        result(tmp_path / "test.yml")
    assert len(error.value.problems) == 4


def test_no_file_and_too_large_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        result(tmp_path / "none.yml")
    (tmp_path / "test.yml").write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        result(tmp_path / "test.yml")


def test_values_are_bounded_over_the_whole_file(tmp_path: Path) -> None:
    series = [{"series": f'reward{{i="{n}"}}', "values": "1x99999"} for n in range(21)]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [{"input_series": series}]}))
    with pytest.raises(ConfigError, match="more than 2,000,000 values in one file"):
        result(tmp_path / "test.yml")
