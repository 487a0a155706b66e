"""Rollouts in the store: what is written is read, in every order, once. Both databases."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from collectors.model import Consumption, Event, Exit, Rollout, Span, Turn
from server.push import records as push_records
from server.query.types import SORTS
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.store import Store
from server.store import rollouts as stored
from server.store.rollout_pages import BULK, FEW, BadKey, Order, PagePosition, pack, unpack
from server.store.rollouts import ENVIRONMENTS, HOUR, MINUTE, Find, order_of, rollout_groups, rollouts
from server.store.types import Batch, RolloutBin, RolloutSum
from tests.store.helpers import T0, rollout_row


def made(rollout_id: str, life: int = 0, state: str = "trained", moved: int = 0, **given: Any) -> RolloutRow:
    """A row with little in it; keys of the record and of the row alike."""
    record = {name: given.pop(name) for name in list(given) if name in stored.RECORD or name == "spans"}
    if "turn_list" in given:
        record["turns"] = given.pop("turn_list")
    return rollout_row("t", Rollout(rollout_id, **record), life, T0, T0, state, T0 + moved, **given)


FULL = rollout_row(
    "push",
    Rollout(
        "r-1", "g-1", 8, 2, 3, "train", "math", "solver", "hard", "engine-0", 4, 5, 6, ((5, 100), (6, 20)),
        (Consumption(7, 1_700_006_400.5, 3), Consumption(8, None, None)), 1.001, 2.002, 3.003, 4.004, 5.005, 6.006, 6.5,
        11, 120, 119, (Turn(5, 1, True, False, "box", ""), Turn(6, None, None, True, "", "box")), 2, 3, ("box", "bax"),
        0.5, 1.0, -0.25, True, False, "trained", "", True, (Span("tool", 3.5, 3.75, 5, "bash"), Span("boot", 1.0)),
    ),
    3, T0, T0 + 1, "trained", T0 + 2, 4.5, 8, T0 + 3, 3, 1, 1, 1, 2.5, 0.5, 0.25, True, 1, 2, "0:1 1:1", True,
    "why not", True,
)  # fmt: skip
GROUP = RolloutGroupRow(
    "g-1",
    3,
    "math",
    "train",
    8,
    7,
    6,
    5,
    0.0,
    1.0,
    0.5,
    3,
    "mixed",
    True,
    7,
    T0 / 1000,
    (T0 + 1) / 1000,
    (T0 + 2) / 1000,
    1.5,
    True,
)


def test_one_field_list_serves_record_row_table_push_and_api() -> None:
    record = list(Rollout.__struct_fields__)
    own = [name for name in RolloutRow.__struct_fields__ if name not in record]
    assert sorted([*stored.RECORD, *stored.DETAILS]) == sorted(record)
    assert [name for name in stored.ROW if name != "turns"] == own
    assert [c.name for c in rollouts.columns] == ["id", "run", "class", *stored.COLUMNS]
    groups = [name for name in RolloutGroupRow.__struct_fields__ if name != "solve_ratio"]
    assert list(stored.GROUP) == groups
    assert [c.name for c in rollout_groups.columns] == ["id", "run", *groups]
    assert set(push_records.FIELDS) - {"version_consumed", "consumed_at", "weight_versions"} == set(record)


def test_what_is_written_is_read(store: Store) -> None:
    plain = made("r-2", group_id="g-1", life=3)
    store.write(Batch("run", rollouts=[FULL, plain], rollout_groups=[GROUP]))
    assert store.rollouts.get("run", ["r-1", "r-2", "none"]) == [FULL, plain]
    assert store.rollouts.groups("run", [("g-1", 3), ("g-1", 4)]) == [GROUP]
    bare = structs.replace(FULL, turns=(), spans=())
    assert sorted(store.rollouts.members("run", [("g-1", 3)]), key=lambda row: row.rollout_id) == [bare, plain]
    assert store.rollouts.versions("run", 1) == store.rollouts.versions("run", 2) == [bare]
    assert store.rollouts.environments("run") == ["math"]
    assert store.rollouts.get("other", ["r-1"]) == []


def test_a_row_is_replaced_whole_but_for_when_it_was_met(store: Store) -> None:
    store.write(Batch("run", rollouts=[made("a", state="generating", moved=5)]))
    later = structs.replace(made("a", state="trained", moved=9, reward=1.0), first_seen=(T0 + 7) / 1000)
    store.write(Batch("run", rollouts=[made("a", state="scoring", moved=8), later]))
    assert store.rollouts.get("run", ["a"]) == [structs.replace(later, first_seen=T0 / 1000)]
    assert store.rollouts.live("run") == []


def test_details_go_when_they_are_not_kept_any_more(store: Store) -> None:
    with_turns = made("a", turn_list=(Turn(1),), detailed=True)
    store.write(Batch("run", rollouts=[with_turns, made("b", turn_list=(Turn(2),))]))
    assert [row.turns for row in store.rollouts.get("run", ["a", "b"])] == [(Turn(1),), ()]
    store.write(Batch("run", rollouts=[structs.replace(with_turns, detailed=False)]))
    store.write(Batch("run", rollouts=[structs.replace(with_turns, turns=(), detailed=True)]))
    assert store.rollouts.get("run", ["a"])[0].turns == ()


@pytest.mark.parametrize("count", [1, 100])  # both of the bulk paths
def test_increments_are_added_once(store: Store, count: int) -> None:
    sums = [RolloutSum(MINUTE, T0, "trained", f"env {n}", "train", 1, 2, 3, 4, 0.5) for n in range(count)]
    bins = [RolloutBin(MINUTE, T0, "turns", n, 2) for n in range(count)]
    batch = Batch("run", rollout_sums=[*sums, *sums], rollout_bins=[*bins, *bins])
    store.write(batch)
    store.write(batch)  # tried again: the answer to the first was lost
    store.write(Batch("run", rollout_sums=sums, rollout_bins=bins))
    found = store.rollouts.sums("run", T0, T0 + MINUTE)
    assert [structs.replace(one, environment="") for one in found] == [
        RolloutSum(MINUTE, T0, "trained", "", "train", 3, 6, 9, 12, 1.5)
    ] * count
    assert store.rollouts.bins("run", "turns", T0, T0 + 1, MINUTE) == [(T0, n, 6) for n in range(count)]


def test_bins_are_added_up_by_column(store: Store) -> None:
    at = T0 // HOUR * HOUR
    bins = [RolloutBin(MINUTE, at + n * MINUTE, "turns", n % 2, 10 + n) for n in range(6)]
    bins += [RolloutBin(HOUR, at + n * HOUR, "turns", 5, 100 * (n + 1)) for n in range(3)]
    bins += [RolloutBin(MINUTE, at, "seconds", 0, 7), RolloutBin(MINUTE, at + 3 * MINUTE, "turns", 3, 0)]
    store.write(Batch("run", rollout_bins=bins))
    store.write(Batch("other", rollout_bins=[RolloutBin(MINUTE, at, "turns", 0, 1000)]))

    def found(first: float, last: float, width: int) -> list[tuple[int, int, int]]:
        rows = store.rollouts.bins("run", "turns", round(at + first * MINUTE), round(at + last * MINUTE), width)
        return [(int((when - at) / MINUTE), number, n) for when, number, n in rows]

    # Minutes 0 to 5 hold 10 to 15, in bins 0 and 1 by turns; of minute 1 half is asked for, minute 5 is not.
    assert found(1.5, 5, MINUTE) == [(1, 1, 11), (2, 0, 12), (3, 1, 13), (4, 0, 14)]
    assert found(1.5, 5, 3 * MINUTE) == [(0, 0, 12), (0, 1, 11), (3, 0, 14), (3, 1, 13)]
    assert found(0, 6, 6 * MINUTE) == [(0, 0, 36), (0, 1, 39)]
    # Whole hours come from their own tier.
    assert found(0, 180, HOUR) == [(0, 5, 100), (60, 5, 200), (120, 5, 300)]
    assert sum(n for _, _, n in found(0, 180, 2 * HOUR)) == 600


def test_what_is_taken_back_is_gone(store: Store) -> None:
    one = RolloutSum(MINUTE, T0, "trained", "", "train", 1, 2, 3, 4, 0.5)
    back = RolloutSum(MINUTE, T0, "trained", "", "train", -1, -2, -3, -4, -0.5)
    store.write(Batch("run", rollout_sums=[one], rollout_bins=[RolloutBin(MINUTE, T0, "turns", 1, 1)]))
    store.write(Batch("run", rollout_sums=[back], rollout_bins=[RolloutBin(MINUTE, T0, "turns", 1, -1)]))
    assert store.rollouts.sums("run", T0, T0 + HOUR) == []
    assert store.rollouts.bins("run", "turns", T0, T0 + HOUR, MINUTE) == []


def test_a_window_takes_whole_hours_and_minutes_around_them(store: Store) -> None:
    minutes = [T0 + n * MINUTE for n in range(240)]
    hours = [T0 + n * HOUR for n in range(4)]
    sums = [RolloutSum(MINUTE, at, "trained", "", "train", 1, 0, 0, 0, 0.0) for at in minutes]
    sums += [RolloutSum(HOUR, at, "trained", "", "train", 60, 0, 0, 0, 0.0) for at in hours]
    store.write(Batch("run", rollout_sums=sums))
    for first, last in ((0, 240), (1, 239), (59, 61), (60, 120), (30, 31), (61, 61), (119, 181)):
        found = store.rollouts.sums("run", T0 + first * MINUTE, T0 + last * MINUTE)
        assert sum(one.rollouts for one in found) == last - first


def test_live_recent_and_census(store: Store) -> None:
    rows = [
        made("a", state="generating", moved=1000, purpose="train"), made("b", state="generating", moved=500),
        made("c", state="trained", moved=2000), made("d", state="queued", moved=10, life=1),
        made("e", state="ended", moved=3000),
    ]  # fmt: skip
    store.write(Batch("run", rollouts=rows))
    assert [row.rollout_id for row in store.rollouts.live("run")] == ["a", "b", "d"]
    assert [row.rollout_id for row in store.rollouts.live("run", most=1)] == ["a"]
    assert [row.rollout_id for row in store.rollouts.recent("run", T0 + 1000)] == ["a", "c", "e"]
    assert [row.rollout_id for row in store.rollouts.recent("run", T0, most=2)] == ["c", "e"]
    census = sorted(store.rollouts.census("run", 0))
    assert census == [("generating", "", 1, T0 + 500), ("generating", "train", 1, T0 + 1000)]
    assert store.rollouts.census("run", 1) == [("queued", "", 1, T0 + 10)]
    assert store.rollouts.newest_life("run") == 1


def test_the_newest_versions_are_those_of_the_newest_life(store: Store) -> None:
    uses = [("a", 0, (5, 6)), ("b", 0, (7,)), ("c", 1, (2,)), ("d", 1, ()), ("e", 1, (3, 2))]
    store.write(
        Batch("run", rollouts=[made(n, life=at, consumptions=tuple(Consumption(v) for v in vs)) for n, at, vs in uses])
    )
    found = [{row.rollout_id for row in store.rollouts.versions("run", last)} for last in (1, 2, 3, 4, 9)]
    assert found == [{"e"}, {"c", "e"}, {"b", "c", "e"}, {"a", "b", "c", "e"}, {"a", "b", "c", "e"}]


def test_a_version_has_no_rollout_of_the_same_id_in_another_life(store: Store) -> None:
    used = (Consumption(7),)
    rows = [made("a", consumptions=used), made("a", life=1), made("b"), made("b", life=1, consumptions=used)]
    store.write(Batch("run", rollouts=rows))
    found = [(row.rollout_id, row.life) for row in store.rollouts.versions("run", 9)]
    assert found == [("b", 1), ("a", 0)]


def test_environments_without_end_share_a_class_and_are_found_all_the_same(store: Store) -> None:
    names = [f"env {n:03}" for n in range(ENVIRONMENTS + 20)]
    store.write(Batch("run", rollouts=[made(name, environment=name) for name in names]))
    assert len(store.rollouts.environments("run")) == ENVIRONMENTS + 1
    for name in (names[0], names[-1]):
        rows, _, _ = store.rollouts.page("run", Find(environment=name), order_of("moved", True), "", 10)
        assert [row.rollout_id for row in rows] == [name]


def test_what_no_database_takes_is_taken(store: Store) -> None:
    row = made("nul\0 \ud800 \U0001f600", environment="\0", error="\udfff", sandbox_ids=("\0\ud800",))
    store.write(Batch("run", rollouts=[row]))
    (found,) = store.rollouts.get("run", [row.rollout_id])
    assert (found.rollout_id, found.sandbox_ids) == ("nul ? \U0001f600", ("?",))


def test_events_carry_versions_and_come_by_kind(store: Store) -> None:
    said = [Event("weights_published", f"v{n}", version=n) for n in range(5)] + [Event("eval", "e")]
    store.write(Batch("run", events=[(T0 + n, event) for n, event in enumerate(said)]))
    found = store.runs.events("run", T0, T0 + 10, ["weights_published"], 2)
    assert [(ts, event.version) for ts, event in found] == [(T0 + 3, 3), (T0 + 4, 4)]
    assert store.runs.events("run", T0, T0 + 10)[-1][1].version is None


# ---- pages

STATES = (*get_args(Exit)[:3], "generating", "queued")
_rows = st.lists(
    st.tuples(
        st.sampled_from(STATES), st.sampled_from(["", "math", "code"]), st.sampled_from([None, True, False]),
        st.integers(0, 4), st.none() | st.sampled_from([0.0, 0.5, 2.0]), st.none() | st.integers(0, 3),
    ),
    max_size=30,
)  # fmt: skip


def _key(row: RolloutRow, sort: str, number: int) -> tuple[Any, ...]:
    value = {"moved": row.moved_at, "response_tokens": row.response_tokens, "reward": row.reward}.get(
        sort, getattr(row, sort, None)
    )
    return (value, row.moved_at, number)


def _expected(rows: list[RolloutRow], sort: str, descending: bool) -> list[str]:
    keyed = [(_key(row, sort, n), row.rollout_id) for n, row in enumerate(rows)]
    told = sorted(((k, i) for k, i in keyed if k[0] is not None), reverse=descending)
    rest = sorted(((k[1:], i) for k, i in keyed if k[0] is None), reverse=descending)
    return [i for _, i in [*told, *rest]]


def _all(store: Store, run: str, find: Find, sort: str, descending: bool, limit: int) -> Iterator[str]:
    after, order = "", order_of(sort, descending)
    while True:
        rows, after, _ = store.rollouts.page(run, find, order, after, limit)
        assert len(rows) == limit or not after
        yield from (row.rollout_id for row in rows)
        if not after:
            return


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(made_of=_rows, limit=st.integers(2, 9), few=st.sampled_from([0, 3, FEW]))
def test_pages_hold_every_row_once_in_order(store: Store, made_of: list[Any], limit: int, few: int) -> None:
    """In every order, with and without filters, whichever way the rows are found."""
    run = f"run {id(made_of)} {len(made_of)} {limit} {few}"
    rows = [
        made(
            f"{'ab'[n % 2]}{n:02}", state=state, environment=environment, mixed=mixed, moved=moved, seconds=seconds,
            staleness=count, reward=seconds, response_tokens=count, group_id=f"g{n % 3}",
        )
        for n, (state, environment, mixed, moved, seconds, count) in enumerate(made_of)
    ]  # fmt: skip
    store.write(Batch(run, rollouts=rows))  # few: their numbers are their order
    finds = [
        (Find(), lambda row: True),
        (Find(states=("generating", "trained")), lambda r: r.state in ("generating", "trained")),
        (Find(environment="math", mixed=True), lambda r: r.environment == "math" and r.mixed is True),
        (Find(start=T0 + 1, end=T0 + 4), lambda r: T0 + 1 <= r.moved_at * 1000 < T0 + 4),
        (Find(group="g1"), lambda r: r.group_id == "g1"),
        (Find(find="a"), lambda r: r.rollout_id.startswith("a")),
        (Find(group="g1", find="a"), lambda r: r.group_id == "g1" and r.rollout_id.startswith("a")),
        (Find(find="g2", start=T0 + 2), lambda r: r.group_id == "g2" and r.moved_at * 1000 >= T0 + 2),
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.store.rollout_pages.FEW", few)
        for name in ("_TIES", "_SOME", "_LOOK"):
            patch.setattr(f"server.store.rollout_pages.{name}", 2)
        patch.setattr("server.store.rollout_pages._CLASSES", few)
        # With many the one way turns into the other.
        patch.setattr("server.store.rollout_pages._SERVED", few if few < FEW else 0)
        for sort in SORTS:
            for descending in (True, False):
                whole = _expected(rows, sort, descending)
                for find, fits in finds:
                    good = {row.rollout_id for row in rows if fits(row)}
                    found = list(_all(store, run, find, sort, descending, limit))
                    assert found == [one for one in whole if one in good]


def test_a_class_that_holds_more_of_a_page_than_the_others_gives_it_all(store: Store) -> None:
    store.write(Batch("run", rollouts=[made(f"new{n:02}", environment="one", moved=100 + n) for n in range(40)]))
    store.write(Batch("run", rollouts=[made(f"old{n:02}", environment=f"env {n}", moved=n) for n in range(30)]))
    newest = [*(f"new{n:02}" for n in range(39, -1, -1)), *(f"old{n:02}" for n in range(29, -1, -1))]
    assert list(_all(store, "run", Find(), "moved", True, 20)) == newest


def test_a_class_that_the_beginning_did_not_show_loses_nothing_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many of each class a server is asked for is learned from what was met: here it then changes."""
    monkeypatch.setattr("server.store.rollout_pages.FEW", 0)
    spread = [made(f"old{n:02}", environment=f"env {n}", moved=n, group_id="x") for n in range(90)]
    alike = [made(f"new{n:02}", environment="env 7", moved=100 + n, group_id="gx"[n % 2]) for n in range(80)]
    store.write(Batch("run", rollouts=[*spread, *alike]))
    whole = [*(f"old{n:02}" for n in range(90)), *(f"new{n:02}" for n in range(80))]
    assert list(_all(store, "run", Find(), "moved", False, 150)) == whole
    # Of these the first 90 rows are none.
    assert list(_all(store, "run", Find(group="g"), "moved", False, 30)) == whole[90::2]
    assert list(_all(store, "run", Find(group="x"), "moved", False, 100)) == [*whole[:90], *whole[91::2]]


def test_of_more_ids_than_are_sorted_a_page_holds_the_last_and_an_export_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.store.rollout_pages.FEW", 5)
    for name in ("_CLASSES", "_SERVED"):
        monkeypatch.setattr(f"server.store.rollout_pages.{name}", 0)
    # The slowest of them have the first ids, and all the others are slower still.
    store.write(Batch("run", rollouts=[made(f"a{n:02}", seconds=40.0 - n) for n in range(40)]))
    store.write(Batch("run", rollouts=[made(f"b{n:03}", seconds=100.0 + n) for n in range(250)]))
    slowest = [f"a{n:02}" for n in range(40)]
    find = Find(find="a")
    assert list(_all(store, "run", find, "seconds", True, 8)) == slowest[30:]
    assert list(_all(store, "run", find, "seconds", True, BULK)) == slowest
    # Where the order begins with them, none is left out.
    assert list(_all(store, "run", find, "seconds", False, 8)) == slowest[::-1]
    # And a page says which of these it is.
    for descending, limit, complete in ((True, 8, False), (True, BULK, True), (False, 8, True)):
        assert store.rollouts.page("run", find, order_of("seconds", descending), "", limit)[2] is complete
    assert store.rollouts.page("run", Find(find="a0"), order_of("seconds", True), "", 8)[2] is True


def test_pages_of_groups(store: Store) -> None:
    groups = [
        structs.replace(
            GROUP,
            group_id=f"g{n}",
            moved_at=(T0 + n // 2) / 1000,
            outcome=stored.OUTCOMES[n % 6],
            environment=f"e{n % 2}",
        )
        for n in range(30)
    ]
    for group in groups:
        store.write(Batch("run", rollout_groups=[group]))
    for outcomes, environment in (
        ((), ""),
        (("mixed", "open"), ""),
        ((), "e1"),
        (("all_solved",), "e0"),
        (("open",), "e1"),
    ):
        found, after = store.rollouts.group_page("run", outcomes, environment, "", 4)
        while after:
            more, after = store.rollouts.group_page("run", outcomes, environment, after, 4)
            found += more
        fits = [
            g
            for g in reversed(groups)
            if g.outcome in (outcomes or stored.OUTCOMES) and environment in ("", g.environment)
        ]
        assert found == fits


@pytest.mark.parametrize(
    "after", ["x", "[]", "bnVsbA", "\ud800", "\0", "é", "W10", "WyJyZXdhcmQiLHRydWUsZmFsc2UsWzEsMiwzXV0", "A" * 5000]
)
def test_a_foreign_key_is_refused(store: Store, after: str) -> None:
    with pytest.raises(BadKey):
        store.rollouts.page("run", Find(), order_of("seconds", True), after, 10)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_any_key_is_a_place_or_refused(said: Any) -> None:
    import base64  # noqa: PLC0415
    import json  # noqa: PLC0415

    order = Order("rollouts", "ix", "class", "seconds", True)
    text = base64.urlsafe_b64encode(json.dumps(["seconds", True, False, said]).encode()).decode()
    try:
        place = unpack(order, text)
    except BadKey:
        return
    assert isinstance(place, PagePosition) and unpack(order, pack(order, place)) == place
