"""`rollscope watch SOURCE...`: attaches to a run and serves it, or forwards it to another server."""

import asyncio
import hashlib
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
import httpx

from collectors.model import Target
from server.cli import BAD_USAGE, OK
from server.cli.options import SOURCE, Options, serving, settings
from server.cli.probe import introduce
from server.cli.program import Command
from server.cli.serving import SCAN, serve_runs
from server.clock import WallClock
from server.config.errors import ConfigError, Problems
from server.config.secret import Secret
from server.config.settings import RunSettings, load, state_dir
from server.forwarding.sender import TIMEOUT_SECONDS, Forwarder
from server.forwarding.spool import Spool
from server.runtime.serve import bind
from server.targets import local_scan
from server.targets.outbound_policy import refuse_target
from server.targets.pending import PendingSources
from server.targets.resolve import Attached, attach, run_name, source_of

log = logging.getLogger("rollscope.forward")

# Parallel requests to the server that receives forwarded readings.
CONNECTIONS = 8


def check_forwarding(options: Options, push: str | None, spool: Path | None, token_file: str | None) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: with every problem.
    """
    serving_options = [name for name in ("store", "host", "port", "role") if getattr(options, name) is not None]
    forwarding = [name for name, value in (("spool", spool), ("token-file", token_file)) if value is not None]
    if push is None:
        problems = [f"--{name}: only with --push URL" for name in forwarding]
    else:
        problems = [f"--{name}: not with --push, which serves nothing on this machine" for name in serving_options]
        if refusal := refuse_target(push):
            problems.append(f"--push: {refusal}")
        elif urlsplit(push).query or urlsplit(push).username:
            problems.append("--push: must be a plain URL; the token comes from ROLLSCOPE_TOKEN or --token-file")
    if problems:
        raise ConfigError(problems)


def forward(url: str, spool_folder: Path | None, token: Secret | None, attached: Attached) -> int:
    """Forward until SIGTERM or SIGINT. Returns the exit code.

    Raises:
        ConfigError: the spool cannot be opened.
    """
    folder = spool_folder or state_dir(os.environ) / "spool"
    spool = Spool(folder / spool_name(url, attached.name))
    try:
        waiting = f"; {spool.rows} earlier readings are not yet sent" if spool.rows else ""
        print(f"Forwarding {attached.name} to {url}; spool {spool.path}{waiting}", flush=True)
        asyncio.run(_forward(url, token, attached, spool))
    finally:
        spool.close()
    return 0


def spool_name(url: str, run: str) -> str:
    """One file for each run and server, because each server acknowledges readings independently."""
    digest = hashlib.sha256(f"{url.rstrip('/')}\n{run}".encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', run)[:80]}-{digest}.db"


def _token(options: Options, token_file: str | None) -> Secret | None:
    if token_file is None:
        return load(options.config, os.environ).token
    problems = Problems()
    token = problems.secret_file(token_file, "--token-file")
    if problems.messages:
        raise ConfigError(problems.messages)
    return token


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
        pending = PendingSources(attached.awaited, attach, (), [target.name for target in attached.targets])

        async def identify(used_names: Collection[str]) -> Sequence[Target]:
            identified = await pending.look(WallClock().now(), used_names)
            for source in identified.lists:
                log.warning("%s is a list of targets, which --push does not forward", source.name)
            return identified.targets

        forwarder = Forwarder(
            attached.name, attached.targets, spool, client, WallClock().now, facts=facts, look=identify
        )
        try:
            await forwarder.run(stop)
        finally:
            await pending.close()


def _facts(host: str, target: Target) -> dict[str, str | float]:
    """The source's path with the host it was read on, because the server cannot see that path."""
    return {"source_path": f"{host}:{Path(target.path).resolve()}"} if target.path else {}


@click.command(cls=Command)
@serving
@click.argument(
    "sources", nargs=-1, metavar="[SOURCE]...", help=f"{SOURCE}; without one: list what can be watched here"
)
@click.option("--run", default=None, metavar="RUN", help="the run's name (default: the directory's)")
@click.option("--wait", is_flag=True, help="start at once; attach sources when they appear")
@click.option(
    "--push",
    default=None,
    metavar="URL",
    help="forward readings to the server at URL instead of serving: no store and no dashboard on this machine",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="local directory for readings that are not yet sent (default: below ~/.local/state/rollscope)",
)
@click.option("--token-file", default=None, metavar="FILE", help="the server's token (or ROLLSCOPE_TOKEN)")
def command(
    options: Options, sources: tuple[str, ...], run: str | None, wait: bool, push: str | None, spool: Path | None,
    token_file: str | None,
) -> int:  # fmt: skip
    if not sources:
        found = SCAN()
        print("\n".join(local_scan.lines(found)))
        return OK if found.candidates else BAD_USAGE
    check_forwarding(options, push, spool, token_file)
    chosen = settings(options)
    targets = tuple(map(source_of, sources))
    named = RunSettings(run or run_name(target.source for target in targets), targets)
    attached = attach(named, wait=wait)
    if push is not None and attached.discover:
        raise ConfigError(["--push forwards named sources only: put the list into the server's configuration"])
    if push is not None:
        _introduce(attached)
        return forward(push, spool, _token(options, token_file), attached)
    sock = bind(chosen.host, chosen.port)  # a port in use is reported before anything is printed
    _introduce(attached)
    facts = _source_path(attached)
    attached = replace(attached, named=run is not None or not facts, facts=facts)
    return serve_runs(options, replace(chosen, runs=(named,)), [attached], sock)


def _introduce(attached: Attached) -> None:
    for line in introduce(attached, WallClock().now()):
        print(line, flush=True)
    for pending in attached.awaited:
        if not pending.found:
            print(f"waiting: {pending.error}", flush=True)


def _source_path(attached: Attached) -> dict[str, str | float]:
    """The path of the first file source: a derived name such as `out` must not join the runs ./a/out and ./b/out."""
    paths = [target.path for target in attached.targets if target.path]
    paths += [pending.source.source for pending in attached.awaited if not pending.source.is_url]
    return {"source_path": str(Path(paths[0]).expanduser().resolve())} if paths else {}
