"""`rollscope check` on what is recorded: every trainer's runs, nothing at all, two sources that disagree."""

import json
import shutil
from pathlib import Path

import pytest

import collectors
from collectors.model import Limits, Target
from server.cli import check_report
from server.cli.check_report import age
from server.main import main
from server.scrape import target_reader
from server.signals.availability import items
from tests.notify.support import Reply, serving
from tests.recorded import TESTDATA, runs

IDS = [f"{path.parent.name}-{path.name}" for path in runs()]


def checked(capsys: pytest.CaptureFixture[str], *sources: str | Path) -> tuple[int, str]:
    code = main(["check", *map(str, sources)])
    return code, capsys.readouterr().out


def found(capsys: pytest.CaptureFixture[str], *sources: str | Path) -> dict[str, dict[str, object]]:
    """Signals by name, from --json."""
    assert main(["check", "--json", *map(str, sources)]) == 0
    report = json.loads(capsys.readouterr().out)
    return {line["signal"]: line for line in report["runs"][0]["signals"]}


@pytest.mark.parametrize("path", runs(), ids=IDS)
def test_every_recorded_run_lists_its_signals(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert main(["check", "--json", str(path)]) == 0
    report = json.loads(capsys.readouterr().out)
    # What else the folder holds (records of rollouts) is a target beside the trainer's.
    (target,) = [one for one in report["runs"][0]["targets"] if collectors.load()[one["collector"]].actor == "trainer"]
    assert (target["collector"], target["framework"], target["up"]) == (path.parent.name, path.parent.name, True)
    modes = ("sync_colocated", "sync_split", "one_step", "async", "async_colocated")
    assert target["mode"] in (*modes, *(f"unknown (usually {mode})" for mode in modes))
    assert target["reader"] != ""
    lines = report["runs"][0]["signals"]
    # Signals without a value are there too, each with its reason; each value of a trainer's says which key it is from.
    assert {line["signal"].partition("{")[0] for line in lines} >= {item.name for item in items()} - COUNTED
    assert [line["signal"] for line in lines if line["state"] != "value" and not line["why"]] == []
    valued = [line for line in lines if line["state"] == "value" and line["signal"].partition("{")[0] in TRAINED]
    assert len(valued) >= 2  # Atropos' environments log by themselves, and little
    assert [line["signal"] for line in valued if line["age_seconds"] is None] == []
    assert {line["signal"].partition("{")[0] for line in valued if not line["keys"]} <= KEYLESS


# By the mode, by when rows come, and from records of rollouts, which are no keys.
KEYLESS = {
    "staleness_versions", "trainer_stall_ratio", "zero_advantage_group_ratio", "zero_advantage_groups",
    "zero_advantage_low_ratio", "zero_advantage_ratio",
}  # fmt: skip
COUNTED = {item.name for item in items() if item.name.endswith("_total")}
TRAINED = {item.name for item in items()}


def test_framework_version_log_mode_and_run_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = checked(capsys, TESTDATA / "trl" / "async")
    assert code == 0
    assert (
        "    trl (checked against 1.16.0 by source and recorded runs), mode async, run async-grpo-tiny, "
        "read from trackio async-grpo.db\n"
    ) in text


def test_a_value_has_its_keys_and_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    lines = found(capsys, TESTDATA / "trl" / "async")
    step = lines["trainer_step_seconds"]
    assert (step["value"], step["unit"], step["keys"]) == (
        pytest.approx(1.1753, abs=1e-4),
        "seconds",
        "perf/step_s (async)",
    )
    assert lines["trainer_wait_ratio"]["keys"] == "perf/rollout_wait_s, perf/step_s (async)"
    # Reported with the step, and still a gauge of that moment.
    assert lines["queue_samples_now"]["keys"] == "sample/rollout_queue_size (async)"
    assert isinstance(step["age_seconds"], float) and step["age_seconds"] > 0


def test_what_is_not_there_says_what_turns_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    verl = found(capsys, TESTDATA / "verl" / "sync_jsonl")
    assert verl["zero_advantage_ratio"]["why"] == (
        "not reported by verl: turn on `algorithm.filter_groups`: without it no scalar reports equal rewards"
    )
    assert str(verl["trainer_mfu_ratio"]["why"]).startswith("not reported by verl; this trainer reports no MFU")
    assert verl["queue_samples"]["state"] == "unknown"  # no source reports the mode
    prime = found(capsys, TESTDATA / "prime_rl" / "driven")
    assert str(prime["queue_samples"]["why"]).startswith("not reported by prime_rl: add the run directory with its")


def test_a_resumed_run_is_told_by_its_newest_life(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Steps 0-9 took 100 s each; resumed from 2, steps 2 to 5 take 10 s."""
    rows = [(number, 100.0, 60.0 * number) for number in range(10)] + [(n, 10.0, 780.0 + 60.0 * n) for n in range(2, 6)]
    text = "".join(
        f"(A pid=1) [2026-11-21 08:{int(at) // 60:02}:00] a.py:1 - perf {number}: "
        f"{ {'perf/train_time': took, 'perf/train_wait_time': 0.0, 'perf/step_time': took} }\n"
        for number, took, at in rows
    )
    (tmp_path / "train.log").write_text(text)
    assert found(capsys, tmp_path)["trainer_step_seconds"]["value"] == 10


def test_a_finished_run_does_not_stall(capsys: pytest.CaptureFixture[str]) -> None:
    stall = found(capsys, TESTDATA / "atropos" / "environment")["trainer_stall_ratio"]
    assert (stall["state"], stall["why"]) == ("not_applicable", "the run is finished")


def test_an_empty_folder_exits_1_and_says_what_was_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text = checked(capsys, tmp_path)
    assert code == 1
    assert "no run log was recognised here" in text
    assert "  for the log of another trainer, map its keys to metrics: docs/how-to/custom-logs.md\n" in text
    listed = text.partition("what was looked for:\n")[2].splitlines()
    names = [line.strip().partition(":")[0] for line in listed]
    assert names == sorted(name for name, one in collectors.load().items() if one.looks_for)
    printed = "a printed log (*.log, *.out, *.err, *.txt, console*, ...)"
    assert f"    openrlhf: run-*.wandb, events.out.tfevents.*, {printed}" in listed
    assert main(["check", "--json", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["looked_for"] != []


def test_an_engine_that_is_given_twice_is_counted_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The page has 2 engines with 17 and 1 running requests."""
    page = (TESTDATA / "vllm" / "synthetic_2_engines.prom").read_bytes()
    with serving(Reply(200, page)) as server:
        urls = [f"http://127.0.0.1:{server.port}", f"http://localhost:{server.port}"]
        code, text = checked(capsys, *urls)
        assert main(["check", "--json", *urls]) == 0
    note = f"{urls[1]} is the same engine as {urls[0]}: read once"
    assert code == 0 and f"  {note}\n" in text
    told = json.loads(capsys.readouterr().out)["runs"][0]
    values = {line["signal"]: line["value"] for line in told["signals"]}
    assert (told["notes"], values['generator_requests{state="running"}']) == ([note], 18.0)
    assert [target["target"] for target in told["targets"]] == [f"vllm-127.0.0.1-{server.port}"]


def test_values_are_those_that_are_collected(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the collecting server: a KV cache filled 30,000 times over is dropped, and histograms are read."""
    page = (TESTDATA / "exposition" / "sglang_synthetic_dp2.prom").read_bytes()
    with serving(Reply(200, page)) as server:
        lines = found(capsys, f"sglang=http://127.0.0.1:{server.port}")
    assert lines["kv_cache_usage_ratio"]["state"] == "unknown"
    assert lines["time_to_first_token_seconds"]["why"] == "no request got its first token within 5 minutes"


def test_a_file_is_read_whatever_the_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine a read of a local file takes longer than a page's time limit."""
    monkeypatch.setattr(target_reader, "GUARD_SECONDS", 0.0)
    monkeypatch.setattr(check_report, "SLOW_SECONDS", 0.0)
    run = TESTDATA / "prime_rl" / "driven"
    target = Target("run", "run", "prime_rl", "trainer", path=str(run))
    (seen,) = check_report.probe_targets([target], 0.0, Limits(timeout_seconds=0.0))
    assert (seen.error, seen.facts["framework"]) == ("", "prime_rl")
    assert f"reading {run} (prime_rl): 0 records so far" in capsys.readouterr().err


def test_two_logs_of_one_run_that_disagree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The second is the first with its step times tripled."""
    name = "sync-exp.jsonl"
    for folder, factor in (("a", 1.0), ("b", 3.0)):
        (tmp_path / folder).mkdir()
        rows = [json.loads(line) for line in (TESTDATA / "verl" / "sync_jsonl" / name).read_text().splitlines()]
        for row in rows:
            row["data"]["timing_s/step"] *= factor
        (tmp_path / folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    alone = found(capsys, tmp_path / "a")["trainer_step_seconds"]["value"]
    assert found(capsys, tmp_path / "a", tmp_path / "b")["trainer_step_seconds"]["value"] == alone
    code, text = checked(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert "  data trust: b disagrees with a: trainer_step_seconds" in text


def test_a_folder_of_two_frameworks_is_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(TESTDATA / "verl" / "sync_jsonl", tmp_path / "a")
    shutil.copytree(TESTDATA / "trl" / "sync", tmp_path / "b")
    code, text = checked(capsys, tmp_path)
    assert code == 1
    assert "logs of more than one framework: trl (" in text and "what was looked for" not in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (-3.0, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7200.0, "2 h"), (9 * 86400.0, "9 d")],
)
def test_ages_in_words(seconds: float | None, words: str) -> None:
    assert age(seconds) == words


def test_a_mode_that_nothing_reports_is_unknown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of verl's JSON lines alone, which hold no configuration; and of a log with the user's own keys it is unknown."""
    assert ", mode unknown (usually sync_colocated), " in checked(capsys, TESTDATA / "verl" / "sync_jsonl")[1]
    assert main(["check", "--json", str(TESTDATA / "verl" / "sync_jsonl")]) == 0
    (target,) = json.loads(capsys.readouterr().out)["runs"][0]["targets"]
    assert target["mode"] == "unknown (usually sync_colocated)"
    (tmp_path / "log.jsonl").write_text('{"step": 1, "time": 1000, "loss": 2}\n')
    assert ", mode unknown, " in checked(capsys, f"custom={tmp_path}")[1]


def test_a_told_mode_wins_over_an_assumed_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whichever is read first: verl's log says async, its JSON lines nothing."""
    shutil.copytree(TESTDATA / "verl" / "fully_async_console", tmp_path / "told")
    shutil.copytree(TESTDATA / "verl" / "sync_jsonl", tmp_path / "assumed")
    for first, second in (("told", "assumed"), ("assumed", "told")):
        lines = found(capsys, tmp_path / first, tmp_path / second)
        assert lines["trainer_wait_ratio"]["state"] != "not_applicable"
