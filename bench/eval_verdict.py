"""Accuracy of the verdict on simulated runs with measured truth. Exits 1 if a required target is missed.

    python -m bench.eval_verdict [--tuning] [--runs N] [--changes N] [--stalls N] [--noisy N] [--stops N] [--dead N]
                                 [--jobs N]
    python -m bench.eval_verdict --seed N [--without SOURCE] [--explain]

Runs are drawn from seeds: rules are tuned only on those of TUNING (``--tuning``), and judged on JUDGING. The limiter of
a run is measured, not asserted: the same run is simulated again, each time without one limiter, and the removal that
gains most useful samples per second is right (`bench.verdict.truth`). The simulator (`bench.verdict.sim`) is
event-driven; it shares no formula with the rules.

Runs of further seeds have the noise of the recorded real ones (tests/testdata/real_runs): few engines, short steps,
numbers once a step, records of a few rollouts, bursts, an engine that dies, a trainer that stops.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from bench.verdict import report
from bench.verdict.cases import changed, noisy, one_dead, stalled, steady, stopped
from bench.verdict.config import REAL_JUDGING, REAL_TUNING, draw
from bench.verdict.feed import SOURCES, Feed
from bench.verdict.sim import Sim
from bench.verdict.truth import truth

TUNING, JUDGING = range(0, 100_000), range(8_200_000, 8_250_000)
RUNS, CHANGES, STALLS = 308, 60, 15
# Runs with the noise of the recorded ones: steady runs, trainers that stop, fleets that lose an engine.
NOISY, STOPS, DEAD = 90, 15, 15

Result = TypeVar("Result")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    if options.seed is not None:
        explain(options.seed, options.without)
        return 0
    seeds, begun = (TUNING if options.tuning else JUDGING), time.monotonic()
    print(f"seeds {'of tuning' if options.tuning else 'of judging'}: from {seeds.start} on", flush=True)
    # Objects of a simulated run reference each other and stay until its end, so garbage collection finds nothing.
    with ProcessPoolExecutor(options.jobs, initializer=gc.set_threshold, initargs=(200_000,)) as pool:

        def each(judge: Callable[[int], Result], count: int) -> list[Result]:
            return list(pool.map(judge, seeds[:count], chunksize=1))

        runs, changes, stalls = (
            each(steady, options.runs),
            each(changed, options.changes),
            each(stalled, options.stalls),
        )
        seeds = REAL_TUNING if options.tuning else REAL_JUDGING
        noisy_runs, stops, dead = each(noisy, options.noisy), each(stopped, options.stops), each(one_dead, options.dead)
    lines = [report.all_sources(runs), report.one_missing(runs), report.after_change(changes), report.steadiness(runs),
             report.liveness(stalls), report.noise(noisy_runs), report.contradicted(noisy_runs),
             report.dead_engine(dead), report.liveness(stops, "i trainer stops")]  # fmt: skip
    show(report.matrix(runs))
    show(["calibration:", *report.calibration(runs), *report.told_without(runs), "worst:", *report.worst(runs)])
    show(["slowest:", *report.slowest(changes)])
    show(["noise of recorded runs:", *report.noisiest(noisy_runs)])
    show(str(line) for line in lines)
    print(f"{time.monotonic() - begun:.0f} s")
    return 0 if all(line.ok or not line.required for line in lines) else 1


def show(lines: Iterable[str]) -> None:
    print("\n".join(lines), flush=True)


def explain(seed: int, without: str) -> None:
    """Prints one run: its configuration, the verdicts by time, and the arithmetic behind the last one."""
    config = draw(seed)
    print(config, "\nmeasured:", truth(config))
    before, told = None, None
    for told in Feed(config, without).play(*_played(seed)):
        verdict = told.verdict
        if (*verdict.key, verdict.rule) != before:
            print(f"{told.at:8.0f} s {verdict.outcome}/{verdict.cause} {verdict.confidence} {verdict.rule}")
        before = (*verdict.key, verdict.rule)
    if told is not None:
        show(
            f"  {one.outcome}/{one.cause} factor {one.factor:.2f} gain {one.gain:.2f}" for one in told.verdict.limiters
        )
        print(json.dumps({name: value for name, value in told.verdict.numbers.items() if value is not None}))


def _played(seed: int):  # type: ignore[no-untyped-def]
    sim = Sim(draw(seed)).run()
    return sim.rows, sim.pages


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuning", action="store_true", help="the seeds on which rules may be tuned")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--stalls", type=int, default=STALLS)
    parser.add_argument("--noisy", type=int, default=NOISY)
    parser.add_argument("--stops", type=int, default=STOPS)
    parser.add_argument("--dead", type=int, default=DEAD)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, help="one run, explained")
    parser.add_argument("--without", choices=("", *SOURCES), default="", help="with --seed: a source that is missing")
    parser.add_argument("--explain", action="store_true", help="with --seed (the default)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
