"""What the commands that serve share: `up`, `watch` and `demo`."""

import os
import socket
import sys
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from server.cli.options import Options
from server.config import admin_token
from server.config.settings import Settings
from server.lib.clock import WallClock
from server.runtime.serve import Announce, AttachDashboard, serve
from server.targets import local_scan
from server.targets.model import Attached

SCAN = local_scan.CachedScan(Path())


def dashboard(options: Options, settings: Settings) -> AttachDashboard:
    """Attaches the dashboard. Without configured runs an empty page suggests what can be watched on this machine."""
    candidates = None if settings.runs or settings.role == "web" else SCAN.pairs
    receivers = [receiver.name for receiver in settings.alerts.receivers]
    return partial(options.program.compose, receivers, candidates, settings.push)


def serve_runs(
    options: Options, settings: Settings, runs: Sequence[Attached], sock: socket.socket, notes: Sequence[str] = ()
) -> int:
    """Serves on a listening socket until SIGTERM or SIGINT. Returns the exit code.

    ``notes`` are printed before the address, when the store is open: a store that cannot be opened is the first line.
    """
    return serve(
        settings, runs, WallClock(), dashboard(options, settings), version=options.program.version, sock=sock,
        announce=announcer(options, notes, admin=settings.token is None),
    )  # fmt: skip


def announcer(options: Options, notes: Sequence[str] = (), *, admin: bool) -> Announce:
    """Prints the server's address, and opens it in a browser if the output is a terminal.

    ``admin``: the server has no token of its own, so that changes need the admin token, which the address contains.
    """

    def announce(url: str, external_url: str) -> None:
        for note in notes:
            print(note, flush=True)
        print(
            f"Rollscope is at {url}" + (f" (from other machines: {external_url})" if external_url else ""), flush=True
        )
        if admin:
            url = f"{url}/?token={admin_token.made(os.environ)}"
            print(f"To delete runs and silence alerts in the browser, open {url}", flush=True)
        if not options.no_browser and sys.stdout.isatty():
            webbrowser.open(url)

    return announce
