"""Whether behaviour moved away from the run's first steps."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from collectors.model import Labels
from server.signals.aggregates import grown
from server.signals.drift_detector import MOVED, NEEDED, DriftWatch, Point, trend
from server.signals.model import Answer, Fold, Unknown, Value, View, signal
from server.signals.window import KEPT_STEPS, StepKey

# ---- drift points
# Collects the points of the drift watch, one per step, and keeps their tracks.

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


# ---- drift answers
# Answers of the drift signals: factor against the run's own first steps, step of the change, and slope.

# Share of rollouts at the cap above the baseline's share; the watch band of `truncation_ratio`.
CUT_MORE = 0.10
# Steps. Late rows can move a change point; one within this distance of a listed one is the same.
SAME_STEPS = 10
# Change points that are listed at most.
ANNOUNCED_MOST = 64
NO_BEHAVIOUR = "no response length, turns, tool calls or tokens by step: log them, or give rollout records"
# Key of the list in the stored memory.
ANNOUNCED = "told"


def ratio(memory: Any, view: View, watched: Watched, hint: str) -> tuple[Any, Answer]:
    """(memory, factor of one behaviour against its baseline)."""
    found = followed(memory, view, watched)
    values = [
        Value(math.nan if row.factor is None else row.factor, row.labels, row.text) for row in shown(found, watched)
    ]
    return found.tracks, _unlabelled(values) or Unknown(hint)


def of_all(
    memory: Any, view: View, value: Callable[["Shown"], tuple[float, str]], announce: bool = False
) -> tuple[Any, Answer]:
    """(memory, values of all behaviours by label ``of``). ``announce``: the memory also lists change points."""
    memory, values = memory or {}, []
    tracks: dict[str, Any] = {}
    listed = list(memory.get(ANNOUNCED, ()))
    for watched in WATCHED:
        found = followed(memory.get(watched.of), view, watched)
        tracks[watched.of] = found.tracks
        for row in shown(found, watched):
            number, why = value(row)
            values.append(Value(number, row.labels_of, why))
            if row.watch.changes:
                listed += _unlisted(watched, row.labels, row.watch, listed)
    if announce:
        tracks[ANNOUNCED] = listed[-ANNOUNCED_MOST:]
    return tracks, values or Unknown(NO_BEHAVIOUR)


def _unlabelled(values: list[Value]) -> Answer:
    """A single series without labels and without a value makes the signal Unknown."""
    if len(values) == 1 and not values[0].labels and math.isnan(values[0].value):
        return Unknown(values[0].why)
    return values


@dataclass(frozen=True, slots=True)
class Shown:
    """One series that is shown: its watch, its factor and the text for it.

    Attributes:
        labels_of: the labels with the behaviour's name, for signals with ``{of=...}``.
    """

    labels: Labels
    labels_of: Labels
    watch: DriftWatch
    factor: float | None
    text: str


def shown(found: Followed, watched: Watched) -> list[Shown]:
    """Series by environment where any named environment has a factor; otherwise the run's own series.

    Environments whose records all begin after the run's own first steps do not replace the run's series: they would
    compare with a level to which the run may already have drifted.
    """
    if found.shown is None:
        found.shown = _shown(found.tracks, watched)
    rows: list[Shown] = found.shown
    return rows


def _shown(tracks: Tracks, watched: Watched) -> list[Shown]:
    watches = {name: (watch, watch.factor) for name, track in tracks.items() for watch in (track.now(),)}
    own, own_factor = watches.get("", (None, None))
    until = own.base.last if own is not None and own.base is not None and own_factor is not None else None
    named = any(
        name and factor is not None and (until is None or (watch.base is not None and watch.base.first <= until))
        for name, (watch, factor) in watches.items()
    )
    rows = []
    for name, (watch, factor) in sorted(watches.items(), key=itemgetter(0)):
        if bool(name) == named or "" not in watches:
            labels = (("environment", name),) if name else ()
            labels_of = tuple(sorted((*labels, ("of", watched.of))))
            rows.append(Shown(labels, labels_of, watch, factor, text(watched, watch, factor)))
    return rows


# ---- texts


def text(watched: Watched, watch: DriftWatch, factor: float | None) -> str:
    """Explains a factor, or why there is none."""
    base = watch.base
    if base is None:
        return f"{len(watch.first)} of the {NEEDED} steps needed so far; no action needed"
    where = f"steps {base.first} to {base.last}"
    if factor is None:
        return f"{watched.title}: there were none over {where}, so no factor can be computed"
    against = f"against {base.level:.4g} over {where}"
    if watch.since is None:
        return f"no change {against}" + _cap(watch, factor, watched)
    return f"x{factor:.2g} since step {watch.since[0]}, {against}" + _cap(watch, factor, watched)


def _cap(watch: DriftWatch, factor: float, watched: Watched) -> str:
    """The part of the text about a cap. A cap hides drift, because longer rollouts end at it."""
    before = watch.base.cut if watch.base is not None else None
    now = watch.cut if before is not None and watched.recorded.endswith("tokens") else None
    if now is None or before is None or now - before < CUT_MORE:
        return ""
    cap = f"; {now:.0%} are truncated at the cap, {before:.0%} in the baseline"
    flat = abs(math.log(factor)) < math.log(MOVED) if factor > 0 else False
    return cap + (": the cap hides how much longer they would be" if flat else "")


def since(row: Shown) -> tuple[float, str]:
    """(step at which it left its baseline, text)."""
    return (row.watch.since[0] if row.watch.since is not None else math.nan), row.text


def level(row: Shown) -> tuple[float, str]:
    """(level of the baseline, text)."""
    return (row.watch.base.level if row.watch.base is not None else math.nan), row.text


@dataclass(frozen=True, slots=True)
class Slope:
    """Change per step as a share of the baseline's level, with its 95 % interval."""

    now: float
    low: float
    high: float


def slope(watch: DriftWatch) -> Slope | None:
    """Slope over the last 30 points; None without a baseline."""
    found = trend([(step, value) for step, _, value, _ in watch.recent])
    if found is None or watch.base is None or watch.base.level <= 0:
        return None
    level = watch.base.level
    return Slope(found.slope / level, found.low / level, found.high / level)


def slope_value(row: Shown) -> tuple[float, str]:
    """(slope, text)."""
    watch = row.watch
    found = slope(watch)
    if found is None:
        return math.nan, row.text
    flat = found.low <= 0 <= found.high
    interval = f"between {found.low:+.2%} and {found.high:+.2%} of its baseline per step over {len(watch.recent)} steps"
    return found.now, interval + (": no trend" if flat else "")


# ---- change points, for charts


@dataclass(frozen=True, slots=True)
class Announced:
    """A change point that is listed once. ``ts``: event time of its first step, epoch seconds."""

    of: str
    environment: str
    step: int
    ts: float
    direction: int
    factor: float

    @property
    def message(self) -> str:
        """Text of the mark on a chart."""
        where = f" in {self.environment}" if self.environment else ""
        return f"{self.of.replace('_', ' ')}{where} x{self.factor:.2g} from step {self.step} on"


def _unlisted(watched: Watched, labels: Labels, watch: DriftWatch, listed: list[list[Any]]) -> Iterator[list[Any]]:
    """Change points that are not in the list."""
    name = dict(labels).get("environment", "")
    for change in watch.changes:
        same = (
            abs(change.step - step) <= SAME_STEPS and direction == change.direction
            for of, environment, step, _, direction, _ in listed
            if of == watched.of and environment == name
        )
        if not any(same):
            yield [watched.of, name, change.step, change.ts, change.direction, change.factor]


def announced(memory: Any) -> list[Announced]:
    """The listed change points in the memory of `drift_since_step`, in the order in which they were found."""
    return [Announced(*change) for change in (memory or {}).get(ANNOUNCED, ())]


# ---- signals

# At 1.5 times the initial level, step time and KV ceiling have changed too: as the rule ResponseLengthDrift.
MOVED_FAR = 1.5
_INPUTS = tuple(dict.fromkeys(("trainer_step_seconds", *(name for one in WATCHED for name in one.inputs))))


@signal(
    title="Drift since",
    unit="step",
    actor="generator",
    inputs=_INPUTS,
    cadence="step",
    hint=NO_BEHAVIOUR,
    records=True,
)
@Fold
def drift_since_step(memory: Any, view: View) -> tuple[Any, Answer]:
    """Step at which a behaviour left its initial level permanently (response_length, turns, tool_calls, prefill_decode;
    two-sided Page-Hinkley test and at least 16% away); unknown if it has not.
    """
    return of_all(memory, view, since, announce=True)


@signal(
    title="Initial level",
    unit="",
    actor="generator",
    inputs=_INPUTS,
    cadence="step",
    hint=NO_BEHAVIOUR,
    records=True,
)
@Fold
def drift_baseline(memory: Any, view: View) -> tuple[Any, Answer]:
    """Level in the run's own first steps of response_length (tokens), turns, tool_calls and prefill_decode (prompt
    tokens per generated token): what the drift ratios compare with.
    """
    return of_all(memory, view, level)


@signal(
    title="Drift per step",
    unit="ratio",
    actor="generator",
    inputs=_INPUTS,
    cadence="step",
    hint=NO_BEHAVIOUR,
    records=True,
)
@Fold
def drift_slope_ratio(memory: Any, view: View) -> tuple[Any, Answer]:
    """Change per step as a share of the initial level: Theil-Sen slope of the last 30 steps, of response_length, turns,
    tool_calls and prefill_decode.
    """
    return of_all(memory, view, slope_value)


@signal(
    title="Prefill to decode drift",
    unit="x",
    actor="generator",
    inputs=("trainer_step_seconds", *PREFILL_DECODE.inputs),
    cadence="step",
    hint="no prompt and response length by step, and no engine that counts its tokens while the trainer's steps are "
    "read: log both, or add the engines' /metrics as targets",
    watch=MOVED_FAR,
)
@Fold
def prefill_decode_drift_ratio(memory: Any, view: View) -> tuple[Any, Answer]:
    """Prompt tokens per generated token, median of the last 10 steps / the run's own first steps (30 after 5 of
    burn-in, or the first 10 of a run that drifts from its start). From the trainer's log of both, or else from the
    engines' counters over 5 minutes, for steps that are 5 minutes apart.
    """
    return ratio(memory, view, PREFILL_DECODE, prefill_decode_drift_ratio.hint)


@signal(
    title="Response length drift",
    unit="x",
    actor="generator",
    inputs=RESPONSE_LENGTH.inputs,
    cadence="step",
    hint="no response length by step: log it in tokens (TRL `completions/mean_length`, "
    "prime-rl `train/agg/effective/num_output_tokens/mean`), or give rollout records",
    records=True,
    watch=MOVED_FAR,
)
@Fold
def response_length_drift_ratio(memory: Any, view: View) -> tuple[Any, Answer]:
    """Median response length of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10
    of a run that drifts from its start), by environment if records name it. Compare with the truncation ratio.
    """
    return ratio(memory, view, RESPONSE_LENGTH, response_length_drift_ratio.hint)


@signal(
    title="Tool calls drift",
    unit="x",
    actor="sandbox",
    inputs=TOOL_CALLS.inputs,
    cadence="step",
    hint="no tool calls by step: log them (TRL `tools/call_frequency`), or give rollout records",
    records=True,
    watch=MOVED_FAR,
)
@Fold
def tool_calls_drift_ratio(memory: Any, view: View) -> tuple[Any, Answer]:
    """Median tool calls of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10 of a
    run that drifts from its start), by environment if records name it.
    """
    return ratio(memory, view, TOOL_CALLS, tool_calls_drift_ratio.hint)


@signal(
    title="Turns drift",
    unit="x",
    actor="generator",
    inputs=TURNS.inputs,
    cadence="step",
    hint="no turns by step: log them (prime-rl `train/agg/effective/num_turns/mean`), or give rollout records",
    records=True,
    watch=MOVED_FAR,
)
@Fold
def turns_drift_ratio(memory: Any, view: View) -> tuple[Any, Answer]:
    """Median turns of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10 of a run
    that drifts from its start), by environment if records name it.
    """
    return ratio(memory, view, TURNS, turns_drift_ratio.hint)
