"""Rollout records to signals, through the real ingest, store, driver and reader, on both databases."""

import json
from collections.abc import Iterator

import pytest
from msgspec import structs

from collectors.model import Consumption, Event, Reading, Rollout, Sample, Target, Turn
from server.store import Store
from tests.driven_run import T0, TRAINER, Bench, bench, steps

RECORDS = Target("records", "run", "push", "generator")
STEP = 50.0
# Versions 1..13 are used at 0 s, 50 s, ... by eight rollouts each: two groups of four.
LAST = 13


def one(version: int, n: int) -> Rollout:
    """Rollout n of those used at a version.

    Of each eight two began three versions earlier and went on with the version before their use; the others were made
    by the version before. The first group of every version has equal rewards, all solved.
    """
    at, old = T0 + version * STEP, n % 4 == 0
    made = ((version - 3, 30), (version - 1, 10)) if old else ((version - 1, 40),)
    turns = tuple(Turn(v, 1, True, sandbox_id=f"sb-{version}-{n}") for v, _ in made)
    return Rollout(
        f"r{version}-{n}", f"g{version}-{n // 4}", 4, environment="code" if n < 4 else "math", difficulty="hard",
        version_start=made[0][0], version_finish=version - 1, token_versions=made, turns=turns,
        dispatched_at=at - 100 if old else at - 40, started_at=at - 30, finished_at=at - 20, scored_at=at - 19,
        consumptions=(Consumption(version, at),), response_tokens=1000 * (n + 1), max_reward=1.0,
        reward=1.0 if n < 4 else float(n % 2),
    )  # fmt: skip


def stale(version: int) -> Rollout:
    """Beside each eight one was dropped as stale, and another lost by its infrastructure."""
    return Rollout(
        f"s{version}", dispatched_at=T0 + version * STEP - 40, finished_at=T0 + version * STEP - 5, exit="stale"
    )


def lost(version: int) -> Rollout:
    return Rollout(
        f"l{version}", dispatched_at=T0 + version * STEP - 40, finished_at=T0 + version * STEP - 5, exit="infra_error"
    )


def readings() -> Iterator[tuple[float, Reading]]:
    for version in range(1, LAST + 1):
        records = tuple(one(version, n) for n in range(8))
        made = tuple(structs.replace(record, consumptions=()) for record in records)
        used = tuple(Rollout(record.rollout_id, consumptions=record.consumptions) for record in records)
        published = Event("weights_published", f"v{version}", T0 + version * STEP + 1, version=version + 1)
        yield T0 + version * STEP - 4, Reading(rollouts=(*made, stale(version), lost(version)))
        yield T0 + version * STEP + 2, Reading(rollouts=used, events=(published,))


def feed(run: Bench, first: int = 0, last: int = 99) -> None:
    for number, (now, reading) in enumerate(readings()):
        if first <= number < last:
            run.commit(RECORDS, reading, now)
            run.advance(now + 2)


def numbers(run: Bench) -> dict[str, float | None]:
    return {
        signal.name: signal.value for signal in run.reader.status("run").signals.values() if signal.value is not None
    }


END = T0 + LAST * STEP + 10

EXPECTED = {
    # A quarter 3 versions, the others 1: mean 1.5, and more than 5 % are at 3.
    'staleness_versions{level="trajectory",stat="mean"}': 1.5,
    'staleness_versions{level="trajectory",stat="p95"}': 3.0,
    'staleness_versions{level="trajectory",stat="max"}': 3.0,
    # Of 8 x 40 tokens 2 x 30 are 3 versions old, the rest 1: (60 x 3 + 260) / 320.
    'staleness_versions{level="token",stat="mean"}': 1.375,
    'staleness_versions{level="token",stat="max"}': 3.0,
    # Two turns of ten are played on state 2 versions old.
    'staleness_versions{level="environment_state",stat="mean"}': 0.4,
    'staleness_versions{level="environment_state",stat="p95"}': 2.0,
    "old_state_turn_ratio": 0.2,
    "mixed_version_ratio": 0.25,
    'staleness_part_versions{part="in_flight"}': 0.5,
    'staleness_part_versions{part="in_group"}': 0.0,
    'staleness_part_versions{part="in_queue"}': 1.0,
    'zero_advantage_ratio{basis="completed"}': 0.5,
    'zero_advantage_group_ratio{basis="admitted",cause="all_solved"}': 0.5,
    'zero_advantage_group_ratio{basis="completed",cause="none_solved"}': 0.0,
    'zero_advantage_environment_ratio{difficulty="hard",environment="code"}': 1.0,
    'zero_advantage_environment_ratio{difficulty="hard",environment="math"}': 0.0,
    'solve_ratio{stat="mean"}': 0.75,  # every other group solves half
    "solve_band_ratio": 0.5,
    'rollout_exit_ratio{exit="trained"}': 0.8,
    'rollout_exit_ratio{exit="stale"}': 0.1,
    "infra_failure_ratio": 0.1,
    'response_tokens{stat="mean"}': 4500.0,
    'response_tokens{stat="max"}': 8000.0,
    'turns{stat="mean"}': 1.25,
    'tool_calls{stat="max"}': 2.0,
    'reward{stat="mean"}': 0.75,
    # p50 of 90 that ended (ten each of 20 s but the two of 80 s and one stale of 35 s): 20 s.
    'tail_index_ratio{of="seconds"}': 4.0,
    'sample_age_seconds{stat="p95"}': 20.0,
    # In the 500 s of ten versions: ten dispatched for each (the last two for the next), nine made to their end.
    'production_samples_per_second{stage="completed"}': 0.18,
    'production_samples_per_second{stage="delivered"}': 0.16,
    'production_samples_per_second{stage="trainable"}': 0.08,
    # Groups take 81 s, nothing waits, and a version comes every 50 s.
    "staleness_estimated_versions": 81 / 50,
    'rollouts_total{exit="trained"}': 8.0 * LAST,
    'rollouts_total{exit="infra_error"}': 1.0 * LAST,
    'groups_total{outcome="all_solved"}': 1.0 * LAST,
    'groups_total{outcome="mixed"}': 1.0 * LAST,
}


def test_a_run_of_records_alone_shows_its_numbers(store: Store) -> None:
    with bench(store, mode="async") as run:
        feed(run)
        run.advance(END)
        found = numbers(run)
        assert {name: found.get(name) for name in EXPECTED} == pytest.approx(EXPECTED)
        status = run.reader.status("run")
        assert status.lifecycle == "running"
        sources = {signal.name: signal.source for signal in status.signals.values()}
        assert sources["mixed_version_ratio"] == sources["infra_failure_ratio"] == "records"


@pytest.mark.parametrize("died", [12, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 25))])
def test_a_restart_at_any_point_changes_no_number(store: Store, died: int) -> None:
    """Also one between the commit of records and what follows from them."""
    with bench(store, mode="async") as run:
        feed(run, last=died)
        now, reading = list(readings())[died]
        run.commit_only(RECORDS, reading, now)
    with bench(store, mode="async") as run:
        run.advance(now + 2)
        feed(run, first=died + 1)
        run.advance(END)
        found = numbers(run)
        assert {name: found.get(name) for name in EXPECTED} == pytest.approx(EXPECTED)


def test_a_back_fill_gives_the_points_that_live_gave(store: Store) -> None:
    names = ["mixed_version_ratio", 'staleness_versions{level="token",stat="mean"}']
    with bench(store, mode="async") as run:
        for now, reading in readings():
            run.commit(RECORDS, reading, now)
        run.advance(END)
        found = numbers(run)
        assert {name: found.get(name) for name in EXPECTED} == pytest.approx(EXPECTED)
        series = run.reader.signals.series("run", names, T0, END, 200)
        assert all(len([value for value in one.mean if value is not None]) >= LAST - 3 for one in series)


def test_the_same_once_more_changes_nothing(store: Store) -> None:
    with bench(store, mode="async") as run:
        feed(run)
        run.advance(END)
        before = numbers(run)
        feed(run)
        run.advance(END + 5)
        assert numbers(run) == before


def test_what_is_in_flight_is_counted_by_state(store: Store) -> None:
    with bench(store, mode="async") as run:
        waits = Rollout("w", dispatched_at=T0)
        runs = [Rollout(f"r{n}", started_at=T0, finished_at=None) for n in range(3)]
        done = Rollout("d", "g", 2, started_at=T0, finished_at=T0 + 4, reward=1.0)
        used = Rollout("u", consumptions=(Consumption(1, T0 + 1),))
        run.commit(
            RECORDS, Reading(rollouts=(waits, *runs, done, used, Rollout("e", purpose="eval", started_at=T0))), T0 + 4
        )
        run.advance(T0 + 5)
        found = {name: value for name, value in numbers(run).items() if name.startswith("in_flight") and value}
        assert found == {
            'in_flight_rollouts{state="waiting_slot"}': 1.0,
            'in_flight_rollouts{state="generating"}': 3.0,
            'in_flight_rollouts{state="waiting_group"}': 1.0,
        }
        assert run.value('sample_age_seconds{stat="oldest"}') == 1.0
        # Dispatched and not ended: not the one that waits for its sibling. States that records report are 0, not left
        # out; an evaluation is in neither number.
        assert run.value("rollouts_in_flight") == 4.0
        assert [(one.state, one.rollouts) for one in run.reader.rollouts.census("run")] == [
            ("waiting_slot", 1), ("booting", 0), ("generating", 3), ("in_tool", 0), ("scoring", 0),
            ("waiting_group", 1), ("queued", 0), ("gated", 0),
        ]  # fmt: skip


def test_states_that_no_source_reports_are_not_zero(store: Store) -> None:
    """Records come when a rollout has ended; the log counts 400 in flight and tells no other state."""
    with bench(store, mode="async") as run:
        flying = Sample("in_flight_rollouts", 400.0, (("state", "generating"),))
        done = Rollout("d", "g", 2, started_at=T0, finished_at=T0 + 4, reward=1.0)
        run.commit(TRAINER, Reading(samples=(flying,)), T0 + 4)
        run.commit(RECORDS, Reading(rollouts=(done,)), T0 + 4)
        run.advance(T0 + 5)
        assert run.value("rollouts_in_flight") == 400.0
        found = [(one.state, one.rollouts, one.oldest_seconds) for one in run.reader.rollouts.census("run")]
        assert found == [("generating", 400, None), ("waiting_group", 1, 1.0)]


def test_two_versions_are_too_few_and_say_so(store: Store) -> None:
    with bench(store, mode="async") as run:
        feed(run, last=4)
        assert run.why("mixed_version_ratio") == "2 of the 3 consumed versions needed so far; no action needed"


def test_without_any_consumption_the_window_is_five_minutes(store: Store) -> None:
    with bench(store, mode="async") as run:
        for n in range(40):
            at = T0 + 15.0 * n
            made = Rollout(
                f"r{n}", dispatched_at=at - 9, finished_at=at, response_tokens=n, version_start=1, version_finish=1
            )
            run.commit(RECORDS, Reading(rollouts=(made,)), at)
            run.advance(at)
        # Twenty ended within (285 s, 585 s]: numbers 20 to 39.
        assert run.value('response_tokens{stat="mean"}') == 29.5
        assert run.value('production_samples_per_second{stage="completed"}') == pytest.approx(20 / 300)
        assert run.state('production_samples_per_second{stage="delivered"}') == "unknown"
        assert "log `version_consumed`" in run.why('staleness_versions{level="trajectory",stat="mean"}')


def test_a_level_that_is_not_told_says_what_to_log_beside_those_that_are(store: Store) -> None:
    with bench(store, mode="async") as run:
        for version in range(1, 5):
            at = T0 + 10 * version
            record = Rollout(f"r{version}", version_dispatched=version - 1, consumptions=(Consumption(version, at),))
            run.commit(RECORDS, Reading(rollouts=(record,)), at)
            run.advance(at)
        assert run.value('staleness_versions{level="trajectory",stat="mean"}') == 1.0
        assert run.state('staleness_versions{level="token",stat="mean"}') == "unknown"
        assert "`token_versions`" in run.why('staleness_versions{level="token",stat="mean"}')
        assert "`mutated`" in run.why('staleness_versions{level="environment_state",stat="max"}')


def test_an_upper_bound_is_said_to_be_one(store: Store) -> None:
    with bench(store, mode="async") as run:
        for version in range(1, 5):
            at = T0 + 10 * version
            turns = tuple(Turn(v, 1, None, sandbox_id=f"sb{version}") for v in (version - 1, version))
            record = Rollout(f"r{version}", turns=turns, consumptions=(Consumption(version, at),))
            run.commit(RECORDS, Reading(rollouts=(record,)), at)
            run.advance(at)
        assert run.value('staleness_versions{level="environment_state",stat="mean"}') == 0.5
        assert run.why('staleness_versions{level="environment_state",stat="mean"}').startswith("upper bound")


def test_records_fill_what_a_trainer_does_not_log(store: Store) -> None:
    def rows(sampled: bool) -> Reading:
        uses = [
            Rollout(f"r{v}", response_tokens=50, consumptions=(Consumption(v, T0 + 30.0 * v),), sampled=sampled)
            for v in range(1, 6)
        ]
        return Reading(rollouts=tuple(uses))

    logged = steps(1, 6)
    told = [structs.replace(sample, metric="response_tokens_mean", value=700.0) for sample in logged.samples[::3]]
    with bench(store) as run:
        run.commit(TRAINER, structs.replace(logged, samples=(*logged.samples, *told)), T0 + 200)
        run.commit(RECORDS, rows(sampled=True), T0 + 200)
        run.advance(T0 + 200)
        assert run.value('response_tokens{stat="mean"}') == 700.0
        run.commit(RECORDS, rows(sampled=False), T0 + 205)
        run.advance(T0 + 205)
        assert run.value('response_tokens{stat="mean"}') == 700.0
        assert run.value('response_tokens{stat="p90"}') == 50.0


def test_a_synchronous_run_is_never_stale_unless_records_say_so(store: Store) -> None:
    with bench(store, mode="sync_colocated") as run:
        for version in range(1, 5):
            at = T0 + 10 * version
            group = [
                Rollout(f"{version}/{n}", f"g{version}", 2, reward=float(n), consumptions=(Consumption(version, at),))
                for n in (0, 1)
            ]
            run.commit(RECORDS, Reading(rollouts=tuple(group)), at)
            run.advance(at)
        assert run.value('staleness_versions{level="trajectory",stat="max"}') == 0.0
        assert run.value('zero_advantage_ratio{basis="completed"}') == 0.0
        assert run.state("staleness_estimated_versions") == "not_applicable"


def test_times_nobody_can_mean_are_refused_one_by_one(store: Store) -> None:
    with bench(store) as run:
        good, bad = Rollout("good", started_at=T0), Rollout("bad", started_at=T0 * 1000)
        run.commit(RECORDS, Reading(rollouts=(good, bad)), T0 + 1)
        assert [row.rollout_id for row in store.rollouts.live("run")] == ["good"]
        assert [target.dropped for target in run.reader.targets("run")] == [1]


def test_history_that_is_read_in_pieces_does_not_see_the_future(store: Store) -> None:
    """A reader that is behind says how far it is known: the newest of what it brought."""
    with bench(store) as run:
        _, arrivals = run.ingest.reading(RECORDS, next(readings())[1], END, 0.0)
        assert arrivals.newest() == T0 + STEP - 5
        assert json.dumps(sorted({round(arrival.ts - T0, 3) for arrival in arrivals.rollouts})) == "[31.0, 45.0]"
