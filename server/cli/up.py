"""`rollscope up`: serves the runs that the configuration names."""

import click

from server.cli.options import Options, serving, settings
from server.cli.program import Command
from server.cli.serving import SCAN, serve_runs
from server.runtime.serve import bind
from server.targets import local_scan
from server.targets.resolve import attach


@click.command(cls=Command)
@serving
def command(options: Options) -> int:
    chosen = settings(options)
    runs = [] if chosen.role == "web" else [attach(run, wait=True) for run in chosen.runs]
    sock = bind(chosen.host, chosen.port)  # a port in use is reported before anything is printed or scanned
    for name, note in ((run.name, note) for run in runs for note in run.notes):
        print(f"run {name}: {note}", flush=True)
    for pending in (pending for run in runs for pending in run.awaited if not pending.found):
        print(f"waiting: run {pending.settings.name}: {pending.error}", flush=True)
    if not chosen.runs and chosen.role != "web":
        print("no run is configured; " + "\n".join(local_scan.lines(SCAN())), flush=True)
    return serve_runs(options, chosen, runs, sock)
