"""prime-rl's metrics page (recorded), what it says before the first step, and the loss statistics of metrics.jsonl."""

import json
from pathlib import Path

import pytest

from collectors.detect import detect_page
from collectors.model import Limits, Reading, ScrapeError
from collectors.trainers.prime_rl import collector as prime_rl
from server.store import Store
from tests.collectors._reading import TESTDATA, by_step
from tests.driven_run import TRAINER, bench

RUN = TESTDATA / "prime_rl" / "driven"
PAGE = (RUN / "prom" / "metrics_1795248070863.prom").read_bytes()
BUSY = (("basis", "busy"),)


def parse(body: bytes) -> Reading:
    return prime_rl.COLLECTOR.parse(body, {}, Limits())


def test_the_recorded_page() -> None:
    reading = parse(PAGE)
    assert {(s.metric, s.labels): s.value for s in reading.samples} == pytest.approx(
        {
            ("loss_mean", ()): 0.001, ("gradient_norm", ()): 0.3, ("learning_rate", ()): 1e-6,
            ("entropy_mean", ()): 0.6, ("mismatch_kl_mean", ()): 0.002, ("gradient_nonfinite", ()): 0.0,
            ("trainer_peak_memory_bytes", ()): 65_498_251_264.0,  # 61 GiB
            ("trainer_mfu_ratio", BUSY): 0.312, ("trainer_tokens_per_second", BUSY): 41_000.0,
        }
    )  # fmt: skip
    assert {(s.step, s.axis, s.ts) for s in reading.samples} == {(36, "trainer", 1795248070.8630211)}
    assert (reading.unmapped, reading.facts["framework"]) == ({}, "prime_rl")
    assert detect_page(PAGE) == "prime_rl"


def test_a_page_before_the_first_step_says_nothing() -> None:
    """Gauges begin at 0: that is no entropy of zero."""
    zero = b"\n".join(line if line.startswith(b"#") else line.split()[0] + b" 0.0" for line in PAGE.splitlines())
    assert parse(zero + b"\n").samples == ()


def test_a_gradient_of_nan_and_a_new_gauge() -> None:
    body = PAGE.replace(b"trainer_grad_norm 0.3", b"trainer_grad_norm NaN") + b"trainer_new_thing 4\nother 1\n"
    reading = parse(body)
    assert by_step(reading.samples, "gradient_nonfinite") == {36: 1.0}
    assert by_step(reading.samples, "gradient_norm") == {}
    assert reading.unmapped == {"trainer_new_thing": 1}


def test_another_page_is_refused() -> None:
    with pytest.raises(ScrapeError) as caught:
        parse(b"vllm:num_requests_running 3\n")
    assert caught.value.kind == "garbage"


def test_page_and_files_of_one_run_tell_a_step_once(store: Store) -> None:
    with bench(store) as run:
        files = prime_rl.tail(RUN, {}, Limits(), 1795248072.0)
        run.commit(TRAINER, files, 1795248072.0)
        run.commit(TRAINER.__class__("page", "run", "prime_rl", "trainer", url="http://127.0.0.1:1"),
                   parse(PAGE), 1795248072.0)  # fmt: skip
        run.advance(1795248072.0)
        assert len(store.steps.newest("run", axis="trainer")) == 40
        assert store.runs.incarnation("run") == 0
        # This run logged no solved_* keys: what is not told is not zero.
        assert run.state("zero_advantage_ratio") == "unknown"
        assert "solved" in run.why("zero_advantage_ratio")


@pytest.mark.parametrize("level", ["all/", ""])
def test_loss_statistics_with_and_without_the_level(tmp_path: Path, level: str) -> None:
    row = {
        "step": 3, "time": 1795248000.0, f"entropy/{level}mean": 0.6, f"mismatch_kl/{level}mean": 0.002,
        f"is_masked/{level}mean": 0.05, f"mismatch_kl/{level}max": 9.0, "entropy/math/mean": 0.9,
        "masked_advantage_positive/math/mean": 0.1, "is_masked_low/all/max": 1.0, "is_bent/all/mean": 1.0,
    }  # fmt: skip
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    reading = prime_rl.tail(tmp_path, {}, Limits(), 1795248001.0)
    assert {s.metric: s.value for s in reading.samples} == {
        "entropy_mean": 0.6, "mismatch_kl_mean": 0.002, "clip_ratio": 0.05,
    }  # fmt: skip
    assert reading.unmapped == {"is_bent/all/mean": 1}
