"""Cost of scraping: Prometheus, then Rollscope, one after the other on the same fake engines. JSON lines.

    python -m bench.scrape [--engines 50,200,1000] [--seconds 60] [--only rollscope]

The page is a recorded one of vLLM (425 samples; snapshots rotate), served by a separate process whose cost is not
counted, and requested every 5 s. ``cpu_ms_per_page`` is all CPU of the process that scrapes, stores and derives,
divided by the pages served; ``tree_cpu_ms_per_page`` includes the web process. ``missed`` are scrapes that an engine
waited for in vain, ``p95_ms`` is of each one's own `scrape_duration_seconds`. Prometheus is found on PATH (Debian:
`prometheus`), or reported as absent. Linux only.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from server.store import Store

RUN = "bench"
# Before measuring, s: two intervals and the start-up.
WARM_SECONDS = 15.0
START_SECONDS = 120.0
MAX_RSS_MB = 400
TICKS = os.sysconf("SC_CLK_TCK")

PROMETHEUS_YML = """
global: {{scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 5s}}
scrape_configs: [{{job_name: engines, static_configs: [{{targets: [{targets}]}}]}}]
"""


def host(number: int) -> str:
    """Returns an engine's address: a separate host on loopback."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds and resident MB of a process."""

    cpu: float
    rss: float


def spent(pid: int) -> Spent:
    """Returns the usage of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{pid}/statm").read_text().split()
    return Spent((int(fields[11]) + int(fields[12])) / TICKS, int(status[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20))


def children(pid: int) -> list[int]:
    """Returns process ids of the children of any thread."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Terminates the started processes at the end."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def engines() -> Iterator[httpx.Client]:
    """Starts the fake engines; yields a client of their statistics."""
    command = [sys.executable, "-m", "bench._targets"]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield client


def wait_for(good: Callable[[], bool], what: str) -> None:
    """Waits until the condition is true.

    Raises:
        TimeoutError: not within two minutes.
    """
    until = time.monotonic() + START_SECONDS
    while not good():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {START_SECONDS:g} s")
        time.sleep(0.2)


def watched(asked: httpx.Client, workers: Callable[[], Sequence[int]], count: int, seconds: float) -> dict[str, Any]:
    """Warms up, then measures for ``seconds``. The first of ``workers`` is the one that scrapes."""
    wait_for(lambda: asked.get("/stats").json()["engines"] >= count, f"{count} engines scraped")
    time.sleep(WARM_SECONDS)
    since, pids = float(asked.get("/now").text), workers()
    before, peak, until = [spent(pid) for pid in pids], 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
        peak = max(peak, spent(pids[0]).rss)
    told = asked.get("/stats", params={"since": since}).json()
    used = [spent(pid).cpu - held.cpu for pid, held in zip(pids, before, strict=True)]
    pages = max(1, told["pages"])
    return {
        "pages": told["pages"], "expected": round(count * seconds / 5.0), "missed": told["missed"],
        "longest_gap_s": round(told["longest"], 2), "other_requests": told["other"],
        "cpu_ms_per_page": round(1e3 * used[0] / pages, 3), "tree_cpu_ms_per_page": round(1e3 * sum(used) / pages, 3),
        "rss_mb": round(peak),
    }  # fmt: skip


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def prometheus(binary: str, asked: httpx.Client, count: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Runs Prometheus as its users start it, with only these targets."""
    port, served = free_port(), asked.base_url.port
    targets = ", ".join(f'"{host(number)}:{served}"' for number in range(count))
    (folder / "prometheus.yml").write_text(PROMETHEUS_YML.format(targets=targets))
    command = [
        binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with ended(subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL)) as process:
        found = watched(asked, lambda: [process.pid], count, seconds)
        query = f"scrape_duration_seconds[{seconds:.0f}s]"
        answer = httpx.get(
            f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}, trust_env=False, timeout=30.0
        )
    durations = [float(v) for series in answer.json()["data"]["result"] for _, v in series["values"]]
    return found | {"p95_ms": p95(durations)}


def rollscope(asked: httpx.Client, count: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Runs Rollscope as its users start it: one command, including the dashboard."""
    port, store = asked.base_url.port, f"sqlite:///{folder}/bench.db"
    named = "\n".join(
        f'[[run.{RUN}.target]]\ncollector = "vllm"\nname = "engine-{number}"\nurl = "http://{host(number)}:{port}"'
        for number in range(count)
    )
    (folder / "rollscope.toml").write_text(f'[store]\nurl = "{store}"\n{named}\n')
    # Not the installed script, which may be of another checkout.
    command = [
        sys.executable,
        "-m",
        "server.main",
        "up",
        "-c",
        f"{folder}/rollscope.toml",
        "--port",
        "0",
        "--no-browser",
    ]
    with ended(subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)) as process:
        found = watched(asked, lambda: [*children(process.pid), process.pid], count, seconds)
    with closing(Store.open(store, read_only=True)) as opened:
        since = round((time.time() - seconds) * 1000)
        durations = [
            v for _, _, rows in opened.samples.window(RUN, ["scrape_duration_seconds"], since) for _, v in rows
        ]
        ups = [v for _, _, rows in opened.samples.window(RUN, ["up"], since) for _, v in rows]
    return found | {"p95_ms": p95(durations), "down": sum(1 for up in ups if not up)}


def p95(seconds: Sequence[float]) -> float:
    """Returns milliseconds."""
    return round(1e3 * statistics.quantiles(seconds, n=20)[-1], 1)


def say(system: str, count: int, **more: object) -> None:
    print(json.dumps({"bench": "scrape", "system": system, "engines": count, **more}), flush=True)


def compare(count: int, seconds: float, only: str) -> None:
    """Measures one size: each system with its own engines."""
    binary, reference = shutil.which("prometheus"), None
    if binary is None:
        say("prometheus", count, absent="no prometheus on PATH")
    elif only in ("", "prometheus"):
        with engines() as asked, tempfile.TemporaryDirectory(prefix="rs-bench-") as name:
            found = prometheus(binary, asked, count, seconds, Path(name))
        reference = found["cpu_ms_per_page"]
        say("prometheus", count, **found)
    if only in ("", "rollscope"):
        with engines() as asked, tempfile.TemporaryDirectory(prefix="rs-bench-") as name:
            found = rollscope(asked, count, seconds, Path(name))
        ok = not found["missed"] and found["rss_mb"] <= MAX_RSS_MB
        cheap = reference is None or found["cpu_ms_per_page"] <= reference
        say("rollscope", count, **found, reference_cpu_ms_per_page=reference, ok=ok and cheap)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="50,200,1000", help="sizes, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each is measured")
    parser.add_argument("--only", choices=("", "prometheus", "rollscope"), default="", help="one of the two")
    args = parser.parse_args()
    for count in map(int, args.engines.split(",")):
        compare(count, args.seconds, args.only)


if __name__ == "__main__":
    main()
