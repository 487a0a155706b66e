"""Event files that are torn, damaged, rewritten or none at all: what is lost is counted, the rest is read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Limits, ScrapeError
from tests.collectors._events import drain, event, name, read, record, simple

ONE, TWO, THREE = (record(event(1795000000 + step, step, simple("k", step))) for step in (1, 2, 3))


def kept(data: bytes, folder: Path, limits: Limits | None = None) -> tuple[list[int | None], list[str]]:
    (folder / name(1795000000)).write_bytes(data)
    rows, _, why = drain(folder, {}, limits)
    return [row.step for row in rows], why


def test_a_bad_record_costs_itself_alone(tmp_path: Path) -> None:
    file = name(1795000000)
    flipped = bytearray(TWO)
    flipped[-8] ^= 1  # a bit of the value
    at = f"the record at byte {len(ONE)} of {file} "
    assert kept(ONE + flipped + THREE, tmp_path) == ([1, 3], [at + "has a wrong checksum"])
    assert kept(ONE + record(b"\xff\xff") + THREE, tmp_path) == ([1, 3], [at + "is not an event"])
    flipped = bytearray(TWO)
    flipped[0] ^= 1  # of the length: nothing says where the next begins
    assert kept(ONE + flipped + THREE, tmp_path) == ([1, 3], [at + "is not a record"])
    assert kept(ONE + TWO[:9] + THREE, tmp_path) == ([1, 3], [at + "is not a record"])
    assert kept(ONE + b"\0" * 5000 + THREE, tmp_path) == ([1, 3], [at + "is not a record"])
    long = record(event(1795000002, 2, simple("k", 2), *[b"\x3a\x01x"] * 500))
    limits = Limits(line_bytes=1000, tail_bytes=400)
    assert kept(ONE + long + THREE, tmp_path, limits) == ([1, 3], [at + "is longer than 1000 bytes"])


@given(cut=st.integers(0, len(TWO) - 1), garbage=st.binary(min_size=12, max_size=80), window=st.integers(12, 60))
def test_garbage_in_the_middle_is_counted_once_and_passed(tmp_path_factory, cut: int, garbage: bytes, window) -> None:
    folder = tmp_path_factory.mktemp("tb")
    stream = ONE + b"\1" + garbage + THREE
    rows, why = kept(stream, folder, Limits(tail_bytes=window))
    # Garbage that looks like a sound header has one chance in four thousand million; it is not in these bytes.
    assert (rows, len(why)) == ([1, 3], 1)


@pytest.mark.parametrize("tail", [TWO[:5], TWO[:12], TWO[:-1], b"\0" * 40])
def test_a_tail_that_is_not_there_yet_waits(tmp_path: Path, tail: bytes) -> None:
    file = tmp_path / name(1795000000)
    file.write_bytes(ONE + tail)
    rows, cursor, why = drain(tmp_path, {})
    assert ([row.step for row in rows], why) == ([1], [])
    file.write_bytes(ONE + TWO + THREE)
    rows, _, why = drain(tmp_path, cursor)
    assert ([row.step for row in rows], why) == ([2, 3], [])


def test_a_file_cut_or_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / name(1795000000)
    file.write_bytes(ONE + TWO)
    _, cursor, _ = drain(tmp_path, {})
    for data in (THREE, TWO + THREE + ONE):
        file.write_bytes(data)
        logs = read(tmp_path, cursor)
        assert logs.restarted and len(logs.rows) == len(data) // len(ONE)
        cursor = logs.cursor
    assert not read(tmp_path, cursor).restarted


def test_a_file_that_went_away_is_forgotten_and_the_others_go_on(tmp_path: Path) -> None:
    first, second = tmp_path / name(1795000000), tmp_path / name(1795000005)
    first.write_bytes(ONE)
    second.write_bytes(TWO)
    _, cursor, _ = drain(tmp_path, {})
    first.unlink()
    with second.open("ab") as file:
        file.write(THREE)
    rows, cursor, _ = drain(tmp_path, cursor)
    assert [row.step for row in rows] == [3] and list(cursor["files"]) == [second.name]


def test_what_is_no_event_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / name(1795000000)
    with pytest.raises(ScrapeError, match=r"no event file .* in") as missing:
        read(tmp_path, {})
    assert missing.value.kind == "missing"
    with pytest.raises(ScrapeError, match="cannot be read: FileNotFoundError") as missing:
        read(tmp_path / "gone", {})
    assert missing.value.kind == "missing"
    file.write_bytes(b"step,loss\n" * 40)
    with pytest.raises(ScrapeError, match="is not a TensorBoard event file") as garbage:
        read(tmp_path, {})
    assert garbage.value.kind == "garbage"
    # Beside a sound one it is counted once, and stops nobody.
    (tmp_path / name(1795000009)).write_bytes(ONE)
    rows, cursor, why = drain(tmp_path, {})
    assert [row.step for row in rows] == [1] and why == [f"the record at byte 0 of {file.name} is not a record"]
    with file.open("ab") as out:
        out.write(b"step,loss\n")
    assert drain(tmp_path, cursor)[2] == []


def test_an_empty_file_waits(tmp_path: Path) -> None:
    (tmp_path / name(1795000000)).touch()
    assert drain(tmp_path, {})[0] == []
