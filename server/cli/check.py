"""`rollscope check SOURCE...`: validates the configuration and probes each target once."""

import argparse

from server.cli import FAILED, OK
from server.cli.options import SOURCE, common, settings
from server.commands import check
from server.config.settings import RunSettings
from server.targets.resolve import run_name, source_of


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=SOURCE)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def execute(args: argparse.Namespace) -> int:
    chosen = settings(args)
    runs = list(chosen.runs)
    if args.sources:
        sources = tuple(map(source_of, args.sources))
        runs.append(RunSettings(run_name(one.source for one in sources), sources))
    found = check.probe(runs, chosen.alerts)
    print(check.dump(found) if args.json else check.text(found))
    return OK if found.fine else FAILED
