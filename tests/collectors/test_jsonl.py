"""Tails of growing files: every row exactly once, whatever the file does between two calls."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import jsonl
from collectors.model import Limits, ScrapeError
from collectors.transport import bytetail


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def drain(path: Path, cursor: dict, limits: Limits) -> tuple[list[dict], dict, int]:
    """Call until nothing more is there; the cursor goes through JSON, as in the store."""
    rows, dropped = [], 0
    while True:
        read = jsonl.read_jsonl(path, json.loads(json.dumps(cursor)), limits)
        rows += read.rows
        dropped += read.dropped
        cursor = read.cursor
        if not read.more:
            return rows, cursor, dropped


values = st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=8), st.none()), max_size=3)


@given(st.lists(values, max_size=12), st.data())
def test_any_split_into_appends_gives_every_row_once(tmp_path_factory, rows: list[dict], data) -> None:
    stream = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    limits = Limits(tail_rows=data.draw(st.integers(1, 5)), tail_bytes=data.draw(st.integers(1, 64)), line_bytes=200)
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    path.touch()
    got, cursor = [], {}
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        append(path, stream[start:end])
        part, cursor, dropped = drain(path, cursor, limits)
        got += part
        assert dropped == 0
    assert got == rows


def test_an_unfinished_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, b'{"step": 1}\n{"st')
    rows, cursor, _ = drain(path, {}, Limits())
    assert rows == [{"step": 1}]
    append(path, b'ep": 2}\n')
    assert drain(path, cursor, Limits())[0] == [{"step": 2}]


@pytest.mark.parametrize("broken", [b"{nope", b"[1, 2]", b"3", b"\xff\xfe", b"[" * 100_000, b"1" * 5000])
def test_a_broken_line_is_counted_and_passed(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "m.jsonl"
    append(path, b'{"step": 1}\n' + broken + b'\n{"step": 2}\n')
    read = jsonl.read_jsonl(path, {}, Limits())
    assert read.rows == [{"step": 1}, {"step": 2}]
    assert (read.dropped, read.why) == (1, "the line at byte 12 of m.jsonl is not a JSON object")


def test_a_line_over_the_limit_is_passed_even_while_it_grows(tmp_path: Path) -> None:
    path, limits = tmp_path / "m.jsonl", Limits(line_bytes=20, tail_bytes=30)
    append(path, b'{"step": 1}\n{"text": "' + b"x" * 500)
    rows, cursor, dropped = drain(path, {}, limits)
    assert (rows, dropped) == ([{"step": 1}], 1)
    append(path, b"y" * 500)
    rows, cursor, dropped = drain(path, cursor, limits)
    assert (rows, dropped) == ([], 0)  # one line, one count
    append(path, b'"}\n{"step": 2}\n')
    rows, _, dropped = drain(path, cursor, limits)
    assert (rows, dropped) == ([{"step": 2}], 0)


def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, b'{"step": 1}\n{"step": 12}\n')
    assert drain(path, {}, Limits(line_bytes=11, tail_bytes=5))[::2] == ([{"step": 1}], 1)


def test_a_new_file_in_its_place_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, b'{"step": 1}\n{"step": 2}\n')
    _, cursor, _ = drain(path, {}, Limits())
    os.replace(path, tmp_path / "m.jsonl.1")
    append(path, b'{"step": 3}\n')
    read = jsonl.read_jsonl(path, cursor, Limits())
    assert (read.rows, read.restarted) == ([{"step": 3}], True)


def numbered(first: int, last: int) -> bytes:
    return b"".join(b'{"step": %d}\n' % number for number in range(first, last + 1))


@pytest.mark.parametrize("read_before", [50, 0])
def test_a_rotated_file_is_finished_first(tmp_path: Path, read_before: int) -> None:
    """Rows 51 to 100 were appended and the file renamed between two looks; 101 to 150 are in a new one."""
    path = tmp_path / "exp.jsonl"
    path.write_bytes(numbered(1, read_before))
    _, cursor, _ = drain(path, {}, Limits())
    append(path, numbered(read_before + 1, 100))
    path.rename(tmp_path / "exp.jsonl.1")
    append(path, numbered(101, 150))
    rows, cursor, dropped = drain(path, cursor, Limits(tail_rows=20))
    assert ([row["step"] for row in rows], dropped) == (list(range(read_before + 1, 151)), 0)
    append(path, numbered(151, 151))
    assert drain(path, cursor, Limits())[0] == [{"step": 151}]


def test_a_rotated_file_whose_last_line_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "exp.jsonl"
    path.write_bytes(numbered(1, 2))
    _, cursor, _ = drain(path, {}, Limits())
    append(path, b'{"st')
    path.rename(tmp_path / "exp.jsonl.1")
    append(path, numbered(3, 3))
    read = jsonl.read_jsonl(path, cursor, Limits())
    assert (read.rows, read.dropped, read.why) == ([{"step": 3}], 1, bytetail.UNFINISHED)


def test_what_a_rotation_or_a_truncation_took_away_is_said(tmp_path: Path) -> None:
    path, run_files = tmp_path / "exp.jsonl", tmp_path / "other" / "exp.jsonl.1"
    run_files.parent.mkdir()
    path.write_bytes(numbered(1, 5))
    _, cursor, _ = drain(path, {}, Limits())
    path.rename(run_files)  # out of the folder: nobody knows what was appended to it
    append(path, numbered(6, 9))
    read = jsonl.read_jsonl(path, cursor, Limits())
    assert ([row["step"] for row in read.rows], read.dropped, read.why) == ([6, 7, 8, 9], 1, bytetail.ROTATED)
    path.write_bytes(numbered(20, 40))  # truncated, and longer than before at the next look
    read = jsonl.read_jsonl(path, read.cursor, Limits())
    assert ([row["step"] for row in read.rows], read.dropped) == (list(range(20, 41)), 1)
    assert (read.why, read.restarted) == (bytetail.REWRITTEN, True)
    assert jsonl.read_jsonl(path, read.cursor, Limits()).dropped == 0


@pytest.mark.parametrize(
    "after",
    [
        b'{"step": 9}\n',  # shorter
        b'{"step": 7}\n{"step": 8}\n',  # as long, other bytes
        b'{"step": 1}\n{"step": 7}\n{"step": 8}\n',  # longer, rewritten behind the first row, as on a resume
    ],
)
def test_a_file_rewritten_in_place_starts_over(tmp_path: Path, after: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    _, cursor, _ = drain(path, {}, Limits())
    inode = path.stat().st_ino
    path.write_bytes(after)
    assert path.stat().st_ino == inode
    read = jsonl.read_jsonl(path, cursor, Limits())
    assert read.restarted
    assert len(read.rows) == after.count(b"\n")


def test_limits_stop_a_call_and_say_more(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, b'{"a": 1}\n' * 10)
    read = jsonl.read_jsonl(path, {}, Limits(tail_rows=4))
    assert (len(read.rows), read.more) == (4, True)
    read = jsonl.read_jsonl(path, {}, Limits(tail_bytes=30, line_bytes=20))
    assert (len(read.rows), read.more) == (3, True)
    assert len(drain(path, {}, Limits(tail_rows=4))[0]) == 10


def test_nothing_new_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.touch()
    read = jsonl.read_jsonl(path, {}, Limits())
    assert (read.rows, read.more, read.dropped, read.restarted) == ([], False, 0, False)
    assert not jsonl.read_jsonl(path, read.cursor, Limits()).restarted


@pytest.mark.parametrize("path", ["absent.jsonl", "."])
def test_what_cannot_be_read_is_missing(tmp_path: Path, path: str) -> None:
    with pytest.raises(ScrapeError) as caught:
        bytetail.read(tmp_path / path, {}, Limits())
    assert caught.value.kind == "missing"
    assert str(tmp_path) not in str(caught.value)


def test_merge_joins_rows_of_one_key() -> None:
    rows = [{"step": 1, "a": 1}, {"step": 1, "b": 2}, {"step": 2, "a": 3}, {"step": 1, "a": 9}]
    assert jsonl.merge(rows, lambda row: row["step"]) == [{"step": 1, "a": 9, "b": 2}, {"step": 2, "a": 3}]


@pytest.mark.parametrize("value", [None, "1.0", "NaN", float("nan"), float("inf"), True, 10**400, {"_type": "x"}, [1]])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    assert jsonl.number(value) is None


def test_text_loses_its_colours(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    append(path, b"\x1b[32m09:00:01\x1b[0m \x1b[1mINFO\x1b[0m hi \xff\r\n\n\x1b]8;;http://x\x07link\x1b]8;;\x07\npart")
    read = jsonl.read_text(path, {}, Limits())
    assert read.lines == ["09:00:01 INFO hi \ufffd", "link"]
    append(path, b"ial\n")
    assert jsonl.read_text(path, read.cursor, Limits()).lines == ["partial"]
