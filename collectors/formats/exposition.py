"""Prometheus text (0.0.4) -> typed series and histograms, fast when the same target is read again.

A page repeats the same `name{labels}` texts in every scrape. Each is parsed once and cached, bounded, in the target's
`State`; a line then costs one dictionary look-up and one `float`. Lines that are not plain (a timestamp, tabs, odd
spacing, escapes, quoted names) go to prometheus_client's parser one by one, so the result always equals its result.
`bench/parse.py` measures the speed.

A page that Prometheus refuses as a whole is refused (`grammar`). Lines that Prometheus drops from a page, series that
come twice and impossible timestamps, are left out and counted.

Not covered: OpenMetrics (prometheus_client >= 0.23.1 writes it with names that clash; request text), exemplars,
timestamps (accepted and dropped: a scrape has one time). Sample names stay as in the page, whereas
prometheus_client adds `_total` to counters that lack it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isinf, isnan
from operator import itemgetter
from threading import Lock
from typing import Any, Generic, NoReturn, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from collectors.model import Labels, Limits, ScrapeError, State

# ---- grammar
# The grammar of a line of Prometheus' text format, as the regular expressions of its own scrape parser.

TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
OPEN_METRICS_TYPES = TYPES | {"unknown", "info", "stateset", "gaugehistogram"}

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*'
_LABELS = rf"\{{[ \t]*(?:{_LABEL}(?:,[ \t]*{_LABEL})*(?:,[ \t]*)?)?\}}"
_HEAD = re.compile(rf"{_NAME}(?:[ \t]*(?P<labels>\{{)|[ \t]|$)", re.ASCII)
_KEY = re.compile(rf"{_NAME}(?:[ \t]*{_LABELS}[ \t]*|[ \t]+)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)", re.ASCII)
_TIME = re.compile(r"\d+", re.ASCII)
_META = re.compile(r"#[ \t]+(?:(?P<type>TYPE)|HELP)[ \t]+")
_ABOUT = re.compile(rf"({_NAME})(?:[ \t](.*))?", re.ASCII | re.DOTALL)
LAST_TIME = 2**63 - 1
# Spaces around "=", quoted names and reserved "__" names are left to prometheus_client.
_PLAIN_LABEL = re.compile(r'((?!__)[a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r'\\([\\n"])')

# float() strips and accepts more than the format allows: other blanks, digits of other scripts.
ODD = (b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f")


def odd(body: bytes) -> bool:
    """Returns whether the page may contain numbers that only Python accepts."""
    return not body.isascii() or any(byte in body for byte in ODD)


def number_flaw(text: str) -> str:
    """Why Go's parser refuses a number that float() accepts; "" if it accepts it."""
    plain = text.strip(" \t")
    if plain.lower() == "nan":
        return ""
    if _NUMBER.fullmatch(plain) is None:
        return "its value is not a number"
    if isinf(float(plain)) and plain.lstrip("+-")[0] not in "iI":
        return "its value is out of range"
    return ""


def line_flaw(line: str) -> str:
    """Why a line is not a valid sample; "" if it is. A line that begins with a blank has an invalid name."""
    key = _KEY.match(line)
    if key is None:
        return _key_flaw(line)
    value, *rest = line[key.end() :].replace("\t", " ").split(" ") or [""]
    flaw = number_flaw(value)
    rest = [word for word in rest if word]
    if flaw or not rest:
        return flaw
    if len(rest) > 1 or _TIME.fullmatch(rest[0]) is None or len(rest[0]) > 19 or int(rest[0]) > LAST_TIME:
        return "the text after its value is not a timestamp in whole milliseconds"
    return ""


def _key_flaw(line: str) -> str:
    head = _HEAD.match(line)
    if head is None:
        return "its name is invalid, or is not followed by labels or a value"
    return 'its labels are not name="value" pairs' if head["labels"] else "it has no value"


def meta_of_line(line: str, open_metrics: bool) -> tuple[str, str] | None:
    """(name, type) of a TYPE line; None of every other comment.

    Raises:
        ValueError: a TYPE or HELP line that Prometheus refuses, with the reason.
    """
    match = _META.match(line)
    if match is None:
        return None
    about = _ABOUT.fullmatch(line, match.end())
    if about is None and not line[match.end() :].startswith('"'):
        raise ValueError("the name after TYPE or HELP is invalid")
    if not match["type"]:
        return None
    name, kind = about.groups() if about is not None else _quoted(line[match.end() :])
    if kind not in (OPEN_METRICS_TYPES if open_metrics else TYPES):
        raise ValueError("unknown metric type")
    return name, kind


def _quoted(text: str) -> tuple[str, str]:
    """`"dotted.name" gauge`, as in Prometheus 3."""
    name, _, kind = text[1:].partition('" ')
    return name, kind


def stamped(line: str) -> tuple[str, int | None]:
    """The line without its timestamp, and the timestamp. Value and timestamp follow the labels (or the name)."""
    rest = line[line.rfind("}") + 1 :] if "}" in line else line.partition(" ")[2]
    parts = rest.split()
    if len(parts) != 2 or not parts[1].removeprefix("-").isdecimal() or len(parts[1]) > 18:
        return line, None
    return line.rstrip()[: -len(parts[1])].rstrip(), int(parts[1])


def plain_labels(text: str) -> Labels | None:
    """Sorted labels, or None if the text needs prometheus_client's parser."""
    labels: dict[str, str] = {}
    position = count = 0
    while position < len(text):
        match = _PLAIN_LABEL.match(text, position)
        if match is None:
            return None
        labels[match.group(1)] = _unescape(match.group(2))
        position, count = match.end(), count + 1
    # A label given twice is an error; prometheus_client's parser reports it.
    return tuple(sorted(labels.items())) if len(labels) == count else None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match.group(1) == "n" else match.group(1), text)


# ---- layout
# Fast reading of pages with a cached layout: the same lines in the same order, with other numbers.

S = TypeVar("S")

Texts = tuple[str, ...]

# Bytes of shared layouts (measured: 1,000 B a line with its series): some hundred kinds of pages.
SHARED_BYTES = 64 << 20
LINE_BYTES = 1000
# Pages without a cached layout after which learning stops, because the page changes every time.
MAX_FAILURES = 3
# After `MAX_FAILURES` only every page of this number is learned.
RETRY_PAGES = 16
# Pages read by a layout after which the target drops its cache of single lines.
SETTLED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Layout(Generic[S]):
    """The lines of a page without the numbers.

    Attributes:
        heads: the text of every line before its last blank.
        starts: the same with that blank.
        length: characters of all heads and texts.
        texts: the text behind the head, for lines that are not samples.
        series, types: the samples' series in order; families and their types.
        computed: values that callers computed from the layout, by their key.
    """

    heads: Texts
    starts: list[str]
    length: int
    texts: Texts
    series: list[S]
    types: dict[str, str]
    samples: Callable[[Sequence[str]], Texts]
    others: Callable[[Sequence[str]], Texts]
    computed: dict[Any, Any] = field(default_factory=dict)

    def values(self, lines: Sequence[str], characters: int) -> list[float] | None:
        """Returns the samples' numbers; None if the page has another layout, or a number needs the full parser.

        ``characters``: of all lines; -1 if some are not ASCII.
        """
        if len(lines) != len(self.starts):
            return None
        # `removeprefix` leaves lines with another beginning unchanged; the length check below detects them. It costs
        # half of a comparison and a slice per line.
        tails = list(map(str.removeprefix, lines, self.starts))
        if self.others(tails) != self.texts:
            return None
        texts = self.samples(tails)
        joined = "".join(texts)
        return _numbers(texts, joined) if len(joined) == characters - self.length else None


def _numbers(texts: Texts, joined: str) -> list[float] | None:
    # float() accepts more than the format allows: "1_0", and blanks of all kinds around a number.
    if any([character in joined for character in _NOT_IN_NUMBERS]):
        return None
    try:
        values = list(map(float, texts))
    except ValueError:
        return None
    total = sum(values)
    return None if total - total else values


_NOT_IN_NUMBERS = "_ " + "".join(map(bytes.decode, ODD))


@dataclass(slots=True)
class LayoutMemory(Generic[S]):
    """The layouts of one target."""

    layout: Layout[S] | None = None
    hits: int = 0
    failures: int = 0


_shared: MutableMapping[tuple[int, Texts], Layout[Any]] = {}
_guard = Lock()


def find_layout(
    memory: LayoutMemory[S], labels: int, lines: Sequence[str], characters: int
) -> tuple[Layout[S], list[float]] | None:
    """Finds the cached layout of a page, of this target or another, and its numbers. ``labels``: limit per series.

    ``characters``: see `Layout.values`.
    """
    layout = memory.layout
    values = layout.values(lines, characters) if layout is not None else None
    if values is None:
        layout = _shared.get((labels, tuple([line.rpartition(" ")[0] for line in lines])))
        values = layout.values(lines, characters) if layout is not None else None
    if layout is None or values is None:
        memory.hits = 0
        return None
    memory.layout, memory.hits, memory.failures = layout, memory.hits + 1, 0
    return layout, values


def learn(
    memory: LayoutMemory[S],
    labels: int,
    lines: Sequence[str],
    keys: Mapping[str, S],
    series: list[S],
    types: dict[str, str],
) -> None:
    """Caches the layout of a page if all of its ``series`` come from plain lines, given by ``keys``."""
    memory.failures += 1
    if memory.failures > MAX_FAILURES and memory.failures % RETRY_PAGES:
        return
    halves = [line.rpartition(" ") for line in lines]
    others = [at for at, line in enumerate(lines) if line.lstrip(" \t")[:1] in ("", "#")]
    skipped = set(others)
    samples = [at for at in range(len(lines)) if at not in skipped]
    # itemgetter with one index does not return a tuple.
    if min(len(samples), len(others)) < 2 or [keys.get(halves[at][0]) for at in samples] != series:
        return
    heads, starts = tuple([half[0] for half in halves]), [half[0] + half[1] for half in halves]
    pick, rest = itemgetter(*samples), itemgetter(*others)
    texts = rest([half[2] for half in halves])
    length = sum(map(len, (*starts, *texts)))
    memory.layout = Layout(heads, starts, length, texts, series, types, pick, rest)
    _share(labels, memory.layout)


def _share(labels: int, layout: Layout[Any]) -> None:
    """Shares a layout with every target of this process; the oldest layouts are removed."""
    with _guard:
        lines = sum(len(heads) for _, heads in _shared)
        while _shared and (lines + len(layout.heads)) * LINE_BYTES > SHARED_BYTES:
            oldest = next(iter(_shared))
            lines -= len(oldest[1])
            del _shared[oldest]
        _shared[labels, layout.heads] = layout


def forget() -> None:
    """Clears all shared layouts, for measurements and tests."""
    with _guard:
        _shared.clear()


# Bytes of cached keys. A key costs its text and 700 bytes (measured: 1,000 B a series of a vLLM page, with comments).
# Enough for 8 engines eight times over; a page with ever new labels cannot fill the memory.
CACHE_BYTES = 32 << 20
KEY_OVERHEAD = 700
# Epoch ms of 2000-01-01. An earlier timestamp on a line is in another unit.
FIRST_TIME = 946_684_800_000
# Milliseconds after now (one day). A later timestamp on a line is in another unit.
AHEAD = 86_400_000
DUPLICATE_SERIES = "a series occurs twice with different values; the first is used"
BAD_TIMESTAMP = "a timestamp before 2000 or more than a day in the future; timestamps must be milliseconds since 1970"

# Characters. prometheus_client walks labels character by character, quadratic in escaped quotes: a page of such lines
# would take minutes of CPU. No real line that needs its parser (a timestamp, odd spacing) is nearly as long.
SLOW_LINE_CHARACTERS = 8192
# Characters of one page for prometheus_client: about one second of CPU (measured 0.7 to 0.9 s per MB).
SLOW_PAGE_CHARACTERS = 1 << 20

_PLAIN = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?", re.ASCII)
_DIGITS = frozenset("0123456789")
_BEGINS = _DIGITS | frozenset("+-.")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A parsed key. Compared by identity: a target's cache returns the same object for the same text."""

    name: str
    labels: Labels

    def label(self, name: str) -> str:
        """A label's value, empty when it has none."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(slots=True)
class Page:
    """One page.

    Attributes:
        types: family names as in the page -> Prometheus' type names.
        slow: characters that prometheus_client parsed.
        dropped: lines left out of an otherwise valid page, with the first reason in ``why``.
        open_metrics: the page ends in `# EOF`: prometheus_client checks its grammar, which is another.
        last_time: the latest timestamp a line may have, epoch ms.
        layout: the layout that it shares with other pages, if any.
    """

    types: dict[str, str] = field(default_factory=dict)
    slow: int = 0
    dropped: int = 0
    why: str = ""
    open_metrics: bool = False
    last_time: float = inf
    layout: "Layout[Series] | None" = None
    _samples: list[tuple[Series, float]] = field(default_factory=list)
    _values: Sequence[float] = ()

    @classmethod
    def by(cls, layout: "Layout[Series]", values: Sequence[float]) -> "Page":
        """A page with a cached layout; its samples are built on first use."""
        return cls(layout.types, layout=layout, _values=values)

    @property
    def samples(self) -> list[tuple[Series, float]]:
        """Series and value, in the page's order."""
        if self._values and not self._samples and self.layout is not None:
            self._samples = list(zip(self.layout.series, self._values, strict=True))
        return self._samples

    @samples.setter
    def samples(self, samples: list[tuple[Series, float]]) -> None:
        self._samples = samples

    @property
    def values(self) -> Sequence[float]:
        """The samples' values."""
        return self._values or [value for _, value in self._samples]

    def drop(self, why: str) -> None:
        """Counts a line, or a histogram, that is left out."""
        self.dropped, self.why = self.dropped + 1, self.why or why

    def drop_all(self, flaws: Iterable[str]) -> None:
        """Counts each flaw."""
        for flaw in flaws:
            self.drop(flaw)

    def rows(self) -> list[tuple[str, Labels, float]]:
        """Name, sorted labels, value: for pushes, which are read once."""
        return [(series.name, series.labels, value) for series, value in self.samples]

    def family(self, name: str) -> tuple[str, str]:
        """The family of a sample, with its type ("untyped" if the page has none).

        `iteration_tokens_total` is a histogram's family: the full name is looked up before any suffix is removed.
        """
        for suffix in ("", "_bucket", "_sum", "_count", "_total"):
            base = name.removesuffix(suffix) if suffix else name
            kind = self.types.get(base)
            if kind is not None and suffix in _SUFFIXES.get(kind, ("",)):
                return base, kind
        return name, "untyped"


_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
    "counter": ("", "_total"),
}


class Grouper:
    """Collects buckets, sums and counts of histograms by a key of the caller.

    ``flaws``: key -> the error of the histogram, filled by `done`.
    """

    def __init__(self) -> None:
        self._buckets: MutableMapping[tuple[str, Labels], dict[float, float]] = {}
        self._sums: MutableMapping[tuple[str, Labels], float] = {}
        self._counts: MutableMapping[tuple[str, Labels], float] = {}
        self.flaws: dict[tuple[str, Labels], str] = {}

    def add(self, key: tuple[str, Labels], part: str, bound: float, value: float) -> None:
        """Adds one sample. Of two with the same key and bound the last counts, as in Prometheus."""
        if part == "bucket":
            bounds = self._buckets.get(key)
            if bounds is None:
                bounds = self._buckets[key] = {}
            bounds[bound] = value
        elif part == "sum":
            self._sums[key] = value
        elif part == "count":
            self._counts[key] = value

    def drop(self, key: tuple[str, Labels]) -> None:
        """Removes what was collected for a key."""
        self._buckets.pop(key, None)
        self._sums.pop(key, None)
        self._counts.pop(key, None)

    def done(self) -> Iterator[tuple[tuple[str, Labels], tuple[tuple[float, ...], tuple[float, ...], float]]]:
        """Key and (finite edges, cumulative counts, sum) of every valid histogram; `flaws` has the others."""
        for key, bounds in self._buckets.items():
            edges = sorted(bounds)
            counts = tuple([bounds[edge] for edge in edges])
            total = self._sums.get(key)
            flaw = flaw_of(edges, counts, total, self._counts.get(key))
            if flaw or total is None:
                self.flaws[key] = f"{key[0]}: {flaw}"
            else:
                yield key, (tuple(edges[:-1]), counts, total)


def flaw_of(edges: Sequence[float], counts: tuple[float, ...], total: float | None, count: float | None) -> str:
    """The error of a histogram; "" if it is valid. ``count``: the page's `_count`, if it has one."""
    return edges_flaw(edges) or flaw_of_counts(counts, total, count)


def edges_flaw(edges: Sequence[float]) -> str:
    """The error of the edges alone: they must be complete and ascending."""
    return 'the histogram has no bucket le="+Inf"' if edges[-1] != inf or isnan(sum(edges[:-1])) else ""


def flaw_of_counts(counts: tuple[float, ...], total: float | None, count: float | None) -> str:
    """The error of the counts and the sum alone."""
    if total is None:
        return "the histogram has no sum"
    # Sorting a sorted list costs almost nothing.
    if counts[0] < 0 or not isfinite(sum(counts)) or list(counts) != sorted(counts):
        return "the histogram's buckets are not cumulative"
    if isnan(total):
        return "the histogram's sum is not a number"
    return "" if count is None or count == counts[-1] else "the histogram's count is not that of its last bucket"


@dataclass(frozen=True, slots=True)
class Bucketed:
    """One histogram of a page with its own edges. Fields as in `collectors.model.Histogram`."""

    family: str
    labels: Labels
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float


@dataclass(slots=True)
class _Cache:
    """``series``: by key as in the page; ``same``: one object per series, for any order of its labels;
    ``meta``: TYPE and HELP lines, with the types."""

    series: dict[str, Series] = field(default_factory=dict)
    same: dict[tuple[str, Labels], Series] = field(default_factory=dict)
    meta: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    cost: int = 0

    def add_series(self, raw: str, name: str, labels: Labels) -> Series:
        """Caches and returns the series of a key as in the page."""
        self.reserve(len(raw))
        series = self.series[raw] = self.series_of(name, labels)
        return series

    def series_of(self, name: str, labels: Labels) -> Series:
        """The one object of a series, for any order of its labels."""
        key = (name, labels)
        series = self.same.get(key)
        if series is None:
            series = self.same[key] = Series(name, labels)
        return series

    def reserve(self, size: int) -> None:
        """Makes room in the cache for ``size`` bytes."""
        self.cost += size + KEY_OVERHEAD
        if self.cost > CACHE_BYTES:
            self.series.clear()
            self.same.clear()
            self.meta.clear()
            self.cost = size + KEY_OVERHEAD


def parse(body: bytes, state: State, limits: Limits) -> Page:
    """Reads a page.

    Args:
        state: the target's cache; the keys are in it under ``"exposition"``; ``"now"`` (epoch s), if given, bounds
            timestamps on lines. Pass ``{}`` for a push.

    Raises:
        ScrapeError: ``too_large`` past a limit, ``empty`` without a sample or comment, ``garbage`` when a line is
            no exposition text. Never with text of the body.
    """
    lines = _lines(body, limits)
    memory: LayoutMemory[Series] = state.setdefault("layout", LayoutMemory())
    # Line feeds are not part of the lines.
    characters = len(body) - len(lines) + 1 if body.isascii() else -1
    if (cached := find_layout(memory, limits.labels, lines, characters)) is not None:
        if memory.hits == SETTLED:
            state.pop("exposition", None)
        return Page.by(*cached)
    careful, open_metrics = odd(body), body[-8:].rstrip().endswith(b"# EOF")
    page = _read(lines, state, limits, careful, open_metrics)
    if careful or open_metrics:
        return page
    keys = state["exposition"].series
    learn(memory, limits.labels, lines, keys, [series for series, _ in page.samples], page.types)
    page.layout = memory.layout if memory.layout is not None and memory.layout.types is page.types else None
    return page


def _read(lines: list[str], state: State, limits: Limits, careful: bool, open_metrics: bool) -> Page:
    """Reads the page line by line."""
    cache: _Cache = state.setdefault("exposition", _Cache())
    page = Page(open_metrics=open_metrics)
    page.last_time = state["now"] * 1000 + AHEAD if "now" in state else inf
    cached, samples = cache.series, page.samples
    for number, line in enumerate(lines, 1):
        raw, _, text = line.rpartition(" ")
        series = cached.get(raw)
        # float() accepts "1_0", which this format does not allow.
        if series is not None and "_" not in text:
            try:
                value = float(text)
                # `value - value` is not 0 for values that are not finite: float() may have read "-nan" or "1e400".
                if careful or value - value:
                    _check_number(text, number)
                samples.append((series, value))
                continue
            except ValueError:
                pass  # "{...} 1.0<tab>170000": a timestamp behind a tab
        _other(line, number, page, cache, limits)
    unique = dict(samples)
    if len(unique) != len(samples):
        _drop_duplicates(page)
    return page


def _drop_duplicates(page: Page) -> None:
    """Leaves each series once with its first value, as Prometheus does: equal repeats are ignored, others counted."""
    first: dict[Series, float] = {}
    for series, value in page.samples:
        value_seen = first.setdefault(series, value)
        if value_seen != value and not (isnan(value_seen) and isnan(value)):
            page.drop(DUPLICATE_SERIES)
    page.samples = list(first.items())


def each(body: bytes, limits: Limits) -> Iterator[tuple[int, tuple[Series, float, int | None] | ScrapeError]]:
    """Reads a pushed page line by line: (number, (series, value, own time in ms or None)); an error costs its line.

    Unlike a scrape, a push may have timestamps. Nothing is cached, because each pushed page is read once.

    Raises:
        ScrapeError: as `parse`, for errors of the body as a whole.
    """
    page, cache = Page(), _Cache()
    for number, line in enumerate(_lines(body, limits), 1):
        text = line.strip()
        if not text or text[0] == "#":
            continue
        try:
            text, stamp = stamped(text)
            series, value, _ = _parse_sample(text, number, page, cache, limits)
        except ScrapeError as error:
            yield number, error
        else:
            yield number, (series, value, stamp)


def _other(line: str, number: int, page: Page, cache: _Cache, limits: Limits) -> None:
    """Reads a comment, a blank line, or a key that is not cached."""
    if line in cache.meta:
        family_type = cache.meta[line]
    elif (stripped := line.lstrip(" \t")).startswith("#"):
        family_type = _meta(stripped, number, page)
        # Other comments may differ each time and are not cached.
        if family_type is not None or stripped.startswith("# HELP "):
            cache.reserve(len(line))
            cache.meta[line] = family_type
    else:
        if stripped:
            series, value, stamp = _parse_sample(line, number, page, cache, limits)
            if stamp is None or FIRST_TIME <= stamp <= page.last_time:
                page.samples.append((series, value))
            else:
                page.drop(BAD_TIMESTAMP)
        return
    if family_type is not None:
        page.types[family_type[0]] = family_type[1]


def _meta(line: str, number: int, page: Page) -> tuple[str, str] | None:
    try:
        return meta_of_line(line, page.open_metrics)
    except ValueError as error:
        _refuse(number, str(error))


def _refuse(number: int, why: str) -> NoReturn:
    raise ScrapeError("garbage", f"line {number} is not Prometheus text: {why}")


def _check_number(text: str, number: int) -> None:
    if flaw := number_flaw(text):
        _refuse(number, flaw)


def _lines(body: bytes, limits: Limits) -> list[str]:
    if len(body) > limits.body_bytes:
        raise ScrapeError("too_large", f"the page is larger than {limits.body_bytes} bytes")
    start = body[:512].lstrip()
    if not start and not body.strip():
        raise ScrapeError("empty", "the page is empty")
    if start[:1] == b"<" or b"\0" in body:
        raise ScrapeError("garbage", "the page is not metrics text (HTML or binary)")
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError:
        raise ScrapeError("garbage", "the page is not UTF-8 text") from None
    if len(body) > limits.line_bytes and max(map(len, lines)) > limits.line_bytes:
        raise ScrapeError("too_large", f"a line is longer than {limits.line_bytes} bytes")
    if len(lines) > limits.samples and sum(1 for line in lines if line and line[0] != "#") > limits.samples:
        raise ScrapeError("too_large", f"more than {limits.samples} samples")
    return lines


def _parse_sample(
    line: str, number: int, page: Page, cache: _Cache, limits: Limits
) -> tuple[Series, float, int | None]:  # fmt: skip
    """Series, value and the line's own timestamp (ms)."""
    raw, _, text = line.rpartition(" ")
    stamp = None
    if text.isascii() and text.isdecimal() and len(text) < 19 and raw[-1:] not in ("}", " ") and " " in raw:
        # `name{...} 1.5 1700000000000`: federation and cAdvisor stamp every line, too many for the slow parser.
        stamp = int(text)
        raw, _, text = raw.rpartition(" ")
    series = cache.series.get(raw) or _plain_series(raw, number, cache, limits)
    if series is None or "_" in text:
        return _slow(line, number, page, cache, limits)
    try:
        value = float(text)
    except ValueError:
        return _slow(line, number, page, cache, limits)
    # A finite number with a number's first and last character is valid: most need no further check.
    if value - value or not (text[:1] in _BEGINS and text[-1:] in _DIGITS and text.isascii()):
        _check_number(text, number)
    return series, value, stamp


def _plain_series(raw: str, number: int, cache: _Cache, limits: Limits) -> Series | None:
    """Parses and caches the key; None if it needs prometheus_client's parser."""
    plain = _PLAIN.fullmatch(raw)
    labels = plain_labels(plain.group(2) or "") if plain else None
    if plain is None or labels is None:
        return None
    _check_labels(len(labels), number, limits)
    return cache.add_series(raw, plain.group(1), labels)


def _slow(line: str, number: int, page: Page, cache: _Cache, limits: Limits) -> tuple[Series, float, int | None]:
    page.slow += len(line)
    if len(line) > SLOW_LINE_CHARACTERS or page.slow > SLOW_PAGE_CHARACTERS:
        raise ScrapeError("too_large", f"line {number}: too much text in an unusual format; write plain sample lines")
    # prometheus_client accepts lines that Prometheus refuses. Quoted names and OpenMetrics are left to it.
    flaw = "" if page.open_metrics or '{"' in line else line_flaw(line)
    if flaw:
        _refuse(number, flaw)
    try:
        families = list(text_string_to_metric_families(line))
        sample = families[0].samples[0]
        value = float(sample.value)
    except (ValueError, IndexError, KeyError, OverflowError):
        _refuse(number, "its labels or its value cannot be read")
    _check_labels(len(sample.labels), number, limits)
    # prometheus_client returns seconds.
    stamp = None if sample.timestamp is None or page.open_metrics else round(float(sample.timestamp) * 1000)
    cache.reserve(len(line))
    return cache.series_of(sample.name, tuple(sorted(sample.labels.items()))), value, stamp


def _check_labels(count: int, number: int, limits: Limits) -> None:
    if count > limits.labels:
        raise ScrapeError("too_large", f"line {number} has more than {limits.labels} labels")


def check_whole(body: bytes) -> None:
    """Checks that the page ends with a line feed. Without one it was truncated, and its last number may be, too.

    Raises:
        ScrapeError: ``garbage``.
    """
    if not body.endswith(b"\n"):
        raise ScrapeError("garbage", "the page was cut: it does not end with a line feed")


def histograms(page: Page) -> Iterator[Bucketed]:
    """Histograms of a page, each with its own edges; broken ones are left out and counted as dropped.

    A gauge with an `le` label (SGLang's routing keys) is not a histogram: the TYPE line decides.
    """
    grouper = Grouper()
    for series, value in page.samples:
        family, kind = page.family(series.name)
        if kind == "histogram":
            part, bound, labels = split_bucket(series, family)
            grouper.add((family, labels), part, bound, value)
    for (family, labels), (edges, counts, total) in grouper.done():
        yield Bucketed(family, labels, edges, counts, total)
    page.drop_all(grouper.flaws.values())


def split_bucket(series: Series, family: str) -> tuple[str, float, Labels]:
    """A histogram's sample -> (`bucket`, `sum` or `count`; upper bound; labels without `le`)."""
    part = series.name[len(family) + 1 :]
    if part != "bucket":
        return part, inf, series.labels
    try:
        bound = float(series.label("le"))
    except ValueError:
        return "", inf, series.labels  # a bucket without a bound has no meaning
    return part, bound, tuple(pair for pair in series.labels if pair[0] != "le")
