"""Collects the points of the drift watch, one per step, and keeps their tracks. Pure.

A point is the trainer's logged value of a step. Without one it is the mean over the rollouts that a version consumed;
prefill to decode also uses the engines' counters. Each step counts once, whatever the order of its rows and however
often they are read. The newest incarnation of the trainer wins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.signals.drift_detector import DriftWatch, Point
from server.signals.model import View
from server.signals.tick_windows import grown
from server.signals.window import KEPT_STEPS, StepKey

CUT = "truncation_ratio"
_CUT: StepKey = (CUT, ())
ENGINES = ("generator_prompt_tokens_total", "generator_tokens_total")
# Seconds. The engines' counters are read over five minutes; closer points would count the same tokens twice.
APART_SECONDS = 300.0
# Points that may still change. The rows of one step arrive within a few steps of each other.
LATE_STEPS = 8
# Environments that are watched at most, because each costs time at every step.
MOST_ENVIRONMENTS = 16


@dataclass(frozen=True, slots=True)
class Watched:
    """A behaviour that may drift.

    Attributes:
        of: its name, as in ``drift_since_step{of=...}``.
        title: its name at the start of a sentence.
        logged: the trainer's metric.
        by: the metric that divides it, "" for none.
        recorded: the field of a rollout record, "" where records have none.
        counted: the engines' counters are used where the trainer logs nothing.
    """

    of: str
    title: str
    logged: str
    by: str = ""
    recorded: str = ""
    counted: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.logged, *((self.by,) if self.by else ()), CUT)


RESPONSE_LENGTH = Watched("response_length", "response length", "response_tokens_mean", recorded="response_tokens")
TURNS = Watched("turns", "turns", "turns_mean", recorded="turns")
TOOL_CALLS = Watched("tool_calls", "tool calls", "tool_calls_mean", recorded="tool_calls")
PREFILL_DECODE = Watched(
    "prefill_decode", "prefill to decode", "prompt_tokens_mean", by="response_tokens_mean", counted=True
)
WATCHED = (RESPONSE_LENGTH, TURNS, TOOL_CALLS, PREFILL_DECODE)


@dataclass(frozen=True, slots=True)
class DriftPoints:
    """Points of one series at one instant. ``basis``: log, records or engines."""

    basis: str
    life: int
    points: Sequence[Point]


# A track changes its basis only to the right. The log of a new incarnation begins later than its records.
_BASES = ("engines", "records", "log")


@dataclass(slots=True, eq=False)
class Track:
    """One series: the watch of all but the newest points, and the newest points."""

    basis: str
    life: int
    watch: DriftWatch
    # In the order of steps.
    pending: dict[int, Point] = field(default_factory=dict)
    # The watch with all pending points, or None when it is outdated. A step usually adds one point to it.
    _ahead: DriftWatch | None = None

    def take(self, new: DriftPoints) -> None:
        """Add new points, and new values of points that may still change."""
        if new.life < self.life:
            return
        if new.life > self.life and new.points:
            self._rewind(new.life, new.points[0][0])
        last, pending = self.watch.last, self.pending
        for point in new.points:
            step = point[0]
            if step <= last or pending.get(step) == point:
                continue
            if not pending or step > next(reversed(pending)):
                pending[step] = point
                if self._ahead is not None:
                    self._ahead.add(point)
            else:
                pending[step] = point
                self.pending = pending = dict(sorted(pending.items()))
                self._ahead = None
        while len(pending) > LATE_STEPS:
            self.watch.add(pending.pop(next(iter(pending))))

    def _rewind(self, life: int, step: int) -> None:
        """Drop the points from ``step`` on, because a later incarnation repeats those steps."""
        self.life = life
        self.pending = {at: point for at, point in self.pending.items() if at < step}
        self.watch.rewind(step)
        self._ahead = None

    @property
    def newest(self) -> Point | None:
        if self.pending:
            return self.pending[next(reversed(self.pending))]
        return self.watch.recent[-1] if self.watch.recent else None

    def now(self) -> DriftWatch:
        """The watch with all points. Valid until the next `take`; read-only."""
        if self._ahead is None:
            self._ahead = DriftWatch.load(self.watch.saved())
            for point in self.pending.values():
                self._ahead.add(point)
        return self._ahead

    def saved(self) -> list[Any]:
        """As JSON."""
        return [self.basis, self.life, self.watch.saved(), list(self.pending.values())]

    @classmethod
    def load(cls, saved: Sequence[Any]) -> "Track":
        basis, life, watch, pending = saved
        return cls(basis, life, DriftWatch.load(watch), {point[0]: point for point in pending})


class Tracks(dict[str, Track]):
    """Tracks by environment; "" is the run's own. A type of its own because the JSON of a memory is a dict too."""


@dataclass(slots=True)
class Followed:
    """The tracks of one behaviour with the points of one view.

    Attributes:
        tracks: the memory of every signal that watches the behaviour. Signals share the object.
        shown: what those signals make of the tracks; filled by the first of them.
    """

    tracks: Tracks
    shown: Any = None


def followed(memory: Mapping[str, Any] | None, view: View, watched: Watched) -> Followed:
    """Bring the tracks in ``memory`` up to the view.

    Several signals remember the same tracks: equal memories of one view become one object, which is updated once.
    """
    made: list[tuple[Mapping[str, Any] | None, Followed]] = view.once(f"tracks:{watched.of}", lambda _: [])
    for before, result in made:
        if before is memory or before == memory:
            return result
    result = Followed(_tracks(memory, view, watched))
    made.append((memory, result))
    return result


def _tracks(memory: Mapping[str, Any] | None, view: View, watched: Watched) -> Tracks:
    tracks: Tracks = memory if isinstance(memory, Tracks) else Tracks()
    if memory and tracks is not memory:
        tracks.update({name: Track.load(saved) for name, saved in memory.items()})
    for name, new in _points(view, watched, tracks).items():
        track = tracks.get(name)
        if track is None and len(tracks) > MOST_ENVIRONMENTS:
            continue
        if track is None or _BASES.index(new.basis) > _BASES.index(track.basis):
            track = tracks[name] = Track(new.basis, new.life, DriftWatch())
        if new.basis == track.basis:
            track.take(new)
    return tracks


# ---- where points come from


def _points(view: View, watched: Watched, tracks: Tracks) -> dict[str, DriftPoints]:
    points = _records(view, watched) if watched.recorded else {}
    own = tracks.get("")
    logged = _log(view, watched, own)
    if logged is not None:
        return {**points, "": logged}
    counted = _engines(view, own) if watched.counted and "" not in points else None
    return points | ({"": counted} if counted is not None else {})


def _log(view: View, watched: Watched, track: Track | None) -> DriftPoints | None:
    """Points of the log that are not final in the track; all points for another incarnation or basis."""
    keys = [(name, ()) for name in (watched.logged, watched.by) if name]
    rows = view.steps.rows(*keys, count=KEPT_STEPS, until=view.now)
    if not rows:
        return None
    life, after = rows[-1].incarnation, -1
    if track is not None and track.basis == "log" and track.life == life:
        after = track.watch.last
    cut = view.steps.rows(_CUT, count=KEPT_STEPS, until=view.now)
    other = None if cut and cut[-1] is rows[-1] else {row.number: row.values[_CUT] for row in cut}
    points = []
    for row in reversed(rows):
        number, values = row.number, row.values
        if number <= after:
            break
        value, by = values[keys[0]], values[keys[1]] if watched.by else 1.0
        if by > 0:
            # Another axis may log the share that is cut.
            points.append((number, row.ts, value / by, values.get(_CUT) if other is None else other.get(number)))
    return DriftPoints("log", life, points[::-1])


def _records(view: View, watched: Watched) -> dict[str, DriftPoints]:
    """Means over the rollouts that a version consumed, by environment; over all rollouts where none is named.

    The newest version is left out, because it may still grow.
    """
    if not view.rollouts.met:
        return {}
    window = view.rollouts.window(view.now)
    found: dict[str, list[Point]] = {}
    for life, version in window.versions[:-1]:
        for name, values in view.rollouts.version((life, version)).by_environment(window.sampled).items():
            count, total = values.get(watched.recorded, (0, 0.0))
            if count:
                ts = view.rollouts.span([(life, version)], view.now)[1]
                found.setdefault(name, []).append((version, ts, total / count, None))
    named = {name: points for name, points in found.items() if name}
    return {name: DriftPoints("records", window.versions[-1][0], points) for name, points in (named or found).items()}


def _engines(view: View, track: Track | None) -> DriftPoints | None:
    """Point of the view's step, if no earlier point contains the engines' last five minutes."""
    step = view.steps.newest_of_all()
    if step is None or step.ts != view.now:
        return None
    newest = track.newest if track is not None and track.life == step.incarnation else None
    if newest is not None and (step.number <= newest[0] or step.ts - newest[1] < APART_SECONDS):
        return None
    prompt, generated = (grown(view, metric) for metric in ENGINES)
    if prompt is None or not generated:
        return None
    return DriftPoints("engines", step.incarnation, [(step.number, step.ts, prompt / generated, None)])
