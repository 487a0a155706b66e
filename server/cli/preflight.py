"""`rollscope preflight`: checks whether a planned run fits its quotas, credit and engines."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from server.alerts.text import parse_duration
from server.cli import FAILED, OK, program
from server.cli.options import Options, common
from server.cli.program import Command
from server.config.settings import load
from server.lib.clock import WallClock
from server.lib.errors import ConfigError
from server.preflight.model import Check, PreflightPlan, Status

_WORDS: Mapping[Status, str] = {
    "not_applicable": "n/a",
    "ok": "ok",
    "unknown": "unknown",
    "warn": "WARN",
    "fail": "FAIL",
}
_HEADS: Mapping[Status, str] = {
    "fail": "the plan does not fit",
    "warn": "read the warnings before the launch",
    "unknown": "no check failed, but some had no data",
    "ok": "the plan fits",
    "not_applicable": "there is nothing to check",
}


def failed(report: Mapping[str, Any]) -> bool:
    """Only a failed check stops a launch; unknown ones do not."""
    return bool(report["outcome"] == "fail")


def unchecked(report: Mapping[str, Any]) -> list[str]:
    """One error for each run of which no check had data; [] if there is none."""
    decided = ("ok", "warn", "fail")
    empty = [run["run"] for run in report["runs"] if all(check["status"] not in decided for check in run["checks"])]
    hint = "name the run and its targets in a configuration (-c FILE)"
    return [f"preflight: nothing of run {_plain(name)} could be checked: {hint}" for name in empty]


def dump(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=2, allow_nan=False)


def text(report: Mapping[str, Any]) -> str:
    """The report for a terminal, failed checks first."""
    return "\n".join(line for run in report["runs"] for line in _run(run))


def _run(report: Mapping[str, Any]) -> list[str]:
    checks = [Check(**check) for check in report["checks"]]
    order: Sequence[Status] = ("fail", "warn", "unknown", "ok", "not_applicable")
    counts = [f"{sum(check.status == status for check in checks)} {_WORDS[status]}" for status in order]
    head = f"run {_plain(report['run'])}: {_HEADS[report['outcome']]} ({', '.join(counts)})"
    lines = (line for status in order for check in checks if check.status == status for line in _check(check))
    return [head, *lines]


def _check(check: Check) -> list[str]:
    lines = [f"  {_WORDS[check.status]:<8}{check.name:<16}{_plain(check.summary)}"]
    if check.status in ("ok", "not_applicable"):
        return lines
    lines += [f"{'':<10}- {_plain(detail)}" for detail in check.details]
    lines += [f"{'':<10}fix: {_plain(check.fix)}"] if check.fix else []
    lines += [f"{'':<12}{command}" for command in check.commands]
    # Each command holds the id of its sandbox, so ids are listed only if some have no command.
    ids = [_plain(key) for key in check.ids] if len(check.commands) < len(check.ids) else []
    lines += [f"{'':<12}{' '.join(ids)}"] if ids else []
    if check.ids and check.value is not None and check.value > len(check.ids):
        lines.append(f"{'':<12}... and {check.value - len(check.ids):.0f} more")
    return lines


def _plain(text: str) -> str:
    """Replaces control characters: names come from outside and must not control the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


# ---- arguments


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if value < 1:
        raise click.BadParameter(f"{text!r} is not a number of sandboxes from 1 on")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{text!r} is not a number above 0")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds == 0:
        raise click.BadParameter("must be above 0")
    return seconds


class PreflightCommand(Command):
    """Takes several values after one --image: ``--image a b`` is ``--image a --image b``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        expanded: list[str] = []
        images = -1  # values since the last --image; -1: another option came last
        for argument in args:
            if argument.startswith("-"):
                images = 0 if argument == "--image" else -1
            elif images >= 0:
                expanded += ["--image"] if images > 0 else []
                images += 1
            expanded.append(argument)
        return super().parse_args(ctx, expanded)


@click.command(cls=PreflightCommand)
@common
@click.argument("runs", nargs=-1, metavar="[RUN]...", help="runs of the configuration (default: all)")
@click.option("--concurrency", type=_count, metavar="N", help="sandboxes alive at once at the peak")
@click.option("--create-rate", type=_rate, metavar="R", help="sandboxes created per second at the peak")
@click.option("--rollout-deadline", type=_seconds, metavar="TIME", help="longest rollout, such as 30m")
@click.option("--run-length", type=_seconds, metavar="TIME", help="length of the run, such as 24h")
@click.option("--image", "images", multiple=True, metavar="NAME", help="images that sandboxes start from")
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def command(
    options: Options, runs: tuple[str, ...], concurrency: int | None, create_rate: float | None,
    rollout_deadline: float | None, run_length: float | None, images: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    # The plan of the command line overrides [run.NAME.preflight].
    plan = PreflightPlan(
        concurrency=concurrency, create_rate=create_rate, rollout_deadline=rollout_deadline, run_length=run_length,
        images=images,
    )  # fmt: skip
    configured = load(options.config, os.environ).planned
    from server.preflight.checks import run  # noqa: PLC0415 - takes a second, and a usage error does not need it

    report = run(configured, plan, WallClock(), runs)
    if as_json:
        print(dump(report))
    elif configured:
        program.show(text(report))
    if failed(report):
        return FAILED
    if not configured and not as_json:
        raise ConfigError(["preflight: no run is configured: name a run and its targets in a configuration (-c FILE)"])
    if problems := unchecked(report):
        # A gate before a job must not pass when nothing was checked.
        raise ConfigError(problems)
    return OK
