"""Faults on a timeline: until their time nothing is different, from then on exactly what they say."""

import json
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import fmean
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from demo.cluster import Cluster
from demo.faults import KINDS, Fault, read
from demo.process import Demo
from demo.records import Step
from demo.scenarios import SCENARIOS
from server.main import main
from tests.demo.conftest import START, Recorder, simulated
from tests.demo.test_determinism import contents


def run(kind: str, at: float, seconds: float, scenario: str = "healthy") -> tuple[Cluster, list[Step]]:
    cluster = Cluster(SCENARIOS[scenario], 1, [Fault(kind, at)])
    recorder = Recorder()
    cluster.observers.append(recorder)
    cluster.advance(seconds)
    return cluster, recorder.steps


@pytest.mark.parametrize(
    ("text", "at"), [("trainer-hang@90", 90.0), ("trainer-hang@10m", 600.0), ("trainer-hang@1.5h", 5_400.0)]
)
def test_times_are_seconds_minutes_or_hours(text: str, at: float) -> None:
    assert read(text) == Fault("trainer-hang", at)


@pytest.mark.parametrize("text", ["trainer-hang", "trainer-hang@", "trainer-hang@-5", "flood@5", "trainer-hang@5d", ""])
def test_anything_else_names_the_kinds(text: str) -> None:
    with pytest.raises(ValueError, match="engine-crash, engine-freeze, sandbox-outage, scoring-slow"):
        read(text)


def test_the_command_refuses_a_bad_fault_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--scenario", "healthy", "--inject", "flood@5", "--inject", "sandbox-outage@5m"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "no fault is named 'flood'; known: easy-tasks, engine-crash" in told
    assert "sandbox-outage: this scenario has no sandboxes" in told


def bodies(demo: Demo) -> dict[str, bytes]:
    """What its files hold after 199 s, but for the one that says which faults there are."""
    demo.advance(START + 199)
    return {name: body for name, (body, _) in contents(demo).items() if not name.endswith("truth.json")}


@pytest.fixture(scope="module")
def untroubled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with closing(Demo("healthy", 1, tmp_path_factory.mktemp("untroubled") / "demo", START)) as demo:
        return bodies(demo)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sandbox-outage"])
def test_until_its_time_nothing_is_different(
    make_demo: Callable[..., Demo], untroubled: dict[str, bytes], kind: str
) -> None:
    assert bodies(make_demo(faults=[Fault(kind, 200.0)])) == untroubled


def test_the_truth_says_when_in_epoch_seconds(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo(faults=[Fault("easy-tasks", 60.0)])
    about = json.loads(Path(str(demo.ready["truth"])).with_name("truth.json").read_text("utf-8"))
    assert about["faults"] == [{"kind": "easy-tasks", "at": START + 60.0}]


def test_an_older_run_counts_from_the_demos_clock(make_demo: Callable[..., Demo]) -> None:
    """The sandbox wall has been going for 1,200 s when the clock begins."""
    demo = make_demo("gb300-sandbox-wall", faults=[Fault("trainer-hang", 60.0)])
    demo.advance(START + 59)
    assert not demo.cluster.trainer.hangs
    demo.advance(START + 60)
    assert demo.cluster.trainer.hangs


def test_a_hung_trainer_ends_no_step_and_publishes_nothing() -> None:
    cluster, steps = run("trainer-hang", 400.0, 1_500.0)
    assert max(step.end for step in steps) <= 400.0
    assert cluster.orchestrator.version == len(steps)
    assert sum(len(engine.running) for engine in cluster.engines) == 0, "the gate is shut, the engines rest"
    assert cluster.orchestrator.lead > SCENARIOS["healthy"].max_lead_batches


@pytest.mark.parametrize(("scenario", "seconds"), [("healthy", 400.0), ("gb300-sandbox-wall", 2_200.0)])
def test_a_crashed_engines_requests_go_on_elsewhere(scenario: str, seconds: float) -> None:
    cluster, steps = run("engine-crash", 200.0, seconds, scenario)
    dead, *others = cluster.engines
    assert dead.is_dead
    assert dead.load == 0
    assert not any(engine.is_dead for engine in others)
    assert all(group.engine != dead.index for group in cluster.orchestrator.incomplete.values())
    assert steps[-1].end > seconds - 400.0, "the run goes on"
    census = cluster.orchestrator.census()
    assert sum(census.values()) == cluster.orchestrator.dispatched
    for step in steps:
        for rollout in step.batch.rollouts():
            assert sum(tokens for _, tokens in rollout.made) == rollout.response_tokens


def test_nobody_listens_where_an_engine_died(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo(faults=[Fault("engine-crash", 10.0), Fault("engine-freeze", 12.0)])
    urls = list(demo.ready["engines"])  # type: ignore[call-overload]
    kept = HTTPConnection(urls[0].removeprefix("http://"), timeout=10)
    kept.request("GET", "/metrics")
    assert kept.getresponse().read()
    kept.auto_open = 0
    demo.advance(START + 20)
    with pytest.raises((OSError, HTTPException)):  # nor on a connection that its collector kept
        kept.request("GET", "/metrics")
        kept.getresponse()
    with pytest.raises(URLError):
        urlopen(urls[0] + "/metrics", timeout=10)
    frozen = demo.cluster.engines[1]
    before = frozen.generated_at(20.0)
    demo.advance(START + 60)
    assert frozen.running
    assert frozen.generated_at(60.0) == before
    with urlopen(urls[1] + "/metrics", timeout=10) as page:
        assert b"vllm:num_requests_running" in page.read()


def test_the_last_engine_that_dies_keeps_its_requests() -> None:
    cluster = Cluster(SCENARIOS["healthy"], 1, [Fault("engine-crash", 100.0 + at) for at in range(5)])
    cluster.advance(300.0)
    assert all(engine.is_dead for engine in cluster.engines)
    assert cluster.orchestrator.census()["waiting_slot"] == SCENARIOS["healthy"].max_in_flight


def test_scoring_sync_lengths_and_tasks() -> None:
    plain = simulated("healthy", 1, 1_300.0)[1]

    def late(kind: str) -> list[Step]:
        return [step for step in run(kind, 300.0, 1_300.0)[1] if step.start > 600.0]

    scoring = [one.scored - one.finished for step in late("scoring-slow") for one in step.batch.rollouts()]
    assert 11.0 < fmean(scoring) < 14.0
    assert 20.0 < fmean(step.timing.broadcast for step in late("weight-sync-slow")) < 28.0
    assert fmean(step.batch.group_ratio("all") for step in late("easy-tasks")) > 0.7
    # 300 to 1,000 s into a drift of 1.5 in 1,800 s: between 1.25 and 1.8 times as long.
    usual = fmean(step.batch.response_tokens for step in plain[10:])
    assert 1.3 < fmean(step.batch.response_tokens for step in late("length-drift")) / usual < 1.7


def test_an_outage_starts_no_sandbox() -> None:
    cluster, _ = run("sandbox-outage", 100.0, 1_900.0, "gb300-sandbox-wall")
    harness = cluster.orchestrator.harness
    assert harness is not None
    # 1,200 s of the run's age, and 100 s after the clock began; those that had a slot then still start.
    assert max(at for at, _ in harness.provider.completed) < 1_300.0 + 400.0
    assert harness.booting == cluster.orchestrator.in_flight.value
