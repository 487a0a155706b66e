"""Wire format of forwarded readings: a reading as JSON between machines, and packed in the inbox. Pure.

Invalid records are dropped and counted, as from any source, so that one invalid row never blocks the readings queued
after it. Only a body that is not a reading at all is refused.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, get_args, get_type_hints

from msgspec import structs

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
    """Result of one read attempt: exactly one of `reading` and `error`."""

    started: float
    seconds: float
    reading: Reading | None = None
    error: ScrapeError | None = None


# Version of the wire format.
VERSION = 1
# Samples of one body. Parsing blocks all other threads of a server, for some milliseconds at this size.
SAMPLES = 5_000
# Events of one body.
EVENTS = 2_000
# Bodies are cut between steps up to this many samples; a row of a trainer's log has at most some hundred values.
SAMPLES_MOST = 20_000
# Most records that a received body may contain.
COUNTS = {
    "samples": 50_000, "histograms": 20_000, "events": 20_000, "sandboxes": push_sandboxes.MAX_LINES,
    "rollouts": push_records.MAX_LINES,
}  # fmt: skip
# Rollouts of one body.
ROLLOUTS = 1_000
# Turns, spans and token versions of one body, some MB.
STRETCHES = 20_000
# Longest name, characters.
WORD = 200
# Longest text, characters.
TEXT = 2_000
# Most names or gaps of one body.
NAMES = 500
SPLIT = "more sandboxes than fit into one body: missing ones are not considered ended"
_MARK = b"reading\n"
_EVENTS = get_args(get_type_hints(Event)["kind"])
_FACT_WORDS: Mapping[str, tuple[str, ...]] = {"mode": get_args(Mode), "lifecycle": get_args(Lifecycle)}
# Largest time, epoch seconds; the plausibility check is done at ingest.
LAST_TIME = 1e11
# Facts about the end of a run, sent after everything that precedes it.
_LAST_FACTS = frozenset({"lifecycle", "lifecycle_why"})


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reading in the inbox.

    Attributes:
        kind: the collector's name.
        behind: number of readings of the same target that still wait on the sending machine.
        skew: seconds by which the sender's clock is ahead of ours.
        outcome: the reading or the error; the cursor is ``{}`` if the target has one.
    """

    kind: str
    behind: int
    skew: float
    outcome: Outcome


# ---- sending


def bodies(outcome: Outcome) -> list[bytes]:
    """Returns the JSON of one attempt in one or more bodies; values that occur once are in the last body."""
    head = {"version": VERSION, "at": outcome.started, "seconds": outcome.seconds}
    if outcome.reading is None:
        assert outcome.error is not None
        error = {"kind": outcome.error.kind, "text": str(outcome.error)[:TEXT]}
        return [_json({**head, "error": error})]
    return [_json({**head, "reading": _reading(part)}) for part in _parts(outcome.reading)]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _parts(reading: Reading) -> Iterator[Reading]:
    limit = COUNTS["sandboxes"]
    boxes = [reading.sandboxes[at : at + limit] for at in range(0, len(reading.sandboxes), limit)]
    if len(boxes) > 1:
        reading = structs.replace(reading, listed=(), gaps=(*reading.gaps, SPLIT))
    events = [reading.events[at : at + EVENTS] for at in range(0, len(reading.events), EVENTS)]
    rollouts_by_size = list(_by_size(reading.rollouts))
    pieces: list[list[Sequence[Any]]] = [
        list(_by_steps(reading.samples)), list(events), list(boxes), rollouts_by_size
    ]  # fmt: skip
    parts = list(zip_longest(*pieces, fillvalue=())) or [((), (), (), ())]
    early = {key: value for key, value in reading.facts.items() if key not in _LAST_FACTS}
    for samples, happened, records, rollouts in parts[:-1]:
        yield Reading(
            samples=tuple(samples), events=tuple(happened), sandboxes=tuple(records), rollouts=tuple(rollouts),
            facts=early, cursor=reading.cursor, more=True,
        )  # fmt: skip
    samples, happened, records, rollouts = parts[-1]
    yield structs.replace(
        reading, samples=tuple(samples), events=tuple(happened), sandboxes=tuple(records), rollouts=tuple(rollouts)
    )


def _by_size(rollouts: Sequence[Rollout]) -> Iterator[Sequence[Rollout]]:
    begun = size = 0
    for at, rollout in enumerate(rollouts):
        own = len(rollout.turns) + len(rollout.spans) + len(rollout.token_versions)
        size += own
        if at - begun >= ROLLOUTS or (size > STRETCHES and at > begun):
            yield rollouts[begun:at]
            begun, size = at, own
    if rollouts:
        yield rollouts[begun:]


def _by_steps(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """Yields pieces that begin with a new step, because half a step would be processed like a whole one."""
    begun = 0
    for at in range(1, len(samples)):
        size, last, following = at - begun, samples[at - 1], samples[at]
        same = last.step is not None and (last.axis, last.step) == (following.axis, following.step)
        if (size >= SAMPLES and not same) or size >= SAMPLES_MOST:
            yield samples[begun:at]
            begun = at
    if samples:
        yield samples[begun:]


def _reading(reading: Reading) -> dict[str, Any]:
    """Returns the reading as JSON without empty values."""
    values = {
        "samples": [[s.metric, s.value, s.labels, s.ts, s.step, s.axis] for s in reading.samples],
        "histograms": [[h.metric, h.edges, h.counts, h.total, h.labels, h.ts] for h in reading.histograms],
        "events": [[e.kind, e.key[:WORD], e.ts, e.detail[:TEXT], e.version] for e in reading.events],
        "rollouts": [push_records.wire_of(record) for record in reading.rollouts],
        "sandboxes": [structs.asdict(record) for record in reading.sandboxes],
        "facts": dict(reading.facts), "unmapped": _first(reading.unmapped), "origins": _first(reading.origins),
        "tail": reading.cursor is not None, "more": reading.more, "dropped": reading.dropped,
        "why": reading.why_dropped[:TEXT], "scraped": reading.samples_scraped, "listed": reading.listed,
        "partial": reading.partial[:TEXT], "gaps": reading.gaps[:NAMES], "reader": reading.reader[:TEXT],
    }  # fmt: skip
    return {key: value for key, value in values.items() if value}


def _first(names: Mapping[str, Any]) -> dict[str, Any]:
    return dict(list(names.items())[:NAMES])


# ---- receiving


def read(data: bytes) -> Outcome:
    """Parses and validates a body of `bodies`, or of any other client.

    Raises:
        ValueError: not a reading; the message is for the client.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f'the body must be an object with "version": {VERSION}; is it another version of Rollscope?')
    try:
        at, seconds = _finite(document.get("at")), _finite(document.get("seconds"))
        if document.get("error") is not None:
            return Outcome(at, seconds, error=_error(document["error"]))
        return Outcome(at, seconds, reading=_BodyParser().reading(document["reading"]))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the body is not a reading: {type(error).__name__}") from None


def weight(outcome: Outcome) -> int:
    """Returns the weight of a reading in the inbox, at least 1."""
    reading = outcome.reading or Reading()
    rollouts = push_records.WEIGHT * len(reading.rollouts)
    others = len(reading.samples) + len(reading.histograms) + len(reading.events) + len(reading.sandboxes)
    return max(1, others + rollouts)


def _error(body: Mapping[str, Any]) -> ScrapeError:
    kind: ErrorKind = body["kind"]
    if kind not in get_args(ErrorKind):
        raise ValueError(f"error.kind must be one of {', '.join(get_args(ErrorKind))}")
    return ScrapeError(kind, _text(body["text"], TEXT))


@dataclass(slots=True)
class _BodyParser:
    """Parses the records of one body and counts the dropped ones."""

    lost: int = 0
    why: str = ""
    lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def reading(self, body: Mapping[str, Any]) -> Reading:
        makers: dict[str, Callable[[Any], Any]] = {
            "samples": _sample, "histograms": _histogram, "events": _event, "sandboxes": _sandbox,
            "rollouts": _rollout,
        }  # fmt: skip
        for name, make in makers.items():
            rows = body.get(name, [])
            if not isinstance(rows, list) or len(rows) > COUNTS[name]:
                raise ValueError(f"{name} must be a list of at most {COUNTS[name]}")
            before = self.lost
            self.lists[name] = tuple(self._all(rows, make))
            if name == "sandboxes" and self.lost > before:
                body = {**body, "listed": []}  # a sandbox whose record is invalid has not ended
        facts = dict(self._all(list(body.get("facts", {}).items()), _fact))
        return Reading(
            samples=self.lists["samples"], histograms=self.lists["histograms"], events=self.lists["events"],
            sandboxes=self.lists["sandboxes"], rollouts=self.lists["rollouts"],
            facts=facts, unmapped={name: int(n) for name, n in _names(body, "unmapped", int)},
            cursor={} if body.get("tail") else None, more=bool(body.get("more")),
            dropped=_count(body.get("dropped", 0)) + self.lost,
            why_dropped=_text(body.get("why", ""), TEXT) or self.why,
            samples_scraped=_count(body.get("scraped", 0)), partial=_text(body.get("partial", ""), TEXT),
            listed=tuple(_text(entry, WORD) for entry in _list(body, "listed")),
            gaps=tuple(_text(entry, TEXT) for entry in _list(body, "gaps")),
            origins=dict(_names(body, "origins", str)), reader=_text(body.get("reader", ""), TEXT),
        )  # fmt: skip

    def _all(self, rows: Iterable[Any], make: Callable[[Any], Any]) -> Iterator[Any]:
        for row in rows:
            try:
                yield make(row)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                self.lost += 1
                self.why = self.why or (str(error) if type(error) is ValueError else "a malformed record")[:TEXT]


def _sample(row: Sequence[Any]) -> Sample:
    metric, value, labels, ts, step, axis = row
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise ValueError("a step must be a whole number")
    return Sample(_metric(metric), _number(value), _labels(labels), _time(ts), step, _text(axis, WORD))


def _histogram(row: Sequence[Any]) -> Histogram:
    metric, edges, counts, total, labels, ts = row
    bounds, finite_counts = tuple(map(_finite, edges)), tuple(map(_finite, counts))
    if len(finite_counts) != len(bounds) + 1 or list(bounds) != sorted(set(bounds)):
        raise ValueError("a histogram needs ascending edges, and one count more than edges")
    return Histogram(_metric(metric), bounds, finite_counts, _finite(total), _labels(labels), _time(ts))


def _event(row: Sequence[Any]) -> Event:
    kind, key, ts, detail, *rest = row
    if kind not in _EVENTS:
        raise ValueError(f"no event is named {str(kind)[:80]}")
    # An older Rollscope sends no version.
    (version,) = rest or (None,)
    if version is not None and (type(version) is not int or not 0 <= version <= push_validation.MOST):
        raise ValueError("a version must be a whole number")
    return Event(kind, _text(key, WORD), _time(ts), _text(detail, TEXT), version)


def _rollout(row: Any) -> Rollout:
    # Times are checked at ingest, as for every source.
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
        raise ValueError(f"no metric is named {str(name)[:80]} here; is it another version of Rollscope?")
    return name


def _number(value: Any) -> float:
    """Returns any number, also NaN or infinity: the store drops those."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a number")
    return float(value)


def _finite(value: Any) -> float:
    if not math.isfinite(number := _number(value)):
        raise ValueError("not a finite number")
    return number


def _time(value: Any) -> float | None:
    return None if value is None else _finite(value)


def _count(value: Any) -> int:
    return int(max(0.0, min(_finite(value), 1e9)))


def _text(value: Any, length: int) -> str:
    if not isinstance(value, str) or len(value) > length:
        raise ValueError(f"a text must have at most {length} characters")
    value.encode()  # raises ValueError for half a surrogate pair, which no database accepts
    return value.replace("\0", "")


def _labels(pairs: Sequence[Sequence[str]]) -> Labels:
    if len(pairs) > Limits().labels:
        raise ValueError(f"more than {Limits().labels} labels")
    return tuple(sorted((_text(name, WORD), _text(value, TEXT)) for name, value in pairs))


def _list(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > NAMES:
        raise ValueError(f"{name} must be a list of at most {NAMES}")
    return value


def _names(body: Mapping[str, Any], name: str, kind: type) -> Iterator[tuple[str, Any]]:
    found = body.get(name, {})
    for key, value in list(found.items())[:NAMES]:
        if isinstance(value, kind) and not isinstance(value, bool):
            yield _text(key[:WORD], WORD), _text(value[:TEXT], TEXT) if isinstance(value, str) else _count(value)


# ---- packing for the inbox


def pack(kind: str, behind: int, skew: float, data: bytes) -> bytes:
    """Returns bytes for the inbox, from a body that `read` accepted."""
    return _MARK + zlib.compress(_json([kind, behind, skew]) + b"\n" + data, 1)


def packed(data: bytes) -> bool:
    """Was this made by `pack`, and not by `server.push.body`?"""
    return data.startswith(_MARK)


def unpack(data: bytes) -> Forwarded:
    """Returns the reading that `pack` packed.

    Raises:
        ValueError: not made by `pack`.
    """
    try:
        head, _, body = zlib.decompress(data.removeprefix(_MARK)).partition(b"\n")
        kind, behind, skew = json.loads(head)
    except zlib.error:
        raise ValueError("not a packed reading") from None
    return Forwarded(kind, behind, skew, read(body))
