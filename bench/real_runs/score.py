"""Compares the product's verdicts with the labels, phase by phase."""

from dataclasses import dataclass

from bench.real_runs.play import Played, Tick
from bench.real_runs.recording import UNKNOWN, Phase

# Confidence from which the banner shows the verdict's advice.
BELIEVED = 0.5
# Confidence from which a verdict counts as certain.
CERTAIN = 0.8


@dataclass(frozen=True, slots=True)
class Wrong:
    """A tick whose outcome was not right. `after`: seconds since the phase began."""

    after: float
    outcome: str
    cause: str
    confidence: float


@dataclass(frozen=True, slots=True)
class PhaseScore:
    """One phase of one run. Seconds count from the phase's beginning, or from attaching where that was later."""

    phase: Phase
    begin: float
    ticks: int
    right: int
    unknown: int
    first_right: float | None
    wrong: tuple[Wrong, ...]
    last: str

    @property
    def believed(self) -> tuple[Wrong, ...]:
        return tuple(item for item in self.wrong if item.confidence >= BELIEVED)

    @property
    def certain(self) -> tuple[Wrong, ...]:
        return tuple(item for item in self.wrong if item.confidence >= CERTAIN)

    @property
    def ok(self) -> bool:
        """Right in time, and never wrong with confidence. A phase shorter than its limit may stay without a verdict."""
        if not self.phase.scored:
            return True
        late = self.first_right is None or self.first_right > self.phase.within
        return not self.believed and not (late and self.phase.end - self.begin > self.phase.within)


def score(played: Played) -> list[PhaseScore]:
    """One score for each phase in which the product was attached and the run was not over."""
    found, before = list[PhaseScore](), None
    for phase in played.recording.phases:
        ticks = [tick for tick in played.ticks if phase.begin <= tick.at < phase.end and _runs(tick)]
        if ticks:
            found.append(_phase(phase, before, max(phase.begin, played.attached), ticks))
        before = phase
    return found


def _runs(tick: Tick) -> bool:
    return tick.status.lifecycle not in ("finished", "crashed")


def _phase(phase: Phase, before: Phase | None, begin: float, ticks: list[Tick]) -> PhaseScore:
    right = [tick.at - begin for tick in ticks if _outcome(tick) in phase.right]
    wrong = []
    for tick in ticks:
        outcome, verdict = _outcome(tick), tick.status.verdict
        # Until the limit has passed the phase before may still be reported.
        lags = before is not None and tick.at - phase.begin <= phase.within and outcome in before.right
        if outcome not in (*phase.right, UNKNOWN) and not lags:
            wrong.append(Wrong(tick.at - begin, outcome, verdict.cause or "", verdict.confidence))
    last = ticks[-1].status.verdict
    return PhaseScore(
        phase, begin, len(ticks), len(right), sum(_outcome(tick) == UNKNOWN for tick in ticks),
        min(right, default=None), tuple(wrong),
        f"{last.outcome}/{last.cause or ''} {last.confidence:.2f}",
    )  # fmt: skip


def _outcome(tick: Tick) -> str:
    return tick.status.verdict.outcome


HEADER = (
    f"{'run':34} {'phase':34} {'right is':22} {'first':>6} {'right':>5} {'none':>5} {'wrong':>5}"
    "   >=.5 >=.8  last verdict of the phase; its worst"
)


def line(name: str, found: PhaseScore) -> str:
    """One row of the table."""
    worst = max(found.wrong, key=lambda item: item.confidence, default=None)
    first = "never" if found.first_right is None else f"{found.first_right:.0f} s"
    right = "not scored" if not found.phase.scored else "|".join(found.phase.right)
    shares = " ".join(f"{count / found.ticks:5.0%}" for count in (found.right, found.unknown, len(found.wrong)))
    text = f"{name:34.34} {found.phase.label:34.34} {right:22.22} {first:>6} {shares}"
    text += f" {len(found.believed):4} {len(found.certain):4}  {found.last}"
    if worst:
        text += f"; {worst.outcome}/{worst.cause} {worst.confidence:.2f} at {worst.after:.0f} s"
    return text if found.ok else f"{text}  MISSED"
