"""Entry point and composition root: the only module that knows both the server and the dashboard.

A command's module is imported when the command is chosen, because all of them together take seconds to import.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import click
from click.shell_completion import shell_complete

from server.cli import BAD_USAGE, OK
from server.cli.program import NAME, VARIABLE, LazyGroup, Program
from server.lib.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dashboard.app import Candidates
    from server.api.gate import App
    from server.query import Reader

# Module of `server.cli` -> what the command does, and an example.
COMMANDS = {
    "demo": ("simulate a cluster and serve it live", "rollscope demo --scenario generator-bound"),
    "up": ("serve the runs of the configuration, and accept pushes", "rollscope up -c rollscope.toml"),
    "watch": ("attach to a run and serve it", "rollscope watch http://127.0.0.1:8000 ./outputs/my-run"),
    "check": (
        "validate the configuration and probe each target once",
        "rollscope check http://127.0.0.1:8000 ./outputs/my-run",
    ),
    "preflight": (
        "check before a launch: quota, credit, leftovers, engines, clocks",
        "rollscope preflight -c rollscope.toml --concurrency 960 --create-rate 4 --run-length 24h",
    ),
    "status": ("print the current state of a run", "rollscope status --json | jq .verdict"),
    "alerts": ("test alert rules and receivers", "rollscope alerts test rules.test.yml"),
    "export": (
        "export the alert rules for Prometheus, or a Grafana dashboard",
        "rollscope export rules > rollscope.rules.yml",
    ),
    "migrate": (
        "migrate a database to this version's schema", "rollscope migrate --store postgresql://user@host/rollscope",
    ),
    "runs": ("list, delete or prune stored runs", "rollscope runs list"),
    "backup": ("write a consistent copy of the store to a file", "rollscope backup rollscope-backup.db"),
    "restore": ("fill an empty store from a backup", "rollscope restore rollscope-backup.db --store sqlite:///new.db"),
    "move": (
        "copy the store to another database and compare the two", "rollscope move --to postgresql://user@host/rollscope",
    ),
    "init": ("write a commented configuration file to start from", "rollscope init"),
    "completion": ("print the completion script of a shell", 'eval "$(rollscope completion bash)"'),
    "help": ("print the help of the program or of a command", "rollscope help watch"),
}  # fmt: skip


def version() -> str:
    try:
        return metadata.version("rollscope")
    except metadata.PackageNotFoundError:  # a checkout without an install
        return "0+unknown"


def compose(
    receivers: Sequence[str],
    candidates: "Candidates | None",
    push: bool,
    api: "FastAPI",
    reader: "Reader",
    version: str,
) -> "tuple[App, Callable[[], str]]":
    """Attach the dashboard to the API's application: one process, one port.

    Args:
        receivers: names of the alert receivers.

    Returns:
        the application, and its Content-Security-Policy.
    """
    app = importlib.import_module("dashboard.app")
    dash = app.attach(api, reader, version=version, receivers=receivers, candidates=candidates, push=push)
    return api, lambda: app.csp(dash)


def program() -> LazyGroup:
    """The command line; see `main`."""
    group = LazyGroup(
        COMMANDS,
        help="Find out whether the trainer, the generator or the sandboxes are slowing your RL run, live and with "
        "evidence.",
        epilog="\b\nExample: rollscope watch http://127.0.0.1:8000 ./outputs/my-run",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(version(), message=f"{NAME} %(version)s")(group)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit codes: 0 success, 1 a check failed, 2 bad usage or configuration."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    group = program()
    if instruction := os.environ.get(VARIABLE):
        return shell_complete(group, {}, NAME, VARIABLE, instruction)
    try:
        with group.make_context(NAME, arguments, obj=Program(version(), compose)) as context:
            code: int = group.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return BAD_USAGE
    except click.UsageError as error:
        print(f"rollscope: {error.format_message()}", file=sys.stderr)
        path = error.ctx.command_path if error.ctx is not None else NAME
        print(f"see: {path} --help", file=sys.stderr)
        return BAD_USAGE
    except ConfigError as error:
        for line in error.problems:
            print(f"rollscope: {line}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        return OK
    except BrokenPipeError:  # `rollscope check ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


if __name__ == "__main__":
    sys.exit(main())
