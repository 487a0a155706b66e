"""One reading of a target as it comes from the machine where it was made: JSON on the way, packed in the inbox. Pure.

What a single record says wrongly is dropped and counted, as in any source, so that one odd row never holds up what is
queued behind it; only a body that as a whole is no reading is refused.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, get_args, get_type_hints

from collectors.catalog import METRICS
from collectors.model import (
    FACTS,
    ErrorKind,
    Event,
    Histogram,
    Labels,
    Lifecycle,
    Limits,
    Mode,
    Reading,
    Rollout,
    Sample,
    Sandbox,
    ScrapeError,
)
from server.push import records as push_records
from server.push import sandboxes as push_sandboxes
from server.push import validation as push_validation


@dataclass(slots=True)
class Outcome:
    """What one attempt brought: exactly one of `reading` and `error`."""

    started: float
    seconds: float
    reading: Reading | None = None
    error: ScrapeError | None = None


VERSION = 1
# One body: a few milliseconds of JSON, for nobody may hold up the other threads of a server for longer.
SAMPLES, EVENTS = 5_000, 2_000
# Cut between steps, where that is possible: a row of a trainer's log has at most some hundred values.
SAMPLES_MOST = 20_000
# What may be in one body, whoever made it.
COUNTS = {
    "samples": 50_000, "histograms": 20_000, "events": 20_000, "sandboxes": push_sandboxes.MAX_LINES,
    "rollouts": push_records.MAX_LINES,
}  # fmt: skip
# Of rollouts so many, and of their turns and spans: some MB.
ROLLOUTS, STRETCHES = 1_000, 20_000
WORD, TEXT, NAMES = 200, 2_000, 500
SPLIT = "more sandboxes than one body holds: none is taken for ended"
_MARK = b"reading\n"
_EVENTS = get_args(get_type_hints(Event)["kind"])
_FACT_WORDS: Mapping[str, tuple[str, ...]] = {"mode": get_args(Mode), "lifecycle": get_args(Lifecycle)}
LAST_TIME = 1e11
# An end is said after everything that came before it.
_LAST_FACTS = frozenset({"lifecycle", "lifecycle_why"})


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reading in the inbox.

    Attributes:
        kind: the collector's name.
        behind: readings of the same target that wait where it came from.
        skew: by how many seconds the clock there is ahead of ours.
        outcome: what was read, or why nothing was; its cursor is ``{}`` where the target has one.
    """

    kind: str
    behind: int
    skew: float
    outcome: Outcome


# ---- out


def bodies(outcome: Outcome) -> list[bytes]:
    """JSON of one attempt, in as many bodies as it takes; the last one holds what is said once."""
    head = {"version": VERSION, "at": outcome.started, "seconds": outcome.seconds}
    if outcome.reading is None:
        assert outcome.error is not None
        error = {"kind": outcome.error.kind, "text": str(outcome.error)[:TEXT]}
        return [_json({**head, "error": error})]
    return [_json({**head, "reading": _reading(part)}) for part in _parts(outcome.reading)]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _parts(reading: Reading) -> Iterator[Reading]:
    most = COUNTS["sandboxes"]
    boxes = [reading.sandboxes[at : at + most] for at in range(0, len(reading.sandboxes), most)]
    if len(boxes) > 1:
        reading = replace(reading, listed=(), gaps=(*reading.gaps, SPLIT))
    events = [reading.events[at : at + EVENTS] for at in range(0, len(reading.events), EVENTS)]
    told = list(_by_size(reading.rollouts))
    pieces: list[list[Sequence[Any]]] = [list(_by_steps(reading.samples)), list(events), list(boxes), told]
    parts = list(zip_longest(*pieces, fillvalue=())) or [((), (), (), ())]
    early = {key: value for key, value in reading.facts.items() if key not in _LAST_FACTS}
    for samples, happened, records, rollouts in parts[:-1]:
        yield Reading(
            samples=tuple(samples), events=tuple(happened), sandboxes=tuple(records), rollouts=tuple(rollouts),
            facts=early, cursor=reading.cursor, more=True,
        )  # fmt: skip
    samples, happened, records, rollouts = parts[-1]
    yield replace(
        reading, samples=tuple(samples), events=tuple(happened), sandboxes=tuple(records), rollouts=tuple(rollouts)
    )


def _by_size(rollouts: Sequence[Rollout]) -> Iterator[Sequence[Rollout]]:
    begun = held = 0
    for at, one in enumerate(rollouts):
        held += len(one.turns) + len(one.spans) + len(one.token_versions)
        if at - begun >= ROLLOUTS or (held > STRETCHES and at > begun):
            yield rollouts[begun:at]
            begun, held = at, len(one.turns) + len(one.spans) + len(one.token_versions)
    if rollouts:
        yield rollouts[begun:]


def _by_steps(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """Pieces that begin with a step of their own: half a step would be derived from as if it were whole."""
    begun = 0
    for at in range(1, len(samples)):
        held, one, other = at - begun, samples[at - 1], samples[at]
        same = one.step is not None and (one.axis, one.step) == (other.axis, other.step)
        if (held >= SAMPLES and not same) or held >= SAMPLES_MOST:
            yield samples[begun:at]
            begun = at
    if samples:
        yield samples[begun:]


def _reading(one: Reading) -> dict[str, Any]:
    """What says nothing is left away."""
    said = {
        "samples": [[s.metric, s.value, s.labels, s.ts, s.step, s.axis] for s in one.samples],
        "histograms": [[h.metric, h.edges, h.counts, h.total, h.labels, h.ts] for h in one.histograms],
        "events": [[e.kind, e.key[:WORD], e.ts, e.detail[:TEXT], e.version] for e in one.events],
        "rollouts": [push_records.wire_of(record) for record in one.rollouts],
        "sandboxes": [asdict(record) for record in one.sandboxes],
        "facts": dict(one.facts), "unmapped": _first(one.unmapped), "origins": _first(one.origins),
        "tail": one.cursor is not None, "more": one.more, "dropped": one.dropped, "why": one.why_dropped[:TEXT],
        "scraped": one.samples_scraped, "listed": one.listed, "partial": one.partial[:TEXT], "gaps": one.gaps[:NAMES],
        "reader": one.reader[:TEXT],
    }  # fmt: skip
    return {key: value for key, value in said.items() if value}


def _first(names: Mapping[str, Any]) -> dict[str, Any]:
    return dict(list(names.items())[:NAMES])


# ---- in


def read(data: bytes) -> Outcome:
    """What `bodies` made, or somebody else: everything checked.

    Raises:
        ValueError: it is no reading, in words for who sent it.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f'the body must be an object with "version": {VERSION}: is it another version of Rollscope?')
    try:
        at, seconds = _finite(found.get("at")), _finite(found.get("seconds"))
        if found.get("error") is not None:
            return Outcome(at, seconds, error=_error(found["error"]))
        return Outcome(at, seconds, reading=_Taken().reading(found["reading"]))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the body is not a reading: {type(error).__name__}") from None


def weight(outcome: Outcome) -> int:
    """How much it weighs in the inbox; at least 1."""
    one = outcome.reading or Reading()
    rollouts = push_records.WEIGHT * len(one.rollouts)
    return max(1, len(one.samples) + len(one.histograms) + len(one.events) + len(one.sandboxes) + rollouts)


def _error(said: Mapping[str, Any]) -> ScrapeError:
    kind: ErrorKind = said["kind"]
    if kind not in get_args(ErrorKind):
        raise ValueError(f"error.kind must be one of {', '.join(get_args(ErrorKind))}")
    return ScrapeError(kind, _text(said["text"], TEXT))


@dataclass(slots=True)
class _Taken:
    """Records of one body, one by one."""

    lost: int = 0
    why: str = ""
    lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def reading(self, said: Mapping[str, Any]) -> Reading:
        makers: dict[str, Callable[[Any], Any]] = {
            "samples": _sample, "histograms": _histogram, "events": _event, "sandboxes": _sandbox,
            "rollouts": _rollout,
        }  # fmt: skip
        for name, make in makers.items():
            rows = said.get(name, [])
            if not isinstance(rows, list) or len(rows) > COUNTS[name]:
                raise ValueError(f"{name} must be a list of at most {COUNTS[name]}")
            before = self.lost
            self.lists[name] = tuple(self._all(rows, make))
            if name == "sandboxes" and self.lost > before:
                said = {**said, "listed": []}  # one that could not be read has not ended
        facts = dict(self._all(list(said.get("facts", {}).items()), _fact))
        return Reading(
            samples=self.lists["samples"], histograms=self.lists["histograms"], events=self.lists["events"],
            sandboxes=self.lists["sandboxes"], rollouts=self.lists["rollouts"],
            facts=facts, unmapped={name: int(n) for name, n in _names(said, "unmapped", int)},
            cursor={} if said.get("tail") else None, more=bool(said.get("more")),
            dropped=_count(said.get("dropped", 0)) + self.lost,
            why_dropped=_text(said.get("why", ""), TEXT) or self.why,
            samples_scraped=_count(said.get("scraped", 0)), partial=_text(said.get("partial", ""), TEXT),
            listed=tuple(_text(one, WORD) for one in _list(said, "listed")),
            gaps=tuple(_text(one, TEXT) for one in _list(said, "gaps")),
            origins=dict(_names(said, "origins", str)), reader=_text(said.get("reader", ""), TEXT),
        )  # fmt: skip

    def _all(self, rows: Iterable[Any], make: Callable[[Any], Any]) -> Iterator[Any]:
        for row in rows:
            try:
                yield make(row)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                self.lost += 1
                self.why = self.why or (str(error) if type(error) is ValueError else "a record of another form")[:TEXT]


def _sample(row: Sequence[Any]) -> Sample:
    metric, value, labels, ts, step, axis = row
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise ValueError("a step must be a whole number")
    return Sample(_metric(metric), _number(value), _labels(labels), _time(ts), step, _text(axis, WORD))


def _histogram(row: Sequence[Any]) -> Histogram:
    metric, edges, counts, total, labels, ts = row
    bounds, found = tuple(map(_finite, edges)), tuple(map(_finite, counts))
    if len(found) != len(bounds) + 1 or list(bounds) != sorted(set(bounds)):
        raise ValueError("a histogram needs ascending edges and a count more than those")
    return Histogram(_metric(metric), bounds, found, _finite(total), _labels(labels), _time(ts))


def _event(row: Sequence[Any]) -> Event:
    kind, key, ts, detail, *rest = row
    if kind not in _EVENTS:
        raise ValueError(f"no event is named {str(kind)[:80]}")
    # Who forwards may be an older Rollscope, which knew no versions.
    (version,) = rest or (None,)
    if version is not None and (type(version) is not int or not 0 <= version <= push_validation.MOST):
        raise ValueError("a version must be a whole number")
    return Event(kind, _text(key, WORD), _time(ts), _text(detail, TEXT), version)


def _rollout(row: Any) -> Rollout:
    # Times are looked at when the reading is taken, as for every source.
    return push_records.record(row, LAST_TIME, wire=True)


def _sandbox(row: Any) -> Sandbox:
    for value in row.values() if isinstance(row, dict) else ():
        if isinstance(value, str):
            _text(value, TEXT)
    return push_sandboxes.record(row)


def _fact(pair: tuple[str, Any]) -> tuple[str, str | float]:
    key, value = pair
    if key not in FACTS:
        raise ValueError(f"no fact is named {key[:80]}")
    if key in _FACT_WORDS and value not in _FACT_WORDS[key]:
        raise ValueError(f"{key} must be one of {', '.join(_FACT_WORDS[key])}")
    return key, _text(value, TEXT) if isinstance(value, str) else _finite(value)


def _metric(name: Any) -> str:
    if not isinstance(name, str) or name not in METRICS:
        raise ValueError(f"no metric is named {str(name)[:80]} here: another version of Rollscope?")
    return name


def _number(value: Any) -> float:
    """Any number a source may show, also one that is none: the store leaves those away."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a number")
    return float(value)


def _finite(value: Any) -> float:
    if not math.isfinite(found := _number(value)):
        raise ValueError("not a finite number")
    return found


def _time(value: Any) -> float | None:
    return None if value is None else _finite(value)


def _count(value: Any) -> int:
    return int(max(0.0, min(_finite(value), 1e9)))


def _text(value: Any, length: int) -> str:
    if not isinstance(value, str) or len(value) > length:
        raise ValueError(f"a text must be one, of at most {length} characters")
    value.encode()  # half a surrogate, which no database takes, is a ValueError
    return value.replace("\0", "")


def _labels(pairs: Sequence[Sequence[str]]) -> Labels:
    if len(pairs) > Limits().labels:
        raise ValueError(f"more than {Limits().labels} labels")
    return tuple(sorted((_text(name, WORD), _text(value, TEXT)) for name, value in pairs))


def _list(said: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = said.get(name, [])
    if not isinstance(found, list) or len(found) > NAMES:
        raise ValueError(f"{name} must be a list of at most {NAMES}")
    return found


def _names(said: Mapping[str, Any], name: str, kind: type) -> Iterator[tuple[str, Any]]:
    found = said.get(name, {})
    for key, value in list(found.items())[:NAMES]:
        if isinstance(value, kind) and not isinstance(value, bool):
            yield _text(key[:WORD], WORD), _text(value[:TEXT], TEXT) if isinstance(value, str) else _count(value)


# ---- in the inbox


def pack(kind: str, behind: int, skew: float, data: bytes) -> bytes:
    """Bytes for the inbox, of a body that `read` took."""
    return _MARK + zlib.compress(_json([kind, behind, skew]) + b"\n" + data, 1)


def packed(data: bytes) -> bool:
    """Is this of `pack`, and not of `server.push.body`?"""
    return data.startswith(_MARK)


def unpack(data: bytes) -> Forwarded:
    """The reverse of `pack`.

    Raises:
        ValueError: not what `pack` made.
    """
    try:
        head, _, body = zlib.decompress(data.removeprefix(_MARK)).partition(b"\n")
        kind, behind, skew = json.loads(head)
    except zlib.error:
        raise ValueError("not a packed reading") from None
    return Forwarded(kind, behind, skew, read(body))
