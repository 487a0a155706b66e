"""Adding up what several processes count: nothing twice, nothing lost. Numbers by hand."""

import json

from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Histogram, Sample
from server.push.inbox import Grown
from server.push.targets import STREAMS, ProcessTotals
from server.push.targets import SUMMED_SERIES as SERIES

T0 = 1_800_000_000.0


def tokens(stream: str, value: float, at: float, *, delta: bool = False, start: float = 0.0) -> Grown:
    return Grown(stream, delta, start, Sample("generator_tokens_total", value, ts=T0 + at))


def spins(counts: tuple[float, ...], total: float, at: float, edges: tuple[float, ...] = (1.0, 10.0)) -> Grown:
    return Grown("s", True, 0.0, Histogram("sandbox_spinup_seconds", edges, counts, total, ts=T0 + at))


def again(totals: ProcessTotals) -> ProcessTotals:
    """As after a restart."""
    return ProcessTotals.of(json.loads(json.dumps(totals.cursor())))


def values(totals: ProcessTotals, *grown: Grown, at: float) -> list[float]:
    return [sample.value for sample in totals.add(grown, T0 + at)[0]]


def test_two_processes_that_count_since_they_began() -> None:
    totals = ProcessTotals()
    assert values(totals, tokens("a", 1000, 0), at=0) == [1000.0]
    # Older than we listen: what it counted before is nobody's news.
    assert values(totals, tokens("b", 500, 5), at=5) == [1000.0]
    totals = again(totals)
    assert values(totals, tokens("a", 1010, 10), tokens("b", 530, 10), at=10) == [1040.0]
    # One that began after we did counts whole.
    assert values(totals, tokens("c", 7, 15, start=T0 + 12), at=15) == [1047.0]


def test_a_process_that_begins_again_loses_nothing() -> None:
    totals = ProcessTotals()
    values(totals, tokens("a", 100, 0), at=0)
    assert values(totals, tokens("a", 30, 10), at=10) == [130.0]


def test_differences_are_added_and_the_first_has_a_zero_before_it() -> None:
    totals = ProcessTotals()
    (zero, one), _ = totals.add([tokens("a", 40, 0, delta=True)], T0)
    assert (zero.value, one.value) == (0.0, 40.0) and zero.ts is not None and one.ts is not None and zero.ts < one.ts
    assert values(again(totals), tokens("a", 2, 5, delta=True), at=5) == [42.0]


def dated(totals: ProcessTotals, *grown: Grown, at: float) -> list[tuple[float, float]]:
    return [(sample.value, round((sample.ts or 0) - T0, 3)) for sample in totals.add(grown, T0 + at)[0]]


def test_what_was_counted_is_dated_by_when_it_was_counted() -> None:
    """6,000 tokens in the minute before the first push are 100/s, not those of a millisecond."""
    assert dated(ProcessTotals(), tokens("a", 6000, 0, start=T0 - 60), at=0) == [(0.0, -60.0), (6000.0, 0.0)]
    # What does not say since when it counts: the SDKs' own interval.
    assert dated(ProcessTotals(), tokens("a", 40, 0, delta=True), at=0) == [(0.0, -60.0), (40.0, 0.0)]
    # A difference over hours, an exporter's clock that is ahead: bounded.
    assert dated(ProcessTotals(), tokens("a", 40, 9, delta=True, start=1.0), at=0) == [(0.0, -300.0), (40.0, 0.0)]


def test_points_that_an_exporter_held_back_keep_their_times() -> None:
    totals = ProcessTotals()
    held = [tokens("a", value, at, start=T0 - 30) for value, at in ((900, 0), (300, -20), (600, -10))]
    assert dated(totals, *held, at=0) == [(0.0, -30.0), (300.0, -20.0), (600.0, -10.0), (900.0, 0.0)]
    # Of another process, counted before what is told already: after it, for a total does not go back.
    assert dated(totals, tokens("b", 5, -5, delta=True), at=1) == [(905.0, 0.001)]


def test_a_push_that_comes_twice_adds_nothing() -> None:
    totals = ProcessTotals()
    values(totals, tokens("a", 40, 0, delta=True), at=0)
    totals = again(totals)
    assert values(totals, tokens("a", 40, 0, delta=True), at=3) == []
    assert values(totals, tokens("a", 5, 6, delta=True), at=6) == [45.0]


def test_a_fresh_process_is_counted_from_its_beginning() -> None:
    assert values(ProcessTotals(), tokens("a", 100, 0, start=T0 - 60), at=0) == [0.0, 100.0]
    assert values(ProcessTotals(), tokens("a", 100, 0, start=T0 - 4000), at=0) == [100.0]


def test_histograms_add_up_bucket_by_bucket() -> None:
    totals = ProcessTotals()
    totals.add([spins((1, 2, 3), 42.5, 0)], T0)
    _, (found,) = again(totals).add([spins((0, 1, 1), 10.0, 5)], T0 + 5)
    assert (found.counts, found.total, found.edges) == ((1.0, 3.0, 4.0), 52.5, (1.0, 10.0))


def test_other_buckets_are_not_added_up() -> None:
    totals = ProcessTotals()
    totals.add([spins((1, 2, 3), 42.5, 0)], T0)
    assert totals.add([spins((1, 1, 1), 1.0, 5, (2.0, 10.0))], T0 + 5) == ([], [])
    why = "sandbox_spinup_seconds: its buckets differ from those of earlier pushes"
    assert (totals.dropped, totals.why) == (1, why)


def test_processes_and_series_are_bounded() -> None:
    totals = ProcessTotals()
    totals.add([tokens(str(n), 1, n / 1000, delta=True) for n in range(STREAMS + 50)], T0)
    assert len(totals.cursor()["streams"]) == STREAMS and "0" not in totals.streams
    labelled = [
        Grown(str(n), True, 0.0, Sample("generator_tokens_total", 1.0, (("x", str(n)),), T0)) for n in range(SERIES + 5)
    ]
    many = ProcessTotals()
    many.add(labelled, T0)
    assert len(many.sums) == SERIES and many.dropped == 5


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=30),
)
def test_however_pushes_repeat_the_total_is_the_sum_of_the_growth(pushes: list[tuple[str, int, bool]]) -> None:
    """Three processes that began just now, each push perhaps sent twice, with a restart of ours after each."""
    totals, counted, last = ProcessTotals(), dict.fromkeys("abc", 0), 0.0
    for at, (name, grown, twice) in enumerate(pushes, 1):
        counted[name] += grown
        for _ in range(1 + twice):
            found = values(totals, tokens(name, counted[name], at, start=T0 - 1), at=at)
            last = found[-1] if found else last
            totals = again(totals)
    assert last == sum(counted.values())
