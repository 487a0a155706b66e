"""An asynchronous run whose rollouts are told of, one that is synchronous, and one without a record.

Every number follows from the group's number, so pictures repeat.
"""

import math

from msgspec import structs

from collectors.model import Consumption, Sandbox, Span, Turn
from dashboard.widgets.format import series_name
from server.query.types import (
    EventInfo,
    FunnelBar,
    RolloutDetail,
    SignalInfo,
    SignalNow,
    SignalState,
)
from server.rollouts.model import RolloutGroupRow, RolloutRow
from tests.dashboard import fake
from tests.dashboard.fake import Curve, noise, signal
from tests.dashboard.memory_reader import MemoryReader

NOW, ASYNC, SYNC, BARE = fake.NOW, "swe-async-grpo", "math-sync", "no-records"
PUBLISHED, FIRST = 42.0, 400
SIZE, EVERY, GROUPS = 8, 14.0, 250
# The one that is opened: made by three versions, in a sandbox that stayed.
OPEN = "r-0147-3"
BOUND = "upper bound: no record reports which tool calls changed the environment (`mutated`), so each counts"
TOLD = "push rollouts, or log version_start and version_consumed"
ENVIRONMENTS = ("swe-bench", "terminal", "math")
INFOS = (
    SignalInfo("staleness_versions", "Staleness", "versions", "", TOLD, "queue"),
    SignalInfo("mixed_version_ratio", "Mixed versions", "ratio", "", "log token_versions", "generator"),
    SignalInfo("zero_advantage_ratio", "Zero advantage", "ratio", "", "log rewards by group", "queue", 0.3, 0.5),
    SignalInfo("tail_index_ratio", "Tail index", "ratio", "", "log response_tokens", "generator"),
    SignalInfo("sample_age_seconds", "Sample age", "seconds", "", "log finished_at and consumed_at", "queue"),
    SignalInfo("infra_failure_ratio", "Infra failures", "ratio", "", "log the exit", "sandbox", 0.05, 0.15),
)


def version(t: float) -> int:
    """The newest published at a time."""
    return FIRST + math.floor((t - NOW + 7200) / PUBLISHED)


def made(rollout_id: str, state: str, moved: float, **more: object) -> RolloutRow:
    """A rollout of training that last moved ``moved`` seconds ago."""
    row = RolloutRow(
        rollout_id, life=1, group_id="g", purpose="train", environment="swe-bench", engine="vllm-0", target="push",
        state=state, moved_at=NOW - moved, prompt_tokens=900,
    )  # fmt: skip
    return structs.replace(row, **more)


def _times(i: int, j: int) -> dict[str, float]:
    """Of rollout ``j`` of group ``i``: dispatched, started, finished, scored."""
    asked = NOW - EVERY * (GROUPS - i)
    luck = (noise(i, j) + 1) / 2
    took = 20 + 70 * luck + (900 * (noise(i, 40 + j) + 1) if (i * 7 + j) % 53 == 0 else 0)
    begun = asked + 2 + 3 * luck
    return {"dispatched_at": asked, "started_at": begun, "finished_at": begun + took, "scored_at": begun + took + 3}


def _rewards(i: int) -> list[float]:
    """Of ten groups three solve all, two none."""
    kind = i * 7 % 10
    if kind < 3:
        return [1.0] * SIZE
    if kind < 5:
        return [0.0] * SIZE
    return [float((noise(i, 60 + j) + 1) / 2 < (kind - 4) / 6) for j in range(SIZE)]


def group(i: int) -> tuple[list[RolloutRow], RolloutGroupRow]:
    """A group and its members as they are at `NOW`."""
    times = [_times(i, j) for j in range(SIZE)]
    broken = {j for j in range(SIZE) if (i * 11 + j * 5) % 97 == 0}
    rewards = _rewards(i)
    complete = max(t["scored_at"] for t in times)
    valid = [rewards[j] for j in range(SIZE) if j not in broken]
    outcome = "mixed" if len(set(valid)) > 1 else "all_solved" if valid[0] else "none_solved"
    used = complete + 40 + 30 * (noise(i, 3) + 1)
    rows = [_member(i, j, times[j], complete, used, outcome, rewards[j], j in broken) for j in range(SIZE)]
    over = complete <= NOW
    done = [j for j in range(SIZE) if times[j]["scored_at"] <= NOW]
    return rows, RolloutGroupRow(
        f"g-{i:04d}", 1, ENVIRONMENTS[i % 3], "train", SIZE, SIZE, len(done), len([j for j in done if j not in broken]),
        min(valid) if over else None, max(valid) if over else None, sum(valid) / len(valid) if over else None,
        int(sum(valid)) if over else None, outcome if over else "open", used <= NOW and outcome == "mixed",
        version(times[0]["started_at"]), times[0]["dispatched_at"],
        max((times[j]["scored_at"] for j in done), default=times[0]["dispatched_at"]),
        complete if over else None, complete - min(t["scored_at"] for t in times) if over else None, False,
        sum(valid) / len(valid) if over else None,
    )  # fmt: skip


def _member(
    i: int, j: int, at: dict[str, float], complete: float, used: float, outcome: str, reward: float, broken: bool
) -> RolloutRow:
    state, moved = _state(at, complete, used, outcome, broken, (i + j) % 3)
    start, end = version(at["started_at"]), version(min(at["finished_at"], NOW))
    stale = version(used) - start
    tokens = round(600 + 45 * (min(at["finished_at"], NOW) - at["started_at"]) * (0.8 + 0.2 * noise(i, 80 + j)))
    known = {name: t for name, t in at.items() if t <= NOW} | (
        {"group_complete_at": complete} if complete <= NOW else {}
    )
    row = made(
        f"r-{i:04d}-{j}", state, NOW - moved, group_id=f"g-{i:04d}", environment=ENVIRONMENTS[i % 3],
        engine=f"vllm-{j % 2}", version_start=start, **known,
    )  # fmt: skip
    if at["finished_at"] > NOW:
        return row
    row = structs.replace(
        row, version_finish=end, seconds=at["finished_at"] - at["dispatched_at"], response_tokens=tokens,
        loss_tokens=tokens, turn_count=3 + tokens // 900, tool_calls=tokens // 700, reward=None if broken else reward,
        mixed=start != end, error="SandboxTimeoutError" if broken else "",
    )  # fmt: skip
    if state == "stale":
        return structs.replace(row, staleness=stale)
    if state != "trained":
        return row
    return structs.replace(
        row, staleness=stale, consumed=version(used), token_staleness=stale - (end - start) / 2,
        in_flight=end - start, in_group=version(complete) - end, in_queue=version(used) - version(complete),
        consumed_at=used,
    )  # fmt: skip


def _state(
    at: dict[str, float], complete: float, used: float, outcome: str, broken: bool, luck: int
) -> tuple[str, float]:
    """(state, when it moved there)."""
    if at["started_at"] > NOW:
        return "waiting_slot", at["dispatched_at"]
    if at["finished_at"] > NOW:
        return ("generating", "in_tool", "generating")[luck], at["started_at"]
    if broken:
        return "infra_error", at["finished_at"]
    if at["scored_at"] > NOW:
        return "scoring", at["finished_at"]
    if complete > NOW:
        return "waiting_group", at["scored_at"]
    if outcome != "mixed":
        return "zero_advantage", complete
    if version(complete) - version(at["started_at"]) > 6:
        return "stale", complete
    return ("trained", used) if used <= NOW else ("queued", complete)


def opened(row: RolloutRow) -> RolloutDetail:
    """Resumed partial rollout: two versions generate, a tool runs in a kept sandbox, the third version ends it."""
    begin = row.started_at
    assert begin is not None
    first = version(begin)
    spans: list[tuple[str, float, float | None, int | None, str]] = [
        ("queued", begin - 3, begin, None, ""),
        ("boot", begin, begin + 9, None, "prime"),
        ("prefill", begin + 9, begin + 10, first, ""),
        ("decode", begin + 10, begin + 30, first, ""),
        ("tool", begin + 30, begin + 44, None, "bash"),
        ("decode", begin + 44, begin + 60, first + 1, ""),
        ("suspended", begin + 60, begin + 75, None, "weights"),
        ("decode", begin + 75, begin + 100, first + 2, ""),
        ("scoring", begin + 100, begin + 103, None, ""),
        ("waiting_group", begin + 103, begin + 130, None, ""),
        ("in_queue", begin + 130, begin + 190, None, ""),
    ]
    turns = (
        Turn(first, 1, True, False, "sbx-1"), Turn(first + 1, 1, False, False, "sbx-1"),
        Turn(first + 2, 1, None, False, "sbx-1"), Turn(first + 2, 0, None, True, "sbx-1"),
    )  # fmt: skip
    whole = structs.replace(
        row, state="trained", moved_at=begin + 190, seconds=103.0, response_tokens=4096, loss_tokens=4000,
        turns=turns, turn_count=4,
        tool_calls=3, reward=1.0, advantage=0.75, version_start=first, version_finish=first + 2, consumed=first + 4,
        staleness=4, in_flight=2, in_group=1, in_queue=1, token_staleness=2.9, environment_staleness=1.0,
        environment_bound=True, old_state_turns=2, judged_turns=3, mixed=True, detailed=True, error="",
        sandbox_ids=("sbx-1",),
        dispatched_at=begin - 3, started_at=begin, finished_at=begin + 100, scored_at=begin + 103,
        group_complete_at=begin + 130, consumed_at=begin + 190,
        token_versions=((first, 1000), (first + 1, 1200), (first + 2, 1800)),
        consumptions=(Consumption(first + 4, begin + 190, 1),),
    )  # fmt: skip
    box = Sandbox("prime", "sbx-1", "terminated")
    return RolloutDetail(whole, tuple(Span(*span) for span in spans), True, (), (box,))  # type: ignore[arg-type]


def of(name: str, unit: str, health: SignalState = "ok", **labels: str) -> SignalNow:
    """A signal told by records."""
    found = signal(name, unit=unit, state=health)
    return structs.replace(found, name=series_name(name, labels), labels=labels, source="rollout records")


def _steady(value: float, wobble: float = 0.0, seed: float = 1) -> Curve:
    return lambda t: value if NOW - t <= 5 else value + wobble * noise(t, seed)


SIGNALS: tuple[tuple[SignalNow, Curve], ...] = (
    *((of("staleness_versions", "versions", level="trajectory", stat=stat), _steady(value, 0.2, i))
      for i, (stat, value) in enumerate((("mean", 2.4), ("p95", 5.0), ("max", 6.0)))),
    *((of("staleness_versions", "versions", level="token", stat=stat), _steady(value, 0.2, i))
      for i, (stat, value) in enumerate((("mean", 1.9), ("p95", 4.2), ("max", 5.5)))),
    *((structs.replace(of("staleness_versions", "versions", level="environment_state", stat=stat), why=BOUND),
       _steady(value, 0.1))
      for stat, value in (("mean", 0.8), ("p95", 3.0), ("max", 4.0))),
    *((of("staleness_part_versions", "versions", part=part), _steady(value))
      for part, value in (("in_flight", 1.5), ("in_group", 0.5), ("in_queue", 0.4))),
    (of("staleness_estimated_versions", "versions"), _steady(2.7)),
    (of("mixed_version_ratio", "ratio"), _steady(0.31, 0.03)),
    (of("old_state_turn_ratio", "ratio"), _steady(0.12)),
    (of("zero_advantage_ratio", "ratio", "watch", basis="completed"), _steady(0.48, 0.03)),
    (of("zero_advantage_group_ratio", "ratio", basis="completed", cause="all_solved"), _steady(0.3)),
    (of("zero_advantage_group_ratio", "ratio", basis="completed", cause="none_solved"), _steady(0.18)),
    *((of("zero_advantage_environment_ratio", "ratio", environment=name, difficulty=""), _steady(value))
      for name, value in (("math", 0.61), ("swe-bench", 0.42), ("terminal", 0.4))),
    (of("tail_index_ratio", "ratio", of="response_tokens"), _steady(6.2, 0.4)),
    (of("tail_index_ratio", "ratio", of="seconds"), _steady(8.1)),
    (of("sample_age_seconds", "seconds", stat="oldest"), _steady(1260.0, 60)),
    (of("sample_age_seconds", "seconds", stat="p95"), _steady(174.0)),
    (of("infra_failure_ratio", "ratio"), _steady(0.011, 0.002)),
)  # fmt: skip


def publish(reader: MemoryReader, run: str = ASYNC, seconds: float = 3600.0) -> None:
    """New weights every `PUBLISHED` seconds, on the grid of `version`."""
    last = version(NOW)
    events = []
    for number in range(last, FIRST, -1):
        at = NOW - 7200 + (number - FIRST) * PUBLISHED
        if at >= NOW - seconds:
            events.append(EventInfo(at, "weights_published", f"v{number}", "", number))
    reader.put_events(run, *events)


def reader() -> MemoryReader:
    """Three runs: asynchronous with records, synchronous, and one nobody tells of."""
    found = MemoryReader(NOW, INFOS)
    found.add_run(ASYNC, facts=fake.FACTS)
    for now, curve in SIGNALS:
        found.append(ASYNC, now, fake.history(curve, 30.0, 3600))
    for i in range(GROUPS):
        rows, one = group(i)
        found.put_rollouts(ASYNC, *rows)
        found.put_groups(ASYNC, one)
    found.put_detail(ASYNC, opened(next(row for row in group(147)[0] if row.rollout_id == OPEN)))
    kept = found.records(ASYNC)
    kept.costs = {"trained": (212_400.5, 118.0), "zero_advantage": (160_112.0, 88.95)}
    kept.extra = [FunnelBar("unrecorded", 0, 1_204_000, 31_000.0, 17.22, derived=True)]
    publish(found)
    found.set_targets(ASYNC, structs.replace(fake.target("traces", "generator", "verifiers_rollouts"), run=ASYNC))
    _others(found)
    return found


def _others(found: MemoryReader) -> None:
    found.add_run(SYNC, facts={"mode": "sync_colocated"})
    found.change(SYNC, mode="sync_colocated")
    found.append(SYNC, of("staleness_versions", "versions", level="trajectory", stat="mean"), [(NOW - 5, 0.0)])
    found.put_rollouts(SYNC, made("only", "trained", 60, response_tokens=300, seconds=12.0, reward=1.0))
    found.add_run(BARE)
    found.silence(BARE, signal("staleness_versions", unit="versions", state="unknown", why=TOLD))
