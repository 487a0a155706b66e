"""Proof of the advice by intervention: made in simulated runs, beside every other free change. Exits 1 on a miss.

    python -m bench.eval_advice [--tuning] [--worlds N] [--jobs N]
    python -m bench.eval_advice --seed N

For each world the first advice is applied from the minute on in which it is given, with the same seed, and the
trainable samples per second are measured over the next half hour (at least twelve steps); so is every other lever at
several values. Worlds are drawn with hidden laws that the advice does not share (`bench.verdict.interventions`).
Seeds of TUNING are looked at while rules change, those of JUDGING never.
"""

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from bench.verdict.interventions import Proof, prove

TUNING, JUDGING = range(0, 10_000), range(9_800_000, 9_810_000)
WORLDS = 200
# Required shares of the worlds.
WITHIN, CALIBRATED, HARMFUL = 0.90, 0.85, 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuning", action="store_true", help="the seeds on which rules may be tuned")
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, help="one world, with all advice and all measured gains")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        explain(prove(options.seed))
        return 0
    seeds, begun = (TUNING if options.tuning else JUDGING)[: options.worlds], time.monotonic()
    with ProcessPoolExecutor(options.jobs, initializer=gc.set_threshold, initargs=(200_000,)) as pool:
        proofs = []
        for proof in pool.map(prove, seeds, chunksize=1):
            proofs.append(proof)
            print(line(proof), flush=True)
    ok = report(proofs)
    print(f"{time.monotonic() - begun:.0f} s")
    return 0 if ok else 1


def line(one: Proof) -> str:
    """One world in a line."""
    said = "no advice"
    if one.advice is not None and one.advice.gain is not None:
        low, middle, high = one.advice.gain
        said = f"{one.advice.lever} {middle:.2f} ({low:.2f}..{high:.2f})"
    marks = [
        word
        for word, is_so in (("MISS", not one.within), ("RANGE", not one.calibrated), ("HARM", one.harmful))
        if is_so
    ]
    best = f"best {one.best:.2f} {one.option}"
    return (
        f"{one.seed:8d} {one.kind:18s} {one.verdict:38s} {said:48s} measured {one.gain:.2f}, {best} {' '.join(marks)}"
    )


def report(proofs: Sequence[Proof]) -> bool:
    """Prints the shares; returns whether all are met."""
    advised = [one for one in proofs if one.advice is not None]
    rows = (
        (
            "first advice within 80 % of the best free change",
            sum(one.within for one in proofs),
            len(proofs),
            WITHIN,
            True,
        ),
        (
            "measured gain within the stated range",
            sum(one.calibrated for one in advised),
            len(advised),
            CALIBRATED,
            True,
        ),
        ("harmful (gain below 0.98)", sum(one.harmful for one in proofs), len(proofs), HARMFUL, False),
    )
    found = True
    for name, count, of, required, least in rows:
        share = count / max(1, of)
        ok = share >= required if least else share <= required
        found = found and ok
        print(f"{'ok  ' if ok else 'MISS'} {name}: {count} of {of}, {share:.1%} (required {required:.0%})")
    gaining = sum(one.gain > 1.02 for one in advised)
    print(f"first advice gains: {gaining} of {len(advised)}; worlds without advice: {len(proofs) - len(advised)}")
    print(f"levers: {dict(Counter(one.advice.lever for one in advised if one.advice is not None).most_common())}")
    return found


def explain(one: Proof) -> None:
    """Prints one world with all of its advice and measured gains."""
    print(line(one))
    for advice in one.all_advice:
        print(f"  advice: {advice.text} {advice.gain} {advice.cost}: {advice.why}")
    for name, gain in sorted(one.gains.items(), key=lambda item: -item[1]):
        print(f"  measured: {gain:.2f} {name}")


if __name__ == "__main__":
    sys.exit(main())
