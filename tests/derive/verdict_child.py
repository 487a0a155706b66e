"""The process that the crash test of verdicts kills: an engine's pages, a verdict that changes, and a count of both.

Prints n when everything up to tick n is committed.
"""

from server.store import Store
from server.verdict.model import Verdict, VerdictInput
from server.verdict.rules import Memory
from tests.driven_run import ENGINE, T0, Bench, bench, page

SPELL = 3


def judge(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
    """Another outcome every third tick of 5 s; how often it was asked."""
    spell = int((seen.now - T0) / 5) // SPELL
    asked = (memory or {"asked": 0})["asked"] + 1
    return {"asked": asked}, Verdict("balanced") if spell % 2 == 0 else Verdict("stalled", "no_progress")


def tick(run: Bench, n: int) -> None:
    """The page of tick ``n``, and the tick."""
    run.commit(ENGINE, page(1, 10.0 * n), T0 + 5 * n)
    run.advance(T0 + 5 * n, live=True)


def main(url: str, first: int) -> None:
    """Go on from tick ``first`` until killed."""
    store = Store.open(url)
    with bench(store, judge=judge) as run:
        print("ready", flush=True)
        for n in range(first, first + 10_000):
            tick(run, n)
            print(n, flush=True)
