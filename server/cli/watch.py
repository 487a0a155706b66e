"""`rollscope watch SOURCE...`: attaches to a run and serves it, or forwards it."""

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from server.cli import BAD_USAGE
from server.cli.options import SOURCE, settings
from server.cli.probe import introduce
from server.cli.serving import LOOK, serve_runs, serving
from server.clock import WallClock
from server.commands import forward
from server.config.errors import ConfigError
from server.config.settings import RunSettings
from server.targets import local_scan
from server.targets.resolve import Ambiguous, Attached, attach, run_name, source_of

WAIT_SECONDS = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    serving(parser)
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help=f"{SOURCE}; without one: list what can be watched here"
    )
    parser.add_argument("--run", default=None, help="the run's name (default: the directory's)")
    parser.add_argument("--wait", action="store_true", help="start at once; attach sources when they appear")
    forward.arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if not args.sources:
        return print("\n".join(local_scan.lines(LOOK()))) or BAD_USAGE
    forward.check(args)
    chosen = settings(args)
    sources = tuple(map(source_of, args.sources))
    run = RunSettings(args.run or run_name(one.source for one in sources), sources)
    # A server waits with its page up; what is forwarded to another one has to be there.
    attached = _wait_for(run) if args.wait and args.push is not None else attach(run, wait=args.wait)
    if args.push is not None and attached.discover:
        raise ConfigError(["--push forwards sources that are named: let the server's configuration name the list"])
    # A name nobody chose must not join two runs: `./a/out` and `./b/out` are told apart by what was read before.
    paths = [target.path for target in attached.targets if target.path]
    place = next(iter((*paths, *(one.source.source for one in attached.awaited if not one.source.is_url))), None)
    facts = {"source_path": str(Path(place).expanduser().resolve())} if place else {}
    chosen = replace(chosen, runs=(run,))
    for line in introduce(attached, WallClock().now()):
        print(line, flush=True)
    for one in attached.awaited:
        if not one.found:
            print(f"waiting: {one.error}", flush=True)
    if args.push is not None:
        return forward.run(args, attached, partial(print, flush=True))
    return serve_runs(args, chosen, [replace(attached, named=args.run is not None or not facts, facts=facts)])


def _wait_for(run: RunSettings) -> Attached:
    """Attach once everything is there: an engine that still loads, a run that has not begun."""
    told: list[str] = []
    while True:
        try:
            return attach(run)
        except Ambiguous:
            raise
        except ConfigError as error:
            if error.problems != told:
                told = error.problems
                print("waiting: " + "; ".join(told), flush=True)
        time.sleep(WAIT_SECONDS)
