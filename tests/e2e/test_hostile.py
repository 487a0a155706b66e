"""Broken targets: each one gets one clear error that names target and cause; the others keep working."""

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest

from collectors.model import Limits, Target
from server.lib.clock import ScaledClock
from server.query import Reader, TargetTrust
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached
from tests.e2e.nasty import nasty

T0 = 1_800_000_000.0
# Who answers at all is given time for it, however busy the machine is; who does not is soon given up.
LIMITS, HASTY = Limits(body_bytes=1 << 20, timeout_seconds=30.0), Limits(body_bytes=1 << 20, timeout_seconds=1.5)
# What the kernel's socket buffers may swallow beyond what was read.
SOCKET_BYTES = 8 << 20


def url_target(base: str, kind: str) -> Target:
    return Target(kind, "run", "vllm", "generator", url=f"{base}/{kind}/metrics")


def drive(store: Store, targets: list[Target], steps: int = 1, limits: Limits = LIMITS) -> Reader:
    clock, writer = ScaledClock(T0), Writer(store)
    loop = RunLoop(Attached("run", tuple(targets)), LoopServices(store, writer, clock, limits=limits))

    async def run() -> None:
        for n in range(steps):
            clock.set(T0 + 5 * n)
            await loop.step(T0 + 5 * n, patient=True)
        await loop.close()

    asyncio.run(run())
    writer.close()
    return Reader(store, clock)


def trust(reader: Reader) -> dict[str, TargetTrust]:
    return {target.target: target for target in reader.targets("run")}


EXPECTED = {
    "garbage": "text",
    "html": "HTML",
    "empty": "is empty",
    "error": "500",
    "secret": "401",
    "redirect": "302",
    "endless": "bytes",
    "huge": "bytes",
    "slow": "1.5 s",
    "hang": "1.5 s",
}
NEVER = ("slow", "hang")


def test_every_broken_page_is_one_clear_error_and_the_good_engine_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with nasty() as server, caplog.at_level(logging.INFO, logger="rollscope"):
        dead = Target("dead", "run", "vllm", "generator", url="http://127.0.0.1:9/metrics")
        drive(store, [url_target(server.url, kind) for kind in NEVER], limits=HASTY)
        kinds = ["good", *(kind for kind in EXPECTED if kind not in NEVER)]
        reader = drive(store, [*(url_target(server.url, kind) for kind in kinds), dead])
        sent = dict(server.sent)
    found = trust(reader)
    assert found["good"].up and not any(found[kind].up for kind in (*EXPECTED, "dead"))
    for kind, word in EXPECTED.items():
        assert word in found[kind].error, (kind, found[kind].error)
        assert "hunter2" not in found[kind].error and "127.0.0.1" not in found[kind].error
    values = {signal.name: signal.value for signal in reader.status("run").signals.values()}
    assert values['generator_requests{state="running"}'] == 128.0
    assert sent["huge"] <= LIMITS.body_bytes + SOCKET_BYTES and sent["endless"] <= LIMITS.body_bytes + SOCKET_BYTES
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == len(EXPECTED) + 1, "one line per target that went down"


def test_a_target_that_comes_back_is_told_once(store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Logs speak on change of state only."""
    run_dir = tmp_path / "run"
    target = Target("trainer", "run", "prime_rl", "trainer", path=str(run_dir))
    clock, writer = ScaledClock(T0), Writer(store)
    loop = RunLoop(Attached("run", (target,)), LoopServices(store, writer, clock, limits=LIMITS))

    async def run() -> None:
        for n in range(40):
            if n == 20:
                run_dir.mkdir()
                (run_dir / "metrics.jsonl").write_text(
                    '{"step": 0, "time": 1800000000.0, "time/step": 3.0, "time/forward_backward": 1.0}\n'
                )
            clock.set(T0 + 5 * n)
            await loop.step(T0 + 5 * n, patient=True)
        await loop.close()

    with caplog.at_level(logging.INFO, logger="rollscope"):
        asyncio.run(run())
    writer.close()
    words = [record.getMessage().split(":")[0] for record in caplog.records if record.name == "rollscope.collect"]
    assert words == ["target trainer cannot be read", "target trainer is up again"]


def test_broken_files_are_clear_errors_and_the_good_ones_go_on(store: Store, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    times = '"time/step": 2.0, "time/wait_for_batch": 1.0, "time/forward_backward": 1.0'
    lines = [f'{{"step": {n}, "time": {T0 - 100 + n}, {times}}}' for n in range(5)]
    (good / "metrics.jsonl").write_text(
        "\n".join([*lines[:3], '{"step": 3, "ti', lines[3], "\x00\xff", lines[4], '{"step": 5, "tim'])
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"\x00\x01garbage" * 1000)
    targets = [
        Target("good", "run", "prime_rl", "trainer", path=str(good)),
        Target("no-run", "run", "prime_rl", "trainer", path=str(empty)),
        Target("gone", "run", "trl", "trainer", path=str(tmp_path / "nowhere")),
        Target("foreign", "run", "trl", "trainer", path=str(foreign)),
        Target("noise", "run", "trl", "trainer", path=str(noise)),
    ]
    reader = drive(store, targets)
    found = trust(reader)
    assert {name: target.up for name, target in found.items()} == {
        "good": True, "no-run": False, "gone": False, "foreign": False, "noise": False
    }  # fmt: skip
    assert all(len(found[name].error) > 10 for name in found if name != "good")
    assert found["good"].dropped == 2 and "dropped 2" in found["good"].error
    values = {signal.name: signal.value for signal in reader.status("run").signals.values()}
    assert values["trainer_wait_ratio"] == 0.5 and values["policy_version"] == 4.0


def test_a_locked_database_says_locked_and_is_read_later(store: Store, tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / "testdata/trl/sync"
    path = tmp_path / "run.db"
    path.write_bytes(next(source.rglob("*.db")).read_bytes())
    target = Target("trl", "run", "trl", "trainer", path=str(path))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode=DELETE")
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    assert "lock" in trust(drive(store, [target]))["trl"].error
    holder.execute("ROLLBACK")
    holder.close()
    assert trust(drive(store, [target]))["trl"].up
