"""What `backup`, `restore` and `move` share: progress on standard error, a summary, and errors."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from server import store as stores
from server.cli.options import Options
from server.config.settings import store_of_options
from server.lib.errors import ConfigError

if TYPE_CHECKING:
    from server.store.transfer import TableCopy


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
