"""Printed logs of a trainer that hangs in a collective, and logs whose times are not those of this host's clock."""

import os
import time
from pathlib import Path

import pytest

from collectors.formats import faults
from collectors.model import Cursor, Limits
from collectors.trainers.slime import COLLECTOR as SLIME
from collectors.training_logs import clocks
from tests.collectors import _events as event_file
from tests.field.product import INPUTS, RUN, Product, watching

# The time of the watchdog's lines, local time.
HUNG = time.mktime((2026, 11, 25, 10, 42, 28, 0, 0, -1)) + 0.858931807
NOW = 1_795_600_000.0


def written(log: Path, text: str, modified: float) -> Path:
    log.write_text(text)
    os.utime(log, (modified, modified))
    return log


def problem(product: Product) -> str:
    [target] = product.reader.targets(RUN)
    return target.error


def firing(product: Product) -> list[str]:
    return [alert.name for alert in product.status().alerts if alert.state == "firing"]


def case_7(folder: Path, more: str = "", modified: float = HUNG + 1) -> Path:
    text = (INPUTS / "07-nccl-watchdog" / "job.log").read_text()
    return written(folder / "job.log", text + more, modified)


# ---- faults


def test_a_collective_that_timed_out(tmp_path: Path) -> None:
    """Twelve steps of 640.5 s, then four ranks report a collective of 600 s."""
    log = case_7(tmp_path)
    with watching([log], HUNG + 60) as product:
        status = product.step(60)
        assert product.value("trainer_step_seconds") == pytest.approx(640.5)
        assert product.value('trainer_fault{fault="collective_timeout"}') == 1.0
        assert status.facts["fault"] == "a collective timed out: ALLREDUCE, ranks 0 to 3, after 600 s"
        assert status.facts["fault_since"] == pytest.approx(HUNG - 600.013)
        verdict = status.verdict
        assert verdict is not None
        assert (verdict.outcome, verdict.cause, verdict.rule) == ("stalled", "collective_timeout", "V07")
        assert verdict.confidence >= 0.9
        assert verdict.since == pytest.approx(HUNG - 600.013)
        assert "ALLREDUCE, ranks 0 to 3, after 600 s; it began 12 min ago" in verdict.summary
        assert "hangs in a collective" in verdict.advice[0].text
        assert firing(product) == ["TrainerFault"]
        events = product.reader.runs.events(RUN, HUNG - 86_400, HUNG + 86_400, ["fault"], 10)
        assert [(event.ts, event.detail) for event in events] == [
            (pytest.approx(HUNG, abs=0.01), status.facts["fault"])
        ]
        # A row after the lines shows that the trainer goes on.
        row = (
            log.read_text().splitlines()[11].replace("step:12 ", "step:13 ").replace("global_step:12", "global_step:13")
        )
        written(log, log.read_text() + row + "\n", HUNG + 120)
        status = product.step(60)
        assert (status.facts["fault"], status.facts["fault_since"]) == ("", 0.0)
        assert status.verdict is not None and status.verdict.outcome != "stalled"
        assert product.signals()['trainer_fault{fault="collective_timeout"}'].state == "not_applicable"
        assert firing(product) == []


STUCK = (
    "[rank2]:[E1125 10:42:28.858931807 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process"
    "GroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n"
)
DIED = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the "
    "problem, check the logs for the dead worker. Worker ID: 5a Node ID: 3c Worker IP address: 10.0.0.2\n"
)
DETECTED = (
    "(WorkerDict pid=24) [rank5]:[E1125 10:42:28.858931807 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank 5] "
    "Exception (either an error or timeout) detected by watchdog at work: 4486, last completed NCCL work: 4485.\n"
)
OLD = (
    "[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15173, "
    "OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800866 milliseconds before timing out.\n"
)


def slime_step(number: int, ts: float, reward: float = 0.51) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts))
    times = {"perf/train_wait_time": 13.0, "perf/train_time": 17.0, "perf/step_time": 30.0}
    parts = (
        ("rollout_metrics.py:268", "perf", {"rollout/response_len/mean": 910.0, "perf/rollout_time": 12.0}),
        ("rollout_metrics.py:117", "rollout", {"rollout/raw_reward": reward}),
        ("train_metric_utils.py:44", "perf", times),
    )
    return "".join(f"[{stamp}] {source} - {kind} {number}: {values!r}\n" for source, kind, values in parts)


def slime(last: float, steps: int = 30, reward: float = 0.51) -> str:
    """Steps of 30 s; the last one ends at this time."""
    return "".join(slime_step(number, last - (steps - number) * 30.0, reward) for number in range(1, steps + 1))


@pytest.mark.parametrize(
    "line, cause, text, since",
    [
        (
            STUCK,
            "collective_timeout",
            "the watchdog of the collectives reports a hang or an error: rank 2, after 480 s",
            480,
        ),
        (DETECTED, "collective_timeout", "the watchdog of the collectives reports a hang or an error: rank 5", 0),
        (DIED, "worker_died", "a worker died or was killed", 0),
        # Without a time of its own, the line is as old as the last change of the file.
        (OLD, "collective_timeout", "a collective timed out: BROADCAST, rank 3, after 1801 s", 1800.866),
        (
            OLD + DIED + STUCK,
            "collective_timeout",
            "a collective timed out: BROADCAST, ranks 2 to 3, after 1801 s",
            1800.866,
        ),
    ],
)
@pytest.mark.parametrize("framework", ["verl", "slime"])
def test_other_lines_and_frameworks(
    tmp_path: Path, framework: str, line: str, cause: str, text: str, since: float
) -> None:
    steps = {
        "verl": "".join((INPUTS / "07-nccl-watchdog" / "job.log").read_text().splitlines(keepends=True)[:12]),
        "slime": slime(HUNG - 2000),
    }
    log = written(tmp_path / "driver.log", steps[framework] + line, HUNG)
    with watching([log], HUNG + 5) as product:
        status = product.step(30)
        assert status.facts["framework"] == framework
        assert status.facts["fault"] == text
        assert status.facts["fault_since"] == pytest.approx(HUNG - since, abs=1e-3)
        verdict = status.verdict
        assert verdict is not None and (verdict.outcome, verdict.cause) == ("stalled", cause)
        assert verdict.since == pytest.approx(HUNG - since, abs=1e-3)
        assert "TrainerFault" in firing(product)
        assert "clock_offset_seconds" not in status.facts


def test_an_undated_line_half_an_hour_after_the_newest_step_is_no_zone(tmp_path: Path) -> None:
    log = written(tmp_path / "driver.log", slime(HUNG - 1801) + OLD, HUNG)
    with watching([log], HUNG + 5) as product:
        status = product.step(30)
        assert "clock_offset_seconds" not in status.facts
        assert status.facts["fault_since"] == pytest.approx(HUNG - 1800.866, abs=1e-3)


def test_a_fault_before_the_newest_row_is_over(tmp_path: Path) -> None:
    log = written(tmp_path / "driver.log", slime(HUNG - 600) + DIED + slime_step(31, HUNG), HUNG)
    with watching([log], HUNG + 5) as product:
        status = product.step(10)
        assert "fault" not in status.facts
        assert product.signals()["trainer_fault"].state == "not_applicable"


def test_lines_that_only_name_a_watchdog() -> None:
    for text in ("watchdog_timeout=300", "TORCH_NCCL_ENABLE_MONITORING: watchdog enabled", "the worker died out"):
        assert faults.find(text, None, HUNG) is None


def test_the_year_of_a_line_without_one() -> None:
    new_year = time.mktime((2027, 1, 1, 0, 5, 0, 0, 0, -1))
    assert faults.glog_time("[E1231 23:59:00.5 x.cpp:1] ", new_year) == pytest.approx(new_year - 359.5)
    assert faults.glog_time("W0229 10:00:00.5 77 x.py:1] ", new_year) is None


# ---- clocks


def tensorboard(folder: Path, last: float, steps: int = 30) -> Path:
    """A TRL run's scalars, a step every 30 s; the last one at this time."""
    records = b""
    for number in range(1, steps + 1):
        values = {"reward": 0.51, "frac_reward_zero_std": 0.1, "step_time": 30.0, "loss": 0.01}
        scalars = [event_file.simple(f"train/{key}", value) for key, value in values.items()]
        records += event_file.record(event_file.event(last - (steps - number) * 30.0, number, *scalars))
    log = folder / event_file.name(1)
    log.write_bytes(records)
    return log


def check_runs(product: Product, reward: float) -> None:
    """The run goes on with steps of 30 s, and its source is complete."""
    status = product.status()
    assert product.value("trainer_step_seconds") == pytest.approx(30.0)
    assert product.value('reward{stat="mean"}') == pytest.approx(reward)
    assert (product.value("trainer_stall_ratio") or 0.0) < 0.1
    assert status.verdict is not None and status.verdict.outcome != "stalled"
    assert not [alert for alert in status.alerts if alert.name == "RunStalled"]
    assert product.value('trusted_targets_ratio{actor="trainer"}') == 1.0


@pytest.mark.parametrize(
    "shift, told",
    [
        (3600.0, "its clock is 60 min ahead"),
        (3000.0, "its clock is 50 min ahead"),
        (90.0, "its clock is 90 s ahead"),
        (28_800.0, "its clock is 8 h ahead, as in another time zone"),
        (-28_800.0, "its clock is 8 h behind, as in another time zone"),
        (-3600.0, "its clock is 60 min behind, as in another time zone"),
        (-19_800.0, "its clock is 5.5 h behind, as in another time zone"),
    ],
)
@pytest.mark.parametrize("since_step", [0.0, 17.0])
def test_a_printed_log_with_another_clock(tmp_path: Path, shift: float, told: str, since_step: float) -> None:
    """Thirty steps of 30 s, read between two steps; then it goes on, with times of its own clock."""
    log = tmp_path / "driver.log"
    written(log, slime(NOW + shift), NOW)
    steps = iter(range(31, 100))

    def goes_on(now: float) -> None:
        if now >= NOW + 30 * (after := len(log.read_text().splitlines()) // 3 - 29):
            at = NOW + 30 * after
            written(log, log.read_text() + slime_step(next(steps), at + shift), at)

    with watching([log], NOW + since_step) as product:
        product.step(10)
        assert len(product.reader.steps.newest(RUN, 50)) == 30
        check_runs(product, 0.51)
        assert told in problem(product)
        product.step(120, goes_on)
        check_runs(product, 0.51)
        assert told in problem(product)
        assert product.status().facts["clock_offset_seconds"] == pytest.approx(shift, abs=1.0)


@pytest.mark.parametrize("ahead, told", [(3600.0, "its clock is 60 min ahead"), (0.0, ""), (-28_800.0, "")])
def test_times_in_epoch_seconds(tmp_path: Path, ahead: float, told: str) -> None:
    """A clock may be ahead, but these times are of no zone: a log that is behind has stopped, or was copied."""
    log = tensorboard(tmp_path, NOW + ahead)
    os.utime(log, (NOW, NOW))
    with watching([log], NOW + 5) as product:
        product.step(30)
        assert told in problem(product) and bool(told) == bool(problem(product))
        if ahead >= 0:
            check_runs(product, 0.51)
        else:
            assert product.status().lifecycle == "finished"


def test_a_run_that_ended_long_ago_keeps_its_times(tmp_path: Path) -> None:
    log = written(tmp_path / "driver.log", slime(NOW - 28_800), NOW - 28_800)
    with watching([log], NOW) as product:
        status = product.step(30)
        assert "clock_offset_seconds" not in status.facts and problem(product) == ""
        assert (status.lifecycle, status.alerts) == ("finished", ())
        assert status.state.as_of == pytest.approx(NOW - 28_800)


def test_a_hang_of_eight_hours_with_undated_lines_keeps_its_times(tmp_path: Path) -> None:
    """Undated lines after the newest step do not make it a log of another zone."""
    log = written(tmp_path / "driver.log", slime(NOW - 28_800) + "waiting for the reward server\n" * 12, NOW)
    with watching([log], NOW) as product:
        assert "clock_offset_seconds" not in product.step(30).facts


def test_all_parts_of_a_long_log_are_corrected(tmp_path: Path) -> None:
    """The offset is that of the end of the log, also for the parts that are read before the end."""
    log = written(tmp_path / "driver.log", slime(NOW - 28_800, 600), NOW)
    cursor: Cursor = {}
    times = list[float]()
    while True:
        assert SLIME.tail is not None
        reading = SLIME.tail(log, cursor, Limits(tail_bytes=50_000), NOW)
        assert reading.cursor is not None
        assert reading.facts["clock_offset_seconds"] == -28_800.0
        times += sorted({sample.ts for sample in reading.samples if sample.ts is not None})
        cursor = reading.cursor
        if not reading.more:
            break
    assert len(times) == 600 and times == sorted(times)
    assert times[-1] == pytest.approx(NOW, abs=1.0)


def test_a_read_that_began_before_the_file_changed_shows_no_clock_ahead() -> None:
    """A read is dated with its tick. Its file may change while other targets are read."""
    assert clocks.offset(NOW + 31, NOW + 31.7, NOW, local=True) == 0.0
    assert clocks.offset(NOW + 95, NOW + 1, NOW, local=False) == pytest.approx(95.0)


# ---- logs that are not read as steps of a dict


ZONES = [
    (0.0, ""),
    (28_800.0, "its clock is 8 h ahead, as in another time zone"),
    (19_800.0, "its clock is 5.5 h ahead, as in another time zone"),
    (-10_800.0, "its clock is 3 h behind, as in another time zone"),
    (-28_800.0, "its clock is 8 h behind, as in another time zone"),
]


def engine_line(ts: float) -> str:
    return time.strftime("INFO %m-%d %H:%M:%S", time.localtime(ts)) + (
        " [loggers.py:122] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.5 tokens/s, "
        "Running: 4 reqs, Waiting: 2 reqs, GPU KV cache usage: 1.5%, Prefix cache hit rate: 50.0%\n"
    )


@pytest.mark.parametrize("shift, told", ZONES)
def test_the_log_of_an_engine_in_another_zone(tmp_path: Path, shift: float, told: str) -> None:
    log = tmp_path / "server.log"
    lines = [engine_line(NOW + shift - 10 * number) for number in range(30, -1, -1)]
    written(log, "".join(lines), NOW)

    def goes_on(now: float) -> None:
        if (due := int((now - NOW) // 10)) > len(lines) - 31:
            lines.append(engine_line(NOW + shift + 10 * due))
            written(log, "".join(lines), NOW + 10 * due)

    with watching([log], NOW) as product:
        product.step(60, goes_on)
        assert product.value('generator_requests{state="running"}') == 4
        assert product.value("kv_cache_usage_ratio") == pytest.approx(0.015)
        assert product.value("generator_prompt_tokens_per_second") == pytest.approx(10.0)
        assert (told in problem(product)) and bool(told) == bool(problem(product))


def prime_step(step: int, ts: float, form: str) -> str:
    line = f"SUCCESS Step {step} | Time: 50.00s | Reward: 0.5 | Seq. Length: 300.0 tokens/sample | Async Level: 1\n"
    return time.strftime(form, time.localtime(ts)) + line


@pytest.mark.parametrize("form", ["%H:%M:%S ", "%Y-%m-%d %H:%M:%S.250 | "])
@pytest.mark.parametrize("shift, told", ZONES)
def test_prime_rl_in_another_zone(tmp_path: Path, shift: float, told: str, form: str) -> None:
    """Lines with a time of day only, and with a date."""
    log = tmp_path / "orchestrator.log"
    lines = [prime_step(30 - number, NOW + shift - 50 * number, form) for number in range(30, -1, -1)]
    written(log, "".join(lines), NOW)

    def goes_on(now: float) -> None:
        if (due := int((now - NOW) // 50)) > len(lines) - 31:
            lines.append(prime_step(30 + due, NOW + shift + 50 * due, form))
            written(log, "".join(lines), NOW + 50 * due)

    with watching([log], NOW + 17) as product:
        status = product.step(120, goes_on)
        assert product.value("trainer_step_seconds") == pytest.approx(50.0)
        assert product.value("policy_version") == 32
        assert product.value('reward{stat="mean"}') == pytest.approx(0.5)
        assert status.lifecycle == "running" and (product.value("trainer_stall_ratio") or 0.0) < 0.1
        assert status.verdict is not None and status.verdict.outcome != "stalled"
        assert (told in problem(product)) and bool(told) == bool(problem(product))
