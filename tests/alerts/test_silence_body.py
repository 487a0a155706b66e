"""Silences as people send them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.alerts.silences import parse
from server.lib.matchers import Matcher

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
GOOD: dict[str, Any] = {
    "matchers": [{"name": "alertname", "value": "RunStalled", "isRegex": False, "isEqual": True}],
    "startsAt": "2027-01-15T08:00:00Z",
    "endsAt": "2027-01-15T09:00:00+00:00",
    "createdBy": "alice",
    "comment": "maintenance",
}


def body(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_silence_is_taken_as_alertmanager_takes_it() -> None:
    found = parse(body(), "id-1", NOW)
    assert found.matchers == (Matcher("alertname", "=", "RunStalled"),)
    assert (found.starts_at, found.ends_at) == (1_800_000_000.0, 1_800_003_600.0)
    assert (found.id, found.created_by, found.comment) == ("id-1", "alice", "maintenance")


def test_a_start_in_the_past_is_now_and_times_may_be_numbers() -> None:
    assert parse(body(startsAt=NOW - 500, endsAt=NOW + 60), "i", NOW).starts_at == 1_800_000_000.0


def test_operators_come_from_the_two_flags() -> None:
    flags = [(True, False), (False, False), (True, True), (False, True)]
    matchers = [{"name": "a", "value": "b", "isEqual": equal, "isRegex": regex} for equal, regex in flags]
    assert [one.op for one in parse(body(matchers=matchers), "i", NOW).matchers] == ["=", "!=", "=~", "!~"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"matchers": []}, "1 to 50"),
        ({"matchers": [{"name": "a", "value": ".*", "isRegex": True}]}, "must not match every alert"),
        ({"matchers": [{"name": "a", "value": ""}]}, "must not match every alert"),
        ({"matchers": [{"name": "a", "value": "(x+)+", "isRegex": True}]}, "repeated groups"),
        ({"matchers": [{"name": "a-b", "value": "x"}]}, "not a label name"),
        ({"matchers": [{"value": "x"}]}, "a matcher is"),
        ({"matchers": [{"name": "a", "value": "\ud800"}]}, "characters that no label has"),
        ({"matchers": [{"name": "a", "value": "x\0"}]}, "characters that no label has"),
        ({"matchers": [{"name": "a", "value": "x", "isRegex": 1}]}, "true or false"),
        ({"endsAt": "2027-01-15T07:00:00Z"}, "in the future"),
        ({"endsAt": "2027-01-15T09:00:00"}, "time zone"),
        ({"endsAt": "tomorrow"}, "must be a time"),
        ({"endsAt": None}, "must be a time"),
        ({"endsAt": 1e30}, "must be a time"),
        ({"endsAt": True}, "must be a time"),
        ({"comment": "x" * 3000}, "at most 2000"),
        ({"createdBy": 7}, "must be a text"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(body(**changes), "i", NOW)


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"\xff", b"{" * 100_000, b'{"matchers": 3}'])
def test_no_body_is_worse_than_a_clear_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(raw, "i", NOW)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9), st.lists, max_leaves=9))
def test_any_json_in_any_place_is_an_error_not_a_crash(value: object) -> None:
    for key in GOOD:
        try:
            parse(json.dumps({**GOOD, key: value}).encode(), "i", NOW)
        except ValueError as error:
            assert str(error)
