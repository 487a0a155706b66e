"""Partial records made one: any order and any split gives the same rows and totals, and nothing counts twice."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from collectors.model import Consumption, Rollout, Span, Target, Turn
from server.ingest.incarnations import Incarnations
from server.ingest.rollouts import (
    CLOSED,
    LEFT,
    MAX_ENVIRONMENTS,
    OTHER,
    QUEUED_SECONDS,
    UNCONSUMED_SECONDS,
    FoldedRecords,
    RolloutIngest,
    root_bin,
)
from server.rollouts import model as rollouts_model
from server.rollouts.model import RolloutGroupRow, RolloutRow

T = 1_800_000_000.0
TARGET = Target("records", "run", "push", "generator")


class Table:
    """What the store would hold after some batches."""

    def __init__(self, **facts: float) -> None:
        self.facts: dict[str, str | float] = dict(facts)
        self.ingest = RolloutIngest(facts=self.facts)
        self.rows: dict[tuple[str, int], RolloutRow] = {}
        self.groups: dict[tuple[str, int], RolloutGroupRow] = {}
        self.sums: dict[tuple[Any, ...], list[float]] = {}
        self.bins: Counter[tuple[int, int, str, int]] = Counter()

    def take(self, *records: Rollout, now: float = T + 1000) -> FoldedRecords:
        ingest = self.ingest
        ids = set(ingest.unknown(records))
        ingest.recall(row for (name, _), row in self.rows.items() if name in ids)
        keys = ingest.missing_groups(records)
        members = [row for row in self.rows.values() if (row.group_id, row.life) in keys]
        ingest.regroup(keys, members, [group for key, group in self.groups.items() if key in keys])
        ingest.recall(row for row in members if row.rollout_id in ingest.unknown([row]))
        taken = ingest.take(TARGET, records, now)
        self._put(taken)
        return taken

    def _put(self, taken: FoldedRecords) -> None:
        self.rows.update({(row.rollout_id, row.life): row for row in taken.rows})
        self.groups.update({(group.group_id, group.life): group for group in taken.groups})
        for one in taken.sums:
            held = self.sums.setdefault((one.tier, one.bucket, one.exit, one.environment, one.purpose), [0.0] * 5)
            added = (one.rollouts, one.prompt_tokens, one.response_tokens, one.loss_tokens, one.seconds)
            held[:] = [old + new for old, new in zip(held, added, strict=True)]
        for cell in taken.bins:
            self.bins[(cell.tier, cell.bucket, cell.kind, cell.bin)] += cell.n

    def restart(self) -> None:
        """Only what is live is read back; everything else when it is met."""
        live = [row for row in self.rows.values() if row.state not in rollouts_model.OVER]
        named = {key[3] for key in self.sums}
        self.ingest = RolloutIngest(live, facts=self.facts, environments=named)

    def told(self) -> tuple[Any, ...]:
        """Everything but when it was heard, and which details were kept."""
        rows = {
            key: structs.replace(
                row, seen_at=0, detailed=False, turns=(), spans=()
            )
            for key, row in self.rows.items()
        }  # fmt: skip
        sums = {key: [round(value, 6) for value in held] for key, held in self.sums.items() if any(held)}
        # How each was first known to have left depends on what is told first.
        return rows, self.groups, sums, {key: n for key, n in self.bins.items() if n and key[2] not in (LEFT, CLOSED)}


def whole(n: int) -> Rollout:
    """One of eight rollouts of four groups: trained, replayed, lost, evaluated, still running, ..."""
    t, v = T + 10.0 * n, n
    record = Rollout(
        f"r{n}", f"g{n // 2}", 2, environment="math" if n % 2 else "code", version_start=v, version_finish=v + 1,
        token_versions=((v, 60), (v + 1, 40)), dispatched_at=t, started_at=t + 1, finished_at=t + 20,
        scored_at=t + 21, prompt_tokens=100, response_tokens=100 * (n + 1), loss_tokens=100, reward=float(n % 2),
        max_reward=1.0, turns=(Turn(v, 1, None, False, f"sb{n}"), Turn(v + 1, 1, None, False, f"sb{n}")),
        spans=(Span("queued", t, t + 1), Span("decode", t + 1, t + 20, v)),
    )  # fmt: skip
    uses = (Consumption(v + 3, t + 60.0),)
    changes: list[dict[str, Any]] = [
        {"consumptions": uses}, {"consumptions": (*uses, Consumption(v + 5, t + 90.0))}, {"exit": "infra_error"},
        {"exit": "stale"}, {"purpose": "eval"}, {"purpose": "eval"}, {}, {"consumptions": uses, "reward": 0.0},
    ]  # fmt: skip
    return structs.replace(record, **changes[n])


WHOLE = [whole(n) for n in range(8)]
NAMES = [name for name in Rollout.__struct_fields__ if name not in ("rollout_id", "sampled")]


def part(record: Rollout, names: Iterable[str]) -> Rollout:
    return Rollout(record.rollout_id, **{name: getattr(record, name) for name in names})


@st.composite
def told(draw: st.DrawFn) -> list[list[Rollout]]:
    """Every record in up to three parts, all parts in any order, in batches."""
    pieces: list[Rollout] = []
    for record in WHOLE:
        places = draw(st.lists(st.integers(0, 2), min_size=len(NAMES), max_size=len(NAMES)))
        for place in range(3):
            pieces.append(part(record, [name for name, at in zip(NAMES, places, strict=True) if at == place]))
    pieces = draw(st.permutations(pieces))
    cuts = sorted(draw(st.lists(st.integers(0, len(pieces)), max_size=4)))
    return [list(pieces[one:other]) for one, other in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]


def _changed(row: RolloutRow, wanted: RolloutRow) -> dict[str, Any]:
    """What differs, to be read in a failure."""
    pairs = [(name, getattr(row, name), getattr(wanted, name)) for name in RolloutRow.__struct_fields__]
    return {name: (found, expected) for name, found, expected in pairs if found != expected}


def at_once() -> Table:
    table = Table()
    table.take(*WHOLE)
    return table


WANTED = at_once().told()


@settings(max_examples=25, deadline=None)
@given(batches=told(), restarts=st.sets(st.integers(0, 4)))
def test_any_order_and_split_gives_the_same(batches: Sequence[Sequence[Rollout]], restarts: set[int]) -> None:
    table = Table()
    for number, batch in enumerate(batches):
        table.take(*batch)
        if number in restarts:
            table.restart()
    rows, groups, sums, bins = table.told()
    wanted_rows, wanted_groups, wanted_sums, wanted_bins = WANTED
    changed = {key: _changed(row, wanted_rows[key]) for key, row in rows.items() if row != wanted_rows[key]}
    assert (changed, rows.keys()) == ({}, wanted_rows.keys())
    assert groups == wanted_groups
    assert (sums, bins) == (wanted_sums, wanted_bins)


@settings(max_examples=10, deadline=None)
@given(batches=told())
def test_every_batch_twice_says_nothing_new(batches: Sequence[Sequence[Rollout]]) -> None:
    table = Table()
    for batch in batches:
        table.take(*batch)
        again = table.take(*batch, now=T + 2000)
        assert (again.rows, again.groups, again.sums, again.bins, again.arrivals) == ([], [], [], [], [])
    for batch in batches:  # and the whole file once more, by a process that knows what is live alone
        table.restart()
        again = table.take(*batch, now=T + 3000)
        assert (again.rows, again.groups, again.sums, again.bins) == ([], [], [], [])


MADE = Rollout("a", dispatched_at=T, finished_at=T + 60, response_tokens=7, reward=1.0, purpose="train")
USE = Rollout("a", consumptions=(Consumption(4, T + 90),))
EXIT = Rollout("a", exit="env_error", exited_at=T + 70)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("order", list(permutations((MADE, USE, EXIT))))
def test_an_exit_that_is_told_beats_one_that_follows_from_a_use(
    order: tuple[Rollout, ...], restart: bool, batches: int
) -> None:
    table = Table()
    for batch in [order] if batches == 1 else [(one,) for one in order]:
        table.take(*batch)
        if restart:
            table.restart()
    row = table.rows[("a", 0)]
    assert (row.state, row.exit, row.seconds, row.consumed) == ("env_error", "env_error", 60.0, 4)
    minute = {key[2]: held for key, held in table.sums.items() if key[0] == 60_000 and any(held)}
    assert minute == {"env_error": [1, 0, 7, 0, 60.0]}
    assert sum(n for (tier, _, kind, _), n in table.bins.items() if (tier, kind) == (60_000, "seconds")) == 1


def test_what_was_used_and_tells_no_exit_was_trained() -> None:
    table = Table()
    table.take(Rollout("a", response_tokens=7, consumptions=(Consumption(4, T + 90),)))
    row = table.rows[("a", 0)]
    assert (row.state, row.exit) == ("trained", None)
    assert {key[2]: held[0] for key, held in table.sums.items() if key[0] == 60_000} == {"trained": 1}
    assert sum(n for (tier, _, kind, _), n in table.bins.items() if (tier, kind) == (60_000, "response_tokens")) == 1


def test_sums_by_exit_count_the_rows_by_exit() -> None:
    table = at_once()
    by_exit: Counter[str] = Counter()
    for (tier, _, name, _, _), held in table.sums.items():
        by_exit[name] += int(held[0]) if tier == 60_000 else 0
    assert by_exit == Counter(row.state for row in table.rows.values() if row.state in rollouts_model.OVER)
    assert by_exit == {"trained": 3, "infra_error": 1, "stale": 1, "ended": 2}
    assert table.rows[("r6", 0)].state == "queued"  # its sibling was trained: the group is complete


def test_numbers_written_by_hand() -> None:
    table = at_once()
    row = table.rows[("r1", 0)]  # made by 1 and 2 (60 and 40 tokens), used at 4 and at 6
    assert (row.staleness, row.in_flight, row.in_group, row.in_queue) == (5, 1, 0, 4)
    assert row.token_staleness == pytest.approx(4.6)
    assert (row.consumed, row.consumed_at) == (6, T + 100)
    assert (row.seconds, row.turn_count, row.mixed, row.environment_ages) == (20.0, 2, True, "0:1 1:1")
    assert row.environment_bound and row.environment_staleness == 0.5
    group = table.groups[("g0", 0)]
    assert (group.outcome, group.valid, group.solved, group.admitted, group.version) == ("mixed", 2, 1, True, 3)
    assert (group.first_at, group.completed_at, group.spread) == (T, T + 31, 10.0)
    assert table.groups[("g1", 0)].outcome == "too_few_valid"  # one of two was lost
    minute = int(T // 60 * 60_000)
    # r0 left at T + 60 (response 100 tokens), in the minute that begins then.
    assert table.sums[(60_000, minute + 60_000, "trained", "code", "train")][:3] == [1, 100, 100]
    told = [(b, n) for (tier, _, kind, b), n in table.bins.items() if (tier, kind) == (60_000, "staleness")]
    assert {b: sum(n for other, n in told if other == b) for b, _ in told} == {
        3: 3,
        5: 1,
    }  # r0, r1 (twice: 3 and 5), r7


@pytest.mark.parametrize(
    ("value", "expected"), [(0, -20), (1, 0), (1.42, 1), (2, 2), (1000, 19), (1024, 20), (0.3, -4)]
)
def test_bins_are_powers_of_the_root_of_two(value: float, expected: int) -> None:
    assert root_bin(value) == expected
    if value:
        assert 2 ** (expected / 2) <= value < 2 ** ((expected + 1) / 2)


# ---- whose life it is


def test_a_reused_id_of_another_life_is_another_rollout() -> None:
    table = Table()
    table.take(Rollout("a", incarnation=0, version_start=40, reward=1.0))
    table.take(Rollout("a", incarnation=1, version_start=3, consumptions=(Consumption(5, T),)))
    assert {key: row.staleness for key, row in table.rows.items()} == {("a", 0): None, ("a", 1): 2}


def test_only_its_use_told_in_another_life_joins_the_newest_and_is_of_unknown_staleness() -> None:
    table = Table()
    table.take(Rollout("a", incarnation=0, version_start=40, response_tokens=5, version_finish=40))
    table.take(Rollout("a", incarnation=1, consumptions=(Consumption(43, T),)))
    row = table.rows[("a", 0)]
    assert list(table.rows) == [("a", 0)] and (row.state, row.staleness) == ("trained", None)
    assert "two incarnations" in row.unknown
    assert not any(kind == "staleness" for _, _, kind, _ in table.bins)


def test_the_life_follows_from_the_time_where_nobody_tells_it() -> None:
    lives = Incarnations(1, [T + 100])
    ingest = RolloutIngest(incarnations=lives)
    taken = ingest.take(TARGET, [Rollout("old", dispatched_at=T), Rollout("new", dispatched_at=T + 200)], T + 300)
    assert {row.rollout_id: row.life for row in taken.rows} == {"old": 0, "new": 1}
    used = ingest.take(TARGET, [Rollout("old", version_start=7, consumptions=(Consumption(9, T + 250),))], T + 300)
    assert used.rows[0].staleness is None and "two incarnations" in used.rows[0].unknown


# ---- samples, details, names, and what is never heard of again


def test_samples_count_nowhere_until_somebody_tells_of_all() -> None:
    table = Table()
    first = table.take(structs.replace(WHOLE[0], sampled=True))
    assert (len(first.rows), first.sums, first.bins) == (1, [], [])
    table.take(Rollout("r0", engine="e1"))
    assert {name: held[0] for (tier, _, name, _, _), held in table.sums.items() if tier == 60_000} == {"trained": 1}


def test_details_are_kept_of_what_one_would_look_at() -> None:
    table = Table()
    plain = [
        Rollout(
            f"p{n}", dispatched_at=T, finished_at=T + 5 + n * 37 % 400 / 100, version_start=1, version_finish=1,
            turns=(Turn(1, 0),), consumptions=(Consumption(2, T + 10),),
        )
        for n in range(400)
    ]  # fmt: skip
    mixed = structs.replace(plain[0], rollout_id="m", version_finish=2)
    lost = structs.replace(plain[0], rollout_id="l", consumptions=(), exit="infra_error")
    table.take(*plain, mixed, lost, structs.replace(plain[0], rollout_id="slow", finished_at=T + 500))
    assert all(table.rows[(name, 0)].detailed for name in ("m", "l", "slow"))
    kept = {name for (name, _), row in table.rows.items() if row.detailed}
    for (name, _), row in table.rows.items():
        assert bool(row.turns) is (name in kept) and row.turn_count == 1
    other = Table()  # a back-fill, in another order, keeps the same of those that are not slow
    other.take(*sorted(plain, key=lambda one: one.rollout_id, reverse=True))
    hashed = {name for name in (f"p{n}" for n in range(400)) if crc32(name.encode()) % 8 == 0}
    assert hashed <= kept and hashed <= {name for (name, _), row in other.rows.items() if row.detailed}
    # An eighth, three that always are, and at most what was among the slowest 5 % when it came.
    assert len(hashed) == 49 and 52 <= len(kept) <= 120


@pytest.mark.parametrize("order", list(permutations(("turns", "mixed", "end"))), ids="-".join)
def test_details_are_those_of_what_is_known_when_it_leaves(order: Sequence[str]) -> None:
    """In any order of what comes before; what is told later decides nothing, for a file may be read again."""
    parts = {
        "turns": Rollout("p0", turns=(Turn(1, 0),)),
        "mixed": Rollout("p0", token_versions=((1, 5), (2, 5))),
        "end": Rollout("p0", finished_at=T + 5, consumptions=(Consumption(3, T + 9),)),
    }
    assert crc32(b"p0") % 8 != 0  # it is none of those that are kept whatever they are
    table = Table()
    table.take(
        Rollout("p0", dispatched_at=T), *[Rollout(f"q{n}", dispatched_at=T, finished_at=T + 90) for n in range(60)]
    )
    for name in order:
        table.take(parts[name])
    row = table.rows[("p0", 0)]
    assert row.detailed is bool(row.turns) is (order.index("mixed") < order.index("end"))
    assert (row.mixed, row.turn_count, row.state) == (True, 1, "trained")


def test_environments_without_end_share_a_cell() -> None:
    table = Table()
    table.take(
        *[Rollout(f"r{n}", environment=f"env{n:03}", exit="trained", scored_at=T) for n in range(MAX_ENVIRONMENTS + 20)]
    )
    named = Counter(environment for tier, _, _, environment, _ in table.sums if tier == 60_000)
    assert len(named) == MAX_ENVIRONMENTS + 1
    assert sum(held[0] for key, held in table.sums.items() if key[0] == 60_000 and key[3] == OTHER) == 20


@pytest.mark.parametrize(("consumption", "limit"), [(False, UNCONSUMED_SECONDS), (True, QUEUED_SECONDS)])
def test_what_nobody_speaks_of_any_more_is_not_in_flight_for_ever(consumption: bool, limit: float) -> None:
    table = Table()
    table.take(Rollout("done", reward=1.0, finished_at=T), Rollout("runs", started_at=T))
    if consumption:
        table.take(Rollout("used", consumptions=(Consumption(1, T),)))
    table.take(Rollout("later", started_at=T + limit - 60))
    assert table.rows[("done", 0)].state == "queued"
    table.take(Rollout("latest", started_at=T + limit + 60))
    assert table.rows[("done", 0)].state == "ended" and table.rows[("runs", 0)].state == "generating"
    table.take(Rollout("done", consumptions=(Consumption(3, T + 50),)))
    assert table.rows[("done", 0)].state == "trained"


def test_rollouts_of_an_older_life_are_not_in_flight() -> None:
    table = Table()
    table.take(Rollout("a", incarnation=0, started_at=T))
    table.take(Rollout("b", incarnation=1, started_at=T + 100))
    assert {name: row.state for (name, _), row in table.rows.items()} == {"a": "ended", "b": "generating"}


def test_the_first_cause_of_an_exit_stays() -> None:
    table = Table()
    table.take(Rollout("a", exit="stale", scored_at=T))
    table.take(Rollout("a", exit="surplus"), Rollout("a", consumptions=(Consumption(1, T + 5),)))
    assert table.rows[("a", 0)].state == "stale"
    assert {key[2]: held[0] for key, held in table.sums.items() if any(held)} == {"stale": 1.0}


def test_siblings_queue_when_the_last_of_them_ends() -> None:
    table = Table(group_size=2)
    table.take(Rollout("a", "g", started_at=T, finished_at=T + 5, reward=1.0, version_finish=3))
    assert table.rows[("a", 0)].state == "waiting_group"
    taken = table.take(Rollout("b", "g", started_at=T, finished_at=T + 9, reward=0.0, version_finish=5))
    assert {row.rollout_id: row.state for row in taken.rows} == {"a": "queued", "b": "queued"}
    assert table.rows[("a", 0)].in_group is None  # nobody told who began it
    assert [arrival.closed for arrival in taken.arrivals] == [True, False]
    assert {arrival.ts for arrival in taken.arrivals} == {T + 9}


def test_what_was_pushed_before_and_taken_after_reaches_the_driver_last() -> None:
    """The driver feeds in the order of these times: an older row that came last would stand."""
    table, use = Table(), Consumption(5, T + 100)
    read = table.take(Rollout("r", version_dispatched=3, finished_at=T + 80, consumptions=(use,)), now=T + 105)
    pushed = table.take(Rollout("r", token_versions=((4, 20),)), now=T + 99)
    assert [one.arrivals[0].ts for one in (read, pushed)] == [T + 100, T + 100]
    assert [one.arrivals[0].row.staleness for one in (read, pushed)] == [2, 1]


def test_a_group_is_complete_when_its_lost_member_was_given_up() -> None:
    table = Table()
    table.take(
        Rollout("a", "g", 2, finished_at=T + 10, scored_at=T + 12, reward=1.0),
        Rollout("b", "g", 2, finished_at=T + 11, exit="env_error", exited_at=T + 26),
    )
    group = table.groups[("g", 0)]
    assert (group.completed_at, group.valid, group.outcome) == (T + 26, 1, "too_few_valid")


def test_a_group_aborted_because_others_were_faster_never_was_complete() -> None:
    """Over-sampling: its members end, and say nothing of how hard the task is; a group that keeps two is judged."""
    table = Table()
    aborted = {"finished_at": T + 10, "exit": "aborted_oversample", "exited_at": T + 12}
    table.take(*(Rollout(f"a{n}", "g", 3, **aborted) for n in range(3)))
    table.take(Rollout("b0", "h", 3, finished_at=T + 9, scored_at=T + 9, reward=1.0),
               *(Rollout(f"b{n}", "h", 3, **aborted) for n in (1, 2)))  # fmt: skip
    table.take(*(Rollout(f"c{n}", "i", 3, finished_at=T + 9, scored_at=T + 9, reward=1.0 * n) for n in range(2)),
               Rollout("c2", "i", 3, **aborted))  # fmt: skip
    assert {key[0]: group.outcome for key, group in table.groups.items()} == {"g": "open", "h": "open", "i": "mixed"}
    assert table.groups[("g", 0)].completed_at is None
