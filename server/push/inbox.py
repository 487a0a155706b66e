"""What waits in the inbox, packed: pushed records, pushed metrics, and readings that another machine forwards. Pure.

One codec: the records of `collectors.model` as JSON of msgspec, compressed. Pushed records wait as the lines that were
received. A forwarded reading waits as the body that was received; records in it that are invalid are dropped and
counted, as from any source, so that one of them never blocks the readings queued after it.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct, structs

from collectors.catalog import METRICS
from collectors.model import (
    FACTS,
    Actor,
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
from server.push.records import MAX_LINES, WEIGHT, Kind, check_times, converted, records_of

# zlib level: level 1 finds nearly all redundancy, and for large pushes the time to pack matters.
_LEVEL = 1
_RECORDS, _READING = b"records\n", b"reading\n"

# ---- pushed records


def pack_records(kind: Kind, lines: Sequence[bytes]) -> bytes:
    """Returns bytes for the inbox, from lines that `server.push.records.parse` accepted."""
    return _RECORDS + zlib.compress(b"\n".join([kind.encode(), *lines]), _LEVEL)


def has_records(data: bytes) -> bool:
    """Was this made by `pack_records`?"""
    return data.startswith(_RECORDS)


def unpack_records(data: bytes, now: float) -> Reading:
    """Returns the records that `pack_records` packed. ``now``: when they were pushed.

    Raises:
        ValueError: not made by `pack_records`.
    """
    try:
        kind, *lines = zlib.decompress(data.removeprefix(_RECORDS)).split(b"\n")
    except zlib.error:
        raise ValueError("not packed records") from None
    events = kind == b"events"
    found, dropped, why = records_of("events" if events else "rollouts", lines, now)
    records: dict[str, Any] = {"events" if events else "rollouts": tuple(found)}
    return Reading(**records, dropped=dropped, why_dropped=why)


# ---- pushed metrics


@dataclass(frozen=True, slots=True)
class Grown:
    """A counter or histogram of one of several processes that push the same metric: only increases are added up.

    Attributes:
        stream: id of the process and of the dropped labels.
        delta: the value counts since the previous push; otherwise since `start`, the process start (epoch s).
    """

    stream: str
    delta: bool
    start: float
    value: Sample | Histogram


@dataclass(frozen=True, slots=True)
class Body:
    """One target's part of a push.

    Attributes:
        reading: gauges, values of steps, and totals since the source began.
        grown: values to be added up over processes or pushes.
    """

    reading: Reading = field(default_factory=Reading)
    grown: tuple[Grown, ...] = ()

    @property
    def rows(self) -> int:
        """Weight in the inbox, at least 1."""
        return max(1, len(self.reading.samples) + len(self.reading.histograms) + len(self.grown))

    @property
    def empty(self) -> bool:
        """Is there nothing at all, not even an unknown name?"""
        reading = self.reading
        return not (reading.samples or reading.histograms or self.grown or reading.facts or reading.unmapped)

    def stated(self, facts: Mapping[str, str | float]) -> "Body":
        """Returns a copy with facts of its run."""
        return replace(self, reading=structs.replace(self.reading, facts=facts)) if facts else self

    def actor(self) -> Actor:
        """Returns the actor of most of the values; the trainer if there are none."""
        values = (*self.reading.samples, *self.reading.histograms, *(item.value for item in self.grown))
        names = [value.metric for value in values]
        actors: list[Actor] = [METRICS[name].actor for name in names]
        return max(dict.fromkeys(actors), key=actors.count, default="trainer")


class _PackedBody(Struct):
    """A `Body` as JSON: what has grown by its type, because JSON does not tell a sample from a histogram."""

    reading: Reading
    samples: list[tuple[str, bool, float, Sample]] = []
    histograms: list[tuple[str, bool, float, Histogram]] = []


_bodies = msgspec.json.Decoder(_PackedBody)


def pack_body(body: Body) -> bytes:
    """Returns bytes for the inbox."""
    packed = _PackedBody(body.reading)
    for item in body.grown:
        rows: list[Any] = packed.samples if isinstance(item.value, Sample) else packed.histograms
        rows.append((item.stream, item.delta, item.start, item.value))
    return zlib.compress(msgspec.json.encode(packed), _LEVEL)


def unpack_body(data: bytes) -> Body:
    """Returns the body that `pack_body` packed.

    Raises:
        ValueError: not made by `pack_body`.
    """
    try:
        packed = _bodies.decode(zlib.decompress(data))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"not a packed push: {type(error).__name__}") from None
    return Body(packed.reading, (*[Grown(*row) for row in packed.samples], *[Grown(*row) for row in packed.histograms]))


# ---- forwarded readings


@dataclass(slots=True)
class Outcome:
    """Result of one read attempt: exactly one of `reading` and `error`."""

    started: float
    seconds: float
    reading: Reading | None = None
    error: ScrapeError | None = None


# Version of the wire format.
VERSION = 2
# Samples of one body. Parsing blocks all other threads of a server, for some milliseconds at this size.
SAMPLES = 5_000
# Events of one body.
EVENTS = 2_000
# Bodies are cut between steps up to this many samples; a row of a trainer's log has at most some hundred values.
SAMPLES_MOST = 20_000
# Most records that a received body may contain.
COUNTS = {"samples": 50_000, "histograms": 20_000, "events": 20_000, "sandboxes": MAX_LINES, "rollouts": MAX_LINES}
# Rollouts of one body.
ROLLOUTS = 1_000
# Turns, spans and token versions of one body, some MB.
STRETCHES = 20_000
# Longest name, and longest text, characters.
WORD, TEXT = 200, 2_000
# Most names or gaps of one body.
NAMES = 500
SPLIT = "more sandboxes than fit into one body: missing ones are not considered ended"
_FACT_WORDS: Mapping[str, tuple[str, ...]] = {"mode": get_args(Mode), "lifecycle": get_args(Lifecycle)}
# Largest time, epoch seconds; the plausibility check is done at ingest.
LAST_TIME = 1e11
# Facts about the end of a run, sent after everything that precedes it.
_LAST_FACTS = frozenset({"lifecycle", "lifecycle_why"})

_Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]


class _Error(Struct):
    kind: ErrorKind
    text: Annotated[str, Meta(max_length=TEXT)]


class _Forwarded(Struct, omit_defaults=True):
    """The body of one read attempt. ``at``: epoch seconds."""

    version: int
    at: _Finite
    seconds: _Finite
    error: _Error | None = None
    reading: Reading | None = None


_readings = msgspec.json.Decoder(_Forwarded)


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


# ---- forwarded readings: sending


def bodies(outcome: Outcome) -> list[bytes]:
    """Returns the JSON of one attempt in one or more bodies; values that occur once are in the last body."""
    head = _Forwarded(VERSION, outcome.started, outcome.seconds)
    if outcome.reading is None:
        assert outcome.error is not None
        error = _Error(outcome.error.kind, str(outcome.error)[:TEXT])
        return [msgspec.json.encode(structs.replace(head, error=error))]
    parts = map(_wire, _parts(outcome.reading))
    return [msgspec.json.encode(structs.replace(head, reading=part)) for part in parts]


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


def _wire(reading: Reading) -> Reading:
    """Returns the reading within the limits of the receiver: texts are cut, and a position is only mentioned."""
    return structs.replace(
        reading,
        samples=tuple([s if math.isfinite(s.value) else _as_text(s) for s in reading.samples]),
        events=tuple(structs.replace(e, key=e.key[:WORD], detail=e.detail[:TEXT]) for e in reading.events),
        rollouts=tuple([r if len(r.rollout_id) <= WORD >= len(r.group_id) else _cut(r) for r in reading.rollouts]),
        unmapped=_first(reading.unmapped), origins=_first(reading.origins),
        cursor=None if reading.cursor is None else {}, why_dropped=reading.why_dropped[:TEXT],
        partial=reading.partial[:TEXT], gaps=reading.gaps[:NAMES], reader=reading.reader[:TEXT],
    )  # fmt: skip


def _as_text(sample: Sample) -> Sample:
    """JSON has no NaN and no infinity: they travel as texts, which the receiver reads as numbers again."""
    return structs.replace(sample, value=str(sample.value))


def _cut(rollout: Rollout) -> Rollout:
    return structs.replace(rollout, rollout_id=rollout.rollout_id[:WORD], group_id=rollout.group_id[:WORD])


def _first(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name[:WORD]: value for name, value in list(names.items())[:NAMES]}


# ---- forwarded readings: receiving


def read(data: bytes) -> Outcome:
    """Parses and validates a body of `bodies`, or of any other client.

    Raises:
        ValueError: not a reading; the message is for the client.
    """
    try:
        body = _readings.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if body is None or body.version != VERSION or body.reading is None:
        return _salvaged(data)
    if body.error is not None:
        return Outcome(body.at, body.seconds, error=ScrapeError(body.error.kind, body.error.text))
    return Outcome(body.at, body.seconds, reading=_checked(structs.asdict(body.reading), 0, ""))


def _salvaged(data: bytes) -> Outcome:
    """Reads a body record by record: those that are invalid are dropped and counted."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f'the body must be an object with "version": {VERSION}; is it another version of Rollscope?')
    reading = document.pop("reading", None)
    body = converted(document, _Forwarded)
    if body.error is not None:
        return Outcome(body.at, body.seconds, error=ScrapeError(body.error.kind, body.error.text))
    if not isinstance(reading, dict):
        raise ValueError("the body is not a reading: reading must be an object")
    kinds: Mapping[str, type[Struct]] = {
        "samples": Sample, "histograms": Histogram, "events": Event, "sandboxes": Sandbox, "rollouts": Rollout
    }  # fmt: skip
    records: dict[str, Any] = {}
    lost, why = 0, ""
    for name, kind in kinds.items():
        rows = reading.pop(name, [])
        if not isinstance(rows, list) or len(rows) > COUNTS[name]:
            raise ValueError(f"{name} must be a list of at most {COUNTS[name]}")
        found, reasons = _each(rows, lambda row, kind=kind: converted(row, kind, strict=kind is not Sample))  # type: ignore[misc]
        records[name] = tuple(found)
        lost, why = lost + len(reasons), why or next(iter(reasons), "")
        if name == "sandboxes" and reasons:
            reading["listed"] = []  # a sandbox whose record is invalid has not ended
    rest = structs.asdict(converted(reading, Reading))
    return Outcome(body.at, body.seconds, reading=_checked(rest | records, lost, why))


def _checked(values: dict[str, Any], lost: int, why: str) -> Reading:
    """Returns a reading of these values without records that are well-formed and invalid all the same."""
    checks: Mapping[str, Callable[[Any], Any]] = {
        "samples": _sample, "histograms": _histogram, "events": _event, "sandboxes": _sandbox, "rollouts": _rollout
    }  # fmt: skip
    for name, check in checks.items():
        if len(values[name]) > COUNTS[name]:
            raise ValueError(f"{name} must be a list of at most {COUNTS[name]}")
        found, reasons = _each(values[name], check)
        values[name] = tuple(found)
        lost, why = lost + len(reasons), why or next(iter(reasons), "")
        if name == "sandboxes" and reasons:
            values["listed"] = ()
    facts, reasons = _each(values["facts"].items(), _fact)
    lost, why = lost + len(reasons), why or next(iter(reasons), "")
    if len(values["gaps"]) > NAMES or len(values["listed"]) > NAMES:
        raise ValueError(f"gaps and listed must be lists of at most {NAMES}")
    values |= {
        "facts": dict(facts), "unmapped": _first(values["unmapped"]), "origins": _first(values["origins"]),
        "cursor": None if values["cursor"] is None else {}, "dropped": values["dropped"] + lost,
        "why_dropped": (values["why_dropped"] or why)[:TEXT],
    }  # fmt: skip
    return Reading(**values)


def _each(rows: Iterable[Any], change: Callable[[Any], Any]) -> tuple[list[Any], list[str]]:
    found, reasons = [], []
    for row in rows:
        try:
            found.append(change(row))
        except ValueError as error:
            reasons.append(str(error)[:TEXT])
    return found, reasons


def _sample(sample: Sample) -> Sample:
    return structs.replace(sample, labels=labels) if (labels := _labels(sample)) != sample.labels else sample


def _histogram(item: Histogram) -> Histogram:
    if len(item.counts) != len(item.edges) + 1 or list(item.edges) != sorted(set(item.edges)):
        raise ValueError("a histogram needs ascending edges, and one count more than edges")
    return structs.replace(item, labels=labels) if (labels := _labels(item)) != item.labels else item


def _labels(value: Sample | Histogram) -> Labels:
    if value.metric not in METRICS:
        raise ValueError(f"no metric is named {value.metric[:80]} here; is it another version of Rollscope?")
    if len(value.labels) > Limits().labels:
        raise ValueError(f"more than {Limits().labels} labels")
    for name, text in value.labels:
        _text(name, WORD)
        _text(text, TEXT)
    return tuple(sorted(value.labels))


def _event(event: Event) -> Event:
    _text(event.key, WORD)
    _text(event.detail, TEXT)
    return event


def _sandbox(sandbox: Sandbox) -> Sandbox:
    for value in structs.astuple(sandbox):
        if isinstance(value, str):
            _text(value, TEXT)
    return sandbox


def _rollout(rollout: Rollout) -> Rollout:
    check_times(rollout, LAST_TIME)
    return rollout


def _fact(pair: tuple[str, Any]) -> tuple[str, str | float]:
    key, value = pair
    if key not in FACTS:
        raise ValueError(f"no fact is named {key[:80]}")
    if key in _FACT_WORDS and value not in _FACT_WORDS[key]:
        raise ValueError(f"{key} must be one of {', '.join(_FACT_WORDS[key])}")
    return key, _text(value, TEXT) if isinstance(value, str) else value


def _text(value: str, length: int) -> str:
    if len(value) > length:
        raise ValueError(f"a text must have at most {length} characters")
    return value


def weight(outcome: Outcome) -> int:
    """Returns the weight of a reading in the inbox, at least 1."""
    reading = outcome.reading or Reading()
    others = len(reading.samples) + len(reading.histograms) + len(reading.events) + len(reading.sandboxes)
    return max(1, others + WEIGHT * len(reading.rollouts))


# ---- forwarded readings: packing


def pack_reading(kind: str, behind: int, skew: float, data: bytes) -> bytes:
    """Returns bytes for the inbox, from a body that `read` accepted."""
    return _READING + zlib.compress(msgspec.json.encode([kind, behind, skew]) + b"\n" + data, _LEVEL)


def has_reading(data: bytes) -> bool:
    """Was this made by `pack_reading`?"""
    return data.startswith(_READING)


def unpack_reading(data: bytes) -> Forwarded:
    """Returns the reading that `pack_reading` packed.

    Raises:
        ValueError: not made by `pack_reading`.
    """
    try:
        head, _, body = zlib.decompress(data.removeprefix(_READING)).partition(b"\n")
        kind, behind, skew = json.loads(head)
    except zlib.error:
        raise ValueError("not a packed reading") from None
    return Forwarded(kind, behind, skew, read(body))
