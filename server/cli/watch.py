"""`rollscope watch SOURCE...`: attaches to a run and serves it, or forwards it to another server."""

from pathlib import Path
from urllib.parse import urlsplit

import click

from server.cli import BAD_USAGE, OK
from server.cli.options import SOURCE, Options, serving, settings
from server.cli.program import Command
from server.lib.errors import ConfigError
from server.lib.outbound_policy import refuse_target


def check_forwarding(options: Options, push: str | None, spool: Path | None, token_file: str | None) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: with every problem.
    """
    serving_options = [name for name in ("store", "host", "port", "role") if getattr(options, name) is not None]
    forwarding = [name for name, value in (("spool", spool), ("token-file", token_file)) if value is not None]
    if push is None:
        problems = [f"--{name}: only with --push URL" for name in forwarding]
    else:
        problems = [f"--{name}: not with --push, which serves nothing on this machine" for name in serving_options]
        if refusal := refuse_target(push):
            problems.append(f"--push: {refusal}")
        elif urlsplit(push).query or urlsplit(push).username:
            problems.append("--push: must be a plain URL; the token comes from ROLLSCOPE_TOKEN or --token-file")
    if problems:
        raise ConfigError(problems)


@click.command(cls=Command)
@serving
@click.argument(
    "sources", nargs=-1, metavar="[SOURCE]...", help=f"{SOURCE}; without one: list what can be watched here"
)
@click.option("--run", default=None, metavar="RUN", help="the run's name (default: the directory's)")
@click.option("--wait", is_flag=True, help="start at once; attach sources when they appear")
@click.option(
    "--push",
    default=None,
    metavar="URL",
    help="forward readings to the server at URL instead of serving: no store and no dashboard on this machine",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="local directory for readings that are not yet sent (default: below ~/.local/state/rollscope)",
)
@click.option("--token-file", default=None, metavar="FILE", help="the server's token (or ROLLSCOPE_TOKEN)")
def command(
    options: Options, sources: tuple[str, ...], run: str | None, wait: bool, push: str | None, spool: Path | None,
    token_file: str | None,
) -> int:  # fmt: skip
    if not sources:
        from server.cli.serving import SCAN  # noqa: PLC0415 - takes a second, and a usage error does not need it
        from server.targets import local_scan  # noqa: PLC0415 - takes a second, and a usage error does not need it

        found = SCAN()
        print("\n".join(local_scan.lines(found)))
        return OK if found.candidates else BAD_USAGE
    check_forwarding(options, push, spool, token_file)
    chosen = settings(options)
    from server.cli import attaching  # noqa: PLC0415 - takes a second, and a usage error does not need it

    if push is None:
        return attaching.serve(options, chosen, sources, run, wait=wait)
    return attaching.forward(push, spool, attaching.token(options, token_file), sources, run, wait=wait)


# ---- up
# `rollscope up`: serves the runs that the configuration names.


@click.command(cls=Command)
@serving
def up_command(options: Options) -> int:
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
