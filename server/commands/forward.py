"""`rollscope watch SOURCE... --push URL`: reads here, keeps nothing but a spool, and is shown by a server elsewhere."""

import argparse
import asyncio
import hashlib
import os
import re
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from collectors.model import Target
from server.clock import WallClock
from server.config.errors import ConfigError, Problems
from server.config.settings import load, state_dir
from server.forwarding.sender import TIMEOUT_SECONDS, Forwarder
from server.forwarding.spool import Spool
from server.outbound_policy import refuse_target
from server.secret import Secret
from server.targets.resolve import Attached

CONNECTIONS = 8
EXAMPLE = "rollscope watch ./outputs/my-run --push http://login1:8050 --spool /tmp/rollscope"


def arguments(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace, attached: Attached, say: Callable[[str], None]) -> int:
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
