"""Cutting the bulk out of JSON changes nothing else, whatever the texts hold."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from collectors import rollout_files
from collectors.formats import rows

TEXTS = st.one_of(
    st.text(),
    st.text(alphabet='"\\,:[]{} \n1a', max_size=600),
    st.text(alphabet='",', min_size=200, max_size=400),
    st.lists(st.sampled_from(['"', '\\"', "], [", '": "', "x" * 80, "1, 2, 3, " * 10]), max_size=20).map("".join),
)
VALUES = st.recursive(
    TEXTS
    | st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
    | st.lists(st.integers(), max_size=99),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
    max_leaves=12,
)

LISTED = re.compile(r"\[[-+0-9.eE,\struefalsnNI]{64,}\]")


def same(cut: object, whole: object) -> bool:
    """Equal but for long texts that became empty and long lists of numbers that did."""
    if isinstance(whole, dict) and isinstance(cut, dict):
        return list(cut) == list(whole) and all(same(cut[key], one) for key, one in whole.items())
    if isinstance(whole, list) and isinstance(cut, list) and len(cut) == len(whole):
        return all(same(one, other) for one, other in zip(cut, whole, strict=True))
    if cut == [] and isinstance(whole, list):
        return all(one is None or isinstance(one, int | float) or one in ([],) for one in whole)
    if isinstance(whole, str) and cut != whole:
        # A list in a text goes too: the text stays one.
        written = json.dumps(whole)
        return len(written) > rows.KEPT_BYTES if cut == "" else cut == json.loads(LISTED.sub("[]", written))
    return cut == whole


@given(VALUES, st.booleans())
def test_what_is_left_is_the_same_json(value: object, compact: bool) -> None:
    text = json.dumps(value, separators=(",", ":") if compact else None)
    assert same(json.loads(rows.cut(text.encode())), value)
    json.loads(rows.hashed(text.encode()))


def test_long_texts_and_lists_are_gone_and_the_rest_is_there() -> None:
    row = {
        "id": "a" * 36,
        "text": 'He said "no": [1], \\' * 50,
        "tokens": list(range(500)),
        "mask": [[0.5] * 99],
        "n": 3,
    }
    cut = rows.cut(json.dumps(row).encode())
    assert json.loads(cut) == {"id": "a" * 36, "text": "", "tokens": [], "mask": [[]], "n": 3}
    assert len(cut) < 110


def test_a_closing_quote_is_not_taken_for_an_opening_one() -> None:
    """The key ends like what an opening quote follows, and no other quote comes for longer than a text is kept."""
    row = {"said:": [[1]] * 90, "": "a, ", "x": [{}] * 90, "y": 2}
    assert json.loads(rows.cut(json.dumps(row).encode())) == row


def test_equal_texts_have_equal_hashes() -> None:
    first, second, third = json.loads(rows.hashed(json.dumps(["x" * 300, "y" * 300, "x" * 300]).encode()))
    assert first == third != second and len(first) == 17


def test_lists_are_counted_without_being_parsed() -> None:
    raw = json.dumps(
        {"ids": [], "tokens": [4, 5, 6], "mask": [[0, 1, 1, 0]], "flags": [True, False], "flat": [1.0, 0.0]}
    ).encode()
    assert [rollout_files.list_length(raw, key) for key in (b"ids", b"tokens", b"mask", b"absent")] == [0, 3, 4, None]
    assert [rollout_files.mask_ones(raw, key) for key in (b"mask", b"flags", b"flat", b"absent")] == [2, 1, 1, None]


def test_a_loss_mask_may_be_counted_while_it_is_cut() -> None:
    mask = [True, False, True] * 40
    row = {"mask": mask, "short": [True, False], "ids": [7] * 99, "text": f"{json.dumps(mask)} said"}
    for cut in (rows.cut, rows.numbers):
        found = json.loads(cut(json.dumps(row).encode(), counted=True))
        assert (found["mask"], found["short"], found["ids"]) == ([80], [True, False], [])
        assert rows.true_count(found["mask"]) == rows.true_count(mask) == 80 and rows.true_count(found["short"]) == 1
    assert json.loads(rows.cut(json.dumps(row).encode()))["mask"] == []
    assert json.loads(rows.numbers(json.dumps(row).encode(), counted=True))["text"] == "[80] said"
    assert [rows.true_count(one) for one in ([], None, "x", [0], [False])] == [None, None, None, 0, 0]
