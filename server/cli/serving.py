"""What the commands that serve share: `up`, `watch` and `demo`."""

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from server.cli.options import common
from server.clock import WallClock
from server.config.settings import Settings
from server.runtime.serve import Announce, AttachDashboard, bind, serve
from server.targets import local_scan
from server.targets.resolve import Attached

LOOK = local_scan.CachedScan(Path())


def serving(parser: argparse.ArgumentParser) -> None:
    """What every command takes that serves."""
    common(parser)
    parser.add_argument("--host", default=None, help="address to bind (default 127.0.0.1; others need a token)")
    parser.add_argument("--port", type=int, default=None, help="port (default 8050; 0 chooses one)")
    parser.add_argument("--role", choices=("all", "collect", "web"), default=None, help="default: all")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def composed(args: argparse.Namespace, settings: Settings) -> AttachDashboard:
    """``args.compose`` is `server.main.compose`: nothing below it knows the dashboard."""
    # Who named runs, or only shows what others collect, is not asked whether the engine next door is theirs.
    candidates = None if settings.runs or settings.role == "web" else LOOK.pairs
    return partial(args.compose, [receiver.name for receiver in settings.alerts.receivers], candidates, settings.push)


def serve_runs(args: argparse.Namespace, settings: Settings, runs: Sequence[Attached]) -> int:
    """Until it is told to stop. Returns the exit code."""
    sock = bind(settings.host, settings.port)
    return serve(
        settings, runs, WallClock(), composed(args, settings), version=args.version, sock=sock, announce=announcer(args)
    )


def announcer(args: argparse.Namespace) -> Announce:
    """Prints the server's address, and opens it in a browser when the output is a terminal."""

    def announce(url: str, elsewhere: str) -> None:
        print(f"Rollscope is at {url}" + (f" (from other machines: {elsewhere})" if elsewhere else ""), flush=True)
        if not args.no_browser and sys.stdout.isatty():
            webbrowser.open(url)

    return announce
