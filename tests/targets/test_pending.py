"""Sources named by hand that are not there when `up` begins: the others are watched, and these when they come."""

import json
import shutil
from pathlib import Path

import pytest

from server.config.alerts import defaults
from server.lib.errors import ConfigError
from server.main import main
from server.store import Store
from server.targets.model import Attached, RunSettings, TargetSettings
from server.targets.resolve import attach
from tests.recorded import TESTDATA
from tests.targets.engine import Engine, engine
from tests.targets.following import LIMITS, T0, Watched, following
from tests.targets.serving import serving

JSON = "application/json"


def waiting(*sources: str | TargetSettings) -> Attached:
    named = tuple(one if isinstance(one, TargetSettings) else TargetSettings(one) for one in sources)
    return attach(RunSettings("run", named), LIMITS, wait=True)


def shown(run: Watched) -> dict[str, tuple[str, bool]]:
    """Name -> (kind, up) of what is here."""
    return {one.target: (one.kind, one.up) for one in run.targets().values() if one.gone_since is None}


def free() -> int:
    """A port where nobody listens."""
    with engine() as gone:
        return gone.port


def test_one_engine_that_is_late_does_not_keep_the_other_from_being_watched(kept: Store) -> None:
    port = free()
    with engine(running=4) as there:
        found = waiting(f"http://127.0.0.1:{port}", f"http://{there.place}")
        assert [target.name for target in found.targets] == [f"vllm-127.0.0.1-{there.port}"]
        with following(kept, targets=found.targets, awaited=found.awaited, alerts=defaults()) as run:
            run.step()
            late = f"127.0.0.1-{port}"
            assert shown(run) == {f"vllm-127.0.0.1-{there.port}": ("vllm", True), late: ("unknown", False)}
            assert run.targets()[late].error == (
                f"http://127.0.0.1:{port}: connection refused: nothing listens at this host and port; "
                "tried again at least every 60 s"
            )  # fmt: skip
            assert run.running == 4
            for _ in range(14):
                there.tokens += 10  # the run is under way
                run.step()
            assert ("TargetDown", late) in run.firing()
            with engine(port, running=30):
                run.step(13)  # asked at least every minute
                names = {f"vllm-127.0.0.1-{port}", f"vllm-127.0.0.1-{there.port}"}
                assert shown(run) == dict.fromkeys(names, ("vllm", True))
                assert run.value('generator_requests_now{state="running"}') == 34
                assert late not in run.targets() and run.firing() == []


def test_what_the_store_knows_of_it_is_used_at_once(kept: Store) -> None:
    with engine(running=4, tokens=100) as first:
        port = first.port
        found = waiting(f"http://{first.place}")
        with following(kept, targets=found.targets, awaited=found.awaited) as run:
            run.step(2)
    found = waiting(f"http://127.0.0.1:{port}")
    assert (found.targets, len(found.awaited)) == ((), 1)
    with following(kept, targets=(), awaited=found.awaited, start=T0 + 100) as run:
        run.step()
        assert shown(run) == {f"vllm-127.0.0.1-{port}": ("vllm", False)}
        with engine(port, running=4, tokens=130):
            run.step(13)
            # Its counter goes on from before: 130 - 100.
            assert (shown(run), run.tokens) == ({f"vllm-127.0.0.1-{port}": ("vllm", True)}, 30)


def test_an_engine_of_another_kind_takes_the_place_of_what_it_was(kept: Store) -> None:
    with engine(running=4) as first:
        port = first.port
        found = waiting(f"http://{first.place}")
        with following(kept, targets=found.targets) as run:
            run.step()
    found = waiting(f"http://127.0.0.1:{port}")
    with following(kept, awaited=found.awaited, start=T0 + 100) as run:
        run.step()
        server = Engine(port)
        try:
            server.body = (TESTDATA / "sglang" / "driven" / "metrics_1795248877036_load.prom").read_bytes()
            run.step(13)
            assert shown(run) == {f"sglang-127.0.0.1-{port}": ("sglang", True)}
            assert run.targets()[f"vllm-127.0.0.1-{port}"].gone_since is not None
        finally:
            server.end()


def test_a_run_directory_that_is_made_later_is_read_then(kept: Store, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    found = waiting(str(folder))
    assert [one.error for one in found.awaited] == [f"{folder}: no such file or directory"]
    with following(kept, awaited=found.awaited) as run:
        run.step()
        assert shown(run) == {"out": ("unknown", False)}
        shutil.copytree(TESTDATA / "trl" / "sync", folder)
        run.step(2)
        assert shown(run) == {"out": ("trl", True)}


def test_a_better_log_that_appears_later_is_adopted_and_no_step_counts_twice(kept: Store, tmp_path: Path) -> None:
    """The same 90 steps, in `trainer_state.json` and then in trackio's database: 90 steps, no restart, tokens once."""
    folder, recorded = tmp_path / "out", TESTDATA / "trl" / "sync"
    rows = json.loads((recorded / "trainer_state.json").read_text())["log_history"]
    # 32 samples a step.
    tokens = 32 * sum(row["completions/mean_length"] for row in rows if "completions/mean_length" in row)
    found = waiting(str(folder))
    with following(kept, awaited=found.awaited) as run:
        folder.mkdir()
        shutil.copy(recorded / "trainer_state.json", folder)
        run.step(3)
        assert shown(run) == {"out": ("trl", True)}
        assert len(kept.steps.newest("run", axis="trainer")) == 90
        shutil.copy(recorded / "grpo-tiny.db", folder)
        run.step(3)
        # Of the two only trackio reports what the phases of a step took.
        assert run.value('trainer_phase_seconds{phase="generation"}') is not None
        assert [row.step for row in kept.steps.newest("run", axis="trainer", incarnation=0)] == list(range(1, 91))
        assert (kept.runs.incarnation("run"), shown(run)) == (0, {"out": ("trl", True)})
        assert run.value("trained_tokens_total") == pytest.approx(tokens)


def test_rollout_records_that_appear_later_are_read(kept: Store, tmp_path: Path) -> None:
    """TRL writes its first traces some twenty steps after its first metrics."""
    folder = tmp_path / "out"
    folder.mkdir()
    shutil.copy(TESTDATA / "trl" / "sync" / "trainer_state.json", folder)
    found = waiting(str(folder))
    assert [one.found for one in found.awaited] == [found.targets]
    with following(kept, targets=found.targets, awaited=found.awaited) as run:
        run.step(2)
        assert shown(run) == {"out": ("trl", True)}
        shutil.copy(TESTDATA / "trl_traces" / "async" / "async-grpo.db", folder)
        run.step(4)
        assert shown(run) == {"out": ("trl", True), "out-trl_traces": ("trl_traces", True)}
        run.step(4)
        assert len(run.targets()) == 2


def test_a_router_that_comes_later_is_followed(kept: Store) -> None:
    with engine(running=7) as worker, serving() as answers:
        answers.paths["/metrics"] = (503, JSON, b"{}")
        found = waiting(TargetSettings(answers.url, "front"))
        assert [one.name for one in found.awaited] == ["front"]
        with following(kept, awaited=found.awaited) as run:
            run.step()
            assert shown(run) == {"front": ("unknown", False)}
            answers.paths["/list_workers"] = (200, JSON, json.dumps({"urls": [f"http://{worker.place}"]}).encode())
            run.step(13)
            assert shown(run) == {"discovery front": ("router", True), f"front/{worker.place}": ("vllm", True)}
            assert run.running == 7


def test_a_page_of_something_else_and_a_refused_address_are_not_waited_for() -> None:
    with engine() as stranger:
        stranger.how = "stranger"
        with pytest.raises(ConfigError) as caught:
            waiting(f"http://{stranger.place}", "http://169.254.169.254")
    first, second = caught.value.problems
    assert "a metrics page of a system that Rollscope does not read" in first and "--wait" not in first
    assert second.endswith("is a link-local or multicast address (clouds serve metadata there)")


def test_check_still_says_so_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free()
    config = tmp_path / "rollscope.toml"
    config.write_text(f'[[run.r.target]]\nurl = "http://127.0.0.1:{port}"\n')
    assert main(["check", "-c", str(config)]) == 1
    told = capsys.readouterr().out
    why = "connection refused: nothing listens at this host and port"
    assert f"http://127.0.0.1:{port}: {why} (`up` and `watch --wait` wait for it)" in told


def test_a_late_engine_that_is_given_twice_is_counted_once(kept: Store) -> None:
    """Two spellings of one address are known at once, a page at the root of a second URL only when it answers."""
    port = free()
    url = f"http://127.0.0.1:{port}"
    found = waiting(url, f"http://localhost:{port}/metrics", f"{url}/v1")
    assert found.notes == (f"http://localhost:{port} is the same source as {url}: read once",)
    with following(kept, targets=[], awaited=found.awaited) as run:
        run.step()
        with engine(port, running=30):
            run.step(13)
            assert run.running == 30
            assert shown(run) == {f"vllm-127.0.0.1-{port}": ("vllm", True)}
