"""The process that the round-trip test kills: pushes and collects a file's lines. Prints n for acknowledged body n."""

from itertools import count
from pathlib import Path

from server.ingest.readings import PUSHED
from server.lib.clock import ScaledClock
from server.push.inbox import pack_records
from server.push.records import WEIGHT
from server.scrape.run_loop import RunLoop
from server.store import Store, Writer
from server.store.types import Push

T0 = 1_800_000_000.0
BODY = 5


def offer(store: Store, lines: list[bytes]) -> None:
    """Into the inbox, acknowledged."""
    body = pack_records("rollouts", lines)
    store.pushes.offer([Push("run", PUSHED, "generator", 1200.0, round(1000 * T0), WEIGHT * len(lines), body)])


def main(url: str, path: str) -> None:
    """Pushes the whole file, again and again, until killed."""
    store, lines = Store.open(url), Path(path).read_bytes().splitlines()
    loop = RunLoop("run", [], store, Writer(store, commit_seconds=0.001), ScaledClock(T0), adopted=True)
    print("ready", flush=True)
    for n in count():
        at = n * BODY % len(lines)
        offer(store, lines[at : at + BODY])
        print(n, flush=True)
        loop._collect_pushes(T0)
