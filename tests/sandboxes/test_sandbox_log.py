"""Lines of SDKs about sandboxes: recorded from the real loggers (ROCK's by its source), expected rows by hand."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.detect import detect_path
from collectors.model import Limits, Reading, ScrapeError
from collectors.sandboxes import sandbox_log
from collectors.sandboxes.sandbox_log import SandboxLine, dated_lines, event_of
from tests.collectors._reading import TESTDATA

DATA = TESTDATA / "sandbox_log" / "driven"
T0 = 1_795_301_096.0  # 2026-11-21T22:44:56Z
NOW = T0 + 300


def read(path: Path, cursor: dict[str, Any] | None = None, now: float = NOW, **limits: int) -> Reading:
    return sandbox_log.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), now)


def write(path: Path, *lines: str, at: float = T0) -> None:
    with path.open("a") as file:
        file.writelines(line + "\n" for line in lines)
    os.utime(path, (at, at))


def counters(found: Reading) -> dict[str, float]:
    return {f"{one.metric} {one.labels[0][1]}": one.value for one in found.samples}


def row(box: Any) -> list[Any]:
    seconds = None if box.ready_at is None or box.requested_at is None else round(box.ready_at - box.requested_at, 3)
    return [box.provider, box.id, box.state, box.image_cached, seconds, box.latency_source]


def test_recorded_modal(tmp_path: Path) -> None:
    """12.34 s and 0.40 s by the SDK's own word; one throttled call; one failure told by two exceptions."""
    found = read(DATA / "modal.out")
    assert [row(box) for box in found.sandboxes] == [
        ["modal", "sb-Abc123def456ghi789jkl0", "running", None, 12.34, "log"],
        ["modal", "sb-Abc123def456ghi789jkl1", "running", None, 0.4, "log"],
    ]
    assert counters(found) == {"sandbox_throttled_total modal": 1.0, "sandbox_failures_total capacity": 1.0}


def test_recorded_verifiers() -> None:
    boxes = {box.id: box for box in read(DATA / "logs/env.log").sandboxes}
    assert sorted(boxes) == ["sbx-a1", "sbx-a2", "sbx-a5", "sbx-a6", "sbx-a7", "sbx-b1", "sbx-e1", "sbx-s1"]
    # Only where the build was told is there a beginning: 22:44:49.221 to 22:44:49.772.
    assert row(boxes["sbx-a2"]) == ["prime", "sbx-a2", "running", False, 0.551, "log"]
    assert row(boxes["sbx-a1"]) == ["prime", "sbx-a1", "running", None, None, None]
    assert boxes["sbx-a1"].image == "python:3.11-slim"
    assert boxes["sbx-a6"].detail == "not ended: HTTP 504: gateway timeout"


def test_recorded_swerex() -> None:
    """Written by rich, which folds at 80 columns: the id is on the next line."""
    server, daytona = read(DATA / "swerex.log").sandboxes
    assert row(server) == ["swerex", "swerex.log:1", "terminated", None, 3.5, "log"]
    assert row(daytona)[:3] == ["daytona", "5f0c2d1e-1b2a-4c3d-8e9f-0123456789ab", "terminated"]
    assert counters(read(DATA / "swerex.log")) == {"sandbox_failures_total timeout": 1.0}


def test_rock_adds_up_from_the_first_stage() -> None:
    """The pull began at 22:40:02.25, alive at 22:40:16: 13.75 s, pauses between stages included."""
    (box,) = read(DATA / "rock.log").sandboxes
    assert row(box) == ["rock", "9f1c0a77", "running", False, 13.75, "log"]
    assert box.requested_at == 1795272002.25


def test_rock_without_a_pull_had_its_image(tmp_path: Path) -> None:
    log = tmp_path / "rock.log"
    write(
        log,
        "2026-11-21T22:40:13.000Z INFO -- [startup_timing] [9f1c0a78] Docker start took 1.500 s",
        "2026-11-21T22:40:16.000Z INFO -- [startup_timing] [9f1c0a78] Wait until alive took 3.000 s",
    )
    assert row(read(log).sandboxes[0]) == ["rock", "9f1c0a78", "running", True, 4.5, "log"]


def test_swerex_on_modal_is_one_sandbox(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    write(log, "INFO Sandbox (sb-Abc123def456ghi789jkl2) created in 8.21s", "INFO Runtime started in 3.50s")
    assert [row(box) for box in read(log).sandboxes] == [
        ["modal", "sb-Abc123def456ghi789jkl2", "running", None, 8.21, "log"]
    ]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("modal: sandbox sb-1234 up (image=ubuntu:22.04)", SandboxLine("up", "modal", "sb-1234", image="ubuntu:22.04")),
        ("e2b: sandbox i1abcd up (image=x, template=y)", SandboxLine("up", "e2b", "i1abcd", image="x")),
        ("modal: failed to terminate sandbox sb-1234: gone", SandboxLine("kept", "modal", "sb-1234", why="gone")),
        ("e2b.exceptions.RateLimitException: 429: slow", SandboxLine("failed", why="RateLimitException: 429: slow")),
        (
            "DaytonaForbiddenError: Total CPU limit exceeded",
            SandboxLine("failed", why="DaytonaForbiddenError: Total CPU limit exceeded"),
        ),
        (
            "SandboxError: docker run failed: no space left",
            SandboxLine("failed", "docker", why="docker run failed: no space left"),
        ),
        ("for SandboxCreateV2 (a1b2c3d4). Retrying...", SandboxLine("throttled", "modal")),
        # What only looks like it.
        ("waiting for Modal (a1b2c3d4). Retrying...", None),
        ("ValueError: Sandbox was created in 3 seconds", None),
        ("the agent said: Sandbox abcd created in 12.34s", None),
        ("Runtime started in a second", None),
        ("HTTP Request: POST https://x/sandbox 200", None),
    ],
)
def test_lines(line: str, wanted: SandboxLine | None) -> None:
    assert event_of(line) == wanted


def test_causes_of_failures(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    write(
        log,
        "verifiers.v1.errors.SandboxError: prime sandbox provisioning failed: HTTP 402: Payment required",
        "e2b.exceptions.RateLimitException: 429: Rate limit exceeded",
        "e2b.exceptions.RateLimitException: 429: Rate limit exceeded",
        "prime_sandboxes.exceptions.SandboxImagePullError: cannot pull",
    )
    assert counters(read(log)) == {
        "sandbox_failures_total credit": 1.0,
        "sandbox_failures_total rate_limit": 2.0,
        "sandbox_failures_total image": 1.0,
    }


# ---- when


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times without a zone are the machine's: here it is in Greenwich."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("[modal-client] 2026-11-21T23:44:56+0100 x", 0.0),
        ("2026-11-21 22:44:56,250 - verifiers - x", 0.25),
        ("(RolloutWorker pid=12, ip=10.0.0.1) 2026-11-21T22:44:57Z x", 1.0),
        ('{"timestamp": "2026-11-21T22:44:58+00:00", "level": "INFO", "message": "x"}', 2.0),
        ("22:44:59    INFO x", 3.0),
        ("no time at all", 10.0),
    ],
)
@pytest.mark.usefixtures("utc")
def test_dates(line: str, seconds: float) -> None:
    """The file was written 10 s later, which is what a line without any time gets."""
    ((ts, text),) = dated_lines([line], T0 + 10, None)
    assert ts - T0 == pytest.approx(seconds) and text.endswith(("x", "all"))


def test_colours_workers_and_json_are_seen_through(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    write(
        log,
        "\x1b[36m(RolloutWorker pid=12, ip=10.0.0.1)\x1b[0m for SandboxCreateV2 (a1b2c3d4). Retrying...",
        '{"timestamp": "2026-11-21T22:44:50+00:00", "message": "[swe] prime: sandbox sbx-9 up (image=x)"}',
    )
    found = read(log)
    assert counters(found) == {"sandbox_throttled_total modal": 1.0}
    assert found.sandboxes[0].id == "sbx-9" and found.sandboxes[0].ready_at == T0 - 6


# ---- going on


def test_line_by_line_says_the_same_as_at_once(tmp_path: Path) -> None:
    log, cursor, boxes, counts = tmp_path / "modal.out", {}, {}, {}
    for line in (DATA / "modal.out").read_text().splitlines():
        write(log, line)
        found = read(log, cursor)
        boxes |= {box.id: row(box) for box in found.sandboxes}
        counts |= counters(found)
        cursor = found.cursor  # type: ignore[assignment]
    whole = read(DATA / "modal.out")
    assert list(boxes.values()) == [row(box) for box in whole.sandboxes]
    assert counts == counters(whole)
    assert read(log, cursor).samples == ()


def test_a_build_and_its_end_in_two_calls(tmp_path: Path) -> None:
    log, line = tmp_path / "a.log", "2026-11-21T22:44:{}Z prime: {}"
    write(
        log, line.format("00", "image r/i:1 isn't cached on the platform - auto-building it (sandbox sbx-1 waits for")
    )
    first = read(log)
    assert row(first.sandboxes[0]) == ["prime", "sbx-1", "building_image", False, None, None]
    write(log, line.format("40", "sandbox sbx-1 up (image=r/i:1)"))
    second = read(log, first.cursor)  # type: ignore[arg-type]
    assert row(second.sandboxes[0]) == ["prime", "sbx-1", "running", False, 40.0, "log"]


def test_what_came_up_does_not_run_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    write(log, *(f"2026-11-21T22:44:56Z prime: sandbox sbx-{n:04} up (image=x)" for n in range(1003)))
    found = read(log)
    over = sorted(box.id for box in found.sandboxes if box.state == "terminated")
    assert over == ["sbx-0000", "sbx-0001", "sbx-0002"] and len(found.sandboxes) == 1003
    later = read(log, found.cursor, now=T0 + 25 * 3600)  # type: ignore[arg-type]
    assert len(later.sandboxes) == 1000
    assert {(box.state, box.ended_at, box.provider_state) for box in later.sandboxes} == {
        ("terminated", T0 + 24 * 3600, "its end is not logged")
    }


def test_a_folder_is_walked_within_bounds(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(DATA, tmp_path / "run"))
    (copy / "rollouts/step_1").mkdir(parents=True)
    write(copy / "rollouts/step_1/x.log", "prime: sandbox sbx-0 up (image=x)")
    (copy / "latest.log").symlink_to(copy / "modal.out")
    found = read(copy)
    assert sorted(found.cursor["files"]) == ["logs/env.log", "modal.out", "rock.log", "swerex.log"]  # type: ignore[index]
    for n in range(60):
        write(copy / f"{n}.log", "x", at=T0 + n)
    assert len(read(copy).cursor["files"]) == 50  # type: ignore[index]


def test_it_attaches_only_where_it_heard_something(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    write(log, "step 1 loss 0.5", "the sandbox is fine")
    assert sandbox_log.matches_path(log) is None and sandbox_log.matches_path(tmp_path) is None
    assert read(log).sandboxes == ()  # named in the configuration it waits
    write(log, *("x" * 1000 for _ in range(70)))
    write(log, "for SandboxCreateV2 (a1b2c3d4). Retrying...")
    assert detect_path(log) == [("sandbox_log", "train.log with lines of a sandbox SDK")]
    write(log, *("x" * 1000 for _ in range(70)))
    assert sandbox_log.matches_path(log) is None


def test_what_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScrapeError) as caught:
        read(tmp_path / "absent.log")
    assert caught.value.kind == "missing"


@given(st.text(max_size=300))
def test_any_line_is_harmless(text: str) -> None:
    for line in (text, f"prime: sandbox {text} up (image={text})", f"[startup_timing] [{text}] {text} took {text} s"):
        event = event_of(line)
        assert event is None or event.id != "" or event.kind in ("failed", "throttled", "runtime")
        list(dated_lines([line], T0, None))
