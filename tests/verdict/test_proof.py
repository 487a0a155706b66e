"""The proof table: a window, what must be said of it, and why. Look-alikes stand beside each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from server.signals._model import TargetHealth
from server.verdict.model import CAUSES
from server.verdict.rules import CONFIDENT, judge
from tests.verdict.support import HEALTHY, NOW, STARVED, SYNC, seen, steps

Told = Mapping[str, float | None]

FULL: Told = {
    'generator_requests{state="running"}': 100.0, 'generator_requests{state="waiting"}': 0.0,
    'in_flight_rollouts{state="generating"}': 102.0, "kv_concurrency_limit": 104.0, "kv_cache_usage_ratio": 0.6,
}  # fmt: skip
QUIET: Told = {
    'generator_requests{state="running"}': 12.0, "kv_cache_usage_ratio": 0.1, "in_flight_ratio": 1.0,
}  # fmt: skip
BOOTING: Told = QUIET | {
    'in_flight_rollouts{state="generating"}': 12.0, 'in_flight_rollouts{state="booting"}': 40.0,
    'in_flight_rollouts{state="in_tool"}': 5.0, 'in_flight_rollouts{state="scoring"}': 0.0,
}  # fmt: skip
NO_ENGINES: Told = {"generator*": None, "kv_*": None}
NO_PLACE: Told = {"in_flight*": None}
NO_ZERO: Told = {"zero_advantage*": None}
NO_QUEUE: Told = {"queue*": None}


DROPS = [replace(row, values=row.values | {("stale_dropped_rollouts", ()): 9.0}) for row in steps(*[0.2] * 10)]


@dataclass(frozen=True)
class Row:
    """``sure``: at least confident (True), not confident (False), or either (None)."""

    what: str
    told: tuple[Told, ...]
    outcome: str
    cause: str
    why: str
    sure: bool | None = None
    given: dict[str, Any] = field(default_factory=dict)


def of(what: str, *told: Told, said: str, why: str, sure: bool | None = None, **given: Any) -> Row:
    outcome, _, cause = said.partition("/")
    return Row(what, told, outcome, cause, why, sure, given)


def beat(up: bool) -> TargetHealth:
    return TargetHealth("beat", "heartbeat", "trainer", up, NOW - 5, NOW - 5, 60.0)


TABLE = [
    # ---- liveness
    of("loading", HEALTHY, lifecycle="starting", said="unknown/starting", why="40 minutes of loading are normal"),
    of("finished", HEALTHY, STARVED, lifecycle="finished", said="unknown/over", why="nobody is held back any more"),
    of("crashed", HEALTHY, lifecycle="crashed", said="unknown/over", why="its end is no limiter"),
    of("paused", HEALTHY, STARVED, lifecycle="paused", said="unknown/paused", why="it rests by somebody's will"),
    of("open step over its limit", HEALTHY, {"trainer_stall_ratio": 1.2}, said="stalled/no_progress", sure=True,
       why="the open step is longer than max(6 x median, 30 min)"),
    of("open step long, not over", HEALTHY, {"trainer_stall_ratio": 0.9}, said="balanced/",
       why="a long step is a long step"),
    of("stalled while everything looks starved", HEALTHY, STARVED, {"trainer_stall_ratio": 1.0},
       said="stalled/no_progress", sure=True, why="liveness comes before tuning"),
    of("all engines dead in an open step", HEALTHY, {"trainer_stall_ratio": 1.5, 'generator_engines{state="up"}': 0.0,
       'generator_engines{state="down"}': 4.0}, said="stalled/dead_engine", sure=True, why="the step cannot end"),
    of("all engines dead, step not yet over its limit", HEALTHY, {"trainer_stall_ratio": 0.6,
       'generator_engines{state="up"}': 0.0, 'generator_engines{state="down"}': 4.0}, said="stalled/dead_engine",
       sure=True, why="more than three median steps without one, and nobody to make samples"),
    of("metrics of all engines gone, steps come", HEALTHY, {'generator_engines{state="up"}': 0.0,
       'generator_engines{state="down"}': 4.0, "generator_requests*": None, "kv_*": None},
       said="balanced/", why="a trainer that does not wait proves that they generate"),
    of("all engines frozen", HEALTHY, {'generator_engines{state="up"}': 1.0, 'generator_engines{state="hung"}': 3.0},
       said="stalled/frozen_engine", sure=True, why="requests run and no token comes"),
    of("one engine of four frozen", HEALTHY, {'generator_engines{state="up"}': 3.0,
       'generator_engines{state="hung"}': 1.0}, said="balanced/", why="three quarters go on and nobody waits"),
    of("heartbeat missed", HEALTHY, targets=[beat(False)], said="stalled/dead_trainer", sure=True,
       why="the trainer should have called"),
    of("heartbeat comes", HEALTHY, targets=[beat(True)], said="balanced/", why="it did call"),
    # ---- infrastructure before curriculum
    of("all rewards zero, tools fail", HEALTHY, {'reward{stat="mean"}': 0.0, "failure_ratio": 0.6,
       'zero_advantage_ratio{basis="completed"}': 1.0}, said="sandbox_bound/init_failures", sure=True,
       why="a dead sandbox makes every reward zero: no hard task"),
    of("all rewards zero, nothing fails", HEALTHY, {'reward{stat="mean"}': 0.0, "failure_ratio": 0.0,
       'zero_advantage_ratio{basis="completed"}': 1.0,
       'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.0,
       'zero_advantage_group_ratio{basis="completed",cause="none_solved"}': 1.0},
       said="curriculum_bound/too_hard", why="honest zeros: the tasks are too hard"),
    of("half of the sandboxes fail", HEALTHY, STARVED, BOOTING, {"sandbox_failure_ratio": 0.6,
       'in_flight_rollouts{state="booting"}': 10.0, 'in_flight_rollouts{state="generating"}': 30.0},
       said="sandbox_bound/init_failures", why="lost before they begin: 2.5 times as many could arrive"),
    of("sandboxes fail, nobody waits", HEALTHY, {"sandbox_failure_ratio": 0.3}, said="balanced/",
       why="they cost money, not time"),
    # ---- the trainer waits and the queue is empty: six things look like that
    of("engines are full", HEALTHY, STARVED, FULL, said="generator_bound/too_few_engines", sure=True,
       why="100 of 104 places are taken and the trainer waits"),
    of("the cache is full", HEALTHY, STARVED, FULL, {"kv_cache_usage_ratio": 0.97,
       'generator_requests{state="waiting"}': 60.0}, said="generator_bound/kv_capacity", sure=True,
       why="160 ask for the room of 100"),
    of("preemption", HEALTHY, STARVED, FULL, {"generator_preemption_ratio": 0.8, "kv_cache_usage_ratio": 0.8},
       said="generator_bound/preemption", why="four of five requests are computed again"),
    of("boots", HEALTHY, STARVED, BOOTING, said="sandbox_bound/spin_up", sure=True,
       why="at the cap, engines quiet, 70 % wait for a sandbox"),
    of("boots at the provider's limit on starting", HEALTHY, STARVED, BOOTING,
       {'sandbox_quota_used_ratio{resource="starting"}': 1.0}, said="sandbox_bound/starting_limit", sure=True,
       why="no more may start at once"),
    of("boots at the quota", HEALTHY, STARVED, BOOTING, {'sandbox_quota_used_ratio{resource="cpu"}': 1.0},
       said="sandbox_bound/quota", sure=True, why="no more may run"),
    of("tools", HEALTHY, STARVED, BOOTING, {'in_flight_rollouts{state="booting"}': 2.0,
       'in_flight_rollouts{state="in_tool"}': 43.0}, said="sandbox_bound/tool_time", sure=True,
       why="75 % of the rollouts are in a tool call"),
    of("scoring", HEALTHY, STARVED, BOOTING, {'in_flight_rollouts{state="booting"}': 0.0,
       'in_flight_rollouts{state="in_tool"}': 0.0, 'in_flight_rollouts{state="scoring"}': 45.0},
       said="reward_bound/scoring", sure=True, why="completed and unscored: 79 % wait for a reward"),
    of("a scorer that takes one group at a time", HEALTHY, STARVED, QUIET, {"scoring_busy_ratio": 0.99,
       'in_flight_rollouts{state="generating"}': 57.0}, said="reward_bound/scoring", sure=True,
       why="it is never idle"),
    of("a scorer with time to spare", HEALTHY, STARVED, FULL, {"scoring_busy_ratio": 0.1},
       said="generator_bound/too_few_engines", sure=True, why="it waits for groups"),
    of("evaluation on the same engines", HEALTHY, STARVED, FULL, {'in_flight_rollouts{state="eval"}': 90.0,
       'in_flight_rollouts{state="generating"}': 12.0}, said="overhead_bound/eval", sure=True,
       why="engines are full, of evaluations"),
    of("fewer dispatched than may be", HEALTHY, STARVED, {"in_flight_ratio": 0.3,
       'in_flight_rollouts{state="generating"}': 18.0, 'generator_requests{state="running"}': 18.0,
       "kv_cache_usage_ratio": 0.15}, said="orchestrator_bound/prompts", sure=True,
       why="30 % of the cap, all of them in engines with room"),
    of("held by the staleness gate", HEALTHY, STARVED, QUIET, {'generation_held_ratio{by="gate"}': 0.35,
       "in_flight_ratio": 0.2}, said="orchestrator_bound/staleness_gate", sure=True,
       why="the trainer waits and the generator is held: neither is slow"),
    of("a gate that costs nothing", HEALTHY, STARVED, {'generation_held_ratio{by="gate"}': 0.3, "in_flight_ratio": 0.9},
       said="generator_bound/too_few_engines", sure=True,
       why="90 % of what may be is under way all the same, and all of it in the engines"),
    of("a gate, and nobody tells what is under way", HEALTHY, STARVED, NO_PLACE,
       {'generation_held_ratio{by="gate"}': 0.3}, said="orchestrator_bound/staleness_gate", sure=False,
       why="held from what?"),
    of("pauses after each publication", HEALTHY, STARVED, {'generator_weight_stall_seconds{stat="mean"}': 110.0},
       said="overhead_bound/weight_sync", sure=True, why="engines stood still for a third of the time"),
    of("engines that hang while they take in weights", HEALTHY, {'generator_engines{state="up"}': 0.0,
       'generator_engines{state="hung"}': 4.0, 'trainer_overhead_seconds{phase="weight_sync"}': 70.0,
       "trainer_step_seconds": 400.0, "trainer_stall_ratio": 0.1}, said="balanced/", why="they do in every step"),
    of("engines that hang for longer than weights take", HEALTHY, {'generator_engines{state="up"}': 0.0,
       'generator_engines{state="hung"}': 4.0, 'trainer_overhead_seconds{phase="weight_sync"}': 70.0,
       "trainer_step_seconds": 400.0, "trainer_stall_ratio": 0.6}, said="stalled/frozen_engine", sure=True,
       why="the open step is more than three of the others long"),
    of("at the cap, in no engine and in nothing told of", HEALTHY, STARVED, QUIET, said="sandbox_bound/tool_time",
       sure=False, why="12 of 57 are in the engines: by elimination the rest is with the environment"),
    # ---- phases of the log instead of a census
    of("log says tools", HEALTHY, STARVED, QUIET, NO_PLACE, {'rollout_phase_seconds{phase="model"}': 20.0,
       'rollout_phase_seconds{phase="tools"}': 80.0, 'rollout_phase_seconds{phase="all"}': 102.0},
       said="sandbox_bound/tool_time", sure=True, why="78 % of a rollout's time"),
    of("log says scoring", HEALTHY, STARVED, QUIET, NO_PLACE, {'rollout_phase_seconds{phase="model"}': 20.0,
       'rollout_phase_seconds{phase="scoring"}': 60.0, 'rollout_phase_seconds{phase="all"}': 81.0},
       said="reward_bound/scoring", sure=True, why="74 % of a rollout's time"),
    of("log says model", HEALTHY, STARVED, FULL, NO_PLACE, {'rollout_phase_seconds{phase="model"}': 90.0,
       'rollout_phase_seconds{phase="tools"}': 8.0, 'rollout_phase_seconds{phase="all"}': 100.0},
       said="generator_bound/too_few_engines", sure=True, why="90 % of a rollout's time in full engines"),
    of("log says model, requests say not", HEALTHY, STARVED, QUIET, {'rollout_phase_seconds{phase="model"}': 90.0,
       'rollout_phase_seconds{phase="scoring"}': 8.0, 'rollout_phase_seconds{phase="all"}': 100.0},
       said="sandbox_bound/tool_time", sure=False, why="a log is of rollouts that have ended; 12 of 57 are there now"),
    of("tools take half behind full engines", HEALTHY, STARVED, FULL, {"in_flight*": None,
       'rollout_phase_seconds{phase="model"}': 60.0, 'rollout_phase_seconds{phase="tools"}': 40.0},
       said="generator_bound/too_few_engines", why="without tools the engines would be as full"),
    # ---- tail, drift, curriculum
    of("aborts of an oversampled run", HEALTHY, STARVED, FULL, {'rollout_exit_ratio{exit="aborted_oversample"}': 0.6,
       'rollout_exit_ratio{exit="trained"}': 0.4, 'tail_index_ratio{of="seconds"}': 4.0},
       said="generator_bound/long_tail", sure=True, why="60 % of what is begun is thrown away for the slowest"),
    of("the published easy curriculum", HEALTHY, FULL, {"trainer_wait_ratio": 0.74, "trainer_samples_per_second": 2.35,
       "queue_arrivals_samples_per_second": 2.35, "tool_calls_drift_ratio": 2.5,
       'zero_advantage_ratio{basis="completed"}': 0.55, 'zero_advantage_ratio{basis="admitted"}': 0.0,
       'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.55,
       'zero_advantage_group_ratio{basis="completed",cause="none_solved"}': 0.0},
       said="generator_bound/drift", sure=False, why="x2.5 longer and 55 % thrown away: too near to tell"),
    of("drift alone", HEALTHY, STARVED, FULL, {"response_length_drift_ratio": 2.4}, said="generator_bound/drift",
       sure=True, why="rollouts 2.4 times as long"),
    of("drift that nobody waits for", HEALTHY, {"response_length_drift_ratio": 2.4}, said="balanced/",
       why="long responses alone hold nobody back"),
    of("filtered easy groups", HEALTHY, STARVED, FULL, {'zero_advantage_ratio{basis="completed"}': 0.7,
       'zero_advantage_ratio{basis="admitted"}': 0.02,
       'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.65,
       'zero_advantage_group_ratio{basis="completed",cause="none_solved"}': 0.05},
       said="curriculum_bound/too_easy", why="70 % made and thrown away, all of the gap"),
    of("a fifth is thrown away, slow decoding", HEALTHY, STARVED, {'zero_advantage_ratio{basis="completed"}': 0.2,
       'zero_advantage_ratio{basis="admitted"}': 0.02}, said="generator_bound/too_few_engines", sure=True,
       why="without those 1.25 times as much; rollouts spend all their time decoding: up to twice as much"),
    of("most is thrown away, engines are not seen", HEALTHY, STARVED, NO_ENGINES, {
       'zero_advantage_ratio{basis="completed"}': 0.7, 'zero_advantage_ratio{basis="admitted"}': 0.02,
       'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.65}, said="curriculum_bound/too_easy",
       sure=False, why="twice the engines might gain as much"),
    of("unfiltered easy groups", HEALTHY, {'zero_advantage_ratio{basis="completed"}': 0.6,
       'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.55,
       'zero_advantage_group_ratio{basis="completed",cause="none_solved"}': 0.05},
       said="curriculum_bound/too_easy", why="the trainer is busy with what teaches nothing"),
    of("equal rewards, cause not told", HEALTHY, {'zero_advantage_ratio{basis="completed"}': 0.6,
       "zero_advantage_group_ratio*": None, 'zero_advantage_group_ratio{basis="completed",cause="equal_unknown"}': 0.6},
       said="curriculum_bound/equal_rewards", why="nobody tells the largest reward"),
    of("a third without gradient", HEALTHY, {'zero_advantage_ratio{basis="completed"}': 0.35}, said="balanced/",
       why="an uneven curriculum is not the first thing to change"),
    # ---- the trainer
    of("more arrives than is taken", HEALTHY, {"trainer_wait_ratio": 0.01, "queue_arrivals_samples_per_second": 12.0,
       "queue_batches": 3.0}, said="trainer_bound/compute", sure=True, why="12 arrive, 8.5 are trained"),
    of("production is held by a full queue", HEALTHY, {"trainer_wait_ratio": 0.0, "queue_batches": 4.0,
       'generation_held_ratio{by="backpressure"}': 0.5}, said="trainer_bound/compute", sure=True,
       why="half of the time it may not go on"),
    of("held, a short queue, and nobody tells what is under way", HEALTHY, NO_PLACE, {"trainer_wait_ratio": 0.0,
       "queue_batches": 0.9, 'generation_held_ratio{by="backpressure"}': 0.4}, said="trainer_bound/compute", sure=False,
       why="what was begun before the hold goes on: it may cost nothing"),
    of("held while the queue shrinks for a moment", HEALTHY, {"trainer_wait_ratio": 0.0, "queue_batches": 3.0,
       "queue_arrivals_samples_per_second": 3.0, 'generation_held_ratio{by="backpressure"}': 0.5},
       said="trainer_bound/compute", sure=True, why="who is held has filled the queue: 8.5 and twice that may come"),
    of("waits in bursts because samples grow stale", HEALTHY, {"trainer_wait_ratio": 0.2,
       "trainer_samples_per_second": 7.2, "queue_arrivals_samples_per_second": 12.0, "discarded_rollout_ratio": 0.4},
       last=DROPS, said="trainer_bound/compute", why="12 arrive, 9 could be taken: the wait is what was dropped"),
    of("waits as long, and what is discarded carried no gradient", HEALTHY, STARVED, FULL, {"trainer_wait_ratio": 0.2,
       "trainer_samples_per_second": 6.8, "capacity_samples_per_second": 8.5, "queue_arrivals_samples_per_second": 6.8,
       'generation_held_ratio{by="gate"}': 0.2, "discarded_rollout_ratio": 0.28}, last=steps(*[0.2] * 10),
       said="generator_bound/too_few_engines", why="no step counts a sample that grew too old: it is filtered groups"),
    of("most of the step is not named", HEALTHY, {"trainer_wait_ratio": 0.0, "queue_arrivals_samples_per_second": 12.0,
       'trainer_overhead_seconds{phase="other"}': 17.0}, said="trainer_bound/other", sure=True,
       why="17 of 30 s are neither waiting, computing nor an overhead it names"),
    of("weights take a third of the step", HEALTHY, {"trainer_wait_ratio": 0.0,
       "queue_arrivals_samples_per_second": 12.0, 'trainer_overhead_seconds{phase="weight_sync"}': 10.0},
       said="overhead_bound/weight_sync", why="10 of 30 s"),
    of("weights take a third, and no more is made", HEALTHY, {"trainer_wait_ratio": 0.05,
       'generation_held_ratio{by="backpressure"}': 0.03, 'trainer_overhead_seconds{phase="weight_sync"}': 10.0},
       said="balanced/", why="8.9 could arrive, 8.5 are trained: without them it would wait for the rest"),
    of("a quarter of the step is a checkpoint, the rest computing", HEALTHY, {"trainer_wait_ratio": 0.0,
       "queue_arrivals_samples_per_second": 30.0, 'trainer_overhead_seconds{phase="checkpoint"}': 6.5,
       'trainer_overhead_seconds{phase="weight_sync"}': 0.5}, said="trainer_bound/compute",
       why="1.28 times as much without it, 1.6 times with a trainer twice as fast"),
    of("checkpoints take a quarter", HEALTHY, {"trainer_wait_ratio": 0.0,
       'trainer_overhead_seconds{phase="checkpoint"}': 8.0}, said="overhead_bound/checkpoint", why="8 of 30 s"),
    of("weights take a third of a step that waits anyway", HEALTHY, STARVED, FULL,
       {'trainer_overhead_seconds{phase="weight_sync"}': 10.0}, said="generator_bound/too_few_engines",
       why="without them it would wait longer"),
    of("staleness at its bound", HEALTHY, {"staleness_bound_ratio": 1.0}, said="balanced/",
       why="a bounded queue stands at its bound: it names nothing"),
    of("tools that are told and tools that are not", HEALTHY, STARVED, QUIET, {"in_flight_rollouts*": None,
       'in_flight_rollouts{state="generating"}': 100.0, 'generator_requests{state="running"}': 10.0,
       'rollout_phase_seconds{phase="tools"}': 10.0, 'rollout_phase_seconds{phase="model"}': 50.0,
       'rollout_phase_seconds{phase="all"}': 60.0}, said="sandbox_bound/tool_time", sure=False,
       why="a sixth of the time in tools by the log, a tenth in the engines, and nobody tells of the rest"),
    # ---- matched
    of("matched", HEALTHY, said="balanced/", sure=True, why="8.6 arrive, 9 could be taken"),
    of("batch noise", HEALTHY, {"trainer_wait_ratio": 0.13}, said="balanced/", why="13 % is what batches cost"),
    # ---- a source is missing
    of("starved, engines unknown, place unknown", HEALTHY, STARVED, NO_ENGINES, NO_PLACE, said="unknown/missing",
       sure=False, why="it could be anything before the queue"),
    of("starved, engines unknown, census of boots", HEALTHY, STARVED, BOOTING, NO_ENGINES,
       said="sandbox_bound/spin_up", why="records tell where rollouts are"),
    of("starved, engines with room, place unknown", HEALTHY, STARVED, NO_PLACE, said="generator_bound/too_few_engines",
       sure=False, why="room in the engines, and nobody tells what else there is"),
    of("starved, engines full, place unknown", HEALTHY, STARVED, FULL, NO_PLACE,
       said="generator_bound/too_few_engines", sure=True, why="full is full"),
    of("the trainer tells no wait", HEALTHY, FULL, {"trainer_wait_ratio": None, "capacity_samples_per_second": None,
       "queue_arrivals_samples_per_second": None}, said="unknown/missing", sure=False, why="nobody knows who waits"),
    of("engines alone", {k: v for k, v in (HEALTHY | FULL).items() if v and k.startswith(("generator", "kv"))},
       said="unknown/missing", sure=False, why="a missing trainer is no health"),
    of("nothing at all", said="unknown/missing", sure=False, why="absent is never zero"),
    of("matched without a zero-advantage share", HEALTHY, NO_ZERO, said="balanced/", why="who waits is known"),
    of("matched without a queue", HEALTHY, NO_QUEUE, said="balanced/", why="who waits is known"),
    of("starved without a zero-advantage share", HEALTHY, STARVED, FULL, NO_ZERO,
       said="generator_bound/too_few_engines", sure=False, why="who has no gradient may come first"),
    of("held, who waits is not told", HEALTHY, {"trainer_wait_ratio": None, 'generation_held_ratio{by="gate"}': 0.5},
       said="trainer_bound/compute", sure=False, why="a gate holds production of a run that waits, too"),
    of("tools beside engines without room for more", HEALTHY, STARVED, {"kv_concurrency_limit": 40.0,
       'generator_requests{state="running"}': 27.0, 'in_flight_rollouts{state="generating"}': 27.0,
       'in_flight_rollouts{state="booting"}': 0.0, 'in_flight_rollouts{state="in_tool"}': 30.0,
       'in_flight_rollouts{state="scoring"}': 0.0}, said="sandbox_bound/tool_time", sure=False,
       why="57 would ask for 40 places: without tools the engines are next, half as much again is all that is certain"),
    of("fewer dispatched than may be, most of them in tools", HEALTHY, STARVED, {"in_flight_ratio": 0.3,
       'generator_requests{state="running"}': 8.0, 'in_flight_rollouts{state="generating"}': 8.0,
       'in_flight_rollouts{state="booting"}': 0.0, 'in_flight_rollouts{state="in_tool"}': 10.0,
       'in_flight_rollouts{state="scoring"}': 0.0}, said="orchestrator_bound/prompts",
       why="slow tools hold nobody back where 70 % of the places are free"),
    # ---- synchronous
    of("synchronous, a common tail", SYNC, mode="sync_colocated", said="balanced/",
       why="18 % of the step: every synchronous run has one"),
    of("synchronous, a long tail", SYNC, {"tail_bubble_ratio": 0.75}, mode="sync_colocated",
       said="generator_bound/long_tail", why="45 % of the step is an empty fleet"),
    of("synchronous, weights", SYNC, {'trainer_overhead_seconds{phase="weight_sync"}': 18.0}, mode="sync_split",
       said="overhead_bound/weight_sync", why="18 of 60 s"),
    of("synchronous, too easy", SYNC, {'zero_advantage_ratio{basis="completed"}': 0.6,
       'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.6}, mode="sync_colocated",
       said="curriculum_bound/too_easy", why="60 % of the step teaches nothing"),
    of("synchronous without a step", mode="sync_colocated", said="unknown/missing", sure=False, why="no step yet"),
    # ---- the present, not the mean of ten steps
    of("it began to wait two steps ago", HEALTHY, FULL, {"trainer_wait_ratio": 0.14, "queue_batches": 0.3},
       last=steps(*[0.05] * 8, 0.5, 0.5), said="generator_bound/too_few_engines", why="half of the last two steps"),
    of("it stopped waiting three steps ago", HEALTHY, {"trainer_wait_ratio": 0.36},
       last=steps(*[0.5] * 7, 0.03, 0.04, 0.03), said="balanced/", why="the mean of ten steps is of another time"),
    of("one long wait", HEALTHY, {"trainer_wait_ratio": 0.12}, last=steps(*[0.05] * 9, 0.7), said="balanced/",
       why="one step is an accident"),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row.what for row in TABLE])
def test_the_table(row: Row) -> None:
    found = judge(seen(*row.told, **row.given))
    assert (found.outcome, found.cause) == (row.outcome, row.cause), (row.why, found.rule, found.limiters)
    if row.sure is not None:
        assert (found.confidence >= CONFIDENT) is row.sure, (found.confidence, found.completeness, found.limiters)


def test_the_table_has_every_outcome_and_sixty_rows() -> None:
    assert len(TABLE) >= 60 and {row.outcome for row in TABLE} == set(CAUSES)
    assert len({row.what for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=[row.what for row in TABLE])
def test_shares_are_of_the_whole(row: Row) -> None:
    found = judge(seen(*row.told, **row.given))
    shares = list(found.to_json()["shares"].values())
    assert not shares or sum(shares) == pytest.approx(1.0)
    assert all(one.gain >= 1.0 and one.cause in CAUSES[one.outcome] for one in found.limiters)
    assert found.cause in (*CAUSES[found.outcome], "")
