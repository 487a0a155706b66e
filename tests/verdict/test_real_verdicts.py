"""The verdict of recorded real runs: right in time, never wrong with confidence, never against its own numbers."""

import pytest

from bench.real_runs import recording, variants
from bench.real_runs.play import play
from bench.real_runs.score import line, score
from bench.verdict.contradictions import Walker, report

RECORDED = recording.names()
COMPOSED = [pytest.param(name, marks=pytest.mark.long) for name in variants.cases() if name not in RECORDED]


@pytest.mark.parametrize("name", [*RECORDED, *COMPOSED])
def test_a_recorded_run(name: str) -> None:
    """Right within 60 s of each labelled phase, stalled within 30 s, nothing wrong at 0.5 and above."""
    case, walker = variants.case(name), Walker()
    played = play(case.recording, sink=case.sink, attach_at=case.attach_at)
    for tick in played.ticks:
        walker.status(tick.at, tick.status)
    scores = score(played)
    assert scores
    assert [line(name, found) for found in scores if not found.ok] == []
    assert list(report(walker.found, played.attached)) == []
