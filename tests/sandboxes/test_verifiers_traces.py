"""Episodes as verifiers 0.4.0 saved them (its own rollout, runtime and store code, a scripted provider behind it).

What each recorded case is: step 1 cached image, built image, refused with 402, image that cannot be pulled; step 2 a
sandbox that dies under a command, a harness that crashes, a create that worked at the second attempt, a rollout on the
host, a Docker that does not answer, an evaluation; step 3 two rollouts in one box they borrowed.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from collectors.formats.verifiers import matches_path, parse
from collectors.model import Limits, Reading, Sample, Sandbox, ScrapeError, Target
from collectors.sandbox_providers.traces import rollout
from collectors.sandboxes import verifiers_traces
from server.store import Store
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import attach
from tests.collectors._reading import TESTDATA
from tests.driven_run import bench

DATA = TESTDATA / "verifiers_traces"
EXPECTED = json.loads((DATA / "expected.json").read_text())
NOW = 1_795_300_500.0
STEP = "rollouts/step_{}/train/all/traces.jsonl"


def read(path: Path, cursor: dict[str, Any] | None = None, now: float = NOW, **limits: int) -> Reading:
    """One call, with the cursor through JSON as the store keeps it."""
    return verifiers_traces.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), now)


def last(samples: list[Sample] | tuple[Sample, ...], metric: str, label: str = "environment") -> dict[str, float]:
    return {dict(one.labels)[label]: one.value for one in samples if one.metric == metric}


def rows(reading: Reading) -> list[list[Any]]:
    """An id that is the trace's own (the provider gave none) is None, as in expected.json."""
    return [
        [
            one.provider, one.id if one.id != one.name else None, one.state, one.cause, one.image_cached,
            None if one.ready_at is None or one.requested_at is None else round(one.ready_at - one.requested_at, 3),
        ]
        for one in reading.sandboxes
    ]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "prime_rl", tmp_path / "my-run"))


def lines(step: int = 1) -> list[str]:
    return (DATA / "prime_rl" / STEP.format(step)).read_text().splitlines(keepends=True)


def append(path: Path, *texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(texts)


@pytest.mark.parametrize("name", ["prime_rl", "standalone"])
def test_recorded_episodes(name: str) -> None:
    found, wanted = read(DATA / name), EXPECTED[name]
    assert rows(found) == wanted["sandboxes"]
    assert last(found.samples, "rollouts_seen_total") == wanted["seen"]
    assert last(found.samples, "rollouts_infra_failed_total") == wanted["lost"]
    assert last(found.samples, "rollout_attempt_errors_total", "type") == wanted["errors"]
    assert (found.dropped, found.unmapped, found.listed) == (0, {}, ())


def test_times_names_and_whose_they_are() -> None:
    first, *_, evaluated = read(DATA / "prime_rl").sandboxes
    assert (first.requested_at, first.ready_at, first.ended_at) == (
        1795300400.3616128, 1795300400.6837084, 1795300400.7920284,
    )  # fmt: skip
    assert len(first.name) == 32 and first.latency_source == "trace" and first.run_key == "my-run"
    assert evaluated.id == "sbx-e1"
    assert read(DATA / "prime_rl").facts == {"has_sandbox": 1.0, "run_name": "my-run"}
    assert read(DATA / "standalone").facts == {"has_sandbox": 1.0}


def test_a_boot_that_did_not_end_is_no_latency() -> None:
    """verifiers closes its span with the rollout: 22 ms that look like the fastest boot of all."""
    episode = json.loads(lines()[2])
    boot = episode["traces"][0]["timing"]["boot"]
    assert boot["end"] - boot["start"] == pytest.approx(0.0223, abs=1e-4)
    (refused,) = rollout(episode).sandboxes
    assert (refused.ready_at, refused.latency_source, refused.ended_at) == (None, None, boot["end"])
    assert refused.detail == "prime sandbox provisioning failed: Insufficient funds: payment required"


def test_no_text_of_the_rollouts_is_kept() -> None:
    body = "".join(lines()) + "".join(lines(2))
    assert "SECRETPROMPT" in body and "SECRETANSWER" in body and "agent crashed" in body
    said = repr(read(DATA / "prime_rl"))
    assert "SECRET" not in said and "agent crashed" not in said and "Traceback" not in said


def test_a_failures_first_line_is_kept_without_what_looks_like_a_key() -> None:
    episode = json.loads(lines(2)[0])
    episode["traces"][0]["errors"][-1]["message"] = "container run failed: token=abc123456 in use\nsolution = 42"
    (failed,) = rollout(episode).sandboxes
    assert failed.detail == "container run failed: token=... in use"


def test_a_create_that_worked_at_the_second_attempt_loses_nothing() -> None:
    one = rollout(json.loads(lines(2)[2]))
    assert (one.lost, one.errors, one.sandboxes[0].state) == (False, ("SandboxError",), "terminated")


def test_the_harness_is_not_the_sandbox() -> None:
    one = rollout(json.loads(lines(2)[1]))
    assert (one.boxed, one.lost, one.errors) == (True, False, ("HarnessError",))
    assert one.sandboxes[0].ready_at is not None


def test_an_episode_without_traces_may_still_be_lost() -> None:
    episode = {"env": {"id": "swe"}, "ok": False, "errors": [{"type": "SandboxError", "message": "no"}], "traces": []}
    assert rollout(episode).lost and rollout(episode).sandboxes == ()
    assert not rollout({**episode, "errors": [{"type": "EnvError"}]}).boxed


def test_one_agents_sandbox_loses_the_episode_of_all() -> None:
    good, bad = json.loads(lines()[0]), json.loads(lines(2)[0])
    one = rollout({**good, "ok": False, "traces": good["traces"] + bad["traces"]})
    assert one.lost and [box.state for box in one.sandboxes] == ["terminated", "failed"]


def test_line_by_line_says_the_same_as_at_once(tmp_path: Path) -> None:
    file, cursor, boxes, samples = tmp_path / STEP.format(1), {}, [], []
    for text in lines():
        append(file, text[:200])
        half = read(tmp_path, cursor)
        assert (half.sandboxes, half.samples) == ((), ())
        append(file, text[200:])
        found = read(tmp_path, half.cursor)  # type: ignore[arg-type]
        boxes += found.sandboxes
        samples += found.samples
        cursor = found.cursor  # type: ignore[assignment]
    assert [box.id for box in boxes] == [box.id for box in read(tmp_path).sandboxes]
    assert last(samples, "rollouts_seen_total") == {"swe": 4}
    assert last(samples, "rollouts_infra_failed_total") == {"swe": 2}
    assert read(tmp_path, cursor).samples == ()


@pytest.mark.parametrize("size", [1, 3, 5])
def test_small_bites_lose_nothing(run: Path, size: int) -> None:
    seen, boxes, cursor, calls = {}, Counter[str](), {}, 0
    while True:
        found = read(run, cursor, tail_rows=size)
        assert found.samples_scraped <= size
        boxes.update(box.id for box in found.sandboxes)
        seen |= last(found.samples, "rollouts_seen_total")
        cursor, calls = found.cursor, calls + 1  # type: ignore[assignment]
        if not found.more:
            break
    assert seen == {"swe": 8, "shared": 2} and set(boxes.values()) == {1} and len(boxes) == 9
    assert calls >= 12 / size


def test_a_file_that_is_written_anew_counts_nothing_twice(run: Path) -> None:
    before = read(run)
    file = run / STEP.format(3)
    text = file.read_text()
    file.unlink()
    # Another beginning, as after a copy that was edited: two new episodes before the two that were counted.
    later = text.replace("1795300403", "1795300450").replace('"id":"', '"id":"f', 1)
    append(file, later + text)
    found = read(run, before.cursor)  # type: ignore[arg-type]
    assert last(found.samples, "rollouts_seen_total") == {"shared": 4}


def test_a_resumed_run_goes_back_over_removed_steps(run: Path) -> None:
    """prime-rl removes the steps after its checkpoint and writes them again; old ones that stay are not new."""
    for step in range(4, 20):
        append(run / STEP.format(step), lines(3)[0].replace("1795300403", f"17953004{step:02}"))
    before = read(run)
    assert last(before.samples, "rollouts_seen_total") == {"swe": 8, "shared": 18}
    for step in range(3, 20):
        shutil.rmtree(run / f"rollouts/step_{step}")
    append(run / STEP.format(3), lines(3)[0].replace("1795300403", "1795300461"))
    found = read(run, before.cursor)  # type: ignore[arg-type]
    assert last(found.samples, "rollouts_seen_total") == {"shared": 19}
    append(run / STEP.format(4), lines(3)[0].replace("1795300403", "1795300462"))
    assert last(read(run, found.cursor).samples, "rollouts_seen_total") == {"shared": 20}  # type: ignore[arg-type]


def test_the_cursor_does_not_grow_with_the_run(run: Path) -> None:
    cursor: Any = {}
    for step in range(4, 40):
        append(run / STEP.format(step), lines(3)[0].replace("1795300403", f"17953004{step:02}"))
        found = read(run, cursor)
        cursor = found.cursor
        # The step before may still get a late one.
        append(run / STEP.format(step - 1), lines(3)[1].replace("1795300403", f"17953004{step:02}"))
    assert last(read(run, cursor).samples, "rollouts_seen_total")["shared"] == 2 + 36 + 36
    assert sorted(cursor["files"]) == sorted(STEP.format(step) for step in range(32, 40))
    assert len(json.dumps(cursor)) < 3000


def test_a_long_episode_is_read_and_a_monstrous_one_counted(tmp_path: Path) -> None:
    episode = json.loads(lines()[0])
    episode["traces"][0]["nodes"][1] |= {"token_ids": [151643] * 500_000, "mask": [True] * 500_000}
    long = json.dumps(episode) + "\n"
    assert len(long) > 6 << 20
    monster = json.dumps({**episode, "padding": "x" * (33 << 20)}) + "\n"
    append(tmp_path / STEP.format(1), long, monster, lines()[1])
    first = read(tmp_path)
    assert first.more and [box.id for box in first.sandboxes] == ["sbx-a1"]
    boxes, dropped, cursor = [], 0, first.cursor
    for _ in range(3):
        found = read(tmp_path, cursor)  # type: ignore[arg-type]
        boxes, dropped, cursor = boxes + [box.id for box in found.sandboxes], dropped + found.dropped, found.cursor
    assert (boxes, dropped) == (["sbx-a2"], 1)


def test_lists_of_numbers_are_skipped_without_touching_the_rest() -> None:
    said = "[" + "1, 2, " * 30 + '] and \\ "quoted"'
    row = {"a": [1.5e-7, -2] * 50, "said": said, "deep": [[0] * 99], "short": [1]}
    found = parse(json.dumps(row).encode())
    assert found is not None
    assert (found["a"], found["deep"], found["short"]) == ([], [[]], [1])
    assert parse(b"[" * 100_000) is None and parse(b"\xff") is None


def test_what_is_no_episode_is_dropped_and_named(run: Path) -> None:
    append(run / STEP.format(3), '{"id": "x"}\n', "[1]\n", lines(3)[0])
    found = read(run)
    assert found.dropped == 2 and "is not an episode of verifiers" in found.why_dropped
    assert last(found.samples, "rollouts_seen_total")["shared"] == 3


def test_another_schema_is_named(tmp_path: Path) -> None:
    append(tmp_path / STEP.format(1), lines()[0].replace('"traces":[{"version":1', '"traces":[{"version":7'))
    assert read(tmp_path).unmapped == {"trace version 7": 1}


def test_a_run_that_has_saved_nothing_yet_waits(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/rl.json").write_text("{}")
    assert matches_path(tmp_path) == "configs/rl.json: prime-rl saves its episodes"
    assert read(tmp_path).samples == ()
    (tmp_path / "traces.jsonl").write_text('{"resourceSpans": []}\n')  # OpenTelemetry's, of another framework
    assert read(tmp_path).dropped == 0


def test_a_file_may_be_named_itself() -> None:
    file = DATA / "standalone/traces.jsonl"
    assert matches_path(file) == "traces.jsonl with verifiers' episodes"
    assert len(read(file).sandboxes) == 2
    with pytest.raises(ScrapeError):
        read(DATA / "expected.json")


# ---- through the server


TRACES = Target("traces", "run", "verifiers_traces", "sandbox", path="/nowhere")


def test_lost_rollouts_spinups_and_no_claim_about_live_ones(store: Store) -> None:
    """4 of 10 rollouts were lost. Files tell of the past: no live sandbox in them is no zero."""
    with bench(store) as run:
        # The run is named otherwise here; its own name for itself is in the file.
        run.commit(TRACES, read(DATA / "prime_rl", now=1_795_300_404.0), 1_795_300_404.0)
        run.advance(1_795_300_405.0, live=True)
        assert run.value("sandbox_failed_rollout_ratio") == pytest.approx(0.4)
        assert run.state("sandbox_failed_rollout_ratio") == "critical"
        assert run.value('sandbox_spinup_latency_seconds{image="built",stat="max"}') == pytest.approx(0.5719, abs=1e-3)
        assert run.value('sandbox_spinup_latency_seconds{image="all",stat="p50"}') == pytest.approx(0.1977, abs=1e-3)
        found = {one.signal: one for one in run.reader.status("run").signals.values()}
        for name in ("sandboxes", "sandbox_oldest_pending_seconds", "sandbox_creates_per_second"):
            assert found[name].state == "unknown", name
        run.advance(1_795_300_404.0 + 400, live=True)
        assert run.why("sandbox_failed_rollout_ratio") == "no rollout in a sandbox ended within 5 minutes"


def test_a_spinup_counts_when_its_rollout_ends(store: Store) -> None:
    """A rollout of 20 minutes: its sandbox was ready long before the window."""
    episode = json.loads(lines()[0])
    timing = episode["traces"][0]["timing"]
    for phase in ("agent", "finalize", "scoring"):
        timing[phase]["end"] += 1200
    (box,) = rollout(episode).sandboxes
    assert box.ended_at is not None
    with bench(store, run_name="my-run") as run:
        facts = {"run_name": "my-run"}
        run.commit(TRACES, Reading(sandboxes=(box,), facts=facts), box.ended_at + 2)
        run.advance(box.ended_at + 5, live=True)
        assert run.value('sandbox_spinup_latency_seconds{image="cached",stat="max"}') == pytest.approx(0.322, abs=1e-3)


def test_a_restart_makes_no_claim_about_live_ones_either(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRACES, read(DATA / "prime_rl", now=1_795_300_404.0), 1_795_300_404.0)
        run.advance(1_795_300_405.0, live=True)
    with bench(store) as again:
        again.advance(1_795_300_410.0, live=True)
        states = {one.signal: one.state for one in again.reader.status("run").signals.values()}
        assert states["sandboxes"] == states["sandbox_oldest_pending_seconds"] == "unknown"


@pytest.mark.parametrize("first", ["provider", "trace"])
def test_what_the_provider_and_the_trace_say_of_one_sandbox_is_one_record(store: Store, first: str) -> None:
    """The times that were heard first stand, and whose clock they are stands with them."""
    (told,) = rollout(json.loads(lines()[0])).sandboxes
    assert told.requested_at is not None
    own = Sandbox(
        "prime", "sbx-a1", "running", run_key="my-run", requested_at=told.requested_at + 0.02,
        ready_at=told.requested_at + 0.12, latency_source="server",
    )  # fmt: skip
    both = [Reading(sandboxes=(own,)), Reading(sandboxes=(told,), facts={"run_name": "my-run"})]
    targets = [structs.replace(TRACES, name="prime", collector="prime_sandboxes", path=""), TRACES]
    order = (0, 1) if first == "provider" else (1, 0)
    with bench(store) as run:
        for n in order:
            run.commit(targets[n], both[n], told.requested_at + 5)
        (row,) = store.sandboxes.get("run", [("prime", "sbx-a1")])
        found = row
        assert found.ready_at is not None and found.requested_at is not None
        seconds = round(found.ready_at - found.requested_at, 3)
        assert (seconds, found.latency_source) == ((0.1, "server") if first == "provider" else (0.322, "trace"))
        assert (found.state, found.image_cached) == ("terminated", True)


def test_a_run_directory_is_read_by_all_who_know_it(run: Path) -> None:
    (run / "configs").mkdir()
    (run / "configs/rl.json").write_text("{}")
    found = attach(RunSettings("my-run", (TargetSettings(str(run)),))).targets
    assert [(one.name, one.collector, one.actor) for one in found] == [
        ("my-run", "prime_rl", "trainer"), ("my-run-verifiers_rollouts", "verifiers_rollouts", "generator"),
        ("my-run-verifiers_traces", "verifiers_traces", "sandbox"),
    ]  # fmt: skip


# ---- hostile input

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    (), ("env",), ("run",), ("run", "work"), ("errors",), ("traces",), ("traces", 0), ("traces", 0, "id"),
    ("traces", 0, "ok"), ("traces", 0, "agent"), ("traces", 0, "agent", "runtime"), ("traces", 0, "errors"),
    ("traces", 0, "agent", "runtime", "id"), ("traces", 0, "agent", "runtime", "image_cached"),
    ("traces", 0, "timing"), ("traces", 0, "timing", "boot"), ("traces", 0, "timing", "boot", "start"),
    ("traces", 0, "timing", "setup", "start"), ("traces", 0, "timing", "scoring", "end"),
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PATHS), value=JSON, line=st.sampled_from((0, 2)))
def test_any_field_may_be_anything(tmp_path: Path, path: tuple[Any, ...], value: Any, line: int) -> None:
    episode = json.loads(lines()[line])
    if path:
        inner = episode
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
    else:
        episode = value
    file = tmp_path / STEP.format(1)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines()[1] + json.dumps(episode) + "\n")
    found = read(tmp_path)
    assert found.samples_scraped == 2 and found.sandboxes[0].id == "sbx-a2"
    for box in found.sandboxes:
        assert box.id and len(box.detail) <= 200 and (box.cause is None) == (box.state != "failed")
