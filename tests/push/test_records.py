"""Rollouts and events as they are pushed: fields, bad lines, limits, and what waits in the inbox. No store."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Consumption, Event, Reading, Rollout, Span, Turn
from server.push import inbox as readings
from server.push.inbox import Outcome, pack_records, unpack_records
from server.push.records import (
    EVENT_FIELDS,
    FIELDS,
    LINE_BYTES,
    MAX_LINES,
    PushedRecords,
    Refusal,
    parse,
    records_of,
    rollout,
)
from server.rollouts.merge import cleaned

NOW = 1_800_000_000.0


def record(item: dict[str, Any]) -> Rollout:
    """What the store would be given of one pushed rollout."""
    return cleaned(rollout(json.dumps(item).encode(), NOW))


def taken(body: bytes, kind: Any = "rollouts", **more: Any) -> list[Any]:
    """The records of a body without a bad line."""
    found = parse(body, kind, NOW, **more)
    assert not found.refused
    return records(found, kind)


def records(found: PushedRecords, kind: Any = "rollouts") -> list[Any]:
    made, lost, _ = records_of(kind, found.lines, NOW)
    assert not lost
    return made


# As docs/how-to/push.md lists them: each must be accepted.
DOCUMENTED = {
    "rollout_id": "r", "group_id": "g", "group_size": 8, "purpose": "train", "environment": "math", "agent": "solver",
    "incarnation": 2, "version_dispatched": 1, "version_start": 2, "version_finish": 3, "version_consumed": 4,
    "token_versions": [[2, 100], [3, 50]], "dispatched_at": NOW - 9, "started_at": NOW - 8, "first_token_at": NOW - 7,
    "finished_at": NOW - 6, "scored_at": NOW - 5, "group_complete_at": NOW - 4, "consumed_at": NOW - 3.0006,
    "prompt_tokens": 10, "response_tokens": 150, "loss_tokens": 149,
    "turns": [{"version": 2, "tool_calls": 1, "mutated": True, "reset": False, "sandbox_id": "box"}, {}],
    "tool_calls": 1, "reward": 1, "max_reward": 1.0, "advantage": -0.5, "exit": "trained",
}  # fmt: skip
REST = {
    "attempt": 1, "difficulty": "hard", "engine": "e0", "solved": True, "truncated": False, "error": "E",
    "sandbox_ids": ["box", "bax"], "sampled": True, "exited_at": NOW - 3.5,
    "spans": [{"kind": "tool", "start": NOW - 8, "end": NOW - 7.5, "version": 2, "detail": "bash"},
              {"kind": "boot", "start": NOW}],
}  # fmt: skip
WHOLE = Rollout(
    "r", "g", 8, 1, 2, "train", "math", "solver", "hard", "e0", 1, 2, 3, ((2, 100), (3, 50)),
    (Consumption(4, NOW - 3.001, 2),), NOW - 9, NOW - 8, NOW - 7, NOW - 6, NOW - 5, NOW - 4, NOW - 3.5, 10, 150, 149,
    (Turn(2, 1, True, False, "box"), Turn()), None, 1, ("box", "bax"), 1.0, 1.0, -0.5, True, False, "trained", "E",
    True, (Span("tool", NOW - 8, NOW - 7.5, 2, "bash"), Span("boot", NOW)),
)  # fmt: skip


def test_every_field_of_the_design_and_of_the_record_is_taken() -> None:
    assert record(DOCUMENTED | REST) == cleaned(WHOLE)
    assert set(DOCUMENTED | REST) == set(FIELDS) - {"weight_versions", "consumptions", "turn_count"}
    assert set(EVENT_FIELDS) == set(Event.__struct_fields__)


def test_what_is_null_is_not_told() -> None:
    assert record({name: None for name in FIELDS} | {"rollout_id": "r"}) == Rollout("r")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"turns": 7}, {"turn_count": 7}),
        ({"turns": []}, {}),
        ({"turns": [{"forked_from": "a"}]}, {"turns": (Turn(forked_from="a"),)}),
        ({"version_consumed": [4, 5]}, {"consumptions": (Consumption(4), Consumption(5))}),
        ({"consumed_at": NOW}, {"consumptions": (Consumption(None, NOW),)}),
        (
            {"version_consumed": [4, 5], "consumed_at": [NOW, NOW + 1], "incarnation": 3},
            {"consumptions": (Consumption(4, NOW, 3), Consumption(5, NOW + 1, 3)), "incarnation": 3},
        ),
        (
            {"version_consumed": [4, 4], "consumptions": [{"version": 4, "at": NOW}]},
            {"consumptions": (Consumption(4, NOW),)},
        ),
        ({"version_start": 3.0}, {"version_start": 3}),
        ({"response_tokens": 10**9, "tool_calls": 10**7}, {"response_tokens": 10**9, "tool_calls": 10**7}),
        ({"token_versions": [[2**53, 10**9]]}, {"token_versions": ((2**53, 10**9),)}),
        ({"weight_versions": [{"version": "v4", "start": 0, "end": 9}]}, {"token_versions": ((4, 9),)}),
        ({"environment": "x" * 300}, {"environment": "x" * 200}),
        ({"environment": "a\0b\ud800\U0001f600"}, {"environment": "ab?\U0001f600"}),
        ({"started_at": NOW + 0.12349}, {"started_at": NOW + 0.123}),
    ],
)
def test_other_ways_to_say_it(said: dict[str, Any], told: dict[str, Any]) -> None:
    assert record({"rollout_id": "r", **said}) == cleaned(Rollout("r", **told))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "not a JSON object"),
        ("5", "not a JSON object"),
        ("{", "not JSON: Expecting property name"),
        ("{}", "rollout_id is missing"),
        ('{"rollout_id": ""}', "rollout_id must be a text of 1 to 200 characters"),
        ('{"rollout_id": 5}', "rollout_id must be a text"),
        ('{"rollout_id": "a", "colour": 1}', "unknown field 'colour'; known: rollout_id"),
        ('{"rollout_id": "a", "reward": NaN}', "NaN is not a number"),
        ('{"rollout_id": "a", "reward": -Infinity}', "-Infinity is not a number"),
        ('{"rollout_id": "a", "reward": "high"}', "reward must be a finite number"),
        ('{"rollout_id": "a", "reward": true}', "reward must be a finite number"),
        ('{"rollout_id": "a", "reward": 1e999}', "reward must be a finite number"),
        ('{"rollout_id": "a", "response_tokens": -1}', "response_tokens must be a whole number from 0 to 1000000000"),
        ('{"rollout_id": "a", "response_tokens": 1.5}', "response_tokens must be a whole number from 0 to 1000000000"),
        ('{"rollout_id": "a", "response_tokens": 1e30}', "response_tokens must be a whole number from 0 to 1000000000"),
        ('{"rollout_id": "a", "reward": ' + "9" * 400 + "}", "reward must be a finite number"),
        ('{"rollout_id": "a", "max_reward": ' + "9" * 400 + "}", "max_reward must be a finite number"),
        ('{"rollout_id": "a", "advantage": -' + "9" * 400 + "}", "advantage must be a finite number"),
        ('{"rollout_id": "a", "response_tokens": 1000000001}', "must be a whole number from 0 to 1000000000"),
        ('{"rollout_id": "a", "prompt_tokens": 1e12}', "prompt_tokens must be a whole number from 0 to 1000000000"),
        ('{"rollout_id": "a", "loss_tokens": 9007199254740992}', "loss_tokens must be a whole number from 0 to 10000"),
        ('{"rollout_id": "a", "token_versions": [[1, 1000000001]]}', "[version, loss tokens], up to 1000000000"),
        ('{"rollout_id": "a", "turns": 10000001}', "turn_count must be a whole number from 0 to 10000000"),
        ('{"rollout_id": "a", "tool_calls": 10000001}', "tool_calls must be a whole number from 0 to 10000000"),
        ('{"rollout_id": "a", "solved": 1}', "solved must be true or false"),
        ('{"rollout_id": "a", "exit": "lost"}', "exit must be one of trained, "),
        ('{"rollout_id": "a", "started_at": 1800000000000}', "started_at must be epoch seconds, from 2000"),
        ('{"rollout_id": "a", "started_at": 5}', "started_at must be epoch seconds, from 2000"),
        ('{"rollout_id": "a", "turns": -1}', "turn_count must be a whole number from 0 to 10000000"),
        ('{"rollout_id": "a", "turns": [5]}', "turns must be a list of at most 10000 objects, or a count"),
        ('{"rollout_id": "a", "turns": [{"mutated": 1}]}', "turns.mutated must be true or false"),
        ('{"rollout_id": "a", "turns": [{"text": ""}]}', "turns: unknown field 'text'"),
        ('{"rollout_id": "a", "spans": [{"kind": "tool"}]}', "spans.start is missing"),
        ('{"rollout_id": "a", "spans": [{"start": 1.8e9}]}', "spans.kind is missing"),
        ('{"rollout_id": "a", "spans": [{"kind": "tool", "start": 1.8e9, "end": 1.7e9}]}', "spans: it ends before"),
        ('{"rollout_id": "a", "token_versions": [[1]]}', "a list of at most 10000 [version, loss tokens]"),
        ('{"rollout_id": "a", "weight_versions": [{"version": "x"}]}', "weight_versions must be the engine's"),
        ('{"rollout_id": "a", "version_consumed": [1, 2], "consumed_at": [1.8e9]}', "must have the same length"),
        (json.dumps({"rollout_id": "x" * 201}), "rollout_id must be a text of 1 to 200 characters"),
        (json.dumps({"rollout_id": "a", "turns": [{}] * 10_001}), "turns must be a list of at most 10000 objects"),
        (json.dumps({"rollout_id": "a", "error": "x" * (10 << 20)}), f"a line may have at most {LINE_BYTES} bytes"),
        ('{"rollout_id": "a", "turns": ' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON: too deep"),
        ('{"rollout_id": "a", "group_size": ' + "9" * 5_000 + "}", "4300 digits"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_its_number_and_the_rest_is_taken(line: str, why: str) -> None:
    body = f'{{"rollout_id": "first"}}\n\n{line}\n{{"rollout_id": "last"}}\n'
    found = parse(body.encode(), "rollouts", NOW)
    assert [one.rollout_id for one in records(found)] == ["first", "last"]
    ((number, said),) = found.refused
    assert number == 3 and why in said


def test_bytes_that_are_no_text_are_a_bad_line() -> None:
    found = parse(b'{"rollout_id": "a"}\n{"rollout_id": "\xff"}', "rollouts", NOW)
    assert (len(found.lines), found.refused) == (1, [(2, "not UTF-8")])


def test_a_line_separator_within_a_text_ends_no_line() -> None:
    assert taken('{"rollout_id": "a\u2028b\x85"}'.encode()) == [Rollout("a\u2028b\x85")]


@pytest.mark.parametrize(
    "body",
    ['{"rollout_id": "a"}', '[{"rollout_id": "a"}]', '{\n  "rollout_id":\n "a"\n}\n', '\n {"rollout_id": "a"} \r\n'],
)
def test_an_object_a_list_or_lines(body: str) -> None:
    assert taken(body.encode()) == [Rollout("a")]


@pytest.mark.parametrize("document", [False, True])
@pytest.mark.parametrize(
    "body",
    ['{ "rollout_id": "a",\n  "reward": 1\n}', '{"rollout_id":\n"a", "reward": 1}\n',
     '{\n"rollout_id": "a", "reward": 1}'],
)  # fmt: skip
def test_an_object_may_break_its_lines_anywhere(body: str, document: bool) -> None:
    assert taken(body.encode(), document=document) == [Rollout("a", reward=1.0)]


def test_a_document_that_breaks_off_is_none_and_lines_are_taken_under_any_name() -> None:
    torn = b'{"rollout_id": "a",\n "reward": '
    with pytest.raises(Refusal, match="the body is not JSON"):
        parse(torn, "rollouts", NOW, document=True)
    assert [number for number, _ in parse(torn, "rollouts", NOW).refused] == [1, 2]
    lines = b'{"rollout_id": "a"}\n{"rollout_id": "b"}'
    assert taken(lines, document=True) == [Rollout("a"), Rollout("b")]
    torn_first = parse(b'{"rollout_id": "a",\n{"rollout_id": "b"}', "rollouts", NOW)
    assert (records(torn_first), [number for number, _ in torn_first.refused]) == ([Rollout("b")], [1])


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("group_size", 0, "group_size must be a whole number from 1 on"),
        ("incarnation", 2_147_483_648, "incarnation must be a whole number from 0 to 2147483647"),
    ],
)  # fmt: skip
def test_a_size_and_a_life_have_bounds(field: str, value: int, why: str) -> None:
    lines = [{"rollout_id": "a", field: value}, {"rollout_id": "b", field: max(1, value - 1)}]
    found = parse("\n".join(map(json.dumps, lines)).encode(), "rollouts", NOW)
    assert (found.refused, [one.rollout_id for one in records(found)]) == ([(1, why)], ["b"])


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b" \n ", 400), (b"[", 400), (b"[" * 100_000, 400), (b"{}\n" * (MAX_LINES + 1), 413)],
)
def test_a_body_that_cannot_be_taken_as_a_whole(body: bytes, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        parse(body, "rollouts", NOW)
    assert refused.value.status == status


def test_what_is_refused_is_counted_beyond_what_is_listed() -> None:
    found = parse(b"x\n" * 5_000, "rollouts", NOW)
    assert (found.lost, len(found.refused), found.refused[-1][0]) == (5_000, 1_000, 1_000)


def test_events() -> None:
    body = [
        {"kind": "weights_published", "version": 7, "ts": NOW - 1}, {"kind": "weights_published", "version": 8},
        {"kind": "checkpoint", "key": "c-1", "detail": "step 5"}, {"kind": "restart", "ts": NOW - 2},
        {"kind": "party"}, {"kind": "eval", "colour": 1}, {"kind": "eval", "version": -1}, {"kind": "eval", "ts": 5},
        {"kind": "resume", "key": "r-1"}, {"kind": "restart"}, {"kind": "resume", "version": 3, "key": ""},
    ]  # fmt: skip
    found = parse(json.dumps(body).encode(), "events", NOW)
    assert records(found, "events") == [
        Event("weights_published", f"weights_published:v7:{NOW - 1:.3f}", NOW - 1, "", 7),
        Event("weights_published", "weights_published:v8", NOW, "", 8),
        Event("checkpoint", "c-1", NOW, "step 5"), Event("restart", f"restart:{NOW - 2:.3f}", NOW - 2),
        Event("resume", "r-1", NOW),
    ]  # fmt: skip
    assert [number for number, _ in found.refused] == [5, 6, 7, 8, 10, 11]
    assert found.refused[-2][1] == "a restart needs ts or key, so that a repeated request is the same event"


@pytest.mark.parametrize("kind", ["rollouts", "events"])
def test_what_waits_is_read_as_it_was_taken(kind: Any) -> None:
    items: list[Any] = [DOCUMENTED | REST, {"rollout_id": "b"}] if kind == "rollouts" else [{"kind": "eval"}]
    found = parse(json.dumps(items).encode(), kind, NOW)
    back = unpack_records(pack_records(kind, found.lines), NOW)
    assert (list(back.rollouts), list(back.events)) == (
        (records(found), []) if kind == "rollouts" else ([], records(found, kind))
    )


def test_a_line_that_another_version_took_holds_nothing_up() -> None:
    back = unpack_records(pack_records("rollouts", [b'{"rollout_id": "a", "later": 1}', b'{"rollout_id": "b"}']), NOW)
    assert (back.rollouts, back.dropped, back.why_dropped[:21]) == ((Rollout("b"),), 1, "unknown field 'later'")
    with pytest.raises(ValueError, match="not packed"):
        unpack_records(b"records\nnonsense", NOW)


def test_what_is_forwarded_loses_nothing() -> None:
    uses = (Consumption(1, NOW, 0), Consumption(None, None, 5))
    odd = Rollout("odd", consumptions=uses, turns=(Turn(mutated=False, reset=True),), turn_count=3, solved=False)
    event = Event("weights_published", "k", NOW, "", 9)
    many = tuple(Rollout(str(n), turn_count=n) for n in range(2_500))
    reading = Reading(rollouts=(WHOLE, odd, *many), events=(event,), cursor={"at": 1})
    back = [readings.read(body) for body in readings.bodies(Outcome(NOW, 0.5, reading=reading))]
    found = [one.reading for one in back if one.reading is not None]
    assert [one for part in found for one in part.rollouts] == [WHOLE, odd, *many]
    assert [one for part in found for one in part.events] == [event]
    assert [len(part.rollouts) for part in found] == [1_000, 1_000, 502]
    assert readings.weight(back[0]) == 5 * 1_000 + 1


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda one: st.lists(one, max_size=3),
    max_leaves=4,
)
_names = st.sampled_from([*FIELDS, "x"])


@given(st.lists(st.dictionaries(_names, _json, max_size=5) | _json, max_size=4))
def test_any_json_is_records_or_named_lines(items: list[object]) -> None:
    body = "\n".join(json.dumps(item) for item in items).encode()
    try:
        found = parse(body, "rollouts", NOW)
    except Refusal:
        return
    assert list(unpack_records(pack_records("rollouts", found.lines), NOW).rollouts) == records(found)
