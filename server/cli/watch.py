"""`rollscope watch SOURCE...`: attaches to a run and serves it, or forwards it."""

import argparse
import asyncio
import hashlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from collectors.model import Target
from server.cli import BAD_USAGE
from server.cli.options import SOURCE, settings
from server.cli.probe import introduce
from server.cli.serving import LOOK, serve_runs, serving
from server.clock import WallClock
from server.config.errors import ConfigError, Problems
from server.config.settings import RunSettings, load, state_dir
from server.forwarding.sender import TIMEOUT_SECONDS, Forwarder
from server.forwarding.spool import Spool
from server.outbound_policy import refuse_target
from server.secret import Secret
from server.targets import local_scan
from server.targets.resolve import Ambiguous, Attached, attach, run_name, source_of

CONNECTIONS = 8
EXAMPLE = "rollscope watch ./outputs/my-run --push http://login1:8050 --spool /tmp/rollscope"


def forward_arguments(parser: argparse.ArgumentParser) -> None:
    """What `watch` takes to forward instead of serving."""
    group = parser.add_argument_group("forwarding", f"without a store and a dashboard; example: {EXAMPLE}")
    group.add_argument("--push", metavar="URL", default=None, help="forward readings to the server at URL")
    where = "local directory for readings that are not yet sent (default: below ~/.local/state/rollscope)"
    group.add_argument("--spool", metavar="DIR", type=Path, default=None, help=where)
    group.add_argument("--token-file", metavar="FILE", default=None, help="the server's token (or ROLLSCOPE_TOKEN)")


def check(args: argparse.Namespace) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: with every problem.
    """
    serving = [name for name in ("store", "host", "port", "role") if getattr(args, name) is not None]
    forwarding = [name for name in ("spool", "token_file") if getattr(args, name) is not None]
    if args.push is None:
        problems = [f"--{name.replace('_', '-')}: only with --push URL" for name in forwarding]
    else:
        problems = [f"--{name}: the server at --push has it; nothing is served here" for name in serving]
        if refusal := refuse_target(args.push):
            problems.append(f"--push: {refusal}")
        elif urlsplit(args.push).query or urlsplit(args.push).username:
            problems.append("--push: must be a plain URL; the token comes from ROLLSCOPE_TOKEN or --token-file")
    if problems:
        raise ConfigError(problems)


def forward(args: argparse.Namespace, attached: Attached, say: Callable[[str], None]) -> int:
    """Forward until SIGTERM or SIGINT. Returns the exit code.

    Raises:
        ConfigError: no token where a file was named, or no place for the spool.
    """
    token = _token(args)
    folder = args.spool or state_dir(os.environ) / "spool"
    spool = Spool(folder / spool_name(args.push, attached.name))
    try:
        waiting = f", {spool.rows} readings from before wait" if spool.rows else ""
        say(f"Forwarding {attached.name} to {args.push}; spool {spool.path}{waiting}")
        asyncio.run(_forward(args.push, token, attached, spool))
    finally:
        spool.close()
    return 0


def spool_name(url: str, run: str) -> str:
    """A file for each run and server: what one has taken says nothing of another."""
    told = hashlib.sha256(f"{url.rstrip('/')}\n{run}".encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', run)[:80]}-{told}.db"


def _token(args: argparse.Namespace) -> Secret | None:
    if args.token_file is None:
        return load(args.config, os.environ).token
    problems = Problems()
    found = problems.secret_file(args.token_file, "--token-file")
    if problems.found:
        raise ConfigError(problems.found)
    return found


async def _forward(url: str, token: Secret | None, attached: Attached, spool: Spool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, limits=limits, follow_redirects=False, trust_env=False
    ) as client:
        facts: Callable[[Target], dict[str, str | float]] = partial(_facts, socket.gethostname())
        await Forwarder(attached.name, attached.targets, spool, client, WallClock().now, facts=facts).run(stop)


def _facts(host: str, target: Target) -> dict[str, str | float]:
    """Where it was read: a path alone would be looked for on the server."""
    return {"source_path": f"{host}:{Path(target.path).resolve()}"} if target.path else {}


WAIT_SECONDS = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    serving(parser)
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help=f"{SOURCE}; without one: list what can be watched here"
    )
    parser.add_argument("--run", default=None, help="the run's name (default: the directory's)")
    parser.add_argument("--wait", action="store_true", help="start at once; attach sources when they appear")
    forward_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if not args.sources:
        return print("\n".join(local_scan.lines(LOOK()))) or BAD_USAGE
    check(args)
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
        return forward(args, attached, partial(print, flush=True))
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
