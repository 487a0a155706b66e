"""`rollscope backup`: writes a consistent copy of the store to a file while a server works on it."""

from pathlib import Path

import click

from server.cli import OK, copies
from server.cli.options import Options, common
from server.cli.program import Command


@click.command(cls=Command)
@common
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="new file for the backup")
def command(options: Options, file: Path) -> int:
    url = copies.store_url(options)
    from server.store.transfer import backup  # noqa: PLC0415 - takes a second, and a usage error does not need it

    copies.run(lambda progress: backup(url, file, progress))
    print(f"backup: {file} ({file.stat().st_size:,} bytes)")
    return OK
