"""Money: what a run costs, what its tokens cost, and what its idle GPUs cost. Every number by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from server import signals
from server.signals import Signal
from server.signals.model import GONE, Answer, NotApplicable, Unknown, Value, View
from server.signals.window import Gauge, StepBook
from tests.signals.support import NOW, book, gauge, health, view

SIGNALS = {item.name: item for item in signals.load() if isinstance(item, Signal)}

SPLIT: dict[str, float | str] = {"trainer_gpus": 64.0, "generator_gpus": 192.0, "gpu_type": "H200"}
"""64 x 1.59 = 101.76 and 192 x 1.59 = 305.28 USD an hour."""


def ask(name: str, seen: View) -> Answer:
    return SIGNALS[name].compute(seen)


def idle(seen: View) -> dict[str, float | str]:
    """Cause -> USD an hour, or the reason why it is not known; what costs nothing now is left out."""
    answer = ask("idle_usd_per_hour", seen)
    assert isinstance(answer, Sequence), answer
    told = {dict(one.labels)["cause"]: one.why if math.isnan(one.value) else one.value for one in answer}
    assert {"stalled", "starting", "paused"} <= told.keys()
    return {cause: usd for cause, usd in told.items() if usd}


def steps(count: int = 10, seconds: float = 100.0, **more: float) -> StepBook:
    return book([{"trainer_step_seconds": seconds, **more} for _ in range(count)], seconds=seconds)


def pages(*running: float, target: str = "e0") -> tuple[Gauge, ...]:
    """An engine's pages, 5 s apart, the newest now."""
    return (gauge("generator_requests_running", *running, target=target),)


# ---- the bill


@pytest.mark.parametrize(
    ("mode", "facts", "usd"),
    [
        ("async", SPLIT, 407.04),
        ("async", {"gpus": 256.0, "trainer_gpus": 64.0, "usd_per_gpu_hour": 2.0}, 512.0),
        # One pool, whoever counts it: never twice.
        ("sync_colocated", {"trainer_gpus": 64.0, "usd_per_gpu_hour": 2.0}, 128.0),
        ("async_colocated", {"trainer_gpus": 64.0, "generator_gpus": 64.0, "usd_per_gpu_hour": 2.0}, 128.0),
        # A price that is stated wins over the type's, of a role over that of all.
        ("async", {**SPLIT, "usd_per_gpu_hour": 2.0, "trainer_usd_per_gpu_hour": 3.0}, 64 * 3 + 192 * 2),
        ("async", {**SPLIT, "trainer_gpu_type": "NVIDIA H100 80GB HBM3"}, 64 * 3.99 + 305.28),
    ],
)
def test_gpus_cost_their_price_once(mode: str, facts: dict[str, Any], usd: float) -> None:
    (found,) = ask("cost_usd_per_hour", view(mode=mode, has_sandbox=0.0, **facts))  # type: ignore[misc]
    assert found.value == pytest.approx(usd)


def test_a_default_price_says_what_it_is() -> None:
    (found,) = ask("cost_usd_per_hour", view(has_sandbox=0.0, **SPLIT))  # type: ignore[misc]
    assert found.why == "64 x 1.59 + 192 x 1.59 (H200 default: cost of ownership, not of rent)"


def test_sandboxes_are_on_the_bill_or_said_not_to_be() -> None:
    spending = gauge("sandbox_cost_usd_per_hour", 12.5)
    (found,) = ask("cost_usd_per_hour", view(spending, **SPLIT))  # type: ignore[misc]
    assert found.value == pytest.approx(407.04 + 12.5)
    (bare,) = ask("cost_usd_per_hour", view(**SPLIT))  # type: ignore[misc]
    assert bare.value == pytest.approx(407.04) and "sandboxes not included" in bare.why


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"trainer_gpus": 64.0, "gpu_type": "H200"}, ["set [run.NAME.cost] generator_gpus"]),
        ({"trainer_gpus": 64.0, "generator_gpus": 8.0}, ["set [run.NAME.cost] gpu or usd_per_gpu_hour"]),
        ({"trainer_gpus": -1.0, "usd_per_gpu_hour": 2.0}, ["trainer_gpus", "generator_gpus"]),
        # Nobody publishes a price of it.
        ({"trainer_gpus": 4.0, "generator_gpus": 8.0, "gpu_type": "GB300"}, ["usd_per_gpu_hour"]),
    ],
)
@pytest.mark.parametrize("name", ["cost_usd_per_hour", "cost_usd_per_million_tokens"])
def test_unknown_says_what_to_set(name: str, facts: dict[str, Any], words: list[str]) -> None:
    found = ask(name, view(steps=steps(trained_tokens=1000.0), **facts))
    assert isinstance(found, Unknown) and all(word in found.why for word in words)


@pytest.mark.parametrize("lifecycle", ["finished", "crashed"])
def test_of_a_run_that_is_over_nothing_is_said(lifecycle: str) -> None:
    for name in ("cost_usd_per_hour", "idle_usd_per_hour", "underused_usd_per_hour", "cost_usd_per_million_tokens"):
        assert isinstance(ask(name, view(lifecycle=lifecycle, steps=steps(), **SPLIT)), NotApplicable), name


# ---- a million tokens


def per_million(seen: View, memory: Any = None) -> tuple[Any, dict[str, float | str]]:
    remember = SIGNALS["cost_usd_per_million_tokens"].remember
    assert remember is not None
    memory, answer = remember(memory, seen)
    assert isinstance(answer, Sequence), answer
    return memory, {dict(one.labels)["of"]: one.why if math.isnan(one.value) else one.value for one in answer}


def test_the_whole_bill_by_each_count_of_tokens() -> None:
    """256 GPUs at 2 USD are 512 USD/h. Ten steps of 2 M tokens in 1,000 s: 20,000 tokens/s, 72 M an hour.

    Sampled 40,000 a second (144 M/h), prefilled 8,000 (28.8 M/h).
    """
    counters = (
        gauge("generator_requests_running", 1.0, 1.0),
        gauge("generator_tokens_total", 0.0, 200_000.0),
        gauge("generator_prompt_tokens_total", 0.0, 40_000.0),
    )
    facts: dict[str, Any] = {"trainer_gpus": 64.0, "generator_gpus": 192.0, "usd_per_gpu_hour": 2.0, "has_sandbox": 0.0}
    _, found = per_million(view(*counters, steps=steps(11, trained_tokens=2e6), **facts))
    assert found == pytest.approx({"trained": 512 / 72, "sampled": 512 / 144, "prefill": 512 / 28.8})


def test_time_between_steps_is_paid_too() -> None:
    """Steps of 100 s every 150 s (an evaluation between them): 2 M tokens in 150 s."""
    rows = book([{"trainer_step_seconds": 100.0, "trained_tokens": 2e6} for _ in range(11)], seconds=150.0)
    _, found = per_million(view(steps=rows, gpus=1.0, usd_per_gpu_hour=3.6, mode="sync_colocated"))
    assert found["trained"] == pytest.approx(3.6 / 3600 * 150 / 2)


def lives(*rows: tuple[int, int, float]) -> StepBook:
    """(life, step, seconds before now) of steps with a million tokens each."""
    made = StepBook()
    for life, number, ago in rows:
        values = {("trained_tokens", ()): 1e6, ("trainer_step_seconds", ()): 100.0}
        made.put("trainer", life, number, NOW - ago, values)
    return made


def test_a_restart_costs_its_time_and_the_steps_it_undid() -> None:
    """Steps 1 to 5 every 100 s; a crash, a checkpoint of step 3, 900 s until step 4 is there again, then 5 and 6.

    Steps 1 | 2 3 | 4 5 6: 5 M tokens from NOW - 1500 to NOW. Whoever forgets the restart sees 3 M in 300 s.
    """
    facts: dict[str, Any] = {"gpus": 1.0, "usd_per_gpu_hour": 3600.0, "mode": "sync_colocated"}
    before = lives(*((0, n, 1_600.0 - 100 * n) for n in range(1, 6)))
    memory, found = per_million(view(steps=before, **facts))
    # Steps are a quarter of an hour old at most.
    assert found["trained"] == pytest.approx(100.0)
    again = lives((1, 4, 200.0), (1, 5, 100.0), (1, 6, 0.0))
    _, found = per_million(view(steps=again, **facts), memory)
    assert found["trained"] == pytest.approx(1_500 / 5)
    assert per_million(view(steps=again, **facts), memory)[0] == per_million(view(steps=again, **facts), _)[0]


def test_after_a_weekend_only_an_hour_of_the_break_is_on_the_bill() -> None:
    """Four rows before, 60 h of nothing, four after: 3 x 100 + 3600 + 3 x 100 s for 7 M tokens."""
    facts: dict[str, Any] = {"gpus": 1.0, "usd_per_gpu_hour": 3600.0, "mode": "sync_colocated"}
    memory, _ = per_million(view(steps=lives(*((0, n, 216_000.0 - 100 * n) for n in range(1, 5))), **facts))
    _, found = per_million(view(steps=lives(*((1, n, 800.0 - 100 * n) for n in range(5, 9))), **facts), memory)
    assert found["trained"] == pytest.approx(4_200 / 7)


def test_a_row_may_stand_for_several_steps() -> None:
    """TRL's logging_steps: each row, every 500 s, is the mean of 5 steps."""
    rows = StepBook()
    for n in range(1, 5):
        values = {("trained_tokens", ()): 1e6, ("trainer_step_seconds", ()): 100.0}
        rows.put("trainer", 0, 5 * n, NOW - 500 * (4 - n), values)
    facts: dict[str, Any] = {"gpus": 1.0, "usd_per_gpu_hour": 3600.0, "mode": "sync_colocated", "logging_steps": 5.0}
    assert per_million(view(steps=rows, **facts))[1]["trained"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (StepBook(), "reports no trained tokens"),
        (steps(3, trained_tokens=1e6), "2 of the 3 steps"),
        (steps(9, trained_tokens=0.0), "no token was trained"),
        (lives(*((0, n, 2_000.0 - n) for n in range(9))), "no step for more than 1800 s"),
    ],
)
def test_tokens_that_are_not_known_are_not_cheap(rows: StepBook, words: str) -> None:
    facts: dict[str, Any] = {**SPLIT, "target_usd_per_million_tokens": 5.0}
    assert words in str(per_million(view(steps=rows, **facts))[1]["trained"])
    ratio = ask("cost_target_ratio", view(steps=rows, **facts))
    assert isinstance(ratio, Unknown) and words in ratio.why


def test_against_a_target() -> None:
    """512 / 72 = 7.11 USD against 5."""
    facts: dict[str, Any] = {"gpus": 256.0, "generator_gpus": 192.0, "usd_per_gpu_hour": 2.0, "has_sandbox": 0.0}
    seen = view(steps=steps(11, trained_tokens=2e6), target_usd_per_million_tokens=5.0, **facts)
    assert ask("cost_target_ratio", seen) == [Value(pytest.approx(512 / 72 / 5))]
    found = ask("cost_target_ratio", view(steps=steps(11, trained_tokens=2e6), **facts))
    assert isinstance(found, Unknown) and "target_usd_per_million_tokens" in found.why


# ---- idle, split


def test_the_trainers_idle_shares_of_its_last_steps() -> None:
    """Of 100 s: 30 wait, 4 weight sync, 1 checkpoint (of one step in ten), 2 eval; engines busy throughout."""
    rows = [
        {
            "trainer_step_seconds": 100.0, "trainer_wait_seconds": 30.0, "trainer_weight_sync_seconds": 4.0,
            "trainer_eval_seconds": 2.0, **({"trainer_checkpoint_seconds": 10.0} if n == 4 else {}),
        }
        for n in range(10)
    ]  # fmt: skip
    found = idle(view(*pages(*[8.0] * 60), steps=book(rows, seconds=100.0), **SPLIT))
    assert found == pytest.approx(
        {
            "trainer_wait": 0.30 * 101.76, "weight_sync": 0.04 * 101.76, "checkpoint": 0.01 * 101.76,
            "eval": 0.02 * 101.76,
        }
    )  # fmt: skip


def test_engines_are_idle_by_the_time_in_which_no_request_ran() -> None:
    """Two engines over the last 300 s: one ran nothing for 75 s of them, the other always ran: 12.5 % of 305.28."""
    half = [5.0] * 30 + [0.0] * 15 + [5.0] * 16
    seen = view(*pages(*half), *pages(*[5.0] * 61, target="e1"), steps=steps(trainer_wait_seconds=0.0), **SPLIT)
    assert idle(seen)["generator_idle"] == pytest.approx(75 / 300 / 2 * 305.28)


def test_a_pause_is_no_want_of_requests() -> None:
    """30 of 300 s paused, whatever ran meanwhile, and 30 further s without a request."""
    running = [5.0] * 30 + [0.0] * 12 + [5.0] * 19
    paused = [0.0] * 30 + [1.0] * 6 + [0.0] * 25
    seen = view(*pages(*running), gauge("generator_paused", *paused), steps=steps(trainer_wait_seconds=0.0), **SPLIT)
    found = idle(seen)
    assert found["generator_paused"] == pytest.approx(0.1 * 305.28)
    assert found["generator_idle"] == pytest.approx(0.1 * 305.28)


def test_an_engine_that_died_is_paid_for() -> None:
    seen = view(
        *pages(*[5.0] * 61), gauge("generator_requests_running", 5.0, target="e1", age=100.0),
        steps=steps(trainer_wait_seconds=0.0), targets=(health("e1", "generator", 100.0, up=False),), **SPLIT,
    )  # fmt: skip
    assert idle(seen)["generator_down"] == pytest.approx(305.28 / 2)


def test_when_no_engine_answers_nobody_is_called_idle() -> None:
    seen = view(
        gauge("generator_requests_running", 5.0, age=100.0), steps=steps(trainer_wait_seconds=10.0),
        targets=(health("e0", "generator", 100.0, up=False),), **SPLIT,
    )  # fmt: skip
    silent = dict.fromkeys(("generator_idle", "generator_paused", "generator_down"), "no engine answers")
    assert idle(seen) == {"trainer_wait": pytest.approx(10.176), **silent}


def test_an_engine_that_hangs_is_stalled() -> None:
    tokens = gauge("generator_tokens_total", *[100.0] * 61)
    found = idle(view(*pages(*[5.0] * 61), tokens, **SPLIT))
    assert found["stalled"] == pytest.approx(305.28)


def test_a_trainer_that_stands_still_idles_whole() -> None:
    """No step for 36 minutes where they take 100 s; what its last ones waited for is no news any more."""
    old = StepBook()
    for n in range(10):
        values = {("trainer_step_seconds", ()): 100.0, ("trainer_wait_seconds", ()): 30.0}
        old.put("trainer", 0, n, NOW - 3060.0 + 100 * n, values)
    assert idle(view(*pages(*[8.0] * 60), steps=old, **SPLIT)) == {"stalled": pytest.approx(101.76)}


@pytest.mark.parametrize("lifecycle", ["starting", "paused"])
def test_while_it_starts_or_is_paused_all_of_it_idles(lifecycle: str) -> None:
    assert idle(view(lifecycle=lifecycle, **SPLIT)) == {lifecycle: pytest.approx(407.04)}
    assert idle(view(lifecycle=lifecycle, mode="sync_colocated", gpus=8.0, usd_per_gpu_hour=2.0)) == {lifecycle: 16.0}


def test_a_run_of_which_nothing_ever_answered_bills_nobody() -> None:
    """An address that is wrong looks the same as engines that load. One that answered once, or a push, is a run."""
    never, once = health("engine", "generator", None, up=False), health("trainer", "trainer", 3600.0, up=False)
    words = "no target of this run has answered yet: whether its GPUs are held is not reported"
    assert idle(view(lifecycle="starting", targets=(never,), **SPLIT)) == {"starting": words}
    assert idle(view(lifecycle="starting", targets=(never, once), **SPLIT)) == {"starting": pytest.approx(407.04)}
    assert idle(view(lifecycle="starting", targets=(structs.replace(never, error_kind=GONE),), **SPLIT)) == {
        "starting": pytest.approx(407.04)
    }
    assert idle(view(lifecycle="paused", targets=(never,), **SPLIT)) == {"paused": pytest.approx(407.04)}


def test_what_one_pool_lacks_hides_nothing_of_the_other() -> None:
    rows = steps(trainer_wait_seconds=30.0)
    found = idle(view(*pages(*[0.0] * 60), steps=rows, trainer_gpus=64.0, gpu_type="H200"))
    assert found["trainer_wait"] == pytest.approx(0.3 * 101.76)
    assert "set [run.NAME.cost] generator_gpus" in str(found["generator_idle"])
    unknown = ask("idle_usd_per_hour", view(steps=rows))
    assert isinstance(unknown, Unknown) and "trainer_gpus" in unknown.why and "usd_per_gpu_hour" in unknown.why


def test_phases_that_a_log_counts_twice_are_no_more_than_the_step() -> None:
    """80 + 60 of 100 s: 80 and 60 of 140 parts of the pool, not 140 % of it."""
    rows = steps(trainer_wait_seconds=80.0, trainer_weight_sync_seconds=60.0)
    found = idle(view(*pages(*[8.0] * 60), steps=rows, **SPLIT))
    assert found == pytest.approx({"trainer_wait": 80 / 140 * 101.76, "weight_sync": 60 / 140 * 101.76})


def test_a_wait_that_nobody_logs_is_not_zero() -> None:
    found = idle(view(*pages(*[8.0] * 60), steps=steps(trainer_weight_sync_seconds=5.0), **SPLIT))
    assert found["trainer_wait"] == "this trainer reports no wait time"
    assert found["weight_sync"] == pytest.approx(5.088)


# ---- idle, in turns or on the same GPUs


def test_a_synchronous_split_run_idles_on_one_side_at_a_time() -> None:
    """60 of 100 s generate, 5 publish: the trainer idles 60 + 5, the generator the 40 in which nobody generates."""
    rows = steps(generation_seconds=60.0, trainer_weight_sync_seconds=5.0)
    found = idle(view(steps=rows, mode="sync_split", **SPLIT))
    wanted = {"trainer_wait": 0.6 * 101.76, "weight_sync": 0.05 * 101.76, "generator_idle": 0.4 * 305.28}
    assert found == pytest.approx(wanted)


def test_a_shared_pool_idles_only_when_neither_works() -> None:
    """Generating and evaluating are work there: of 100 s on 8 GPUs at 2 USD, 5 publish and 1 writes."""
    rows = steps(
        generation_seconds=60.0, trainer_weight_sync_seconds=5.0, trainer_checkpoint_seconds=1.0,
        trainer_eval_seconds=9.0,
    )  # fmt: skip
    found = idle(view(*pages(*[0.0] * 60), steps=rows, mode="sync_colocated", gpus=8.0, usd_per_gpu_hour=2.0))
    assert found == pytest.approx({"weight_sync": 0.8, "checkpoint": 0.16})


def test_where_both_share_gpus_at_once_a_wait_is_idle_as_far_as_the_engines_are() -> None:
    """Waits 40 % of its step; the engine ran nothing for half of the time: 20 % of 16 USD/h, not 40 and not 90."""
    seen = view(
        *pages(*[5.0] * 30, *[0.0] * 31), steps=steps(trainer_wait_seconds=40.0), mode="async_colocated", gpus=8.0,
        usd_per_gpu_hour=2.0,
    )  # fmt: skip
    assert idle(seen) == {"trainer_wait": pytest.approx(0.4 * 0.5 * 16)}


def test_low_occupancy_is_beside_idle() -> None:
    """4 of the 16 requests that fit, all the time: three quarters of the engine are free, and nothing is idle."""
    series = [
        gauge("generator_requests_running", *[4.0] * 61), gauge("generator_request_limit", *[16.0] * 61),
        gauge("kv_cache_usage_ratio", *[0.2] * 61), gauge("kv_cache_capacity_tokens", *[20_000.0] * 61),
    ]  # fmt: skip
    seen = view(*series, steps=steps(trainer_wait_seconds=0.0), **SPLIT)
    assert ask("underused_usd_per_hour", seen) == [Value(pytest.approx(0.75 * 305.28))]
    assert idle(seen) == {}
    shared = ask("underused_usd_per_hour", view(*series, mode="async_colocated", **SPLIT))
    assert isinstance(shared, NotApplicable)


# ---- causes add up, and never to more than the GPUs

SECONDS = st.floats(0, 500)
MODES = st.sampled_from(["sync_colocated", "sync_split", "one_step", "async", "async_colocated", ""])


@given(
    mode=MODES, lifecycle=st.sampled_from(["running", "running", "running", "starting", "paused"]),
    phases=st.fixed_dictionaries(
        {},
        optional={
            name: SECONDS
            for name in (
                "trainer_wait_seconds", "generation_seconds", "trainer_weight_sync_seconds",
                "trainer_checkpoint_seconds", "trainer_eval_seconds",
            )
        },
    ),
    running=st.lists(st.sampled_from([0.0, 1.0, 7.0]), min_size=1, max_size=70),
    paused=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=70), dead=st.booleans(), late=st.booleans(),
)  # fmt: skip
def test_idle_is_never_more_than_all_gpus(
    mode: str, lifecycle: str, phases: dict[str, float], running: list[float], paused: list[float], dead: bool,
    late: bool,
) -> None:  # fmt: skip
    """8 GPUs at 2 and 24 at 1 USD (32 at 2 where they are shared): at most 40 (or 48, 24 GPUs being the larger count).

    Phases that overlap, engines that are paused, dead or silent, steps that ended hours ago: none may bill a GPU twice.
    """
    series = [*pages(*running), gauge("generator_paused", *paused), *pages(*running[::-1], target="e1")]
    targets = (health("e1", "generator", 100.0, up=False),) if dead else ()
    rows = StepBook()
    for n in range(10):
        values = {(name, ()): seconds for name, seconds in phases.items()} | {("trainer_step_seconds", ()): 100.0}
        rows.put("trainer", 0, n, NOW - 100.0 * (10 - n) - 9_000 * late, values)
    facts: dict[str, Any] = {
        "trainer_gpus": 8.0, "generator_gpus": 24.0, "trainer_usd_per_gpu_hour": 2.0, "usd_per_gpu_hour": 1.0,
    }  # fmt: skip
    seen = view(*series, steps=rows, targets=targets, mode=mode, lifecycle=lifecycle, **facts)
    known = [usd for usd in idle(seen).values() if isinstance(usd, float)]
    (bill,) = ask("cost_usd_per_hour", seen)  # type: ignore[misc]
    assert all(usd >= 0 for usd in known)
    assert sum(known) <= bill.value * (1 + 1e-9)
    assert bill.value == (48.0 if "colocated" in mode else 40.0)
