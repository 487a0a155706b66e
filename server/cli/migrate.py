"""`rollscope migrate`: migrates a database to this version's schema."""

import os

import click

from server import store as stores
from server.cli import OK
from server.cli.options import Options, common
from server.cli.program import Command
from server.config.settings import default_store, load
from server.lib.errors import ConfigError


@click.command(cls=Command)
@common
def command(options: Options) -> int:
    url = options.store or load(options.config, os.environ).store or default_store(os.environ)
    try:
        stores.migrate(url)
    except stores.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print("the store has this version's schema")
    return OK
