"""What a page may bring into the store: no more than Prometheus would take of it, and what is left out is counted."""

import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectors.formats import exposition
from collectors.generators import vllm
from collectors.model import Histogram, Limits, Reading, Sample, ScrapeError
from tests.collectors._reading import TESTDATA

NOW = 1_795_300_870.0
STAMP = "1795300869000"

# What the scrape of Prometheus 2.42 itself said of each page, served to it one by one.
TAKEN: Mapping[str, str] = {
    "plain": "a 1\n",
    "time": f"a 1 {STAMP}\n",
    "time behind a tab": f"a 1\t{STAMP}\n",
    "tab": "a\t1\n",
    "blanks": "a  1 \t\n",
    "blanks in labels": 'a { b = "c" ,\td="e" , } 1\n',
    "no label": "a{} 1\n",
    "no blank before the value": 'a{b="c"}1\n',
    "escapes": 'a{b="\\\\ \\n \\" \\x"} 1\n',
    "controls in a label": 'a{b="x\ty\rz"} 1\n',
    "other letters in a label": 'a{b="ü"} 1\n',
    "a brace in a label": 'a{b="}"} 1\n',
    "empty label": 'a{b=""} 1\n',
    "le on a gauge": 'a{le="x"} 1\n',
    "not a number": "a NaN\nb nan\n",
    "infinite": "a +Inf\nb -inf\nc Infinity\n",
    "numbers": "a 1.\nb .5\nc 1e5\nd +5\ne 1e-400\n",
    "names": ":a 1\n_a 1\n",
    "comments": "# x\n#\n#x\n#TYPE a foo\n# TYPE\n# UNIT a s\n\n \t\na 1\n",
    "help without text": "# HELP a\na 1\n",
    "type behind blanks": "  # TYPE a counter\n#\tTYPE\tb\tgauge\na 1\n",
    "type twice": "# TYPE a counter\n# TYPE a counter\na 1\n",
    "type behind its samples": "a 1\n# TYPE a counter\n",
    "help twice": "# HELP a x\n# HELP a y\na 1\n",
    "le that is no number": '# TYPE h histogram\nh_bucket{le="x"} 1\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n',
    "quantile that is no number": '# TYPE s summary\ns{quantile="x"} 1\n',
    "series twice": "a 1\na 2\n",
}
REFUSED: Mapping[str, bytes | str] = {
    "carriage return": "a 1\r\n",
    "line of a carriage return": "\r\na 1\n",
    "form feed": "a 1\x0c\n",
    "separator": "a 1\x1c\n",
    "no-break space": "a\u00a01\n",
    "blank before the name": ' a{b="c"} 1\n',
    "comma before labels": 'a{,b="c"} 1\n',
    "two commas": 'a{b="c",,d="e"} 1\n',
    "three numbers": "a 5 6 7\n",
    "time below zero": "a 1 -5\n",
    "time with a sign": "a 1 +5\n",
    "time that is no whole number": "a 1 1.5\n",
    "time beyond 64 bits": "a 1 99999999999999999999999\n",
    "words behind the value": "a 1 foo\n",
    "exemplar": 'a_bucket{le="1"} 1 # {x="y"} 1\n',
    "signed NaN": "a +NaN\n",
    "too large": "a 1E+400\n",
    "underscore": "a 1_0\n",
    "hexadecimal": "a 0x10\n",
    "decimal comma": "a 1,5\n",
    "other digits": "a \uff11\n",
    "no value": "a\n",
    "no value behind labels": 'a{b="c"}\n',
    "label twice": 'a{b="c",b="d"} 1\n',
    "label that is the name": 'a{__name__="d"} 1\n',
    "label with a colon": 'a{b:c="d"} 1\n',
    "label without a name": 'a{="d"} 1\n',
    "label without quotes": "a{b=c} 1\n",
    "label in other quotes": "a{b='c'} 1\n",
    "label that is cut": 'a{b="c\n',
    "labels without an end": 'a{b="c" 1\n',
    "labels twice": 'a{b="c"}{d="e"} 1\n',
    "labels without a name": '{b="c"} 1\n',
    "name with a digit first": "1a 2\n",
    "name with a dash": "a-b 1\n",
    "name with a dot": "a.b 1\n",
    "name of other letters": "ü 1\n",
    "unknown type": "# TYPE a foo\na 1\n",
    "type of OpenMetrics": "# TYPE a unknown\na 1\n",
    "type in capitals": "# TYPE a COUNTER\na 1\n",
    "no type": "# TYPE a\na 1\n",
    "type and a blank": "# TYPE a counter \na 1\n",
    "type of no name": "# TYPE 1a counter\na 1\n",
    "help of no name": "# HELP 1a x\na 1\n",
    "not UTF-8": b'a{b="\xff"} 1\n',
    "byte order mark": b"\xef\xbb\xbfa 1\n",
    "JSON": '{"a": 1}\n',
    "HTML": "<html></html>\n",
}
# Taken by Prometheus, not by us: each could hide that something was lost, and none is on a real page.
OURS_ALONE: Mapping[str, str] = {
    "cut": "a 1",
    "empty": "",
    "no comma": 'a{b="c" d="e"} 1\n',
    "line feed in a label": 'a{b="x\ny"} 1\n',
    "NUL": 'a{b="\0"} 1\n',
    "reserved label": 'a{__b="d"} 1\n',
}
# promtool reads with another parser than the scrape, which takes these.
TOOL_ALONE = {
    "escapes", "blanks", "type twice", "type behind its samples", "help twice", "le that is no number",
    "quantile that is no number", "comments",
}  # fmt: skip
TOOL_WORDS = (
    "second TYPE line",
    "second HELP line",
    "invalid escape sequence",
    "for 'le' label",
    "for 'quantile' label",
)


def bytes_of(page: bytes | str) -> bytes:
    return page if isinstance(page, bytes) else page.encode()


def flaw(page: bytes | str, state: dict[str, Any] | None = None) -> str:
    """Why the page as a whole is refused; "" when it is not."""
    try:
        exposition.parse(bytes_of(page), {"now": NOW} if state is None else state, Limits())
        exposition.check_whole(bytes_of(page))
    except ScrapeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", TAKEN)
def test_what_prometheus_takes_is_taken_cold_and_warm(name: str) -> None:
    state: dict[str, Any] = {"now": NOW}
    assert [flaw(TAKEN[name], state) for _ in range(2)] == ["", ""]


@pytest.mark.parametrize("name", [*REFUSED, *OURS_ALONE])
def test_what_prometheus_refuses_is_refused_however_often_it_comes(name: str) -> None:
    page = {**REFUSED, **OURS_ALONE}[name]
    state: dict[str, Any] = {"now": NOW}
    # What the cache knows must not make a broken line good.
    assert flaw('a{b="c"} 1\na 1\na_bucket{le="1"} 1\na{b="c",d="e"} 1\n', state) == ""
    first = flaw(page, state)
    assert first and flaw(page, state) == first


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("b 1\na 1,5\n", "line 2 is not Prometheus text: its value is not a number"),
        ("a 1e999\n", "line 1 is not Prometheus text: its value is out of range"),
        (
            "a 1 2 3\n",
            "line 1 is not Prometheus text: the text after its value is not a timestamp in whole milliseconds",
        ),
        ("a{b:c='d'} 1\n", 'line 1 is not Prometheus text: its labels are not name="value" pairs'),
        ("1a 1\n", "line 1 is not Prometheus text: its name is invalid, or is not followed by labels or a value"),
        ("a\n", "line 1 is not Prometheus text: it has no value"),
        ("# TYPE a foo\n", "line 1 is not Prometheus text: unknown metric type"),
        ("# HELP 1a x\n", "line 1 is not Prometheus text: the name after TYPE or HELP is invalid"),
    ],
)
def test_the_reason_is_named(page: str, why: str) -> None:
    assert flaw(page) == why


def test_open_metrics_and_the_quoted_names_of_prometheus_3_are_another_grammar() -> None:
    assert flaw('# TYPE a unknown\na 1 1795300869.5\nb_bucket{le="1"} 1 # {x="y"} 1\n# EOF\n') == ""
    assert flaw('# TYPE "dotted.name" gauge\n{"dotted.name",b="c"} 1\n') == ""
    assert "unknown metric type" in flaw("# TYPE a foo\na 1\n# EOF\n")


@settings(max_examples=40)
@given(st.text(alphabet='ab_1{}=",\\ \t.+-eNI#\r\n', max_size=30))
@example("a 1\n# TYPE a x")
def test_cold_and_warm_say_the_same_of_any_text(text: str) -> None:
    state: dict[str, Any] = {}
    assert flaw(text, state) == flaw(text, state)


# ---- left out and counted


def parsed(text: str, now: float = NOW) -> exposition.Page:
    return exposition.parse(text.encode(), {"now": now}, Limits())


def test_of_a_series_that_comes_twice_the_first_is_taken_as_prometheus_does() -> None:
    state: dict[str, Any] = {}
    for _ in range(2):
        page = exposition.parse(b'a 1\na{x="1",y="2"} 3\na{y="2",x="1"} 4\na 2\nb 5\n', state, Limits())
        assert [row[2] for row in page.rows()] == [1.0, 3.0, 5.0]
        assert (page.dropped, page.why) == (2, exposition.DUPLICATE_SERIES)
    # What only repeats itself is no news, and not a number is not a number.
    page = parsed("a 1\na 1\nb NaN\nb NaN\n")
    assert (len(page.samples), page.dropped) == (2, 0)


def test_lines_whose_time_nobody_can_mean_are_left_out() -> None:
    stamps = [1_795_300_870, 1_795_300_870_000_000, 1000, int(NOW * 1000) + 90_000_000]
    good = [int(NOW * 1000), int(NOW * 1000) + 3_600_000, 1_600_000_000_000]
    for blank in (" ", "\t"):
        page = parsed("".join(f"a{n} 1{blank}{stamp}\n" for n, stamp in enumerate([*good, *stamps])))
        assert [row[0] for row in page.rows()] == ["a0", "a1", "a2"]
        assert (page.dropped, page.why) == (4, exposition.BAD_TIMESTAMP)


def read(*lines: str) -> Reading:
    """A vLLM page with these lines besides one that proves whose it is."""
    whole = "\n".join(('vllm:num_requests_running{engine="0"} 3', *lines)) + "\n"
    return vllm.parse(whole.encode(), {"now": NOW}, Limits())


TTFT = "vllm:time_to_first_token_seconds"
SOUND = {"1": "2", "2": "5", "+Inf": "6", "sum": "9.5", "count": "6"}


def ttft(**changed: str | None) -> list[str]:
    """Lines of a histogram; None leaves one out."""
    parts = {**SOUND, **{key.removeprefix("le").replace("Inf", "+Inf"): value for key, value in changed.items()}}
    rows = [
        f'{TTFT}_{key}{{engine="0"}} {value}'
        if key in ("sum", "count")
        else f'{TTFT}_bucket{{engine="0",le="{key}"}} {value}'
        for key, value in parts.items()
        if value is not None
    ]
    return [f"# TYPE {TTFT} histogram", *rows]


def test_a_sound_histogram_is_taken_also_without_its_count() -> None:
    for lines in (ttft(), ttft(count=None)):
        found = read(*lines)
        (one,) = found.histograms
        assert (one.edges, one.counts, one.total, found.dropped) == ((1.0, 2.0), (2.0, 5.0, 6.0), 9.5, 0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"leInf": None}, 'the histogram has no bucket le="+Inf"'),
        ({"sum": None}, "the histogram has no sum"),
        ({"sum": "NaN"}, "the histogram's sum is not a number"),
        ({"le2": "1"}, "the histogram's buckets are not cumulative"),
        ({"le2": "7"}, "the histogram's buckets are not cumulative"),
        ({"le1": "-1"}, "the histogram's buckets are not cumulative"),
        ({"le2": "NaN"}, "the histogram's buckets are not cumulative"),
        ({"leInf": "+Inf", "count": "+Inf"}, "the histogram's buckets are not cumulative"),
        ({"count": "7"}, "the histogram's count is not that of its last bucket"),
    ],
)
def test_a_broken_histogram_is_refused_with_its_reason_and_its_neighbours_are_kept(
    changed: dict[str, str | None], why: str
) -> None:
    found = read(*ttft(**changed), 'vllm:generation_tokens_total{engine="0"} 7')
    assert found.histograms == ()
    assert (found.dropped, found.why_dropped) == (1, f"{TTFT}: {why}")
    assert {sample.metric for sample in found.samples} == {"generator_requests_running", "generator_tokens_total"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("NaN", "a value that is not finite"),
        ("+Inf", "a value that is not finite"),
        ("-1", "a counter that is below zero"),
    ],
)
def test_a_counter_that_cannot_be_is_refused(value: str, why: str) -> None:
    found = read("# TYPE vllm:generation_tokens_total counter", f'vllm:generation_tokens_total{{engine="0"}} {value}')
    assert (found.dropped, found.why_dropped) == (1, f"generator_tokens_total: {why}")
    assert [sample.metric for sample in found.samples] == ["generator_requests_running"]


def test_a_gauge_of_nan_says_nothing_and_an_infinite_one_is_refused() -> None:
    assert read('vllm:kv_cache_usage_perc{engine="0"} NaN').dropped == 0
    found = read('vllm:kv_cache_usage_perc{engine="0"} +Inf')
    assert (found.dropped, found.why_dropped) == (1, "kv_cache_usage_ratio: a value that is not finite")
    assert found.samples == (Sample("generator_requests_running", 3.0, (("engine", "0"),)),)


# Those of skyrl are excerpts, which end in the middle of a histogram of Ray's.
REAL = [path for path in sorted(TESTDATA.glob("**/*.prom")) if path.parent.name != "skyrl"]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_no_real_page_loses_a_line_or_a_histogram(path: Any) -> None:
    page = exposition.parse(path.read_bytes(), {}, Limits())
    assert all(isinstance(one, exposition.Bucketed) for one in exposition.histograms(page))
    assert (page.dropped, page.why) == (0, "")


# ---- held against promtool

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)


def promtool(page: bytes) -> str:
    """Why it cannot read a page; "" when it can, whatever it thinks of names and helps (exit code 3)."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert done.returncode in (0, 1, 3)
    return done.stderr.decode(errors="replace") if done.returncode == 1 else ""


@needs_promtool
def test_nothing_that_promtool_cannot_read_is_taken() -> None:
    real = TESTDATA / "vllm/default/metrics_1795246810368_load.prom"
    pages: dict[str, bytes] = {name: bytes_of(page) for name, page in {**TAKEN, **REFUSED}.items()}
    pages["real"] = real.read_bytes()
    with ThreadPoolExecutor(4) as pool:
        said = dict(zip(pages, pool.map(promtool, pages.values()), strict=True))
    taken = {name for name in pages if name in TAKEN or name == "real"}
    assert {name for name in taken if said[name]} == TOOL_ALONE
    # And it is a reference: of what we refuse it refuses nearly all.
    assert {name for name in REFUSED if not said[name]} == {
        "blank before the name", "time below zero", "time with a sign", "type in capitals", "no type",
    }  # fmt: skip


SMALL = "\n".join(("# HELP vllm:x y", "# TYPE vllm:x counter", 'vllm:x{engine="0",b="c d"} 12.5', *ttft(), "")).encode()


@needs_promtool
@settings(max_examples=25, derandomize=True)
@given(st.integers(0, len(SMALL) - 1), st.sampled_from('{}",=\\ \t\r\n1a_:#-.é'), st.booleans())
def test_of_damaged_pages_none_is_taken_that_promtool_cannot_read(at: int, damage: str, replace: bool) -> None:
    page = SMALL[:at] + damage.encode() + SMALL[at + replace :]
    why = promtool(page)
    if why and not any(words in why for words in TOOL_WORDS) and flaw(page) == "":
        # The tool wants no blank behind a value; the scrape does not mind.
        assert b"\t\n" in page or b" \n" in page, (page, why)


def test_histogram_is_what_a_reading_holds() -> None:
    (one,) = read(*ttft()).histograms
    assert one == Histogram("time_to_first_token_seconds", (1.0, 2.0), (2.0, 5.0, 6.0), 9.5, (("engine", "0"),))
