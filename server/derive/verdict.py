"""The verdict of one run, beside its signals: judged at every tick, written in the tick's own batch.

What the rules remember, and the newest verdict whole, are a state of the run; a change of outcome or cause is a row
of its history; the outcome is the signal `bottleneck`. All three go with the points that led to them.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import floor
from typing import Any

from server.derive.deriver import Deriver
from server.derive.results import SignalResults
from server.signals.aggregates import row_limit
from server.signals.model import STEP_WINDOW, Unknown, Value
from server.store.types import Batch, VerdictRow
from server.verdict.judge import Memory, remember
from server.verdict.model import RULES_VERSION, VERDICT_OUTCOMES, Verdict, VerdictInput

log = logging.getLogger("rollscope.verdict")

STATE = "verdict"
# The same while history is worked off and readers are shown the present (`server.scrape.recent_first`).
HISTORY = "history:"
SIGNAL = "bottleneck"
# A verdict that stays is a point a minute, not twelve: it is as old as a tick's number may be (`TICK_STALE_SECONDS`).
BEAT_SECONDS = 60.0
# Memory and verdict together: some kB at most; what grows beyond this would grow for ever.
STATE_BYTES = 262_144
# The verdict of a run that is over stands as of its end.
OVER = ("finished", "crashed")

Judge = Callable[[Memory | None, VerdictInput], tuple[Memory, Verdict]]


class VerdictTracker:
    """The verdict of one run over time. Single-threaded, like the driver that owns it.

    Args:
        judge: (memory, what is seen) -> (memory, verdict); it may raise, and is then unknown.
    """

    def __init__(self, run: str, judge: Judge | None = None) -> None:
        self._run, self._judge = run, judge or remember
        self._memory: Memory | None = None
        # Of the newest verdict: what a rule that fails again and again goes on from.
        self._said: tuple[str, float | None] = ("", None)
        self._key: tuple[str, str] | None = None
        self._as_of: float | None = None
        self._text = ""
        # What `_text` is not made of yet: while history is worked off, only the newest is stored.
        self._unsaved: tuple[Memory | None, Verdict, float] | None = None
        self._told: set[str] = set()

    # ---- at every tick

    def tick(self, now: float, deriver: Deriver, answers: SignalResults, batch: Batch, *, replayed: bool) -> None:
        """Judge at `now`, what the signals answered is known; what changed goes into the batch."""
        before = self._as_of
        if before is not None and (now <= before or deriver.lifecycle in OVER):
            return
        if before is not None and now - before > row_limit(deriver.book):
            self._gap(before + row_limit(deriver.book), answers, batch, replayed)
        verdict = self._ask(_seen(now, deriver, answers), replayed)
        self._as_of, self._said = now, (verdict.summary, verdict.since)
        changed = self._note(now, verdict, batch, replayed)
        if changed or before is None or floor(now / BEAT_SECONDS) != floor(before / BEAT_SECONDS):
            answers.write([(SIGNAL, now, list(_values(verdict)))], batch)
        else:
            answers.stand(SIGNAL, now)

    def _gap(self, ts: float, answers: SignalResults, batch: Batch, replayed: bool) -> None:
        """Nobody looked for longer than a step may take: what was said before did not stand all that time."""
        words = "nothing was collected for this run"
        self._note(ts, Verdict("unknown", "incomplete", since=ts, summary=words), batch, replayed)
        answers.write([(SIGNAL, ts, Unknown(words))], batch)

    def _note(self, ts: float, verdict: Verdict, batch: Batch, replayed: bool) -> bool:
        """A row when it is another outcome or cause than before."""
        if verdict.key == self._key:
            return False
        self._key = verdict.key
        since = ts if verdict.since is None else verdict.since
        row = VerdictRow(
            round(ts * 1000), round(since * 1000), verdict.outcome, verdict.cause, verdict.rule, verdict.confidence,
            verdict.rules_version, replayed, json.dumps(verdict.to_json()),
        )  # fmt: skip
        batch.verdicts.append(row)
        return True

    # ---- asking

    def _ask(self, seen: VerdictInput, replayed: bool) -> Verdict:
        try:
            memory, verdict = self._judge(self._memory, seen)
            if replayed and verdict.outcome in VERDICT_OUTCOMES:
                # Of thousands of verdicts in history only the newest is stored: a quarter of their cost was JSON.
                self._memory, self._unsaved = memory, (memory, verdict, seen.now)
                return verdict
            text = _stored(memory, verdict, seen.now)
        except Exception as error:  # noqa: BLE001 - the same tick would fail for ever; the run goes on without it
            return self._fault(type(error).__name__, error, seen.now)
        if len(text) > STATE_BYTES:
            return self._fault(f"more than {STATE_BYTES:,} bytes of state", None, seen.now)
        self._memory, self._text, self._unsaved = memory, text, None
        return verdict

    def _fault(self, what: str, error: Exception | None, now: float) -> Verdict:
        """Unknown, with what failed; what was remembered before stays."""
        if what not in self._told:
            self._told.add(what)
            log.error("run %s: the verdict could not be computed: %s", self._run, error or what, exc_info=error)
        words = f"the verdict could not be computed ({what}); the server's log has the full error"
        since = self._said[1] if self._said[0] == words else now
        verdict = Verdict("unknown", "incomplete", since=since, summary=words)
        self._text, self._unsaved = _stored(self._memory, verdict, now), None
        return verdict

    # ---- surviving a restart

    def states(self) -> Mapping[str, tuple[int, str]]:
        """Memory and newest verdict as JSON, under the rules' version."""
        if self._unsaved is not None:
            unsaved, self._unsaved = self._unsaved, None
            try:
                self._text = _stored(*unsaved)
            except ValueError as error:  # a number that is not finite: the stored verdict stays
                self._fault(type(error).__name__, error, unsaved[2])
        return {STATE: (RULES_VERSION, self._text)} if self._text else {}

    def restore(self, states: Mapping[str, tuple[int, str]]) -> None:
        """Take them back; those of other rules begin anew, and their first verdict is a row of its own."""
        version, text = states.get(STATE, (0, ""))
        if version != RULES_VERSION:
            return
        stored: dict[str, Any] = json.loads(text)
        verdict, self._text = stored["verdict"], text
        self._memory, self._as_of = stored["memory"], stored["as_of"]
        self._key = verdict["outcome"], verdict["cause"] or ""
        self._said = verdict["summary"], verdict["since"]


def _seen(now: float, deriver: Deriver, answers: SignalResults) -> VerdictInput:
    return VerdictInput(
        now=now,
        mode=deriver.mode,
        lifecycle=deriver.lifecycle,
        facts=deriver.facts,
        signals=answers.now(),
        targets=tuple(deriver.health.values()),
        stale=partial(answers.stale, now),
        running_since=deriver.running_since,
        steps=tuple(deriver.book.last(STEP_WINDOW)),
    )


def _stored(memory: Memory | None, verdict: Verdict, now: float) -> str:
    """What is kept, as JSON; `ValueError` for what is no verdict, or no JSON (a number that is not finite)."""
    if verdict.outcome not in VERDICT_OUTCOMES:
        raise ValueError(f"no outcome is named {verdict.outcome!r}")
    return json.dumps({"memory": memory, "verdict": verdict.to_json(), "as_of": now}, allow_nan=False)


def _values(verdict: Verdict) -> Iterator[Value]:
    for outcome in VERDICT_OUTCOMES:
        yield Value(float(outcome == verdict.outcome), (("verdict", outcome),))
