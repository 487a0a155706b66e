"""Screenshots of every page of the dashboard, light and dark, wide and narrow, from demos with a stopped clock.

    python -m bench.screenshots [--out FOLDER] [--scene NAME] [--page KEY] [--hours 1] [--whole] [--keep FOLDER]

Simulated runs are collected for an hour of a fixed day through the product's own path (process, sockets, files, store,
signals, verdict, alerts); then the clock stops, so that the same commit gives the same pictures. Further scenes show
the other states of a run: finished, stale, not collected, catching up, and a server without any run.

Each page is shown of one live run, and the overview and Runs of every other scene. `--scene` takes all pages of one
scene. `--keep` stores the collected runs in a folder and uses them again, for work on the look.
"""

import argparse
import asyncio
import json
import pickle
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, sync_playwright

from dashboard.app import Candidates
from dashboard.app import attach as attach_dashboard
from dashboard.pages import PAGES
from server.api.alerts import add_alerts
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.api.runs import add_preflight, add_sandboxes, add_what_if
from server.cli.demo import Cluster
from server.config import alerts as alerts_config
from server.lib.clock import ScaledClock
from server.preflight.live import Preflights, active_run_names
from server.preflight.model import PreflightPlan
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer, migrate
from server.targets.model import Attached, RunSettings
from server.targets.resolve import attach
from tests.browser_support import exposed, start

START = 1_800_000_000.0
TICK_SECONDS = 5.0
SEED = 7
# Rollout records cover the last part of the time only, as in `rollscope demo`.
RECORDS_SECONDS = 900.0
# How long ago the collector ended (scene `not-collected`) or the whole cluster ended (scene `stale`), s.
ENDED_SECONDS = 1080.0
# Share of the history that has been read in scene `catching-up`.
CAUGHT_UP = 0.41
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
README, ITS_PAGES = Path(__file__).parent.parent / "docs" / "images", ("overview", "rollouts", "sandboxes", "alerts")
# Next to the pictures: page -> its words. A test compares them with those of today's product.
WORDS_FILE = README / "words.json"
# Headings, names of cards and charts, tabs and column heads inside the picture, without numbers.
WORDS = """() => [...new Set([...document.querySelectorAll("nav a, h1, h2, h3, th")]
  .filter(one => one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().top < innerHeight)
  .map(one => one.innerText.replace(/\\d[\\d.,]*( ?[%a-z]{1,2}\\b)?/g, "#").replace(/\\s+/g, " ").trim())
  .filter(Boolean))].sort()"""


@dataclass(frozen=True, slots=True)
class Scene:
    """One run of the demo in one state. ``scenario``: empty for a server without any run."""

    name: str
    scenario: str
    state: str = "live"


SCENES = (
    Scene("healthy", "healthy"),
    Scene("gb300", "gb300-sandbox-wall"),
    Scene("glm5", "glm5-easy-curriculum"),
    Scene("finished", "trainer-bound", "finished"),
    Scene("stale", "reward-bound", "stale"),
    Scene("not-collected", "math-sync-colocated", "not_collected"),
    Scene("catching-up", "qwen3-235b-slime", "catching_up"),
    Scene("generator-bound", "generator-bound"),
    Scene("empty", "", "empty"),
)
"""The last collected run is shown first. Every scene has a scenario of its own, because that names the run."""
MAIN = "generator-bound"
"""The scene that shows every page, except those of `SHOWN`."""
SHOWN = {"sandboxes": "gb300"}
BRIEF = ("overview", "runs")
"""Pages of the other scenes."""


async def collect(
    scene: Scene, cluster: Cluster, loop: RunLoop, folder: Path, clock: ScaledClock, seconds: float
) -> None:
    """Collects a run up to the scene's end of collection."""
    t, end = START, START + seconds
    until = {
        "not_collected": end - ENDED_SECONDS,
        "catching_up": START + CAUGHT_UP * seconds,
        "finished": end - TICK_SECONDS,
    }.get(scene.state, end)
    present = end if scene.state == "catching_up" else START
    while t < until:
        t += TICK_SECONDS
        if scene.state == "stale" and t > end - ENDED_SECONDS:
            unreachable(cluster, folder)
        else:
            await asyncio.to_thread(cluster.advance, t)
        clock.set(t)
        await loop.step(t, patient=True, present=present)
    await loop.close()


def unreachable(cluster: Cluster, folder: Path) -> None:
    """Ends the cluster's process and takes its files away, once: no target answers any more."""
    if folder.exists():
        cluster.__exit__(None, None, None)
        folder.rename(folder.with_suffix(".gone"))


def filled(scene: Scene, store: Store, writer: Writer, folder: Path, clock: ScaledClock, seconds: float) -> RunSettings:
    """Collects the scene's run into the store; returns its settings."""
    clock.set(START)
    with Cluster(scene.scenario, SEED, folder / scene.name, START, START + seconds - RECORDS_SECONDS) as cluster:
        settings = cluster.settings()
        run = attach(settings)

        def loop(facts: Mapping[str, str | float]) -> RunLoop:
            return RunLoop(
                Attached(run.name, run.targets, facts, discover=run.discover),
                LoopServices(store, writer, clock, alerts_config.defaults()),
            )

        asyncio.run(collect(scene, cluster, loop(run.facts), folder / scene.name, clock, seconds))
        if scene.state == "finished":
            # As a user records it: [run.NAME] lifecycle = "finished", and a restart.
            asyncio.run(last_step(loop({**run.facts, "lifecycle": "finished"}), START + seconds))
    print(f"{run.name} ({scene.name}): {seconds:.0f} s collected", flush=True)
    return settings


async def last_step(loop: RunLoop, t: float) -> None:
    await loop.step(t, patient=True)
    await loop.close()


def empty_application(folder: Path, clock: ScaledClock) -> FastAPI:
    """A server that was started without a configuration, on a machine with two engines."""
    database = f"sqlite:///{folder}/empty.db"
    migrate(database)
    store = Store.open(database)
    found = [
        ("Everything found on this machine", "rollscope watch http://127.0.0.1:8000 http://127.0.0.1:8001"),
        ("vllm at http://127.0.0.1:8000", "rollscope watch http://127.0.0.1:8000"),
        ("vllm at http://127.0.0.1:8001", "rollscope watch http://127.0.0.1:8001"),
    ]
    return application(store, Reader(store, clock, alerts_config.defaults()), clock, [], lambda: found)


def application(
    store: Store, reader: Reader, clock: ScaledClock, runs: list[RunSettings], candidates: Candidates | None = None
) -> FastAPI:
    api = create_api(reader, version="screenshots", ready=lambda: None)
    add_alerts(api, reader, store, clock, lambda token: False)
    add_rollouts(api, reader, store, clock)
    add_sandboxes(api, reader, store, clock)
    add_preflight(
        api, reader, Preflights([(run, PreflightPlan()) for run in runs], clock, lambda: active_run_names(reader))
    )
    add_what_if(api, reader)
    attach_dashboard(api, reader, version="screenshots", receivers=["oncall"], candidates=candidates)
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


def shoot(browser: Browser, url: str, theme: str, size: tuple[int, int], out: Path, *, whole: bool) -> list[str]:
    """Takes one picture, once the page reports that it is drawn. Returns its words."""
    page = exposed(
        browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme, bypass_csp=True)  # type: ignore[arg-type]
    )
    page.emulate_media(reduced_motion="reduce")
    page.goto(url)
    page.wait_for_selector("[data-page=ok], [data-page=error]")
    page.wait_for_function("document.documentElement.dataset.page === 'error' || RS.chartsReady()")
    # Two ticks of the server: then every cell, row and chart is drawn.
    page.wait_for_function("n => RS.ticks() >= n", arg=2)
    if whole:
        page.evaluate("RS.drawAll()")
    page.screenshot(path=out, full_page=whole)
    words: list[str] = page.evaluate(WORDS)
    page.close()
    return words


def addresses(only_scene: str, only_page: str, runs: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields (scene, page key, path with query) of every picture."""
    for scene in SCENES:
        for page in PAGES:
            shown = SHOWN.get(page.key, MAIN) == scene.name
            if (only_page or page.key) != page.key or (only_scene or scene.name) != scene.name:
                continue
            if not (shown or only_scene or page.key in BRIEF):
                continue
            yield scene.name, page.key, f"{page.path}?run={runs[scene.name]}&range=1h" if scene.scenario else page.path


def pictures(
    browser: Browser, urls: Mapping[str, str], args: argparse.Namespace, runs: Mapping[str, str]
) -> dict[Path, list[str]]:
    """Takes all pictures; returns their words. A page that shows the scene of its own is named by the page only."""
    files = {}
    for scene, key, path in addresses(args.scene, args.page, runs):
        prefix = key if scene == SHOWN.get(key, MAIN) and not args.scene else f"{scene}-{key}"
        for theme in ("light", "dark"):
            for name, size in SIZES.items():
                file, whole = args.out / f"{prefix}-{theme}-{name}.png", args.whole or name == "narrow"
                files[file] = shoot(browser, urls.get(scene, urls[MAIN]) + path, theme, size, file, whole=whole)
    return files


def collected(folder: Path, clock: ScaledClock, seconds: float, only: str) -> dict[str, RunSettings]:
    """Collects the runs of all scenes, or of one, that the folder does not hold yet."""
    database = f"sqlite:///{folder}/store.db"
    migrate(database)
    settings: dict[str, RunSettings] = {}
    store = Store.open(database)
    writer = Writer(store)
    for scene in SCENES:
        kept = folder / f"{scene.name}.settings"
        if not scene.scenario or only not in ("", scene.name):
            continue
        if kept.exists():
            settings[scene.name] = pickle.loads(kept.read_bytes())
            continue
        settings[scene.name] = filled(scene, store, writer, folder, clock, seconds)
        kept.write_bytes(pickle.dumps(settings[scene.name]))
    writer.close()
    store.close()
    clock.set(START + seconds)
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".cache/screenshots"), help="where they go")
    parser.add_argument("--scene", default="", choices=["", *(scene.name for scene in SCENES)], help="all its pages")
    parser.add_argument("--page", default="", help="this page alone")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--whole", action="store_true", help="whole pages when wide, too")
    parser.add_argument("--keep", type=Path, help="folder for the collected runs; used again if it holds them")
    parser.add_argument("--readme", action="store_true", help="write the README's pictures too")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        clock = ScaledClock(START)
        settings = collected(folder, clock, 3600 * args.hours, args.scene)
        store = Store.open(f"sqlite:///{folder}/store.db")
        reader = Reader(store, clock, alerts_config.defaults())
        began = time.monotonic()
        with (
            serving(application(store, reader, clock, list(settings.values()))) as url,
            serving(empty_application(Path(temporary), clock)) as empty,
            sync_playwright() as playwright,
        ):
            browser = start(playwright)
            names = {scene: run.name for scene, run in settings.items()}
            files = pictures(browser, {MAIN: url, "empty": empty}, args, names)
            browser.close()
        store.close()
    if args.readme:
        words = {}
        for file in files:
            key, theme, size = file.stem.rsplit("-", 2)
            if key in ITS_PAGES and size == "wide":
                shutil.copy(file, README / f"{key}-{theme}.png")
                words[key] = files[file]
        WORDS_FILE.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(files)} pictures in {args.out}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
