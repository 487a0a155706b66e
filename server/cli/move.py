"""`rollscope move`: copies the store to another database, SQLite or PostgreSQL, and compares the two."""

import click

from server.cli import OK, copies
from server.cli.options import Options, common
from server.cli.program import Command
from server.lib.errors import ConfigError


@click.command(cls=Command)
@common
@click.option(
    "--to", "target", required=True, metavar="URL", help="empty or missing store: sqlite:///FILE or postgresql://..."
)
def command(options: Options, target: str) -> int:
    source = copies.store_url(options)
    from server.store import StoreError  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.store.foreign import refuse_foreign  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.store.lock import acquire  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.store.transfer import copy  # noqa: PLC0415 - takes a second, and a usage error does not need it

    try:
        refuse_foreign(source)
        # A server that still collects would write rows that the copy does not have.
        with acquire(source):
            copies.run(lambda progress: copy(source, target, progress))
    except StoreError as error:
        raise ConfigError([str(error)]) from None
    except OSError as error:
        raise ConfigError([f"store: {error.filename or target}: {error.strerror}"]) from None
    print("moved: start the server with the new --store; the old store is unchanged")
    return OK
