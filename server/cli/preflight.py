"""`rollscope preflight`: will the run fit what it is about to ask for?"""

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from server.alerts.text import parse_duration
from server.cli import FAILED, OK
from server.cli.options import common
from server.clock import WallClock
from server.config.errors import ConfigError
from server.config.preflight import PreflightPlan
from server.config.settings import load
from server.preflight.model import Check, Status
from server.preflight.report import run

__all__ = ["dump", "failed", "plan", "plan_arguments", "run", "text", "unchecked"]

_WORDS: Mapping[Status, str] = {
    "not_applicable": "n/a",
    "ok": "ok",
    "unknown": "unknown",
    "warn": "WARN",
    "fail": "FAIL",
}
_HEADS: Mapping[Status, str] = {
    "fail": "it will not fit",
    "warn": "look again before the launch",
    "unknown": "nothing speaks against it, but not everything is known",
    "ok": "it fits",
    "not_applicable": "there is nothing to check",
}


def plan_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's own words; they go over the file's ``[run.NAME.preflight]``."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs of the configuration (default: all)")
    parser.add_argument("--concurrency", type=_count, metavar="N", help="sandboxes alive at once at the peak")
    parser.add_argument("--create-rate", type=_rate, metavar="R", help="sandboxes created per second at the peak")
    parser.add_argument("--rollout-deadline", type=_seconds, metavar="TIME", help="longest rollout, such as 30m")
    parser.add_argument("--run-length", type=_seconds, metavar="TIME", help="length of the run, such as 24h")
    parser.add_argument(
        "--image", nargs="+", action="extend", default=[], metavar="NAME", help="images that sandboxes start from"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def plan(args: argparse.Namespace) -> PreflightPlan:
    """What the command line says of the plan."""
    return PreflightPlan(
        concurrency=args.concurrency,
        create_rate=args.create_rate,
        rollout_deadline=args.rollout_deadline,
        run_length=args.run_length,
        images=tuple(args.image),
    )


def failed(report: Mapping[str, Any]) -> bool:
    """Only a failed check stops a launch; what is unknown does not."""
    return bool(report["outcome"] == "fail")


def unchecked(report: Mapping[str, Any]) -> list[str]:
    """Why nothing was checked, a line for each run of which no check had anything to go by; [] when all had."""
    decided = ("ok", "warn", "fail")
    empty = [one["run"] for one in report["runs"] if all(c["status"] not in decided for c in one["checks"])]
    hint = "name the run and its targets in a configuration (-c FILE)"
    return [f"preflight: nothing was checked of run {_plain(name)}: {hint}" for name in empty]


def dump(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=2, allow_nan=False)


def text(report: Mapping[str, Any]) -> str:
    """The report for a terminal: what fails comes first."""
    return "\n".join(line for one in report["runs"] for line in _run(one))


def _run(report: Mapping[str, Any]) -> list[str]:
    checks = [Check(**check) for check in report["checks"]]
    order: Sequence[Status] = ("fail", "warn", "unknown", "ok", "not_applicable")
    told = [f"{sum(one.status == status for one in checks)} {_WORDS[status]}" for status in order]
    head = f"run {_plain(report['run'])}: {_HEADS[report['outcome']]} ({', '.join(told)})"
    lines = (line for status in order for one in checks if one.status == status for line in _check(one))
    return [head, *lines]


def _check(check: Check) -> list[str]:
    lines = [f"  {_WORDS[check.status]:<8}{check.name:<16}{_plain(check.summary)}"]
    if check.status in ("ok", "not_applicable"):
        return lines
    lines += [f"{'':<10}- {_plain(detail)}" for detail in check.details]
    lines += [f"{'':<10}fix: {_plain(check.fix)}"] if check.fix else []
    lines += [f"{'':<12}{command}" for command in check.commands]
    # A command names its sandbox.
    bare = [_plain(key) for key in check.ids] if len(check.commands) < len(check.ids) else []
    lines += [f"{'':<12}{' '.join(bare)}"] if bare else []
    if check.ids and check.value is not None and check.value > len(check.ids):
        lines.append(f"{'':<12}... and {check.value - len(check.ids):.0f} more")
    return lines


def _plain(text: str) -> str:
    """Names come from strangers: nothing of them may steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


# ---- arguments


def _count(word: str) -> int:
    value = int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of sandboxes from 1 on")
    return value


def _rate(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{word!r} is not a number above 0")
    return value


def _seconds(word: str) -> float:
    try:
        seconds = parse_duration(float(word) if word.replace(".", "", 1).isdigit() else word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return seconds


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)
    plan_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    runs = [(run, run.preflight) for run in load(args.config, os.environ).runs]
    report = run(runs, plan(args), WallClock(), args.runs)
    print(dump(report) if args.json else text(report))
    if failed(report):
        return FAILED
    if problems := unchecked(report):
        # A gate in front of a job must not let it pass when nothing was checked.
        raise ConfigError(problems)
    return OK
