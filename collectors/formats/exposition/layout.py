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

Words = tuple[str, ...]

# Bytes of shared layouts (measured: 1,000 B a line with its series): some hundred kinds of pages.
SHARED_BYTES = 64 << 20
LINE_BYTES = 1000
# Learning stops for a page that changes every time: after `VAIN` failures only every `SELDOM`-th page is learned.
VAIN, SELDOM = 3, 16
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
        made: values that callers computed from the layout, by their key.
    """

    heads: Words
    starts: list[str]
    length: int
    texts: Words
    series: list[S]
    types: dict[str, str]
    samples: Callable[[Sequence[str]], Words]
    others: Callable[[Sequence[str]], Words]
    made: dict[Any, Any] = field(default_factory=dict)

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


def _numbers(texts: Words, joined: str) -> list[float] | None:
    # float() accepts more than the format allows: "1_0", and blanks of all kinds around a number.
    if any([one in joined for one in _NOT_IN_NUMBERS]):
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

    own: Layout[S] | None = None
    hits: int = 0
    vain: int = 0


_shared: MutableMapping[tuple[int, Words], Layout[Any]] = {}
_guard = Lock()


def known(
    memory: LayoutMemory[S], labels: int, lines: Sequence[str], characters: int
) -> tuple[Layout[S], list[float]] | None:
    """Finds the cached layout of a page, of this target or another, and its numbers. ``labels``: limit per series.

    ``characters``: see `Layout.values`.
    """
    layout = memory.own
    values = layout.values(lines, characters) if layout is not None else None
    if values is None:
        layout = _shared.get((labels, tuple([line.rpartition(" ")[0] for line in lines])))
        values = layout.values(lines, characters) if layout is not None else None
    if layout is None or values is None:
        memory.hits = 0
        return None
    memory.own, memory.hits, memory.vain = layout, memory.hits + 1, 0
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
    memory.vain += 1
    if memory.vain > VAIN and memory.vain % SELDOM:
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
    memory.own = Layout(heads, starts, length, texts, series, types, pick, rest)
    _share(labels, memory.own)


def _share(labels: int, layout: Layout[Any]) -> None:
    """Shares a layout with every target of this process; the oldest layouts are removed."""
    with _guard:
        held = sum(len(heads) for _, heads in _shared)
        while _shared and (held + len(layout.heads)) * LINE_BYTES > SHARED_BYTES:
            oldest = next(iter(_shared))
            held -= len(oldest[1])
            del _shared[oldest]
        _shared[labels, layout.heads] = layout


def forget() -> None:
    """Clears all shared layouts, for measurements and tests."""
    with _guard:
        _shared.clear()
