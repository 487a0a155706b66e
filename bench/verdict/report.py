"""Reports the accuracy of verdicts as tables, and whether each target is met."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bench.verdict.cases import Changed, Noisy, Stalled, Steady
from bench.verdict.feed import SOURCES
from server.verdict.model import VERDICT_OUTCOMES

ACCURACY, LATE, PER_HOUR = 0.95, 1.0, 1.0
BANDS = (0.0, 0.4, 0.6, 0.8, 1.01)
WORST = 15


@dataclass(frozen=True, slots=True)
class Line:
    """One target and whether it is met. ``required``: a miss is an error; otherwise it is a goal not met so far."""

    name: str
    text: str
    ok: bool
    required: bool = True

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'MISS'} {self.name}{'' if self.required else ' (goal)'}: {self.text}"


def matrix(runs: Sequence[Steady]) -> Iterable[str]:
    """Confusion matrix: measured (rows) against reported (columns).

    Any of several right outcomes counts as the truth.
    """
    cells: Counter[tuple[str, str]] = Counter()
    for one in runs:
        cells[one.said.outcome if one.right else one.truth.top, one.said.outcome] += 1
    used = [name for name in VERDICT_OUTCOMES if any(name in cell for cell in cells)]
    yield f"{'measured / said':20s}" + "".join(f"{name.removesuffix('_bound')[:11]:>13s}" for name in used)
    for row in used:
        counts = "".join(f"{cells[row, column] or '.':>13}" for column in used)
        yield f"{row:20s}{counts}"


def calibration(runs: Sequence[Steady]) -> Iterable[str]:
    for low, high in pairwise(BANDS):
        band = [one for one in runs if low <= one.said.confidence < high]
        if band:
            right = sum(one.right for one in band) / len(band)
            yield f"  confidence {low:.1f}..{min(high, 1):.1f}: {right:.1%} of {len(band)}"


def told_without(runs: Sequence[Steady]) -> Iterable[str]:
    """With one source missing: share of runs with a verdict, and its confidence. Unknown everywhere is a failure."""
    yield f"sure with all sources: {sum(one.said.sure for one in runs)} of {len(runs)}"
    for source in SOURCES:
        told = [(one.without[source], one.truth.right) for one in runs if source in one.without]
        sure = sum(said.sure for said, _ in told)
        unknown = sum(said.outcome == "unknown" for said, _ in told)
        right = sum(said.outcome in words for said, words in told if not said.sure)
        yield f"  without {source}: {sure} of {len(told)} sure, {unknown} unknown, {right} of the others right"


def all_sources(runs: Sequence[Steady]) -> Line:
    good = sum(one.right for one in runs)
    return Line(
        "a all sources", f"{good} of {len(runs)} right, {good / max(1, len(runs)):.1%}", good >= ACCURACY * len(runs)
    )


def one_missing(runs: Sequence[Steady]) -> Line:
    judged = sum(len(one.without) for one in runs)
    wrong = Counter(of for one in runs for of in one.misled)
    unsure = sum(not said.sure for one in runs for said in one.without.values())
    text = f"{sum(wrong.values())} wrong and confident of {judged} ({dict(wrong)}); {unsure} unknown or unsure"
    return Line("b one source missing", text, not wrong)


def after_change(runs: Sequence[Changed]) -> Line:
    judged = [one for one in runs if one.judged]
    ratios = [one.seconds / one.limit for one in judged]
    never = sum(one.seconds == float("inf") for one in judged)
    middle = median(ratios) if ratios else float("inf")
    since = median((one.seconds + one.onset) / one.limit for one in judged) if judged else float("inf")
    text = f"{len(judged)} of {len(runs)}: median {middle:.2f} of max(2 min, 2 steps), never {never}; "
    text += f"from the cause itself (the queue's stock still lasts) {since:.2f}"
    return Line("c change of limiter", text, middle <= LATE)


def steadiness(runs: Sequence[Steady]) -> Line:
    hours, changes = sum(one.hours for one in runs), sum(one.changes for one in runs)
    short = [one for one in runs if one.hours < 0.5]
    text = f"{changes} changes in {hours:.0f} h, {changes / max(hours, 1e-9):.2f} an hour; "
    text += f"of runs with short steps {sum(one.changes for one in short)} in {sum(one.hours for one in short):.1f} h"
    return Line("d steady state", text, changes <= PER_HOUR * hours)


def liveness(runs: Sequence[Stalled], name: str = "e stalls") -> Line:
    bad = [f"{one.fault} {one.config.seed}" for one in runs if not one.right]
    return Line(name, f"{len(runs) - len(bad)} of {len(runs)} found in time {bad}", len(bad) <= 0.05 * len(runs))


def noise(runs: Sequence[Noisy]) -> Line:
    """Accuracy on runs with the noise of the recorded ones."""
    good = sum(one.said.outcome in one.truth.right for one in runs)
    wrong = [one for one in runs if one.believed]
    share = sum(one.right for one in runs) / max(1, len(runs))
    none = sum(one.unknown for one in runs) / max(1, len(runs))
    text = f"{good} of {len(runs)} right at the end; of all ticks {share:.1%} right, {none:.1%} without a verdict; "
    text += f"wrong at 0.5 and above in {len(wrong)} runs, {sum(one.believed for one in wrong)} ticks"
    return Line("f noise of recorded runs", text, good >= ACCURACY * len(runs) and not wrong, required=False)


def contradicted(runs: Sequence[Noisy]) -> Line:
    found = Counter[str]()
    for one in runs:
        found.update(one.contradictions)
    text = ", ".join(f"{name}: {count} ticks" for name, count in found.most_common()) or "none"
    return Line("g contradictions", text, not found)


def dead_engine(runs: Sequence[Changed]) -> Line:
    """Runs with a dead engine: most do not change their limiter and must keep their verdict."""
    late = [one for one in runs if one.seconds > one.limit]
    text = f"{len(runs) - len(late)} of {len(runs)} right within max(2 min, 2 steps) "
    text += str([f"{one.config.seed} {one.after.top}" for one in late])
    return Line("h one engine dies", text, len(late) <= (1 - ACCURACY) * len(runs), required=False)


def noisiest(runs: Sequence[Noisy]) -> Iterable[str]:
    """Wrong verdicts, ordered by the number of ticks with confidence."""
    wrong = [one for one in runs if one.believed or one.said.outcome not in one.truth.right]
    for one in sorted(wrong, key=lambda one: -one.believed)[:WORST]:
        yield (f"  seed {one.config.seed} ({one.config.kind}): {one.said}; right {one.right:.0%}, "
               f"believed {one.believed}; measured {one.truth}")  # fmt: skip


def worst(runs: Sequence[Steady]) -> Iterable[str]:
    """Wrong verdicts, highest confidence first."""
    wrong = sorted((one for one in runs if not one.right), key=lambda one: -one.said.confidence)
    for one in wrong[:WORST]:
        yield f"  seed {one.config.seed} ({one.config.kind}): {one.said}; measured {one.truth}"
    for one in runs:
        for of in one.misled:
            yield f"  seed {one.config.seed} ({one.config.kind}) without {of}: {one.without[of]}; measured {one.truth}"


def slowest(runs: Sequence[Changed]) -> Iterable[str]:
    judged = sorted((one for one in runs if one.judged), key=lambda one: -one.seconds / one.limit)
    for one in judged[:WORST]:
        yield (f"  seed {one.config.seed} {one.field}: {'|'.join(one.before.right)} -> {one.after}: "
               f"{one.seconds:.0f} s of {one.limit:.0f}, from {one.onset:.0f} s after the cause")  # fmt: skip
