"""The process that the crash test kills: takes pushes of rollouts and collects them, through the real run loop.

Body n holds MANY rollouts as they end; body n + 1 how those were used. Prints n when body n is in the inbox.
"""

import json

from server.ingest.readings import PUSHED
from server.lib.clock import ScaledClock
from server.push.inbox import pack_records
from server.push.records import WEIGHT
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.store.types import Push
from server.targets.model import Attached

T0, MANY = 1_800_000_000.0, 40


def lines(n: int) -> list[bytes]:
    """Of body ``n``: rollouts that ended, and what the trainer did with those of the one before."""
    ended = [{"rollout_id": f"{n}-{k}", "response_tokens": 10, "finished_at": T0 + n} for k in range(MANY)]
    used = [{"rollout_id": f"{n - 1}-{k}", "version_consumed": n, "consumed_at": T0 + n} for k in range(MANY)]
    return [json.dumps(one).encode() for one in (*ended, *used)]


def offer(store: Store, n: int) -> None:
    """Into the inbox, acknowledged."""
    body = pack_records("rollouts", lines(n))
    store.pushes.offer([Push("run", PUSHED, "generator", 1200.0, round(1000 * (T0 + n)), WEIGHT * MANY, body)])


def main(url: str, first: int) -> None:
    """Go on from body ``first`` until killed."""
    store = Store.open(url)
    loop = RunLoop(
        Attached("run", ()), LoopServices(store, Writer(store, commit_seconds=0.001), ScaledClock(T0)), adopted=True
    )
    print("ready", flush=True)
    n = first
    while True:
        for _ in range(2):
            offer(store, n)
            print(n, flush=True)
            n += 1
        loop._collect_pushes(T0 + n)
