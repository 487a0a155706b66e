"""Screenshots of every page of the dashboard, light and dark, wide and narrow, from demos with a stopped clock.

    python -m bench.screenshots [--out FOLDER] [--page KEY] [--hours 1]

Three simulated runs are collected for an hour of a fixed day through the product's own path (process, sockets, files,
store, signals, verdict, alerts); then the clock stops, so that the same commit gives the same pictures.
"""

import argparse
import asyncio
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, sync_playwright

from dashboard.app import attach as attach_dashboard
from dashboard.pages import PAGES
from server.api.alerts import add_alerts
from server.api.app import create_api
from server.api.preflight import add_preflight
from server.api.rollouts import add_rollouts
from server.api.sandboxes import add_sandboxes
from server.api.what_if import add_what_if
from server.cli.demo import Cluster
from server.clock import ScaledClock
from server.config import alerts as alerts_config
from server.config.settings import RunSettings
from server.preflight.live import Preflights, living
from server.query import Reader
from server.scrape.run_loop import RunLoop
from server.store import Store, Writer, migrate
from server.targets.resolve import attach
from tests.browser_support import start

START = 1_800_000_000.0
TICK_SECONDS = 5.0
SEED = 7
SCENARIOS = ("healthy", "gb300-sandbox-wall", "generator-bound")
"""The last collected run is shown first; pages named in `SHOWN` show another."""
SHOWN = {"sandboxes": "gb300-sandbox-wall", "preflight": "gb300-sandbox-wall"}
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
README, ITS_PAGES = Path(__file__).parent.parent / "docs" / "images", ("overview", "rollouts", "sandboxes", "alerts")


async def collect(cluster: Cluster, loop: RunLoop, clock: ScaledClock, seconds: float) -> None:
    t = START
    while t < START + seconds:
        t += TICK_SECONDS
        await asyncio.to_thread(cluster.advance, t)
        clock.set(t)
        await loop.step(t, patient=True)
    await loop.close()


def filled(store: Store, folder: Path, clock: ScaledClock, seconds: float) -> list[RunSettings]:
    """Collects every scenario's hour into the store; returns the runs' settings."""
    writer, runs = Writer(store), []
    for scenario in SCENARIOS:
        clock.set(START)
        with Cluster(scenario, SEED, folder / scenario, START, START + seconds - 900) as cluster:
            settings = cluster.settings()
            run = attach(settings)
            loop = RunLoop(
                run.name, run.targets, store, writer, clock, facts=run.facts, alerts=alerts_config.defaults(),
                heartbeats=run.heartbeats, discover=run.discover,
            )  # fmt: skip
            asyncio.run(collect(cluster, loop, clock, seconds))
            runs.append(settings)
        print(f"{run.name}: {seconds:.0f} s collected", flush=True)
    writer.close()
    return runs


def application(store: Store, reader: Reader, clock: ScaledClock, runs: list[RunSettings]) -> FastAPI:
    api = create_api(reader, version="screenshots", ready=lambda: None)
    add_alerts(api, reader, store, clock, lambda token: False)
    add_rollouts(api, reader, store, clock)
    add_sandboxes(api, reader, store, clock)
    add_preflight(api, reader, Preflights(runs, clock, lambda: living(reader)))
    add_what_if(api, reader)
    attach_dashboard(api, reader, version="screenshots", receivers=["oncall"])
    return api


@contextmanager
def serving(api: FastAPI) -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        server = uvicorn.Server(uvicorn.Config(api, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def shoot(browser: Browser, url: str, path: str, theme: str, size: tuple[int, int], out: Path, *, whole: bool) -> None:
    """Takes one picture, once the page reports that it is drawn."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)  # type: ignore[arg-type]
    page.emulate_media(reduced_motion="reduce")
    page.goto(url + path)
    page.wait_for_selector("[data-page=ok]")
    page.wait_for_function("RS.chartsReady()")
    # Two ticks of the server: then every cell, row and chart is drawn.
    page.wait_for_function("n => RS.ticks() >= n", arg=2)
    if whole:
        page.evaluate("RS.drawAll()")
    page.screenshot(path=out, full_page=whole)
    page.close()


def pictures(browser: Browser, url: str, out: Path, only: str) -> Iterator[Path]:
    for page in PAGES:
        if only and page.key != only:
            continue
        run = SHOWN.get(page.key, SCENARIOS[-1])
        for theme in ("light", "dark"):
            for name, size in SIZES.items():
                file = out / f"{page.key}-{theme}-{name}.png"
                shoot(browser, url, f"{page.path}?run={RUNS[run]}&range=1h", theme, size, file, whole=name == "narrow")
                yield file


RUNS: dict[str, str] = {}
"""Scenario -> name of its run in the demo."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".cache/screenshots"), help="where they go")
    parser.add_argument("--page", default="", help="this page alone")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--readme", action="store_true", help="write the README's pictures too")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/store.db"
        migrate(database)
        store, clock = Store.open(database), ScaledClock(START)
        runs = filled(store, Path(folder), clock, 3600 * args.hours)
        RUNS.update(zip(SCENARIOS, (run.name for run in runs), strict=True))
        reader = Reader(store, clock, alerts_config.defaults())
        began = time.monotonic()
        with serving(application(store, reader, clock, runs)) as url, sync_playwright() as playwright:
            browser = start(playwright)
            files = list(pictures(browser, url, args.out, args.page))
            browser.close()
        store.close()
    if args.readme:
        for file in files:
            key, theme, size = file.stem.rsplit("-", 2)
            if key in ITS_PAGES and size == "wide":
                shutil.copy(file, README / f"{key}-{theme}.png")
    print(f"{len(files)} pictures in {args.out}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
