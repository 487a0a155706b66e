"""Pages read by the layout of one before: the same to the last sample as line by line, and shared by engines."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import collectors
from collectors.formats import exposition
from collectors.generators import vllm
from collectors.model import Limits, Reading, ScrapeError, State

DATA = Path(__file__).parent.parent / "testdata"
ENGINES = ("vllm", "sglang", "dynamo", "triton", "dcgm", "ray_node", "sglang_router", "vllm_router", "production_stack")
PAGES = sorted((DATA / "vllm/default").glob("*_load.prom"))
RUNNING = b'vllm:num_requests_running{engine="0",model_name="tiny"}'


@pytest.fixture(autouse=True)
def no_layouts() -> Iterator[None]:
    exposition.forget()
    yield
    exposition.forget()


def outcome(name: str, body: bytes, state: State) -> Reading | str:
    parse = collectors.load()[name].parse
    assert parse is not None
    try:
        return parse(body, state, Limits())
    except ScrapeError as error:
        return f"{error.kind}: {error}"


def line_by_line(name: str, bodies: list[bytes]) -> list[Reading | str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exposition, "find_layout", lambda *_: None)
        patch.setattr(exposition, "learn", lambda *_: None)
        state: State = {}
        return [outcome(name, body, state) for body in bodies]


@pytest.mark.parametrize("name", ENGINES)
def test_every_recorded_page_is_read_the_same_by_its_layout(name: str) -> None:
    # Some pages alternate, as Ray's do; each comes a second time, when its layout is known.
    bodies = [path.read_bytes() for path in sorted((DATA / name).rglob("*.prom"))]
    expected = line_by_line(name, bodies * 2)
    state: State = {}
    assert [outcome(name, body, state) for body in bodies * 2] == expected
    assert bodies and state["layout"].layout is not None, "nothing was read by a layout: this test would prove nothing"


@pytest.mark.parametrize("by", ["own", "another"])
@pytest.mark.parametrize(
    "text",
    ["7", "-0", "1e3", ".5", "+3", "-1", "1_0", "nan", "-NaN", "+Inf", "inf", "1e400", "0x1", "", " 7", "7 ", "7\t",
     "\t7", "7 1700000000000", "7 17", "7\r", "\x1c7", "٣", "seven"],
)  # fmt: skip
def test_a_number_written_oddly_is_the_same_behind_a_known_layout(text: str, by: str) -> None:
    before = PAGES[0].read_bytes()
    lines = [RUNNING + b" " + text.encode() if line.startswith(RUNNING) else line for line in before.split(b"\n")]
    (_, expected) = line_by_line("vllm", [before, b"\n".join(lines)])
    warm: State = {}
    outcome("vllm", before, warm)
    assert outcome("vllm", b"\n".join(lines), warm if by == "own" else {}) == expected


CHANGES = {
    "another type": (b"# TYPE vllm:num_requests_running gauge", b"# TYPE vllm:num_requests_running counter"),
    "another help": (b"# HELP vllm:num_requests_running Number", b"# HELP vllm:num_requests_running Count"),
    "another label": (RUNNING, RUNNING.replace(b'"0"', b'"1"')),
    "twice": (RUNNING, RUNNING + b" 1\n" + RUNNING),
    "gone": (RUNNING, b"# " + RUNNING),
    "not cumulative": (b'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"', b"# gone "),
    "cut": (b"\n# HELP process_", b"# HELP process_"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_page_is_not_read_by_the_layout(change: str) -> None:
    before = PAGES[0].read_bytes()
    other = before.replace(*CHANGES[change])
    state: State = {}
    found = [outcome("vllm", body, state) for body in (before, before, other, before, other)]
    assert found == line_by_line("vllm", [before, before, other, before, other])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(width=32) | st.integers(0, 1 << 60) | st.sampled_from(["nan", "1_0", "+Inf"]), min_size=30))
def test_whatever_the_numbers_are(numbers: list[float | int | str]) -> None:
    lines = PAGES[0].read_bytes().decode().split("\n")
    at = [n for n, line in enumerate(lines) if line and line[0] != "#"][:: len(lines) // len(numbers) + 1]
    other = list(lines)
    for place, number in zip(at, numbers, strict=False):
        other[place] = f"{lines[place].rpartition(' ')[0]} {number}"
    bodies = ["\n".join(lines).encode(), "\n".join(other).encode()]
    state: State = {}
    assert [outcome("vllm", body, state) for body in bodies] == line_by_line("vllm", bodies)


def test_engines_of_one_kind_share_what_was_read_of_the_first() -> None:
    states: list[State] = [{} for _ in range(3)]
    for state in states:
        vllm.parse(PAGES[0].read_bytes(), state, Limits())
    assert states[1]["layout"].layout is states[0]["layout"].layout is states[2]["layout"].layout
    assert "exposition" not in states[1], "no memory of single lines"


def test_a_page_that_is_another_each_time_is_learned_now_and_then_only() -> None:
    state: State = {}
    learned = []
    for n in range(64):
        own = state["layout"].layout if "layout" in state else None
        exposition.parse(b'# TYPE a gauge\na{id="%d"} 1\nb 1\n' % n, state, Limits())
        learned.append(state["layout"].layout is not own)
    assert sum(learned) == 3 + 4


def test_what_is_shared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "SHARED_BYTES", 40 * exposition.LINE_BYTES)
    for n in range(50):
        exposition.parse(b'# TYPE a gauge\na{id="%d"} 1\nb 1\n' % n, {}, Limits())
    assert sum(len(heads) for _, heads in exposition._shared) == 40
    assert {heads[1] for _, heads in exposition._shared} == {f'a{{id="{n}"}}' for n in range(40, 50)}


def test_a_layout_does_not_go_past_a_limit_of_labels() -> None:
    body = b'# TYPE a gauge\na{b="1",c="2"} 1\nd 1\n'
    exposition.parse(body, {}, Limits())
    with pytest.raises(ScrapeError, match="labels"):
        exposition.parse(body, {}, Limits(labels=1))


LINES = ["# TYPE a gauge", 'a{id="1"} 1', 'a{id="2"} 20', "b 300", "# TYPE c counter", "c 4", ""]
changed = st.sampled_from(
    ["", "1", "b", "b 1", "b  1", "c 5 ", " b 1", "a", '{id="1"} 1', 'a{id="1"}', 'a{id="1"} 7 1700000000000', "9 9",
     "# TYPE a gauge", "# TYPE a counter", "# TYPE c counter x", "b\u00e9 1", "12345678901234", 'a{id="2"} 20\r'],
) | st.text("ab{}=\"12 #_.e+\\", max_size=14)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(0, len(LINES) - 2), changed, min_size=1, max_size=3))
def test_whatever_becomes_of_lines_it_is_read_as_without_a_layout(changes: dict[int, str]) -> None:
    other = [changes.get(at, line) for at, line in enumerate(LINES)]
    bodies = ["\n".join(lines).encode() for lines in (LINES, LINES, other, LINES, other)]

    def told(state: State) -> list[object]:
        return [_rows(body, state) for body in bodies]

    exposition.forget()
    found = told({})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exposition, "find_layout", lambda *_: None)
        patch.setattr(exposition, "learn", lambda *_: None)
        assert found == told({})


def _rows(body: bytes, state: State) -> object:
    try:
        page = exposition.parse(body, state, Limits())
    except ScrapeError as error:
        return f"{error.kind}: {error}"
    return page.rows(), page.types, page.dropped, page.why
