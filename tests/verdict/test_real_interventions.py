"""The advice on recordings of a real loop, beside what the change brought when it was made.

tests/testdata/real_interventions: TRL on live vLLM, one setting changed, all else equal.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from bench.real_runs.play import Tick, play
from bench.real_runs.recording import load

FOLDER = Path(__file__).parents[1] / "testdata" / "real_interventions"
LEVERS = {
    "max_num_seqs": "max_num_seqs", "kv_cache": "kv_cache", "staleness": "max_staleness",
    "reward_workers": "reward_workers", "trainer": "trainer_other", "weight_sync": "weight_sync_mode",
}  # fmt: skip
"""Kind -> the lever that was moved."""


@lru_cache(maxsize=20)
def ticks(name: str) -> tuple[Tick, ...]:
    """What the product states of a recording while the run goes on."""
    return tuple(tick for tick in play(load(FOLDER / name)).ticks if tick.status.lifecycle == "running")


def first(name: str) -> Any:
    verdict = ticks(name)[-1].status.verdict
    assert verdict is not None
    return verdict.advice[0]


def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name / "truth.json").read_text())
    return found


@pytest.mark.parametrize("kind", LEVERS)
def test_the_first_advice_is_the_change_that_was_made(kind: str) -> None:
    advice, gain = first(f"{kind}_before"), truth(f"{kind}_after")["gain"]
    assert advice.lever == LEVERS[kind]
    assert advice.gain[0] <= gain <= advice.gain[2]


@pytest.mark.parametrize("name", ["inflight_2", "inflight_8", "inflight_32"])
def test_a_low_number_of_rollouts_in_flight_is_the_first_thing_to_raise(name: str) -> None:
    verdict = ticks(name)[-1].status.verdict
    assert verdict is not None and (verdict.outcome, verdict.cause) == ("orchestrator_bound", "concurrency_cap")
    assert first(name).lever == "rollouts_in_flight" and first(name).cost == "setting"


def test_both_measured_gains_are_within_the_stated_range() -> None:
    low, _, high = first("inflight_2").gain
    assert [low < gain < high for gain in truth("inflight_2")["best_free_change"]["points"].values()] == [True, True]


def test_no_run_without_sandboxes_is_bound_by_them() -> None:
    names = [path.parent.name for path in FOLDER.glob("*/truth.json")]
    assert len(names) == 17
    for name in names:
        assert not [tick.at for tick in ticks(name) if tick.status.verdict.outcome == "sandbox_bound"]
