"""What Grafana and Prometheus are given: checked by promtool, and fired by the same series as our own rules."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.docs.labels import LABELS
from server import signals
from server.alerts.inputs import TARGET_UP
from server.alerts.model import Rule
from server.alerts.rules import Evaluator
from server.cli import export
from server.config import alerts as config_alerts
from server.config.errors import Problems
from tests.alerts.support import T0, OneFrame, labels, table

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)

EVERY = {rule.name: rule for rule in config_alerts.load_rules({}, Problems())}


def promtool(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *args], cwd=cwd, capture_output=True, text=True, check=False)


def test_a_rule_becomes_promql_with_hysteresis_and_lifecycle() -> None:
    assert export.expression(EVERY["TrainerStarved"]) == (
        "(rollscope_trainer_wait_ratio > 0.4 or (rollscope_trainer_wait_ratio > 0.3 and ignoring "
        '(alertname, alertstate, severity, class) ALERTS{alertname="TrainerStarved", alertstate="firing"})) '
        'and on (run) (rollscope_run_state{state=~"running"} == 1)'
    )
    assert export.expression(EVERY["AllZeroRewards"]).startswith(
        '(rollscope_reward{stat="mean"} == 0) and on (run) (rollscope_failure_ratio > 0.2) and on (run)'
    )
    assert "== 1) and on (run, target) (rollscope_target_up == 1) and" in export.expression(EVERY["EngineDown"])
    assert export.expression(EVERY["EngineFrozen"]).startswith("(rollscope_generator_frozen == 1) and on (run)")


def test_signals_with_a_series_per_target_are_joined_on_it() -> None:
    assert {name for name, names in LABELS.items() if "target" in names} | {TARGET_UP} == export.PER_TARGET


@needs_promtool
def test_a_down_engine_that_is_read_directly_is_a_down_target_alone(tmp_path: Path) -> None:
    """e0 is read directly and down; e1:8000 is down behind a Prometheus that answers."""
    (tmp_path / "rules.yml").write_text(export.rules([EVERY["EngineDown"], EVERY["TargetDown"]]))
    series = [
        ('rollscope_generator_engine_state{run="r",target="e0",state="down"}', "1x10"),
        ('rollscope_target_up{run="r",target="e0",kind="vllm"}', "0x10"),
        ('rollscope_generator_engine_state{run="r",target="prom",replica="e1:8000",state="down"}', "1x10"),
        ('rollscope_target_up{run="r",target="prom",kind="prometheus"}', "1x10"),
        ('rollscope_run_state{run="r",state="running"}', "1x10"),
    ]
    fired = {"expr": 'count by (alertname, target) (ALERTS{alertstate="firing"})', "eval_time": "5m", "exp_samples": [
        {"labels": '{alertname="EngineDown",target="prom"}', "value": 1},
        {"labels": '{alertname="TargetDown",target="e0"}', "value": 1},
    ]}  # fmt: skip
    one = {"interval": "1m", "promql_expr_test": [fired], "input_series": [
        {"series": name, "values": values} for name, values in series
    ]}  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [one]}))
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_texts_become_prometheus_templates() -> None:
    rule = EVERY["TrainerStarved"]
    assert export.annotation("$value of $run at ${label_target}, 5$$ {{ x }}", rule) == (
        '{{ $value | humanizePercentage }} of {{ $labels.run }} at {{ $labels.target }}, 5$ {{ "{{" }} x }}'
    )
    assert export.annotation("$threshold $for $expression", rule) == "40% 5m trainer_wait_ratio > 0.4 for 5m"


def test_a_rule_on_a_metric_is_left_out_in_words_unless_it_brings_its_own() -> None:
    table = {"name": "Mine", "metric": "generator_requests_waiting", "above": 1}
    (bare,) = config_alerts.load_rules({"default_pack": False, "rule": [table]}, Problems())
    (own,) = config_alerts.load_rules({"default_pack": False, "rule": [{**table, "promql": "up == 0"}]}, Problems())
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
    "files": ({'rollscope_process_open_files{process="web"}': "900x2 901x17"}, 3 + 5),
}  # fmt: skip


@needs_promtool
def test_prometheus_fires_when_rollscope_itself_is_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(export.rules([]))
    up = {'rollscope_build_info{version="1"}': "1x19"}
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


# Series that cross each rule's level, hover between level and recovery, and come back; one value a minute.
CROSSING: dict[str, tuple[str, list[float]]] = {
    "TrainerStarved": ("", [0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.35, 0.35, 0.2, 0.5, 0.1]),
    "RunStalled": ("", [0.5, 1.0, 1.1, 0.95, 0.95, 0.5, 0.2, 1.0, 0.95, 0.0, 0.0, 0.0]),
    "TrainerFault": ("fault=collective_timeout", [0, 0, 1, 1, 0, 0, 1, 0]),
    "TargetDown": ("kind=vllm,target=e0", [1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1]),
    "HeartbeatMissed": ("kind=heartbeat,target=t", [1, 0, 0, 0, 1]),
    "DiscoveryDown": ("kind=file_sd,target=discovery engines", [1, 0, 0, 1] + [0] * 7 + [1, 0]),
    "EngineFrozen": ("target=e0", [0, 1, 1, 0, 1, 0]),
    "NonFiniteGradient": ("", [0, 0, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0]),
    "ZeroAdvantageHigh": ("basis=completed", [0.6] * 11 + [0.45, 0.3]),
    "KVCacheExhausted": ("", [0.96] * 7 + [0.92, 0.92, 0.8, 0.96]),
    "WeightSyncSlow": ("", [0.3] * 6 + [0.22, 0.1, 0.3]),
    "CostOverTarget": ("", [1.2] * 17 + [0.9, 1.2, 0.8]),
    "DiscardHigh": ("", [0.55] * 12 + [0.45, 0.1]),
    "PreemptionsHigh": ("", [0.2] * 7 + [0.07, 0.01]),
    "StalenessOverBound": ("", [1.0, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.0]),
    "SandboxSpinupSlow": ("image=all,stat=p95", [100] + [150] * 6 + [100, 100, 80]),
    "SandboxPendingLong": ("", [0, 600, 601, 3600, 0]),
    "SandboxQuotaLow": ("resource=concurrent", [0.5, 0.95, 0.85, 0.8, 0.9]),
    "SandboxesDangling": ("", [21] * 12 + [20]),
    "SandboxCreditLow": ("", [30, 24, 23, 24, 30]),
    "DataTrustLow": ("actor=generator", [1.0] + [0.5] * 11 + [0.95, 1.0]),
    "RewardFlat": ("", [0] + [60] * 12 + [40, 0, 60, 0]),
    "ResponseLengthDrift": ("", [1.2] + [1.6] * 11 + [1.45, 1.45, 1.3, 1.6]),
    "KVCeilingAhead": ("bound=mid", [30_000] + [20_000] * 31 + [30_000]),
    "Bottleneck": ("verdict=generator_bound", [0, 1, 1, 0] + [1] * 17 + [0, 1]),
}

# Further conditions of a rule: a constant value that holds, with its labels.
ALSO: dict[str, tuple[str, float]] = {
    "zero_advantage_low_ratio": ("basis=completed", 0.5),
    "zero_advantage_ratio": ("basis=completed", 0.55),
}


def ours(rule: Rule, series: str, values: list[float]) -> list[str]:
    """State at every minute by our own machine."""
    machine, found = Evaluator([rule], "r"), []
    also = {one.name: table({ALSO[one.name][0]: ALSO[one.name][1]}) for one in rule.also}
    for minute, value in enumerate(values):
        machine.evaluate(OneFrame(T0 + 60 * minute, {rule.condition.name: table({series: value}), **also}))
        states = {alert.state for alert in machine.active if alert.state != "resolved"}
        found.append(next(iter(states), "inactive"))
    return found


def promql(name: str, series: str) -> str:
    pairs = "".join(f',{label}="{value}"' for label, value in labels(series))
    return f'rollscope_{name}{{run="r"{pairs}}}'


def promtool_test(rule: Rule, series: str, values: list[float]) -> dict[str, Any]:
    """The same series, with what our machine said as what is expected of Prometheus."""
    expected = []
    for minute, state in enumerate(ours(rule, series, values)):
        for alertstate in ("pending", "firing"):
            count = [{"labels": "{}", "value": 1}] if state == alertstate else []
            expr = f'count(ALERTS{{alertname="{rule.name}",alertstate="{alertstate}"}})'
            expected.append({"expr": expr, "eval_time": f"{minute}m", "exp_samples": count})
    return {
        "interval": "1m",
        "input_series": [
            {"series": promql(rule.condition.name, series), "values": " ".join(map(str, values))},
            *(
                {"series": promql(one.name, ALSO[one.name][0]), "values": f"{ALSO[one.name][1]}x{len(values)}"}
                for one in rule.also
            ),
            {"series": 'rollscope_run_state{run="r",state="running"}', "values": f"1x{len(values)}"},
        ],
        "promql_expr_test": expected,
    }


@needs_promtool
def test_prometheus_fires_when_we_do(tmp_path: Path) -> None:
    """Pending, firing and back at the same minutes, hysteresis included. Every rule with a signal of this version."""
    (tmp_path / "rules.yml").write_text(export.rules(list(EVERY.values())))
    tests = [promtool_test(EVERY[name], series, values) for name, (series, values) in CROSSING.items()]
    states = {name: ours(EVERY[name], *given) for name, given in CROSSING.items()}
    assert all("firing" in found and found[-1] != "firing" for found in states.values()), states
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_adds_up_idle_dollars_of_all_causes(tmp_path: Path) -> None:
    """1 USD a minute and 0.8 beside it: 108 within an hour, where neither is above 100."""
    (tmp_path / "rules.yml").write_text(export.rules([EVERY["IdleBurn"]]))
    series = [
        {"series": f'rollscope_idle_usd_total{{run="r",cause="{cause}"}}', "values": f"0+{each}x90"}
        for cause, each in (("stalled", 1), ("trainer_wait", 0.8))
    ]
    running = {"series": 'rollscope_run_state{run="r",state="running"}', "values": "1x90"}
    fires = {"expr": 'count(ALERTS{alertname="IdleBurn",alertstate="firing",run="r"})', "eval_time": "80m"}
    one = {"interval": "1m", "input_series": [*series, running], "promql_expr_test": [
        {**fires, "exp_samples": [{"labels": "{}", "value": 1}]},
        {**fires, "eval_time": "10m", "exp_samples": []},
    ]}  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [one]}))
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_disagrees_where_a_rule_is_changed(tmp_path: Path) -> None:
    """The comparison above bites: with another level in the exported file promtool finds the difference."""
    text = export.rules([EVERY["TrainerStarved"]]).replace("> 0.3 and", "> 0.36 and")
    (tmp_path / "rules.yml").write_text(text)
    tests = [promtool_test(EVERY["TrainerStarved"], *CROSSING["TrainerStarved"])]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", "test.yml", cwd=tmp_path).returncode != 0


def test_every_rule_that_can_fire_today_is_compared() -> None:
    """A rule whose signal comes alive must be added above; these compare two series or growth."""
    known = {item.name for item in signals.load()} | {TARGET_UP}
    alive = {name for name, rule in EVERY.items() if all(c.name in known for c in rule.conditions)}
    assert alive - CROSSING.keys() == {"AllZeroRewards", "EngineDown", "IdleBurn", "SandboxInitFailures"}


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
