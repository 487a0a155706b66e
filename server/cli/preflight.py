"""`rollscope preflight`: will the run fit what it is about to ask for?"""

import argparse
import os

from server.cli import FAILED, OK
from server.cli.options import common
from server.clock import WallClock
from server.commands import preflight
from server.config.errors import ConfigError
from server.config.settings import load


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)
    preflight.arguments(parser)


def execute(args: argparse.Namespace) -> int:
    runs = [(run, run.preflight) for run in load(args.config, os.environ).runs]
    report = preflight.run(runs, preflight.plan(args), WallClock(), args.runs)
    print(preflight.dump(report) if args.json else preflight.text(report))
    if preflight.failed(report):
        return FAILED
    if problems := preflight.unchecked(report):
        # A gate in front of a job must not let it pass when nothing was checked.
        raise ConfigError(problems)
    return OK
