"""The command line and composition root. Nobody imports it; only it knows both the server and the dashboard.

What a command needs is loaded when it is chosen: all of it together takes seconds.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import collectors
import dashboard
import migrations
import server
from server.cli import BAD_USAGE, FAILED, OK
from server.config.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dashboard.app import Candidates
    from server.api.gate import App
    from server.query import Reader

# Of each module of `server.cli`: what it does, and an example.
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
}  # fmt: skip


def guard_names() -> str | None:
    """Our import names are common words: say so when another package sits on one of them."""
    for package in (collectors, dashboard, migrations, server):
        if getattr(package, "__dist__", "") != "rollscope":
            return (
                f"another package named {package.__name__!r} is installed in this environment; "
                "Rollscope is an application, install it apart: uv tool install rollscope"
            )
    return None


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
    """The dashboard on the API's own application: one process, one port. ``receivers``: who is told of alerts."""
    app = importlib.import_module("dashboard.app")
    dash = app.attach(api, reader, version=version, receivers=receivers, candidates=candidates, push=push)
    return api, lambda: app.csp(dash)


def _parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """``chosen``: the only command that gets its arguments; None: all of them do."""
    parser = argparse.ArgumentParser(
        prog="rollscope",
        description="Find out whether the trainer, the generator or the sandboxes are slowing your RL run, live and "
        "with evidence.",
        epilog="example: rollscope watch http://127.0.0.1:8000 ./outputs/my-run",
    )
    program = version()
    parser.add_argument("--version", action="version", version=f"rollscope {program}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, example) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, epilog=f"example: {example}")
        if chosen in (None, name):
            module = importlib.import_module(f"server.cli.{name}")
            module.arguments(command)
            command.set_defaults(execute=module.execute, compose=compose, version=program)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit codes: 0 fine, 1 a check failed, 2 bad usage or configuration."""
    problem = guard_names()
    if problem:
        print(problem, file=sys.stderr)
        return FAILED
    words = sys.argv[1:] if argv is None else argv
    # Options before the command take no value: the first word that is none is the command.
    args = _parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    level = logging.INFO if getattr(args, "verbose", False) else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("rollscope").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        code: int = args.execute(args)
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
