"""A run that exists by its pushes alone, through inbox, loop and adopter. Both databases; the clock is set by hand."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from collectors.model import Reading, Sample, Target
from server.api.runs import _store as push_sandboxes
from server.config import alerts as alerts_config
from server.ingest.readings import Ingest
from server.lib.clock import ScaledClock
from server.push.inbox import Body, pack_body
from server.push.records import records_of
from server.push.targets import KIND, MAX_RUNS, Pushes
from server.query import Reader
from server.query.types import Status
from server.scrape.pushed_runs import PushedRuns, admits, followed
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.store import inbox as store_inbox
from server.store.inbox import InboxFull
from server.store.types import Batch, Push, Pusher
from server.targets.model import Attached

T0 = 1_800_000_000.0
HOUR = 3600.0


def push(store: Store, at: float, *samples: Sample, target: str = "push", interval: float = 60.0, **facts: str) -> None:
    body = Body(Reading(samples=samples, facts=facts, samples_scraped=len(samples)))
    store.pushes.offer(
        [Push("run", target, body.actor(), interval, round((T0 + at) * 1000), body.rows, pack_body(body))]
    )


def step(number: int, seconds: float = 30.0, wait: float = 12.0) -> tuple[Sample, ...]:
    values = {"trainer_step_seconds": seconds, "trainer_wait_seconds": wait}
    return tuple(Sample(name, value, step=number, axis="trainer") for name, value in values.items())


class Lived:
    """A loop with its clock, stepped by hand."""

    def __init__(self, store: Store, writer: Writer, at: float = 0.0, adopted: bool = True, **kwargs: Any) -> None:
        self.store, self.clock = store, ScaledClock(T0 + at)
        self.reader = Reader(store, self.clock)
        alerts = alerts_config.defaults()
        self.loop = RunLoop(
            Attached("run", ()), LoopServices(store, writer, self.clock, alerts), adopted=adopted, **kwargs
        )

    def at(self, *times: float) -> Status:
        async def steps() -> None:
            for at in times:
                self.clock.set(T0 + at)
                await self.loop.step(T0 + at)

        asyncio.run(steps())
        return self.reader.status("run")


@contextmanager
def lived(store: Store, at: float = 0.0, **kwargs: Any) -> Iterator[Lived]:
    writer = Writer(store)
    try:
        yield Lived(store, writer, at, **kwargs)
    finally:
        writer.close()


def value(status: Status, name: str) -> float | None:
    return {signal.name: signal.value for signal in status.signals.values()}[name]


def health(status: Status) -> dict[str, tuple[bool, str]]:
    return {one.target: (one.up, one.error) for one in status.trust}


def firing(status: Status) -> set[str]:
    return {alert.name for alert in status.alerts if alert.state == "firing"}


def waiting(store: Store) -> int:
    return len(store.pushes.waiting("run", 1000))


def test_pushed_steps_become_signals(store: Store) -> None:
    for number in range(1, 4):
        push(store, number, *step(number), Sample("queue_samples", 7.0))
    assert (waiting(store), store.runs.all()[0].name) == (3, "run")
    with lived(store, 3) as run:
        status = run.at(5)
    assert status.lifecycle == "running"
    assert value(status, "trainer_wait_ratio") == pytest.approx(0.4)
    assert value(status, "queue_samples_now") == 7.0
    assert health(status) == {"push": (True, "")} and status.trust[0].kind == KIND
    assert waiting(store) == 0


def test_a_body_is_collected_once_whatever_dies(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the commit and what is derived of it: the commit holds both the rows and the empty inbox."""
    push(store, 1, *step(1), *(Sample("trained_tokens", 10.0, step=1, axis="trainer"),))
    with lived(store, 1) as run:
        monkeypatch.setattr(run.loop.pipeline.driver, "feed", lambda arrivals: None)
        run.loop._collect_pushes(T0 + 2)
    assert waiting(store) == 0
    with lived(store, 3) as run:
        assert value(run.at(5, 10), "trained_tokens_total") == 10.0


def test_a_push_that_no_database_takes_is_told_and_hurts_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, 1, Sample("queue_samples", 1.0), target="bad")
    push(store, 2, Sample("queue_samples", 2.0), target="good")
    with lived(store, 2) as run:
        plain = Ingest.reading

        def reading(self: Ingest, target: Target, *rest: Any) -> Any:
            batch, arrivals = plain(self, target, *rest)
            if target.name == "bad":
                batch.run_fields["nonsense"] = 1  # what no transaction takes
            return batch, arrivals

        monkeypatch.setattr(Ingest, "reading", reading)
        status = run.at(5)
    assert waiting(store) == 0
    assert value(status, "queue_samples_now") == 2.0
    assert health(status)["good"] == (True, "")
    assert health(status)["bad"][0] is False and "the store did not accept it: ValueError" in health(status)["bad"][1]


@pytest.mark.parametrize(
    ("then", "life", "steps"),
    [
        # Sent again because no answer came; overtaken by a later one; the other half of a step.
        (step(2), 0, [1, 2, 4]),
        (step(3), 0, [1, 2, 3, 4]),
        ((Sample("reward_mean", 0.5, step=2, axis="trainer"),), 0, [1, 2, 4]),
        # The same step with other numbers was trained again; so was what comes before the first.
        (step(2, 31.0), 1, [2]),
        (step(0), 1, [0]),
    ],
    ids=["again", "overtaken", "part", "restart", "from-the-start"],
)
def test_a_step_that_goes_back(store: Store, then: tuple[Sample, ...], life: int, steps: list[int]) -> None:
    for at, number in enumerate((1, 2, 4)):
        push(store, at, *step(number))
    push(store, 8, *then)
    with lived(store) as run:
        run.at(5, 10)
    assert store.runs.incarnation("run") == life
    assert [row.step for row in store.steps.newest("run")] == steps


def test_a_target_is_up_while_it_is_heard(store: Store) -> None:
    push(store, 0, Sample("queue_samples", 1.0), interval=60)
    with lived(store) as run:
        assert health(run.at(5, 60)) == {"push": (True, "")}
        assert health(run.at(65)) == {"push": (False, "nothing pushed for 65 s; expected every 60 s")}
        assert "TargetDown" in firing(run.at(*range(70, 135, 5)))
        push(store, 136, Sample("queue_samples", 2.0), interval=60)
        status = run.at(140)
    assert health(status) == {"push": (True, "")} and firing(status) == set()


def test_who_could_not_be_heard_while_we_were_away_is_not_silent(store: Store) -> None:
    push(store, 0, Sample("queue_samples", 1.0), interval=60)
    with lived(store) as run:
        run.at(5)
    with lived(store, 1000) as run:
        assert health(run.at(1005, 1055))["push"][0] is True
        assert health(run.at(1065))["push"][0] is False


def test_a_run_that_ends_without_a_word_is_paused_then_over_and_pages_nobody(store: Store) -> None:
    push(store, 0, *step(1), interval=60)
    with lived(store) as run:
        assert run.at(5).lifecycle == "running"
        run.at(*range(60, 240, 5))
        assert run.at(HOUR - 5).lifecycle == "running"
        status = run.at(HOUR + 5, HOUR + 10)
        assert (status.lifecycle, firing(status)) == ("paused", set())
        assert status.facts["lifecycle_why"] == "no push for 1 h"
        push(store, HOUR + 20, *step(2))
        assert run.at(HOUR + 25).lifecycle == "running"
        status = run.at(25.5 * HOUR, 25.5 * HOUR + 5)
        assert (status.lifecycle, firing(status)) == ("crashed", set())
        assert run.loop.pushes.over(T0 + 25.5 * HOUR)


def test_a_restart_finds_a_run_that_was_quiet_paused_and_pages_nobody(store: Store) -> None:
    push(store, 0, *step(1), Sample("queue_samples", 1.0))
    with lived(store) as run:
        run.at(5)
    with lived(store, 5 * HOUR) as run:
        times = [5 * HOUR + n for n in range(5, 200, 5)]
        for status in (run.at(at) for at in times):
            assert (status.lifecycle, firing(status)) == ("paused", set())


def test_an_end_that_is_said_stands_until_another_step(store: Store) -> None:
    push(store, 0, *step(1))
    push(store, 1, lifecycle="finished")
    with lived(store) as run:
        assert run.at(5).lifecycle == "finished"
    with lived(store, 10) as run:
        assert run.at(15, 2 * HOUR).lifecycle == "finished"
        push(store, 2 * HOUR + 1, *step(2))
        assert run.at(2 * HOUR + 5).lifecycle == "running"
        assert run.at(4 * HOUR, 4 * HOUR + 5).lifecycle == "paused"


def boxes(store: Store, at: float, *records: dict[str, Any]) -> None:
    import json  # noqa: PLC0415

    push_sandboxes(
        store, "run", records_of("sandboxes", [json.dumps(one).encode() for one in records], T0 + at)[0], T0 + at
    )


def test_a_run_of_sandboxes_alone(store: Store) -> None:
    boxes(store, 0, {"id": "a", "requested_at": T0 - 10}, {"id": "b", "requested_at": T0 - 9, "ready_at": T0})
    with lived(store, 1) as run:
        status = run.at(5)
        assert status.lifecycle == "running"
        assert value(status, 'sandboxes{state="starting"}') == 1.0
        assert value(status, "sandbox_oldest_pending_seconds") == 15.0
        assert value(status, "sandboxes_created_total") == 2.0
        assert "SandboxPendingLong" in firing(run.at(1000, 1005))
    with lived(store, 1200) as run:
        # It is known again at once, and counted once.
        status = run.at(1205)
        assert value(status, "sandbox_oldest_pending_seconds") == 1215.0
        assert value(status, "sandboxes_created_total") == 2.0
        assert "SandboxPendingLong" in firing(status)
        status = run.at(HOUR + 5)
        assert (status.lifecycle, firing(status)) == ("paused", set())


def test_a_push_between_start_and_first_look_counts_once(store: Store) -> None:
    """What the driver reads back at its start is met again by who looks for pushes."""
    with lived(store) as run:
        run.clock.set(T0 + 1)
    with lived(store, 1) as run:
        run.clock.set(T0 + 1)
        boxes(store, 2, {"id": "a"})
        again = Lived(store, run.loop._services.writer, 1)
        assert value(again.at(5), "sandboxes_created_total") == 1.0
        assert value(again.at(10), "sandboxes_created_total") == 1.0


def test_a_configuration_takes_over(store: Store) -> None:
    push(store, 0, *step(1))
    with lived(store) as run:
        assert run.at(5, 2 * HOUR, 2 * HOUR + 5).lifecycle == "paused"
    with lived(store, 3 * HOUR, adopted=False) as run:
        assert run.at(3 * HOUR + 5).lifecycle == "running"
        # Silence of its pushes is no word on a configured run.
        assert run.at(5 * HOUR).lifecycle == "running"


def test_series_of_a_target_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.push.targets.SERIES", 3)
    push(store, 0, *(Sample("in_flight_rollouts", 1.0, (("state", f"s{n}"),)) for n in range(5)))
    with lived(store) as run:
        status = run.at(5)
    assert health(status) == {"push": (True, "dropped 2: more than 3 series of one target")}
    assert len([key for _, key in store.series.listed("run", "push") if key.metric == "in_flight_rollouts"]) == 3


def test_the_inbox_is_bounded_in_rows_and_per_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_inbox, "INBOX_ROWS", 4)
    push(store, 0, *(Sample("queue_samples", 1.0),) * 9)  # larger than all of it: it gets in when it is empty
    with pytest.raises(InboxFull, match="9 pushed samples wait"):
        push(store, 1, Sample("queue_samples", 1.0))
    monkeypatch.setattr(store_inbox, "INBOX_ROWS", 100)
    monkeypatch.setattr(store_inbox, "INBOX_PUSHES", 2)
    push(store, 2, Sample("queue_samples", 1.0))
    with pytest.raises(InboxFull, match="2 pushes of this run wait"):
        push(store, 3, Sample("queue_samples", 1.0))
    assert waiting(store) == 2
    store.write(Batch("run", taken=[one.id for one in store.pushes.waiting("run", 10)]))
    push(store, 4, Sample("queue_samples", 1.0))
    assert waiting(store) == 1


def test_who_pushed_last_is_known_by_run(store: Store) -> None:
    for name, at in (("a", 1), ("b", 3), ("c", 2)):
        store.pushes.note(name, Pusher("push", "trainer", 60.0, at))
    store.pushes.note("a", Pusher("push", "trainer", 60.0, 0))  # an older word changes nothing
    assert store.pushes.active(2) == {"b": 3, "c": 2}
    assert store.pushes.pushers("a") == [Pusher("push", "trainer", 60.0, 1)]
    assert followed(store.pushes.active(0), {"c"}) == ["b", "a"]


def test_so_many_runs_are_followed_and_no_more(store: Store) -> None:
    clock = ScaledClock(T0)
    for n in range(MAX_RUNS):
        store.pushes.note(f"r{n}", Pusher("push", "trainer", 60.0, round(T0 * 1000) - n))
    assert not admits(store, "new", configured=(), clock=clock)
    assert admits(store, "r5", configured=(), clock=clock)
    assert admits(store, "new", configured={"new"}, clock=clock)
    assert admits(store, "new", configured={"r1"}, clock=clock)
    clock.set(T0 + 24 * HOUR - 0.03)  # the oldest 34 are over
    assert admits(store, "new", configured=(), clock=clock)


class Standing(ScaledClock):
    """Never gets to the next instant by itself: loops wait until they are ended."""

    def wall_until(self, t: float) -> float:
        return 1e6


def adopting(store: Store, scene: Callable[[PushedRuns, list[RunLoop], ScaledClock], Any]) -> None:
    writer, clock, loops = Writer(store), Standing(T0), []  # type: ignore[var-annotated]

    def make(name: str) -> RunLoop:
        return RunLoop(Attached(name, ()), LoopServices(store, writer, clock), adopted=True)

    async def run() -> None:
        adopter = PushedRuns(store, clock, make, loops, lambda name: gone.append(name))
        await scene(adopter, loops, clock)
        stop = asyncio.Event()
        stop.set()
        await adopter.run(stop)

    gone: list[str] = []
    asyncio.run(run())
    assert loops == []
    writer.close()


def test_runs_are_adopted_when_they_are_pushed_and_left_when_they_are_over(store: Store) -> None:
    async def scene(adopter: PushedRuns, loops: list[RunLoop], clock: ScaledClock) -> None:
        await adopter.look()
        assert loops == []
        push(store, 0, Sample("queue_samples", 1.0))
        store.pushes.note("a/b", Pusher("push", "trainer", 60.0, round(T0 * 1000)))  # no name of a run
        await adopter.look()
        await adopter.look()
        assert [loop.run for loop in loops] == ["run"]
        clock.set(T0 + 25 * HOUR)
        await loops[0].step(T0 + 25 * HOUR)
        await adopter.look()
        assert loops == []

    adopting(store, scene)
    assert store.runs.get("run").lifecycle == "crashed"  # type: ignore[union-attr]


def test_the_loop_of_a_deleted_run_ends_and_does_not_create_it_again(store: Store) -> None:
    async def scene(adopter: PushedRuns, loops: list[RunLoop], clock: ScaledClock) -> None:
        push(store, 0, Sample("queue_samples", 1.0))
        await adopter.look()
        clock.set(T0 + 5)
        await loops[0].step(T0 + 5)
        # A minute without a step, as of a run that is over: it counts as not collected.
        assert store.remove("run", round((T0 + 120) * 1000))
        await adopter.look()
        assert loops == [] and store.runs.get("run") is None
        push(store, 200, Sample("queue_samples", 2.0))
        await adopter.look()
        assert [loop.run for loop in loops] == ["run"]
        clock.set(T0 + 205)
        await loops[0].step(T0 + 205)

    adopting(store, scene)
    found = [rows for _, key, rows in store.samples.window("run", ["queue_samples"], 0) if key.target]
    assert [value for rows in found for _, value in rows] == [2.0]


def test_a_target_that_is_configured_takes_no_pushes(store: Store) -> None:
    push(store, 0, Sample("queue_samples", 1.0), target="engine")
    targets = {"engine": (Target("engine", "run", "vllm", "generator", url="http://x"), 5.0)}
    found = list(filter(None, Pushes(store, "run", targets, False, T0).take(Ingest(store, "run"))))
    assert [(batch.samples, batch.taken != []) for batch, _ in found] == [([], True)]
    assert targets["engine"][0].collector == "vllm"
