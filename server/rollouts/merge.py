"""Merges partial records of a rollout: a reported field replaces an absent one, in any order. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, make_dataclass
from operator import attrgetter
from typing import Any, TypeVar

from collectors.model import Consumption, Rollout, Span, Turn

# ---- quick
# Frozen dataclasses made as fast as others: thousands a second of forty fields each are what taking records costs.

_T = TypeVar("_T")


def maker(made: type[_T]) -> Callable[..., _T]:
    """Makes instances of a frozen dataclass with slots from the values of all its fields, by place. No default is
    filled in.

    Raises:
        TypeError: it does more at its beginning than to take its fields.
    """
    if hasattr(made, "__post_init__") or "__slots__" not in vars(made):
        raise TypeError(f"{made.__name__} is more than its slots")
    names: tuple[str, ...] = vars(made)["__slots__"]
    plain: Any = make_dataclass(f"Plain{made.__name__}", [(name, Any) for name in names], slots=True)

    def make(*values: Any) -> _T:
        found = plain(*values)
        found.__class__ = made
        return found  # type: ignore[no-any-return]

    return make


# Characters, as for sandboxes: a longer id would not fit an index.
ID_LENGTH = 200
TEXT_LENGTH = 200
# Entries stored per rollout.
TURNS = 10_000
SPANS = 2_000
VERSIONS = 1_000
USES = 100
BOXES = 100
TIMES = ("dispatched_at", "started_at", "first_token_at", "finished_at", "scored_at", "group_complete_at", "exited_at")
_times = attrgetter(*TIMES)
NUMBERS = ("reward", "max_reward", "advantage")
_NAMES = tuple(field.name for field in fields(Rollout))
_USUAL = [None if field.default is MISSING else field.default for field in fields(Rollout)]
_values, _made = attrgetter(*_NAMES), maker(Rollout)
_EMPTY: tuple[Any, ...] = (None, "", ())


def cleaned(record: Rollout) -> Rollout:
    """The same as the store would give it back: times in whole milliseconds, texts and lists of a bounded length."""
    values: list[Any] = [
        usual if value in _EMPTY else value for value, usual in zip(_values(record), _USUAL, strict=True)
    ]
    for at in _TIMES:
        if (time := values[at]) is not None:
            values[at] = round(time * 1000) / 1000
    for at in _NUMBERS:
        if (number := values[at]) is not None:
            values[at] = float(number) if math.isfinite(number) else None
    for at, length in _TEXTS:
        if len(values[at]) > length:
            values[at] = values[at][:length]
    for at, clean in _LISTS:
        if values[at]:
            values[at] = clean(values[at])
    if values[_TURNS]:
        _count_turns(values)
    found: Rollout = _made(*values)
    return found


def _count_turns(values: list[Any]) -> None:
    """Turns are not kept of every rollout; how many they were, and how many calls they made, is."""
    turns = values[_TURNS]
    values[_TURN_COUNT] = max(len(turns), values[_TURN_COUNT] or 0)
    if values[_TOOL_CALLS] is None:
        calls = [turn.tool_calls for turn in turns]
        values[_TOOL_CALLS] = None if None in calls else sum(calls)
    if not values[_BOXES] and (boxes := dict.fromkeys([turn.sandbox_id for turn in turns if turn.sandbox_id])):
        values[_BOXES] = tuple(boxes)[:BOXES]


def _ms(seconds: float) -> float:
    return round(seconds * 1000) / 1000


def _ms_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else _ms(seconds)


def _spans(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(
        Span(one.kind, _ms(one.start), _ms_or_none(one.end), one.version, one.detail[:TEXT_LENGTH])
        for one in spans[:SPANS]
    )


def _uses(uses: tuple[Consumption, ...]) -> tuple[Consumption, ...]:
    return tuple(Consumption(one.version, _ms_or_none(one.at), one.incarnation) for one in uses[:USES])


_TEXTS = [(_NAMES.index(name), ID_LENGTH) for name in ("rollout_id", "group_id")] + [
    (_NAMES.index(name), TEXT_LENGTH) for name in ("environment", "agent", "difficulty", "engine", "error")
]
_CLEANED: Mapping[str, Callable[[Any], Any]] = {
    "turns": lambda turns: turns[:TURNS], "spans": _spans, "token_versions": lambda made: made[:VERSIONS],
    "consumptions": _uses, "sandbox_ids": lambda boxes: tuple([box[:ID_LENGTH] for box in boxes[:BOXES]]),
}  # fmt: skip
_LISTS = [(_NAMES.index(name), clean) for name, clean in _CLEANED.items()]
_TIMES, _NUMBERS = [[_NAMES.index(name) for name in names] for names in (TIMES, NUMBERS)]


def merged(stored: Rollout, reported: Rollout) -> Rollout:
    """Merges one more partial record (both `cleaned`): the later value wins, with these exceptions.

    First times stay first and last ones last; the first cause of an exit stays; consumptions are a set; of turns,
    spans and versions the longer list wins. It is sampled only while all its sources sample.
    """
    values = list(_values(stored))
    for at, new in enumerate(_values(reported)):
        old = values[at]
        if new in _EMPTY or new == old:
            continue
        rule = _RULES.get(_NAMES[at])
        values[at] = new if old in _EMPTY or rule is None else rule(old, new)
    values[_SAMPLED] = stored.sampled and reported.sampled
    found: Rollout = _made(*values)
    return found


def begun_at(*records: Rollout) -> float | None:
    """When a rollout was dispatched, else when it began, from its partial records (epoch seconds)."""
    times = [record.dispatched_at for record in records if record.dispatched_at is not None]
    times = times or [record.started_at for record in records if record.started_at is not None]
    return float(min(times)) if times else None


def told_last(record: Rollout) -> float | None:
    """The newest time in its record."""
    times = [at for at in _times(record) if at is not None]
    times += [use.at for use in record.consumptions if use.at is not None]
    if record.spans:
        times += [span.start if span.end is None else span.end for span in record.spans]
    return max(times, default=None)


def told_first(record: Rollout) -> float | None:
    """The oldest time in its record: it began before."""
    times = [*_times(record), *[use.at for use in record.consumptions]]
    return min([at for at in times if at is not None], default=None)


def stripped(record: Rollout) -> Rollout:
    """Without what is kept of a few only. (`dataclasses.replace` takes three times as long.)"""
    if not record.turns and not record.spans:
        return record
    values = list(_values(record))
    values[_TURNS] = values[_SPANS] = ()
    found: Rollout = _made(*values)
    return found


def _longer(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    return new if len(new) >= len(old) else old


def _turns(old: tuple[Turn, ...], new: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Merges turns: a run's files list pushed turns, too, but not what each changed, in either order."""
    return new if (len(new), _flags(new)) >= (len(old), _flags(old)) else old


def _flags(turns: tuple[Turn, ...]) -> int:
    return sum((turn.mutated is not None) + (turn.version is not None) for turn in turns)


def _joined(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*old, *new)))[:BOXES]


def _consumed(old: tuple[Consumption, ...], new: tuple[Consumption, ...]) -> tuple[Consumption, ...]:
    return distinct((*old, *new))


def distinct(uses: Iterable[Consumption]) -> tuple[Consumption, ...]:
    """By version and incarnation; of two reports the earlier time counts."""
    found: dict[tuple[int | None, int | None], Consumption] = {}
    for one in uses:
        key = (one.version, one.incarnation)
        before = found.get(key)
        if before is None or (one.at is not None and (before.at is None or one.at < before.at)):
            found[key] = one
    return tuple(sorted(found.values(), key=_use_order))[:USES]


def _use_order(use: Consumption) -> tuple[float, int, int]:
    return (
        math.inf if use.at is None else use.at,
        -1 if use.incarnation is None else use.incarnation,
        -1 if use.version is None else use.version,
    )


_RULES: Mapping[str, Callable[[Any, Any], Any]] = {
    "dispatched_at": min, "started_at": min, "first_token_at": min,
    "exited_at": min, "finished_at": max, "scored_at": max, "group_complete_at": max, "turn_count": max,
    "exit": lambda old, new: old, "consumptions": _consumed, "sandbox_ids": _joined,
    "turns": _turns, "token_versions": _longer, "spans": _longer,
}  # fmt: skip
_SAMPLED, _TURNS, _SPANS, _TURN_COUNT, _TOOL_CALLS, _BOXES = map(
    _NAMES.index, ("sampled", "turns", "spans", "turn_count", "tool_calls", "sandbox_ids")
)
