"""Exported rules fire in Prometheus exactly when our own do, on recorded runs and on faults of every rule."""

import shutil

import pytest

from bench.alert_equality import ENDED, RUNS
from tests.alerts.equality import DIFFERENT, ONE_SERIES, PAGE, PENDING, RULES, compared, page, recorded

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)


def test_every_rule_fires_in_prometheus_when_it_fires_here() -> None:
    rows = compared()
    assert [row for row in rows if row.different and row.source not in DIFFERENT] == []
    # A comparison without an alert proves nothing.
    silent = {row.source for row in rows if not row.ours} - RUNS.keys()
    assert silent == set(), [row for row in rows if row.source in silent and not row.ours]
    assert {row.rule for row in rows if row.ours and row.source not in RUNS} == RULES.keys()
    # The differences that PromQL cannot avoid: fewer alerts, never more.
    assert all(0 < row.exported < row.ours for row in rows if row.source in DIFFERENT)
    assert PAGE.read_text("utf-8") == page(rows), "python -m tests.alerts.equality"


@pytest.mark.parametrize(
    ("rule", "text", "planted", "sources"),
    [
        ("TrainerStarved", "> 0.3 and", "> 0.36 and", {"fires and ends"}),
        ("TrainerStarved", "for: 5m", "for: 6m", {"fires and ends", "series ends", "run ends", "unknown", PENDING}),
        ("EngineDown", "on (run, target)", "on (run)", {"further condition"}),
        ("KVCacheExhausted", '"unknown"', '"not_applicable"', {"series ends", "unknown"}),
        ("SandboxInitFailures", "or min_over_time", "- min_over_time", set()),
        ("ResponseLengthDrift", "last_over_time", "avg_over_time", {ONE_SERIES}),
        ("TargetDown", 'state=~"running"', 'state=~"running|starting"', {"run ends"}),
    ],
)
def test_a_wrong_rule_is_found(rule: str, text: str, planted: str, sources: set[str]) -> None:
    rows = compared((text, planted), [rule], [])
    assert {row.source for row in rows if row.different} >= sources


def test_a_recorded_signal_without_a_value_is_unknown_on_the_page() -> None:
    """What holds an exported alert: the written faults assume it of `/metrics`."""
    seen = 0
    for replay in map(recorded, RUNS):
        for n, frame in enumerate(replay.frames):
            for condition in (rule.condition for rule in RULES.values() if rule.condition.of == "value"):
                found = frame.table(condition)
                if found is None or not found.labels or len(found.gaps) < len(found.labels):
                    continue
                run, name = frame.run, condition.name
                state = f'rollscope_signal_state{{run="{run}",signal="{name}",state="unknown"}}'
                shown = [
                    key
                    for key, column in replay.page.items()
                    if key.startswith(f"rollscope_{name}{{") and column[n] != ENDED
                ]
                assert (replay.page[state][n], shown) == ("1", []), (replay.name, n, name)
                seen += 1
    assert seen > 100
