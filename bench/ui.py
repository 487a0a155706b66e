"""Cost of viewing a run: first chart, datum to pixel, open tabs, memory; compared with TensorBoard and trackio.

    python -m bench.ui [--only cold,pixel,tabs,collect,month,memory] [--hours 4] [--speed 60]

JSON lines, each with its target; nothing needs a network. Peers show the same run, written by their own writers, in
the same Chromium in the same minutes: ratios hold where the machine is busy, times are of the machine. ``slowness``
is the duration of a fixed piece of work, 1 on an idle machine. Memory over two hours in real time, or nearly:
``--only memory --hours 2 --speed 4``.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

from bench import ui_live, ui_peers
from bench.dashboard import DRAWN, cold, installed, report, slowness
from bench.ui_peers import Peer
from bench.ui_store import hour, lengths, web
from server.signals.model import TICK_SECONDS
from tests.browser_support import start

PARTS = ("cold", "pixel", "tabs", "collect", "month", "memory")
RUN = "verl"


@dataclass(frozen=True, slots=True)
class Asked:
    """Durations and counts."""

    opens: int
    steps: int
    keys: int
    seconds: float
    viewers: int
    days: float
    hours: float
    speed: float


def first_charts(browser: Browser, asked: Asked, folder: Path) -> None:
    """The same run in three viewers: the first chart, megabytes, and the cost of an open, untouched tab."""
    begin = time.time() - asked.steps * ui_peers.STEP_SECONDS
    logs = folder / "tensorboard"
    ui_peers.write("tensorboard", logs, asked.steps, asked.keys, begin)
    with ExitStack() as stack:
        words = ["watch", str(logs), "--run", RUN, "--store", f"sqlite:///{folder}/cold.db"]
        served = stack.enter_context(installed(*words))
        _collected(served.url)
        ours = Peer("rollscope", f"{served.url}/?run={RUN}&range=all", DRAWN, served.process.pid)
        viewers = [ours, *_peers(stack, asked, folder, logs, begin)]
        # In turn, so that other load on the machine affects all of them.
        opens = [[cold(browser, one.url, one.drawn) for one in viewers] for _ in range(asked.opens + 1)][1:]
        for number, one in enumerate(viewers):
            seconds = statistics.median(turn[number][0] for turn in opens)
            megabytes = max(turn[number][1] for turn in opens)
            _say_cold(one, seconds, megabytes, [turn[0] for turn in opens])
        for one in viewers:
            _say_idle(browser, one, asked.seconds)


def _collected(url: str) -> None:
    """Waits until every step of the log is stored: the newest value does not change any more."""
    before: float | None = None
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as client:
        while True:
            runs = client.get("/api/v1/runs").json()
            now = runs[0]["last_ts"] if runs else None
            if now is not None and now == before and now > time.time() - 60:
                return
            before = now
            time.sleep(1.0)


def _peers(stack: ExitStack, asked: Asked, folder: Path, logs: Path, begin: float) -> list[Peer]:
    """Starts the viewers; prints a line with the reason for each that cannot start."""

    def written() -> Path:
        ui_peers.write("trackio", folder / "trackio", asked.steps, asked.keys, begin)
        return folder / "trackio"

    makers: dict[str, Callable[[], Peer]] = {
        "TensorBoard": lambda: stack.enter_context(ui_peers.tensorboard(logs)),
        "trackio": lambda: stack.enter_context(ui_peers.trackio(written())),
    }
    found = []
    for name, make in makers.items():
        try:
            found.append(make())
        except (OSError, RuntimeError) as error:
            report(f"{name}: not measured", None, why=str(error)[:300])
    return found


def _say_cold(one: Peer, seconds: float, megabytes: float, ours: Sequence[tuple[float, float]]) -> None:
    if one.name == "rollscope":
        report("cold first chart, rollscope: s", seconds, 1.5, slowness=slowness())
        report("cold first chart, rollscope: MB on the wire", megabytes, 0.8)
        return
    ratios = {"times_ours": round(seconds / statistics.median(s for s, _ in ours), 2)}
    report(f"cold first chart, {one.name}: s", seconds, None, **ratios)
    weight = {"times_ours": round(megabytes / max(mb for _, mb in ours), 2)}
    report(f"cold first chart, {one.name}: MB on the wire", megabytes, None, **weight)


def _say_idle(browser: Browser, one: Peer, seconds: float) -> None:
    found = ui_live.untouched(browser, one.url, one.drawn, one.cpu, seconds)
    name = f"untouched tab, no new data, {one.name}"
    report(f"{name}: kB/s", found["kb"], None, requests=found["requests"])
    report(f"{name}: server CPU ms per second", found["cpu"], None)


def month(browser: Browser, asked: Asked, folder: Path, like: str, run: str) -> None:
    """Measures the first chart of a run of a month and one of half an hour, both over all of their time."""
    began = time.monotonic()
    store = lengths(str(folder), like, run, asked.days)
    filled = round(time.monotonic() - began)
    with web(store) as served:
        urls = {name: f"{served.url}/?run={name}&range=all" for name in ("short", "long")}
        turns = [{name: cold(browser, url)[0] for name, url in urls.items()} for _ in range(asked.opens + 1)][1:]
        loads = {name: _answer_ms(served.cpu, served.url, name) for name in urls}
    found = {name: statistics.median(turn[name] for turn in turns) for name in urls}
    more = {"short_s": round(found["short"], 2), "long_s": round(found["long"], 2), "filled_in_s": filled}
    report(f"{asked.days:g} days beside 30 minutes: first chart, ratio", found["long"] / found["short"], 1.25, **more)
    ratio = loads["long"] / max(1.0, loads["short"])
    parts = {name: round(ms, 1) for name, ms in loads.items()}
    report(f"{asked.days:g} days beside 30 minutes: server CPU of a load, ratio", ratio, None, ms=parts)


def _answer_ms(cpu: Callable[[], float], url: str, run: str, times: int = 20) -> float:
    """Returns server CPU of one page load's answer."""
    body = ui_live.page_request(run)
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as client:
        client.post("/_dash-update-component", json=body).raise_for_status()
        before = cpu()
        for _ in range(times):
            client.post("/_dash-update-component", json=body).raise_for_status()
    return 1000 * (cpu() - before) / times


def measure(browser: Browser, only: Sequence[str], asked: Asked) -> None:
    """Runs the requested parts, each with its own folders."""
    with tempfile.TemporaryDirectory(prefix="rs-bench-") as name:
        folder = Path(name)
        if "cold" in only:
            first_charts(browser, asked, folder)
        if {"pixel", "tabs", "month"} & set(only):
            store, run = hour(name)
            if "pixel" in only:
                ui_live.pixels(browser, store, run, asked.seconds)
            if "tabs" in only:
                # A run's own tick, and five times as often.
                for every in (TICK_SECONDS, 1.0):
                    ui_live.costs(browser, store, run, (1, asked.viewers), asked.seconds, every)
                ui_live.finished(browser, store, run, asked.seconds)
            if "month" in only:
                month(browser, asked, folder, store, run)
        if "collect" in only:
            ui_live.beside(browser, asked.viewers, asked.seconds)
        if "memory" in only:
            ui_live.memory(browser, asked.viewers, asked.hours, asked.speed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--opens", type=int, default=5, help="cold opens of each viewer")
    parser.add_argument("--steps", type=int, default=5000, help="of the run that all viewers show")
    parser.add_argument("--keys", type=int, default=50, help="values of each step")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each state is watched")
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--days", type=float, default=30.0, help="of the long run")
    parser.add_argument("--hours", type=float, default=4.0, help="of the run, for memory")
    parser.add_argument("--speed", type=float, default=60.0, help="how fast those pass")
    given = vars(parser.parse_args())
    only = given.pop("only").split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with sync_playwright() as playwright:
        browser = start(playwright)
        measure(browser, only, Asked(**given))
        browser.close()


if __name__ == "__main__":
    main()
