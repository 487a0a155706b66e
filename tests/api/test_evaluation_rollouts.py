"""Evaluation rollouts next to training rollouts, pushed over HTTP: no number of the training changes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.store import Store, migrate
from tests.api.rollouts_web import post
from tests.push.test_pushed_targets import T0, lived

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

# Versions 1..5 are used at 0 s, 20 s, ...; each by a mixed group and one in which nothing is solved, of two rollouts.
VERSIONS, STEP = 5, 20.0


def trained(version: int) -> Iterator[dict[str, Any]]:
    at = T0 + STEP * version
    for n in range(4):
        yield {
            "rollout_id": f"r{version}-{n}", "group_id": f"task-{n // 2}-{version}", "group_size": 2,
            "environment": "math", "version_start": version - 1, "version_finish": version - 1,
            "dispatched_at": at - 15, "started_at": at - 14, "finished_at": at - 5, "scored_at": at - 4,
            "version_consumed": version, "consumed_at": at - 1, "response_tokens": 100 * (n + 1), "tool_calls": n,
            "turns": 2, "max_reward": 1.0, "reward": float(n == 0),
        }  # fmt: skip
    yield {"rollout_id": "open", "dispatched_at": T0 + 20, "started_at": T0 + 21}


def evaluated(version: int) -> Iterator[dict[str, Any]]:
    """Four times as long, all solved, never used; two of them in the groups of training rollouts of the same tasks."""
    at = T0 + STEP * version
    for n in range(4):
        yield {
            "rollout_id": f"e{version}-{n}", "group_id": f"task-{n}-{version}", "group_size": 1 if n > 1 else 2,
            "purpose": "eval", "environment": "math", "version_start": 0, "version_finish": 0,
            "dispatched_at": at - 15, "started_at": at - 14, "finished_at": at - 3, "scored_at": at - 2,
            "response_tokens": 4000, "tool_calls": 50, "turns": 30, "max_reward": 1.0, "reward": 1.0,
        }  # fmt: skip


def late(version: int) -> Iterator[dict[str, Any]]:
    """Still generating; its purpose is reported a version later than its beginning."""
    yield {"rollout_id": f"late-{version}", "dispatched_at": T0 + STEP * version - 9, "version_start": 0}
    yield {"rollout_id": f"late-{version - 1}", "purpose": "eval"}


def last(version: int) -> Iterator[dict[str, Any]]:
    """The purposes of all that are still without one."""
    yield {"rollout_id": f"late-{version}", "purpose": "eval"}


def failed(version: int) -> Iterator[dict[str, Any]]:
    yield {
        "rollout_id": f"f{version}", "purpose": "eval", "finished_at": T0 + STEP * version - 6, "exit": "infra_error",
        "response_tokens": 9000,
    }  # fmt: skip


def play(path: Path, *kinds: Callable[[int], Iterator[dict[str, Any]]]) -> dict[str, tuple[float | None, str, str]]:
    """All signals at the end of the run: (value, state, why)."""
    migrate(f"sqlite:///{path}")
    store = Store.open(f"sqlite:///{path}")
    try:
        with lived(store) as run:
            for version in range(1, VERSIONS + 1):
                for kind in (trained, *kinds):
                    assert post(run, "rollouts", list(kind(version))).status_code == 200
                run.at(STEP * version + 1)
            if late in kinds:
                post(run, "rollouts", list(last(VERSIONS)))
            status = run.at(STEP * VERSIONS + 6, STEP * VERSIONS + 12)
    finally:
        store.close()
    return {one.name: (one.value, one.state, one.why) for one in status.signals.values()}


EXPECTED = {
    'response_tokens{stat="mean"}': 250.0,
    'response_tokens{stat="max"}': 400.0,
    'tool_calls{stat="mean"}': 1.5,
    'turns{stat="mean"}': 2.0,
    'reward{stat="mean"}': 0.25,
    'staleness_versions{level="trajectory",stat="mean"}': 1.0,
    'zero_advantage_ratio{basis="completed"}': 0.5,
    # Half of the mixed group, nothing of the other.
    'solve_ratio{stat="mean"}': 0.25,
    'rollout_exit_ratio{exit="trained"}': 1.0,
    "rollouts_in_flight": 1.0,
    'rollouts_total{exit="trained"}': 4.0 * VERSIONS,
    'groups_total{outcome="mixed"}': 1.0 * VERSIONS,
}


@pytest.mark.sqlite
def test_evaluation_rollouts_change_no_signal(tmp_path: Path) -> None:
    alone = play(tmp_path / "alone.db")
    assert {name: alone[name][0] for name in EXPECTED} == pytest.approx(EXPECTED)
    for kind in (evaluated, late, failed):
        assert play(tmp_path / f"{kind.__name__}.db", kind) == alone, kind.__doc__
