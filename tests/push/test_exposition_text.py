"""Pushed exposition text: what is taken, what is refused on which line and why. Numbers by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.catalog import METRICS
from collectors.formats import exposition
from collectors.model import Histogram, Limits, Sample, ScrapeError
from server.push.inbox import Body, Grown, pack_body, unpack_body
from server.push.metrics import LIMITS, NAMED, ParsedText, parse

T0 = 1_800_000_000.0


def read(text: str, step: int | None = None) -> ParsedText:
    return parse(text.encode(), "run", T0, step)


def test_gauges_counters_and_steps_with_and_without_prefix() -> None:
    found = read(
        "# TYPE queue_samples gauge\n"
        "queue_samples 7\n"
        "\n"
        'rollscope_generator_tokens_total{engine="0"} 1200 1799999990500\n'
        'trainer_step_seconds{step="4"} 30.5\n'
        'reward_mean{step="4",axis="orchestrator"} 0.25\n'
    )
    assert found.lost == 0 and found.refused == []
    assert found.body.reading.samples == (
        Sample("queue_samples", 7.0),
        Sample("generator_tokens_total", 1200.0, (("engine", "0"),), 1_799_999_990.5),
        Sample("trainer_step_seconds", 30.5, (), None, 4, "trainer"),
        Sample("reward_mean", 0.25, (), None, 4, "orchestrator"),
    )
    assert found.body.reading.samples_scraped == 4


def test_a_step_in_the_request_counts_for_values_without_one() -> None:
    found = read('trainer_step_seconds 30\ntrainer_wait_seconds{step="9"} 12\ngenerator_tokens_total 5\n', step=8)
    assert [(s.metric, s.step, s.axis) for s in found.body.reading.samples] == [
        ("trainer_step_seconds", 8, "trainer"),
        ("trainer_wait_seconds", 9, "trainer"),
        ("generator_tokens_total", None, ""),
    ]


def test_a_histogram_keeps_its_own_edges() -> None:
    found = read(
        'sandbox_spinup_seconds_bucket{image="cached",le="1"} 2\n'
        'sandbox_spinup_seconds_bucket{image="cached",le="10"} 5\n'
        'sandbox_spinup_seconds_bucket{image="cached",le="+Inf"} 6\n'
        'sandbox_spinup_seconds_sum{image="cached"} 61.5\n'
        'sandbox_spinup_seconds_count{image="cached"} 6\n'
    )
    assert found.lost == 0
    labels = (("image", "cached"),)
    assert found.body.reading.histograms == (
        Histogram("sandbox_spinup_seconds", (1.0, 10.0), (2.0, 5.0, 6.0), 61.5, labels),
    )


REFUSED = {
    "queue_sample 1": "no metric is named queue_sample; did you mean queue_samples",
    "xyzzy 1": "no metric is named xyzzy; the names are those of /api/v1/metrics",
    "trainer_step_seconds 30": "trainer_step_seconds is a value of one step",
    'reward_mean{step="-1"} 1': "step must be a whole number",
    'reward_mean{step="1e3"} 1': "step must be a whole number",
    'reward_mean{step="1",axis="a b"} 1': "axis must be a word",
    "queue_samples NaN": "not a finite number",
    "queue_samples +Inf": "not a finite number",
    'trainer_step_seconds{step="3"} -5': "trainer_step_seconds -5: seconds cannot be below 0",
    "generator_tokens_total -1": "generator_tokens_total -1: tokens cannot be below 0",
    "sandbox_exec_seconds 1": "sandbox_exec_seconds is a histogram",
    "queue_samples 1 17999999905": "its time is before 2000",
    "queue_samples 1 1900000000000": "its time is before 2000 or more than a day ahead",
    'queue_samples{run="other"} 1': "its label run is 'other', the request's run is 'run'",
    f'queue_samples{{a="{"x" * 201}"}} 1': "label a is longer than 200 characters",
    "queue_samples": "not Prometheus text",
    "queue_samples seven": "not Prometheus text",
    'queue_samples{a="b} 1': "not Prometheus text",
    'sandbox_exec_seconds_bucket{le="1"} 3': 'the histogram has no bucket le="+Inf"',
    "sandbox_exec_seconds_bucket 3": "a bucket needs its bound",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_line_is_named_and_its_neighbours_are_taken(line: str) -> None:
    found = read(f"queue_samples 1\n{line}\nqueue_capacity_samples 2\n")
    assert [number for number, _ in found.refused] == [2] and found.lost == 1
    assert REFUSED[line] in found.refused[0][1]
    assert [s.metric for s in found.body.reading.samples] == ["queue_samples", "queue_capacity_samples"]


def test_counts_of_a_histogram_must_be_cumulative() -> None:
    text = (
        'sandbox_exec_seconds_bucket{le="1"} 3\nsandbox_exec_seconds_bucket{le="+Inf"} 2\nsandbox_exec_seconds_sum 1\n'
    )
    found = read(text)
    assert found.refused == [(1, "sandbox_exec_seconds: the histogram's buckets are not cumulative")]
    assert found.body.reading.histograms == ()


def test_unknown_names_are_unmapped_and_other_refusals_dropped() -> None:
    found = read("bogus 1\nbogus 2\nqueue_samples NaN\n")
    assert dict(found.body.reading.unmapped) == {"bogus": 2}
    assert (found.body.reading.dropped, found.body.reading.why_dropped) == (
        1,
        "not a finite number: omit values that are unknown",
    )
    assert found.lost == 3


def test_the_answer_names_the_first_hundred_and_counts_all() -> None:
    found = read("nope 1\n" * 250)
    assert len(found.refused) == NAMED == 100 and found.lost == 250


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "empty"),
        (b"<html>", "garbage"),
        (b"\xff\xfe", "garbage"),
        (b"queue_samples 1\n" * (LIMITS.samples + 1), "too_large"),
        (b"x" * (LIMITS.line_bytes + 1), "too_large"),
    ],
    ids=["empty", "html", "binary", "samples", "line"],
)
def test_a_body_beyond_the_limits_is_refused_whole(body: bytes, kind: str) -> None:
    with pytest.raises(ScrapeError) as error:
        parse(body, "run", T0)
    assert error.value.kind == kind


def test_thousands_of_unknown_names_cost_no_search_each() -> None:
    found = read("".join(f"name_{n} 1\n" for n in range(5000)))
    assert found.lost == 5000 and len(found.body.reading.unmapped) == 200


@given(st.text(max_size=200))
def test_any_text_is_taken_or_refused_line_by_line(text: str) -> None:
    try:
        found = read(text)
    except ScrapeError:
        return
    lines = [line for line in text.split("\n") if line.strip() and not line.strip().startswith("#")]
    assert len(found.body.reading.samples) + found.lost <= len(lines)


gauges = sorted(name for name, metric in METRICS.items() if metric.reduction == "instant")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(gauges),
            st.dictionaries(
                st.sampled_from(["state", "reason", "engine"]), st.text(min_size=1, max_size=8), max_size=3
            ),
            st.floats(0, 1),  # possible in every unit
            st.none() | st.integers(946_684_800_000, 1_800_000_000_000),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_well_is_read_exactly(rows: list[tuple[str, dict[str, str], float, int | None]]) -> None:
    lines = []
    for name, labels, value, stamp in rows:
        escaped = {k: v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for k, v in labels.items()}
        inside = ",".join(f'{k}="{v}"' for k, v in escaped.items())
        lines.append(f"{name}{{{inside}}} {value!r}" + ("" if stamp is None else f" {stamp}"))
    text = "\n".join(lines) + "\n"
    if "\0" in text or any("\r" in line for line in lines):
        return
    found = read(text)
    assert found.refused == []
    assert [(s.metric, dict(s.labels), s.value, s.ts) for s in found.body.reading.samples] == [
        (name, {k: v for k, v in labels.items()}, value, None if stamp is None else stamp / 1000)
        for name, labels, value, stamp in rows
    ]


def test_a_line_by_itself_costs_itself() -> None:
    found = list(exposition.each(b'a{b="c}d"} 1 5\nb 2\nc{\n', Limits()))
    assert [number for number, _ in found] == [1, 2, 3]
    assert isinstance(found[2][1], ScrapeError)
    first = found[0][1]
    assert not isinstance(first, ScrapeError)
    assert (first[0].name, first[0].labels, first[1], first[2]) == ("a", (("b", "c}d"),), 1.0, 5)


def test_a_body_waits_as_bytes_without_a_change() -> None:
    text = (
        'queue_samples 7 1799999990500\nsandbox_exec_seconds_bucket{le="+Inf"} 2\nsandbox_exec_seconds_sum 1\nnope 1\n'
    )
    taken = read(text).body
    grown = (
        Grown("s", True, T0, Sample("generator_tokens_total", 3.0)),
        Grown("h", False, 0.0, taken.reading.histograms[0]),
    )
    body = Body(taken.reading, grown)
    assert unpack_body(pack_body(body)) == body
    assert (body.rows, body.actor()) == (4, "generator")
    with pytest.raises(ValueError, match="not a packed push"):
        unpack_body(b"garbage")
