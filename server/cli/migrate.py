"""`rollscope migrate`: brings a database to this version's schema."""

import argparse
import os

from server.cli import OK
from server.cli.options import common
from server.config.errors import ConfigError
from server.config.settings import default_store, load
from server.store import StoreError, migrate


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)


def execute(args: argparse.Namespace) -> int:
    url = args.store or load(args.config, os.environ).store or default_store(os.environ)
    try:
        migrate(url)
    except StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print("the store is at this version's schema")
    return OK
