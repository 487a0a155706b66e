"""Fast reading of pages with a cached layout: the same lines in the same order, with other numbers.

Nearly every page has a cached layout, also among a thousand engines of one kind: all targets of the process share the
layouts. A layout holds only lines that `exposition.parse` read as plain, so its pages are read identically.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from threading import Lock
from typing import Any, Generic, TypeVar

from collectors.formats.exposition import grammar

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


_NOT_IN_NUMBERS = "_ " + "".join(map(bytes.decode, grammar.ODD))


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
