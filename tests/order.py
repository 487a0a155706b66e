"""Order of the test files, and division of their compilation: the slowest worker determines the suite's duration."""

import importlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

SLOW = {
    "docs/test_commands.py": 70,
    "dashboard/test_browser.py": 45,
    "e2e/test_dashboard.py": 45,
    "dashboard/test_accessibility_browser.py": 44,
    "sandboxes/test_docker.py": 40,
    "dashboard/test_sandboxes_browser.py": 34,
    "collectors/test_contract.py": 34,
    "e2e/test_forward.py": 30,
    "dashboard/test_panels_browser.py": 28,
    "dashboard/test_runs_browser.py": 28,
    "dashboard/test_actors_browser.py": 25,
    "dashboard/test_hostile_browser.py": 25,
    "dashboard/test_alerts_browser.py": 23,
    "e2e/test_watch.py": 20,
    "alerts/test_equality.py": 20,
    "demo/test_verdicts.py": 20,
    "dashboard/test_preflight_browser.py": 19,
    "dashboard/test_rollouts_live_browser.py": 19,
    "e2e/test_alerts.py": 18,
    "verdict/test_simulated.py": 18,
    "demo/test_truth.py": 17,
    "demo/test_rollout_truth.py": 17,
    "derive/test_evidence.py": 17,
    "derive/test_alerts.py": 16,
    "e2e/test_push.py": 16,
    "contradictions/test_published.py": 15,
    "derive/test_driver.py": 15,
    "dashboard/test_rollouts_browser.py": 15,
    "sandboxes/test_sweep.py": 15,
    "store/test_retention.py": 14,
    "demo/test_prime_api.py": 13,
    "ingest/test_sandboxes.py": 13,
    "push/test_pushed_targets.py": 13,
    "sandboxes/test_modal.py": 12,
    "push/test_readings.py": 11,
    "push/test_forwarders.py": 11,
    "e2e/test_wheel.py": 10,
    "demo/test_modal_api.py": 10,
    "e2e/test_roles.py": 10,
    "verdict/test_real_verdicts.py": 10,
    "derive/test_rollouts.py": 9,
    "e2e/test_hostile.py": 9,
    "api/test_rollouts_push.py": 9,
    "collectors/test_nemo_rl.py": 9,
    "e2e/test_apart.py": 9,
    "api/test_rollouts.py": 9,
    "demo/test_determinism.py": 9,
    "scrape/test_history.py": 9,
    "demo/test_faults.py": 8,
    "push/test_sandboxes.py": 8,
    "demo/test_slime.py": 8,
    "demo/test_agents.py": 8,
    "demo/test_conservation.py": 8,
    "verdict/test_real_runs.py": 7,
    "signals/test_reward_plateau.py": 6,
    "signals/test_drift_rates.py": 6,
    "targets/test_pending.py": 4,
    "derive/test_drift.py": 4,
    "demo/test_vllm_page.py": 4,
    "store/test_alerts.py": 4,
    "targets/test_follow.py": 4,
    "api/test_push.py": 4,
    "alerts/test_dispatch.py": 3,
    "derive/test_verdict_tracker.py": 3,
    "sandboxes/test_kubernetes.py": 3,
    "api/test_app.py": 3,
    "verdict/test_judge.py": 3,
    "sandboxes/test_prime_sandboxes.py": 3,
    "demo/test_scenarios.py": 3,
    "targets/test_engines_change.py": 3,
    "collectors/test_layout.py": 3,
    "collectors/test_mlflow_rest.py": 3,
    "collectors/test_trl_sinks.py": 3,
    "targets/test_left_out.py": 3,
    "derive/test_costs.py": 3,
    "derive/test_incremental.py": 3,
    "collectors/test_sources.py": 3,
    "api/test_alerts.py": 2,
    "ingest/test_rollout_counters.py": 2,
    "ingest/test_rollout_incarnations.py": 2,
    "sandboxes/test_walk.py": 2,
    "alerts/test_group_history.py": 2,
    "sandboxes/test_rock.py": 2,
    "query/test_run_state.py": 2,
}
"""The slowest files, slowest first: CPU seconds with their child processes. They start first, because the suite waits
for the last file. `make test-fast` leaves them out."""


def slow_first(items: list[pytest.Item]) -> None:
    """Sorts tests by file: the slow ones, then those with the most tests. The order within a file is unchanged."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-cpu_seconds(item.path), -tests[item.path]))


def cpu_seconds(path: Path) -> int:
    """CPU seconds of a slow file, 0 for another one."""
    return SLOW.get(path.relative_to(TESTS).as_posix(), 0) if path.is_relative_to(TESTS) else 0


def compile_a_share(worker: int, workers: int) -> None:
    """Imports every ``workers``-th test module, so that pytest stores it compiled for the other workers.

    Rewriting the asserts of all modules takes 11 s; reading the compiled modules takes almost no time.
    """
    for path in sorted(TESTS.rglob("test_*.py"))[worker::workers]:
        # Any error is ignored here: the collection reports it with the name of the file.
        with suppress(Exception):
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
