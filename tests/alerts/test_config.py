"""`[alerts]`: the pack, changes to it, receivers, and every mistake with its key."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.alerts import text
from server.alerts.model import Rule
from server.alerts.settings import AlertSettings
from server.config import alerts
from server.config.alerts import build, load_rules, pack
from server.config.settings import build as build_all
from server.lib.errors import ConfigError, Problems


def rules(toml: str = "") -> dict[str, Rule]:
    problems = Problems()
    found = load_rules(tomllib.loads(toml), problems)
    assert problems.messages == []
    return {rule.name: rule for rule in found}


def faults(toml: str, env: dict[str, str] | None = None) -> list[str]:
    problems = Problems()
    build(tomllib.loads(toml), env or {}, problems)
    return problems.messages


def settings(toml: str, env: dict[str, str] | None = None) -> AlertSettings:
    problems = Problems()
    found = build(tomllib.loads(toml), env or {}, problems)
    assert problems.messages == []
    return found


# ---- the pack


def test_the_pack_watches_what_it_must() -> None:
    """Everything that holds a run back, in the order of what matters: liveness before tuning."""
    assert list(rules()) == [
        "RunStalled", "TrainerFault", "TargetDown", "HeartbeatMissed", "EngineDown", "EngineFrozen",
        "NonFiniteGradient", "DiscoveryDown", "GpuFault",
        "AllZeroRewards", "DataTrustLow", "SandboxSpinupSlow", "SandboxPendingLong", "SandboxInitFailures",
        "SandboxQuotaLow", "SandboxesDangling", "SandboxCreditLow",
        "TrainerStarved", "StalenessOverBound", "ZeroAdvantageHigh", "RewardFlat", "ResponseLengthDrift", "DiscardHigh",
        "KVCacheExhausted", "PreemptionsHigh", "WeightSyncSlow", "KVCeilingAhead", "Bottleneck",
        "CostOverTarget", "IdleBurn",
    ]  # fmt: skip
    assert all(rule.lifecycle == {"running"} and rule.builtin for rule in rules().values())
    assert all(rule.annotations["summary"] for rule in rules().values())


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("TrainerStarved", "trainer_wait_ratio > 0.4 for 5m"),
        ("TargetDown", 'target_up{kind!~"heartbeat|file_sd|http_sd|prometheus_yml|router|run_dir"} == 0 for 1m'),
        ("EngineDown", 'generator_engine_state{state="down"} == 1 and target_up == 1 for 1m'),
        ("EngineFrozen", "generator_frozen == 1 for 1m"),
        ("GpuFault", "gpu_fault == 1"),
        ("AllZeroRewards", 'reward{stat="mean"} == 0 and failure_ratio > 0.2 for 2m'),
        ("ZeroAdvantageHigh", "zero_advantage_ratio > 0.5 and zero_advantage_low_ratio > 0.33 for 10m"),
        ("RewardFlat", "reward_plateau_steps >= 50 and zero_advantage_ratio > 0.4 for 10m"),
        ("ResponseLengthDrift", "response_length_drift_ratio > 1.5 for 10m"),
        ("KVCeilingAhead", 'kv_concurrency_limit_forecast_seconds{bound="mid"} < 21600 for 30m'),
        ("IdleBurn", "sum(increase(idle_usd_total[1h])) > 100"),
        ("SandboxInitFailures", "increase(sandbox_failures_total[10m]) > 10"),
    ],
)
def test_its_conditions_read_as_meant(name: str, expression: str) -> None:
    assert text.expression(rules()[name]) == expression


def test_the_verdict_is_matched_by_its_label() -> None:
    condition = rules()["Bottleneck"].condition
    assert (condition.name, condition.op, condition.threshold) == ("bottleneck", "==", 1.0)
    assert condition.matchers[0].matches({"verdict": "sandbox_bound"})
    assert not condition.matchers[0].matches({"verdict": "balanced"})


# ---- changing it


def test_a_rule_of_a_packs_name_changes_what_it_says_and_keeps_the_rest() -> None:
    found = rules('[[rule]]\nname="TrainerStarved"\nabove=0.6\nannotations.runbook="http://wiki/x"')["TrainerStarved"]
    assert text.expression(found) == "trainer_wait_ratio > 0.6 for 5m"
    assert found.condition.recover is None  # 0.3 belonged to 0.4
    assert found.annotations.keys() == {"summary", "description", "runbook"}
    assert not found.builtin
    assert list(rules('[[rule]]\nname="TrainerStarved"\nabove=0.6')) == list(rules())


def test_another_comparison_takes_the_old_ones_place() -> None:
    found = rules('[[rule]]\nname="TrainerStarved"\nat_least=0.9')["TrainerStarved"]
    assert text.expression(found) == "trainer_wait_ratio >= 0.9 for 5m"


def test_another_source_takes_the_whole_condition() -> None:
    found = rules('[[rule]]\nname="TrainerStarved"\nmetric="generator_requests_waiting"\nabove=9')["TrainerStarved"]
    assert text.expression(found) == "generator_requests_waiting > 9 for 5m"
    assert found.condition.recover is None


def test_rules_are_switched_off_by_name_or_all() -> None:
    assert "RunStalled" not in rules('disable=["RunStalled"]')
    assert rules("default_pack=false") == {}
    assert faults('disable=["Nope"]')[0].startswith("alerts.disable: there is no rule 'Nope'; known: RunStalled")


# ---- mistakes

RULE = '[[rule]]\nname="Mine"\n'


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (RULE, "alerts.rule[0]: needs exactly one of signal, metric, drift, verdict, forecast, burn_usd"),
        (RULE + 'signal="reward"', "alerts.rule[0]: needs exactly one of above, at_least, below, at_most, equals"),
        (RULE + 'signal="trainer_wait_ration"\nabove=1', "did you mean trainer_wait_ratio"),
        (RULE + 'metric="nope"\nabove=1', "no metric is named 'nope'"),
        (RULE + 'signal="reward"\nabove=1\nrecover=2', "alerts.rule[0].recover: must be on the healthy side"),
        (RULE + 'signal="reward"\nequals=1\nrecover=2', "alerts.rule[0].recover: must be on the healthy side"),
        (RULE + 'signal="reward"\nabove=nan', "alerts.rule[0].above: must be a finite number"),
        (RULE + 'signal="reward"\nabove="1"', "alerts.rule[0].above: must be a number"),
        (RULE + 'signal="reward"\nabove=1\nfor="5 minutes"', "alerts.rule[0].for: '5 minutes' is not a duration"),
        (RULE + 'signal="reward"\nabove=1\nseverity="bad"', "must be one of critical, warning, info"),
        (RULE + 'signal="reward"\nabove=1\nclass="x"', "must be one of liveness, infrastructure, tuning, cost"),
        (RULE + 'signal="reward"\nabove=1\nno_data="x"', "must be one of hold, alert, ok"),
        (RULE + 'signal="reward"\nabove=1\nlifecycle=["ended"]', "must be a list of starting, running"),
        (RULE + 'signal="reward"\nabove=1\nlabels.run="x"', "alerts.rule[0].labels.run: must be a string, and not"),
        (RULE + 'signal="reward"\nabove=1\nmatch=["x"]', "alerts.rule[0].match[0]: 'x' is not a matcher"),
        (RULE + 'signal="reward"\nabove=1\nannotations.a="$valu"', "$valu is not known; known: $value"),
        (RULE + 'signal="reward"\nabove=1\nabow=2', "alerts.rule[0].abow: unknown key"),
        (RULE + 'signal="reward"\nabsent=true\nabove=2', "absent cannot be combined"),
        (RULE + 'metric="generator_tokens_total"\nequals=0\nincrease_over="1h"', "samples are retained for 300 s"),
        (RULE + 'forecast="kv_concurrency_limit"', "alerts.rule[0].within: is missing"),
        (RULE + "verdict=[]", "must be a list of outcomes"),
        (RULE + "verdict=['sandbox_bond']", "no outcome is named 'sandbox_bond'; did you mean sandbox_bound?"),
        (RULE + "verdict=['x']", "no outcome is named 'x'; known: "),
        (RULE + 'drift="response_length"', "alerts.rule[0].factor: is missing"),
        (RULE + 'drift="nose_length"\nfactor=2', "no signal is named 'nose_length_drift_ratio'"),
        (RULE + 'signal="reward"\nabove=1\n' + RULE + 'signal="reward"\nabove=2', "'Mine' is defined twice"),
        ('[[rule]]\nsignal="reward"\nabove=1', "alerts.rule[0].name: is missing"),
        ("rule=[3]", "alerts.rule[0]: must be a table"),
        ("rules=[]", "alerts.rules: unknown key"),
        ('external_url="x"', "alerts.external_url: must be the http://"),
        ('repeat_interval="1s"', "alerts.repeat_interval: must be at least 60s"),
        ("[[inhibit]]\nsource=['a=\"b\"']", "needs source and target"),
        ('[deadman]\ninterval="1s"\nurl="http://127.0.0.1/x"', "alerts.deadman.interval: must be at least 10s"),
        ("[deadman]\ninterval=60", "alerts.deadman: needs url, url_file or url_env"),
    ],
)
def test_every_mistake_is_named_with_its_key(toml: str, said: str) -> None:
    assert any(said in one for one in faults(toml)), faults(toml)


def test_mistakes_come_all_at_once() -> None:
    found = faults(RULE + 'signal="nope"\nfor="x"\nseverity="y"\nabove="z"')
    assert len(found) == 4


@given(
    st.dictionaries(
        st.sampled_from(sorted(alerts.RULE_KEYS)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
            max_leaves=5,
        ),
    )
)
def test_any_table_is_a_rule_or_a_list_of_problems(table: dict[str, Any]) -> None:
    problems = Problems()
    found = alerts.parse_rule(table, problems, "rule")
    assert (found is None) == bool(problems.messages)


# ---- receivers

HOOK = '[[receiver]]\nname="hook"\nkind="webhook"\n'


def test_receivers_take_the_grouping_of_all_or_their_own() -> None:
    first, second = settings(
        'group_wait="10s"\ngroup_by=["severity"]\n' + HOOK + 'url="http://127.0.0.1:1/a"\n'
        '[[receiver]]\nname="two"\nkind="webhook"\nurl="http://127.0.0.1:1/b"\ngroup_wait="1s"\n'
        "match=['severity=\"critical\"']\nsend_resolved=false\nmax_alerts=3"
    ).receivers
    assert (first.group_wait, first.group_by, first.group_interval, first.repeat_interval) == (
        10.0, ("severity",), 60.0, 14400.0,
    )  # fmt: skip
    assert (second.group_wait, second.group_by, second.send_resolved, second.max_alerts) == (
        1.0,
        ("severity",),
        False,
        3,
    )
    assert second.match[0].matches({"severity": "critical"})


def test_secrets_come_from_files_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("http://127.0.0.1:1/secret\n")
    (found,) = settings(HOOK + f'url_file="{tmp_path}/url"').receivers
    assert str(found.url) == "http://127.0.0.1:1/secret"
    assert "secret" not in repr(found)
    (found,) = settings(HOOK + 'url_env="HOOK"', {"HOOK": "http://127.0.0.1:1/s"}).receivers
    assert str(found.url) == "http://127.0.0.1:1/s"


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (HOOK, "alerts.receiver[0]: needs url, url_file or url_env"),
        (HOOK + 'url_env="NOPE"', "the environment has no NOPE"),
        (HOOK + 'url_file="/nowhere/x"', "cannot read /nowhere/x"),
        (HOOK + 'url="http://169.254.169.254/x"', "link-local"),
        ('[[receiver]]\nname="a"\nkind="fax"', "must be one of alertmanager, "),
        (HOOK + 'url="http://h/x"\n' + HOOK + 'url="http://h/y"', "'hook' is defined twice"),
        ('[[receiver]]\nname="p"\nkind="pagerduty"', "routing_key_file or routing_key_env"),
        (HOOK + 'url="http://h/x"\nchannel="y"', "unknown key"),
    ],
)
def test_receivers_mistakes(toml: str, said: str) -> None:
    assert any(said in one for one in faults(toml)), faults(toml)


def test_no_secret_is_echoed_in_a_problem() -> None:
    assert "hunter2" not in " ".join(faults(HOOK + 'url="ftp://user:hunter2@h/x"\nmatch=["hunter"]\nnope=1'))


def test_no_configuration_means_the_pack_and_nobody_told() -> None:
    found = build_all({}, {}).alerts
    assert len(found.rules) == len(pack()) == 30
    assert (found.receivers, found.deadman.url, len(found.inhibits)) == ((), "", 1)


# ---- heartbeats


def beats(toml: str, env: dict[str, str]) -> Any:
    return build_all(tomllib.loads(toml), env).heartbeats["a"]


def test_a_heartbeat_names_its_token_and_its_patience() -> None:
    (found,) = beats('[[run.a.heartbeat]]\nname="trainer"\ntoken_env="T"\nevery="30m"', {"T": "0123456789abcdef"})
    assert (found.name, str(found.token), found.every) == ("trainer", "0123456789abcdef", 1800.0)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[[run.a.heartbeat]]\ntoken_env="T"', "every: is missing"),
        ('[[run.a.heartbeat]]\nevery="1h"', "needs token_env or token_file"),
        ('[[run.a.heartbeat]]\nevery="1h"\ntoken_env="SHORT"', "16 to 128 letters"),
        (
            '[[run.a.heartbeat]]\nname="x"\nevery="1h"\ntoken_env="T"\n[[run.b.heartbeat]]\nevery="1h"\ntoken_env="T"',
            "another heartbeat has the same token",
        ),
    ],
)
def test_heartbeats_mistakes(toml: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        beats(toml, {"T": "0123456789abcdef", "SHORT": "abc"})
    assert any(said in one for one in caught.value.problems), caught.value.problems
    assert "0123456789abcdef" not in str(caught.value)
