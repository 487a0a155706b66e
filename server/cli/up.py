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
    notes = [f"run {run.name}: {note}" for run in runs for note in run.notes]
    pendings = [pending for run in runs for pending in run.awaited if not pending.found]
    notes += [f"waiting: run {pending.settings.name}: {pending.error}" for pending in pendings]
    if not chosen.runs and chosen.role != "web":
        notes.append("no run is configured; " + "\n".join(local_scan.lines(SCAN())))
    return serve_runs(options, chosen, runs, sock, notes)
