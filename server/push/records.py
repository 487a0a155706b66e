"""Parses and validates pushed rollouts and events (JSON or NDJSON); reports each bad line by number. Pure.

A line contains what is new about a rollout; lines of one rollout may come in any order and any number of times. Good
lines wait unchanged in the inbox; the collecting process parses them again.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from collectors.formats import weight_versions
from collectors.model import Consumption, Event, Exit, Purpose, Rollout, Span, SpanKind, Turn
from server.ingest.incarnations import BEGINS
from server.ingest.validation import AHEAD_SECONDS, COUNTED, FIRST_TIME
from server.push import validation as checks
from server.push.validation import ID_LENGTH, MOST, TURNS

# Most records of one body.
MAX_LINES = 10_000
# Longest record, bytes.
LINE_BYTES = 1 << 20
# Most spans of one rollout.
SPANS = 10_000
# Most uses (consumptions) of one rollout.
USES = 1_000
# Longest stored detail of an event, characters.
DETAIL_LENGTH = 2_000
WEIGHT = 5
"""Cost of ingesting a rollout, in samples. The sum of weights limits the inbox and the work of a tick."""

_MOST_CALLS = int(COUNTED["turns.tool_calls"])
# Refused lines listed in an answer; the rest is only counted.
_SHOWN = 1_000

Kind = Literal["rollouts", "events"]


class Refusal(ValueError):
    """A body that is refused as a whole. ``status``: the HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class PushedRecords:
    """Contents of a body: the good lines, and (line number from 1, reason) of refused lines; ``lost`` counts those."""

    lines: list[bytes] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    lost: int = 0

    def refuse(self, number: int, why: str) -> None:
        self.lost += 1
        if len(self.refused) < _SHOWN:
            self.refused.append((number, why))


# ---- bodies


def parse(body: bytes, kind: Kind, now: float, *, document: bool = False) -> PushedRecords:
    """Parses a JSON object or a JSON list of objects, over any number of lines, or one object per line.

    Args:
        document: the content type is one JSON value; a record per line is accepted all the same.

    Raises:
        Refusal: the body as a whole cannot be read.
    """
    result, make = PushedRecords(), MAKE[kind]
    for number, line in _lines(body, document):
        try:
            item, raw = item_of(line)
            result.records.append(make(item, now))
            result.lines.append(raw)
        except ValueError as error:
            result.refuse(number, str(error))
    if not result.records and not result.lost:
        raise Refusal(400, "the body is empty")
    return result


def _lines(body: bytes, document: bool) -> Iterator[tuple[int, "bytes | object"]]:
    whole = body.strip()
    if whole.startswith(b"["):
        yield from enumerate(_bounded(_whole(whole)), 1)
        return
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if len(lines) > 1 and _broken(lines[0][1]):
        try:
            text = _whole(whole)
        except Refusal:
            if document or lines[0][1].strip() == b"{":
                raise
        else:
            yield 1, text
            return
    yield from _bounded(lines)


def _broken(line: bytes) -> bool:
    """Does an object begin in this line without ending in it?"""
    if not line.lstrip().startswith(b"{") or len(line) > LINE_BYTES:
        return False
    try:
        _DECODER.decode(line.decode().strip())
    except (ValueError, RecursionError):
        return True
    return False


def _whole(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None


def _bounded(items: list[Any]) -> list[Any]:
    if len(items) > MAX_LINES:
        raise Refusal(413, f"at most {MAX_LINES} records at once")
    return items


def item_of(line: "bytes | object") -> tuple[object, bytes]:
    """Returns (the parsed value, the line)."""
    if not isinstance(line, bytes):
        return line, _dumped(line)
    if len(line) > LINE_BYTES:
        raise ValueError(f"a line may have at most {LINE_BYTES} bytes")
    try:
        text = line.decode().strip()
        try:
            item, end = _scanned(text, 0)
        except StopIteration:
            end = -1
        # Anything but exactly one value goes to the decoder, for its error message.
        return (item if end == len(text) else _DECODER.decode(text)), line
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON: too deep") from None


def _dumped(item: object) -> bytes:
    raw = json.dumps(item, separators=(",", ":")).encode()
    if len(raw) > LINE_BYTES:
        raise ValueError(f"a record may have at most {LINE_BYTES} bytes")
    return raw


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number: omit the field")


_DECODER = json.JSONDecoder(parse_constant=_constant)
_scanned: Callable[[str, int], tuple[Any, int]] = vars(_DECODER)["scan_once"]


# ---- records

_TURN: Mapping[str, Callable[[str, Any], Any]] = {
    "version": checks.whole, "tool_calls": checks.whole, "mutated": checks.truth, "reset": checks.truth,
    "sandbox_id": checks.identity, "forked_from": checks.identity,
}  # fmt: skip
_SPAN: Mapping[str, Callable[[str, Any], Any]] = {
    "kind": checks.one_of(*get_args(SpanKind)), "version": checks.whole, "detail": checks.text,
}  # fmt: skip
_PLAIN: Mapping[str, Callable[[str, Any], Any]] = {
    "rollout_id": checks.identity, "group_id": checks.identity, "group_size": checks.positive, "attempt": checks.whole,
    "incarnation": checks.incarnation, "purpose": checks.one_of(*get_args(Purpose)), "environment": checks.text,
    "agent": checks.text, "difficulty": checks.text, "engine": checks.text, "version_dispatched": checks.whole,
    "version_start": checks.whole, "version_finish": checks.whole, "token_versions": checks.pairs,
    "prompt_tokens": checks.whole, "response_tokens": checks.whole, "loss_tokens": checks.whole,
    "tool_calls": checks.whole, "sandbox_ids": checks.boxes, "reward": checks.number, "max_reward": checks.number,
    "advantage": checks.number, "solved": checks.truth, "truncated": checks.truth,
    "exit": checks.one_of(*get_args(Exit)), "error": checks.text, "sampled": checks.truth,
}  # fmt: skip
_TIMES = frozenset(
    ("dispatched_at", "started_at", "first_token_at", "finished_at", "scored_at", "group_complete_at", "exited_at")
)
_OTHER = ("turns", "spans", "version_consumed", "consumed_at", weight_versions.KEY)
FIELDS = (*_PLAIN, *sorted(_TIMES), *_OTHER)
"""Fields of `collectors.model.Rollout`, with three differences: uses by the trainer are `version_consumed` and
`consumed_at` (numbers or lists), `turns` may be a count, and an engine's `weight_versions` may replace
`token_versions`. Only `rollout_id` is required."""

# Positions of a record's values. A value that a check accepts at once is not examined again.
_NAMES = Rollout.__struct_fields__
_NOTHING = ["", *Rollout.__struct_defaults__]
_PLACES = {name: _NAMES.index(name) for name in (*_PLAIN, *_TIMES)}
_ID, _TURNS, _TURN_COUNT, _TOKENS, _SPANS, _USES, _INCARNATION = map(
    _NAMES.index, ("rollout_id", "turns", "turn_count", "token_versions", "spans", "consumptions", "incarnation")
)
_WHOLE = {name: COUNTED.get(name, MOST) for name, check in _PLAIN.items() if check is checks.whole}
_TEXTS = frozenset(name for name, check in _PLAIN.items() if check in (checks.text, checks.identity))
_SHORT = min(ID_LENGTH, checks.TEXT_LENGTH)

# Further fields in forwarded records, which must arrive without loss.
_WIRE = ("consumptions", "turn_count")


def record(item: object, now: float, *, wire: bool = False) -> Rollout:
    """Returns one validated rollout; raises ValueError with a message for the client. ``wire``: made by `wire_of`."""
    if not isinstance(item, dict):
        raise ValueError("not a JSON object")
    latest = now + AHEAD_SECONDS
    values = _NOTHING.copy()
    for name, value in item.items():
        index = _PLACES.get(name)
        if index is None:
            if name not in _OTHER and not (wire and name in _WIRE):
                raise ValueError(f"unknown field {ascii(name)[:80]}; known: {', '.join(FIELDS)}")
        elif value is not None:
            values[index] = _checked(name, value, latest)
    if not values[_ID]:
        raise ValueError("rollout_id is missing")
    _listed(item, values, latest)
    return Rollout(*values)


def _checked(name: str, value: Any, latest: float) -> Any:
    """Validates one value. Nearly all values are valid and of the expected type, so those take a short path."""
    kind = type(value)
    if kind is float:
        if name in _TIMES and FIRST_TIME <= value <= latest:
            return round(value * 1000) / 1000
    elif kind is int:
        if 0 <= value <= _WHOLE.get(name, -1):
            return value
    elif kind is str and name in _TEXTS and len(value) <= _SHORT and value.isprintable():
        return value
    return checks.moment(name, value, latest) if name in _TIMES else _PLAIN[name](name, value)


def _listed(item: Mapping[str, Any], values: list[Any], latest: float) -> None:
    turns, spans = item.get("turns"), item.get("spans")
    if isinstance(turns, list):
        values[_TURNS] = tuple(map(_turn, checks.listed("turns", turns, TURNS)))
    elif turns is not None:
        values[_TURN_COUNT] = checks.whole("turns", turns)
    if item.get("turn_count") is not None:
        values[_TURN_COUNT] = checks.whole("turn_count", item["turn_count"])
    if (engine_spans := item.get(weight_versions.KEY)) is not None:
        from_engine = _engine_token_versions(engine_spans)
        if item.get("token_versions") is None:
            values[_TOKENS] = from_engine
    if spans is not None:
        values[_SPANS] = tuple(_span(entry, latest) for entry in checks.listed("spans", spans, SPANS))
    if item.get("consumptions") is not None:
        values[_USES] = tuple(
            _use(entry, latest) for entry in checks.listed("consumptions", item["consumptions"], USES)
        )
    elif "version_consumed" in item or "consumed_at" in item:
        values[_USES] = _uses(item, values[_INCARNATION], latest)


def _engine_token_versions(spans: Any) -> tuple[tuple[int, int], ...]:
    versions = weight_versions.token_versions(spans)
    if spans and not versions:
        raise ValueError("weight_versions must be the engine's [{version, start, end}, ...], without a gap")
    return versions


def _object(name: str, item: Any, fields: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError(f"{name} must be a list of objects" + (", or a count" if name == "turns" else ""))
    if unknown := item.keys() - fields.keys():
        raise ValueError(f"{name}: unknown field {ascii(min(unknown))[:80]}; known: {', '.join(fields)}")
    return {key: fields[key](f"{name}.{key}", value) for key, value in item.items() if value is not None}


def _turn(item: Any) -> Turn:
    """Parses a turn. A rollout has hundreds of turns, so a turn of valid plain fields takes a short path."""
    if type(item) is dict and item.keys() <= _PLAIN_TURN:
        version, calls, mutated, reset = map(item.get, ("version", "tool_calls", "mutated", "reset"))
        if (
            (version is None or (type(version) is int and 0 <= version <= MOST))
            and (calls is None or (type(calls) is int and 0 <= calls <= _MOST_CALLS))
            and type(mutated) in _FLAG and type(reset) in _FLAG
        ):  # fmt: skip
            return Turn(version, calls, mutated, reset is True)
    return Turn(**_object("turns", item, _TURN))


_PLAIN_TURN = frozenset(("version", "tool_calls", "mutated", "reset"))
_FLAG = (bool, type(None))


def _span(item: Any, latest: float) -> Span:
    if not isinstance(item, dict):
        raise ValueError("spans must be a list of objects")
    rest = {key: value for key, value in item.items() if key not in ("start", "end")}
    values = _object("spans", rest, _SPAN)
    if "kind" not in values:
        raise ValueError("spans: kind is missing")
    start = checks.moment("spans.start", item.get("start"), latest)
    end = None if item.get("end") is None else checks.moment("spans.end", item["end"], latest)
    if end is not None and end < start:
        raise ValueError("spans: it ends before it starts")
    return Span(start=start, end=end, **values)


def _use(item: Any, latest: float) -> Consumption:
    version, at, incarnation = item
    return Consumption(
        None if version is None else checks.whole("consumptions", version),
        None if at is None else checks.moment("consumptions", at, latest),
        None if incarnation is None else checks.incarnation("consumptions", incarnation),
    )


def _uses(item: Mapping[str, Any], incarnation: int | None, latest: float) -> tuple[Consumption, ...]:
    version, at = item.get("version_consumed"), item.get("consumed_at")
    if type(version) is int and type(at) is float and 0 <= version <= MOST and FIRST_TIME <= at <= latest:
        return (Consumption(version, round(at * 1000) / 1000, incarnation),)  # the common case
    versions = [checks.whole("version_consumed", entry) for entry in _as_list(item, "version_consumed")]
    times = [checks.moment("consumed_at", entry, latest) for entry in _as_list(item, "consumed_at")]
    if versions and times and len(versions) != len(times):
        raise ValueError("version_consumed and consumed_at must have the same length")
    pairs: Sequence[tuple[int | None, float | None]]
    if versions and times:
        pairs = list(zip(versions, times, strict=True))
    else:
        pairs = [(version, None) for version in versions] or [(None, at) for at in times]
    return tuple(Consumption(version, at, incarnation) for version, at in pairs)


def _as_list(item: Mapping[str, Any], name: str) -> list[Any]:
    value = item.get(name)
    if value is None:
        return []
    return checks.listed(name, value, USES) if isinstance(value, list) else [value]


def wire_of(rollout: Rollout) -> dict[str, Any]:
    """Returns JSON that `record` reads with ``wire``; empty values are omitted."""
    wire = {name: value for name in _COPIED if _has_value(value := getattr(rollout, name))}
    for name in ("rollout_id", "group_id"):
        if name in wire:
            wire[name] = wire[name][:ID_LENGTH]
    for name in ("solved", "truncated"):
        if getattr(rollout, name) is not None:
            wire[name] = getattr(rollout, name)
    if rollout.turns:
        wire["turns"] = [
            {key: value for key in _TURN if (value := getattr(turn, key)) not in (None, "")} for turn in rollout.turns
        ]
    if rollout.spans:
        wire["spans"] = [{key: getattr(span, key) for key in (*_SPAN, "start", "end")} for span in rollout.spans]
    if rollout.consumptions:
        wire["consumptions"] = [[use.version, use.at, use.incarnation] for use in rollout.consumptions]
    return wire


def _has_value(value: Any) -> bool:
    # Compared with `is`, because 0 is a value although it equals False.
    return value is not None and value is not False and value not in ("", ())


_COPIED = tuple(name for name in (*_PLAIN, *sorted(_TIMES), "turn_count") if name not in ("solved", "truncated"))


# ---- events

KINDS: tuple[str, ...] = get_args(get_type_hints(Event)["kind"])
# Drift is detected by Rollscope itself, so it cannot be pushed.
EVENTS = tuple(kind for kind in KINDS if kind not in ("drift", "source"))
# Fields of `collectors.model.Event`; only `kind` is required.
EVENT_FIELDS = ("kind", "key", "ts", "detail", "version")


def event(item: object, now: float) -> Event:
    """Returns one validated event; raises ValueError with a message for the client."""
    if not isinstance(item, dict):
        raise ValueError("not a JSON object")
    if unknown := item.keys() - set(EVENT_FIELDS):
        raise ValueError(f"unknown field {ascii(min(unknown))[:80]}; known: {', '.join(EVENT_FIELDS)}")
    kind: Any = item.get("kind")
    if kind not in EVENTS:
        raise ValueError(f"kind must be one of {', '.join(EVENTS)}")
    given = {name: value for name, value in item.items() if value is not None}
    version = checks.whole("version", given["version"]) if "version" in given else None
    ts = checks.moment("ts", given["ts"], now + AHEAD_SECONDS) if "ts" in given else None
    named = checks.identity("key", given.get("key", ""))
    if kind in BEGINS and ts is None and not named:  # a repeated request would begin another incarnation
        raise ValueError(f"a {kind} needs ts or key, so that a repeated request is the same event")
    key = named or _key(kind, version, ts if ts is not None or version is not None else now)
    detail = checks.cleaned("detail", given.get("detail", ""))[:DETAIL_LENGTH]
    return Event(kind, key, ts if ts is not None else now, detail, version)


def _key(kind: str, version: int | None, ts: float | None) -> str:
    """Returns the key of an event without one, so that a repeated request is the same event."""
    return ":".join(
        [kind, *([f"v{version}"] if version is not None else []), *([f"{ts:.3f}"] if ts is not None else [])]
    )


MAKE: Mapping[Kind, Callable[[object, float], Any]] = {"rollouts": record, "events": event}
