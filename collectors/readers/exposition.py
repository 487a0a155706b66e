"""Prometheus text (0.0.4) -> typed series and histograms, fast when the same target is read again.

A page repeats the same `name{labels}` texts scrape after scrape, so each is parsed once and kept, bounded, in the
target's `State`; after that a line costs one dictionary look-up and one `float`. Lines that are not plain (a
timestamp, tabs, odd spacing, escapes, quoted names) go to prometheus_client's parser one by one, so what is read
never differs from what it reads; it is just faster. Measured: `bench/parse.py`.

Does not know: OpenMetrics (prometheus_client >= 0.23.1 writes it with names that clash; ask for text), exemplars,
timestamps (accepted and dropped: a scrape has one stamp). Sample names stay as on the wire, where
prometheus_client adds `_total` to counters that lack it.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from math import inf, isnan

from prometheus_client.parser import text_string_to_metric_families

from collectors.model import Labels, Limits, ScrapeError, State

CONTENT_TYPE = "text/plain;version=0.0.4"

# A key kept costs its text and about 500 bytes of objects (measured 860 B on vLLM pages); 32 MB a target is enough
# for 8 engines ten times over and stops a page that invents labels from filling memory.
CACHE_BYTES = 32 << 20
KEY_OVERHEAD = 500

# prometheus_client walks labels character by character, quadratic in escaped quotes: a page of such lines would hold
# a core for minutes. No real line that needs it (a timestamp, odd spacing) comes near this length.
SLOW_LINE_CHARACTERS = 8192
# About one second of CPU (measured 0.7 to 0.9 s per MB): what one page may cost, however odd it is.
SLOW_PAGE_CHARACTERS = 1 << 20

_PLAIN = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?", re.ASCII)
# Spaces round "=", quoted names and reserved "__" names are prometheus_client's to judge.
_LABEL = re.compile(r'((?!__)[a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r'\\([\\n"])')


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A parsed key. Compared by identity: a target's cache hands out the same object for the same text."""

    name: str
    labels: Labels

    def label(self, name: str) -> str:
        """A label's value, empty when it has none."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(slots=True)
class Page:
    """One page. ``types`` maps family names as on the wire to Prometheus' type words.

    ``slow`` counts the characters that went to prometheus_client.
    """

    samples: list[tuple[Series, float]] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    slow: int = 0

    def rows(self) -> list[tuple[str, Labels, float]]:
        """Name, sorted labels, value: for pushes, where nobody scrapes twice."""
        return [(series.name, series.labels, value) for series, value in self.samples]

    def family(self, name: str) -> tuple[str, str]:
        """The family a sample belongs to, with its type ("untyped" when the page does not say).

        `iteration_tokens_total` is a histogram's family: its own type is asked before any suffix is taken off.
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


@dataclass(frozen=True, slots=True)
class Bucketed:
    """One histogram of a page with the edges it came with. Fields as in `collectors.model.Histogram`."""

    family: str
    labels: Labels
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float


@dataclass(slots=True)
class _Cache:
    series: dict[str, Series] = field(default_factory=dict)
    cost: int = 0

    def keep(self, raw: str, series: Series) -> Series:
        self.cost += len(raw) + KEY_OVERHEAD
        if self.cost > CACHE_BYTES:
            self.series.clear()
            self.cost = len(raw) + KEY_OVERHEAD
        self.series[raw] = series
        return series


def parse(body: bytes, state: State, limits: Limits) -> Page:
    """Read a page.

    Args:
        state: the target's memory; the key cache lives in it under ``"exposition"``. Pass ``{}`` for a push.

    Raises:
        ScrapeError: ``too_large`` past a limit, ``empty`` without a sample or comment, ``garbage`` when a line is
            no exposition text. Never with text of the body.
    """
    lines = _lines(body, limits)
    cache: _Cache = state.setdefault("exposition", _Cache())
    page = Page()
    known, samples = cache.series, page.samples
    for number, line in enumerate(lines, 1):
        raw, _, text = line.rpartition(" ")
        series = known.get(raw)
        # float() takes "1_0", which is no number in this format; all else it takes, prometheus_client takes too.
        if series is not None and "_" not in text:
            try:
                samples.append((series, float(text)))
                continue
            except ValueError:
                pass  # "{...} 1.0<tab>170000": a timestamp behind a tab
        _other(line, number, page, cache, limits)
    return page


def each(body: bytes, limits: Limits) -> Iterator[tuple[int, tuple[Series, float, int | None] | ScrapeError]]:
    """A pushed page line by line: (number, (series, value, own time in ms or None)); a bad line costs only itself.

    Unlike a scrape, a push may bring times. Nothing is remembered: nobody pushes the same page twice.

    Raises:
        ScrapeError: as `parse`, for what is wrong with the body as a whole.
    """
    page, cache = Page(), _Cache()
    for number, line in enumerate(_lines(body, limits), 1):
        text = line.strip()
        if not text or text[0] == "#":
            continue
        try:
            text, stamp = _stamped(text)
            series, value = _first_sight(text, number, page, cache, limits)
        except ScrapeError as error:
            yield number, error
        else:
            yield number, (series, value, stamp)


def _stamped(line: str) -> tuple[str, int | None]:
    """A line without its time, and the time. Behind the labels (or the name) stand a value and perhaps a time."""
    rest = line[line.rfind("}") + 1 :] if "}" in line else line.partition(" ")[2]
    parts = rest.split()
    if len(parts) != 2 or not parts[1].removeprefix("-").isdecimal() or len(parts[1]) > 18:
        return line, None
    return line.rstrip()[: -len(parts[1])].rstrip(), int(parts[1])


def _other(line: str, number: int, page: Page, cache: _Cache, limits: Limits) -> None:
    """A comment, a blank line, or a key not met before."""
    if line.startswith("# HELP "):
        return
    stripped = line.strip()
    if stripped.startswith("#"):
        parts = stripped.split()
        if len(parts) >= 4 and parts[:2] == ["#", "TYPE"]:
            page.types[parts[2].strip('"')] = parts[3]
    elif stripped:
        page.samples.append(_first_sight(stripped, number, page, cache, limits))


def _lines(body: bytes, limits: Limits) -> list[str]:
    if len(body) > limits.body_bytes:
        raise ScrapeError("too_large", f"the page is larger than {limits.body_bytes} bytes")
    start = body[:512].lstrip()
    if not start and not body.strip():
        raise ScrapeError("empty", "the page holds nothing")
    if start[:1] == b"<" or b"\0" in body:
        raise ScrapeError("garbage", "the page is no metrics text (HTML or binary)")
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError:
        raise ScrapeError("garbage", "the page is no UTF-8 text") from None
    if max(map(len, lines)) > limits.line_bytes:
        raise ScrapeError("too_large", f"a line is longer than {limits.line_bytes} bytes")
    if len(lines) > limits.samples and sum(1 for line in lines if line and line[0] != "#") > limits.samples:
        raise ScrapeError("too_large", f"more than {limits.samples} samples")
    return lines


def _first_sight(line: str, number: int, page: Page, cache: _Cache, limits: Limits) -> tuple[Series, float]:
    raw, _, text = line.rpartition(" ")
    if text.isascii() and text.isdecimal() and raw[-1:] not in ("}", " ") and " " in raw:
        # `name{...} 1.5 1700000000000`: federation and cAdvisor stamp every line, too many for the careful parser.
        raw, _, text = raw.rpartition(" ")
    series = cache.series.get(raw) or _plain_series(raw, number, cache, limits)
    if series is None or "_" in text:
        return _slow(line, number, page, limits)
    try:
        return series, float(text)
    except ValueError:
        return _slow(line, number, page, limits)


def _plain_series(raw: str, number: int, cache: _Cache, limits: Limits) -> Series | None:
    """The key parsed and kept, or None when it needs the careful parser."""
    plain = _PLAIN.fullmatch(raw)
    labels = _plain_labels(plain.group(2) or "") if plain else None
    if plain is None or labels is None:
        return None
    _check_labels(len(labels), number, limits)
    return cache.keep(raw, Series(plain.group(1), labels))


def _plain_labels(text: str) -> Labels | None:
    """Sorted labels, or None when the text needs the careful parser."""
    found: dict[str, str] = {}
    position = count = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            return None
        found[match.group(1)] = _unescape(match.group(2))
        position, count = match.end(), count + 1
    # A label given twice is an error, and which error is prometheus_client's to say.
    return tuple(sorted(found.items())) if len(found) == count else None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match.group(1) == "n" else match.group(1), text)


def _slow(line: str, number: int, page: Page, limits: Limits) -> tuple[Series, float]:
    page.slow += len(line)
    if len(line) > SLOW_LINE_CHARACTERS or page.slow > SLOW_PAGE_CHARACTERS:
        raise ScrapeError("too_large", f"line {number}: more oddly written text than is worth parsing")
    try:
        families = list(text_string_to_metric_families(line))
        sample = families[0].samples[0]
        value = float(sample.value)
    except (ValueError, IndexError, KeyError, OverflowError):
        raise ScrapeError("garbage", f"line {number} is not Prometheus text") from None
    _check_labels(len(sample.labels), number, limits)
    return Series(sample.name, tuple(sorted(sample.labels.items()))), value


def _check_labels(count: int, number: int, limits: Limits) -> None:
    if count > limits.labels:
        raise ScrapeError("too_large", f"line {number} has more than {limits.labels} labels")


def check_whole(body: bytes) -> None:
    """The format ends every line with a line feed: a page that does not was cut, and its last number may be too.

    Raises:
        ScrapeError: ``garbage``.
    """
    if not body.endswith(b"\n"):
        raise ScrapeError("garbage", "the page was cut: it does not end with a line feed")


def histograms(page: Page) -> Iterator[Bucketed]:
    """Histograms of a page, each with its own edges; incomplete ones (no +Inf, no sum) are left out.

    A gauge that carries an `le` label (SGLang's routing keys) is no histogram: the TYPE line decides.
    """
    grouper = Grouper()
    for series, value in page.samples:
        family, kind = page.family(series.name)
        if kind == "histogram":
            part, bound, labels = split_bucket(series, family)
            grouper.add((family, labels), part, bound, value)
    for (family, labels), (edges, counts, total) in grouper.done():
        yield Bucketed(family, labels, edges, counts, total)


def split_bucket(series: Series, family: str) -> tuple[str, float, Labels]:
    """A histogram's sample -> (`bucket`, `sum` or `count`; upper bound; labels without `le`)."""
    part = series.name[len(family) + 1 :]
    if part != "bucket":
        return part, inf, series.labels
    try:
        bound = float(series.label("le"))
    except ValueError:
        return "", inf, series.labels  # a bucket without a bound says nothing
    return part, bound, tuple(pair for pair in series.labels if pair[0] != "le")


class Grouper:
    """Collects buckets and sums of histograms by whatever key the caller uses."""

    def __init__(self) -> None:
        self._buckets: MutableMapping[tuple[str, Labels], dict[float, float]] = {}
        self._sums: MutableMapping[tuple[str, Labels], float] = {}

    def add(self, key: tuple[str, Labels], part: str, bound: float, value: float) -> None:
        """One sample. Two with the same key and bound are two processes' shares: the last wins, as in Prometheus."""
        if part == "bucket":
            bounds = self._buckets.get(key)
            if bounds is None:
                bounds = self._buckets[key] = {}
            bounds[bound] = value
        elif part == "sum":
            self._sums[key] = value

    def drop(self, key: tuple[str, Labels]) -> None:
        """Forget what was collected for a key."""
        self._buckets.pop(key, None)
        self._sums.pop(key, None)

    def done(self) -> Iterator[tuple[tuple[str, Labels], tuple[tuple[float, ...], tuple[float, ...], float]]]:
        """Key and (finite edges, cumulative counts, sum) of every complete histogram."""
        for key, bounds in self._buckets.items():
            total = self._sums.get(key)
            edges = sorted(bounds)
            if total is None or not edges or edges[-1] != inf or any(map(isnan, edges)) or isnan(total):
                continue
            yield key, (tuple(edges[:-1]), tuple(bounds[edge] for edge in edges), total)
