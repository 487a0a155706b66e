"""Rollouts in flight, placed once from every source: expected shares and contradictions, worked out by hand."""

from typing import Any

import msgspec
import pytest

from server.verdict.rules import judge, remember
from server.verdict.throughput import in_flight, plateau
from tests.verdict.support import HEALTHY, NOW, STARVED, seen
from tests.verdict.windows import QUIET, Told

PROVIDER: Told = {
    'sandboxes{state="queued"}': 552.0, 'sandboxes{state="starting"}': 128.0, 'sandboxes{state="running"}': 280.0,
}  # fmt: skip
ENDED: Told = {
    'rollout_phase_seconds{phase="setup"}': 2.0, 'rollout_phase_seconds{phase="model"}': 16.0,
    'rollout_phase_seconds{phase="tools"}': 24.0, 'rollout_phase_seconds{phase="scoring"}': 16.0,
    'rollout_phase_seconds{phase="all"}': 58.0,
}  # fmt: skip
LOG: Told = {'in_flight_rollouts{state="generating"}': 960.0, 'in_flight_rollouts{state="eval"}': 0.0}
RECORDS: Told = {
    'in_flight_rollouts{state="booting"}': 680.0, 'in_flight_rollouts{state="generating"}': 280.0,
    'in_flight_rollouts{state="in_tool"}': 0.0, 'in_flight_rollouts{state="scoring"}': 0.0,
}  # fmt: skip
NO_BOX: Told = {
    'in_flight_rollouts{state="booting"}': 330.0, 'in_flight_rollouts{state="generating"}': 0.0,
    'in_flight_rollouts{state="in_tool"}': 0.0, 'in_flight_rollouts{state="waiting_group"}': 277.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "what, told, requests, facts, shares, named",
    [
        # 960 in flight: 680 pending, 80 in the engines, the other 200 in tools and scoring as 24 to 16 s.
        ("log and provider", (LOG, PROVIDER, ENDED), 80.0, {}, (680 / 960, 120 / 960, 80 / 960, 80 / 960), ()),
        # Records report no tool calls: of 280 "generating" 80 have requests, the others are placed by the log.
        ("records and provider", (RECORDS, PROVIDER, ENDED), 80.0, {},
         (680 / 960, 120 / 960, 80 / 960, 80 / 960), ("generating_without_requests",)),
        # 0.3 s in tools is all that the log reports: it does not place the 200 without a request.
        ("records and one phase of a log", (RECORDS, PROVIDER, {'rollout_phase_seconds{phase="tools"}': 0.3}), 80.0, {},
         (680 / 960, 0.0, 0.0, 80 / 960), ("generating_without_requests",)),
        # 1,200 "booting", 680 pending: the other 520 are placed by no source.
        ("more boots than pending", (RECORDS, {'in_flight_rollouts{state="booting"}': 1200.0}, PROVIDER), 280.0, {},
         (680 / 1480, 0.0, 0.0, 280 / 1480), ("booting_without_pending",)),
        ("no census at all", (PROVIDER,), 80.0, {}, (680 / 960, None, None, 80 / 960), ()),
        # 300 sandboxes run for 100 rollouts: what is pending is a pool's.
        ("a warm pool", ({'in_flight_rollouts{state="generating"}': 100.0}, PROVIDER, ENDED), 40.0, {},
         (0.0, 0.36, 0.24, 0.4), ()),
        ("a task without sandboxes", (NO_BOX,), 330.0, {"has_sandbox": 0.0}, (0.0, 0.0, 0.0, 1.0),
         ("booting_without_sandboxes",)),
        ("boots that have requests", (NO_BOX, {'in_flight_rollouts{state="scoring"}': 0.0}), 330.0, {},
         (0.0, 0.0, 0.0, 1.0), ("requests_without_rollouts",)),
        ("the log of ended rollouts alone", (ENDED,), None, {}, (2 / 58, 24 / 58, 16 / 58, 16 / 58), ()),
        ("records that agree", ({'in_flight_rollouts{state="booting"}': 10.0,
         'in_flight_rollouts{state="generating"}': 50.0, 'in_flight_rollouts{state="in_tool"}': 40.0},), 50.0, {},
         (0.1, 0.4, 0.0, 0.5), ()),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_every_rollout_is_placed_once(
    what: str, told: tuple[Told, ...], requests: float | None, facts: dict[str, Any],
    shares: tuple[float | None, ...], named: tuple[str, ...],
) -> None:  # fmt: skip
    found = in_flight(seen(*told, **facts), requests, None)
    phases = ("booting", "in_tool", "scoring", "generating")
    expected = {phase: share for phase, share in zip(phases, shares, strict=True) if share is not None}
    assert {phase: found.time_shares[phase] for phase in expected} == pytest.approx(expected), what
    assert set(found.time_shares) <= set(phases) and sum(found.time_shares.values()) <= 1.0 + 1e-9
    assert tuple(one.name for one in found.contradictions) == named


def test_a_contradiction_shows_both_numbers_and_lowers_confidence() -> None:
    told = (HEALTHY, STARVED, QUIET, {'generator_requests{state="running"}': 80.0}, RECORDS, PROVIDER, ENDED)
    found, agreed = judge(seen(*told)), judge(seen(*told[:4], LOG, PROVIDER, ENDED))
    assert (found.outcome, agreed.outcome) == ("sandbox_bound", "sandbox_bound")
    assert [msgspec.to_builtins(one) for one in found.contradictions] == [
        {
            "name": "generating_without_requests",
            "text": "280 rollouts are reported as generating, and the engines run 80 requests",
            "values": {"generating": 280.0, "requests": 80.0},
        }
    ]
    assert agreed.contradictions == () and found.confidence == pytest.approx(0.8 * agreed.confidence, abs=0.01)


def test_a_task_without_sandboxes_is_never_bound_by_them() -> None:
    told = (HEALTHY, STARVED, QUIET, {'generator_requests{state="running"}': 330.0, "kv_concurrency_limit": 1300.0})
    found = judge(seen(*told, NO_BOX, has_sandbox=0.0))
    assert (found.outcome, found.cause) == ("orchestrator_bound", "concurrency_cap")
    assert found.numbers["time_booting_ratio"] == 0.0
    tools: Told = {'in_flight_rollouts{state="booting"}': 0.0, 'in_flight_rollouts{state="in_tool"}': 990.0,
                   'in_flight_rollouts{state="generating"}': 330.0}  # fmt: skip
    found = judge(seen(*told, NO_BOX, tools, has_sandbox=0.0))
    assert (found.outcome, found.cause) == ("orchestrator_bound", "tool_calls")


def watched(starting: list[float], queued: list[float], every: float = 30.0) -> list[tuple[float, str, str]]:
    """(seconds, outcome, cause) of a starved run in which the provider's counts change every so many seconds."""
    memory, found = None, []
    for tick in range(0, int(every * len(starting)), 5):
        at = int(tick // every)
        boxes = {
            'sandboxes{state="starting"}': starting[at], 'sandboxes{state="queued"}': queued[at],
            'sandboxes{state="running"}': 280.0, 'generator_requests_now{state="running"}': 80.0,
            "kv_concurrency_limit": 1144.0,
        }  # fmt: skip
        told = seen(HEALTHY, STARVED, QUIET, {'generator_requests{state="running"}': 80.0}, LOG, ENDED, boxes,
                    now=NOW + tick)  # fmt: skip
        memory, verdict = remember(memory, told)
        found.append((float(tick), verdict.outcome, verdict.cause))
    return found


def test_a_starting_limit_is_named_within_three_minutes_of_its_plateau() -> None:
    """128 start from 120 s on, whatever the queue holds: 90 s show the plateau."""
    found = watched([110, 115, 120, 122, *[128] * 12], [0, 0, 0, 2, *range(250, 550, 25)])
    first = next(at for at, _, cause in found if cause == "starting_limit")
    assert 210.0 <= first <= 120.0 + 180.0
    moving = watched([110, 115, 120, 122, *[100, 128] * 6], [0, 0, 0, 2, *range(250, 550, 25)])
    assert not [at for at, _, cause in moving if cause == "starting_limit"]
    nobody = watched([110, 115, 120, 122, *[128] * 12], [0] * 16)
    assert not [at for at, _, cause in nobody if cause == "starting_limit"]


def test_a_few_queued_sandboxes_are_no_plateau() -> None:
    """128 start all the time. 25 queued sandboxes are less than a fifth of them, 26 are a fifth."""
    for queued, limit in ((25.0, None), (26.0, 128.0)):
        window = [(NOW - age, {"sandboxes:starting": 128.0, "sandboxes:queued": queued}) for age in (100, 60, 30, 0)]
        assert plateau(window, NOW) == limit


def test_two_sources_are_not_averaged() -> None:
    """A log counts 960 as generating for five minutes; then records say where they are, and the mean is of them."""
    memory, verdict = None, None
    for tick in range(0, 330, 5):
        census = {k: None for k in LOG} | dict(RECORDS) if tick >= 300 else LOG
        told = seen(HEALTHY, STARVED, QUIET, {'generator_requests{state="running"}': 80.0,
                    'generator_requests_now{state="running"}': 80.0}, LOG, census, now=NOW + tick)  # fmt: skip
        memory, verdict = remember(memory, told)
    assert verdict is not None and verdict.numbers["time_booting_ratio"] == pytest.approx(680 / 960)


def test_a_provider_that_is_read_late_counts_from_its_first_sandboxes() -> None:
    """History has no sandboxes for 300 s; then 552 are queued, 128 starting, 280 running: 680 / 960 boot.

    90 s later the 128 are a plateau. Until then the quota (0.974) with its queue is the cause, not confident.
    """
    memory, found = None, []
    quota: Told = {'sandbox_quota_used_ratio{resource="concurrent"}': 0.974}
    for tick in range(0, 420, 5):
        boxes = PROVIDER if tick >= 300 else dict.fromkeys(PROVIDER, 0.0)
        engines: Told = {
            'generator_requests{state="running"}': 80.0, 'generator_requests_now{state="running"}': 80.0,
            "kv_concurrency_limit": 1144.0,
        }  # fmt: skip
        told = seen(HEALTHY, STARVED, QUIET, engines, LOG, ENDED, boxes, quota, now=NOW + tick)
        memory, verdict = remember(memory, told)
        found.append((tick, verdict))
    assert found[59][1].cause == "tool_time" and "more rollouts" not in found[59][1].advice[0].text
    late = [(tick, verdict) for tick, verdict in found if tick >= 300]
    assert late[0][1].numbers["time_booting_ratio"] == pytest.approx(680 / 960)
    open_ = [verdict for tick, verdict in late if tick < 390]
    assert {verdict.cause for verdict in open_} == {"quota"} and max(one.confidence for one in open_) < 0.6
    assert late[-1][1].cause == "starting_limit" and late[-1][1].confidence >= 0.6


@pytest.mark.parametrize(
    "refused, failing, cause",
    [
        # 70 % of the time is boots. 5 % of new sandboxes refused is the line.
        ({"rate_limit": 0.05}, 0.05, "starting_limit"),
        ({"rate_limit": 0.04}, 0.05, "spin_up"),
        ({"quota": 0.04, "credit": 0.03}, 0.07, "quota"),
        ({"capacity": 0.08, "quota": 0.05}, 0.08, "starting_limit"),
        # 80 % of the rollouts are lost with their sandbox: 5x, more than boots. 40 % refused is half of it.
        ({"rate_limit": 0.40}, 0.80, "starting_limit"),
        ({"rate_limit": 0.39}, 0.80, "init_failures"),
    ],
)
def test_refusals_show_the_limit_of_the_account(refused: dict[str, float], failing: float, cause: str) -> None:
    boots: Told = {
        'sandboxes{state="queued"}': 0.0, 'sandboxes{state="starting"}': 67.0, 'sandboxes{state="running"}': 29.0,
        "sandbox_failure_ratio": failing, 'generator_requests{state="running"}': 29.0,
    }  # fmt: skip
    shares: Told = {f'sandbox_refused_ratio{{cause="{name}"}}': share for name, share in refused.items()}
    flight: Told = {'in_flight_rollouts{state="generating"}': 96.0}
    found = judge(seen(HEALTHY, STARVED, QUIET, flight, boots, shares))
    assert (found.outcome, found.cause) == ("sandbox_bound", cause), found.limiters
