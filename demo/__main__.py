"""`python -P -m demo --scenario NAME --seed N --dir DIR --start EPOCH`; see `process` for the protocol."""

import argparse
import signal
import sys
from pathlib import Path

from demo.faults import read
from demo.process import Demo, control, leave
from demo.scenarios import SCENARIOS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="An imaginary RL cluster, driven over stdin.")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--start", type=float, required=True, help="event time to begin at; the run may be older")
    parser.add_argument("--records-from", type=float, default=0.0, help="event time of the first rollout record")
    parser.add_argument("--inject", action="append", default=[], type=read, metavar="KIND@TIME")
    return parser.parse_args()


def main() -> None:
    """Runs until standard input ends or SIGTERM arrives."""
    signal.signal(signal.SIGTERM, lambda *_: leave())
    # Ctrl-C signals the whole process group; the parent ends this process by closing standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    a = _arguments()
    demo = Demo(a.scenario, a.seed, a.dir, a.start, a.records_from, a.inject)
    control(demo, sys.stdin, sys.stdout)
    leave()


if __name__ == "__main__":
    main()
