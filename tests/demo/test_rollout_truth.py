"""What Rollscope says of rollouts against what the simulation knows: traces, pushes, ingest, store, book and signals.

`healthy` tells by its files alone, so it is held against the versions its groups were dispatched at; the sandbox wall
is instrumented too, and held against the versions of the tokens.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fastapi.testclient import TestClient

from collectors.model import Rollout, Turn
from demo import prime
from demo.prime import KEPT_STEPS
from demo.process import Demo
from demo.pushes import Instrument
from demo.scenarios import SCENARIOS
from demo.truth import RolloutTruth
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.cli.demo import Cluster
from server.lib.clock import ScaledClock
from server.query import Reader
from server.rollouts.merge import merged
from server.rollouts.model import EXITS
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached
from server.targets.resolve import attach
from tests.demo.conftest import BASE, SECOND_IS_LONG, START, simulated

# Ten steps of the window, one that says where it begins, one for the warm-up.
STEPS = {"healthy": 12, "gb300-sandbox-wall": 12}
NEAR = pytest.approx


def rollout_truth(demo: Demo) -> RolloutTruth:
    """Returns the demo's writer of true rollouts."""
    return next(one for one in demo.cluster.observers if isinstance(one, RolloutTruth))


class Same(Cluster):
    """The demo in this process, named as the command names it."""

    def __init__(self, demo: Demo) -> None:
        self.ready = demo.ready


class Posted:
    """Takes lines to the real route, without a socket between."""

    def __init__(self, client: TestClient, run: str) -> None:
        self._client, self._url = client, f"/api/v1/runs/{run}/rollouts"

    def post(self, lines: list[str]) -> None:
        left = iter(lines)
        while part := "\n".join(islice(left, 5_000)):
            answer = self._client.post(self._url, content=part, headers={"content-type": "application/x-ndjson"})
            assert answer.json()["refused_count"] == 0, answer.json()["refused"][:3]


Watched = tuple[dict[str, float | None], dict[str, Any]]


def watch(demo: Demo, store: Store, steps: int) -> Watched:
    """(value by signal, the truth at the same moment)."""
    clock, writer, run = ScaledClock(START), Writer(store), attach(Same(demo).settings())
    reader = Reader(store, clock)
    api = create_api(reader, version="test", ready=lambda: None)
    add_rollouts(api, reader, store, clock)
    loop = RunLoop(Attached(run.name, run.targets, run.facts), LoopServices(store, writer, clock))
    with TestClient(api, base_url="http://127.0.0.1") as client:
        demo.poster = Posted(client, run.name)  # type: ignore[assignment]
        end = asyncio.run(_drive(demo, loop, clock, steps))
    writer.close()
    found = {signal.name: signal.value for signal in reader.status(run.name).signals.values()}
    rows = [json.loads(line) for line in Path(str(demo.ready["truth"])).read_text("utf-8").splitlines()]
    return found, rollout_truth(demo).window(end - demo.start) | {"logged": rows[-10:]}


async def _drive(demo: Demo, loop: RunLoop, clock: ScaledClock, steps: int) -> float:
    t, truth = START, Path(str(demo.ready["truth"]))
    while truth.read_bytes().count(b"\n") < steps:
        # Nothing here is told by a page: every second look at them is enough.
        t += 10.0
        demo.advance(t)
        clock.set(t)
        await loop.step(t, patient=True)
    await loop.close()
    return t


_RUNS: dict[str, Watched] = {}
_BY_DATABASE = {"sqlite": "healthy", "postgresql": "gb300-sandbox-wall"}


@pytest.fixture
def watched(store: Store, store_url: str, make_demo: Callable[..., Demo]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Each scenario has its own kind of database; once, for every test here only looks at it."""
    scenario = _BY_DATABASE[store_url.partition(":")[0]]
    if scenario not in _RUNS:
        _RUNS[scenario] = watch(make_demo(scenario, 5), store, STEPS[scenario])
    return scenario, *_RUNS[scenario]


def levels(scenario: str, truth: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    told = truth["tokens" if SCENARIOS[scenario].sandboxes else "dispatched"]
    for level in ("trajectory", "token", "environment_state"):
        for stat, value in told.get(level, {}).items():
            yield f'staleness_versions{{level="{level}",stat="{stat}"}}', value
    yield "mixed_version_ratio", told["mixed"]
    for part, value in told["parts"].items():
        yield f'staleness_part_versions{{part="{part}"}}', value
    if "old_state_turns" in told:
        yield "old_state_turn_ratio", told["old_state_turns"]


@SECOND_IS_LONG
def test_staleness_is_the_truth_at_every_level(watched: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    scenario, found, truth = watched
    assert len(truth["steps"]) == 10
    for name, value in levels(scenario, truth):
        # A clock of published versions cuts the parts; the levels are counted.
        near = 0.02 if "part" in name else 1e-6
        assert found[name] == NEAR(value, rel=near, abs=1e-6), name


@SECOND_IS_LONG
def test_every_other_record_signal_is_the_truth(watched: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    _, found, truth = watched
    expected = {
        "solve_band_ratio": truth["solve_band"],
        'solve_ratio{stat="mean"}': truth["solve_mean"],
        # The trainer logs these two itself, and its own values come first.
        'response_tokens{stat="mean"}': fmean(row["response_tokens_mean"] for row in truth["logged"]),
        'reward{stat="mean"}': fmean(row["reward_mean"] for row in truth["logged"]),
        'turns{stat="mean"}': truth["turns_mean"],
        'tool_calls{stat="mean"}': truth["tool_calls_mean"],
        'sample_age_seconds{stat="p95"}': truth["sample_age_p95"],
        'sample_age_seconds{stat="oldest"}': truth["oldest"],
    }
    for basis in ("completed", "admitted"):
        for cause, share in truth[basis].items():
            expected[f'zero_advantage_group_ratio{{basis="{basis}",cause="{cause}"}}'] = share
        expected[f'zero_advantage_ratio{{basis="{basis}"}}'] = sum(truth[basis].values())
    for of, ratio in truth["tail"].items():
        expected[f'tail_index_ratio{{of="{of}"}}'] = ratio
    # Of the past only what ended is told, and `dispatched` lacks what is still under way.
    for stage in ("completed", "delivered"):
        expected[f'production_samples_per_second{{stage="{stage}"}}'] = truth["rates"][stage]
    for name, value in expected.items():
        # Ranks of p99 differ by one between two conventions; everything else is counted, or a sum.
        near = 0.02 if "tail" in name else 1e-3
        assert found[name] == NEAR(value, rel=near, abs=1e-6), name


@SECOND_IS_LONG
def test_every_exit_is_the_truth(watched: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    scenario, found, truth = watched
    assert set(truth["exits"]) == {"trained", "stale"} | (
        {"infra_error", "env_error"} if SCENARIOS[scenario].losses else set()
    )
    for name in EXITS:
        assert found[f'rollout_exit_ratio{{exit="{name}"}}'] == NEAR(truth["exits"].get(name, 0.0), rel=0.02), name
    assert found["infra_failure_ratio"] == NEAR(truth["exits"].get("infra_error", 0.0), rel=0.02)


def test_the_last_line_of_the_truth_has_every_level_and_the_census(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo("gb300-sandbox-wall")
    demo.advance(START + 600)
    line = json.loads(Path(str(demo.ready["truth_rollouts"])).read_text().splitlines()[-1])
    for level in ("trajectory", "token", "environment_state"):
        assert set(line["tokens"][level]) == {"mean", "p95", "max"}
    parts = line["tokens"]["parts"]
    assert sum(parts.values()) == NEAR(line["tokens"]["trajectory"]["mean"])
    assert line["tokens"]["trajectory"]["mean"] >= line["tokens"]["token"]["mean"]
    assert set(line["census"]) >= {"booting", "generating", "in_tool", "waiting_group", "queued"}


@pytest.mark.parametrize("scenario", BASE)
def test_versions_of_tokens_add_up_to_the_response(scenario: str) -> None:
    """Every token is of exactly one version, and versions only go up."""
    _, steps = simulated(scenario, 1, 1_300.0)
    mixed = 0
    for rollout in (rollout for step in steps for rollout in step.batch.rollouts()):
        versions = [version for version, _ in rollout.made]
        assert sum(tokens for _, tokens in rollout.made) == rollout.response_tokens
        assert versions == sorted(set(versions))
        assert rollout.group.version <= versions[0] <= versions[-1] == rollout.version_end
        assert len(rollout.calls) == rollout.turns
        assert sum(call.output_tokens for call in rollout.calls) == rollout.response_tokens
        mixed += len(versions) > 1
    assert mixed > 0


@pytest.mark.parametrize("scenario", BASE)
def test_every_shipped_episode_was_saved_before(make_demo: Callable[..., Demo], scenario: str) -> None:
    demo = make_demo(scenario)
    demo.advance(START + 400)
    root = Path(str(demo.ready["run_dir"])) / "rollouts"
    saved, shipped = _traces(root, "all"), _traces(root, "effective")
    batches = list(rollout_truth(demo).batches)
    trained = sum(len(list(batch.rollouts())) for batch in batches)
    assert len(shipped) == len(set(shipped)) == trained and shipped
    lost = sum(1 for batch in batches for one in batch.members() if one.error)
    assert trained + lost == 256 * len(batches) and (lost > 0) is (SCENARIOS[scenario].losses is not None)
    assert set(shipped) <= set(saved)
    assert len(saved) == len(set(saved))


def _traces(root: Path, cohort: str) -> list[str]:
    lines = [
        line for file in root.glob(f"step_*/train/{cohort}/traces.jsonl") for line in file.read_text().splitlines()
    ]
    return [json.loads(line)["traces"][0]["id"] for line in lines]


@pytest.mark.parametrize(("kept", "seconds"), [(8, 500), pytest.param(KEPT_STEPS, 2_700, marks=pytest.mark.long)])
def test_steps_far_behind_are_removed(
    make_demo: Callable[..., Demo], monkeypatch: pytest.MonkeyPatch, kept: int, seconds: int
) -> None:
    monkeypatch.setattr(prime, "KEPT_STEPS", kept)
    demo = make_demo("healthy")
    demo.advance(START + seconds)
    steps = sorted(int(path.name[5:]) for path in (Path(str(demo.ready["run_dir"])) / "rollouts").iterdir())
    assert steps == list(range(steps[-1] - kept + 1, steps[-1] + 1))
    assert steps[0] > 1


def test_what_is_under_way_is_told_once_it_is_live(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo("gb300-sandbox-wall")
    instrument = demo.instrument
    assert isinstance(instrument, Instrument)
    ended = [json.loads(line) for line in instrument.take()]
    assert ended and all("token_versions" in line or "exit" in line for line in ended)
    demo.go_live()
    begun = [json.loads(line) for line in instrument.take()]
    booting = [line for line in begun if "end" not in line["spans"][0]]
    census = demo.cluster.orchestrator.census()
    assert len(begun) == demo.cluster.orchestrator.in_flight.value == 96
    assert len(booting) == census["booting"]
    assert len({line["rollout_id"] for line in begun}) == 96
    assert partial(Demo.go_live, demo)() is None and not instrument.take(), "told once"


def test_what_a_push_says_of_turns_stays_when_the_file_comes_after_it() -> None:
    """Both list the same turns; the file does not know what each changed."""
    pushed = Rollout("r", turns=(Turn(3, 1, True, sandbox_id="b"), Turn(4, 0, False, sandbox_id="b")))
    filed = Rollout("r", turns=(Turn(None, 1), Turn(None, 0)), reward=1.0)
    for first, second in ((pushed, filed), (filed, pushed)):
        found = merged(first, second)
        assert found.turns == pushed.turns and found.reward == 1.0
