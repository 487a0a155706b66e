"""Cost of the whole program: idle CPU, and latency from an engine's page to the API.

Starts the installed program against a real engine page on loopback and measures its process from outside.
Prints JSON lines; each names its reference or its target.
"""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

PAGES = sorted((Path(__file__).parent.parent / "tests/testdata/vllm/default").glob("metrics_*_load.prom"))
ENGINES = 4
IDLE_SECONDS = 60.0
TRIALS = 20
TICK = 5.0


class Engine(ThreadingHTTPServer):
    """Serves one recorded page with a settable `running`; records when it changed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.body = PAGES[0].read_bytes()

    def show(self, running: int) -> None:
        """Returns the page of an engine with that many running requests."""
        lines = PAGES[0].read_bytes().splitlines(keepends=True)
        name = b'vllm:num_requests_running{engine="0",model_name="tiny"}'
        self.body = b"".join(name + b" %d\n" % running if line.startswith(name) else line for line in lines)


class _Page(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def cpu_seconds(pid: int) -> float:
    """Returns user and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def start(folder: str, engines: list[Engine]) -> tuple[subprocess.Popen[str], str]:
    urls = [f"http://127.0.0.1:{engine.server_address[1]}" for engine in engines]
    script = Path(sys.executable).parent / "rollscope"
    process = subprocess.Popen(
        [str(script), "watch", *urls, "--run", "bench", "--port", "0", "--no-browser", "--store", f"sqlite:///{folder}/b.db"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def wait_for(read: Callable[[], Any], good: Callable[[Any], bool]) -> None:
    while not good(read()):
        time.sleep(0.02)


def running(client: httpx.Client) -> float | None:
    signals = client.get("/api/v1/runs/bench/status").json().get("signals", {})
    found = signals.get('generator_requests_now{state="running"}', {})
    value: float | None = found.get("value")
    return value


def idle(process: subprocess.Popen[str]) -> dict[str, object]:
    before = cpu_seconds(process.pid)
    time.sleep(IDLE_SECONDS)
    share = (cpu_seconds(process.pid) - before) / IDLE_SECONDS
    return {
        "bench": f"idle cpu, {ENGINES} engines, cores",
        "value": round(share, 4),
        "target": 0.03,
        "ok": share <= 0.03,
    }


def visibility(client: httpx.Client, engine: Engine) -> dict[str, object]:
    """Measures from the moment an engine's page changes to the API's answer that contains it."""
    seconds = []
    for trial in range(TRIALS):
        time.sleep((trial * 1.93) % TICK)  # so that changes fall into all phases of the scrape interval
        engine.show(1000 + trial)
        began = time.monotonic()
        wait_for(lambda: running(client), lambda value, n=trial: value is not None and value >= 1000 + n)
        seconds.append(time.monotonic() - began)
    seconds.sort()
    p50, p95 = seconds[TRIALS // 2], seconds[int(TRIALS * 0.95) - 1]
    # A change waits for the next scrape (0 to one interval), then for commit, signals and commit.
    return {
        "bench": "page to API, s", "p50": round(p50, 2), "p95": round(p95, 2), "max": round(seconds[-1], 2),
        "target": TICK, "ok": p95 <= TICK,
    }  # fmt: skip


def main() -> None:
    engines = [Engine() for _ in range(ENGINES)]
    for engine in engines:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        engine.show(1)
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(folder, engines)
        try:
            with httpx.Client(base_url=url, trust_env=False) as client:
                wait_for(lambda: running(client), lambda value: value == ENGINES)
                print(json.dumps(idle(process)), flush=True)
                for engine in engines[1:]:
                    engine.show(0)
                print(json.dumps(visibility(client, engines[0])), flush=True)
        finally:
            process.terminate()
            process.wait()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"bench": "peak memory, MB", "value": round(usage.ru_maxrss / 1024)}), flush=True)


if __name__ == "__main__":
    main()
