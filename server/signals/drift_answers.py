"""Answers of the drift signals: factor against the run's own first steps, step of the change, and slope. Pure."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from collectors.model import Labels
from server.signals.drift_detector import MOVED, NEEDED, DriftWatch
from server.signals.drift_points import WATCHED, Followed, Tracks, Watched, followed
from server.signals.model import Answer, Unknown, Value, View
from server.signals.trend import trend

Remember = Callable[[Any, View], tuple[Any, Answer]]

# Share of rollouts at the cap above the baseline's share; the watch band of `truncation_ratio`.
CUT_MORE = 0.10
# Steps. Late rows can move a change point; one within this distance of a listed one is the same.
SAME_STEPS = 10
# Change points that are listed at most.
ANNOUNCED_MOST = 64
# Key of the list in the stored memory.
ANNOUNCED = "told"


def ratio(watched: Watched, hint: str) -> Remember:
    """The function for `fold`: factor of one behaviour against its baseline."""

    def remember(memory: Any, view: View) -> tuple[Any, Answer]:
        found = followed(memory, view, watched)
        values = [
            Value(math.nan if row.factor is None else row.factor, row.labels, row.text) for row in shown(found, watched)
        ]
        return found.tracks, _unlabelled(values) or Unknown(hint)

    return remember


def of_all(value: Callable[["Shown"], tuple[float, str]], hint: str, announce: bool = False) -> Remember:
    """The function for `fold` of all behaviours, by label ``of``. ``announce``: the memory also lists change points."""

    def remember(memory: Any, view: View) -> tuple[Any, Answer]:
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
        return tracks, values or Unknown(hint)

    return remember


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
    """Series by environment where any named environment has a factor; otherwise the run's own series."""
    if found.shown is None:
        found.shown = _shown(found.tracks, watched)
    rows: list[Shown] = found.shown
    return rows


def _shown(tracks: Tracks, watched: Watched) -> list[Shown]:
    watches = {name: (watch, watch.factor) for name, track in tracks.items() for watch in (track.now(),)}
    named = any(name and factor is not None for name, (_, factor) in watches.items())
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
