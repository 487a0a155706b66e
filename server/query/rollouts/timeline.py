"""Builds a rollout's timeline from its spans, else from the times of its record. Pure; times are epoch seconds."""

from collections.abc import Iterator, Sequence

from collectors.model import Rollout, Sandbox
from server.store.types import RolloutRow

Bar = tuple[str, float, float | None, int | None, str]
"""(kind, start, end; None: it lasts, policy version if reported, detail)."""

# In flight: the bar that still grows.
_OPEN = {
    "waiting_slot": "queued", "booting": "boot", "generating": "generate", "in_tool": "generate", "scoring": "scoring",
    "waiting_group": "waiting_group", "queued": "in_queue", "gated": "suspended",
}  # fmt: skip


def timeline(row: RolloutRow, boxes: Sequence[Sandbox]) -> tuple[Bar, ...]:
    """Bars by start, with the boots of the rollout's sandboxes if its own spans have none."""
    record = row.record
    reported: list[Bar] = [(span.kind, span.start, span.end, span.version, span.detail) for span in record.spans]
    bars = reported or list(_derived_bars(row))
    if not any(kind == "boot" for kind, *_ in bars):
        bars += _boots(boxes)
    return tuple(sorted(bars, key=lambda bar: (bar[1], bar[0])))


def _boots(boxes: Sequence[Sandbox]) -> Iterator[Bar]:
    for box in boxes:
        if box.requested_at is None:
            continue
        end = box.ready_at if box.ready_at is not None else box.ended_at
        if end is None or end >= box.requested_at:
            yield ("boot", box.requested_at, end, None, box.id)


def _derived_bars(row: RolloutRow) -> Iterator[Bar]:
    record, open_kind = row.record, _OPEN.get(row.state, "")
    used = [use.at for use in record.consumptions if use.at is not None]
    after_score = _last(record.scored_at, record.finished_at)
    phases = (
        ("queued", record.dispatched_at, record.started_at),
        ("generate", _begun(record), record.finished_at),
        ("scoring", record.finished_at, record.scored_at),
        ("waiting_group", after_score, record.group_complete_at),
        ("in_queue", _last(record.group_complete_at, after_score), min(used, default=None)),
    )
    for kind, start, end in phases:
        if start is None or (end is None and kind != open_kind) or (end is not None and end < start):
            continue
        if kind == "generate":
            yield from _generated(record, start, end)
        elif end is None or end > start:
            yield (kind, start, end, None, "")


def _last(*times: float | None) -> float | None:
    """The first time that is reported; the times are given latest first."""
    return next((at for at in times if at is not None), None)


def _begun(record: Rollout) -> float | None:
    return _last(record.started_at, record.first_token_at)


def _generated(record: Rollout, start: float, end: float | None) -> Iterator[Bar]:
    """Prefill to the first token; then one bar per policy version, as wide as its share of the tokens."""
    first = record.first_token_at
    if first is not None and start < first and (end is None or first <= end):
        yield ("prefill", start, first, record.version_start, "")
        start = first
    pairs = [(version, tokens) for version, tokens in record.token_versions if tokens > 0]
    total = sum(tokens for _, tokens in pairs)
    if end is None or not total:
        version = record.version_start if record.version_start == record.version_finish or end is None else None
        yield ("generate", start, end, version, "")
        return
    done = 0
    for version, tokens in pairs:
        begin = start + (end - start) * done / total
        done += tokens
        yield ("generate", begin, start + (end - start) * done / total, version, f"{tokens} tokens")
