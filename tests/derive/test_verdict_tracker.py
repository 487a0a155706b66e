"""The verdict in the driver: judged at every tick, its changes kept once, its outcome a signal. Both databases."""

import json
import logging
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from collectors.model import Reading
from server.api.metrics import render
from server.cli import status as command
from server.derive.results import Judge
from server.store import Store
from server.store.types import Batch, VerdictRow
from server.verdict.model import RULES_VERSION, VERDICT_OUTCOMES, Verdict, VerdictInput
from server.verdict.rules import Memory
from tests.api.test_app import client
from tests.driven_run import ENGINE, T0, TRAINER, Bench, bench, page, steps

Row = tuple[float, str, str]


def by_wait(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
    """Above 30 % wait generation is slow; it counts how often it was asked."""
    kept = {"asked": (memory or {"asked": 0})["asked"] + 1}
    wait = seen.get("trainer_wait_ratio")
    if wait is None:
        return kept, Verdict("unknown", "missing", summary="no wait is told")
    if wait <= 0.3:
        return kept, Verdict("balanced", rule="X02", confidence=0.8, summary="matched")
    return kept, Verdict("generator_bound", "long_tail", "X01", 0.9, summary=f"the trainer waits {wait:.0%}")


def by_time(outcomes: dict[float, str]) -> Judge:
    """The outcome told for a time, and from then on."""

    def judge(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
        outcome = [one for at, one in outcomes.items() if T0 + at <= seen.now][-1]
        return {}, Verdict(outcome, summary=f"it is {outcome}")  # type: ignore[arg-type]

    return judge


def rows(store: Store) -> list[Row]:
    return [(one.ts / 1000 - T0, one.outcome, one.cause) for one in store.verdicts.page("run", 0, 1 << 50, 1000)]


def kept(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.verdicts.newest("run") or "{}")
    return found


def points(store: Store, outcome: str) -> list[tuple[float, float | None]]:
    number = next(
        n
        for n, key in store.series.listed("run")
        if (key.metric, key.labels) == ("bottleneck", (("verdict", outcome),))
    )
    return [(ts / 1000 - T0, value) for ts, value, _ in store.samples.points([number], 0, 1 << 50)[number]]


def engine(run: Bench, first: float, last: float, every: float = 5.0, *, live: bool = True) -> None:
    at = first
    while at <= last:
        run.commit(ENGINE, page(1, 10 * at), T0 + at)
        run.advance(T0 + at, live=live)
        at += every


HISTORY = [(30.0, "unknown", "missing"), (90.0, "generator_bound", "long_tail"), (420.0, "balanced", "")]
"""Steps of 30 s, ten with a wait of 40 %, then of 10 %: three are needed, and the mean of ten is 28 % at the 14th."""


def past(run: Bench) -> None:
    run.commit(TRAINER, steps(1, 10), T0)
    run.commit(TRAINER, steps(11, 30, wait=3.0), T0)


def test_a_run_of_steps_alone_has_a_past(store: Store) -> None:
    with bench(store, judge=by_wait) as run:
        past(run)
        run.advance(T0 + 900)
        assert rows(store) == HISTORY
        found = run.reader.verdicts.spans("run", T0, T0 + 900)
        assert [(one.start - T0, one.end and one.end - T0, one.replayed) for one in found] == [
            (30.0, 90.0, True), (90.0, 420.0, True), (420.0, None, True),
        ]  # fmt: skip
        assert (found[1].rule, found[1].confidence, found[1].rules_version) == ("X01", 0.9, RULES_VERSION)
        assert found[1].summary == "the trainer waits 40%" == found[1].verdict.summary
        now = run.reader.status("run").verdict
        # The newest step is 8 minutes old, and steps take 40 s: the run is stale, and the verdict is withheld.
        assert now is not None and (now.outcome, now.cause, now.as_of) == ("unknown", "incomplete", T0 + 900)
        assert now.last and (now.last.outcome, now.last.cause) == ("balanced", None)


def test_a_history_older_than_a_day_is_judged_by_the_minute(store: Store) -> None:
    with bench(store, judge=by_wait) as run:
        past(run)
        run.advance(T0 + 200_000)
        # The run ended with its last step, because its log was old when it was first read.
        assert rows(store) == [
            (30.0, "unknown", "missing"), (120.0, "generator_bound", "long_tail"), (420.0, "balanced", ""),
        ]  # fmt: skip


@pytest.fixture
def single(migrated_file: Path, tmp_path: Path) -> Iterator[Store]:
    """Another store, for the same run in one life."""
    shutil.copyfile(migrated_file, tmp_path / "single.db")
    opened = Store.open(f"sqlite:///{tmp_path}/single.db")
    yield opened
    opened.close()


def test_a_restart_before_every_tick_changes_nothing(store: Store, single: Store) -> None:
    """The same rows, points and memory as in one life."""
    for at in range(0, 200, 5):
        with bench(store, judge=by_wait) as run:
            if at == 0:
                past(run)
            engine(run, at, at)
    with bench(single, judge=by_wait) as run:
        past(run)
        engine(run, 0, 195)
    assert rows(store) == rows(single) == [(0.0, "unknown", "missing"), (90.0, "generator_bound", "long_tail")]
    assert kept(store) == kept(single)
    assert kept(store)["memory"] == {"asked": 40}
    assert points(store, "generator_bound") == points(single, "generator_bound")


def test_rows_go_with_the_points_or_not_at_all(store: Store) -> None:
    """The process dies at the commit: the next one says the same, once."""
    with bench(store, judge=by_wait) as run:
        past(run)

        def dies(batch: Batch) -> None:
            raise KeyboardInterrupt

        run.driver._submit = dies  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            run.driver.advance(T0 + 900)
        assert rows(store) == [] and store.verdicts.newest("run") is None
    with bench(store, judge=by_wait) as run:
        run.advance(T0 + 900)
        assert rows(store) == HISTORY


# ---- the signal


def test_the_outcome_is_a_signal_that_stands_by_the_minute(store: Store) -> None:
    with bench(store, judge=by_time({0: "balanced", 100: "sandbox_bound"})) as run:
        engine(run, 0, 240)
        assert points(store, "balanced") == [(0, 1), (60, 1), (100, 0), (120, 0), (180, 0), (240, 0)]
        assert points(store, "sandbox_bound") == [(0, 0), (60, 0), (100, 1), (120, 1), (180, 1), (240, 1)]
        engine(run, 245, 255)
        told = {s.labels["verdict"]: s for s in run.reader.status("run").signals.values() if s.signal == "bottleneck"}
        assert {name: one.value for name, one in told.items()} == {
            name: float(name == "sandbox_bound") for name in VERDICT_OUTCOMES
        }
        assert {one.age_seconds for one in told.values()} == {0.0}
        metrics = render(run.reader, "1").decode()
        assert 'rollscope_bottleneck{run="run",verdict="sandbox_bound"} 1.0' in metrics
        assert 'rollscope_bottleneck{run="run",verdict="balanced"} 0.0' in metrics
        assert metrics.count("rollscope_bottleneck{") == len(VERDICT_OUTCOMES)
        assert run.value('bottleneck{verdict="stalled"}') == 0.0


def test_before_the_first_tick_it_is_unknown(store: Store) -> None:
    with bench(store) as run:
        run.advance(T0)
        assert run.state("bottleneck") == "unknown" and "first tick" in run.why("bottleneck")
        verdict = run.reader.status("run").verdict
        assert (verdict.outcome, verdict.as_of) == ("unknown", None)


def test_of_a_run_that_nobody_collects_it_is_not_known(store: Store) -> None:
    with bench(store, judge=by_wait) as run:
        past(run)
        engine(run, 0, 100)
        run.clock.set(T0 + 161)
        found = run.reader.status("run").verdict
        assert found is not None and (found.outcome, found.confidence) == ("unknown", 0.0)
        assert "the last verdict was generator_bound (long_tail): the trainer waits 40%" in found.summary


# ---- the end, gaps


def test_a_run_that_is_over_keeps_the_verdict_of_its_end(store: Store) -> None:
    with bench(store, judge=by_wait) as run:
        run.commit(TRAINER, steps(1, 10), T0)
        engine(run, 0, 300, 60)
        run.commit(TRAINER, Reading(facts={"lifecycle": "finished"}, cursor={"row": 11}), T0 + 305)
        before = rows(store)
        engine(run, 305, 5000, 300)
        assert rows(store) == before == [(0.0, "unknown", "missing"), (90.0, "generator_bound", "long_tail")]
        now = run.reader.status("run").verdict
        assert now is not None and (now.outcome, now.as_of) == ("generator_bound", T0 + 300)
        assert run.reader.verdicts.spans("run", T0, T0 + 9000)[-1].end == T0 + 300
        said = command.text(msgspec.to_builtins(run.reader.status("run")))
        assert "verdict: generator-bound (long tail), as of its end 75 min ago, high confidence (0.90)" in said


def test_a_verdict_does_not_stand_while_nobody_looked(store: Store) -> None:
    with bench(store, judge=by_time({0: "balanced"})) as run:
        engine(run, 0, 60)
    with bench(store, judge=by_time({0: "balanced"})) as run:
        engine(run, 7260, 7265)
        assert rows(store) == [(0.0, "balanced", ""), (1880.0, "unknown", "incomplete"), (7260.0, "balanced", "")]
        assert points(store, "balanced") == [(0, 1), (60, 1), (1880, None), (7260, 1)]


# ---- rules that fail


def test_a_rule_that_fails_ends_no_run(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def fails(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
        if T0 + 10 <= seen.now < T0 + 30:
            raise ZeroDivisionError("by nothing")
        return by_time({0: "balanced"})(None, seen)[0] | {"kept": seen.now - T0}, Verdict("balanced")

    with bench(store, judge=fails) as run, caplog.at_level(logging.ERROR, "rollscope.verdict"):
        engine(run, 0, 25)
        assert rows(store) == [(0.0, "balanced", ""), (10.0, "unknown", "incomplete")]
        now = run.reader.status("run").verdict
        assert now is not None and "could not be computed (ZeroDivisionError)" in now.summary
        assert now.since == T0 + 10
        assert kept(store)["memory"] == {"kept": 5.0}
        assert [record.message for record in caplog.records] == [
            "run run: the verdict could not be computed: by nothing"
        ]
        engine(run, 30, 30)
        assert rows(store)[-1] == (30.0, "balanced", "")


@pytest.mark.parametrize(
    ("memory", "verdict", "why"),
    [
        ({}, Verdict("balanced", numbers={"gap_factor": math.nan}), "ValueError"),
        ({}, Verdict("nonsense"), "ValueError"),  # type: ignore[arg-type]
        ({"set": {1, 2}}, Verdict("balanced"), "TypeError"),
        ({"long": "x" * 300_000}, Verdict("balanced"), "more than 262,144 bytes of state"),
    ],
)
def test_what_cannot_be_stored_is_no_verdict(store: Store, memory: Memory, verdict: Verdict, why: str) -> None:
    with bench(store, judge=lambda before, seen: (memory, verdict)) as run:
        engine(run, 0, 5)
        now = run.reader.status("run").verdict
        assert now is not None and now.outcome == "unknown" and f"({why})" in now.summary
        assert rows(store) == [(0.0, "unknown", "incomplete")]
        assert kept(store)["memory"] is None


def test_other_rules_begin_anew_with_a_row_of_their_own(store: Store) -> None:
    with bench(store, judge=by_wait) as run:
        past(run)
        engine(run, 0, 100)
        store.write(Batch("run", states={"verdict": (RULES_VERSION + 1, store.verdicts.newest("run") or "")}))
    with bench(store, judge=by_wait) as run:
        engine(run, 105, 105)
        assert kept(store)["memory"] == {"asked": 1}
        assert [at for at, *_ in rows(store)] == [0.0, 90.0, 105.0]


# ---- what is seen


def test_the_rules_see_what_the_reader_shows(store: Store) -> None:
    found: list[VerdictInput] = []

    def look(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
        found.append(seen)
        return {}, Verdict("balanced")

    with bench(store, judge=look, trainer_gpus=64.0) as run:
        past(run)
        engine(run, 0, 300)
        seen = found[-1]
        assert (seen.now, seen.mode, seen.lifecycle, seen.fact("trainer_gpus")) == (T0 + 300, "async", "running", 64.0)
        assert seen.get("trainer_wait_ratio") == run.value("trainer_wait_ratio") == pytest.approx(0.4)
        assert seen.get("generator_requests_now", state="running") == 1.0
        assert {one.name: one.answers(seen.now) for one in seen.targets} == {"engine-0": True, "trainer": False}
        assert [step.number for step in seen.steps] == list(range(1, 11))
        assert seen.running_since is not None
        engine(run, 6000, 6000)
        assert found[-1].get("trainer_wait_ratio") is None, "too old to be judged now"


# ---- the store


def test_pages_of_the_store(store: Store) -> None:
    made = [VerdictRow(ts, ts, "balanced", "", "", 0.0, 1, False, "{}") for ts in (100, 200, 300)]
    store.write(Batch("run", verdicts=made))
    store.write(Batch("run", verdicts=[VerdictRow(200, 150, "unknown", "a\x00b", "", 0.5, 2, True, "{}")]))

    def page_of(start: int, end: int, limit: int = 10) -> list[int]:
        return [one.ts for one in store.verdicts.page("run", start, end, limit)]

    assert page_of(0, 1000) == [100, 200, 300] and page_of(250, 260) == [200] and page_of(0, 99) == []
    assert page_of(200, 300) == [200, 300] and page_of(150, 1000, 2) == [200, 300]
    assert page_of(50, 1000, 1) == [300]
    two = store.verdicts.page("run", 200, 200, 10)[0]
    assert (two.since, two.outcome, two.confidence, two.rules_version, two.replayed) == (150, "unknown", 0.5, 2, True)
    assert "\x00" not in two.cause
    assert (store.verdicts.following("run", 100), store.verdicts.following("run", 300)) == (200, None)


# ---- gaps in what is told


def test_a_step_that_tells_no_number_tells_nothing(store: Store) -> None:
    """As after a restart, for the store keeps no such number: 12 of 30 s are waited, not none."""
    samples = [structs.replace(one, value=math.nan) if one.step in (3, 6) else one for one in steps(1, 10).samples]
    with bench(store) as run:
        run.commit(TRAINER, structs.replace(steps(1, 10), samples=tuple(samples)), T0)
        engine(run, 0, 300, 60)
        assert run.value("trainer_wait_ratio") == pytest.approx(0.4)


# ---- the API


@pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")
def test_the_api_has_the_history(store: Store) -> None:
    with bench(store, judge=by_wait) as run:
        past(run)
        run.advance(T0 + 900)
        get, path = client(run), "/api/v1/runs/run/verdicts"
        whole = get("GET", path).json()
        assert [(one["start"] - T0, one["outcome"], one["cause"] or "") for one in whole] == HISTORY
        assert [one["end"] and one["end"] - T0 for one in whole] == [90.0, 420.0, None]
        assert whole[1] == {
            "start": T0 + 90, "end": T0 + 420, "since": T0 + 90, "outcome": "generator_bound", "cause": "long_tail",
            "rule": "X01", "confidence": 0.9, "summary": "the trainer waits 40%", "rules_version": RULES_VERSION,
            "replayed": True, "verdict": whole[1]["verdict"],
        }  # fmt: skip
        now = get("GET", "/api/v1/runs/run/status").json()["verdict"]
        assert whole[1]["verdict"].keys() == now.keys() - {"as_of", "last"}
        part = get("GET", f"{path}?start={T0 + 100}&end={T0 + 200}").json()
        assert [(one["start"] - T0, one["end"] - T0) for one in part] == [(90.0, 420.0)], "it ended after that time"
        assert [one["outcome"] for one in get("GET", f"{path}?limit=1").json()] == ["balanced"]
        assert get("GET", f"{path}?start=5&end=5").json() == {"detail": "start must be before end"}
        assert get("GET", f"{path}?start=5&end=5").status_code == 422
        assert get("GET", f"{path}?limit=0").status_code == 422
        assert get("GET", "/api/v1/runs/nobody/verdicts").status_code == 404
