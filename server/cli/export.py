"""`rollscope export`: Prometheus rules equal to ours, or a Grafana dashboard over /metrics."""

import argparse

from server.cli import OK
from server.cli.options import common
from server.commands import export
from server.config import alerts as alerts_config
from server.config.settings import read


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)
    parser.add_argument("what", choices=("rules", "grafana"))


def execute(args: argparse.Namespace) -> int:
    if args.what == "grafana":
        print(export.grafana())
    else:
        print(export.rules(alerts_config.rules_of(read(args.config))), end="")
    return OK
