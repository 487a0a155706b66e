"""The live half of `bench.ui`: from a datum to its pixel, cost of a tab, viewers during collection, memory."""

import bisect
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from playwright.sync_api import Browser, Page

from bench import scrape
from bench.dashboard import (
    DRAWN,
    Served,
    Viewers,
    demo,
    heap_mb,
    installed,
    pull_of,
    report,
    slope,
    slowness,
    tabs,
)
from bench.ui_store import Feed, feed, web
from dashboard.pages import PAGES
from server.store import Store
from server.store.types import Batch

# Coprime with the tick, so that data fall into every phase of a tab's ticks.
BEAT_SECONDS = 1.037
ENGINES = 50
WARM_SECONDS = 5.0
# The page has the time of its newest datum as an attribute; the datum is on the screen after the next frame.
_WATCH = """() => {
  const app = document.getElementById("app");
  window.shownSeqs = [];
  new MutationObserver(() => {
    const seq = Number((app.dataset.seq || "").split(":")[1] || 0), dom = Date.now() / 1000;
    requestAnimationFrame(() => setTimeout(() => window.shownSeqs.push([seq, dom, Date.now() / 1000])));
  }).observe(app, { attributes: true, attributeFilter: ["data-seq"] });
}"""


def pixels(browser: Browser, store: str, run: str, seconds: float) -> None:
    """Measures from before the commit of a tick's data to the frame that shows it."""
    with web(store) as served, tabs(browser, f"{served.url}/?run={run}", 1) as [(page, _)]:
        page.evaluate(_WATCH)
        with feed(store, run, BEAT_SECONDS) as told:
            page.wait_for_timeout(1000 * seconds)
        page.wait_for_timeout(3000)
        shown: list[list[float]] = page.evaluate("window.shownSeqs")
        told_times = _seen(told, shown)
    load = {"slowness": slowness(), "data": len(told.written)}
    for name, part in (("in the DOM", 0), ("on the screen", 1)):
        late = sorted(times[part] for times in told_times)
        p50, p95 = statistics.median(late), statistics.quantiles(late, n=20, method="inclusive")[-1]
        more = {"p50": round(p50, 3), "max": round(late[-1], 3), "lost": len(told.written) - len(late)}
        report(f"datum to pixel, 1 s tick, {name}: p95 s", p95, 1.0, **more, **load)


def _seen(told: Feed, shown: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Returns per datum (seconds to the DOM, to the screen); nothing for a datum that was never shown."""
    first: dict[int, tuple[float, float]] = {}
    by_seq = sorted(told.written)
    done = 0
    for seq, dom, screen in shown:
        upto = bisect.bisect_right(by_seq, seq)
        for number in by_seq[done:upto]:
            first[number] = (dom - told.written[number], screen - told.written[number])
        done = max(done, upto)
    return list(first.values())


def costs(browser: Browser, store: str, run: str, counts: Sequence[int], seconds: float, every: float) -> None:
    """Measures server CPU per open tab and second, without a tick's own: one real tab, others replay its requests."""
    for count in counts:
        with ExitStack() as stack:
            served = stack.enter_context(web(store))
            [(page, wire)] = stack.enter_context(tabs(browser, f"{served.url}/?run={run}", 1))
            stack.enter_context(feed(store, run, every))
            others = stack.enter_context(Viewers(served.url, pull_of(page), count - 1))
            page.wait_for_timeout(1000 * WARM_SECONDS)
            taken, cpu, asked, began = wire.bytes, served.cpu(), others.asked + wire.requests, time.monotonic()
            page.wait_for_timeout(1000 * seconds)
            took = time.monotonic() - began
            ms, kb = 1000 * (served.cpu() - cpu) / took / count, (wire.bytes - taken) / took / 1000
            looks = (others.asked + wire.requests - asked) / took / count
        more = {"looks_per_tab_s": round(looks, 2), "slowness": slowness(), "failed": others.failed}
        report(f"{count} open tab(s), {every:g} s tick: server CPU ms per tab and second", ms, 10.0, **more)
        report(f"{count} open tab(s), {every:g} s tick: kB/s per tab", kb, 10.0)


def untouched(browser: Browser, url: str, drawn: str, cpu: Callable[[], float], seconds: float) -> dict[str, float]:
    """Measures an open, untouched tab: its requests, kB/s and the server's CPU ms per second."""
    with tabs(browser, url, 1, drawn) as [(page, wire)]:
        page.wait_for_timeout(1000 * WARM_SECONDS)
        taken, asked, spent, began = wire.bytes, wire.requests, cpu(), time.monotonic()
        page.wait_for_timeout(1000 * seconds)
        took = time.monotonic() - began
        found = {"requests": wire.requests - asked, "kb": (wire.bytes - taken) / took / 1000}
        return found | {"cpu": 1000 * (cpu() - spent) / took}


def finished(browser: Browser, store: str, run: str, seconds: float) -> None:
    """The same for a run that is over."""
    with closing(Store.open(store)) as opened:
        opened.write(Batch(run, run_fields={"lifecycle": "finished"}))
    with web(store) as served:
        found = untouched(browser, f"{served.url}/?run={run}", DRAWN, served.cpu, seconds)
    report("open tab of a finished run: kB/s", found["kb"], 0.0, requests=found["requests"], seconds=seconds)
    report("open tab of a finished run: server CPU ms per second", found["cpu"], None)


def page_request(run: str) -> dict[str, Any]:
    """Returns the first request of a browser for a run's overview over all of its time."""
    wanted = {"path": "", "search": f"?run={run}&range=all", "have": [], "tz": 0, "touch": False, "n": 1}
    places = [("boot", "data"), ("runs", "children"), ("ranges", "children")]
    places += [(f"page-{page.key}", "children") for page in PAGES]
    return {
        "output": f"..{'...'.join('.'.join(place) for place in places)}..",
        "outputs": [{"id": one, "property": name} for one, name in places],
        "inputs": [{"id": "view", "property": "data", "value": wanted}],
        "changedPropIds": ["view.data"], "parsedChangedPropsIds": ["view.data"],
    }  # fmt: skip


def beside(browser: Browser, viewers: int, seconds: float) -> None:
    """Measures whether collection misses scrapes with many viewers. Engines count the requests."""
    found = {}
    for count in (0, viewers):
        with scrape.engines() as asked, tempfile.TemporaryDirectory(prefix="rs-bench-") as folder:
            port = asked.base_url.port
            urls = [f"http://{scrape.host(number)}:{port}" for number in range(ENGINES)]
            words = ["watch", *urls, "--run", "bench", "--store", f"sqlite:///{folder}/b.db"]
            with installed(*words) as served:
                pids = lambda pid=served.process.pid: [*scrape.children(pid), pid]  # noqa: E731
                watched: Callable[[], dict[str, Any]] = lambda a=asked, p=pids: scrape.watched(a, p, ENGINES, seconds)  # noqa: E731
                found[count] = _looked_at(browser, served, count, watched)
    missed, alone = found[viewers], found[0]
    more = {"engines": ENGINES, "pages": missed["pages"], "expected": missed["expected"], "slowness": slowness()}
    gaps = {"longest_gap_s": missed["longest_gap_s"], "alone_longest_gap_s": alone["longest_gap_s"]}
    name = f"{viewers} viewers beside collection: missed scrapes"
    report(name, missed["missed"], 0.0, alone=alone["missed"], **gaps, **more)


def _looked_at(browser: Browser, served: Served, count: int, watched: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not count:
        return watched()
    with tabs(browser, f"{served.url}/?run=bench", 1) as [(page, _)]:
        with Viewers(served.url, pull_of(page), count - 1) as others:
            found = watched()
        assert not others.failed, f"{others.failed} of {others.asked} looks failed"
        return found


def memory(browser: Browser, clients: int, hours: float, speed: float) -> None:
    """Slopes of the page's heap and the server's memory over compressed time: second half, then first half.

    The first half includes caches, windows of an hour and allocator arenas, which fill once.
    """
    real = min(2, clients)
    with tempfile.TemporaryDirectory(prefix="rs-bench-") as folder, demo(folder, speed) as served:
        (run,) = served.runs()
        with tabs(browser, f"{served.url}/?run={run}", real) as opened:
            pages = [page for page, _ in opened]
            with Viewers(served.url, pull_of(pages[0]), clients - real) as others:
                samples = _sampled(pages, served, hours, speed)
    halves = [one for one in samples if one[0] >= hours / 2], [one for one in samples if one[0] <= hours / 2 + 0.1]
    more = {"clients": clients, "hours": hours, "speed": speed, "looks": others.asked, "failed": others.failed}
    for name, part, last in (("heap of the page", 1, samples[-1][1]), ("server RSS", 2, samples[-1][2])):
        growth, warming = (slope([(one[0], one[part]) for one in half]) for half in halves)
        spread = [round(one[part], 1) for one in samples]
        warm = {"first_half": round(warming, 2), "last_mb": round(last, 1)}
        report(f"{name}: MB per hour", growth, None, **warm, samples_mb=spread, **more)


def _sampled(pages: Sequence[Page], served: Served, hours: float, speed: float) -> list[tuple[float, float, float]]:
    """(hours of the run, heap MB, server MB), eight times and at the start."""
    began, found = time.monotonic(), []
    for eighth in range(9):
        wait = began + eighth * hours * 3600 / speed / 8 - time.monotonic()
        pages[0].wait_for_timeout(1000 * max(0.0, wait))
        at = (time.monotonic() - began) * speed / 3600
        found.append((at, statistics.mean(heap_mb(page) for page in pages), served.rss_mb()))
    return found
