"""`rollscope check`: validates the configuration and reads each target once."""

import click

from server.cli import FAILED, OK, program
from server.cli.options import SOURCE, Options, common, settings
from server.cli.program import Command
from server.targets.model import RunSettings


@click.command(cls=Command)
@common
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", help=SOURCE)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def command(options: Options, sources: tuple[str, ...], as_json: bool) -> int:
    chosen = settings(options)
    from server.cli import check_report  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.targets.resolve import run_name, source_of  # noqa: PLC0415 - takes a second, and a usage error does not need it

    # A configuration at a default path is not checked when the command line names sources.
    runs = [] if sources and options.config_is_default else list(chosen.runs)
    if sources:
        targets = tuple(map(source_of, sources))
        runs.append(RunSettings(run_name(target.source for target in targets), targets))
    report = check_report.probe(runs, chosen.alerts)
    if as_json:
        print(check_report.dump(report))
    else:
        program.show(check_report.text(report))
    return OK if report.fine else FAILED
