"""Compares the answers of two checkouts, which play the same recorded run and the same demo.

`python -m bench.compare_answers OLD NEW` prints every difference in verdicts, `/metrics` and `/api/v1`; exit 1 when
there is one. Time is event time. What differs between two plays of OLD itself (ports, durations, the jitter of the
demo's sockets) is left out of the comparison and counted. CPU: about 2 minutes for each of the three plays.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from bench.real_runs import recording, world
from bench.real_runs.play import grid
from demo import process
from server.api.alerts import add_alerts
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.api.runs import add_engines, add_sandboxes, add_what_if
from server.cli.demo import Cluster
from server.lib.clock import Clock, ScaledClock
from server.lib.errors import ConfigError
from server.query import Reader, UnknownRun
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer, migrate
from server.targets.model import Attached, RunSettings
from server.targets.resolve import attach, source_of

START = 1_800_000_000.0  # epoch seconds of the demo's begin: any fixed instant
EVERY_SECONDS = 10.0  # between two steps of the demo
SHOWN = 60  # differences printed
# Ports are free ones: in addresses, and in names that are made of addresses.
PORTS = re.compile(r"\b(127\.0\.0\.1|localhost)[:-]\d+")

Flat = dict[str, Any]


def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Returns leaves of JSON by path."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from flat(one, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        yield f"{path}.length", len(value)
        for index, one in enumerate(value):
            yield from flat(one, f"{path}[{index}]")
    else:
        yield path, value


def metrics(text: str) -> Flat:
    """Returns value by series."""
    return {series: value for series, _, value in (line.rpartition(" ") for line in text.splitlines()) if series}


def application(store: Store, reader: Reader, clock: Clock) -> FastAPI:
    """Returns every route that answers about a run."""
    api = create_api(reader, version="compare", ready=lambda: None)
    add_alerts(api, reader, store, clock, lambda name: False)
    add_sandboxes(api, reader, store, clock)
    add_rollouts(api, reader, store, clock)
    add_what_if(api, reader)
    add_engines(api, reader)
    return api


def answers(api: FastAPI, run: str) -> Flat:
    """Returns the answer of every GET route; a route that needs more than a run returns its refusal."""
    found: Flat = {}
    paths = sorted(
        {route.path for route in api.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())}
    )
    with TestClient(api, base_url="http://127.0.0.1") as client:
        found |= {f"metrics {series}": value for series, value in metrics(client.get("/metrics").text).items()}
        for path in paths:
            if path == "/metrics":
                continue
            # Runs are `{name}` or `{run}`; other parameters get a name that does not exist.
            answer = client.get(re.sub(r"\{(name|run)\}", run, re.sub(r"\{(?!name|run)\w+(:\w+)?\}", "none", path)))
            body = answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
            found[f"{path} status"] = answer.status_code
            found |= dict(flat(body, path))
    return found


class Recorded:
    """Plays a recording of a real run: engines' pages over HTTP and the trainer's log, at the recorded times."""

    def __init__(self, name: str, folder: Path) -> None:
        self.recording, self.folder, self.name = recording.load(name), folder, "recorded"

    def play(self, store: Store) -> Flat:
        clock = ScaledClock(self.recording.attach_at)
        with world.engines(self.recording.engines, clock.now) as urls:
            trainer = self.folder / "trainer"
            log = world.SINKS["trackio"](trainer, self.recording.log) if self.recording.log is not None else None
            found = asyncio.run(self._play(store, clock, [*urls, *([str(trainer)] if log else [])], log))
            if log is not None:
                log.close()
        return found

    async def _play(self, store: Store, clock: ScaledClock, sources: list[str], log: Any) -> Flat:
        loop = None
        found: Flat = {}
        with closing(Writer(store)) as writer:
            reader = Reader(store, clock)
            for t in grid(clock.now(), self.recording.end):
                clock.set(t)
                if log is not None:
                    log.write(t)
                if loop is None:
                    try:
                        attached = await asyncio.to_thread(
                            attach, RunSettings(self.name, tuple(map(source_of, sources)))
                        )
                    except ConfigError:
                        continue  # a source does not exist yet
                    loop = RunLoop(
                        Attached(self.name, attached.targets, attached.facts), LoopServices(store, writer, clock)
                    )
                    for one in loop.readers:
                        one._random = random.Random(0)
                await loop.step(t, patient=True)
                found |= verdict(reader, self.name, t)
            if loop is not None:
                await loop.close()
            writer.flush()
        return found | answers(application(store, reader, clock), self.name)


class Demo:
    """Plays a scenario of the demo with a fixed seed, in this process."""

    def __init__(self, scenario: str, seconds: float, folder: Path) -> None:
        self.scenario, self.seconds, self.folder = scenario, seconds, folder

    def play(self, store: Store) -> Flat:
        clock = ScaledClock(START)
        with closing(process.Demo(self.scenario, 1, self.folder / "demo", START, 0.0, [])) as demo:
            cluster = Cluster.__new__(Cluster)
            cluster.ready = demo.ready
            run = attach(cluster.settings())
            return asyncio.run(self._play(store, clock, demo, run))

    async def _play(self, store: Store, clock: ScaledClock, demo: Any, run: Any) -> Flat:
        found: Flat = {}
        with closing(Writer(store)) as writer:
            reader = Reader(store, clock)
            loop = RunLoop(Attached(run.name, run.targets, run.facts), LoopServices(store, writer, clock))
            t = START
            while t < START + self.seconds:
                t += EVERY_SECONDS
                demo.advance(t)
                clock.set(t)
                await loop.step(t, patient=True)
                found |= verdict(reader, run.name, t)
            await loop.close()
            writer.flush()
        return found | answers(application(store, reader, clock), run.name)


def verdict(reader: Reader, run: str, t: float) -> Flat:
    """Returns the verdict at an instant, with its evidence."""
    try:
        now = reader.status(run).verdict
    except UnknownRun:
        now = None
    return dict(flat(now, f"verdict {t:.0f}"))


def dump(parts: list[tuple[str, Any]], out: Path) -> None:
    """Plays everything in this checkout."""
    found: Flat = {}
    for label, play in parts:
        url = f"sqlite:///{play.folder}/store.db"
        migrate(url)
        with closing(Store.open(url)) as store:
            found |= {f"{label}: {key}": value for key, value in play.play(store).items()}
    texts = {key: PORTS.sub(r"\1:PORT", value) if isinstance(value, str) else value for key, value in found.items()}
    plain = {PORTS.sub(r"\1:PORT", key): value for key, value in texts.items()}
    folders = json.dumps([str(play.folder) for _, play in parts])
    text = json.dumps(plain, default=str)
    for folder in json.loads(folders):
        text = text.replace(folder, "FOLDER")
    out.write_text(text, "utf-8")


def played(checkout: Path, args: argparse.Namespace, out: Path) -> Flat:
    """Returns the answers of another checkout, from a child process."""
    command = [sys.executable, "-m", "bench.compare_answers", "--dump", str(out), "--demo", args.demo]
    command += ["--seconds", str(args.seconds), "--recording", args.recording]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}
    subprocess.run(command, cwd=checkout, env=environment, check=True)
    found: Flat = json.loads(out.read_text("utf-8"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT", help="OLD and NEW")
    parser.add_argument("--demo", default="healthy", metavar="SCENARIO", help="'' plays none")
    parser.add_argument("--seconds", type=float, default=900.0, help="of the demo")
    parser.add_argument("--recording", default="generator_bound", metavar="NAME", help="'' plays none")
    parser.add_argument("--dump", type=Path, default=None, help="play in this checkout and write the answers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if args.dump is not None:
            parts: list[tuple[str, Any]] = []
            for label, name in (("recorded", args.recording), ("demo", args.demo)):
                folder = Path(place) / label
                folder.mkdir()
                if name:
                    part = Recorded(name, folder) if label == "recorded" else Demo(name, args.seconds, folder)
                    parts.append((label, part))
            dump(parts, args.dump)
            return 0
        old, new = args.checkouts
        first, again, other = (
            played(checkout.resolve(), args, Path(place) / f"{index}.json")
            for index, checkout in enumerate((old, old, new))
        )
    unsteady = {key for key in first.keys() | again.keys() if first.get(key) != again.get(key)}
    keys = (first.keys() | other.keys()) - unsteady
    differences = sorted(key for key in keys if first.get(key) != other.get(key))
    for key in differences[:SHOWN]:
        print(f"{key}\n  old: {str(first.get(key, 'absent'))[:300]}\n  new: {str(other.get(key, 'absent'))[:300]}")
    print(f"{len(keys)} answers compared, {len(differences)} differ; {len(unsteady)} differ between two plays of OLD")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
