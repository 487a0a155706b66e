"""AReaL's session traces as rollouts: `session_tracer/**/sessions-r{rank}.jsonl`, a line per sample when it is over.

A line has times and outcome of a sample, but no version, token or reward (1.0.4: utils/perf_tracer.py,
`SessionRecord.to_dict`). Lines come in blocks of `flush_threshold` (256), so the newest are late.

`accepted` samples go to the trainer at an unknown time. `rejected` samples were removed by a filter of the run
(`should_accept_fn`); the file does not name it, so they are ``surplus``. A workflow that returned nothing or raised is
``env_error``.

Task and session ids start again with every process, and the file is appended to. A session with a later submit time
and a lower id begins another incarnation, whose number is part of its ids.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats.shapes import mapping, objects, whole
from collectors.model import Exit, Rollout, Span, SpanKind
from collectors.transport import rest

SPANS_MAX = 2_000
_KINDS: Mapping[str, SpanKind] = {"generate": "generate", "toolcall": "tool", "reward": "scoring"}
_EXITS: Mapping[str, Exit] = {"rejected": "surplus", "dropped": "surplus", "failed": "env_error"}
NOTHING_RETURNED = "returned_none"
STATUSES = ("accepted", "pending", *_EXITS)

SessionState = dict[str, Any]
"""Per file: ``{life, id, at (of the newest session), began (first of this incarnation)}``; JSON-able."""


def new_state() -> SessionState:
    """The state before the first line."""
    return {"life": 0, "id": -1, "at": 0.0, "began": 0.0}


def rollout(row: Mapping[str, Any], state: SessionState, *, sampled: bool) -> Rollout | None:
    """A session's record; None for other rows. ``lives`` is changed in place."""
    task, session, at = whole(row.get("task_id")), whole(row.get("session_id")), rest.epoch(row.get("submit_ts"))
    status = row.get("status")
    if task is None or session is None or at is None or status not in STATUSES:
        return None
    incarnation_name = (
        f"{rest.text(row.get('role'), 40)} r{whole(row.get('rank')) or 0}.{_incarnation(session, at, state)}".strip()
    )
    spans = sorted(_spans(row), key=lambda span: span.start)
    reason = rest.text(row.get("reason"), 200)
    phases = mapping(row, "phases")
    return Rollout(
        f"{incarnation_name} session {session}",
        group_id=f"{incarnation_name} task {task}",
        dispatched_at=at,
        started_at=min((span.start for span in spans), default=None),
        finished_at=_end(spans, "generate", "tool"),
        scored_at=_end(spans, "scoring"),
        group_complete_at=rest.epoch(row.get("finalized_ts")),
        turn_count=len(objects(phases.get("generate"))) or None,
        # Phases that did not run, and phases that the workflow does not trace, are absent.
        tool_calls=len(objects(phases.get("toolcall"))) or None,
        exit="env_error" if reason == NOTHING_RETURNED else _EXITS.get(status),
        error=reason or (status if status in _EXITS else ""),
        sampled=sampled,
        spans=tuple(spans[:SPANS_MAX]),
    )


def _incarnation(session: int, at: float, state: SessionState) -> int:
    """The incarnation of the process that ran a session; late sessions of the previous incarnation may follow."""
    if at > state["at"]:
        if session < state["id"]:
            state.update(life=state["life"] + 1, began=at)
        state.update(id=session, at=at)
    elif at < state["began"] and session > state["id"]:
        return int(state["life"]) - 1
    return int(state["life"])


def _spans(row: Mapping[str, Any]) -> Iterator[Span]:
    for phase, kind in _KINDS.items():
        for phase_record in objects(mapping(row, "phases").get(phase)):
            start = rest.epoch(phase_record.get("start_ts", phase_record.get("start")))
            if start is not None:
                yield Span(kind, start, rest.epoch(phase_record.get("end_ts", phase_record.get("end"))))


def _end(spans: list[Span], *kinds: SpanKind) -> float | None:
    return max((span.end for span in spans if span.kind in kinds and span.end is not None), default=None)
