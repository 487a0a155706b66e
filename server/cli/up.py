"""`rollscope up`: serves the runs that the configuration names."""

import click

from server.cli.options import Options, serving, settings
from server.cli.program import Command


@click.command(cls=Command)
@serving
def command(options: Options) -> int:
    chosen = settings(options)
    from server.cli.serving import SCAN, serve_runs  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.runtime.serve import bind  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.targets import local_scan  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.targets.resolve import attach  # noqa: PLC0415 - takes a second, and a usage error does not need it

    runs = [] if chosen.role == "web" else [attach(run, wait=True) for run in chosen.runs]
    sock = bind(chosen.host, chosen.port)  # a port in use is reported before anything is printed or scanned
    notes = [f"run {run.name}: {note}" for run in runs for note in run.notes]
    pendings = [pending for run in runs for pending in run.awaited if not pending.found]
    notes += [f"waiting: run {pending.settings.name}: {pending.error}" for pending in pendings]
    if not chosen.runs and chosen.role != "web":
        notes.append("no run is configured; " + "\n".join(local_scan.lines(SCAN())))
    return serve_runs(options, chosen, runs, sock, notes)
