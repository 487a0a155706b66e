"""The fast exposition reader reads what prometheus_client reads, and refuses what is too much or no metrics."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from collectors.formats import exposition
from collectors.model import Labels, Limits, ScrapeError
from tests.collectors._reading import TESTDATA

PAGES = sorted(TESTDATA.glob("**/*.prom"))

Row = tuple[str, Labels, str]


def reference(text: str) -> list[Row]:
    """prometheus_client's rows, each series once, as Prometheus has it; values as repr, so that NaN equals NaN."""
    rows = [
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    first: dict[tuple[str, Labels], Row] = {}
    for row in rows:
        first.setdefault(row[:2], row)
    return list(first.values())


def ours(text: str, state: dict[str, object] | None = None) -> list[Row]:
    page = exposition.parse(text.encode(), {} if state is None else state, Limits())
    # prometheus_client adds "_total" to counters without it; we keep what is on the wire.
    return [
        (name + "_total" * (page.types.get(name) == "counter" and not name.endswith("_total")), labels, repr(value))
        for name, labels, value in page.rows()
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recorded_pages_read_the_same_cold_and_warm(path) -> None:
    text = path.read_text()
    expected = sorted(reference(text))
    state: dict[str, object] = {}
    assert sorted(ours(text, state)) == expected
    assert sorted(ours(text, state)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "a 1",
        "a 1 1700000000000",
        "a 1  1700000000000",
        'a{b="c d 5 6"} 1 1700000000000',
        'a{b="c d 5 6"} 7',
        'a{b="c"} 1 1700000000000',
        'a{b="c"}\t1',
        'a{b="c"}\t1\t1700000000000',
        'a{b="c"} 1\t1700000000000',
        "a\t1",
        "a  1",
        'a{ b = "c" , d="e" } 1',
        'a{b="c",} 1',
        "a{} 1",
        'a{b="}"} 1',
        'a{b="x y"} 1',
        'a{b="x,y=\\"z\\""} 1',
        r'a{b="back\\slash",c="new\nline",d="q\"uote",e="\x"} 1',
        'a{b="c"}1',
        'a {b="c"} 1',
        'a{b=""} 1',
        'a{b="# not a comment"} 1',
        '{"dotted.name",b="c"} 1',
        "a NaN",
        "a +Inf",
        "a -Inf",
        "a 1e-3",
        "a 12345678901234567890",
        'a{b="ü"} 1',
        "a:b:c 1",
        '# just a comment\na{b="c"} 1',
        "  # TYPE a counter\na 1",
        "# TYPE a_created gauge\na_created 1",
    ],
)
def test_odd_lines_read_the_same(line: str) -> None:
    state: dict[str, object] = {}
    for _ in range(2):  # once parsed, once from the cache
        assert ours(line + "\n", state) == reference(line + "\n")


@pytest.mark.parametrize(
    "line",
    ['a{b="c"} 1_0', 'a{b="c"} x', 'a{b="c"}', "a", 'a{b="c",b="d"} 1', 'a{b="c',
     'a{b="c",,d="e"} 1', "1a 2", 'a{b=c} 1', 'a{b="c" d="e"} 1', "a b c", "{} 1"],
)  # fmt: skip
def test_broken_lines_are_refused_where_prometheus_client_refuses_them(line: str) -> None:
    state: dict[str, object] = {}
    exposition.parse(b'a{b="c"} 1\na 1\n', state, Limits())  # the cache must not make a broken line good
    with pytest.raises((ValueError, IndexError)):
        reference(line + "\n")
    with pytest.raises(ScrapeError) as caught:
        exposition.parse(line.encode() + b"\n", state, Limits())
    assert caught.value.kind == "garbage"


names = st.from_regex(r"[a-z_:][a-z0-9_:]{0,12}", fullmatch=True)
label_names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
label_values = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029"), max_size=12
)
numbers = st.one_of(st.floats(width=64), st.integers(-(10**18), 10**18))
spaces = st.sampled_from([" ", " ", " ", "  ", "\t"])


@st.composite
def lines(draw) -> str:
    labels = draw(st.dictionaries(label_names, label_values, max_size=4))
    inside = ",".join(
        '{}="{}"'.format(key, value.replace("\\", r"\\").replace('"', r"\"")) for key, value in labels.items()
    )
    number = draw(numbers)
    stamp = draw(st.sampled_from(["", "", "", " 1700000000000"]))
    return f"{draw(names)}{'{' + inside + '}' if inside else ''}{draw(spaces)}{number!r}{stamp}"


@given(st.lists(lines(), min_size=1, max_size=8))
def test_generated_pages_read_the_same(page: list[str]) -> None:
    text = "\n".join(page) + "\n"
    state: dict[str, object] = {}
    assert ours(text, state) == reference(text)
    assert ours(text, state) == reference(text)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_page_or_a_scrape_error(body: bytes) -> None:
    try:
        exposition.parse(body, {}, Limits())
    except ScrapeError as error:
        assert error.kind in ("garbage", "empty", "too_large")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"<!doctype html><html>log in</html>", "garbage"),
        (b"\n <html>", "garbage"),
        (b'{"detail": "Not Found"}', "garbage"),
        (b"a 1\n\x00\x01", "garbage"),
        (b"a\xff 1\n", "garbage"),
        (b"\x1f\x8b\x08compressed", "garbage"),
    ],
)
def test_what_is_no_page_says_so(body: bytes, kind: str) -> None:
    with pytest.raises(ScrapeError) as caught:
        exposition.parse(body, {}, Limits())
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        (b"a 1\n" * 100, Limits(body_bytes=399)),
        (b"a 1\n" * 100, Limits(samples=99)),
        (b'a{b="' + b"x" * 100 + b'"} 1\n', Limits(line_bytes=100)),
        (b"a{" + b",".join(b'l%d="v"' % i for i in range(9)) + b"} 1\n", Limits(labels=8)),
        (b"a{ " + b",".join(b'l%d="v"' % i for i in range(9)) + b"} 1\n", Limits(labels=8)),
        # prometheus_client's label parser is quadratic in escaped quotes: such a line is not handed to it.
        (b'a{ b="' + b'\\"' * 5000 + b'"} 1\n', Limits()),
        ((b'a{ b="' + b"x" * 1000 + b'"} 1\n') * 1100, Limits()),
    ],
)
def test_limits_hold_before_anything_is_kept(body: bytes, limits: Limits) -> None:
    with pytest.raises(ScrapeError) as caught:
        exposition.parse(body, {}, limits)
    assert caught.value.kind == "too_large"


def test_exactly_the_limit_is_fine() -> None:
    body = b"".join(b"a%02d 1\n" % n for n in range(100))
    assert len(exposition.parse(body, {}, Limits(samples=100, body_bytes=600)).samples) == 100


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "CACHE_BYTES", 100 * 600)
    state: dict[str, object] = {}
    for scrape in range(50):  # a label that changes with every scrape, as request ids do
        exposition.parse(b"".join(b'a{id="%d"} 1\n' % (scrape * 20 + i) for i in range(20)), state, Limits())
        assert len(state["exposition"].series) <= 120


def test_a_bad_body_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ScrapeError) as caught:
        exposition.parse(b'a{token="sekret"} x\n', {}, Limits())
    assert "sekret" not in str(caught.value)
    assert "line 1" in str(caught.value)


HISTOGRAM = b"""# TYPE h histogram
h_sum{engine="0"} 12.5
h_bucket{engine="0",le="1.0"} 2
h_bucket{engine="0",le="+Inf"} 4
h_bucket{engine="0",le="0.5"} 1
h_count{engine="0"} 4
h_bucket{engine="1",le="10.0"} 7
h_bucket{engine="1",le="+Inf"} 7
h_sum{engine="1"} 3
"""


def test_histograms_keep_their_own_edges_in_any_order() -> None:
    """Multiprocess pages put the sum first; edges are per engine and user-configurable."""
    first, second = exposition.histograms(exposition.parse(HISTOGRAM, {}, Limits()))
    assert (first.labels, first.edges, first.counts, first.total) == ((("engine", "0"),), (0.5, 1.0), (1, 2, 4), 12.5)
    assert (second.edges, second.counts) == ((10.0,), (7, 7))


def test_an_incomplete_histogram_is_left_out() -> None:
    page = exposition.parse(b'# TYPE h histogram\nh_bucket{le="1"} 1\nh_sum 1\n', {}, Limits())
    assert list(exposition.histograms(page)) == []


def test_a_gauge_with_le_is_no_histogram() -> None:
    """SGLang's routing_key_running_req_count{gt,le}."""
    body = b'# TYPE g gauge\ng{gt="0",le="1"} 5\n'
    page = exposition.parse(body, {}, Limits())
    assert list(exposition.histograms(page)) == []
    assert page.rows() == [("g", (("gt", "0"), ("le", "1")), 5.0)]


def test_families_keep_total_only_where_it_is_part_of_the_name() -> None:
    body = b"# TYPE iteration_tokens_total histogram\n# TYPE x_total counter\n# TYPE y counter\n# TYPE s summary\n"
    page = exposition.parse(body, {}, Limits())
    assert page.family("iteration_tokens_total_bucket") == ("iteration_tokens_total", "histogram")
    assert page.family("x_total") == ("x_total", "counter")
    assert page.family("y_total") == ("y", "counter")
    assert page.family("s") == page.family("s_sum") == ("s", "summary")
    assert page.family("unheard_of_total") == ("unheard_of_total", "untyped")


def test_summaries_are_accepted() -> None:
    """smg routers render unmatched histograms as summaries."""
    body = b'# TYPE s summary\ns{quantile="0.5"} 1\ns_sum 2\ns_count 3\n'
    assert [row[2] for row in exposition.parse(body, {}, Limits()).rows()] == [1, 2, 3]


def test_not_a_number_comes_through() -> None:
    ((name, _, value),) = exposition.parse(b"b NaN\n", {}, Limits()).rows()
    assert name == "b" and math.isnan(value)


def test_a_cut_page_is_told() -> None:
    exposition.check_whole(b"a 1\n")
    with pytest.raises(ScrapeError):
        exposition.check_whole(b"a 1\nb 1")
