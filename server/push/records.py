"""Records that clients push: rollouts, events and sandboxes; each bad line is reported by number. Pure.

A line contains what is new about a rollout; lines of one rollout may come in any order and any number of times. Bounds
stand at the fields of the records (`collectors.model`), and msgspec checks them while it parses. A line that it refuses
is read again value by value (`_lenient`): nulls are absent, 3.0 is 3, and no text holds what a database refuses.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from collectors.formats import weight_versions
from collectors.model import Consumption, Event, Rollout, Sandbox, Time, Whole
from collectors.sandbox_providers.provider import cause_of
from server.ingest.incarnations import BEGINS
from server.ingest.readings import AHEAD_SECONDS, storable
from server.rollouts.merge import TIMES, distinct

# Most records of one body.
MAX_LINES = 10_000
# Longest record, bytes.
LINE_BYTES = 1 << 20
# Longest stored detail of an event, characters.
DETAIL_LENGTH = 2_000
WEIGHT = 5
"""Cost of ingesting a rollout, in samples. The sum of weights limits the inbox and the work of a tick."""

# Refused lines listed in an answer; the rest is only counted.
_SHOWN = 1_000
# Largest integer that a float represents exactly.
_EXACT = 2**53

Kind = Literal["rollouts", "events", "sandboxes"]
T = TypeVar("T", bound=Struct)


class Refusal(ValueError):
    """A body that is refused as a whole. ``status``: the HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class PushedRecords:
    """Contents of a body: the good lines, and (line number from 1, reason) of refused lines; ``lost`` counts those."""

    lines: list[bytes] = field(default_factory=list)
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
    result, check = PushedRecords(), _CHECKS[kind]
    for number, line in _lines(body, document):
        try:
            check(line, now)
        except ValueError as error:
            result.refuse(number, str(error))
        else:
            result.lines.append(line)
    if not result.lines and not result.lost:
        raise Refusal(400, "the body is empty")
    return result


def records_of(kind: Kind, lines: Iterable[bytes], now: float) -> tuple[list[Any], int, str]:
    """Returns the records of lines that `parse` accepted at ``now``, how many lines are none, and why the first is."""
    make, found, lost, why = _MAKE[kind], [], 0, ""
    for line in lines:
        try:
            found.append(make(line, now))
        except ValueError as error:  # another version of Rollscope accepted the line
            lost, why = lost + 1, why or str(error)
    return found, lost, why


def _lines(body: bytes, document: bool) -> Iterator[tuple[int, bytes]]:
    whole = body.strip()
    if whole.startswith(b"["):
        yield from enumerate(map(_dumped, _bounded(_whole(whole))), 1)
        return
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if len(lines) > 1 and _broken(lines[0][1]):
        try:
            item = _whole(whole)
        except Refusal:
            if document or lines[0][1].strip() == b"{":
                raise
        else:
            yield 1, _dumped(item)
            return
    yield from _bounded(lines)


def _broken(line: bytes) -> bool:
    """Does an object begin in this line without ending in it?"""
    if not line.lstrip().startswith(b"{") or len(line) > LINE_BYTES:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _whole(body: bytes) -> Any:
    try:
        return json.loads(body)  # a NaN is the fault of one record
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None


def _dumped(item: object) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


def _bounded(items: list[Any]) -> list[Any]:
    if len(items) > MAX_LINES:
        raise Refusal(413, f"at most {MAX_LINES} records at once")
    return items


# ---- one record


def read(line: bytes, decoder: "msgspec.json.Decoder[T]", change: Callable[[dict[str, Any]], None] | None = None) -> T:
    """Returns the record of a line.

    Args:
        change: completes a record that msgspec refuses as it stands, before it is read again.

    Raises:
        ValueError: with field and reason, for the client.
    """
    if len(line) > LINE_BYTES:
        raise ValueError(f"a line may have at most {LINE_BYTES} bytes")
    try:
        if b"\\u0000" not in line:
            return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    item = _object(line)
    if change is not None:
        change(item)
    return converted(item, decoder.type)


def converted(item: object, kind: type[T], *, strict: bool = True) -> T:
    """Returns the record that a JSON value describes. ``strict``: a text is no number.

    Raises:
        ValueError: with field and reason.
    """
    try:
        return msgspec.convert(item, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ValueError(_reason(str(error), kind)) from None
    except (OverflowError, UnicodeEncodeError):
        raise ValueError("a number or a text that nothing can store") from None


def _object(line: bytes) -> dict[str, Any]:
    try:
        item = _DECODER.decode(line.decode().strip())
        if isinstance(item, dict):
            return {name: _lenient(value) for name, value in item.items() if value is not None}
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON: too deep") from None
    raise ValueError("not a JSON object")


def _lenient(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lenient(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_lenient(one) for one in value]
    if isinstance(value, float) and abs(value) <= _EXACT and value.is_integer():
        return int(value)  # pandas turns a column with missing values into floats
    return storable(value)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number: omit the field")


_DECODER = json.JSONDecoder(parse_constant=_constant)

# ---- reasons

_ERROR = re.compile(r"(.*?)(?: - at `\$?([^`]*)`)?", re.DOTALL)
_WORDS: Mapping[type, str] = {
    str: "a text", bool: "true or false", int: "a whole number", float: "a finite number", dict: "an object",
}  # fmt: skip


def _reason(error: str, kind: type[Struct]) -> str:
    """Returns msgspec's error about a record of this kind as a message for the client."""
    match = _ERROR.fullmatch(error)
    what, path = match.groups("") if match is not None else (error, "")
    names = re.findall(r"\.(\w+)", path)
    place = ".".join(names)
    if unknown := re.match(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        known = ", ".join(_struct_at(kind, names).__struct_fields__)
        return f"{place}{': ' if place else ''}unknown field {ascii(unknown[1])[:80]}; known: {known}"
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return f"{'.'.join([*names, missing[1]])} is missing"
    return f"{place} must be {_requirement(kind, names)}" if names else "not a JSON object"


def _struct_at(kind: type[Struct], names: Sequence[str]) -> type[Struct]:
    for name in names:
        parts = _parts(_hints(kind)[name])
        kind = next((part for part in parts if isinstance(part, type) and issubclass(part, Struct)), kind)
    return kind


def _requirement(kind: type[Struct], names: Sequence[str]) -> str:
    """Returns what a field must be: the description of its type, or the values that it may have."""
    hint = _hints(_struct_at(kind, names[:-1]))[names[-1]]
    parts = list(_parts(hint))
    described = (part.description for part in parts if isinstance(part, Meta) and part.description)
    choices = (f"one of {', '.join(get_args(part))}" for part in parts if get_origin(part) is Literal)
    plain = (_WORDS[part] for part in parts if isinstance(part, type) and part in _WORDS)
    return next(chain(described, choices, plain), "another value")


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _parts(hint: Any) -> Iterator[Any]:
    """Yields the parts of a type, outer ones first: its bounds, then what it is made of."""
    yield from getattr(hint, "__metadata__", ())
    yield hint
    for part in get_args(hint)[: 1 if get_origin(hint) is Annotated else None]:
        if part is not NoneType and get_origin(hint) is not Literal:
            yield from _parts(part)


# ---- rollouts

# Most uses (consumptions) of one rollout.
USES = 1_000
_Versions = Annotated[tuple[Whole, ...], Meta(max_length=USES)]
_Times = Annotated[tuple[Time, ...], Meta(max_length=USES)]


class PushedRollout(Rollout, frozen=True, gc=False, forbid_unknown_fields=True):
    """A rollout as it is pushed. Only `rollout_id` is required.

    ``version_consumed`` and ``consumed_at`` (numbers, or lists of equal length) are short for `consumptions`; an
    engine's ``weight_versions`` may replace `token_versions`; `turns` may be a count.
    """

    version_consumed: Whole | _Versions | None = None
    consumed_at: Time | _Times | None = None
    weight_versions: Any = None


FIELDS = PushedRollout.__struct_fields__
_rollouts = msgspec.json.Decoder(PushedRollout)
_times, _values = attrgetter(*TIMES), attrgetter(*Rollout.__struct_fields__)
_USES, _TOKENS = map(Rollout.__struct_fields__.index, ("consumptions", "token_versions"))


def rollout(line: bytes, now: float) -> Rollout:
    """Returns the rollout of a line that `_check_rollout` accepted."""
    pushed = read(line, _rollouts, _count_turns)
    values = list(_values(pushed))
    if pushed.version_consumed is not None or pushed.consumed_at is not None:
        uses = (*pushed.consumptions, *_uses(pushed))
        values[_USES] = uses if len(uses) == 1 else distinct(uses)
    if pushed.weight_versions is not None:
        values[_TOKENS] = values[_TOKENS] or _engine_token_versions(pushed.weight_versions)
    return Rollout(*values)


def _check_rollout(line: bytes, now: float) -> None:
    """Raises ValueError with a message for the client."""
    pushed = read(line, _rollouts, _count_turns)
    latest = now + AHEAD_SECONDS
    check_times(pushed, latest)
    used = pushed.consumed_at
    if used is not None and (max(used, default=0.0) if isinstance(used, tuple) else used) > latest:
        raise ValueError(f"consumed_at must be {_requirement(PushedRollout, ['consumed_at'])}")
    if isinstance(pushed.version_consumed, tuple) or isinstance(pushed.consumed_at, tuple):
        _uses(pushed)
    if pushed.weight_versions is not None:
        _engine_token_versions(pushed.weight_versions)


def check_times(record: Rollout, latest: float) -> None:
    """Raises ValueError for a time after ``latest`` (epoch seconds), and for a span that ends before it starts."""
    for at, time in enumerate(_times(record)):
        if time is not None and time > latest:
            name = TIMES[at]
            raise ValueError(f"{name} must be {_requirement(Rollout, [name])}")
    for use in record.consumptions:
        if use.at is not None and use.at > latest:
            raise ValueError(f"consumptions.at must be {_requirement(Rollout, ['consumptions', 'at'])}")
    for span in record.spans:
        if (span.start if span.end is None else span.end) > latest:
            raise ValueError(f"spans.end must be {_requirement(Rollout, ['spans', 'end'])}")
        if span.end is not None and span.end < span.start:
            raise ValueError("spans: it ends before it starts")


def _engine_token_versions(spans: Any) -> tuple[tuple[int, int], ...]:
    versions = weight_versions.token_versions(spans)
    if spans and not versions:
        raise ValueError("weight_versions must be the engine's [{version, start, end}, ...], without a gap")
    return versions


def _count_turns(item: dict[str, Any]) -> None:
    if type(item.get("turns")) is int:
        item["turn_count"] = item.pop("turns")


def _uses(pushed: PushedRollout) -> tuple[Consumption, ...]:
    version, time = pushed.version_consumed, pushed.consumed_at
    if not isinstance(version, tuple) and not isinstance(time, tuple):
        return (Consumption(version, time, pushed.incarnation),)
    versions, times = _listed(version), _listed(time)
    if versions and times and len(versions) != len(times):
        raise ValueError("version_consumed and consumed_at must have the same length")
    pairs = zip(versions or [None] * len(times), times or [None] * len(versions), strict=True)
    return tuple([Consumption(version, at, pushed.incarnation) for version, at in pairs])


def _listed(value: Any) -> Sequence[Any]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


# ---- events

KINDS: tuple[str, ...] = get_args(get_type_hints(Event)["kind"])
# Drift is detected by Rollscope itself, so it cannot be pushed.
EVENTS = tuple(kind for kind in KINDS if kind not in ("drift", "source"))
# Fields of `collectors.model.Event`; only `kind` is required.
EVENT_FIELDS = Event.__struct_fields__


class _PushedEvent(Event, frozen=True, forbid_unknown_fields=True):
    """An event as it is pushed: a key is made of the others if there is none."""

    key: Annotated[str, Meta(max_length=200, description="a text of at most 200 characters")] = ""


_events = msgspec.json.Decoder(_PushedEvent)


def event(line: bytes, now: float) -> Event:
    """Returns one validated event; raises ValueError with a message for the client."""
    given = read(line, _events, _check_kind)
    kind, key, version, ts = given.kind, given.key, given.version, given.ts
    if kind not in EVENTS:
        raise ValueError(f"kind must be one of {', '.join(EVENTS)}")
    if ts is not None and ts > now + AHEAD_SECONDS:
        raise ValueError(f"ts must be {_requirement(Event, ['ts'])}")
    if kind in BEGINS and ts is None and not key:  # a repeated request would begin another incarnation
        raise ValueError(f"a {kind} needs ts or key, so that a repeated request is the same event")
    ts = ts if ts is None else round(ts * 1000) / 1000
    key = key or _key(kind, version, ts if ts is not None or version is not None else now)
    return Event(kind, key, ts if ts is not None else now, given.detail[:DETAIL_LENGTH], version)


def _check_kind(item: dict[str, Any]) -> None:
    if item.get("kind") not in EVENTS:
        raise ValueError(f"kind must be one of {', '.join(EVENTS)}")


def _key(kind: str, version: int | None, ts: float | None) -> str:
    """Returns the key of an event without one, so that a repeated request is the same event."""
    return ":".join(
        [kind, *([f"v{version}"] if version is not None else []), *([f"{ts:.3f}"] if ts is not None else [])]
    )


# ---- sandboxes
# A wrapper of a provider's `create()` sends one line at the request, one when the sandbox is ready, one at its end. The
# newest record of an id wins; times of earlier records are retained.


class _PushedSandbox(Sandbox, frozen=True, forbid_unknown_fields=True):
    """A sandbox as it is pushed, after `_complete`."""


def sandbox(line: bytes, now: float) -> Sandbox:
    """Returns one validated sandbox; raises ValueError with a message for the client."""
    item = _object(line)
    _complete(item)
    return Sandbox(*structs.astuple(converted(item, _PushedSandbox)))


def _complete(item: dict[str, Any]) -> None:
    """Adds what follows from the record: provider, state, cause and clock. Only `id` is required."""
    item.setdefault("provider", "pushed")
    if item.get("cause"):
        state = "failed"
    elif item.get("ended_at") is not None:
        state = "terminated"
    else:
        state = "running" if item.get("ready_at") is not None else "starting"
    item.setdefault("state", state)
    if item["state"] == "failed" and not item.get("cause"):
        # The wrapper sends the text of the exception; collectors classify the same texts.
        item["cause"] = cause_of(str(item.get("detail", "")))
    if item.get("ready_at") is not None:
        item.setdefault("latency_source", "client")


_MAKE: Mapping[Kind, Callable[[bytes, float], Any]] = {"rollouts": rollout, "events": event, "sandboxes": sandbox}
_CHECKS: Mapping[Kind, Callable[[bytes, float], Any]] = {**_MAKE, "rollouts": _check_rollout}
