"""Is the verdict right of real runs? Recorded runs, played as a live attach. Exits 1 when a phase is missed.

    python -m bench.real_runs [RUN...] [--sink trackio|tensorboard] [--ticks]

RUN is a recording of tests/testdata/real_runs, or a folder that holds one. Columns: seconds from the phase's beginning
(or from attaching) to the first right verdict, share of ticks that are right, share without a verdict, ticks that are
wrong at a confidence of at least 0.5 and 0.8, the phase's last verdict.
"""

import argparse
import sys
from collections.abc import Sequence

from bench.real_runs import recording
from bench.real_runs.play import Played, play
from bench.real_runs.score import HEADER, line, score


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--sink", choices=("trackio", "tensorboard"), default="trackio")
    parser.add_argument("--ticks", action="store_true", help="each change of the verdict, with its summary")
    options = parser.parse_args(arguments)
    missed = 0
    print(HEADER, flush=True)
    for name in options.runs or recording.names():
        played = play(recording.load(name), sink=options.sink)
        for found in score(played):
            print(line(played.recording.name, found), flush=True)
            missed += not found.ok
        if options.ticks:
            changes(played)
        print(f"  {len(played.ticks)} ticks, {played.cpu_seconds:.1f} s of CPU", flush=True)
    return min(1, missed)


def changes(played: Played) -> None:
    """Each verdict that differs from the one before, seconds after attaching."""
    before = None
    for tick in played.ticks:
        verdict = tick.status.verdict or {}
        key = (verdict.get("outcome"), verdict.get("cause"), round(verdict.get("confidence", 0.0), 1))
        if key != before:
            print(
                f"  {tick.at - played.attached:6.0f} s {tick.status.lifecycle:9} {key[0]}/{key[1] or ''} "
                f"{verdict.get('confidence')} | {str(verdict.get('summary'))[:150]}"
            )
        before = key


if __name__ == "__main__":
    sys.exit(main())
