"""TensorBoard's `TensorboardEvent` message: the scalars it holds, and a configuration logged as text or as hparams.

Numbers of fields are those of tensorboard/compat/proto/{event,summary,tensor}.proto and of
tensorboard/plugins/hparams/plugin_data.proto (tensorboard 2.21.0).
"""

import math
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from collectors.formats import jsonl, protobuf

# A configuration of a thousand settings is 40 kB; completions and samples logged as text are more, and no use.
TEXT_BYTES = 256 << 10
# The transformers callback logs the training arguments under this name; they are the configuration itself.
ARGUMENTS = "args"

# DataType of a tensor -> the field with its values where they are not in tensor_content, and one value's format there.
_NUMBERS = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
# An event of one simple_value, as nearly all are: time, step, and lengths of summary, value and tag of one byte each.
_PLAIN = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\0-\x7f]))?\x2a([\0-\x7f])\x0a([\0-\x7f])\x0a([\0-\x7f])(.*)\x15(.{4})",
    re.DOTALL,
)


@dataclass(slots=True)
class TensorboardEvent:
    """One event: its time (epoch seconds, None where it has none), its step, and what it holds for us."""

    ts: float | None = None
    step: int = 0
    scalars: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def event(payload: bytes) -> TensorboardEvent:
    """An `TensorboardEvent`: wall_time = 1, step = 2, summary = 5.

    Raises:
        ValueError: no protobuf message.
    """
    plain = _PLAIN.fullmatch(payload)
    return (_plain(*plain.groups()) if plain is not None else None) or general(payload)


def _plain(
    ts: bytes, step: bytes | None, summary: bytes, value: bytes, size: bytes, tag: bytes, figure: bytes
) -> TensorboardEvent | None:
    """The parts of a plain event, or None when the lengths say that it only looks like one. Half of the time saved."""
    length = len(tag)
    if size[0] != length or value[0] != length + 7 or summary[0] != length + 9:
        return None
    number = protobuf.signed(protobuf.varint(step, 0)[0]) if step is not None else 0
    return TensorboardEvent(_time(ts), number, {protobuf.text(tag): protobuf.single(figure)})


def _time(data: bytes) -> float | None:
    ts = protobuf.double(data)
    return ts if math.isfinite(ts) and ts > 0 else None


def general(payload: bytes) -> TensorboardEvent:
    """Any event, field by field; raises as `event`."""
    found = TensorboardEvent()
    for number, kind, value, data in protobuf.fields(payload):
        if number == 5 and kind == protobuf.BYTES:
            _summary(data, found)
        elif number == 1 and kind == protobuf.FIXED64:
            found.ts = _time(data)
        elif number == 2 and kind == protobuf.VARINT:
            found.step = protobuf.signed(value)
    return found


def _summary(data: bytes, found: TensorboardEvent) -> None:
    for number, kind, _, value in protobuf.fields(data):
        if number == 1 and kind == protobuf.BYTES:
            _value(value, found)


def _value(data: bytes, found: TensorboardEvent) -> None:
    """A Summary.Value: tag = 1, simple_value = 2, tensor = 8, metadata = 9."""
    tag, tensor, metadata = "", b"", b""
    figure: float | None = None
    for number, kind, _, value in protobuf.fields(data):
        if number == 1 and kind == protobuf.BYTES:
            tag = protobuf.text(value)
        elif number == 2 and kind == protobuf.FIXED32:
            figure = protobuf.single(value)
        elif number == 8 and kind == protobuf.BYTES:
            tensor = value
        elif number == 9 and kind == protobuf.BYTES:
            metadata = value
    if tensor or metadata:
        figure = _other(tag, tensor, metadata, found, figure)
    if figure is not None:
        found.scalars[tag] = figure


def _other(tag: str, tensor: bytes, metadata: bytes, found: TensorboardEvent, figure: float | None) -> float | None:
    """What a value is whose metadata or tensor says so; SummaryMetadata.plugin_data = 1: name = 1, content = 2."""
    plugin = _parts(_parts(metadata).get(1, b""))
    name = plugin.get(1, b"")
    if name == b"hparams":
        found.config |= _hparams(plugin.get(2, b""))
    elif tensor and name == b"text":
        found.config |= _text(tag, tensor)
    elif tensor and name in (b"", b"scalars"):
        # Tensors of other plugins (histograms, curves) are no scalars even when they have one element.
        return _number(tensor)
    return figure


def _parts(message: bytes) -> dict[int, bytes]:
    """The strings and messages in a message, by field; of repeated ones the last."""
    return {number: data for number, kind, _, data in protobuf.fields(message) if kind == protobuf.BYTES}


def _number(tensor: bytes) -> float | None:
    """The one number of a TensorProto (dtype = 1, tensor_content = 4), or None when it has none or several."""
    dtype, values = 0, []
    fields = list(protobuf.fields(tensor))
    dtype = next((value for number, kind, value, _ in fields if (number, kind) == (1, protobuf.VARINT)), 0)
    own, form = _NUMBERS.get(dtype, (0, ""))
    for number, kind, value, data in fields:
        if number == 4 or (number == own and form in ("<f", "<d")):
            values += [float(one) for (one,) in struct.iter_unpack(form, data)] if form and _fits(data, form) else []
        elif number == own and form:
            whole = protobuf.varints(data) if kind == protobuf.BYTES else [value]
            values += [float(protobuf.signed(one)) for one in whole]
    return values[0] if len(values) == 1 else None


def _fits(data: bytes, form: str) -> bool:
    return len(data) == struct.calcsize(form)


def _text(tag: str, tensor: bytes) -> dict[str, Any]:
    """A text (string_val = 8) that is a JSON object, as configuration: the training arguments flat, others by name."""
    content = _parts(tensor).get(8, b"").strip()
    if not content.startswith(b"{") or len(content) > TEXT_BYTES:
        return {}
    settings = jsonl.parse(content)
    if settings is None:
        return {}
    name = tag.removesuffix("/text_summary")
    return settings if name == ARGUMENTS else {name: settings}


def _hparams(content: bytes) -> dict[str, Any]:
    """HParamsPluginData.session_start_info = 3: map hparams = 1 of (key = 1, google.protobuf.Value = 2)."""
    found: dict[str, Any] = {}
    start = _parts(content).get(3, b"")
    for number, kind, _, entry in protobuf.fields(start):
        if number == 1 and kind == protobuf.BYTES:
            parts = _parts(entry)
            found[protobuf.text(parts.get(1, b""))] = _setting(parts.get(2, b""))
    return found


def _setting(value: bytes) -> Any:
    """A google.protobuf.Value: number = 2, string = 3, bool = 4; lists and groups are not written as hparams."""
    for number, _, flag, data in protobuf.fields(value):
        if number == 2:
            figure = protobuf.double(data)
            # Every number is a double there, and "8.0 samples" would not be what was configured.
            return int(figure) if figure.is_integer() else figure
        if number in (3, 4):
            return protobuf.text(data) if number == 3 else bool(flag)
    return None
