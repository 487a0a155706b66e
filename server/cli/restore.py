"""`rollscope restore`: fills an empty store from a backup."""

from pathlib import Path

import click

from server.cli import OK, copies
from server.cli.options import Options, common
from server.cli.program import Command
from server.store.transfer import restore


@click.command(cls=Command)
@common
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="file that `rollscope backup` wrote")
def command(options: Options, file: Path) -> int:
    copies.run(lambda progress: restore(file, copies.store_url(options), progress))
    print(f"restored from {file}")
    return OK
