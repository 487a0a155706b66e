"""Merges partial records of a rollout: a reported field replaces an absent one, in any order. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from msgspec import structs

from collectors.model import Consumption, Rollout, Span, Turn

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
_NAMES = tuple(name for name in Rollout.__struct_fields__ if name != "sampled")
_values = attrgetter(*_NAMES)


def cleaned(record: Rollout) -> Rollout:
    """The same as the store would give it back: times in whole milliseconds, texts and lists of a bounded length."""
    changes: dict[str, Any] = {}
    for at, time in enumerate(_times(record)):
        if time is not None and (rounded := round(time * 1000) / 1000) != time:
            changes[TIMES[at]] = rounded
    for at, number in enumerate(_numbers(record)):
        if number is not None and not math.isfinite(number):
            changes[NUMBERS[at]] = None
    for at, value in enumerate(_bounded(record)):
        if value and len(value) > _LENGTHS[at][1]:
            changes[_LENGTHS[at][0]] = value[: _LENGTHS[at][1]]
    for name, clean in _CLEANED:
        if entries := getattr(record, name):
            changes[name] = clean(entries)
    if record.turns:
        changes |= _counted(record, changes.get("turns", record.turns))
    return structs.replace(record, **changes) if changes else record


def _counted(record: Rollout, turns: tuple[Turn, ...]) -> dict[str, Any]:
    """Turns are not kept of every rollout; how many they were, and how many calls they made, is."""
    found: dict[str, Any] = {"turn_count": max(len(turns), record.turn_count or 0)}
    if record.tool_calls is None:
        calls = [turn.tool_calls for turn in turns]
        found["tool_calls"] = None if None in calls else sum(calls)
    if not record.sandbox_ids and (boxes := dict.fromkeys([turn.sandbox_id for turn in turns if turn.sandbox_id])):
        found["sandbox_ids"] = tuple(boxes)[:BOXES]
    return found


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
    return tuple([Consumption(one.version, _ms_or_none(one.at), one.incarnation) for one in uses[:USES]])


def _boxes(boxes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([box[:ID_LENGTH] for box in boxes[:BOXES]])


_CLEANED: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("consumptions", _uses), ("spans", _spans), ("sandbox_ids", _boxes),
)  # fmt: skip
_LENGTHS = (
    ("rollout_id", ID_LENGTH), ("group_id", ID_LENGTH), ("environment", TEXT_LENGTH), ("agent", TEXT_LENGTH),
    ("difficulty", TEXT_LENGTH), ("engine", TEXT_LENGTH), ("error", TEXT_LENGTH), ("turns", TURNS),
    ("token_versions", VERSIONS),
)  # fmt: skip
_numbers, _bounded = attrgetter(*NUMBERS), attrgetter(*(name for name, _ in _LENGTHS))


def merged(stored: Rollout, reported: Rollout) -> Rollout:
    """Merges one more partial record (both `cleaned`): the later value wins, with these exceptions.

    First times stay first and last ones last; the first cause of an exit stays; consumptions are a set; of turns,
    spans and versions the longer list wins. It is sampled only while all its sources sample.
    """
    changes: dict[str, Any] = {"sampled": stored.sampled and reported.sampled}
    before = _values(stored)
    for at, new in enumerate(_values(reported)):
        # What is not reported is None, "" or (); 0 and False are reported.
        if (new or new == 0) and new != (old := before[at]):
            rule = _RULES.get(_NAMES[at])
            changes[_NAMES[at]] = rule(old, new) if rule is not None and (old or old == 0) else new
    return structs.replace(stored, **changes)


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
    """Without what is kept of a few only."""
    return structs.replace(record, turns=(), spans=()) if record.turns or record.spans else record


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
