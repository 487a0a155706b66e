"""TensorBoard files: what its own writers write, live, and what its own reader says; every value exactly once."""

import json
import os
import struct
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import tensorboard
from collectors.formats.rows import Logged
from collectors.model import Cursor, Limits
from collectors.training_logs import sources
from collectors.transport import bytetail
from tests.collectors._events import drain, event, flat, name, read, record, simple, varint
from tests.collectors._reading import TESTDATA
from tests.support_writers import live_writer, run_writer

RECORDED = TESTDATA / "tensorboard" / "events.out.tfevents.1795247990.vm.31397.0"

# TensorBoard's own writer, which torch.utils.tensorboard wraps; a command a line.
EVENTS = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1], filename_suffix=sys.argv[2] if len(sys.argv) > 2 else "")
for line in sys.stdin:
    step, ts, *pairs = line.split()
    for pair in pairs:
        tag, value = pair.split("=")
        writer.add_event(Event(wall_time=float(ts), step=int(step),
                               summary=Summary(value=[Summary.Value(tag=tag, simple_value=float(value))])))
    writer.flush()
    print("ok", flush=True)
writer.close()
"""


# --- real writers ---------------------------------------------------------------------------------------------------


def test_tensorboards_writer_is_read_while_it_lives(tmp_path: Path) -> None:
    with live_writer(EVENTS, tmp_path) as writer:
        writer.say("1 1795000001.5 train/loss=0.5 train/reward=-2")
        rows, cursor, why = drain(tmp_path, {})
        (file,) = tmp_path.iterdir()
        assert rows == [Logged({"train/loss": 0.5, "train/reward": -2.0}, 1, 1795000001.5, file.name)]
        writer.say("1 1795000001.75 train/late=4")
        writer.say("2 1795000003 train/loss=0.25")
        rows, cursor, more = drain(tmp_path, cursor)
        # What comes late for a step is a row of its own: the framework merges rows of one step.
        assert [(row.step, row.values, row.ts) for row in rows] == [
            (1, {"train/late": 4.0}, 1795000001.75),
            (2, {"train/loss": 0.25}, 1795000003.0),
        ]
        assert drain(tmp_path, cursor)[0] == [] and why + more == []


def test_a_resumed_run_is_a_new_file_and_the_older_is_read_first(tmp_path: Path) -> None:
    with live_writer(EVENTS, tmp_path, ".first") as first:
        for step in (1, 2, 3):
            first.say(f"{step} {1795000000 + step} loss={step}")
    rows, cursor, _ = drain(tmp_path, {})
    with live_writer(EVENTS, tmp_path, ".second") as second:
        second.say("2 1795000102 loss=20")
        rows += drain(tmp_path, cursor)[0]
        again, _, _ = drain(tmp_path, {})
    assert [(row.step, row.values["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)]
    assert again == rows


def test_tensorboardx_holds_back_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    script = """
import sys
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=120)
for line in sys.stdin:
    for key in ("actor/train/loss", "rewards/train/mean"):
        writer.add_scalar(key, float(line) / 4, int(line))
    print("ok", flush=True)
writer.close()
"""
    got: list[Logged] = []
    cursor: Cursor = {}
    with live_writer(script, tmp_path) as writer:
        for step in range(1, 9):
            writer.say(step)
            rows, cursor, why = drain(tmp_path, cursor)
            got += rows
            assert why == []
        # It writes every flush_secs: what was logged just now is not there yet, and that is no error.
        assert len(flat(got)) < 16
        assert writer.end() == 0
    got += drain(tmp_path, cursor)[0]
    keys = ("actor/train/loss", "rewards/train/mean")
    assert [one[1:] for one in flat(got)] == [(step, key, step / 4) for step in range(1, 9) for key in keys]
    assert tensorboard.SINK.lag_seconds == 120.0


def test_hparams_and_arguments_logged_as_text_are_the_configuration(tmp_path: Path) -> None:
    """torch's and tensorboardX's add_hparams open a folder of their own; transformers logs its arguments as text."""
    script = """
import json, sys
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1])
writer.add_text("args", json.dumps({"output_dir": "/runs/a", "max_steps": 90, "beta": 0.5}))
writer.add_text("model_config", json.dumps({"hidden_size": 128}))
writer.add_text("generated", "{no json")
writer.add_text("generated", "Hello")
writer.add_hparams({"grpo.num_prompts_per_step": 32, "lr": 1.5e-6, "name": "x", "on": True}, {"done": 1})
writer.add_scalar("loss", 2.0, 7)
writer.close()
"""
    run_writer(script, tmp_path)
    assert tensorboard.SINK.find(tmp_path) == [tmp_path]
    logs = read(tmp_path, {})
    assert logs.config == {
        "grpo.num_prompts_per_step": 32,
        "lr": 1.5e-6,
        "name": "x",
        "on": True,
        "output_dir": "/runs/a",
        "max_steps": 90,
        "beta": 0.5,
        "model_config": {"hidden_size": 128},
    }
    assert [(row.step, row.values) for row in logs.rows] == [(7, {"loss": 2.0})]
    assert read(tmp_path, logs.cursor).config == {}


def test_scalars_written_as_tensors_and_other_tensors_are_told_apart(tmp_path: Path) -> None:
    """The newer summaries (TensorFlow 2, flax, `new_style=True` of torch) have tensors; histograms are tensors too."""
    script = """
import struct, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto as T
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.plugins.scalar.summary import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
def write(step, **tensor):
    writer.add_event(Event(wall_time=1795000000, step=step, summary=Summary(value=[
        Summary.Value(tag="t", tensor=T(**tensor), metadata=create_summary_metadata("t", ""))])))
writer.add_event(Event(wall_time=1795000000, step=1, summary=scalar_pb("pb", 0.5)))
write(2, dtype=1, float_val=[1.5])
write(3, dtype=2, double_val=[0.1])
write(4, dtype=2, tensor_content=struct.pack("<d", -0.1))
write(5, dtype=9, int64_val=[-7])
write(6, dtype=3, tensor_content=struct.pack("<i", 12))
write(7, dtype=1, float_val=[1, 2])
write(8, dtype=9, int64_val=[1, 2])
write(9, dtype=7, string_val=[b"text"])
write(10, dtype=10, bool_val=[True])
write(11, dtype=1)
writer.add_event(Event(wall_time=1795000000, step=12, summary=Summary(value=[Summary.Value(
    tag="h", tensor=T(dtype=1, float_val=[3]), metadata=histogram("h", ""))])))
writer.add_event(Event(wall_time=1795000000, step=-1, summary=Summary(value=[
    Summary.Value(tag="a", simple_value=1), Summary.Value(tag="b", simple_value=float("nan"))])))
writer.close()
"""
    run_writer(script, tmp_path)
    rows, _, why = drain(tmp_path, {})
    assert why == []
    assert [(row.step, row.values) for row in rows[:-1]] == [
        (1, {"pb": 0.5}),
        (2, {"t": 1.5}),
        (3, {"t": 0.1}),
        (4, {"t": -0.1}),
        (5, {"t": -7.0}),
        (6, {"t": 12.0}),
    ]
    assert rows[-1].step == -1 and rows[-1].values["a"] == 1.0 and rows[-1].values["b"] != rows[-1].values["b"]


def test_a_recorded_file_says_what_tensorboards_own_reader_says() -> None:
    """slime's file (40 rollouts, 70 kB): each of its 1,031 scalars with step and value, and rows by step."""
    script = """
import json, sys
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
print(json.dumps([[event.step, value.tag, value.simple_value, event.wall_time]
                  for event in LegacyEventFileLoader(sys.argv[1]).Load() for value in event.summary.value]))
"""
    theirs = json.loads(run_writer(script, RECORDED))
    logs = read(RECORDED, {})
    assert [[step, key, value] for _, step, key, value in flat(logs.rows)] == [one[:3] for one in theirs]
    assert len(theirs) == 1031 and logs.dropped == 0 and not logs.more
    first = logs.rows[0]
    assert (first.step, first.ts, first.origin) == (0, theirs[0][3], RECORDED.name)
    assert first.values["rollout/response_len/mean"] == 324.78125
    assert [row.step for row in logs.rows] == list(range(40))


@pytest.fixture(scope="module")
def theirs():
    script = """
import sys
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
for line in sys.stdin:
    print(masked_crc32c(bytes.fromhex(line)), flush=True)
"""
    with live_writer(script) as writer:
        yield writer


@given(data=st.binary(max_size=100))
def test_the_checksum_is_tensorboards(theirs, data: bytes) -> None:
    assert tensorboard.masked_crc(data) == int(theirs.say(data.hex()))


# --- growing, split, limited ----------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(-9, 9)), max_size=12)


@given(written=st.lists(steps, min_size=1, max_size=3), data=st.data())
def test_any_split_into_appends_gives_every_value_once(tmp_path_factory, written, data) -> None:
    """Up to three writers at once, appends cut anywhere, small limits: nothing lost, doubled or out of its order."""
    folder = tmp_path_factory.mktemp("tb")
    limits = Limits(tail_rows=data.draw(st.integers(1, 5)), tail_bytes=data.draw(st.integers(1, 200)))
    streams = {}
    expected = defaultdict(list)
    for index, events in enumerate(written):
        file = name(1795000000 + index)
        stream = b""
        for at, (step, tag, value) in enumerate(events):
            stream += record(event(1795000010 + at, step, simple(tag, value)))
            expected[file].append((file, step, tag, float(value)))
        streams[file] = stream
        (folder / file).touch()
    cut = st.lists(st.integers(0, 600), min_size=3, max_size=3).map(sorted)
    cuts = {file: data.draw(cut) for file in streams}
    got: list[Logged] = []
    cursor: Cursor = {}
    for turn in range(4):
        for file, stream in streams.items():
            ends = [0, *cuts[file], len(stream) + 600]
            with (folder / file).open("ab") as out:
                out.write(stream[ends[turn] : ends[turn + 1]])
        rows, cursor, why = drain(folder, cursor, limits)
        got += rows
        assert why == []
    for file in streams:
        assert [one for one in flat(got) if one[0] == file] == expected[file]


@given(st.integers(1, 400), st.integers(1, 4), st.lists(st.sampled_from((0, 0, 0, 1, 2)), min_size=1, max_size=25))
def test_rows_of_several_writers_come_by_time_whatever_the_limits(tmp_path_factory, limit, rows, writers) -> None:
    """One writes more often than the others, so that a window of its file is a shorter time."""
    folder = tmp_path_factory.mktemp("tb")
    for index in set(writers):
        own = [at for at, writer in enumerate(writers) if writer == index]
        data = b"".join(record(event(1795000100 + at, at, simple("k", at))) for at in own)
        (folder / name(1795000000 + index)).write_bytes(data)
    got, _, _ = drain(folder, {}, Limits(tail_bytes=limit, tail_rows=rows))
    assert [row.ts for row in got] == [1795000100.0 + at for at in range(len(writers))]


def test_a_writer_far_behind_holds_up_nobody(tmp_path: Path) -> None:
    """Three hundred old rows in one file, one new row in the other: the old come first, then both, at once."""
    old = b"".join(record(event(1795000000 + at, at, simple("k", at))) for at in range(300))
    (tmp_path / name(1795000000)).write_bytes(old)
    (tmp_path / name(1795000001)).write_bytes(record(event(1795000400, 9, simple("k", 9))))
    first = read(tmp_path, {}, Limits(tail_bytes=1000))
    assert first.more and first.rows[-1].ts is not None and first.rows[-1].ts < 1795000300
    rows, _, _ = drain(tmp_path, first.cursor)
    assert len(first.rows) + len(rows) == 301 and rows[-1].ts == 1795000400


def test_the_same_key_again_is_another_row(tmp_path: Path) -> None:
    """slime logs rollouts and steps on two counters into one file; a trainer may log a step twice."""
    data = [(5, "rollout/x", 1), (5, "train/y", 2), (6, "train/y", 3), (5, "rollout/z", 4), (5, "rollout/z", 5)]
    (tmp_path / name(1795000000)).write_bytes(
        b"".join(record(event(1795000001, step, simple(tag, value))) for step, tag, value in data)
    )
    assert [(row.step, row.values) for row in drain(tmp_path, {})[0]] == [
        (5, {"rollout/x": 1.0, "train/y": 2.0}),
        (6, {"train/y": 3.0}),
        (5, {"rollout/z": 4.0}),
        (5, {"rollout/z": 5.0}),
    ]


def test_a_clock_set_back_changes_no_order(tmp_path: Path) -> None:
    data = b"".join(record(event(ts, step, simple("k", step))) for step, ts in ((1, 1795000009), (2, 1795000003)))
    (tmp_path / name(1795000000)).write_bytes(data)
    assert [(row.step, row.ts) for row in drain(tmp_path, {})[0]] == [(1, 1795000009.0), (2, 1795000003.0)]


def test_an_event_without_a_time_has_none(tmp_path: Path) -> None:
    for ts in (0.0, -1.0, float("nan"), float("inf")):
        assert tensorboard.event_of(event(ts, 1, simple("k", 1))).ts is None
    assert tensorboard.event_of(b"\x10\x01").ts is None


@given(step=st.integers(-(2**63), 2**63 - 1), tag=st.text(max_size=60), figure=st.floats(width=32, allow_nan=False))
def test_an_event_of_one_scalar(step: int, tag: str, figure: float) -> None:
    value = b"\x0a" + varint(len(tag.encode())) + tag.encode() + b"\x15" + struct.pack("<f", figure)
    found = tensorboard.event_of(event(1795000000.25, step % 2**64, value))
    assert found == tensorboard.TensorboardEvent(1795000000.25, step, {tag: figure})


@given(at=st.integers(0, 40), damage=st.binary(min_size=1, max_size=3))
def test_a_damaged_event_is_a_value_error_or_an_event(at: int, damage: bytes) -> None:
    payload = event(1795000000.25, 7, simple("train/loss", 0.5))
    try:
        tensorboard.event_of(payload[:at] + damage + payload[at + len(damage) :])
    except ValueError as error:
        assert type(error) is ValueError
    with pytest.raises(ValueError):
        tensorboard.event_of(payload[:-1])


def test_what_did_not_change_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name(1795000000)).write_bytes(record(event(1795000001, 1, simple("k", 1))) + b"partial")
    _, cursor, _ = drain(tmp_path, {})

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    with monkeypatch.context() as patch:
        patch.setattr(bytetail, "_opened", opened)
        logs = read(tmp_path, cursor)
    assert logs.rows == [] and logs.cursor == cursor and not logs.more
    # And the one that changed is.
    with (tmp_path / name(1795000000)).open("ab") as file, monkeypatch.context() as patch:
        file.write(b"x")
        file.flush()
        patch.setattr(bytetail, "_opened", opened)
        with pytest.raises(AssertionError, match="opened"):
            read(tmp_path, cursor)


ONE = record(event(1795000001, 1, simple("k", 1)))


# --- where they are -------------------------------------------------------------------------------------------------


def test_runs_are_found_by_their_newest_file(tmp_path: Path) -> None:
    for age, folder in enumerate(("a/tb", "b", "a/tb/1795000000.25", "checkpoints/x")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name(1795000000)).write_bytes(ONE)
        os.utime(tmp_path / folder / name(1795000000), (1000 - age, 1000 - age))
    (tmp_path / "b" / "notes.txt").touch()
    assert tensorboard.SINK.find(tmp_path) == [tmp_path / "a/tb", tmp_path / "b"]
    os.utime(tmp_path / "b" / name(1795000000), (2000, 2000))
    assert tensorboard.SINK.find(tmp_path) == [tmp_path / "b", tmp_path / "a/tb"]
    assert tensorboard.SINK.find(tmp_path / "b" / name(1795000000)) == [tmp_path / "b" / name(1795000000)]
    assert tensorboard.SINK.find(tmp_path / "b" / "notes.txt") == []
    assert tensorboard.SINK.find(tmp_path / "nowhere") == []


def test_a_directory_is_looked_at_again_when_a_file_in_it_grew(tmp_path: Path) -> None:
    """A run that is watched from its first second on has no keys at first; the directory's own time stays."""
    file = tmp_path / name(1795000000)
    file.write_bytes(record(b"\x09" + struct.pack("<d", 1795000000) + b"\x1a\x0dbrain.Event:2"))
    assert sources.choose((tensorboard.SINK,), tmp_path, lambda peek: "k" in peek.keys) is None
    with file.open("ab") as out:
        out.write(ONE)
    found = sources.choose((tensorboard.SINK,), tmp_path, lambda peek: "k" in peek.keys)
    assert found is not None and found.path == tmp_path
