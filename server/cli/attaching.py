"""What `rollscope watch` does once its options are valid: attach to a run, and serve or forward it.

Loaded then, because the parts of a server take a second to import.
"""

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

import httpx

from collectors.model import Target
from server.cli.check_report import introduce
from server.cli.options import Options
from server.cli.serving import serve_runs
from server.config.settings import Settings, load, state_dir
from server.lib.clock import WallClock
from server.lib.errors import ConfigError, Problems
from server.lib.secret import Secret
from server.runtime.forwarder import TIMEOUT_SECONDS, Forwarder
from server.runtime.serve import bind
from server.runtime.spool import Spool
from server.targets.model import Attached, RunSettings
from server.targets.pending import PendingSources
from server.targets.resolve import attach, run_name, source_of

log = logging.getLogger("rollscope.forward")

# Parallel requests to the server that receives forwarded readings.
CONNECTIONS = 8


def serve(options: Options, chosen: Settings, sources: Sequence[str], run: str | None, *, wait: bool) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    settings = _run_settings(sources, run)
    attached = attach(settings, wait=wait)
    sock = bind(chosen.host, chosen.port)  # a port in use is reported before anything is printed
    _introduce(attached)
    facts = _source_path(attached)
    attached = replace(attached, named=run is not None or not facts, facts=facts)
    return serve_runs(options, replace(chosen, runs=(settings,)), [attached], sock)


def _run_settings(sources: Sequence[str], run: str | None) -> RunSettings:
    targets = tuple(map(source_of, sources))
    return RunSettings(run or run_name(target.source for target in targets), targets)


def forward(
    url: str, spool_folder: Path | None, token: Secret | None, sources: Sequence[str], run: str | None, *, wait: bool
) -> int:  # fmt: skip
    """Forward until SIGTERM or SIGINT. Returns the exit code.

    Raises:
        ConfigError: a source is a list of targets, or the spool cannot be opened.
    """
    attached = attach(_run_settings(sources, run), wait=wait)
    if attached.discover:
        raise ConfigError(["--push forwards named sources only: put the list into the server's configuration"])
    _introduce(attached)
    folder = spool_folder or state_dir(os.environ) / "spool"
    spool = Spool(folder / spool_name(url, attached.name))
    try:
        waiting = f"; {spool.rows} earlier readings are not yet sent" if spool.rows else ""
        started = f"Forwarding {attached.name} to {url}; spool {spool.path}{waiting}"
        asyncio.run(_forward(url, token, attached, spool, started))
    finally:
        spool.close()
    return 0


def spool_name(url: str, run: str) -> str:
    """One file for each run and server, because each server acknowledges readings independently."""
    digest = hashlib.sha256(f"{url.rstrip('/')}\n{run}".encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', run)[:80]}-{digest}.db"


def token(options: Options, token_file: str | None) -> Secret | None:
    if token_file is None:
        return load(options.config, os.environ).token
    problems = Problems()
    token = problems.secret_file(token_file, "--token-file")
    if problems.messages:
        raise ConfigError(problems.messages)
    return token


async def _forward(url: str, token: Secret | None, attached: Attached, spool: Spool, started: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(started, flush=True)  # a script may send SIGTERM once it has read this line
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
