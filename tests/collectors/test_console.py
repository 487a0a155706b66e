"""The console sink: what terminals and Ray add to a job's output, blocks over several lines, printed dicts."""

import json
import math
import pprint
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.formats import console
from collectors.formats.console import ConsoleConfig, ConsoleLine, Ended, Parsed, figure, literal
from collectors.formats.rows import Logged, Logs
from collectors.model import Limits

STAMP = time.mktime((2026, 11, 21, 7, 59, 50, 0, 0, -1))


def everything(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """Every message as a row, numbered over all calls."""
    memory["count"] = memory.get("count", 0) + 1
    return Logged({"text": line.text}, memory["count"], line.ts)


SINK = console.sink(everything)


def read(path: Path, cursor: dict[str, Any] | None = None, **limits: int) -> Logs:
    return SINK.read(path, json.loads(json.dumps(cursor or {})), Limits(**limits))


def texts(logs: Logs) -> list[str]:
    return [row.values["text"] for row in logs.rows]


def written(folder: Path, text: str) -> Path:
    path = folder / "job.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("plain", "plain"),
        ("(TaskRunner pid=123) hello", "hello"),
        ("(TaskRunner pid=123, ip=10.0.0.2) hello", "hello"),
        ("(Worker(abc, 1) pid=9) hello", "hello"),
        ("(pid=77) hello", "hello"),
        ("\x1b[36m(TaskRunner pid=123)\x1b[0m hello", "hello"),
        ("(W pid=1) hello [repeated 7x across cluster]", "hello"),
        ("(W pid=1) hello [repeated 7x across cluster] (Ray deduplicates logs by default. Set X=0)", "hello"),
        ("(not a prefix) hello", "(not a prefix) hello"),
    ],
)
def test_prefixes_and_suffixes_come_off(line: str, text: str, tmp_path: Path) -> None:
    assert texts(read(written(tmp_path, line + "\n"))) == [text]


def test_a_progress_bar_is_lines_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, "\rStep:  0%|   | 0/9\rStep: 11%|#  | 1/9\n\rloss 1\n")
    assert texts(read(path)) == ["Step:  0%|   | 0/9", "Step: 11%|#  | 1/9", "loss 1"]


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("[2026-11-21 07:59:50] a.py:1 - x", 0.0),
        ("(W pid=1) [2026-11-21 07:59:50.250 rank0] a.py:1 - x", 0.25),
        ("2026-11-21T07:59:50,5 INFO x", 0.5),
    ],
)
def test_times_are_local(line: str, after: float, tmp_path: Path) -> None:
    assert [row.ts for row in read(written(tmp_path, line + "\n")).rows] == [STAMP + after]


def test_a_date_in_what_is_said_is_no_time(tmp_path: Path) -> None:
    path = written(tmp_path, "x" * 60 + " 2026-11-21 07:59:50\nno time\n9999-99-99 99:99:99 x\n")
    assert [row.ts for row in read(path).rows] == [None, None, None]


def test_a_block_is_one_message_also_between_other_lines(tmp_path: Path) -> None:
    lines = ["(A pid=1) {'a': 1,", "(B pid=2) between", "(A pid=1)  'b': {'c': 2}}", "(A pid=1) after"]
    logs = read(written(tmp_path, "\n".join(lines) + "\n"))
    assert texts(logs) == ["between", "{'a': 1,\n 'b': {'c': 2}}", "after"]


def test_a_block_without_its_end_waits(tmp_path: Path) -> None:
    path = written(tmp_path, "one\n(A pid=1) {'a': 1,\n(B pid=2) two\n")
    first = read(path)
    assert (texts(first), first.more) == (["one"], False)
    assert texts(read(path, first.cursor)) == []
    with path.open("a") as file:
        file.write("(A pid=1)  'b': 2}\n")
    assert texts(read(path, first.cursor)) == ["two", "{'a': 1,\n 'b': 2}"]


def test_a_finished_block_around_an_open_one_is_told_once(tmp_path: Path) -> None:
    path = written(tmp_path, "(A pid=1) {'a': 1,\n(B pid=2) {'x': 1,\n(A pid=1)  'b': 2}\n")
    first = read(path)
    with path.open("a") as file:
        file.write("(B pid=2)  'y': 2}\n")
    second = read(path, first.cursor)
    assert texts(first) + texts(second) == ["{'a': 1,\n 'b': 2}", "{'x': 1,\n 'y': 2}"]


def test_a_block_that_never_ends_is_its_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "if (x) {\nat the margin\n")
    assert texts(read(path)) == ["if (x) {", "at the margin"]
    foreign = "".join(f"(B pid=2) {n}\n" for n in range(console.FOREIGN_LINES + 5))
    logs = read(written(tmp_path, f"(A pid=1) {{'a': 1,\n{foreign}"))
    assert len(logs.rows) == console.FOREIGN_LINES + 6
    assert "{'a': 1," in texts(logs)


def test_a_block_larger_than_a_call_holds_nothing_up(tmp_path: Path) -> None:
    path = written(tmp_path, "{'a': 1,\n" + " 'b': 2,\n" * 50 + " 'c': 3}\nafter\n")
    found, cursor, calls = [], {}, 0
    while True:
        logs = read(path, cursor, tail_rows=10)
        found += texts(logs)
        cursor, calls = logs.cursor, calls + 1
        if not logs.more:
            break
    assert found[-1] == "after" and calls < 20


def test_the_limit_is_for_lines_that_say_something(tmp_path: Path) -> None:
    """Servers print thousands of lines before a run's first step."""
    sink = console.sink(lambda line, memory: Logged({"text": line.text}) if "step" in line.text else None)
    path = written(tmp_path, "noise\n" * 5_000 + "step 1\nnoise\nstep 2\nstep 3\n")
    first = sink.read(path, {}, Limits(tail_rows=2))
    assert (texts(first), first.more) == (["step 1", "step 2"], True)
    second = sink.read(path, first.cursor, Limits(tail_rows=2))
    assert (texts(second), second.more) == (["step 3"], False)


def test_a_limit_within_a_block_loses_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "(A pid=1) {'a': 1,\n(B pid=2) x\n(B pid=2) y\n(A pid=1)  'b': 2}\nz\n")
    first = read(path, tail_rows=1)
    assert texts(first) == ["x", "y", "{'a': 1,\n 'b': 2}"]
    assert texts(read(path, first.cursor, tail_rows=1)) == ["z"]


def test_the_parsers_memory_lives_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a\nb\n")
    first = read(path)
    path.write_text("a\nb\nc\n")
    assert [row.step for row in read(path, first.cursor).rows] == [3]
    path.write_text("other\n")  # another file: the memory was about the old one
    again = read(path, first.cursor)
    assert (again.restarted, [row.step for row in again.rows]) == (True, [1])


def test_configuration_and_end(tmp_path: Path) -> None:
    said = {"c": ConsoleConfig({"a": 1}), "e": Ended("over", failed=True), "n": None}
    sink = console.sink(lambda line, memory: said[line.text])
    logs = sink.read(written(tmp_path, "c\nn\ne\n"), {}, Limits())
    assert (logs.rows, logs.config, logs.finished, logs.failed) == ([], {"a": 1}, "over", True)


def test_what_is_left_is_reckoned(tmp_path: Path) -> None:
    path = written(tmp_path, "ab\n" * 4)
    logs = read(path, tail_rows=1)
    assert (logs.ahead, logs.modified, logs.more) == (3.0, path.stat().st_mtime, True)


def test_which_files_are_logs(tmp_path: Path) -> None:
    for name in ("train.log", "job.out", "console", "metrics.jsonl", "readme.md", "console.json", "a.txt"):
        (tmp_path / name).write_text("x\n")
    assert {path.name for path in SINK.find(tmp_path)} == {"train.log", "job.out", "console", "a.txt"}
    assert SINK.find(tmp_path / "console") == [tmp_path / "console"]
    assert SINK.find(tmp_path / "metrics.jsonl") == SINK.find(tmp_path / "readme.md") == []
    assert SINK.find(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("-1e-05", -1e-05),
        ("np.float64(0.25)", 0.25),
        ("np.int64(8)", 8.0),
        ("tensor(0.5, device='cuda:0')", 0.5),
        ("nan", None),
        ("np.float64(nan)", None),
        ("-inf", None),
        ("1e999", None),
        ("[1, 2]", None),
        ("", None),
    ],
)
def test_figures(text: str, value: float | None) -> None:
    assert figure(text) == value


def test_dicts_as_python_prints_them() -> None:
    text = (
        "perf 3: {'a': np.float64(0.5), 'nan inf': nan, 'b': -inf, 'c': [1, 'x{y'], \"d'\": None, 'e': tensor(2)} end"
    )
    assert literal(text) == {"a": 0.5, "nan inf": None, "b": None, "c": [1, "x{y"], "d'": None, "e": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no dict",
        "{",
        "}{",
        "{1, 2}",
        "{'a': open('x')}",
        "{'a': <object>}",
        "{" * 5_000 + "}" * 5_000,
        "{'a': 1, }}",
    ],
)
def test_what_is_no_dict_is_none(text: str) -> None:
    assert literal(text) is None


def test_a_huge_dict_is_not_evaluated() -> None:
    text = "{'a': '" + "x" * console.LITERAL_CHARS + "'}"
    assert literal(text) is None


scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec="utf-8", exclude_characters="\r\x1b\x00\x85\u2028\u2029"), max_size=20)
dicts = st.dictionaries(words, scalars | words | st.dictionaries(words, scalars, max_size=3), max_size=6)


@settings(deadline=None, max_examples=60)
@given(value=dicts, width=st.integers(10, 80))
def test_whatever_pformat_writes_is_read_back(value: dict[str, Any], width: int) -> None:
    assert literal(pprint.pformat(value, width=width)) == value


@settings(deadline=None, max_examples=60)
@given(value=st.floats())
def test_figures_are_what_repr_says(value: float) -> None:
    expected = value if math.isfinite(value) else None
    assert figure(repr(value)) == figure(f"np.float64({value!r})") == expected


@settings(deadline=None, max_examples=40)
@given(data=st.binary(max_size=400), size=st.integers(1, 60))
def test_any_bytes_in_any_pieces_are_read_once(
    data: bytes, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("console") / "x.log"
    path.write_bytes(b"begin\n" + data + b"\nend\n" + b"margin\n" * (console.FOREIGN_LINES + 2))
    whole = sorted(texts(read(path)))
    body, found, cursor = path.read_bytes(), [], {}
    path.write_bytes(b"")
    for start in range(0, len(body), size * 40):
        with path.open("ab") as file:
            file.write(body[start : start + size * 40])
        logs = read(path, cursor)
        found += texts(logs)
        cursor = logs.cursor
    assert sorted(found) == whole
