"""Rollout records: rate of ingest, and cost of a page among a million. JSON lines: bench, value, target, ok.

    python -m bench.rollouts [sqlite] [postgres] [--only ingest|pages] [--rows N] [--seconds S] [--quick]
    python -m bench.rollouts --store URL [--rows N]

Ingest is measured from outside: a real server, records over HTTP as NDJSON, until the last one is a committed row.
``cores`` is the CPU usage of the server's process meanwhile, ``cpu_us`` its cost per rollout (PostgreSQL's own
processes are in neither). Pages are queried from the reader of the dashboard and the API, in every order, with
every filter, at their beginning and deep inside; ``cpu_p95`` is the processor time of both sides (of a PostgreSQL on
this machine too), which a busy machine changes less.
PostgreSQL comes from the tests' wheel, or from ROLLSCOPE_TEST_POSTGRES. ``--store`` queries pages of an existing
database; it is filled if it is empty, and can be used again.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import httpx
import psycopg
from msgspec import structs

from bench.server import cpu_seconds
from collectors.model import Consumption, Exit, Rollout, Turn
from server.ingest.rollouts import root_bin
from server.lib.clock import WallClock
from server.query import Reader
from server.query.types import RolloutFilter, Sort
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.store import Store, migrate
from server.store.types import Batch, RolloutBin, RolloutSum
from tests import support_postgres

RATE, PAGE_MS = 2_000.0, 50.0
# As in docker-compose.yml (docs/reference/store.md).
BUFFERS = "512MB"
GROUP, STEP = 16, 512
ENVIRONMENTS = ("math", "code", "search", "swe", "tools")
EXITS = ("trained",) * 14 + ("aborted_oversample", "stale", "zero_advantage", "infra_error", "env_error", "surplus")
BODY = 250


def line(bench: str, value: float, target: float, *, at_most: bool = False, **more: object) -> None:
    """Prints one result. ``at_most``: the value is bounded from above."""
    ok = value <= target if at_most else value >= target
    print(json.dumps({"bench": bench, "value": round(value, 2), **more, "target": target, "ok": ok}), flush=True)


# ---- ingest


def records(count: int, now: float, parts: int) -> list[dict[str, Any]]:
    """Records of an asynchronous trainer, each rollout in one line or in two: when it ended, when it was used."""
    rng, found = random.Random(1), []
    for n in range(count):
        version, begun = n // STEP, now - 600 + 600 * n / count
        tokens = round(rng.lognormvariate(7, 0.8)) + 1
        made = {
            "rollout_id": f"rollout-{n:09}", "group_id": f"group-{n // GROUP:07}", "group_size": GROUP,
            "environment": ENVIRONMENTS[n % 5], "purpose": "train", "version_start": version,
            "version_finish": version + (n % 7 == 0), "dispatched_at": begun - 60, "started_at": begun - 58,
            "finished_at": begun - 10, "scored_at": begun - 9, "prompt_tokens": 400, "response_tokens": tokens,
            "loss_tokens": tokens, "token_versions": [[version, tokens]], "reward": float(rng.random() < 0.5),
            "max_reward": 1.0, "turns": [{"version": version, "tool_calls": 1, "mutated": True}] * 3,
        }  # fmt: skip
        used = {"rollout_id": made["rollout_id"], "version_consumed": version + 2, "consumed_at": begun}
        found += [made | used] if parts == 1 else [made, used]
    return found


def ingest(name: str, url: str, seconds: float, parts: int) -> None:
    """Posts as fast as the server accepts, for ``seconds``; then waits until every record is a row."""
    command = [sys.executable, "-m", "server.main", "up", "--port", "0", "--no-browser", "--store", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        # Before the address the server prints that no run is configured, and which targets it found.
        address = next(line for line in process.stdout if line.startswith("Rollscope is at ")).split()[-1]
        run = f"ingest{parts}"
        with httpx.Client(base_url=address, timeout=60) as client:
            bodies = _bodies(records(round(6 * RATE * seconds), time.time(), parts))
            cpu, begun = cpu_seconds(process.pid), time.monotonic()
            sent, refused = _post(client, run, bodies, begun + seconds)
            store = Store.open(url)
            # Bodies are accepted as a whole, so the newest id of the last one is the last row to appear.
            wanted = sent * BODY // parts
            while _rows(store, run) < wanted:
                time.sleep(0.25)
            took = time.monotonic() - begun
            store.close()
            cores = (cpu_seconds(process.pid) - cpu) / took
        kind = "one line each" if parts == 1 else "two partial lines each"
        cost = round(1e6 * cores * took / wanted)
        more: dict[str, Any] = {
            "rollouts": wanted,
            "cores": round(cores, 2),
            "cpu_us": cost,
            "refused_for_a_while": refused,
        }
        line(f"{name}: rollouts/s, pushed to committed row, {kind}", wanted / took, RATE, **more)
    finally:
        process.terminate()
        process.wait()


def _bodies(lines: Sequence[dict[str, Any]]) -> list[bytes]:
    return [
        "\n".join(json.dumps(one) for one in lines[at : at + BODY]).encode()
        for at in range(0, len(lines) - BODY + 1, BODY)
    ]


def _post(client: httpx.Client, run: str, bodies: Sequence[bytes], until: float) -> tuple[int, int]:
    """Returns (bodies accepted, refusals with Retry-After)."""
    sent = refused = 0
    for body in bodies:
        answer = client.post(f"/api/v1/runs/{run}/rollouts", content=body)
        while answer.status_code == 429:
            refused += 1
            time.sleep(0.2)
            answer = client.post(f"/api/v1/runs/{run}/rollouts", content=body)
        answer.raise_for_status()
        sent += 1
        if time.monotonic() > until:
            break
    return sent, refused


def _rows(store: Store, run: str) -> int:
    sums = store.rollouts.sums(run, 0, 1 << 42)
    return sum(one.rollouts for one in sums)


# ---- pages


def rows(count: int, end: int) -> Iterator[list[RolloutRow]]:
    """Generates a run of three days, in the order of events."""
    rng, span, held = random.Random(2), 3 * 86_400_000, []
    for n in range(count):
        moved = end - span + span * n // count + rng.randrange(1000)
        live, tokens = count - n < 1_000, round(rng.lognormvariate(7, 1.0)) + 1
        state = ("generating", "queued")[n % 2] if live else EXITS[rng.randrange(len(EXITS))]
        version = n // STEP
        record = Rollout(
            f"rollout-{n:09}", _scattered(n // GROUP), GROUP, purpose="eval" if n % 50 == 0 else "train",
            environment="rare" if n % 9973 == 0 else ENVIRONMENTS[n % 5], version_start=version,
            version_finish=version, token_versions=((version, tokens),),
            consumptions=(Consumption(version + 2, moved / 1000),) if state == "trained" else (),
            dispatched_at=moved / 1000 - 90, started_at=moved / 1000 - 80, finished_at=moved / 1000 - 10,
            prompt_tokens=400, response_tokens=tokens, loss_tokens=tokens, tool_calls=n % 7, turn_count=n % 9,
            reward=None if live else rng.choice((0.0, 0.0, 0.5, 1.0)), max_reward=1.0,
            exit=None if live else cast(Exit, state), turns=(Turn(version, 1),) * 3 if n % 20 == 0 else (),
        )  # fmt: skip
        at = moved / 1000
        held.append(
            RolloutRow.of(
                record, target="pushed", first_seen=at, seen_at=at, moved_at=at, state=state,
                seconds=None if live else rng.lognormvariate(4, 0.7), consumed=version + 2, consumed_at=at,
                staleness=rng.randrange(5), mixed=n % 3 == 0, token_staleness=1.5, detailed=n % 20 == 0,
            )
        )  # fmt: skip
        if len(held) == 5_000:
            yield held
            held = []
    if held:
        yield held


def _scattered(number: int) -> str:
    """Returns a random id, as most frameworks make them: ids of one time do not share a prefix."""
    return f"{number * 2_654_435_761 % (1 << 32):08x}"


def fill(name: str, store: Store, count: int, end: int) -> None:
    """Fills a store with ``count`` rollouts; returns the rate of writing rows without ingest."""
    took = written = 0.0
    for held in rows(count, end):
        batch = Batch("run", rollouts=held, rollout_groups=list(_groups(held)))
        batch.rollout_sums, batch.rollout_bins = _totals(held)
        begun = time.perf_counter()
        store.write(batch)
        took, written = took + time.perf_counter() - begun, written + len(held)
    line(f"{name}: rows/s into {count} rollouts, written only", written / took, RATE)


def _groups(held: Sequence[RolloutRow]) -> Iterator[RolloutGroupRow]:
    outcomes = ("mixed", "mixed", "all_solved", "none_solved", "equal_unknown", "too_few_valid")
    for n, row in enumerate(held[::GROUP]):
        yield RolloutGroupRow(
            row.group_id, 0, row.environment, "train", GROUP, GROUP, GROUP, GROUP, 0.0, 1.0, 0.5, 8,
            outcomes[n % 6], True, 1, row.moved_at, row.moved_at, row.moved_at, 3.0,
        )  # fmt: skip


def _totals(held: Sequence[RolloutRow]) -> tuple[list[RolloutSum], list[RolloutBin]]:
    sums, bins = [], []
    for row in held:
        for tier in (60_000, 3_600_000):
            at = round(row.moved_at * 1000) // tier * tier
            sums.append(RolloutSum(tier, at, row.state, row.environment, "train", 1, 400, 900, 900, 60.0))
            bins.append(RolloutBin(tier, at, "response_tokens", root_bin(row.response_tokens or 1), 1))
    return sums, bins


def questions(reader: Reader, end: float) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Returns every query of the Rollouts page by name, each several times with other positions."""
    hour, day = RolloutFilter(start=end - 3600), RolloutFilter(start=end - 86_400)
    filters = {
        "all": RolloutFilter(), "state": RolloutFilter(states=("infra_error",)),
        "env": RolloutFilter(environment="code"), "rare env": RolloutFilter(environment="rare"),
        "eval": RolloutFilter(purpose="eval"),
        "mixed": RolloutFilter(mixed=True), "group": RolloutFilter(group=_scattered(777)),
        "id": RolloutFilter(find="rollout-00000012"), "wide id": RolloutFilter(find="rollout-0000"), "hour": hour,
        "scattered id": RolloutFilter(find="a"), "rarer scattered id": RolloutFilter(find="a3"),
        "wide id + state": RolloutFilter(states=("infra_error",), find="rollout-0000"),
        "day": day, "5 min": RolloutFilter(start=end - 300), "env + hour": structs.replace(hour, environment="swe"),
        "state + env + mixed": RolloutFilter(states=("stale", "surplus"), environment="math", mixed=False),
        "nobody": RolloutFilter(find="nobody"),
    }  # fmt: skip
    for name, wanted in filters.items():
        for sort in get_args(Sort):
            for descending in (True, False):
                ask = partial(reader.rollouts.page, "run", wanted, sort=sort, descending=descending)
                yield f"rollouts, {name}", ask
                after = ask(limit=1000).after
                if after:
                    yield f"rollouts, {name}, inside", partial(ask, after=after)
    for outcomes in ((), ("too_few_valid",), ("mixed", "all_solved")):
        for environment in ("", "code", "rare"):
            yield "groups", partial(reader.rollouts.groups, "run", outcomes, environment=environment)
    # The longest range that is drawn with minutes is just short of sixty hours.
    for hours in (1, 24, 59, 72):
        start = end - 3600 * hours
        yield f"funnel, {hours} h", partial(reader.rollouts.funnel, "run", start, end)
        yield f"cells, {hours} h", partial(reader.rollouts.cells, "run", "response_tokens", start, end, 60)
    yield "census", partial(reader.rollouts.census, "run")
    yield "environments", partial(reader.rollouts.environments, "run")
    for n in range(5):
        yield "one rollout", partial(reader.rollouts.get, "run", f"rollout-{997 * n:09}")


def pages(name: str, url: str, count: int, rounds: int) -> None:
    """Returns p95 of every kind of query, each run several times."""
    store = Store.open(url)
    reader = Reader(store, WallClock())
    if not _rows(store, "run"):
        fill(name, store, count, round(time.time() * 1000))
    count = _rows(store, "run")
    # Windows end at the run's end, because an existing store may be old.
    (newest,) = reader.rollouts.page("run", RolloutFilter(), sort="moved", descending=True, limit=1).rollouts
    asked = list(questions(reader, newest.moved_at))
    took: dict[str, list[float]] = {}
    cost: dict[str, list[float]] = {}
    backends = _backends(url)
    for _ in range(rounds):
        for what, ask in asked:
            begun, cpu = time.perf_counter(), time.thread_time() + _used(backends)
            ask()
            took.setdefault(what, []).append(1000 * (time.perf_counter() - begun))
            cost.setdefault(what, []).append(1000 * (time.thread_time() + _used(backends) - cpu))
    for what, times in took.items():
        more: dict[str, Any] = {"p50": round(_part(times, 0.5), 2), "cpu_p95": round(_part(cost[what], 0.95), 2)}
        line(f"{name}: ms p95 of {count} rollouts: {what}", _part(times, 0.95), PAGE_MS, at_most=True, **more)
    store.close()


def _backends(url: str) -> list[Path]:
    """Returns CPU time of PostgreSQL's processes for us, to the nanosecond; 0 if it is on another machine."""
    if not url.startswith("postgres"):
        return []
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rollscope' AND datname = current_database()"
    with psycopg.connect(url.replace("+psycopg", "", 1)) as connection:
        found = [Path(f"/proc/{pid}/schedstat") for (pid,) in connection.execute(sql)]
    return [path for path in found if path.exists()]


def _used(backends: Sequence[Path]) -> float:
    """Returns CPU seconds."""
    return sum(int(path.read_text().split()[0]) for path in backends) / 1e9


def _part(times: Sequence[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def run(name: str, url: str, count: int, seconds: float, only: str) -> None:
    """Runs everything for one database, or one half of it."""
    migrate(url)
    for parts in (1, 2) if only != "pages" else ():
        ingest(name, url, seconds, parts)
    if only != "ingest":
        pages(name, url, count, 3)


def main() -> None:
    """Runs the requested parts; all by default."""
    parser = argparse.ArgumentParser(description="rollout records: taken per second, and pages of a million")
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--only", choices=["ingest", "pages"], default="")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rollouts that pages are asked of")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long records are pushed")
    parser.add_argument("--quick", action="store_true", help="a tenth of both")
    parser.add_argument("--store", default="", help="URL of a database to ask pages of, and to keep")
    asked = parser.parse_args()
    count, seconds = (asked.rows // 10, asked.seconds / 3) if asked.quick else (asked.rows, asked.seconds)
    if asked.store:
        run(asked.store.partition(":")[0], asked.store, count, seconds, "pages")
        return
    wanted = asked.backends or ["sqlite", "postgres"]
    if "sqlite" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            run("sqlite", f"sqlite:///{folder}/rollouts.db", count, seconds, asked.only)
    if "postgres" in wanted:
        with support_postgres.server(BUFFERS) as server, support_postgres.database(server) as url:
            run("postgres", url, count, seconds, asked.only)


if __name__ == "__main__":
    main()
