"""miles' lifecycle events as rollouts: what each sample did, attempt by attempt (miles/dashboard/hooks.py:170).

``{ts, kind, sample_index, group_index, turn, weight_version, detail}``: an attempt begins (and waits for a slot), its
first generation begins, generations and tools follow as pairs per turn (-1: of the attempt), it ends with a status.
Each change emits the whole record, so that the last record is complete.

The state of samples in flight is in the cursor, also of aborted ones, because a partial rollout continues later.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.shapes import whole
from collectors.model import Rollout, Span, Turn
from collectors.transport import rest

# Limits of the state in the cursor, because the cursor is stored with every poll. Samples in flight.
MAX_SAMPLES = 4_000
# Spans of one sample.
MAX_SPANS = 24
# Turns of one sample.
MAX_TURNS = 200
KINDS = frozenset({"attempt_start", "gen_start", "gen_end", "tool_start", "tool_end", "attempt_end"})
ABORTED, TRUNCATED, FAILED = "aborted", "truncated", "failed"

# Aborted samples continue before other samples begin; one that did not within this time never continues.
GIVEN_UP_SECONDS = 300.0

SampleStates = dict[str, dict[str, Any]]
"""Sample -> ``at`` (dispatched), ``on`` (first generation), ``spans`` as in `Span`, ``turns`` as version and tokens,
``tries`` (attempts), ``late``: the version of its last turn is still to come, ``left``: when it was
aborted, ``group``."""


class Attempts:
    """Samples in flight, in the order of their begin."""

    def __init__(self, samples: Mapping[str, dict[str, Any]], group_size: int | None) -> None:
        # A deep copy, because the caller's cursor must not change.
        self._samples: SampleStates = copy.deepcopy(dict(samples))
        aborted = sorted((state["left"], key) for key, state in samples.items() if state["left"] is not None)
        self._aborted = {key: left for left, key in aborted}
        self._group_size = group_size
        self._changed: dict[str, Rollout] = {}
        self.newest: int | None = None

    def take(self, event: Mapping[str, Any]) -> bool:
        """Adds one event; False for other rows."""
        kind, ts, sample_index = event.get("kind"), number(event.get("ts")), whole(event.get("sample_index"))
        if not isinstance(kind, str) or kind not in KINDS or ts is None or sample_index is None:
            return False
        key, fresh = str(sample_index), str(sample_index) not in self._samples
        state = self._samples.setdefault(key, copy.deepcopy(_UNKNOWN))
        group, version = whole(event.get("group_index")), _digits(event.get("weight_version"))
        state["group"] = group if group is not None else state["group"]
        self.newest = max(
            (known_version for known_version in (self.newest, version) if known_version is not None), default=None
        )
        if kind == "attempt_start":
            self._begins(key, ts, fresh=fresh)
        _note(state, kind, ts, event)
        status = str(event.get("detail", "")) if kind == "attempt_end" else None
        if status == ABORTED:
            state["left"] = self._aborted[key] = ts
            _open(state["spans"], "suspended", ts)
        self._changed[key] = _rollout(key, state, self._group_size)
        if status is not None and status != ABORTED:
            self._changed[key] = _left(self._changed[key], ts, status)
            del self._samples[key]
        return True

    def _begins(self, key: str, ts: float, *, fresh: bool) -> None:
        """An attempt begins: an aborted sample continues, or a new one begins, after aborted ones that gave up."""
        self._samples[key]["left"] = None
        self._aborted.pop(key, None)
        while fresh and self._aborted:
            oldest, left = next(iter(self._aborted.items()))
            if left > ts - GIVEN_UP_SECONDS:
                return
            del self._aborted[oldest]
            state = self._samples.pop(oldest)
            _close(state["spans"], "suspended", left)
            self._changed[oldest] = _left(_rollout(oldest, state, self._group_size), left, ABORTED)

    def samples(self) -> SampleStates:
        """The state for the cursor: the newest samples."""
        return dict(list(self._samples.items())[-MAX_SAMPLES:])

    def rollouts(self) -> list[Rollout]:
        """The changed rollouts."""
        return list(self._changed.values())


_UNKNOWN: dict[str, Any] = {
    "at": None, "on": None, "spans": [], "turns": [], "tries": 0, "late": False, "left": None, "group": None,
}  # fmt: skip


def _rollout(key: str, state: dict[str, Any], group_size: int | None) -> Rollout:
    group = state["group"]
    turns: list[list[int | None]] = state["turns"]
    known_versions = [version for version, _ in turns if version is not None]
    tokens = [count for _, count in turns if count is not None]
    complete = bool(turns) and len(known_versions) == len(tokens) == len(turns)
    return Rollout(
        rollout_id=key,
        group_id=str(group) if group is not None else "",
        group_size=group_size if group is not None else None,
        attempt=state["tries"] or None,
        purpose="train",
        version_start=known_versions[0] if known_versions else None,
        token_versions=_token_versions(turns) if complete else (),
        dispatched_at=state["at"],
        started_at=state["on"],
        response_tokens=sum(tokens) if turns and len(tokens) == len(turns) else None,
        turns=tuple(Turn(version=version) for version, _ in turns),
        turn_count=len(turns) or None,
        spans=_spans(state),
    )


def _left(rollout: Rollout, ts: float, status: str) -> Rollout:
    versions = [turn.version for turn in rollout.turns if turn.version is not None]
    return replace(
        rollout,
        finished_at=ts,
        version_finish=versions[-1] if versions else None,
        truncated=status == TRUNCATED if status else None,
        exit="aborted_oversample" if status == ABORTED else None,
        error=FAILED if status == FAILED else "",
    )


def _token_versions(turns: list[list[int | None]]) -> tuple[tuple[int, int], ...]:
    runs = groupby(turns, key=lambda turn: turn[0])
    return tuple((version or 0, sum(tokens or 0 for _, tokens in run)) for version, run in runs)


def _spans(state: dict[str, Any]) -> tuple[Span, ...]:
    return tuple(Span(*span) for span in state["spans"])


def _note(state: dict[str, Any], kind: str, ts: float, event: Mapping[str, Any]) -> None:
    """Adds an event to the state of a sample."""
    version, tokens = _digits(event.get("weight_version")), _digits(event.get("detail"))
    spans: list[list[Any]] = state["spans"]
    if state["late"]:
        # The multi-turn function reports a turn's end before it copies the engine's answer, which has the version.
        state["turns"][-1][0], state["late"] = version, False
        last = next((span for span in reversed(spans) if span[0] == "generate"), None)
        if last is not None and last[3] is None:
            last[3] = version
    if kind == "attempt_start":
        state["at"], state["tries"] = state["at"] if state["at"] is not None else ts, state["tries"] + 1
        _close(spans, "suspended", ts)
        _open(spans, "queued", ts)
    elif kind == "gen_start":
        state["on"] = state["on"] if state["on"] is not None else ts
        _close(spans, "queued", ts)
        if spans and spans[-1][0] == "generate" and spans[-1][2] is None:
            spans.pop()  # the attempt's own span: its turns follow, with their own times
        _open(spans, "generate", ts)
    elif kind == "gen_end":
        state["late"] = tokens is not None
        _close(spans, "generate", ts, None if state["late"] else version)
        state["turns"] = [*state["turns"], [None if state["late"] else version, tokens]][:MAX_TURNS]
    elif kind == "tool_start":
        _open(spans, "tool", ts)
    elif kind == "tool_end":
        _close(spans, "tool", ts)
    else:
        _ended(state, ts, version)


def _ended(state: dict[str, Any], ts: float, version: int | None) -> None:
    """An attempt's end closes open spans; a generation without turns counts as one turn."""
    if any(span[0] == "generate" and span[2] is None for span in state["spans"]):
        state["turns"] = [*state["turns"], [version, None]][:MAX_TURNS]
    for kind in {span[0] for span in state["spans"] if span[2] is None}:
        _close(state["spans"], kind, ts, version if kind == "generate" else None)


def _open(spans: list[list[Any]], kind: str, ts: float) -> None:
    if len(spans) < MAX_SPANS:
        spans.append([kind, ts, None, None])


def _close(spans: list[list[Any]], kind: str, ts: float, version: int | None = None) -> None:
    for span in reversed(spans):
        if span[0] == kind and span[2] is None:
            span[2], span[3] = ts, version
            return


def _digits(value: Any) -> int | None:
    """Versions and counts are texts, empty if unknown."""
    text = rest.text(value, 20)
    return int(text) if text.isascii() and text.isdigit() else None
