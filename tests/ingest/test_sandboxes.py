"""Sandboxes from a provider's listing to rows, signals, counters and `/metrics`. Both databases, numbers by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from collectors.model import Histogram, Reading, Sample, Sandbox, Target
from server.alerts.settings import AlertSettings
from server.api.metrics import render
from server.config.alerts import load_rules
from server.ingest.sandboxes import SandboxIngest
from server.lib.errors import Problems
from server.store import Store
from tests.derive.test_alerts import running
from tests.driven_run import T0, Bench, bench

PRIME = Target("prime", "run", "prime_sandboxes", "sandbox", url="http://p", interval_seconds=15.0)


def box(n: int | str, state: str = "running", asked: float = 0.0, ready: float | None = None, **more):  # type: ignore[no-untyped-def]
    """Sandbox n of this run, asked for and ready at T0 + ...; without `ready` it is not."""
    found = Sandbox(
        "prime", f"sb-{n}", state, name=f"trace-{n}", run_key="run", requested_at=T0 + asked,  # type: ignore[arg-type]
        ready_at=None if ready is None else T0 + ready, latency_source="server" if ready is not None else None,
    )  # fmt: skip
    return structs.replace(found, **more)


def listing(*boxes: Sandbox, whole: bool = True, **samples: float) -> Reading:
    found = tuple(Sample(name, value) for name, value in samples.items())
    return Reading(sandboxes=boxes, listed=("prime",) if whole else (), samples=found, samples_scraped=len(boxes))


def poll(run: Bench, at: float, *boxes: Sandbox, **more: float) -> None:
    run.commit(PRIME, listing(*boxes, **more), T0 + at)
    run.advance(T0 + at, live=True)


def states(run: Bench) -> dict[str, float]:
    found = run.reader.status("run").signals.values()
    return {one.labels["state"]: one.value for one in found if one.signal == "sandboxes" and one.value}


def test_states_oldest_pending_and_spinup(store: Store) -> None:
    with bench(store) as run:
        boxes = [box(n, asked=0, ready=10 * n) for n in range(1, 5)]  # 10, 20, 30, 40 s
        poll(run, 100, *boxes, box("a", "starting", asked=40), box("b", "queued", asked=90))
        assert states(run) == {"running": 4.0, "starting": 1.0, "queued": 1.0}
        assert run.value("sandbox_oldest_pending_seconds") == 60.0
        stat = 'sandbox_spinup_latency_seconds{image="all",stat="%s"}'
        assert [run.value(stat % name) for name in ("p50", "max")] == [25.0, 40.0]
        assert run.value(stat % "p95") == pytest.approx(38.5)
        assert run.value("sandbox_creates_per_second") == pytest.approx(6 / 300)


def test_the_wall_is_seen_in_the_oldest_pending_while_the_p95_looks_fine(store: Store) -> None:
    """Stragglers that never become ready are in no quantile: page, signal and alert must show them all the same."""
    problems = Problems()
    rules = load_rules({}, problems)
    with bench(store, AlertSettings(rules)) as run:
        running(run)
        for at in range(0, 3700, 300):
            fine = [box(f"{at}-{n}", asked=at - 30, ready=at - 10) for n in range(20)]
            poll(run, at, box("straggler", "starting", asked=0), *fine)
        assert run.value('sandbox_spinup_latency_seconds{image="all",stat="p95"}') == 20.0
        assert run.state('sandbox_spinup_latency_seconds{image="all",stat="p95"}') == "ok"
        assert run.value("sandbox_oldest_pending_seconds") == 3600.0
        assert run.state("sandbox_oldest_pending_seconds") == "critical"
        firing = {alert.name for alert in run.reader.alerts.active("run") if alert.state == "firing"}
        assert "SandboxPendingLong" in firing and "SandboxSpinupSlow" not in firing


@pytest.mark.parametrize("asked", [None, 6 * 3600.0])
def test_who_tells_no_time_waits_at_least_since_we_met_him(store: Store, asked: float | None) -> None:
    """No creation time, or one six hours ahead: a straggler must not look like nobody waiting."""
    stuck = structs.replace(box(1, "queued"), requested_at=None if asked is None else T0 + asked)
    with bench(store) as run:
        poll(run, 0, stuck)
        poll(run, 700, stuck)
        assert run.value("sandbox_oldest_pending_seconds") == 700.0
    with bench(store) as run:
        poll(run, 715, stuck)
        assert run.value("sandbox_oldest_pending_seconds") == 715.0


def test_a_run_of_which_only_its_sandboxes_are_read_runs_and_warns(store: Store) -> None:
    problems = Problems()
    with bench(store, AlertSettings(load_rules({}, problems))) as run:
        for at in range(0, 1300, 60):
            poll(run, at, box(1, "queued", asked=0))
        assert run.reader.status("run").lifecycle == "running"
        assert "SandboxPendingLong" in {
            alert.name for alert in run.reader.alerts.active("run") if alert.state == "firing"
        }


def test_spinup_is_split_by_image(store: Store) -> None:
    with bench(store) as run:
        poll(run, 50, box(1, asked=0, ready=5, image_cached=True), box(2, asked=0, ready=45, image_cached=False))
        assert run.value('sandbox_spinup_latency_seconds{image="cached",stat="max"}') == 5.0
        assert run.value('sandbox_spinup_latency_seconds{image="built",stat="p50"}') == 45.0
        assert run.value('sandbox_spinup_latency_seconds{image="all",stat="p50"}') == 25.0


def test_each_failure_is_counted_once_by_cause_and_survives_restarts(store: Store) -> None:
    bad = [box(1, "failed", cause="image"), box(2, "failed", cause="quota"), box(3, "failed", cause="quota")]
    for at in (0, 15, 30):
        with bench(store) as run:
            poll(run, at, *bad, box(4, "failed", cause=None) if at == 30 else box(4, "starting"))
    with bench(store) as run:
        found = {
            s.labels["cause"]: s.value
            for s in run.reader.status("run").signals.values()
            if s.signal == "sandbox_failures_total"
        }
        assert found == {"image": 1.0, "quota": 2.0, "unknown": 1.0}
        assert run.value("sandboxes_created_total") == 4.0
        rates = {name: run.value(f'sandbox_outcomes_per_second{{outcome="{name}"}}') for name in ("refused", "failed")}
        # Two that no quota was left for, and two that failed otherwise, in 300 s.
        assert rates == pytest.approx({"refused": 2 / 300, "failed": 2 / 300})
        told = store.sandboxes.funnel("run")
        assert {stage: told[stage] for stage in ("requested", "started", "ready", "ended", "failed")} == {
            "requested": 4, "started": 0, "ready": 0, "ended": 4, "failed": 4,
        }  # fmt: skip
        assert run.value("sandbox_failure_ratio") == 1.0  # also after the restart


def test_what_failed_stays_failed_when_its_provider_has_cleaned_up(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1, "failed", cause="image"), box(2))
        poll(run, 15, box(1, "terminated"), box(2, "terminated"))
        failed = [(row.id, row.cause) for row in store.sandboxes.page("run", states=("failed",))]
        assert failed == [("sb-1", "image")]
        assert store.sandboxes.funnel("run")["failed"] == run.value('sandbox_failures_total{cause="image"}') == 1.0


@pytest.mark.parametrize("restart", [False, True])
def test_an_old_end_that_is_listed_again_is_not_counted_again(store: Store, restart: bool) -> None:
    """Providers list ended ones for days; we remember an hour of them."""
    ended = box(1, "failed", cause="oom", ready=5.0, ended_at=T0 + 15.0)
    with bench(store) as run:
        poll(run, 0, box(1, ready=5.0))
        poll(run, 15, ended)
        poll(run, 4000)  # more than an hour later it is forgotten
        if not restart:
            poll(run, 4015, ended)
            poll(run, 4030, ended)
    with bench(store) as run:
        poll(run, 4045, ended)
        counters = ("sandboxes_created_total", "sandbox_spinup_count_total", 'sandbox_failures_total{cause="oom"}')
        assert [run.value(name) for name in counters] == [1.0, 1.0, 1.0]


def test_a_crash_between_commit_and_derivation_counts_each_once(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1, "starting"))
        run.commit_only(PRIME, listing(box(1, "failed", cause="oom"), box(2, asked=0, ready=12)), T0 + 15)
    with bench(store) as run:
        run.advance(T0 + 20)
        assert run.value('sandbox_failures_total{cause="oom"}') == 1.0
        assert run.value("sandbox_spinup_count_total") == 1.0
    with bench(store) as run:
        run.advance(T0 + 25)
        assert run.value('sandbox_failures_total{cause="oom"}') == 1.0
        assert run.value('sandbox_spinup_latency_seconds{image="all",stat="max"}') == 12.0


def test_what_a_whole_listing_leaves_out_has_ended(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1), box(2))
        run.commit(PRIME, listing(box(1), whole=False), T0 + 15)
        run.advance(T0 + 15)
        assert states(run) == {"running": 2.0}  # a part of a listing says nothing of the rest
        poll(run, 30, box(1))
        assert states(run) == {"running": 2.0}  # one short answer may be a slip
        poll(run, 45, box(1))
        assert states(run) == {"running": 1.0}
        (gone,) = store.sandboxes.page("run", states=("terminated",))
        assert (gone.id, gone.ended_at) == ("sb-2", T0 + 30)


def test_who_was_left_out_by_mistake_lives_again(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1, ready=5.0), box(2, "starting"))
        poll(run, 15)
        poll(run, 30)
        assert states(run) == {}
        poll(run, 45, box(1, ready=5.0), box(2, "starting"))
        assert states(run) == {"running": 1.0, "starting": 1.0}
        assert run.value("sandbox_oldest_pending_seconds") == 45.0
        assert [run.value(name) for name in ("sandboxes_created_total", "sandbox_spinup_count_total")] == [2.0, 1.0]
        assert {row.ended_at for row in store.sandboxes.page("run")} == {None}


def test_one_empty_answer_ends_nobody(store: Store) -> None:
    with bench(store) as run:
        for at, boxes in ((0, 3), (15, 0), (30, 3), (45, 0), (60, 3)):
            poll(run, at, *(box(n) for n in range(boxes)))
            assert states(run) == {"running": 3.0}


def test_a_container_that_is_started_once_more_lives(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1, ready=5.0, started_at=T0 + 3))
        poll(run, 60, box(1, "failed", ready=5.0, started_at=T0 + 3, ended_at=T0 + 50, cause="oom"))
        poll(run, 75, box(1, ready=5.0, started_at=T0 + 70))
        assert states(run) == {"running": 1.0}
        assert run.value('sandbox_failures_total{cause="oom"}') == 1.0
        (row,) = store.sandboxes.page("run")
        assert (row.state, row.cause, row.ended_at) == ("running", None, None)


def test_an_end_before_the_run_is_history(store: Store) -> None:
    """A provider keeps some ends for days and others for an hour: their shares say nothing of the run."""
    old = [box(f"o{n}", "failed", asked=-9_000, ended_at=T0 - 8_000 + n, cause="image") for n in range(40)]
    with bench(store) as run:
        for at in (0, 15):
            poll(run, at, box(1), *old, box(2, "failed", ended_at=T0 + 2.0, cause="oom"))
    with bench(store) as run:
        poll(run, 30, box(1), *old)
        assert run.value("sandboxes_created_total") == 2.0
        assert run.value('sandbox_failures_total{cause="oom"}') == 1.0
        assert store.sandboxes.funnel("run")["requested"] == 2


def test_a_provider_without_times_gives_an_upper_bound(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1, "starting"))
        poll(run, 15, box(1, "running"))
        (row,) = store.sandboxes.page("run")
        assert (row.ready_at, row.latency_source) == (T0 + 15, "poll_bound")
        assert run.value('sandbox_spinup_latency_seconds{image="all",stat="max"}') == 15.0


def test_others_sandboxes_dangle_when_no_living_run_owns_them(store: Store) -> None:
    store.ensure_run("neighbour")
    foreign = [box(f"f{n}", run_key="gone") for n in range(3)] + [box("n", run_key="neighbour")]
    with bench(store) as run:
        poll(run, 0, box(1), box(2, run_key=""), *foreign)
        assert states(run) == {"running": 2.0}  # its own, and one that says nothing
        assert run.value("sandboxes_dangling") == 3.0
        assert {row.id for row in store.sandboxes.page("run", dangling=True)} == {"sb-f0", "sb-f1", "sb-f2"}


def test_a_provider_that_falls_silent_makes_them_unknown_not_zero(store: Store) -> None:
    with bench(store) as run:
        poll(run, 0, box(1, "starting"))
        for at in (15, 30, 45, 60):
            run.fail(PRIME, "throttled", "HTTP 429", T0 + at)
            run.advance(T0 + at, live=True)
        assert run.value('sandboxes{state="starting"}') is None
        assert run.why("sandbox_oldest_pending_seconds") == "no provider has answered for 60 s"


def test_a_run_that_needs_none_says_so(store: Store) -> None:
    with bench(store, has_sandbox=0.0) as run:
        running(run)
        run.advance(T0, live=True)
        for name in ("sandboxes", "sandbox_oldest_pending_seconds", "sandbox_quota_used_ratio", "sandboxes_dangling"):
            assert run.state(name) == "not_applicable"


def test_quota_and_credit(store: Store) -> None:
    with bench(store) as run:
        for at in range(0, 120, 15):
            labels = (("resource", "concurrent"),)
            samples = (
                Sample("sandbox_quota_used", 45.0, labels), Sample("sandbox_quota_limit", 50.0, labels),
                Sample("sandbox_credit_usd", 100.0 - at / 60),
            )  # fmt: skip
            run.commit(PRIME, Reading(samples=samples, listed=("prime",)), T0 + at)
            run.advance(T0 + at, live=True)
        assert run.value('sandbox_quota_used_ratio{resource="concurrent"}') == 0.9
        assert run.value('sandbox_quota_used{resource="concurrent",target="prime"}') == 45.0
        assert run.value('sandbox_quota_limit{resource="concurrent",target="prime"}') == 50.0
        assert run.value("sandbox_credit_usd") == 98.25
        assert run.value("sandbox_credit_hours") == pytest.approx(98.25 / 60)  # a dollar a minute


def test_commands_are_timed_by_the_sources_own_histogram(store: Store) -> None:
    """Ten commands between two polls, all of them in the bucket from 0.5 to 2 s."""
    router = Target("router", "run", "agent_sandbox_metrics", "sandbox", url="http://r", interval_seconds=15.0)
    with bench(store) as run:
        for at, count in ((0, 7.0), (15, 17.0)):
            read = Histogram("sandbox_exec_seconds", (0.5, 2.0), (7.0, count, count), count)
            run.commit(router, Reading(histograms=(read,), samples_scraped=3), T0 + at)
            run.advance(T0 + at, live=True)
        assert run.value('sandbox_exec_seconds{stat="p50"}') == 1.25
        assert run.value('sandbox_exec_seconds{stat="p95"}') == pytest.approx(1.925)
        assert "router" in next(
            s.source for s in run.reader.status("run").signals.values() if s.signal == "sandbox_exec_seconds"
        )
        run.advance(T0 + 75, live=True)
        assert run.state('sandbox_exec_seconds{stat="p50"}') == "unknown"  # the router is silent


def test_the_histogram_on_the_wire_adds_up_and_outlives_restarts(store: Store) -> None:
    for at, ready in ((0, 0.5), (15, 14.0), (30, 29.5)):
        with bench(store) as run:
            poll(run, at, box(at, asked=0, ready=ready))
    with bench(store) as run:
        run.clock.set(T0 + 30)
        text = render(run.reader, "1").decode()
    lines = [
        line.partition(" ")[2] for line in text.splitlines() if line.startswith("rollscope_sandbox_spinup_seconds")
    ]
    assert lines == [f"{n}.0" for n in (1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3)] + ["3.0", "44.0"]
    assert 'rollscope_sandbox_spinup_seconds_bucket{le="20",run="run"} 2.0' in text
    assert "sandbox_spinup_bucket_total" not in text


# ---- the ingest alone


def take(ingest: SandboxIngest, *boxes: Sandbox, at: float = 0.0, listed: tuple[str, ...] = ("prime",)):  # type: ignore[no-untyped-def]
    return ingest.take(PRIME, boxes, listed, {"run"}, T0 + at)


def test_a_listing_that_says_nothing_new_brings_nothing() -> None:
    ingest = SandboxIngest([], {"run"})
    boxes = [box(n, asked=0, ready=5) for n in range(100)]
    assert len(take(ingest, *boxes)) == 100
    assert take(ingest, *boxes, at=15) == []
    (changed,) = take(ingest, *boxes[:99], box(99, "stopping", asked=0, ready=5), at=30)
    assert (changed.created, changed.became_ready, changed.failed) == (False, False, False)


def test_an_end_is_final_and_first_times_are_kept() -> None:
    ingest = SandboxIngest([], {"run"})
    take(ingest, box(1, asked=0, ready=5))
    (ended,) = take(ingest, box(1, "terminated", asked=3, ready=9), at=20)
    assert (ended.row.requested_at, ended.row.ready_at) == (T0, T0 + 5)
    # A page that was on its way while it ended; who is live twice in a row is live.
    assert take(ingest, box(1, asked=0, ready=5), at=21) == []
    assert take(ingest, box(1, "terminated", asked=0, ready=5), at=22) == []
    assert take(ingest, box(1, asked=0, ready=5), at=23) == []
    (again,) = take(ingest, box(1, asked=0, ready=5), at=24)
    assert (again.row.state, again.created, again.became_ready) == ("running", False, False)


def test_the_first_command_is_the_first_one_heard_of() -> None:
    ingest = SandboxIngest([], {"run"})
    take(ingest, box(1, ready=5))
    (ran,) = take(ingest, box(1, ready=5, first_exec_at=T0 + 7), at=15)
    assert (ran.row.first_exec_at, ran.created, ran.became_ready) == (T0 + 7, False, False)
    assert (
        take(ingest, box(1, ready=5), at=30) == [] and take(ingest, box(1, ready=5, first_exec_at=T0 + 9), at=45) == []
    )


def test_hostile_texts_are_cut_and_an_empty_id_is_nobody() -> None:
    ingest = SandboxIngest([], {"run"})
    (found,) = take(ingest, box("x" * 10_000, detail="y" * 10_000), structs.replace(box(1), id=""))
    assert (len(found.row.id), len(found.row.detail)) == (200, 500)


STATES = ("queued", "starting", "running", "stopping", "terminated", "failed", "unknown")


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STATES)), max_size=6), max_size=12))
def test_whatever_is_listed_each_sandbox_is_created_readied_and_failed_at_most_once(
    polls: list[list[tuple[int, str]]],
) -> None:
    ingest, seen = SandboxIngest([], {"run"}), []
    for n, found in enumerate(polls):
        boxes = [box(number, state, ready=5.0 if state == "running" else None) for number, state in found]
        seen += take(ingest, *boxes, at=15.0 * n)
    for what in ("created", "became_ready", "failed"):
        ids = [arrival.row.id for arrival in seen if getattr(arrival, what)]
        assert len(ids) == len(set(ids))
    for arrival in seen:
        assert (arrival.row.ended_at is not None) == (arrival.row.state in ("terminated", "failed"))
