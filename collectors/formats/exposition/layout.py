"""Pages that are laid out as one before: the same lines in the same order, other numbers.

That is nearly every page, of a thousand engines of one kind too: what was read of the first is shared by all, in this
process. A layout only ever stands for lines that `exposition.parse` took as plain, so a page by it is read the same.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from threading import Lock
from typing import Any, Generic, TypeVar

from collectors.formats.exposition import grammar

S = TypeVar("S")

Words = tuple[str, ...]

# Measured: 1,000 B a line, its series included. Some hundred kinds of pages; a target keeps its own beyond that.
SHARED_BYTES = 64 << 20
LINE_BYTES = 1000
# A page that is another each time is learned in vain: after so many only now and then.
VAIN, SELDOM = 3, 16
# From then on the target needs no memory of single lines.
SETTLED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Layout(Generic[S]):
    """Lines of a page, apart from the numbers.

    Attributes:
        heads: of every line what is before its last blank.
        starts: the same with that blank.
        length: characters of them all, and of what is said.
        said: of every line that is no sample what is behind it.
        series, types: the samples' series in order; families and their types.
        made: what others worked out of it, under a key of theirs.
    """

    heads: Words
    starts: list[str]
    length: int
    said: Words
    series: list[S]
    types: dict[str, str]
    samples: Callable[[Sequence[str]], Words]
    others: Callable[[Sequence[str]], Words]
    made: dict[Any, Any] = field(default_factory=dict)

    def values(self, lines: Sequence[str], characters: int) -> list[float] | None:
        """The samples' numbers; None where the page is another, or a number needs a closer look.

        ``characters``: of all lines; -1 where there are others than ASCII's.
        """
        if len(lines) != len(self.starts):
            return None
        # Nothing is taken off a line that begins in another way: then what is left is longer than it should be. That
        # is half of what it costs to look at every line's beginning and to cut it off.
        tails = list(map(str.removeprefix, lines, self.starts))
        if self.others(tails) != self.said:
            return None
        texts = self.samples(tails)
        joined = "".join(texts)
        return _numbers(texts, joined) if len(joined) == characters - self.length else None


def _numbers(texts: Words, joined: str) -> list[float] | None:
    # float() takes more than the format has: "1_0", and blanks of all kinds round a number.
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
    """What a target remembers of its layouts."""

    own: Layout[S] | None = None
    met: int = 0
    vain: int = 0


_shared: MutableMapping[tuple[int, Words], Layout[Any]] = {}
_guard = Lock()


def known(
    memory: LayoutMemory[S], labels: int, lines: Sequence[str], characters: int
) -> tuple[Layout[S], list[float]] | None:
    """The layout of a page met before, by this target or another, and its numbers. ``labels``: how many may be.

    ``characters``: see `Layout.values`.
    """
    layout = memory.own
    values = layout.values(lines, characters) if layout is not None else None
    if values is None:
        layout = _shared.get((labels, tuple([line.rpartition(" ")[0] for line in lines])))
        values = layout.values(lines, characters) if layout is not None else None
    if layout is None or values is None:
        memory.met = 0
        return None
    memory.own, memory.met, memory.vain = layout, memory.met + 1, 0
    return layout, values


def learn(
    memory: LayoutMemory[S],
    labels: int,
    lines: Sequence[str],
    keys: Mapping[str, S],
    series: list[S],
    types: dict[str, str],
) -> None:
    """Remember a page, if all of its ``series`` are of plain lines, by ``keys``."""
    memory.vain += 1
    if memory.vain > VAIN and memory.vain % SELDOM:
        return
    halves = [line.rpartition(" ") for line in lines]
    others = [at for at, line in enumerate(lines) if line.lstrip(" \t")[:1] in ("", "#")]
    skipped = set(others)
    samples = [at for at in range(len(lines)) if at not in skipped]
    # itemgetter of one thing is not a tuple of it.
    if min(len(samples), len(others)) < 2 or [keys.get(halves[at][0]) for at in samples] != series:
        return
    heads, starts = tuple([half[0] for half in halves]), [half[0] + half[1] for half in halves]
    pick, rest = itemgetter(*samples), itemgetter(*others)
    said = rest([half[2] for half in halves])
    length = sum(map(len, (*starts, *said)))
    memory.own = Layout(heads, starts, length, said, series, types, pick, rest)
    _share(labels, memory.own)


def _share(labels: int, layout: Layout[Any]) -> None:
    """With every target of this process; the oldest make room."""
    with _guard:
        held = sum(len(heads) for _, heads in _shared)
        while _shared and (held + len(layout.heads)) * LINE_BYTES > SHARED_BYTES:
            oldest = next(iter(_shared))
            held -= len(oldest[1])
            del _shared[oldest]
        _shared[labels, layout.heads] = layout


def forget() -> None:
    """As if no page had ever been met: what is measured or tested begins anew."""
    with _guard:
        _shared.clear()
