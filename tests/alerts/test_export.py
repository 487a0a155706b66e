"""What Grafana and Prometheus are given: checked by promtool, and fired by the same series as our own rules."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from server import signals
from server.cli import export
from server.config import alerts
from server.lib.errors import Problems

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)

EVERY = {rule.name: rule for rule in alerts.load_rules({}, Problems())}


def promtool(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *args], cwd=cwd, capture_output=True, text=True, check=False)


def test_a_rule_becomes_promql_with_hysteresis_hold_and_lifecycle() -> None:
    firing = (
        'and ignoring (alertname, alertstate, severity, class) ALERTS{alertname="TrainerStarved", alertstate="firing"}'
    )
    assert export.expression(EVERY["TrainerStarved"]) == (
        f"(rollscope_trainer_wait_ratio > 0.4 or (rollscope_trainer_wait_ratio > 0.3 {firing}) or "
        f"(last_over_time(rollscope_trainer_wait_ratio[1d]) {firing} unless on (run) rollscope_trainer_wait_ratio "
        'and on (run) (rollscope_signal_state{signal="trainer_wait_ratio", state="unknown"} == 1))) '
        'and on (run) (rollscope_run_state{state=~"running"} == 1)'
    )
    assert export.expression(EVERY["TargetDown"]).startswith(
        '(rollscope_target_up{kind!~"heartbeat|file_sd|http_sd|prometheus_yml|router|run_dir"} == 0) and on (run)'
    )
    assert "and on (run, target) (rollscope_target_up == 1) and" in export.expression(EVERY["EngineDown"])
    total = "rollscope_sandbox_failures_total"
    assert export.expression(EVERY["SandboxInitFailures"]).startswith(
        f"(({total} - ({total} offset 10m or min_over_time({total}[10m]))) > 10) and on (run)"
    )
    assert export.expression(EVERY["IdleBurn"]).startswith("(sum by (run) (rollscope_idle_usd_total - (")


def test_further_conditions_are_joined_on_the_labels_of_both() -> None:
    assert " and on (run, basis) (rollscope_zero_advantage_low_ratio > 0.33 or " in export.expression(
        EVERY["ZeroAdvantageHigh"]
    )
    assert " and on (run) (rollscope_zero_advantage_ratio > 0.4 or " in export.expression(EVERY["RewardFlat"])


def test_an_alert_is_held_as_long_as_missing_data_says() -> None:
    table = {"name": "Mine", "signal": "reward", "match": ['stat="mean"'], "below": 0, "no_data": "ok"}
    (rule,) = alerts.load_rules({"default_pack": False, "rule": [table]}, Problems())
    assert 'last_over_time(rollscope_reward{stat="mean"}[5m])' in export.expression(rule)
    assert "last_over_time(rollscope_trainer_wait_ratio[1d])" in export.expression(EVERY["TrainerStarved"])


def test_texts_become_prometheus_templates() -> None:
    rule = EVERY["TrainerStarved"]
    assert export.annotation("$value of $run at ${label_target}, 5$$ {{ x }}", rule) == (
        '{{ $value | humanizePercentage }} of {{ $labels.run }} at {{ $labels.target }}, 5$ {{ "{{" }} x }}'
    )
    assert export.annotation("$threshold $for $expression", rule) == "40% 5m trainer_wait_ratio > 0.4 for 5m"


def test_a_rule_on_a_metric_is_left_out_in_words_unless_it_brings_its_own() -> None:
    table = {"name": "Mine", "metric": "generator_requests_waiting", "above": 1}
    (bare,) = alerts.load_rules({"default_pack": False, "rule": [table]}, Problems())
    (own,) = alerts.load_rules({"default_pack": False, "rule": [{**table, "promql": "up == 0"}]}, Problems())
    assert yaml.safe_load(export.rules([bare]))["groups"][0]["rules"] == []
    assert "# Mine: left out" in export.rules([bare])
    assert yaml.safe_load(export.rules([own]))["groups"][0]["rules"][0]["expr"].startswith("up == 0 and on (run)")


@needs_promtool
def test_promtool_takes_the_whole_pack(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(export.rules(list(EVERY.values())))
    done = promtool("check", "rules", "rules.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(EVERY) + len(export.UNHEALTHY)} rules found" in done.stdout


# What makes each rule about Rollscope itself fire: series, one value a minute, the first minute in which it fires.
UNHEALTHY: dict[str, tuple[dict[str, str], int]] = {
    "down": ({'rollscope_build_info{version="1"}': "1x5 stale _x13"}, 6 + 2),
    # At minute 7 the newest step is 120 s old.
    "stuck": ({'rollscope_tick_timestamp_seconds{run="r"}': "0+60x5 300x14"}, 7 + 1),
    # 12 steps of 4.5 s a minute, from the second value on.
    "slow": (
        {'rollscope_tick_seconds_sum{run="r"}': "0+54x19", 'rollscope_tick_seconds_count{run="r"}': "0+12x19"}, 1 + 5,
    ),
    "dropping": ({"rollscope_store_dropped_rows_total": "0x5 10x14"}, 6),
    # One retry at minute 4, and from 11 on 3 a minute: the second makes more than 5 within five minutes.
    "store": ({"rollscope_store_retries_total": "0x3 1x6 4+3x9"}, 12 + 5),
    "inbox": ({"rollscope_inbox_rows": "100000x3 100001x16"}, 4 + 1),
    "retention": ({"rollscope_retention_lag_seconds": "3600 3601x18"}, 1 + 10),
    # From the second hour on it does not shrink: minute 120 is the first with an hour of it.
    "packing": ({"rollscope_packing_backlog_hours": "90-1x60 30x140"}, 120 + 60),
    "size": ({"rollscope_store_disk_bytes": "100x3 101x30", "rollscope_store_limit_bytes": "100x33"}, 4 + 15),
    "files": ({'rollscope_process_open_files{process="web"}': "900x2 901x17"}, 3 + 5),
}  # fmt: skip


@needs_promtool
def test_prometheus_fires_when_rollscope_itself_is_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(export.rules([]))
    up = {'rollscope_build_info{version="1"}': "1x200"}
    tests = []
    for reason, (series, first) in UNHEALTHY.items():
        expr = f'count by (reason) (ALERTS{{alertname="RollscopeUnhealthy",alertstate="firing"}}) # {reason}'
        fires = [{"labels": f'{{reason="{reason}"}}', "value": 1}]
        tests.append({
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in (up | series).items()],
            "promql_expr_test": [
                {"expr": expr, "eval_time": f"{first - 1}m", "exp_samples": []},
                {"expr": expr, "eval_time": f"{first}m", "exp_samples": fires},
            ],
        })  # fmt: skip
    assert set(UNHEALTHY) == {reason for reason, _, _ in export.UNHEALTHY}
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


HEALTHY_DAY = {
    'rollscope_build_info{version="1"}': "1x1440",
    'rollscope_tick_timestamp_seconds{run="r"}': "0+60x1440",
    # A run that is over takes no steps, and its loop goes on.
    'rollscope_tick_timestamp_seconds{run="over"}': "0+60x1440",
    'rollscope_tick_seconds_sum{run="r"}': "0+4x1440",
    'rollscope_tick_seconds_count{run="r"}': "0+12x1440",
    "rollscope_store_dropped_rows_total": "0x1440",
    # A retry in each of a few hours.
    "rollscope_store_retries_total": "0x300 1x300 2x300 3x540",
    "rollscope_inbox_rows": "0 " + "2000 40000 500 0 " * 360,
    # Two minutes of work each hour, for the rows of a slot.
    "rollscope_retention_lag_seconds": ("0 " * 57 + "10 70 130 ") * 24,
    # A history of 400 hours is read first; then the hour of each of three runs is packed within minutes.
    "rollscope_packing_backlog_hours": "400-10x40 " + ("0 " * 57 + "3 2 1 ") * 23,
    'rollscope_process_open_files{process="web"}': "60x1440",
    # The limit is reached in the afternoon: what is written in between is above it for a minute.
    "rollscope_store_disk_bytes": "100+1x900 " + "1001 999 1000 " * 180,
    "rollscope_store_limit_bytes": "1000x1440",
}


@needs_promtool
def test_a_healthy_day_fires_nothing(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(export.rules([]))
    firing, read = 'ALERTS{alertstate="firing"}', '{__name__=~"rollscope_.+"}'
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in HEALTHY_DAY.items()],
        "promql_expr_test": [
            # Each alert that has fired, by its reason.
            {"expr": f"count by (reason) (count_over_time({firing}[1d]))", "eval_time": "1439m", "exp_samples": []},
            # What each rule reads is there.
            {"expr": f"count(count by (__name__) (last_over_time({read}[1d])))", "eval_time": "1439m",
             "exp_samples": [{"labels": "{}", "value": 12}]},
        ],
    }  # fmt: skip
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- grafana


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export.grafana())
    return found


def test_the_dashboard_has_a_panel_for_every_signal() -> None:
    exprs = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    named = {name for expr in exprs for name in re.findall(r"rollscope_([a-z0-9_]+)", expr)}
    assert {item.name for item in signals.load()} <= named


def test_panels_do_not_overlap_and_have_ids() -> None:
    places, ids = set(), []
    for panel in board()["panels"]:
        ids.append(panel["id"])
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places and at["x"] + at["w"] <= 24
        places |= cells
    assert len(set(ids)) == len(ids)


@needs_promtool
def test_every_query_of_the_dashboard_parses(tmp_path: Path) -> None:
    exprs = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    made = [{"record": f"x:{n}", "expr": expr.replace("$run", "r")} for n, expr in enumerate(exprs)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": made}]}))
    done = promtool("check", "rules", "rules.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
