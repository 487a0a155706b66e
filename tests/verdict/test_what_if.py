"""What-ifs by hand: the run of 64 and 192 GPUs, one law after the other, and what may never get worse."""

from dataclasses import replace
from math import isfinite, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.verdict.what_if import FIGURES, Changes, CurrentNumbers, Figure, WhatIf, mean_cut_at, what_if, zero_share_at

# The published run, in round numbers around it.
RUN = CurrentNumbers(capacity=2.75, trained=1.95, trainer_gpus=64, generator_gpus=192)
FULL = replace(
    RUN, step_seconds=200.0, engines=24, group_size=8, oversampling=2.5, zero_advantage=0.4, filtered=True,
    solve_ratio=0.5, max_staleness=4, staleness=1.5, concurrency=1000, kv_ceiling=1200, response_tokens=500.0,
    max_response_tokens=1000 * log(2), truncation=0.5, usd_per_gpu_hour=2.0,
)  # fmt: skip


def then(now: CurrentNumbers, name: str, **changes: float) -> Figure:
    return what_if(now, Changes(**changes)).then.figures[name]  # type: ignore[arg-type]


def value(now: CurrentNumbers, name: str, **changes: float) -> float:
    found = then(now, name, **changes).value
    assert found is not None
    return found


# ---- GPUs


@pytest.mark.parametrize(
    ("moved", "wait", "trained", "limiter"),
    [
        # 1 - (1.95 * 200/192) / (2.75 * 56/64) = 1 - 2.03125 / 2.40625
        (8, 0.15584415584415584, 2.03125, "generator"),
        # 2.1125 could be made, 2.0625 taken
        (16, 0.0, 2.0625, "trainer"),
        # back: 1 - (1.95 * 184/192) / (2.75 * 72/64)
        (-8, 0.39595959595959596, 1.86875, "generator"),
    ],
)
def test_moving_gpus_of_the_published_run(moved: int, wait: float, trained: float, limiter: str) -> None:
    found = what_if(RUN, Changes(move_gpus=moved))
    assert found.now.figures["wait_ratio"].value == pytest.approx(0.2909090909)
    assert found.then.figures["wait_ratio"] == Figure(pytest.approx(wait), "ratio")
    assert found.then.figures["trained_samples_per_second"].value == pytest.approx(trained)
    assert (found.now.limiter, found.then.limiter) == ("generator", limiter)
    assert found.assumptions[1] == (
        "Engines generate as many tokens per GPU as now: linear, without a new KV cache limit."
    )


def test_overheads_do_not_shrink_with_gpus() -> None:
    # A sample takes 1/2.75 = 0.363636 s, of which 1/4.4 = 0.227273 s are compute: 0.227273 * 64/56 + 0.136364
    now = replace(RUN, compute_capacity=4.4)
    assert value(now, "trainer_could_take", move_gpus=8) == pytest.approx(2.5245902)
    assert value(now, "wait_ratio", move_gpus=8) == pytest.approx(0.1954140)


def test_engines_that_are_added_are_paid_for() -> None:
    # 24 engines of 8 GPUs; 3 more: 216 GPUs, 1.95 * 27/24 = 2.19375; cost * (280/256) * (1.95/2.19375)
    today = 256 * 2 / 3600 / (1.95 * 500) * 1e6
    assert value(FULL, "usd_per_million_tokens") == pytest.approx(today) == pytest.approx(145.8689459)
    assert value(FULL, "generator_gpus", add_engines=3) == 216
    assert value(FULL, "trained_samples_per_second", add_engines=3) == pytest.approx(2.19375)
    assert value(FULL, "usd_per_million_tokens", add_engines=3) == pytest.approx(today * 280 / 256 * 24 / 27)
    # 1000 in flight do not fill 1350 slots: it is the most there is.
    assert then(FULL, "trained_samples_per_second", add_engines=3).bound == "at most"
    assert then(FULL, "wait_ratio", add_engines=3).bound == "at least"
    assert then(replace(FULL, concurrency=1400), "wait_ratio", add_engines=3).bound == ""


def test_idle_gpus() -> None:
    # 64 GPUs at 2 USD, 29.09 % of the time; after 16 moved 208 are held 1 - 2.0625/2.1125 of it.
    assert value(FULL, "idle_usd_per_hour") == pytest.approx(37.2363636)
    assert value(FULL, "idle_usd_per_hour", move_gpus=16) == pytest.approx(9.8461538)
    # What the run itself says is today's; the estimate moves it.
    told = replace(FULL, idle_usd_per_hour=50.0)
    assert value(told, "idle_usd_per_hour") == 50
    assert value(told, "idle_usd_per_hour", move_gpus=16) == pytest.approx(50 + 9.8461538 - 37.2363636)


def test_step_time_follows_from_samples_per_second() -> None:
    assert value(FULL, "step_seconds", move_gpus=8) == pytest.approx(200 * 1.95 / 2.03125)


# ---- today


def test_without_a_change_it_is_today_exactly() -> None:
    found = what_if(replace(FULL, wait=0.30), Changes(move_gpus=0, group_size=8, oversampling=2.5, concurrency=1000))
    assert found.then is found.now and found.changes == {}
    assert found.now.figures["wait_ratio"] == Figure(pytest.approx(0.30), "ratio")
    assert found.now.figures["trained_samples_per_second"] == Figure(1.95, "samples/s")
    assert found.now.figures["step_seconds"] == Figure(200.0, "seconds")
    assert found.now.figures["staleness_versions"] == Figure(1.5, "versions")


def test_nobody_waits_and_nobody_knows_how_far_ahead_the_engines_are() -> None:
    held = replace(FULL, trained=2.7, wait=0.02, staleness=3.5)
    found = what_if(held, Changes(move_gpus=-16))
    assert (found.now.limiter, found.then.limiter) == ("trainer", "generator")
    # 1 - (2.7 * 176/192) / (2.7/0.98 * 80/64), if the engines can make no more than they do
    assert found.then.figures["wait_ratio"] == Figure(pytest.approx(0.2813333), "ratio", "at most")
    assert found.now.figures["wait_ratio"] == Figure(pytest.approx(0.02), "ratio")
    assert any("how much more is unknown" in words for words in found.assumptions)
    assert what_if(held, Changes(move_gpus=16)).then.figures["wait_ratio"] == Figure(0.0, "ratio")


# ---- what of it reaches the trainer


def test_oversampling() -> None:
    # 2.5 begun per kept one to 2: 1.95 * 1.25 = 2.4375, less than 2.75
    assert then(FULL, "trained_samples_per_second", oversampling=2.0) == Figure(2.4375, "samples/s", "at most")
    assert then(FULL, "wait_ratio", oversampling=2.0) == Figure(pytest.approx(0.1136364), "ratio", "at least")
    assert then(FULL, "trained_samples_per_second", oversampling=3.0) == Figure(1.625, "samples/s", "at least")


def test_zero_advantage_groups() -> None:
    # Filtered: what is not dropped is trained on, 1.95 * 0.7/0.6. Unfiltered: it only carries a gradient.
    assert value(FULL, "useful_samples_per_second", zero_advantage=0.3) == pytest.approx(2.275)
    plain = replace(FULL, filtered=False)
    assert value(plain, "useful_samples_per_second") == pytest.approx(1.17)
    assert value(plain, "useful_samples_per_second", zero_advantage=0.3) == pytest.approx(1.365)
    assert value(plain, "trained_samples_per_second", zero_advantage=0.3) == pytest.approx(1.95)
    open_ = replace(FULL, filtered=None)
    assert then(open_, "trained_samples_per_second", zero_advantage=0.3) == Figure(1.95, "samples/s", "at least")
    assert then(open_, "useful_samples_per_second", zero_advantage=0.3).value is None
    assert "filtered" in what_if(open_, Changes(zero_advantage=0.3)).missing


def test_group_size_by_a_beta_distribution() -> None:
    # All equal 0.75 in pairs solved half of the time: Beta(1/2, 1/2); of four 2 * (0.5*1.5*2.5*3.5) / 24
    assert zero_share_at(2, 4, 0.5, 0.75) == pytest.approx(0.546875)
    pairs = replace(FULL, group_size=2, zero_advantage=0.75)
    assert value(pairs, "zero_advantage_ratio", group_size=4) == pytest.approx(0.546875)
    # 1.95 * 0.453125 / 0.25 = 3.53: more than the trainer takes
    assert what_if(pairs, Changes(group_size=4)).then.limiter == "trainer"
    blind = what_if(replace(pairs, solve_ratio=None), Changes(group_size=4))
    assert blind.then.figures["zero_advantage_ratio"].value is None and "solve_ratio" in blind.missing
    # Larger groups have fewer of them, however many.
    assert blind.then.figures["trained_samples_per_second"] == Figure(1.95, "samples/s", "at least")


# ---- the engines


def test_more_in_flight_helps_up_to_the_kv_ceiling() -> None:
    # 1000 of 1200 slots: 20 % more at most, 1.95 * 1.2
    assert then(FULL, "trained_samples_per_second", concurrency=1500) == Figure(
        pytest.approx(2.34), "samples/s", "at most"
    )
    assert value(FULL, "trained_samples_per_second", concurrency=1100) == pytest.approx(2.145)
    assert then(FULL, "trained_samples_per_second", concurrency=500) == Figure(0.975, "samples/s", "at least")
    beyond = replace(FULL, concurrency=1300)
    assert then(beyond, "trained_samples_per_second", concurrency=2000) == Figure(1.95, "samples/s")
    # Half of the rollouts in flight are in a tool: the ceiling is one of 2400.
    assert value(replace(FULL, generating=0.5), "trained_samples_per_second", concurrency=1400) == pytest.approx(2.73)


def test_engines_and_rollouts_in_flight_are_not_counted_twice() -> None:
    # 1500 in flight wait for 1200 slots; twice the engines and 2400 in flight are twice as much, not 3.2 times.
    now = replace(FULL, concurrency=1500, capacity=100.0)
    assert value(now, "generator_could_make", add_engines=24, concurrency=2400) == pytest.approx(3.9)


def test_length_cap() -> None:
    # Exponential of mean 1000 cut at 693 (a half): 500; at 1386: 750; at 288: 250.
    assert mean_cut_at(500, 1000 * log(2), 1000 * log(4), 0.5) == pytest.approx(750)
    assert mean_cut_at(500, 1000 * log(2), 1000 * log(4 / 3), None) == pytest.approx(250)
    # Nothing was cut, so a higher cap changes nothing.
    assert mean_cut_at(500, 1000 * log(2), 1000 * log(4), 0.0) == 500
    # 288: 250.3 tokens; both sides handle samples in half of the time.
    assert value(FULL, "response_tokens", max_response_tokens=288) == pytest.approx(250.238, abs=1e-3)
    assert value(FULL, "wait_ratio", max_response_tokens=288) == pytest.approx(0.2909091)
    assert value(FULL, "trained_samples_per_second", max_response_tokens=288) == pytest.approx(3.89629, abs=1e-4)
    assert value(FULL, "usd_per_million_tokens", max_response_tokens=288) == pytest.approx(145.8689459)
    assert value(FULL, "kv_concurrency_limit", max_response_tokens=288) == pytest.approx(2397.72, abs=0.01)


def test_a_cap_far_from_today_is_told_as_about() -> None:
    # 288 leaves half of the tokens; of 87 of 500 what does not shrink with them is most.
    assert [then(FULL, "trained_samples_per_second", max_response_tokens=cap).bound for cap in (288, 90)] == [
        "",
        "about",
    ]
    assert [then(FULL, "wait_ratio", max_response_tokens=cap).bound for cap in (288, 90)] == ["", "about"]


def test_where_sandboxes_are_the_limit_engines_do_not_help() -> None:
    boxes = replace(FULL, outcome="sandbox_bound")
    assert value(boxes, "trained_samples_per_second", add_engines=6) == pytest.approx(1.95)
    # Moving 8 GPUs away from the trainer costs capacity alone: 1 - 1.95 / 2.40625
    assert value(boxes, "wait_ratio", move_gpus=8) == pytest.approx(0.1896104)
    assert "sandbox-bound" in " ".join(what_if(boxes, Changes(add_engines=6)).assumptions)


# ---- staleness


def test_staleness() -> None:
    # In proportion: GPUs change time in flight and versions per second alike.
    assert value(FULL, "staleness_versions", move_gpus=8) == pytest.approx(1.5)
    # Twice in flight, a fifth more per second: each takes 2/1.2 as long, while versions come 1.2 times as often.
    assert value(FULL, "staleness_versions", concurrency=2000) == pytest.approx(3.0)
    # Four times: 6 versions, and 4 is the bound. What it holds back is not in flight: 1000 of them make 1.95 today.
    assert then(FULL, "staleness_versions", concurrency=4000).value == 4
    assert value(FULL, "trained_samples_per_second", concurrency=4000) == pytest.approx(1.95)
    # The trainer becomes the limit: samples wait until the bound.
    assert then(FULL, "staleness_versions", move_gpus=16) == Figure(4, "versions", "at most")
    endless = what_if(replace(FULL, max_staleness=None), Changes(move_gpus=16))
    assert endless.then.figures["staleness_versions"].value is None and "max_staleness" in endless.missing


def test_the_staleness_bound() -> None:
    # 1.5 in flight: a bound of 1 holds generation to two thirds; 8 changes nothing but saves the stale fifth.
    assert value(FULL, "trained_samples_per_second", max_staleness=1) == pytest.approx(1.3)
    dropped = replace(FULL, stale_share=0.2)
    assert then(dropped, "trained_samples_per_second", max_staleness=8) == Figure(2.4375, "samples/s", "at most")
    held = replace(FULL, trained=2.7, wait=0.0, staleness=3.6)
    assert then(held, "staleness_versions", max_staleness=8) == Figure(7.2, "versions", "at most")


# ---- what is not known


@pytest.mark.parametrize(
    ("without", "changes", "missing"),
    [
        ("trained", {}, {"trained"}),
        ("capacity", {}, {"wait"}),
        ("trainer_gpus", {"move_gpus": 8}, {"trainer_gpus"}),
        ("engines", {"add_engines": 1}, {"engines"}),
        ("oversampling", {"oversampling": 2.0}, {"oversampling"}),
        ("concurrency", {"concurrency": 500}, {"concurrency"}),
        ("max_response_tokens", {"max_response_tokens": 500}, {"max_response_tokens"}),
        ("response_tokens", {"max_response_tokens": 500}, {"response_tokens"}),
    ],
)
def test_unknown_says_which(without: str, changes: dict[str, int], missing: set[str]) -> None:
    found = what_if(replace(FULL, **{without: None}), Changes(**changes))  # type: ignore[arg-type]
    assert found.then.figures["wait_ratio"].value is None and found.then.limiter is None
    assert missing <= found.missing.keys()
    assert found.then.figures["wait_ratio"].why == "; ".join(found.missing[name] for name in sorted(missing))


def test_what_is_missing_for_one_figure_leaves_the_others() -> None:
    found = what_if(RUN, Changes(move_gpus=8)).then.figures
    unknown = {name for name, figure in found.items() if figure.value is None}
    assert unknown == {
        "useful_samples_per_second", "staleness_versions", "step_seconds", "usd_per_million_tokens",
        "idle_usd_per_hour", "zero_advantage_ratio", "response_tokens", "kv_concurrency_limit",
    }  # fmt: skip
    assert all(found[name].why for name in unknown)


def test_one_pool_and_turns() -> None:
    pool = what_if(replace(FULL, one_pool="they share their GPUs"), Changes(move_gpus=8))
    assert pool.missing["move_gpus"] == "they share their GPUs" and pool.then.limiter is None
    turns = what_if(replace(FULL, apart="they take turns"), Changes(oversampling=1.0))
    assert {figure.why for figure in turns.then.figures.values()} == {"they take turns"}
    assert turns.then.limiter is None and turns.missing == {"mode": "they take turns"}


# ---- what may never get worse


def some(low: float, high: float) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(low, high)


RUNS = st.builds(
    CurrentNumbers, outcome=st.sampled_from(["", "generator_bound", "sandbox_bound"]),
    capacity=st.floats(0.1, 100), compute_capacity=some(100, 200), trained=st.floats(0.1, 100),
    wait=st.none() | st.floats(0, 0.95), step_seconds=some(1, 1e4), trainer_gpus=st.integers(2, 512),
    generator_gpus=st.integers(2, 512), engines=st.none() | st.integers(1, 64),
    group_size=st.none() | st.integers(2, 32), solve_ratio=some(0.01, 0.99), oversampling=some(1, 4),
    zero_advantage=some(0, 0.9), filtered=st.none() | st.booleans(), max_staleness=st.none() | st.integers(1, 16),
    staleness=some(0, 16), stale_share=some(0, 0.5), concurrency=st.none() | st.integers(8, 4096),
    generating=some(0.1, 1), kv_ceiling=some(8, 4096), response_tokens=some(10, 30_000),
    max_response_tokens=st.none() | st.integers(31_000, 65_536), truncation=some(0, 0.5),
    usd_per_gpu_hour=some(0.5, 10),
)  # fmt: skip


def wait_of(found: WhatIf) -> float:
    wait = found.then.figures["wait_ratio"].value
    assert wait is not None
    return wait


def made_of(found: WhatIf) -> float:
    made = found.then.figures["generator_could_make"].value
    assert made is not None
    return made


@settings(max_examples=50, deadline=None)
@given(RUNS, st.integers(-500, 500), st.integers(1, 100))
def test_more_gpus_that_generate_never_make_the_trainer_wait_longer(now: CurrentNumbers, moved: int, more: int) -> None:
    assert now.trainer_gpus and now.generator_gpus
    low, high = 1 - int(now.generator_gpus), int(now.trainer_gpus) - 1
    first = min(max(moved, low), high)
    second = min(first + more, high)
    waits = [wait_of(what_if(now, Changes(move_gpus=one))) for one in (first, second)]
    assert waits[1] <= waits[0] + 1e-9


@settings(max_examples=50, deadline=None)
@given(RUNS, st.floats(1, 8), st.floats(1, 8))
def test_less_oversampling_never_makes_less(now: CurrentNumbers, one: float, other: float) -> None:
    now = replace(now, oversampling=now.oversampling or 2.0)
    less, more = sorted((one, other))
    found = [made_of(what_if(now, Changes(oversampling=share))) for share in (less, more)]
    assert found[0] >= found[1] * (1 - 1e-9)


@settings(max_examples=50, deadline=None)
@given(RUNS, st.integers(1, 64), st.integers(1, 64))
def test_a_higher_staleness_bound_never_makes_less(now: CurrentNumbers, one: int, other: int) -> None:
    found = [made_of(what_if(now, Changes(max_staleness=bound))) for bound in sorted((one, other))]
    assert found[1] >= found[0] * (1 - 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 32), st.integers(2, 32), st.floats(0.01, 0.99), st.floats(0, 1))
def test_larger_groups_are_less_often_all_equal(size: int, other: int, solved: float, share: float) -> None:
    less, more = sorted((size, other))
    assert zero_share_at(size, more, solved, share) <= zero_share_at(size, less, solved, share) + 1e-9
    assert zero_share_at(size, size, solved, share) == pytest.approx(share)


@settings(max_examples=50, deadline=None)
@given(st.floats(1, 1e5), st.floats(1.001, 50), st.floats(0.01, 20), some(0, 1))
def test_a_cap_cuts_no_more_than_it_can(mean: float, room: float, factor: float, cut: float | None) -> None:
    cap = mean * room
    found = mean_cut_at(mean, cap, factor * cap, cut)
    assert found <= factor * cap + 1e-9
    assert found <= mean + 1e-6 * mean if factor < 1 else True


CHANGES = st.builds(
    Changes, move_gpus=st.integers(-1, 1), add_engines=st.integers(0, 8), group_size=st.none() | st.integers(2, 64),
    oversampling=some(1, 5), concurrency=st.none() | st.integers(1, 10_000),
    max_response_tokens=st.none() | st.integers(16, 100_000), max_staleness=st.none() | st.integers(1, 32),
    zero_advantage=some(0, 0.95),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(RUNS, CHANGES)
def test_every_answer_is_a_number_or_says_why_not(now: CurrentNumbers, changes: Changes) -> None:
    found = what_if(now, changes)
    for state in (found.now, found.then):
        assert state.figures.keys() == FIGURES.keys()
        for name, figure in state.figures.items():
            assert figure.unit == FIGURES[name]
            assert isfinite(figure.value) and figure.value >= 0 if figure.value is not None else figure.why, name
        wait = state.figures["wait_ratio"].value
        assert wait is None or wait <= 1
