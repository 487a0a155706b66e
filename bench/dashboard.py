"""What an open dashboard costs: the first chart, bytes and processor time per tab, memory over hours. JSON lines.

    python -m bench.dashboard [--tabs 10] [--seconds 60]

The installed program serves a demo, real Chromium tabs look at it. Server figures are the server process' own
(/proc), so that the browser's work beside it on the same cores does not count. Times to the first chart are of this
machine; everything else holds on any.
"""

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from bench.server import cpu_seconds
from tests.browser_support import start

COLD_OPENS = 5
SCENARIO = "generator-bound"
READY = "() => document.querySelector('[data-page=ok]') && RS.chartsReady() && RS.plots().length > 0"


def report(bench: str, value: float, target: float | None = None, **more: Any) -> None:
    judged = {} if target is None else {"target": target, "ok": value <= target}
    print(json.dumps({"bench": bench, "value": round(value, 3), **judged, **more}), flush=True)


class Program:
    """`rollscope demo`, once its first hour is there."""

    def __init__(self, folder: str, speed: float) -> None:
        words = [sys.executable, "-P", "-m", "server.main", "demo", "--scenario", SCENARIO, "--port", "0"]
        words += ["--no-browser", "--speed", str(speed), "--store", f"sqlite:///{folder}/store-{speed:g}.db"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.url = next(m[1] for line in self.process.stdout if (m := re.search(r"Rollscope is at (\S+)", line)))
        for line in self.process.stderr:
            if "first hour is there" in line:
                break
        self.run = httpx.get(f"{self.url}/api/v1/runs", trust_env=False).json()[0]["name"]

    def rss_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


@contextlib.contextmanager
def program(folder: str, speed: float) -> Iterator[Program]:
    found = Program(folder, speed)
    try:
        yield found
    finally:
        found.end()


class Counted:
    """Bytes on the wire of one tab, with headers and compressed, as the browser's own network log counts them."""

    def __init__(self, page: Page) -> None:
        self.bytes, self.requests = 0.0, 0
        session: CDPSession = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._finished)

    def _finished(self, event: dict[str, Any]) -> None:
        self.bytes += event["encodedDataLength"]
        self.requests += 1


def cold(browser: Browser, url: str) -> tuple[float, float]:
    """(seconds to the first chart drawn, MB) of a browser that has seen nothing."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    counted = Counted(page)
    page.goto(url)
    page.wait_for_function(READY, polling=20)
    seconds = page.evaluate("performance.now() / 1000")
    page.wait_for_load_state("networkidle")
    context.close()
    return seconds, counted.bytes / 1e6


def watched(browser: Browser, served: Program, tabs: int, seconds: float) -> dict[str, float]:
    """Server CPU (s) and bytes of ``tabs`` open tabs over so many seconds."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    pages = [context.new_page() for _ in range(tabs)]
    counts = [Counted(page) for page in pages]
    for page in pages:
        page.goto(f"{served.url}/?run={served.run}")
        page.wait_for_function(READY)
    settle(pages, 5)
    before, began, cpu = sum(one.bytes for one in counts), time.monotonic(), served.cpu()
    settle(pages, seconds)
    took = time.monotonic() - began
    found = {"cpu": (served.cpu() - cpu) / took, "bytes": (sum(one.bytes for one in counts) - before) / took}
    context.close()
    return found


def settle(pages: Sequence[Page], seconds: float) -> None:
    """Let them live for so long. Without a tab the server alone."""
    if pages:
        pages[0].wait_for_timeout(1000 * seconds)
    else:
        time.sleep(seconds)


def heap_mb(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    return used / 1e6


def flat(browser: Browser, served: Program, tabs: int, quarters: int, seconds: float) -> None:
    """Memory of tabs and server over compressed time, a line per quarter."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    pages = [context.new_page() for _ in range(tabs)]
    for page in pages:
        page.goto(f"{served.url}/?run={served.run}")
        page.wait_for_function(READY)
    for quarter in range(quarters):
        settle(pages, seconds)
        heap = statistics.mean(heap_mb(page) for page in pages)
        report(f"memory, quarter {quarter + 1}", served.rss_mb(), unit="MB of the server", heap_mb=round(heap, 1))
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = start(playwright)
        with program(folder, 1.0) as served:
            opens = [cold(browser, f"{served.url}/?run={served.run}") for _ in range(COLD_OPENS)]
            report("cold open: seconds to the first chart", statistics.median(one for one, _ in opens), 1.5)
            report("cold open: MB", max(mb for _, mb in opens), 0.8)
            alone = watched(browser, served, 0, args.seconds)
            for tabs in (1, args.tabs):
                found = watched(browser, served, tabs, args.seconds)
                more = 1000 * (found["cpu"] - alone["cpu"]) / tabs
                report(f"{tabs} tabs: server ms per tab and second", more, 10.0, alone_ms=round(1000 * alone["cpu"], 1))
                report(f"{tabs} tabs: kB/s per tab", found["bytes"] / tabs / 1000, 10.0)
        with program(folder, 60.0) as served:
            flat(browser, served, args.tabs, 4, 30.0)
        browser.close()


if __name__ == "__main__":
    main()
