"""`rollscope runs`: lists stored runs, deletes one, or deletes rows that retention has expired."""

import os
import sys
import time
from contextlib import closing
from datetime import UTC, datetime

import click

from server import query
from server import store as stores
from server.cli import FAILED, OK
from server.cli.options import Options, common
from server.cli.program import Command, Group, describe
from server.config.settings import load, store_of_options
from server.lib.clock import WallClock
from server.lib.errors import ConfigError
from server.store.types import megabytes


@click.group(cls=Group)
def command() -> int:
    return OK


@command.command("list", cls=Command)
@common
def list_runs(options: Options) -> int:
    with closing(_opened(options, read_only=True)) as store:
        reader = query.Reader(store, WallClock())
        states = reader.runs.states()
        rows = [("RUN", "STATE", "FRAMEWORK", "FIRST DATA", "LAST DATA")]
        rows += [
            (run.name, states[run.name].name, run.framework or "-", _date(run.first_ts), _date(run.last_ts))
            for run in reader.runs.all()
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            print("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip())
        size = store.retention.size()
        oldest = "none" if size.oldest_raw is None else f"from {_date(size.oldest_raw / 1000)}"
        print(f"\nstore: {megabytes(size.bytes)}, samples {oldest}")
    return OK


@command.command("rm", cls=Command)
@common
@click.argument("run", metavar="RUN", help="name of the run")
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
def rm(options: Options, run: str, yes: bool) -> int:
    with closing(_opened(options)) as store:
        if store.runs.get(run) is None:
            names = ", ".join(row.name for row in store.runs.all()[:10]) or "none"
            raise ConfigError([f"no run is named {run!r}; runs: {names}"])
        if not yes and not sys.stdin.isatty():
            raise ConfigError([f"this deletes run {run} permanently: repeat it with --yes"])
        if not yes and not click.confirm(f"Delete run {run} with all its data permanently?"):
            return FAILED
        try:
            store.remove(run, round(time.time() * 1000))
        except stores.StoreError as error:
            raise ConfigError([str(error)]) from None
    print(f"run {run} is deleted")
    return OK


@command.command("prune", cls=Command)
@common
def prune(options: Options) -> int:
    with closing(_opened(options)) as store:
        # takes a second, and a usage error does not need it
        from server.store.retention import Retention  # noqa: PLC0415

        retention = Retention.of(load(options.config, os.environ).retention)
        before = store.retention.size()
        while store.retention.step(retention, round(time.time() * 1000)):
            pass
        after = store.retention.size()
    print(f"store: {megabytes(before.bytes)} before, {megabytes(after.bytes)} now")
    return OK


def _date(ts: float | None) -> str:
    return "-" if ts is None else datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _opened(options: Options, *, read_only: bool = False) -> "stores.Store":
    url = store_of_options(options.store, options.config, os.environ)
    if url.startswith("sqlite:///") and not os.path.exists(path := url.removeprefix("sqlite:///")):
        raise ConfigError(
            [f"there is no store at {path} yet: `rollscope watch` and `rollscope up` make one when they start"]
        )
    try:
        return stores.Store.open(url, read_only=read_only)
    except stores.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None


describe(list_runs, "list the runs of the store", "rollscope runs list")
describe(rm, "delete a run with all its data", "rollscope runs rm my-run --yes")
describe(prune, "delete expired rows now, without a server", "rollscope runs prune -c rollscope.toml")
