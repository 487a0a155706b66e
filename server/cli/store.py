"""`rollscope backup`, `restore`, `move` and `migrate`: copies of the whole store, and its schema."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from server import store as stores
from server.cli import OK
from server.cli.options import Options, common
from server.cli.program import Command
from server.config.settings import default_store, load, store_of_options
from server.lib.errors import ConfigError

if TYPE_CHECKING:
    from server.store.transfer import TableCopy

# ---- copies
# What `backup`, `restore` and `move` share: progress on standard error, a summary, and errors.


def store_url(options: Options) -> str:
    """The store of the command line, the configuration or the environment."""
    return store_of_options(options.store, options.config, os.environ)


def run(work: Callable[[Callable[[str, int], None]], "Sequence[TableCopy]"]) -> None:
    """Do the work, show its progress, print rows per table.

    Raises:
        ConfigError: with the store's message.
    """
    shown = sys.stderr.isatty()

    def progress(what: str, done: int) -> None:
        if shown:
            print(f"\r{what}: {done:,}\x1b[K", end="", file=sys.stderr, flush=True)

    try:
        copied = work(progress)
    except stores.StoreError as error:
        raise ConfigError([str(error)]) from None
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr)
    for table in copied:
        if table.rows:
            checksum = f"  checksum {table.checksum:016x}" if table.checksum else ""
            print(f"{table.table:22} {table.rows:>12,} rows{checksum}")


@click.command(cls=Command)
@common
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="new file for the backup")
def backup_command(options: Options, file: Path) -> int:
    url = store_url(options)
    from server.store.transfer import backup  # noqa: PLC0415 - takes a second, and a usage error does not need it

    run(lambda progress: backup(url, file, progress))
    print(f"backup: {file} ({file.stat().st_size:,} bytes)")
    return OK


# ---- restore
# `rollscope restore`: fills an empty store from a backup.


@click.command(cls=Command)
@common
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="file that `rollscope backup` wrote")
def restore_command(options: Options, file: Path) -> int:
    url = store_url(options)
    from server.store.transfer import restore  # noqa: PLC0415 - takes a second, and a usage error does not need it

    run(lambda progress: restore(file, url, progress))
    print(f"restored from {file}")
    return OK


# ---- move
# `rollscope move`: copies the store to another database, SQLite or PostgreSQL, and compares the two.


@click.command(cls=Command)
@common
@click.option(
    "--to", "target", required=True, metavar="URL", help="empty or missing store: sqlite:///FILE or postgresql://..."
)
def move_command(options: Options, target: str) -> int:
    source = store_url(options)
    from server.store import StoreError  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.store.foreign import refuse_foreign  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.store.lock import acquire  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.store.transfer import copy  # noqa: PLC0415 - takes a second, and a usage error does not need it

    try:
        refuse_foreign(source)
        # A server that still collects would write rows that the copy does not have.
        with acquire(source):
            run(lambda progress: copy(source, target, progress))
    except StoreError as error:
        raise ConfigError([str(error)]) from None
    except OSError as error:
        raise ConfigError([f"store: {error.filename or target}: {error.strerror}"]) from None
    print("moved: start the server with the new --store; the old store is unchanged")
    return OK


# ---- migrate
# `rollscope migrate`: migrates a database to this version's schema.


@click.command(cls=Command)
@common
def migrate_command(options: Options) -> int:
    url = options.store or load(options.config, os.environ).store or default_store(os.environ)
    try:
        stores.migrate(url)
    except stores.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print("the store has this version's schema")
    return OK
