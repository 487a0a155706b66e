"""`rollscope status`: a run's state now."""

import argparse
import os

from server.cli import OK
from server.cli.options import common
from server.commands import status
from server.config.settings import load


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)
    parser.add_argument("run", nargs="?", default=None, metavar="RUN")
    parser.add_argument("--json", action="store_true", help="print the API's complete status object")
    parser.add_argument(
        "--url", default=None, help="a running server (default: the one on this machine, or else the store)"
    )


def execute(args: argparse.Namespace) -> int:
    settings = load(args.config, os.environ)
    # Who names a store wants that one, not whatever server happens to listen here.
    server = None if args.store else args.url or f"http://127.0.0.1:{settings.port}"
    found = status.fetch(args.run, server, args.store or settings.store, settings.token, named=args.url is not None)
    print(status.dump(found) if args.json else status.text(found))
    return OK
