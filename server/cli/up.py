"""`rollscope up`: serves what the configuration names."""

import argparse

from server.cli.options import settings
from server.cli.serving import LOOK, serve_runs, serving
from server.targets import local_scan
from server.targets.resolve import attach


def arguments(parser: argparse.ArgumentParser) -> None:
    serving(parser)


def execute(args: argparse.Namespace) -> int:
    found = settings(args)
    runs = [] if found.role == "web" else [attach(run, wait=True) for run in found.runs]
    for name, note in ((run.name, note) for run in runs for note in run.notes):
        print(f"run {name}: {note}", flush=True)
    for one in (awaited for run in runs for awaited in run.awaited if not awaited.found):
        print(f"waiting: run {one.settings.name}: {one.error}", flush=True)
    if not found.runs and found.role != "web":
        print("no run is configured; " + "\n".join(local_scan.lines(LOOK())), flush=True)
    return serve_runs(args, found, runs)
