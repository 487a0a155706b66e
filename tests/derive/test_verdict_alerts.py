"""The pack's rule on the verdict: after a quarter of an hour, once, and never over a dead engine. Both databases."""

from pathlib import Path

import pytest
import yaml

from server.cli import alerts
from server.config.alerts import load_rules
from server.derive.results import Judge
from server.store import Store
from server.verdict.model import Verdict, VerdictInput
from server.verdict.rules import Memory
from tests.derive.test_alerts import HOOK, settings, told
from tests.driven_run import ENGINE, T0, TRAINER, Bench, bench, page, steps


def says(*outcomes: tuple[float, str]) -> Judge:
    """The outcome from a time on."""

    def judge(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
        return {}, Verdict([one for at, one in outcomes if seen.now >= T0 + at][-1])  # type: ignore[arg-type]

    return judge


def trains(run: Bench) -> None:
    """Steps without a wait: nothing else of the pack has anything to say."""
    run.commit(TRAINER, steps(1, 3, seconds=1.0, wait=0.1, start=T0 - 10), T0 - 5)


def engine(run: Bench, first: int, last: int) -> None:
    for at in range(first, last + 1, 15):
        run.commit(ENGINE, page(1, 100.0 * at), T0 + at)
        run.advance(T0 + at, live=True)


def bottlenecks(run: Bench) -> list[tuple[str, str, str]]:
    return [
        (one.state, one.labels["verdict"], one.muted)
        for one in run.reader.alerts.active("run")
        if one.name == "Bottleneck"
    ]


def test_a_quarter_of_an_hour_of_one_limiter_is_told_once(store: Store) -> None:
    with bench(
        store, settings(HOOK), judge=says((-99, "balanced"), (60, "generator_bound"), (1200, "trainer_bound"))
    ) as run:
        trains(run)
        engine(run, 0, 945)
        assert bottlenecks(run) == [("pending", "generator_bound", "")]
        (alert,) = [one for one in run.reader.alerts.active("run") if one.name == "Bottleneck"]
        assert alert.annotations["summary"] == "Run run has been generator-bound for less than 15 min so far"
        engine(run, 960, 1185)
        assert bottlenecks(run) == [("firing", "generator_bound", "")]
        (alert,) = [one for one in run.reader.alerts.active("run") if one.name == "Bottleneck"]
        assert (alert.active_at, alert.fired_at) == (T0 + 60, T0 + 960)
        assert alert.annotations["summary"] == "Run run has been generator-bound for more than 15 min"
        assert [one.why for one in run.reader.alerts.rules(run.reader.status("run")) if one.name == "Bottleneck"] == [
            ""
        ]
        engine(run, 1200, 1290)
        assert bottlenecks(run) == []
        assert told(store) == [("firing", ["Bottleneck firing"]), ("resolved", ["Bottleneck resolved"])]


def test_what_is_stalled_is_no_bottleneck(store: Store) -> None:
    with bench(store, settings(HOOK), judge=says((-99, "generator_bound"), (600, "stalled"))) as run:
        trains(run)
        engine(run, 0, 1500)
        assert bottlenecks(run) == [] and told(store) == []


def test_a_dead_engine_keeps_it_quiet(store: Store) -> None:
    """Liveness inhibits tuning: the verdict still says generator_bound, and nobody is told of that."""
    with bench(store, settings(HOOK), judge=says((-99, "generator_bound"))) as run:
        trains(run)
        engine(run, 0, 780)
        for at in range(795, 1006, 15):
            run.fail(ENGINE, "unreachable", "no route", T0 + at)
            run.advance(T0 + at, live=True)
        assert bottlenecks(run) == [("firing", "generator_bound", "inhibited by TargetDown (liveness)")]
        assert told(store) == [("firing", ["TargetDown firing"])]


@pytest.mark.parametrize(("values", "fires"), [("1x31", True), ("1x20 0x11", False), ("1x29", False)])
def test_rules_on_the_verdict_can_be_tested(values: str, fires: bool, tmp_path: Path) -> None:
    alert = {"exp_labels": {"severity": "info", "verdict": "sandbox_bound"}}
    case = {
        "interval": "30s",
        "input_series": [
            {"series": 'bottleneck{verdict="sandbox_bound"}', "values": values},
            {"series": 'bottleneck{verdict="balanced"}', "values": "1x40"},
        ],
        "alert_rule_test": [
            {"eval_time": "15m", "alertname": "Bottleneck", "exp_alerts": [alert] if fires else []},
        ],
    }  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"evaluation_interval": "30s", "tests": [case]}))
    said, fine = alerts.run_cases(tmp_path / "test.yml", load_rules)
    assert fine, said
