"""What click lacks for this program: commands that load on use, colour in help, suggestions for mistyped values."""

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from server.cli import OK
from server.lib.errors import nearest

NAME = "rollscope"
# Commands whose module has several -> the module. It names each `COMMAND_command`.
SHARED = {
    "backup": "store", "restore": "store", "move": "store", "migrate": "store", "up": "watch", "help": "program",
    "completion": "program",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """What the entry point gives each command. ``compose``: attaches the dashboard, which no command imports."""

    version: str
    compose: Callable[..., Any]


class Formatter(click.HelpFormatter):
    """Help with bold headings and coloured names; click removes the colours unless the output is a terminal."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, click.style("Usage: ", bold=True))

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # type: ignore[override]
        super().write_dl([(click.style(name, fg="cyan"), text) for name, text in rows], col_max, col_spacing)


class Context(click.Context):
    """A context whose help is coloured; the environment variable NO_COLOR turns colour off."""

    formatter_class = Formatter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if os.environ.get("NO_COLOR"):
            self.color = False


class Command(click.Command):
    """A command whose help ends with an example."""

    context_class = Context


def describe(command: click.Command, summary: str, example: str) -> None:
    """Set a command's help text."""
    command.help, command.epilog = f"{summary[:1].upper()}{summary[1:]}.", f"\b\nExample: {example}"


class Group(click.Group):
    """A group of `Command`."""

    context_class = Context
    command_class = Command


class LazyGroup(Group):
    """The program. A command's module is imported when the command is chosen: all of them together take seconds.

    Args:
        table: name of each module in `server.cli` -> summary and example.
    """

    def __init__(self, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        if cmd_name not in self.commands:
            home = importlib.import_module(f"server.cli.{SHARED.get(cmd_name, cmd_name)}")
            command: Command | Group = getattr(home, f"{cmd_name}_command" if cmd_name in SHARED else "command")
            describe(command, *self._table[cmd_name])
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._table and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=self._table, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (summary, _) in self._table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self._table if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self._table[name][0]) for name in names), *options]


class Choice(click.Choice[str]):
    """A choice that suggests the value that was probably meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        near = nearest(str(value), map(str, self.choices))
        if near:
            return f"{value!r} is not a choice. Did you mean {near!r}?"
        return f"{value!r} is not one of {', '.join(map(str, self.choices))}."


# ---- colour
# Colour of reports on a terminal: click removes it where the output is no terminal or NO_COLOR is set.

_STYLES: tuple[tuple[re.Pattern[str], dict[str, str | bool]], ...] = (
    (re.compile(r"\b(?:DOWN|CRITICAL|FAIL|FAILED)\b"), {"fg": "red", "bold": True}),
    (re.compile(r"\b(?:WATCH|WARN)\b"), {"fg": "yellow", "bold": True}),
    (re.compile(r"^verdict:.*$", re.MULTILINE), {"bold": True}),
)


def show(report: str) -> None:
    """Print a report; words that need attention are coloured."""
    for pattern, style in _STYLES:
        report = pattern.sub(lambda match, style=style: click.style(match[0], **style), report)  # type: ignore[misc]
    click.echo(report)


# ---- help
# `rollscope help [COMMAND...]`: the help of the program or of one command.


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[COMMAND]...", help="a command, such as `watch` or `alerts test`")
@click.pass_context
def help_command(context: click.Context, names: tuple[str, ...]) -> int:
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


# ---- completion
# `rollscope completion SHELL`: prints the script that completes commands and options in a shell.

VARIABLE = "_ROLLSCOPE_COMPLETE"
"""The variable that the script sets when it calls the program for suggestions."""
SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
@click.pass_context
def completion_command(context: click.Context, shell: str) -> int:
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    script = kind(root, {}, NAME, VARIABLE)
    click.echo(script.source_template % script.source_vars())
    return OK
