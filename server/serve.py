"""One server: the roles `collect` and `web`, together or apart, joined only by the store.

`collect` has its own thread and event loop, so that neither a burst of scrapes nor a slow tick is felt by a
browser; `web` is uvicorn on the main thread. Whatever ends the process, what was acknowledged is committed.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from server.adopt import Adopter, admits
from server.alerts.deadman import DeadMan
from server.alerts.dispatch import Dispatcher
from server.api import close_api, create_api
from server.api_alerts import add_alerts
from server.api_preflight import add_preflight
from server.api_push import add_pushes
from server.api_readings import add_readings
from server.api_sandboxes import add_sandboxes
from server.attach import Attached
from server.clock import Clock
from server.collect import RunLoop
from server.config import Settings
from server.heartbeats import Heartbeats
from server.leader import Leader
from server.preflight.live import Preflights, living
from server.problems import ConfigError
from server.query import Reader, StoreReader
from server.security import LOOPBACK_NAMES, App, Gate, is_loopback
from server.store import Store, StoreError, Writer, migrate

log = logging.getLogger("rollscope")

AttachDashboard = Callable[[FastAPI, Reader, str], tuple[App, Callable[[], str]]]
"""(api, reader, version) -> (the app to serve, its Content-Security-Policy). Given by `main`: the only one
that knows the dashboard."""

Before = Callable[[Sequence[RunLoop]], Awaitable[None]]
# A collect loop that has not turned for this long is stuck: three grid steps and a slow disk.
STUCK_SECONDS = 30.0
# Browsers hold a socket open for live updates; they reconnect by themselves.
GRACE_SECONDS = 2
# One scrape's time limit and a commit; a thread in a dead NFS mount cannot be ended at all.
DRAIN_SECONDS = 15.0


@dataclass(slots=True)
class Health:
    """What `/readyz` says: written by the collect thread, read by the web's."""

    turned: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    def problem(self) -> str | None:
        if self.failed:
            return self.failed
        now = time.monotonic()
        stuck = [
            f"{run} for {now - turned:.0f} s" for run, turned in self.turned.items() if now - turned > STUCK_SECONDS
        ]
        return f"not collected: {', '.join(stuck)}" if stuck else None


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything else is started.

    Raises:
        ConfigError: the port is taken, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)  # from here on nobody is refused: early requests wait until the application answers
    except OSError as error:
        sock.close()
        raise ConfigError(
            [f"server.port: cannot listen on {host}:{port}: {error.strerror}; choose another --port"]
        ) from None
    return sock


def allowed_hosts(settings: Settings) -> list[str]:
    """Names a Host header may carry. Beyond loopback without a list any name will do: the token guards."""
    if settings.allowed_hosts:
        return [*settings.allowed_hosts, *LOOPBACK_NAMES]
    return [*LOOPBACK_NAMES, settings.host] if is_loopback(settings.host) else []


def serve(
    settings: Settings, runs: Sequence[Attached], clock: Clock, attach_dashboard: AttachDashboard, *,
    version: str, sock: socket.socket, before: Before | None = None, announce: Callable[[str], None] = lambda url: None,
) -> int:  # fmt: skip
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    collecting: _Collecting | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(sock)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            url = f"http://{host}:{sock.getsockname()[1]}"
            settings = _reachable(settings, sock.getsockname()[1], url)
            store, leader = _open(settings, url, stack)
            for run in runs:
                _check_source(store, run)
            health = Health()
            if leader is not None:
                collecting = _Collecting(settings, store, runs, clock, health, before, leader)
                stack.enter_context(collecting)
            app = _app(settings, store, clock, attach_dashboard, version, health)
            announce(url)
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=GRACE_SECONDS
            )
            _end_cleanly()
            uvicorn.Server(config).run(sockets=[sock])
    finally:
        if collecting is not None and collecting.stuck:
            os._exit(0)  # the interpreter would wait for the hung thread for ever
    return 0


def _end_cleanly() -> None:
    """uvicorn stops at a signal, then raises it again for whoever was there before it: that must drain, not die."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


def _open(settings: Settings, url: str, stack: ExitStack) -> tuple[Store, Leader | None]:
    """The store, led by us when we collect. The lease comes first: nobody's schema changes under a running server.

    Raises:
        ConfigError: held by another process, on a network file system, not migrated, not reachable.
    """
    leader: Leader | None = None
    try:
        if settings.role != "web":
            if settings.store.startswith("sqlite:///"):
                _make_folder(Path(settings.store.removeprefix("sqlite:///")).parent)
            leader = Leader(settings.store, url)
            stack.callback(leader.release)
            migrate(settings.store)
        return stack.enter_context(closing(Store.open(settings.store))), leader
    except StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    except OSError as error:
        raise ConfigError([f"store: {error.filename or settings.store}: {error.strerror}"]) from None


def _check_source(store: Store, run: Attached) -> None:
    """Refuse to continue a run nobody named from another directory: `./a/out` is not `./b/out`.

    Raises:
        ConfigError: with both places and the fix.
    """
    before = store.facts(run.name).get("source_path") if not run.named else None
    if before is not None and before != run.facts["source_path"]:
        raise ConfigError(
            [f"a run {run.name!r} was read from {before} before; give this one a name of its own with --run NAME"]
        )


def _reachable(settings: Settings, port: int, url: str) -> Settings:
    """Links in notifications need an address: the one configured, else ours as this machine's name for others."""
    if settings.alerts.external_url:
        return settings
    anywhere = settings.host in ("0.0.0.0", "::")
    found = f"http://{socket.gethostname()}:{port}" if anywhere else url
    return replace(settings, alerts=replace(settings.alerts, external_url=found))


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([f"store: cannot make {path}: {error.strerror}"]) from None


def _app(
    settings: Settings, store: Store, clock: Clock, attach_dashboard: AttachDashboard, version: str, health: Health
) -> App:
    preflights = Preflights(settings.runs, clock, lambda: living(reader))
    reader = StoreReader(store, clock, settings.alerts, preflights.get)

    def ready() -> str | None:
        try:
            reader.runs()
        except Exception as error:  # whatever it is, the store does not answer
            log.debug("not ready", exc_info=True)
            return f"the store does not answer: {type(error).__name__}"
        return health.problem()

    api = create_api(reader, version=version, ready=ready)
    add_alerts(api, reader, store, clock, Heartbeats(store, clock, settings.runs).beat)
    configured = frozenset(run.name for run in settings.runs)
    admitted = partial(admits, store, configured=configured, clock=clock)
    add_sandboxes(api, reader, store, clock, admitted)
    add_pushes(api, store, clock, admitted)
    add_readings(api, store, clock, admitted)
    add_preflight(api, reader, preflights)
    close_api(api)
    app, csp = attach_dashboard(api, reader, version)
    return Gate(app, hosts=allowed_hosts(settings), token=settings.token, csp=csp)


class _Collecting(AbstractContextManager[None]):
    """Role `collect` on its own thread. Leaving drains: running scrapes end, the writer commits what it holds."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        runs: Sequence[Attached],
        clock: Clock,
        health: Health,
        before: Before | None,
        leader: Leader,
    ) -> None:
        self._leader, self._alerts = leader, settings.alerts
        self._store, self._runs, self._clock, self._health, self._before = store, runs, clock, health, before
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._loops: list[RunLoop] = []
        self.stuck = False
        self._thread = threading.Thread(target=self._main, name="collect", daemon=True)

    def __enter__(self) -> None:
        self._writer = Writer(self._store)
        self._thread.start()
        self._ready.wait()

    def __exit__(self, *_: object) -> None:
        for loop in tuple(self._loops):
            loop.stop()
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=DRAIN_SECONDS)
        self._writer.close()
        self.stuck = self._thread.is_alive()
        if self.stuck:
            log.warning("collecting does not end within %g s: leaving it; what was read is stored", DRAIN_SECONDS)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:  # the thread's outermost loop: the web must be able to say that it died
            log.exception("collecting stopped")
            self._health.failed = f"collecting stopped: {type(error).__name__}"
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        dispatcher = Dispatcher(self._store.alerts, self._alerts.receivers, self._clock)
        for run in self._runs:
            # On threads, one by one: reading a long run back must neither block the loop nor a signal to stop.
            self._loops.append(await asyncio.to_thread(self._made, run, dispatcher.wake))
        loops = tuple(self._loops)
        adopter = Adopter(
            self._store, self._clock, lambda name: self._made(Attached(name, (), {}), dispatcher.wake, adopted=True),
            self._loops, self._forget,
        )  # fmt: skip
        # What was pushed into lately goes on; of all others nobody evaluates the alerts any more.
        kept = [*(loop.run for loop in loops), *await adopter.names()]
        await asyncio.to_thread(self._store.alerts.abandon, kept, round(self._clock.now() * 1000))
        if self._before is not None:
            filling = asyncio.create_task(_as_coroutine(self._before(loops)))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({filling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not filling.done():
                filling.cancel()
                await asyncio.wait({filling})
                return
            filling.result()
        beside = [dispatcher.run(self._stop)]
        if self._alerts.deadman.url:
            dead_man = DeadMan(self._alerts.deadman.url, self._alerts.deadman.interval, self._health.problem)
            beside.append(dead_man.run(self._stop))
        await asyncio.gather(*(loop.live(self._stop) for loop in loops), *beside, adopter.run(self._stop))

    def _made(self, run: Attached, wake: Callable[[], None], adopted: bool = False) -> RunLoop:
        """A run's loop, wired to what is told of it."""
        loop = RunLoop(
            run.name, run.targets, self._store, self._writer, self._clock,
            facts=run.facts, alerts=self._alerts, heartbeats=run.heartbeats, adopted=adopted,
        )  # fmt: skip
        self._turned(run.name)
        loop.on_outbox = wake
        loop.on_step = partial(self._turned, run.name)
        loop.leading = self._leader.leading
        return loop

    def _forget(self, run: str) -> None:
        self._health.turned.pop(run, None)

    def _turned(self, run: str) -> None:
        self._health.turned[run] = time.monotonic()


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable
