"""Accuracy of the verdict on real runs: recordings, played as a live attach. Exits 1 when a phase is missed.

    python -m bench.real_runs [RUN...] [--ticks]

RUN is a recording of tests/testdata/real_runs, or a folder that holds one, or a case made of them (`variants`):
RUN+tensorboard (the trainer logs there), RUN+late (attached in the middle), RUN+engines (without the trainer's log),
RUN+stops (the trainer stops for 90 s), RUN>RUN (a change of regime). Without RUN: all of them.

Columns: seconds from the phase's beginning (or from attaching) to the first right verdict, shares of ticks that are
right, without a verdict and wrong, ticks wrong at a confidence of at least 0.5 and 0.8, the phase's last verdict.
"""

import argparse
import sys
from collections.abc import Sequence

from bench.real_runs import variants
from bench.real_runs.play import Played, play
from bench.real_runs.score import HEADER, line, score
from bench.verdict import contradictions


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--ticks", action="store_true", help="each change of the verdict, with its summary")
    options = parser.parse_args(arguments)
    missed, contradicted, ticks, cpu = 0, 0, 0, 0.0
    print(HEADER, flush=True)
    for name in options.runs or variants.cases():
        chosen = variants.case(name)
        played = play(chosen.recording, sink=chosen.sink, attach_at=chosen.attach_at)
        for found in score(played):
            print(line(name, found), flush=True)
            missed += not found.ok
        walker = contradictions.Walker()
        for tick in played.ticks:
            walker.status(tick.at, tick.status)
        for text in contradictions.report(walker.found, played.attached):
            print(f"  contradiction: {text}")
        contradicted += len(walker.found)
        if options.ticks:
            changes(played)
        ticks, cpu = ticks + len(played.ticks), cpu + played.cpu_seconds
    print(f"{ticks} ticks, {cpu:.0f} s of CPU; phases missed: {missed}; contradictions: {contradicted}")
    return min(1, missed + contradicted)


def changes(played: Played) -> None:
    """Each verdict that differs from the one before, seconds after attaching."""
    before = None
    for tick in played.ticks:
        verdict = tick.status.verdict
        key = (verdict.outcome, verdict.cause, round(verdict.confidence, 1))
        if key != before:
            print(
                f"  {tick.at - played.attached:6.0f} s {tick.status.lifecycle:9} {key[0]}/{key[1] or ''} "
                f"{verdict.confidence} | {verdict.summary[:150]}"
            )
        before = key


if __name__ == "__main__":
    sys.exit(main())
