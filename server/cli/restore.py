"""`rollscope restore`: fills an empty store from a backup."""

from pathlib import Path

import click

from server.cli import OK, copies
from server.cli.options import Options, common
from server.cli.program import Command


@click.command(cls=Command)
@common
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="file that `rollscope backup` wrote")
def command(options: Options, file: Path) -> int:
    url = copies.store_url(options)
    from server.store.transfer import restore  # noqa: PLC0415 - takes a second, and a usage error does not need it

    copies.run(lambda progress: restore(file, url, progress))
    print(f"restored from {file}")
    return OK
