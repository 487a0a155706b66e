"""Rows and pages of the Rollouts page, and the one rollout that is opened."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec import structs

from collectors.model import Turn
from dashboard.charts.time_columns import grid
from dashboard.pages.rollouts.records import MANY, ages
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.rollout_cells import HOUR, ids, view


@pytest.fixture
def reader() -> MemoryReader:
    return made.reader()


def test_table_has_the_stragglers_first(reader: MemoryReader) -> None:
    found = view(reader)
    rows = [row for row in reader.records(made.ASYNC).rows.values() if row.moved_at >= grid(HOUR).start]
    slow = sorted((row for row in rows if row.seconds is not None), key=lambda row: -(row.seconds or 0))
    assert ids(found) == [row.rollout_id for row in slow[:50]]
    assert found["rollout_rows.n"] == "active in the time shown" and found["rollout_rows.timed"] == 1


@pytest.mark.parametrize(
    ("search", "words"),
    [("state=in_flight", "in flight, any time"), ("find=r-0", "any time"), ("group=g-0001", "any time")],
)
def test_what_is_old_is_found(reader: MemoryReader, search: str, words: str) -> None:
    """A straggler that has not moved for hours is what somebody looks for."""
    old = made.made("r-0old", "generating", 30_000, group_id="g-0001")
    reader.put_rollouts(made.ASYNC, old)
    assert "r-0old" not in ids(view(reader, search="state=generating,trained&sort=moved&order=asc"))
    found = view(reader, search=search + "&sort=moved&order=asc")
    assert ids(found)[0] == "r-0old" and found["rollout_rows.n"] == words


def test_pages_follow_each_other_by_key(reader: MemoryReader) -> None:
    seen: list[str] = []
    found = view(reader, search="environment=math")
    seen += ids(found)
    after = found["rollout_rows.after"]
    while after:
        found = view(reader, search="environment=math&" + urlencode({"after": after}))
        more = found["rollout_rows.more"]
        assert more["after"] == after
        seen += [row["rollout_id"] for row in more["rows"]]
        after = more["next"]
    rows = [row for row in reader.records(made.ASYNC).rows.values()
            if row.environment == "math" and row.moved_at >= grid(HOUR).start]  # fmt: skip
    assert len(seen) == len(set(seen)) == len(rows) > 500


def test_key_of_another_order_is_an_empty_page(reader: MemoryReader) -> None:
    assert view(reader, search="after=garbage")["rollout_rows.more"] == {"after": "garbage", "rows": [], "next": ""}


def test_groups_by_outcome(reader: MemoryReader) -> None:
    found = view(reader, search="outcome=none_solved")
    rows = [found[f"group_rows.r.{handle}"] for handle in found["group_rows.order"]]
    assert len(rows) == 12 and {row["outcome"] for row in rows} == {"none_solved"}
    names = ("reward_min", "reward_max", "reward_mean", "solve_ratio")
    assert {row[name] for row in rows for name in names} == {0.0}
    assert found["group_rows.after"]


def test_hostile_names_are_data(reader: MemoryReader) -> None:
    names = ["<script>alert(1)</script>", "\u202egnp.exe", "🦊" * 60, "x" * 200, "__proto__", "a/b?c#d", "\ud800"]
    rows = [made.made(name, "infra_error", 1, seconds=90_000.0 - i, error=name, environment=name, engine=name)
            for i, name in enumerate(names)]  # fmt: skip
    reader.put_rollouts(made.ASYNC, *rows)
    found = view(reader, search="state=infra_error")
    assert ids(found)[: len(names)] == names
    assert json.loads(json.dumps(found["rollout_rows.order"])) == found["rollout_rows.order"]


def test_lives_of_one_id_are_two_rows(reader: MemoryReader) -> None:
    for life in (1, 2):
        reader.put_rollouts(made.ASYNC, structs.replace(made.made("twice", "stale", 1, seconds=90_000.0), life=life))
    assert ids(view(reader))[:2] == ["twice", "twice"]


# ---- one rollout


def test_open_rollout_has_its_timeline(reader: MemoryReader) -> None:
    found = view(reader, search=f"rollout={made.OPEN}&life=1")["rollout_detail"]
    assert [span["kind"] for span in found["spans"]] == ["queued", "boot", "prefill", "decode", "tool", "decode",
        "suspended", "decode", "scoring", "waiting_group", "in_queue"]  # fmt: skip
    first = found["versions"][0][0]
    assert found["versions"] == [[first, 1000], [first + 1, 1200], [first + 2, 1800]]
    # The state was changed by the first turn; a reset makes it young.
    assert [turn["age"] for turn in found["turns"]] == [None, 1, 2, None]
    assert len(found["siblings"]) == 7 and found["told"] is True
    assert [update["version"] for update in found["updates"]] == [first + 1, first + 2, first + 3, first + 4]


def test_a_sandbox_known_by_its_id_alone_is_shown(reader: MemoryReader) -> None:
    kept = reader.records(made.ASYNC).details
    detail = kept[made.OPEN, 1]
    row = structs.replace(detail.rollout, sandbox_ids=("sbx-9", "sbx-1"), turns=(Turn(1, sandbox_id="sbx-t"),))
    kept[made.OPEN, 1] = structs.replace(detail, rollout=row)
    assert view(reader, search=f"rollout={made.OPEN}&life=1")["rollout_detail"]["boxes"] == [
        {"id": "sbx-9", "provider": "", "state": "provider not collected"},
        {"id": "sbx-1", "provider": "prime", "state": "terminated"},
        {"id": "sbx-t", "provider": "", "state": "provider not collected"},
    ]  # fmt: skip


def test_a_page_that_does_not_hold_all_says_so(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reader.rollout_page
    monkeypatch.setattr(
        reader, "rollout_page", lambda *args, **kwargs: structs.replace(whole(*args, **kwargs), complete=False)
    )
    assert view(reader, search="find=r-0")["rollout_rows.n"] == "any time · " + MANY


def test_no_rollout_of_that_name(reader: MemoryReader) -> None:
    found = view(reader, search="rollout=absent")
    assert found["rollout_detail.none"] == "absent" and "rollout_detail" not in found
    assert view(reader, search=f"rollout={made.OPEN}&life=7")["rollout_detail.none"] == made.OPEN


def test_age_of_a_state() -> None:
    def turn(version: int | None, tools: int = 0, **more: Any) -> Turn:
        return structs.replace(Turn(version, tools, sandbox_id="a"), **more)

    told = [
        turn(3, 1),
        turn(5),  # reads on: the state is of version 3
        turn(6, 2, mutated=False),  # a call that changed nothing leaves no trace
        turn(8, 1),
        turn(9),  # oldest change 3, latest 8
        turn(9, sandbox_id="b", forked_from="a"),  # a fork inherits
        turn(10, 1, reset=True),
        turn(11),
        turn(None, 1),
        turn(12, sandbox_id="c"),
    ]
    assert ages(told) == [
        (None, None), (2, 2), (3, 3), (5, 5), (6, 1), (6, 1), (None, None), (1, 1), (None, None), (None, None),
    ]  # fmt: skip
