"""`rollscope completion SHELL`: prints the script that completes commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

from server.cli import OK
from server.cli.program import NAME, Command

VARIABLE = "_ROLLSCOPE_COMPLETE"
"""The variable that the script sets when it calls the program for suggestions."""
SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    script = kind(root, {}, NAME, VARIABLE)
    click.echo(script.source_template % script.source_vars())
    return OK
