"""The verdict over time: what flickers does not show, what changed does, and a restart remembers."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import structs

from server.derive.results import NO_LONGER
from server.signals.model import TargetState
from server.verdict.explain import NO_LONGER as LEFT
from server.verdict.model import VERDICT_OUTCOMES, Verdict
from server.verdict.rules import judge, remember
from server.verdict.thresholds import (
    CHANGED_SECONDS,
    CONFIDENT,
    HOLD_SECONDS,
    MISSING_SECONDS,
    UNSETTLED,
    UNSURE_SECONDS,
)
from tests.verdict.support import HEALTHY, NOW, STARVED, Answer, seen, steps
from tests.verdict.test_proof import TABLE
from tests.verdict.windows import FULL, NO_ENGINES, NO_PLACE

Told = Mapping[str, float | None]
BOUND = [HEALTHY, STARVED, FULL]
# The trainer waits a fifth of its step: beyond the line, and not so far that a balance is contradicted.
SOME: Told = {"trainer_wait_ratio": 0.2, "trainer_samples_per_second": 7.2, "queue_arrivals_samples_per_second": 7.2}
NEAR = [HEALTHY, STARVED, SOME, FULL]


def run(*phases: tuple[float, list[Told]], restart: bool = False, **given: Any) -> list[tuple[float, Verdict]]:
    """A verdict every 5 s; ``phases``: (seconds, what is told)."""
    memory, now, found = None, 0.0, []
    for seconds, told in phases:
        end = now + seconds
        while now < end:
            memory, verdict = remember(memory, seen(*told, now=NOW + now, **given))
            memory = json.loads(json.dumps(memory)) if restart else memory
            found.append((now, verdict))
            now += 5.0
    return found


def outcomes(found: list[tuple[float, Verdict]]) -> list[str]:
    names = [verdict.outcome for _, verdict in found]
    return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]


def changed(found: list[tuple[float, Verdict]], outcome: str) -> float:
    return next(at for at, verdict in found if verdict.outcome == outcome)


def test_a_change_shows_when_it_has_held() -> None:
    found = run((100.0, [HEALTHY]), (100.0, NEAR))
    assert outcomes(found) == ["balanced", "generator_bound"]
    assert changed(found, "generator_bound") == 100.0 + HOLD_SECONDS
    # It is dated by when it was first seen.
    assert found[-1][1].since == NOW + 100.0 and found[0][1].since == NOW


def test_what_whole_steps_show_need_not_hold_as_long() -> None:
    """Five steps that waited 40 % after five that did not."""
    memory, _ = remember(None, seen(HEALTHY))
    last = steps(*[0.0] * 5, *[0.23] * 5)
    said = []
    for at in (5.0, 10.0, 15.0, 20.0):
        memory, verdict = remember(json.loads(json.dumps(memory)), seen(*BOUND, now=NOW + at, last=last))
        said.append(verdict.outcome)
    assert CHANGED_SECONDS == 15.0 and said == ["balanced"] * 3 + ["generator_bound"]
    assert memory["first"] == [1, 7]


def test_a_verdict_that_the_numbers_contradict_ends_at_once() -> None:
    """Balanced next to a trainer that waits 40 % of its step; generation next to a scorer busy all the time."""
    assert changed(run((100.0, [HEALTHY]), (30.0, BOUND)), "generator_bound") == 100.0
    scorer: Told = {
        "scoring_busy_ratio": 0.96, 'in_flight_rollouts{state="generating"}': 4.0,
        'in_flight_rollouts{state="in_tool"}': 0.0, 'in_flight_rollouts{state="scoring"}': 60.0,
        'generator_requests{state="running"}': 4.0, "kv_cache_usage_ratio": 0.04,
    }  # fmt: skip
    found = run((100.0, BOUND), (200.0, [HEALTHY, STARVED, FULL, scorer]))
    # Two minutes of instants are averaged: the engines' share of a rollout's time falls below 30 % after 85 s.
    assert changed(found, "reward_bound") <= 100.0 + 90.0
    for _, verdict in found:
        assert verdict.outcome != "generator_bound" or verdict.numbers["time_generating_ratio"] >= 0.3


def test_others_that_flicker_do_not_keep_the_one_that_stands() -> None:
    """Neither balanced nor trainer-bound holds for 30 s by itself; that generation is not it holds for a minute."""
    ahead: Told = {"trainer_wait_ratio": 0.06, "queue_arrivals_samples_per_second": 12.0}
    calm: Told = {"trainer_wait_ratio": 0.06}
    turns = [(10.0, [HEALTHY, ahead if n % 2 else calm]) for n in range(12)]
    found = run((60.0, NEAR), *turns)
    assert outcomes(found)[0] == "generator_bound"
    assert max(at for at, verdict in found if verdict.outcome == "generator_bound") < 60.0 + UNSURE_SECONDS


def test_the_standing_verdict_is_written_from_todays_numbers() -> None:
    found = run((100.0, [HEALTHY]), (10.0, NEAR))[-1][1]
    assert found.outcome == "balanced" and 0.3 < found.confidence <= UNSETTLED
    assert found.numbers["reported_wait_ratio"] == 0.2
    assert found.summary == "Generator and trainer are matched: the trainer waits 20% of each step"
    assert found.evidence[0].text == "The trainer waits 20% of each step"


def test_a_flicker_does_not_show() -> None:
    found = run((60.0, [HEALTHY]), (20.0, NEAR), (60.0, [HEALTHY]), (20.0, NEAR), (60.0, [HEALTHY]))
    assert outcomes(found) == ["balanced"]
    assert found[-1][1].since == NOW


def test_one_that_is_not_sure_waits_longer() -> None:
    found = run((50.0, [HEALTHY, NO_PLACE]), (400.0, [HEALTHY, STARVED, SOME, NO_PLACE]))
    assert changed(found, "orchestrator_bound") == 50.0 + UNSURE_SECONDS


def test_data_that_is_missing_for_a_while_blanks_nothing() -> None:
    gone: list[Told] = [HEALTHY, STARVED, NO_ENGINES, NO_PLACE]
    found = run((50.0, BOUND), (MISSING_SECONDS - 5, gone), (50.0, BOUND))
    assert outcomes(found) == ["generator_bound"]
    found = run((50.0, BOUND), (MISSING_SECONDS + 10, gone))
    assert changed(found, "unknown") == 50.0 + MISSING_SECONDS


def test_liveness_shows_at_once() -> None:
    found = run((50.0, [HEALTHY]), (50.0, [HEALTHY, {"trainer_stall_ratio": 1.1}]))
    assert changed(found, "stalled") == 50.0


def test_what_stalls_is_told_by_its_own_numbers() -> None:
    engines: Told = {'generator_engines{state="up"}': 1.0, 'generator_engines{state="hung"}': 3.0}
    hung: Told = {"trainer_stall_ratio": 1.1, **engines}
    found = run((50.0, [HEALTHY, hung]))[-1][1]
    assert found.outcome == "stalled"
    assert [one.text for one in found.evidence[:2]] == [
        "The open step has lasted 110% of the limit for a step (6 x its median, at least 30 min)",
        "3 of 4 engines run requests and generate no token",
    ]
    assert found.summary == "3 of 4 engines run requests and generate no token"
    slow = run((50.0, [HEALTHY, {"trainer_stall_ratio": 1.1}]))[-1][1]
    assert slow.summary == (
        "The run makes no progress: the trainer's step has been open for 33 min, 66 times its usual length"
    )
    assert not any("open step" in one.text for one in run((50.0, [HEALTHY]))[-1][1].evidence)


def test_engines_that_hang_for_longer_than_weights_take_are_frozen() -> None:
    """A minute without a token is what weights of 90 s cost in every step: 90 s more are nothing they do."""
    hung: Told = {'generator_engines{state="up"}': 0.0, 'generator_engines{state="hung"}': 4.0}
    slow: Told = {'trainer_overhead_seconds{phase="weight_sync"}': 90.0, "trainer_step_seconds": 400.0}
    found = run((50.0, [HEALTHY, slow]), (80.0, [HEALTHY, slow, hung]), (50.0, [HEALTHY, slow]), restart=True)
    assert "stalled" not in outcomes(found)
    found = run((50.0, [HEALTHY, slow]), (120.0, [HEALTHY, slow, hung]), (20.0, [HEALTHY, slow]), restart=True)
    assert changed(found, "stalled") == 50.0 + 90.0
    # Weights that take no minute hang nobody for one.
    assert changed(run((50.0, [HEALTHY]), (20.0, [HEALTHY, hung])), "stalled") == 50.0


def test_a_trainer_that_hangs_is_told_by_its_open_step() -> None:
    """Half of a minute after it is late enough, and sure: what stands still beside it is no other time's doing."""
    rows = steps(*[0.4] * 10)
    before: Told = {"queue_samples_now": 600.0, "policy_version": 10.0, **FULL}
    found = run((60.0, [HEALTHY, STARVED, before]), last=rows, batch_samples=256.0)
    memory, said = None, []
    for tick in range(0, 600, 5):
        told = {**HEALTHY, **STARVED, "queue_samples_now": 600.0, "policy_version": 10.0, "in_flight_ratio": 0.1}
        told |= {"trainer_stall_ratio": tick / 1800, 'generator_requests{state="running"}': 3.0}
        memory, verdict = remember(memory, seen(told, now=NOW + tick, last=rows, batch_samples=256.0))
        said.append(verdict)
    assert found[-1][1].outcome != "trainer_bound"
    first = next(n for n, verdict in enumerate(said) if verdict.cause == "open_step")
    assert 5 * first == 3 * 30
    last = said[-1]
    assert (last.outcome, last.rule, last.buffer) == ("trainer_bound", "V06", "stall")
    assert last.confidence >= CONFIDENT
    assert last.summary == (
        "The trainer's step after 10 has been open for 10 min, 20 times its usual length; 2.3 batches wait in the queue"
    )


def test_beside_a_queue_that_stands_still_nothing_is_sure() -> None:
    """The shares are of steps that ended; two batches wait since, and nobody takes one."""
    idle: Told = {"queue_samples_now": 600.0, "policy_version": 7.0}
    moves = run((400.0, BOUND), batch_samples=256.0)[-1][1]
    still = run((400.0, [*BOUND, idle]), batch_samples=256.0)[-1][1]
    assert (moves.buffer, still.buffer) == ("", "stall") and moves.outcome == still.outcome
    assert moves.confidence >= CONFIDENT > UNSETTLED == still.confidence
    assert still.evidence[0].text == "Batches wait and the trainer takes none"


def test_idle_dollars_that_nobody_tells_are_not_none() -> None:
    life: Told = {f'idle_usd_per_hour{{cause="{one}"}}': 0.0 for one in ("stalled", "starting", "paused")}
    waits: Told = {'idle_usd_per_hour{cause="trainer_wait"}': 0.0}
    hung: Told = {'idle_usd_per_hour{cause="stalled"}': 12.5}
    assert run((5.0, [HEALTHY, life]))[-1][1].usd_per_hour is None
    assert run((5.0, [HEALTHY, life, waits]))[-1][1].usd_per_hour == 0.0
    assert run((5.0, [HEALTHY, life, hung]))[-1][1].usd_per_hour == 12.5


def test_idle_dollars_of_one_pool_alone_say_so() -> None:
    now = seen(HEALTHY, {'idle_usd_per_hour{cause="trainer_wait"}': 3.5})
    idle, lacks = now.signals["idle_usd_per_hour"], "the number of GPUs is unknown: set [run.NAME.cost] generator_gpus"
    gone = {("cause", "generator_idle"): lacks, ("cause", "generator_down"): lacks, ("cause", "eval"): NO_LONGER}
    more = {(label,): Answer(NOW, None, why) for label, why in gone.items()}
    part = replace(now, signals={**now.signals, "idle_usd_per_hour": {**idle, **more}})
    assert (judge(part).usd_per_hour, judge(part).usd_lacks) == (3.5, lacks)
    assert (judge(now).usd_per_hour, judge(now).usd_lacks) == (3.5, "")
    nobody = replace(now, signals={**now.signals, "idle_usd_per_hour": more})
    assert (judge(nobody).usd_per_hour, judge(nobody).usd_lacks) == (None, "")
    assert LEFT == NO_LONGER


def test_what_a_clock_that_is_ahead_hides_is_not_to_be_logged() -> None:
    clock = "its clock is 40 s ahead of this machine's"
    ahead = TargetState("rank0", "verl", "trainer", True, NOW, NOW, clock)
    engine = structs.replace(ahead, name="e0", actor="generator")
    blind: Told = {"trainer_wait_ratio": None, "capacity_samples_per_second": None}
    text = f"trainer_wait_ratio: target rank0 answers, but its response is incomplete: {clock}"
    assert judge(seen(HEALTHY, blind, targets=[ahead])).missing[0] == text
    for other in (
        [engine],
        [structs.replace(ahead, error_kind="corrected_clock")],
        [structs.replace(ahead, error_kind="gone")],
    ):
        assert judge(seen(HEALTHY, blind, targets=other)).missing == (
            "trainer_wait_ratio: log the trainer's wait next to its step time",
        )


def test_what_is_too_old_is_missing_for_its_age() -> None:
    old = replace(seen(HEALTHY), stale=lambda name, ts: "no step for more than 1800 s" if name[:4] == "zero" else "")
    assert remember(None, old)[1].missing == ("zero_advantage_ratio: no step for more than 1800 s",)


def test_a_restart_at_any_instant_changes_nothing() -> None:
    """Its memory is JSON: as after every tick's commit."""
    phases = ((60.0, [HEALTHY]), (100.0, BOUND), (200.0, [HEALTHY, STARVED, NO_ENGINES, NO_PLACE]), (60.0, [HEALTHY]))
    assert run(*phases) == run(*phases, restart=True)


def test_asked_twice_at_one_instant_it_says_the_same() -> None:
    memory, first = remember(None, seen(HEALTHY))
    for _ in range(20):
        memory, again = remember(memory, seen(HEALTHY))
        assert again == first


def test_noise_around_a_threshold_changes_the_verdict_less_than_once_an_hour() -> None:
    """Wait of 15 % +- 2 %: on the very line between matched and starved, for six hours."""
    noise = random.Random(1)
    memory, names, wait = None, [], 0.15
    for tick in range(6 * 720):
        if tick % 6 == 0:  # a new step: ten of them are in the window
            wait += 0.2 * (0.15 - wait) + noise.gauss(0.0, 0.005)
        told = {**HEALTHY, **FULL, "trainer_wait_ratio": wait, "queue_arrivals_samples_per_second": 9.04 * (1 - wait)}
        memory, verdict = remember(memory, seen(told, now=NOW + 5.0 * tick))
        names.append(verdict.outcome)
    assert sum(a != b for a, b in pairwise(names)) <= 6


def test_who_is_where_speaks_of_the_last_minutes() -> None:
    """The engines' means of five minutes still say that 56 of 57 generate; for three minutes 50 have been in a tool."""
    tools: Told = {
        'in_flight_rollouts{state="generating"}': 10.0, 'in_flight_rollouts{state="in_tool"}': 50.0,
        'in_flight_rollouts{state="booting"}': 0.0, 'in_flight_rollouts{state="scoring"}': 0.0,
        'generator_requests_now{state="running"}': 10.0, 'generator_requests_now{state="waiting"}': 0.0,
    }  # fmt: skip
    before: Told = {'generator_requests_now{state="running"}': 56.0, 'generator_requests_now{state="waiting"}': 0.0}
    found = run((300.0, [HEALTHY, before]), (180.0, [HEALTHY, STARVED, tools]))
    last = found[-1][1]
    assert (last.outcome, last.cause) == ("sandbox_bound", "tool_time")
    assert last.numbers["time_in_tool_ratio"] == 50 / 60


def test_a_verdict_survives_json() -> None:
    for row in TABLE:
        _, verdict = remember(None, seen(*row.told, **row.given))
        assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
        assert verdict.outcome in VERDICT_OUTCOMES and verdict.summary
