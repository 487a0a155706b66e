"""Parts of `bench.ui`: programs that serve, tabs in a real Chromium, and viewers without a screen.

Server figures are from the server process (/proc), so that the browser's work on the same cores does not count. The
current speed of the machine is printed with times (`slowness`); ratios hold on any machine.
"""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from playwright.sync_api import Browser, CDPSession, Page, Request

from bench.server import cpu_seconds
from dashboard.shell.layout import INTERVAL_MS

SCENARIO = "generator-bound"
# True when a line of a chart is drawn on a complete page.
DRAWN = "() => document.querySelector('[data-page=ok]') && document.querySelector('.scatterlayer .lines path')"
# The demo collects its first hour in half a minute; on a busy machine it has taken three.
HOUR_SECONDS = 600.0
# A demo whose clock runs has data of its newest tick of 5 s, or of the one before.
RECENT_SECONDS = 15.0
SIZE = {"width": 1440, "height": 900}
PULL = '"delta.data"'
ASK = "/_dash-update-component"
# Milliseconds of a fixed piece of Python on an idle machine; with eight other jobs it has been twice as much.
_UNIT_MS, _UNIT_LOOPS = 3.7, 400


def report(bench: str, value: float | None, target: float | None = None, **more: Any) -> None:
    """Prints one JSON line; ``value`` None: not measured, and ``more`` has the reason."""
    judged = {} if target is None or value is None else {"target": target, "ok": value <= target}
    shown = None if value is None else round(value, 3)
    print(json.dumps({"bench": bench, "value": shown, **judged, **more}), flush=True)


def slowness() -> float:
    """Returns the time of a fixed piece of work relative to the idle machine of the README's figures."""
    example, began = {"a": [1, 2, 3], "b": {"c": "x" * 20}}, time.process_time()
    for _ in range(_UNIT_LOOPS):
        json.loads(json.dumps(example))
        names = sorted(str(number) for number in range(20))
        dict(zip(names, names, strict=True))
    return round(1000 * (time.process_time() - began) / _UNIT_MS, 2)


@dataclass
class Served:
    """A server's process."""

    process: subprocess.Popen[str]
    url: str

    def cpu(self) -> float:
        """Returns processor seconds so far."""
        return cpu_seconds(self.process.pid)

    def rss_mb(self) -> float:
        """Returns resident memory now."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def runs(self) -> list[str]:
        """Returns run names, the one with the newest data first."""
        return [run["name"] for run in self._runs()]

    def newest(self) -> float:
        """Returns the time of the newest datum, epoch seconds; 0 without any."""
        return max((run["last_ts"] or 0.0 for run in self._runs()), default=0.0)

    def _runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/api/v1/runs", trust_env=False, timeout=60.0).json()
        return found


@contextlib.contextmanager
def installed(*words: str) -> Iterator[Served]:
    """Runs `rollscope` with these arguments until the block ends.

    Raises:
        RuntimeError: it ended without serving.
    """
    command = [sys.executable, "-P", "-m", "server.main", *words, "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next((m[1] for line in process.stdout if (m := re.search(r"Rollscope is at (\S+)", line))), "")
        if not url:
            raise RuntimeError(f"rollscope {words[0]}: ended with {process.wait()}")
        yield Served(process, url)
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextlib.contextmanager
def demo(folder: str, speed: float) -> Iterator[Served]:
    """Runs `rollscope demo` until its first hour is collected; its store is ``folder``/demo.db.

    Raises:
        TimeoutError: the hour is not complete after `HOUR_SECONDS`.
    """
    words = ["demo", "--scenario", SCENARIO, "--speed", str(speed), "--store", f"sqlite:///{folder}/demo.db"]
    with installed(*words) as served:
        end = time.monotonic() + HOUR_SECONDS
        while served.newest() < time.time() - RECENT_SECONDS:
            if time.monotonic() > end:
                raise TimeoutError(f"the demo's first hour is not complete after {HOUR_SECONDS:g} s")
            time.sleep(0.5)
        yield served


class Counted:
    """Counts bytes on the wire of one tab, with headers and compressed, from the browser's network log."""

    def __init__(self, page: Page) -> None:
        self.bytes, self.requests = 0.0, 0
        session: CDPSession = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._finished)

    def _finished(self, event: dict[str, Any]) -> None:
        self.bytes += event["encodedDataLength"]
        self.requests += 1


def cold(browser: Browser, url: str, drawn: str = DRAWN) -> tuple[float, float]:
    """Returns (seconds to the first chart drawn, MB until then) of a browser with an empty cache."""
    context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
    page = context.new_page()
    counted = Counted(page)
    page.goto(url, wait_until="commit")
    page.wait_for_function(drawn, polling=20, timeout=120_000)
    seconds = page.evaluate("performance.now() / 1000")
    # Requests in flight when the chart was drawn belong to the page load.
    page.wait_for_timeout(300)
    found = counted.bytes / 1e6
    context.close()
    return seconds, found


@contextlib.contextmanager
def tabs(browser: Browser, url: str, count: int, drawn: str = DRAWN) -> Iterator[list[tuple[Page, Counted]]]:
    """Opens tabs, each with its chart drawn."""
    context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
    found = []
    for _ in range(count):
        page = context.new_page()
        found.append((page, Counted(page)))
        page.goto(url, wait_until="commit")
        page.wait_for_function(drawn, timeout=120_000)
    yield found
    context.close()


def heap_mb(page: Page) -> float:
    """Returns the memory of the page's scripts after a garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used / 1e6


def pull_of(page: Page) -> dict[str, Any]:
    """Returns the request of this tab at a tick."""

    def asks(request: Request) -> bool:
        return ASK in request.url and PULL in (request.post_data or "")

    with page.expect_request(asks, timeout=60_000) as found:
        pass
    asked: dict[str, Any] = found.value.post_data_json
    return asked


@dataclass
class Viewers:
    """Tabs without a screen: each sends the requests of a real tab, at the same rate, and uses the answers.

    ``bytes``: of the answers' bodies; ``asked``: number of requests, ``failed``: number of answers that were not 200.
    """

    url: str
    pull: dict[str, Any]
    count: int
    bytes: int = 0
    asked: int = 0
    failed: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "Viewers":
        for number in range(self.count):
            self._threads.append(threading.Thread(target=self._look, args=(number / max(1, self.count),)))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _look(self, phase: float) -> None:
        pull, every = json.loads(json.dumps(self.pull)), INTERVAL_MS / 1000
        wanted = pull["inputs"][0]["value"]
        due = time.monotonic() + phase * every
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60.0) as client:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                self._note(answer := client.post(ASK, json=pull))
                if answer.status_code == httpx.codes.OK:
                    told = answer.json()["response"]["delta"]["data"]
                    wanted |= {key: told[key] for key in ("cursor", "have") if key in told} | {"n": wanted["n"] + 1}
                # A tick while a request is pending is skipped, as in a tab.
                due = max(due + every, time.monotonic())

    def _note(self, answer: httpx.Response) -> None:
        with self._lock:
            self.asked += 1
            self.bytes += len(answer.content)
            self.failed += answer.status_code != httpx.codes.OK


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Least squares: increase of the second per unit of the first."""
    n, xs, ys = len(samples), [x for x, _ in samples], [y for _, y in samples]
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0
