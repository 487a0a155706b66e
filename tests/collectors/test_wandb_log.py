"""wandb's transaction log: what the real client writes, live and at its end; every row exactly once."""

import json
import lzma
import os
import signal
import struct
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import wandb
from collectors.formats.rows import Logged
from collectors.model import Cursor, Limits, ScrapeError
from collectors.transport import bytetail
from tests.collectors._reading import TESTDATA
from tests.collectors._sinks import reads
from tests.collectors._wandb import chunk, field, item, journal, row, write
from tests.support_writers import live_writer, run_writer

RECORDED = TESTDATA / "trl_sinks" / "run-rlq6wr5s.wandb.xz"

CLIENT = """
import json, sys, wandb
settings = wandb.Settings(x_disable_stats=True, console="off")
run = wandb.init(dir=sys.argv[1], project="p", name="first try", config={"a": 1, "n": {"x": 2}}, mode="offline",
                 settings=settings)
print("ready", flush=True)
for line in sys.stdin:
    command, *rest = json.loads(line)
    if command == "log":
        for row in rest[0]:
            run.log(row)
    elif command == "config":
        run.config.update(rest[0], allow_val_change=True)
    elif command == "finish":
        wandb.finish(exit_code=rest[0])
    print("ok", flush=True)
"""


read, drain = reads(wandb.SINK)


# --- the real client ------------------------------------------------------------------------------------------------


def test_the_real_client_is_read_while_it_lives_and_after_its_end(tmp_path: Path) -> None:
    """Blocks of 32 KiB go to disk as they fill; the rest comes with the flush at the end."""
    batch = [{"train/reward": at / 4, "text": "x" * 100, "n": {"deep": at}} for at in range(1500)]
    batch[3] |= {"nan": float("nan"), "none": None, "flag": True, "list": [1, 2]}
    with live_writer(CLIENT, tmp_path) as writer:
        assert writer.process.stdout is not None and writer.process.stdout.readline() == "ready\n"
        writer.say(json.dumps(["log", batch]))
        (path,) = wandb.SINK.find(tmp_path)
        rows: list[Logged] = []
        cursor: Cursor = {}
        config: dict[str, object] = {}
        deadline = time.monotonic() + 60
        while not rows and time.monotonic() < deadline:
            logs = read(path, cursor)
            rows, cursor, config = logs.rows, logs.cursor, config | logs.config
            assert not logs.dropped and not logs.finished
        assert rows, "nothing was written while the client lived"
        writer.say(json.dumps(["config", {"late": {"y": [1, 2]}, "a": 5}]))
        writer.say(json.dumps(["finish", 3]))
    end = read(path, cursor)
    assert config == {"a": 1, "n": {"x": 2}}
    # Whole again, though only what is new was written.
    assert end.config == {"a": 5, "n": {"x": 2}, "late": {"y": [1, 2]}}
    rows += end.rows
    assert [one.step for one in rows] == list(range(1500))
    assert [(one.values["train/reward"], one.values["n.deep"]) for one in rows] == [(at / 4, at) for at in range(1500)]
    odd = rows[3].values
    assert odd["nan"] != odd["nan"] and (odd["none"], odd["flag"], odd["list"]) == (None, True, [1, 2])
    assert all(one.ts is not None and one.ts > 1_700_000_000 for one in rows)
    assert not {"_step", "_timestamp"} & set(odd)
    assert (end.finished, end.failed, end.more) == ("wandb run ended with exit code 3", True, False)
    assert read(path, {}).run_name == "first try" and read(path, {}).rows[0] == rows[0]
    assert read(path, end.cursor).rows == []


def test_a_killed_client_leaves_no_end(tmp_path: Path) -> None:
    """Its own process flushes what it has; that it was killed is nowhere said, so nothing is claimed."""
    with live_writer(CLIENT, tmp_path) as writer:
        assert writer.process.stdout is not None and writer.process.stdout.readline() == "ready\n"
        writer.say(json.dumps(["log", [{"x": "y" * 500} for _ in range(400)]]))
        (path,) = wandb.SINK.find(tmp_path)
        deadline = time.monotonic() + 60
        while not read(path, {}).rows and time.monotonic() < deadline:
            pass
        os.kill(writer.process.pid, signal.SIGKILL)
        writer.process.wait(60)
        logs = read(path, {})
    assert logs.rows and logs.finished == "" and not logs.failed


def test_a_recorded_run_says_what_wandbs_own_schema_says(tmp_path: Path) -> None:
    """TRL's run of 90 steps (960 kB): 992 rows; compared value by value with wandb's protobuf classes."""
    script = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
data, at, whole = open(sys.argv[1], "rb").read(), 7, b""
while at < len(data):
    left = 32768 - at % 32768
    if left < 7:
        at += left
        continue
    _, length, kind = struct.unpack_from("<IHB", data, at)
    whole = (whole if kind in (3, 4) else b"") + data[at + 7:at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        record = Record.FromString(whole)
        if record.HasField("history"):
            print(json.dumps({".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}))
"""
    path = write(tmp_path / "run-rlq6wr5s.wandb", lzma.decompress(RECORDED.read_bytes()))
    theirs = [json.loads(line) for line in run_writer(script, path).splitlines()]
    logs = read(path, {})
    assert [one.values | {"_step": one.step, "_timestamp": one.ts} for one in logs.rows] == theirs
    assert len(logs.rows) == 992 and (logs.dropped, logs.more) == (0, False)
    assert (logs.run_name, logs.finished, logs.failed) == ("grpo-tiny-cpu", "wandb run ended with exit code 0", False)
    # Their global step is a value: wandb's own counter grows with every profiling row.
    assert (logs.rows[1].step, logs.rows[1].values["train/global_step"]) == (1, 0)
    assert logs.config["num_generations"] == 4 and logs.config["model/num_parameters"] == 361344
    assert "_wandb" not in logs.config
    parts, _, why = drain(path, {}, Limits(tail_bytes=1, tail_rows=97, line_bytes=10_000))
    assert parts == logs.rows and why == []


def test_typed_items_are_read_too(tmp_path: Path) -> None:
    """The schema of 0.31.0 has types beside JSON; its client still writes JSON, a later one may not."""
    script = """
import sys
from wandb.proto.wandb_internal_pb2 import Record, HistoryItem
record = Record()
for key, values in {"_step": {"integer": 7}, "_timestamp": {"number": 1795000000.25}, "a": {"number": -0.5},
                    "b": {"integer": -3}, "c": {"boolean": True}, "d": {"text": "x"}, "e": {"json": "[1]"}}.items():
    record.history.item.append(HistoryItem(nested_key=[key], **values))
sys.stdout.write(record.SerializeToString().hex())
"""
    path = write(tmp_path / "run-a.wandb", journal([bytes.fromhex(run_writer(script))]))
    expected = {"a": -0.5, "b": -3, "c": True, "d": "x", "e": [1]}
    assert read(path, {}).rows == [Logged(expected, 7, 1795000000.25)]


# --- growing, split, limited ----------------------------------------------------------------------------------------


@given(sizes=st.lists(st.sampled_from([0, 3, 200, 32_600, 32_700, 40_000, 100_000]), max_size=8), data=st.data())
def test_any_split_into_appends_gives_every_row_once(tmp_path_factory, sizes: list[int], data) -> None:
    """Rows up to four blocks long, at every place of a block; appends cut anywhere."""
    path = tmp_path_factory.mktemp("wandb") / "run-a.wandb"
    stream = journal([row(at, text="x" * size) for at, size in enumerate(sizes)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    limits = Limits(tail_rows=data.draw(st.integers(1, 5)), tail_bytes=1, line_bytes=110_000)
    path.touch()
    got: list[Logged] = []
    cursor: Cursor = {}
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        with path.open("ab") as file:
            file.write(stream[start:end])
        rows, cursor, why = drain(path, cursor, limits)
        got += rows
        assert why == []
    assert [(one.step, len(one.values["text"]), one.ts) for one in got] == [
        (at, size, 1795000000.5 + at) for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("left", range(10))
def test_a_record_may_end_at_any_byte_of_a_block(tmp_path: Path, left: int) -> None:
    """Fewer than seven bytes hold no chunk and are zeros; seven hold one without data."""
    empty = len(row(1, text=""))
    # Magic and header take 7 bytes each; text lengths that make three-byte lengths of fields take 6 more than none.
    first = row(1, text="x" * (32768 - 14 - left - empty - 6))
    assert 7 + 7 + len(first) == 32768 - left
    got, _, why = drain(write(tmp_path / "run-a.wandb", journal([first, row(2)])), {})
    assert ([one.step for one in got], why) == ([1, 2], [])


def test_what_did_not_change_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "run-a.wandb", journal([row(1)]) + b"\1\2\3")
    _, cursor, _ = drain(path, {})

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(bytetail, "_opened", opened)
    assert read(path, cursor).cursor == cursor
    os.utime(path, (1, 1))
    with pytest.raises(AssertionError, match="opened"):
        read(path, cursor)


def test_a_setting_that_changes_later_comes_with_all_the_others(tmp_path: Path) -> None:
    def setting(key: str, value: object) -> bytes:
        return field(5, item(key, value))

    removed = field(5, field(2, field(1, b"b")))
    nested = field(5, field(1, field(2, b"n") + field(2, b"x") + field(16, b"3")))
    records = [setting("a", 1) + setting("c", 9), setting("b", 2), row(1), setting("a", 5), removed, nested, row(2)]
    path = write(tmp_path / "run-a.wandb", journal(records[:3]))
    first = read(path, {})
    assert first.config == {"a": 1, "b": 2, "c": 9}
    path.write_bytes(journal(records))
    second = read(path, first.cursor)
    assert second.config == {"a": 5, "b": None, "c": 9, "n": {"x": 3}} and [one.step for one in second.rows] == [2]
    assert read(path, second.cursor).config == {}


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_damaged_chunk_costs_the_rest_of_its_block(tmp_path: Path) -> None:
    """LevelDB's rule. In the last block nothing says where it goes on: it is met again when the block is full."""
    rows = [row(at, text="x" * 9_000) for at in range(12)]
    stream = bytearray(journal(rows))
    stream[9_500] ^= 1  # in row 1, first of four that begin in block 0; the last goes on in block 1
    path = write(tmp_path / "run-a.wandb", bytes(stream))
    got, _, why = drain(path, {})
    first = 7 + 7 + len(rows[0])
    assert [one.step for one in got] == [0, *range(4, 12)]
    assert why == [f"the record at byte {first} of run-a.wandb is damaged"]
    # As long as the block is not full, it may be a write that is not done.
    path.write_bytes(bytes(stream[:20_000]))
    got, cursor, why = drain(path, {})
    assert ([one.step for one in got], why) == ([0], [])
    path.write_bytes(journal(rows))
    got, _, why = drain(path, cursor)
    assert ([one.step for one in got], why) == (list(range(1, 12)), [])


def test_a_record_that_is_too_long_or_no_record_costs_itself_alone(tmp_path: Path) -> None:
    limits = Limits(line_bytes=50_000, tail_bytes=1)
    path = write(tmp_path / "run-a.wandb", journal([row(1), row(2, text="x" * 200_000), row(3), b"\xff", row(4)]))
    got, _, why = drain(path, {}, limits)
    long = 7 + 7 + len(row(1))
    assert [one.step for one in got] == [1, 3, 4]
    assert why[0] == f"the record at byte {long} of run-a.wandb is longer than 50000 bytes" and len(why) == 2
    assert why[1].endswith("of run-a.wandb cannot be read: a number without end")


@pytest.mark.parametrize("line", [60_000, 110_000, 300_000])
def test_a_long_record_is_counted_once_while_it_grows(tmp_path: Path, line: int) -> None:
    stream = journal([row(1), row(2, text="x" * 400_000), row(3)])
    path = tmp_path / "run-a.wandb"
    got, counted, cursor = [], 0, {}
    for end in range(0, len(stream) + 30_000, 30_000):
        path.write_bytes(stream[:end])
        rows, cursor, why = drain(path, cursor, Limits(line_bytes=line, tail_bytes=1))
        got, counted = got + rows, counted + len(why)
    assert ([one.step for one in got], counted) == ([1, 3], 1)


def test_chunks_without_beginning_or_end_are_counted_once(tmp_path: Path) -> None:
    head, whole = wandb.MAGIC, row(1)
    parts = [chunk(3, b"x"), chunk(3, b"y"), chunk(4, b"z"), chunk(1, whole), chunk(2, b"a"), chunk(1, whole)]
    got, _, why = drain(write(tmp_path / "run-a.wandb", head + b"".join(parts)), {})
    assert [one.step for one in got] == [1, 1]
    assert why == ["the record at byte 7 of run-a.wandb has no beginning"] * 2
    assert wandb.split(b"".join(parts), 7, 1000).bad == [
        (7, "has no beginning"),
        (7 + 24 + 7 + len(whole), "has no end"),
    ]


def test_leveldbs_masked_checksum_is_taken_too(tmp_path: Path) -> None:
    """rotate right by 15, add a constant: of 0x00000001 that is 0x00020000 + 0xa282ead8."""
    assert wandb._checksums(b"")[1] == 0xA282EAD8
    body = b"\1" + row(1)
    crc = zlib.crc32(body)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    data = wandb.MAGIC + struct.pack("<IH", masked, len(body) - 1) + body
    assert [one.step for one in drain(write(tmp_path / "run-a.wandb", data), {})[0]] == [1]


def test_a_broken_value_costs_itself_alone(tmp_path: Path) -> None:
    broken = field(1, field(2, b"bad") + field(16, b"1,2")) + field(1, field(2, b"worse") + field(16, b"{"))
    record = field(2, item("good", 0.5) + broken + field(2, b"\x08\x05"))
    assert read(write(tmp_path / "run-a.wandb", journal([record])), {}).rows == [
        Logged({"good": 0.5, "bad": None, "worse": None}, 5, None)
    ]


def test_a_row_without_a_step_of_zero_has_step_zero(tmp_path: Path) -> None:
    """proto3 writes no zero: the step is there, and empty."""
    path = write(tmp_path / "run-a.wandb", journal([field(2, item("a", 1) + field(2, b"")), field(2, item("a", 1))]))
    assert [one.step for one in read(path, {}).rows] == [0, None]


def test_what_is_no_wandb_file_says_so(tmp_path: Path) -> None:
    for data in (b"SQLite format 3\0", b":W&B\xe1\xbe\x01" + b"x" * 50):
        with pytest.raises(ScrapeError, match="is not a wandb file of a supported version") as garbage:
            read(write(tmp_path / "run-a.wandb", data), {})
        assert garbage.value.kind == "garbage"
    with pytest.raises(ScrapeError, match="cannot be read: FileNotFoundError") as missing:
        read(tmp_path / "run-b.wandb", {})
    assert missing.value.kind == "missing"


def test_a_file_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = write(tmp_path / "run-a.wandb", journal([row(1), row(2)]))
    _, cursor, _ = drain(path, {})
    path.write_bytes(journal([row(7)]))
    logs = read(path, cursor)
    assert logs.restarted and [one.step for one in logs.rows] == [7]


def test_a_resumed_run_is_a_new_folder_and_the_newest_is_first(tmp_path: Path) -> None:
    paths = []
    for age, folder in enumerate(("run-20261121_080000-abc", "offline-run-20261120_080000-abc")):
        (tmp_path / "wandb" / folder / "files").mkdir(parents=True)
        paths.append(write(tmp_path / "wandb" / folder / "run-abc.wandb", journal([])))
        os.utime(paths[-1], (2000 - age, 2000 - age))
        (tmp_path / "wandb" / folder / "files" / "config.yaml").touch()
    (tmp_path / "wandb" / "latest-run").symlink_to(tmp_path / "wandb" / "run-20261121_080000-abc")
    assert wandb.SINK.find(tmp_path) == paths
    assert wandb.SINK.find(paths[1]) == [paths[1]]
    assert wandb.SINK.find(tmp_path / "wandb" / "run-20261121_080000-abc" / "files" / "config.yaml") == []
