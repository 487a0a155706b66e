"""Runs one server: the roles `collect` and `web`, together or separately, connected only by the store.

`collect` has its own thread and event loop, or with many targets its own process (`server.runtime.collector_process`),
so that scrapes and ticks do not slow HTTP responses. `web` is uvicorn on the main thread. Acknowledged data is
committed however the process ends.
"""

import errno
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from server.api.alerts import add_alerts
from server.api.app import close_api, create_api
from server.api.forwarding import add_readings
from server.api.gate import LOOPBACK_NAMES, App, Gate
from server.api.panels import add_panels
from server.api.push import add_pushes
from server.api.rollouts import add_rollouts
from server.api.runs import add_engines, add_preflight, add_run_removal, add_sandboxes, add_what_if
from server.config import admin_token
from server.config.settings import Settings
from server.lib.clock import Clock, WallClock
from server.lib.errors import ConfigError
from server.lib.outbound_policy import is_loopback
from server.preflight.live import Preflights, active_run_names
from server.push.heartbeats import Heartbeats
from server.query import Reader
from server.runtime.collector_process import CollectorProcess, wanted
from server.runtime.collector_service import (
    Before,
    CollectorService,
    Health,
    Leader,
    few_arenas,
    giving_back,
    seldom_swept,
)
from server.runtime.self_metrics import SelfMetrics
from server.scrape.pushed_runs import admits
from server.store import Store, StoreError, migrate
from server.targets.model import Attached

log = logging.getLogger("rollscope")

AttachDashboard = Callable[[FastAPI, Reader, str], tuple[App, Callable[[], str]]]
"""(api, reader, version) -> (the app to serve, its Content-Security-Policy). Passed in by `main`, because only `main`
imports the dashboard."""

Announce = Callable[[str, str], None]
"""(URL on this machine, URL from other machines or "") -> None. Called when the server accepts requests."""

# Time for open connections at the end, s. Browsers hold a socket for live updates and reconnect by themselves.
GRACE_SECONDS = 2
# Largest WebSocket message, bytes. No client sends any; with uvicorn's limits, forty compressed to 2 MB filled 3 GB.
SOCKET_BYTES = 1024


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket, before anything else is started.

    Raises:
        ConfigError: the port is in use, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)  # early requests wait until the application answers
    except OSError as error:
        sock.close()
        url, _ = addresses(host, port)
        push = f"if Rollscope is running there, add a source to it: rollscope watch SOURCE --push {url}; or "
        raise ConfigError(
            [
                f"cannot listen on {host}:{port}: {error.strerror}; "
                f"{push if error.errno == errno.EADDRINUSE else ''}choose another --port"
            ]
        ) from None
    return sock


def addresses(host: str, port: int) -> tuple[str, str]:
    """Returns URLs for a browser: on this machine, and from other machines ("" if the first one serves both).

    If the server is bound to all addresses (0.0.0.0, ::), the second URL uses the host name.
    """
    if host in ("0.0.0.0", "::"):
        return f"http://{'[::1]' if host == '::' else '127.0.0.1'}:{port}", f"http://{socket.gethostname()}:{port}"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}", ""


def allowed_hosts(settings: Settings) -> list[str]:
    """Returns accepted Host headers. Beyond loopback without a list any name is accepted: the token protects."""
    if settings.allowed_hosts:
        return [*settings.allowed_hosts, *LOOPBACK_NAMES]
    return [*LOOPBACK_NAMES, settings.host] if is_loopback(settings.host) else []


def serve(
    settings: Settings, runs: Sequence[Attached], clock: Clock, attach_dashboard: AttachDashboard, *,
    version: str, sock: socket.socket, before: Before | None = None, announce: Announce = lambda url, elsewhere: None,
) -> int:  # fmt: skip
    """Serves until SIGTERM or SIGINT. Returns the exit code."""
    few_arenas()
    collecting: CollectorService | CollectorProcess | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(sock)
            url, elsewhere = addresses(settings.host, sock.getsockname()[1])
            settings = _reachable(settings, elsewhere or url)
            store, leader = _open(settings, url, stack)
            for run in runs:
                _check_source(store, run)
            health = Health()
            app = _app(settings, store, clock, attach_dashboard, version, health)
            config = uvicorn.Config(
                app,
                log_config=None,  # uvicorn's loggers use our handler and format
                log_level="warning",
                access_log=False,
                lifespan="on",
                timeout_graceful_shutdown=GRACE_SECONDS,
                ws_max_size=SOCKET_BYTES,
                ws_per_message_deflate=False,
            )
            web = uvicorn.Server(config)
            _end_cleanly(web)
            # Garbage collection was a quarter of the cost of an open tab, and a seventh of a rollout's ingest.
            seldom_swept()
            stack.enter_context(giving_back())
            if leader is not None:
                collecting = _collecting(settings, store, runs, clock, health, before, leader)
                stack.enter_context(collecting)
            announce(url, elsewhere)
            web.run(sockets=[sock])
            # A second signal ends the process at once, without waiting for the drain.
            _on_signal(lambda: sys.exit(0))
    finally:
        if collecting is not None and collecting.stuck:
            os._exit(0)  # the interpreter would wait for the hanging thread permanently
    return 0


def _collecting(
    settings: Settings, store: Store, runs: Sequence[Attached], clock: Clock, health: Health, before: Before | None,
    leader: Leader,
) -> CollectorService | CollectorProcess:  # fmt: skip
    """Returns the collector, in this process or a child; another clock or `before` cannot be passed to a child."""
    if before is None and isinstance(clock, WallClock) and wanted(settings, runs):
        return CollectorProcess(settings, runs, health, leader)
    return CollectorService(settings, store, runs, clock, health, before, leader)


def _end_cleanly(web: uvicorn.Server) -> None:
    """Lets a signal stop the web server at any time, also before its event loop runs; then the collector drains.

    uvicorn stops on a signal by itself, and then raises it again for the previous handler.
    """
    _on_signal(lambda: setattr(web, "should_exit", True))


def _on_signal(act: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: act())


def _open(settings: Settings, url: str, stack: ExitStack) -> tuple[Store, Leader | None]:
    """Opens the store, with the lease if we collect. The lease comes first, so that no schema changes under a server.

    Raises:
        ConfigError: lease held by another process, network file system, not migrated, or unreachable; or a size limit
            that cannot be met.
    """
    leader: Leader | None = None
    try:
        if settings.role != "web":
            if settings.store.startswith("sqlite:///"):
                _make_folder(Path(settings.store.removeprefix("sqlite:///")).parent)
            leader = Leader(settings.store, url)
            stack.callback(leader.release)
            migrate(settings.store)
        store = stack.enter_context(closing(Store.open(settings.store)))
        if settings.role != "web":
            _check_size(store, settings.retention.max_bytes)
        return store, leader
    except StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    except OSError as error:
        name = str(error.filename or settings.store)
        if name.endswith(".lock"):
            folder = Path(name).parent
            raise ConfigError([f"store: cannot write in the folder {folder}: {error.strerror}"]) from None
        raise ConfigError([f"store: {name}: {error.strerror}"]) from None


def _check_size(store: Store, limit: int | None) -> None:
    """Refuses a size limit below what it never deletes.

    Raises:
        ConfigError: with the smallest possible limit.
    """
    if limit is None:
        return
    least = store.retention.least_bytes(round(time.time() * 1000))
    if limit < least:
        text = (
            f"store.max_size: {limit / 1e6:,.0f}MB is too small: what is kept permanently (rollups, steps, verdicts, "
            f"alerts) and the newest hour take {least / 1e6:,.0f}MB; the smallest possible is "
            f"{math.ceil(_SIZE_ROOM * least / 1e6)}MB"
        )
        raise ConfigError([text])


# Above what must stay: the database still grows by what is kept permanently.
_SIZE_ROOM = 1.1


def _check_source(store: Store, run: Attached) -> None:
    """Refuses to continue a run without an explicit name from another directory: `./a/out` is not `./b/out`.

    Raises:
        ConfigError: with both directories and the fix.
    """
    before = store.runs.facts(run.name).get("source_path") if not run.named else None
    if before is not None and before != run.facts["source_path"]:
        raise ConfigError(
            [f"run {run.name!r} was read from {before} before; name this run differently with --run NAME"]
        )


def _reachable(settings: Settings, url: str) -> Settings:
    """Sets the address for links in notifications to ``url`` if none is configured."""
    if settings.alerts.external_url:
        return settings
    return replace(settings, alerts=replace(settings.alerts, external_url=url))


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError([f"store: cannot create {path}: {error.strerror}"]) from None


def _app(
    settings: Settings, store: Store, clock: Clock, attach_dashboard: AttachDashboard, version: str, health: Health
) -> App:
    preflights = Preflights(settings.planned, clock, lambda: active_run_names(reader))
    own = SelfMetrics(store, health.numbers, settings.retention)
    reader = Reader(store, clock, settings.alerts, preflights.get, own)

    def ready() -> str | None:
        try:
            reader.runs.all()
        except Exception as error:  # any error of the store
            log.debug("not ready", exc_info=True)
            return f"the store does not answer: {error if isinstance(error, StoreError) else type(error).__name__}"
        return health.problem()

    api = create_api(reader, version=version, ready=ready, own=own)
    add_alerts(api, reader, store, clock, Heartbeats(store, clock, settings.heartbeats).beat)
    configured = frozenset(run.name for run in settings.runs)
    admitted = partial(admits, store, configured=configured, clock=clock)
    add_sandboxes(api, reader, store, clock, admitted)
    add_rollouts(api, reader, store, clock, admitted)
    add_pushes(api, store, clock, admitted, settings.otlp)
    add_readings(api, store, clock, admitted)
    add_run_removal(api, store, clock)
    add_preflight(api, reader, preflights)
    add_what_if(api, reader)
    add_engines(api, reader)
    add_panels(api, reader, store, clock, settings.panels)
    close_api(api)
    app, csp = attach_dashboard(api, reader, version)
    admin = None if settings.token else admin_token.made(os.environ)
    return Gate(
        app, hosts=allowed_hosts(settings), token=settings.token, admin=admin, private=settings.private, csp=csp
    )
