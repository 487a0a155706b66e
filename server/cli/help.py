"""`rollscope help [COMMAND...]`: the help of the program or of one command."""

import click

from server.cli import OK
from server.cli.program import Command


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[COMMAND]...", help="a command, such as `watch` or `alerts test`")
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> int:
    context = context.find_root()
    for name in names:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no command {name!r}.", context)
        _, subcommand, _ = group.resolve_command(context, [name])
        assert subcommand is not None
        context = subcommand.context_class(subcommand, info_name=name, parent=context)
    click.echo(context.get_help(), color=context.color)
    return OK
