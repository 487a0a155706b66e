"""Order of the test files, and division of their compilation: the slowest worker determines the suite's duration."""

import importlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

SLOW = {
    "dashboard/test_browser.py": 45,
    "e2e/test_dashboard.py": 45,
    "dashboard/test_accessibility_browser.py": 44,
    "dashboard/test_sandboxes_browser.py": 34,
    "collectors/test_contract.py": 34,
    "e2e/test_forward.py": 30,
    "dashboard/test_panels_browser.py": 28,
    "dashboard/test_runs_browser.py": 28,
    "dashboard/test_actors_browser.py": 25,
    "dashboard/test_hostile_browser.py": 25,
    "dashboard/test_alerts_browser.py": 23,
    "e2e/test_watch.py": 20,
    "demo/test_verdicts.py": 20,
    "dashboard/test_preflight_browser.py": 19,
    "dashboard/test_rollouts_live_browser.py": 19,
    "e2e/test_alerts.py": 18,
    "demo/test_truth.py": 17,
    "demo/test_rollout_truth.py": 17,
    "derive/test_evidence.py": 17,
    "derive/test_alerts.py": 16,
    "e2e/test_push.py": 16,
    "derive/test_driver.py": 15,
    "dashboard/test_rollouts_browser.py": 15,
    "sandboxes/test_sweep.py": 15,
    "demo/test_prime_api.py": 13,
    "ingest/test_sandboxes.py": 13,
    "push/test_pushed_targets.py": 13,
    "sandboxes/test_modal.py": 12,
    "push/test_readings.py": 11,
    "push/test_forwarders.py": 11,
    "e2e/test_wheel.py": 10,
    "demo/test_modal_api.py": 10,
    "e2e/test_roles.py": 10,
    "derive/test_rollouts.py": 9,
    "e2e/test_hostile.py": 9,
    "api/test_rollouts_push.py": 9,
    "collectors/test_nemo_rl.py": 9,
    "e2e/test_apart.py": 9,
    "demo/test_faults.py": 8,
    "push/test_sandboxes.py": 8,
    "demo/test_slime.py": 8,
    "demo/test_agents.py": 8,
}
"""The slowest files, slowest first: CPU seconds with their child processes. They start first, because the suite waits
for the last file."""


def slow_first(items: list[pytest.Item]) -> None:
    """Sorts tests by file: the slow ones, then those with the most tests. The order within a file is unchanged."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-_seconds(item.path), -tests[item.path]))


def _seconds(path: Path) -> int:
    return SLOW.get(path.relative_to(TESTS).as_posix(), 0) if path.is_relative_to(TESTS) else 0


def compile_a_share(worker: int, workers: int) -> None:
    """Imports every ``workers``-th test module, so that pytest stores it compiled for the other workers.

    Rewriting the asserts of all modules takes 11 s; reading the compiled modules takes almost no time.
    """
    for path in sorted(TESTS.rglob("test_*.py"))[worker::workers]:
        # Any error is ignored here: the collection reports it with the name of the file.
        with suppress(Exception):
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
