"""`rollscope watch` asks: what is this?"""

from collectors.detect import detect_page, detect_path
from tests.collectors._reading import TESTDATA


def test_runs() -> None:
    assert [name for name, _ in detect_path(TESTDATA / "prime_rl" / "driven")] == ["prime_rl"]
    for path in ("trl/sync", "trl/sync/trainer_state.json"):
        assert [name for name, _ in detect_path(TESTDATA / path)] == ["trl"]
    # The database holds the trainer's rows and traces of its rollouts.
    for path in ("trl/async", "trl/async/async-grpo.db"):
        assert [name for name, _ in detect_path(TESTDATA / path)] == ["trl", "trl_traces"]
    for path in ("exposition", "absent", "prime_rl/driven/truth.jsonl"):
        assert detect_path(TESTDATA / path) == []


def test_the_reason_names_what_was_found() -> None:
    assert detect_path(TESTDATA / "trl" / "async")[0][1] == "trackio async-grpo.db with perf/rollout_wait_s"


def test_pages() -> None:
    assert detect_page((TESTDATA / "vllm" / "synthetic_2_engines.prom").read_bytes()) == "vllm"
    assert detect_page(b"<html>") is None
    assert detect_page((TESTDATA / "exposition" / "skyrl.prom").read_bytes()) == "skyrl"
    assert detect_page((TESTDATA / "skyrl" / "without_gauges.txt").read_bytes()) is None
