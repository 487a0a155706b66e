"""A mode that no source reports is unknown, and what a source reports is never replaced by what a mode implies."""

import os
import shutil
from pathlib import Path

import pytest

from collectors.formats import console
from tests.field.product import INPUTS, watching

MEAN = 'staleness_versions{level="trajectory",stat="mean"}'
MAX = 'staleness_versions{level="trajectory",stat="max"}'


def miles(folder: Path, rollout_seconds: float = 28.2) -> Path:
    text = (INPUTS / "03-async-keys-mode-assumed" / "driver.log").read_text()
    log = folder / "driver.log"
    log.write_text(text.replace("'perf/rollout_time': 28.2", f"'perf/rollout_time': {rollout_seconds}"))
    return log


@pytest.mark.parametrize("rollout_seconds", [28.2, 90.0])
def test_a_fully_asynchronous_run_without_arguments(tmp_path: Path, rollout_seconds: float) -> None:
    """Twelve rollouts of 94 s. Rollouts that take longer than the wait do not make the run one-step."""
    log = miles(tmp_path, rollout_seconds)
    last = console._date(log.read_text().splitlines()[-1])
    assert last is not None
    with watching([log], last + 30) as product:
        status = product.step(10)
        assert status.mode == "async"
        # Means 1.3, 1.4, 1.5 in turn; the last ten are those of rollouts 2 to 11.
        assert product.value(MEAN) == pytest.approx(1.41)
        assert product.value(MAX) == 3
        # 32.9 s of waiting, of which 2.1 s are the weight update, of 94 s.
        assert product.value("trainer_wait_ratio") == pytest.approx((32.9 - 2.1) / 94.0)
        assert product.value('trainer_overhead_seconds{phase="weight_sync"}') == pytest.approx(2.1)


def test_nothing_follows_from_a_mode_that_is_only_usual(tmp_path: Path) -> None:
    log = tmp_path / "verl" / "proj" / "exp.jsonl"
    log.parent.mkdir(parents=True)
    shutil.copy(INPUTS / "09-mode-unknown-staleness" / "verl" / "proj" / "exp.jsonl", log)
    os.utime(log, (1_795_600_000.0, 1_795_600_000.0))
    with watching([tmp_path / "verl"], 1_795_600_010.0) as product:
        status = product.step(10)
        assert (status.mode, status.facts["usual_mode"]) == ("", "sync_colocated")
        signals = product.signals()
        staleness = [signals[name] for name in signals if name.startswith("staleness_versions")]
        assert staleness and {(one.state, one.value) for one in staleness} == {("unknown", None)}
        assert "state the run's `mode` in [run.NAME.facts]" in staleness[0].why
        assert signals["trainer_wait_ratio"].state == "unknown"
        assert product.value('trainer_phase_seconds{phase="generation"}') == pytest.approx(51.5)
