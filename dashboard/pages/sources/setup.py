"""The tab Setup as cells: the last preflight's checks by status, the plan behind it and how to write it down."""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from dashboard.shell.page import Scope
from dashboard.widgets.format import text
from dashboard.widgets.status import View, joined
from server.query.preflight import CheckInfo, PreflightInfo

GROUPS: Mapping[str, tuple[str, str, str]] = {
    "fail": ("Failed", "critical", "Does not fit"),
    "warn": ("Warning", "watch", "Check before launch"),
    "unknown": ("Unknown", "unknown", "Unknown"),
    "ok": ("OK", "ok", "OK"),
    "not_applicable": ("Not applicable", "not_applicable", "Not applicable"),
}
"""Status -> its word, its colour, and the heading of its group; what stops a launch first."""

_HEADS: Mapping[str, str] = {
    "fail": "The plan does not fit",
    "warn": "Check the warnings before launch",
    "unknown": "No blockers found",
    "ok": "The plan fits",
    "not_applicable": "Nothing to check",
}
_TITLES: Mapping[str, str] = {
    "credentials": "API keys",
    "reachability": "Providers answer",
    "quota": "Quota",
    "starting_limit": "Concurrent starts",
    "create_rate": "Creation rate",
    "credit": "Credit",
    "dangling": "Leftover sandboxes",
    "sandbox_ttl": "Lifetime",
    "images": "Images",
    "engines": "Engines",
    "run_directory": "Run directory",
    "clock_skew": "Clocks",
}
# Key of the plan -> what it is, its unit, and an example of it for the file.
_PLAN: Mapping[str, tuple[str, str, str]] = {
    "concurrency": ("Concurrent sandboxes", "", "960"),
    "create_rate": ("Sandboxes created per second", "", "4"),
    "rollout_deadline": ("Longest rollout", "seconds", '"30m"'),
    "run_length": ("Length of the run", "seconds", '"24h"'),
    "sandbox_ttl": ("Lifetime of a sandbox", "seconds", '"2h"'),
    "spinup": ("Typical spin-up", "seconds", '"45s"'),
    "price": ("Price", "USD per sandbox-hour", "0.12"),
    "size": ("Size of a sandbox", "", "{ cpu = 2, memory_gb = 4 }"),
    "limits": ("Limits not reported by the provider", "", "{ concurrent = 1000, starting = 128 }"),
    "images": ("Images", "", '["ghcr.io/me/env:3"]'),
    "known_runs": ("Other runs in the accounts", "", '["alice-*"]'),
    "max_dangling": ("Leftover sandboxes allowed", "", "10"),
    "min_credit": ("Minimum credit if no price is set", "USD", "10"),
    "engines_later": ("Engines start with the run", "", "true"),
}
# How checks name options of the plan: `plan a --create-rate`, `--image NAME`, and in parentheses `(--concurrency)`.
_OPTION = re.compile(r"(?:give |plan )?--([a-z]+(?:-[a-z]+)*)(?: NAME)?")
_IN_PARENTHESES = re.compile(r" \(--([a-z]+(?:-[a-z]+)*)\)")
_EXAMPLE = ("concurrency", "create_rate", "rollout_deadline", "run_length", "limits", "price", "sandbox_ttl")


def cells(scope: Scope) -> View:
    """All texts of the page. ``preflight.mode``: ``nc`` (no configuration here), ``none`` (never run) or ``ok``."""
    found, run = scope.reader.preflight(scope.run), scope.run
    mode = "nc" if found.state == "not_configured" else "ok" if found.checks else "none"
    view: View = {"preflight.mode": mode} | _head(scope, found) | _button(found) | _checks(found.checks, run)
    return (
        view
        | _plan(found.plan)
        | {"preflight.toml": snippet(run, found.plan), "preflight.cmd": command(run, found.plan)}
    )


# ---- head


def _head(scope: Scope, found: PreflightInfo) -> View:
    needs_none = scope.facts.number("has_sandbox") == 0
    if found.state == "not_configured":
        sentence = "No configuration on this server contains this run, so its targets cannot be read."
        return _head_cells("Not configured here", sentence, "not_applicable" if needs_none else "unknown", None)
    if not found.checks:
        begin = "Reading every target once" if found.state == "running" else "Not checked yet"
        sentence = (
            "This run uses no sandboxes: only engines, run directory and clocks are checked."
            if needs_none
            else "Preflight reads every target once and compares it with your plan. Read-only."
        )
        return _head_cells(begin, joined(sentence, found.error), "unknown", None)
    counts = [f"{n} {word.lower()}" for status, (word, *_) in GROUPS.items() if (n := _count(found.checks, status))]
    state = GROUPS[found.outcome][1] if found.outcome in GROUPS else "unknown"
    skipped = _count(found.checks, "unknown")
    head = _HEADS.get(found.outcome, found.outcome)
    if found.outcome == "unknown":
        head += f". {skipped} check{'' if skipped == 1 else 's'} skipped"
    return _head_cells(head, joined(*counts, found.error), state, found.finished_at)


def _head_cells(head: str, sentence: str, state: str, at: float | None) -> View:
    return {"preflight.head": head, "preflight.text": sentence, "preflight.s": state, "preflight.at": at}


def _count(checks: Sequence[CheckInfo], status: str) -> int:
    return sum(check.status == status for check in checks)


def _button(found: PreflightInfo) -> View:
    """Its word, whether it can be pressed, and since when a reading goes on."""
    running = found.state == "running"
    word = "Reading …" if running else "Run again" if found.checks or found.error else "Run preflight"
    since = found.started_at if running else None
    return {
        "preflight.btn": word,
        "preflight.busy": int(running),
        "preflight.since": since,
        "preflight.retry": found.retry_at,
    }


# ---- checks


def _checks(checks: Sequence[CheckInfo], run: str) -> View:
    """``pf.STATUS.N``: one check each, and ``pf.STATUS`` the heading of its group; "" for an empty one."""
    found: View = {}
    for status, (word, state, heading) in GROUPS.items():
        same = [check for check in checks if check.status == status]
        found[f"preflight.{status}"] = f"{heading} · {len(same)}" if same else ""
        found |= {f"preflight.{status}.{i}": _row(check, word, state, run) for i, check in enumerate(same)}
    return found


def _row(check: CheckInfo, word: str, state: str, run: str) -> dict[str, Any]:
    """What `assets/widgets/preflight.mjs` draws. What is fine needs no details."""
    fine = check.status in ("ok", "not_applicable")
    number, unit = _number(check.value, check.unit)
    limit, limit_unit = _number(check.limit, check.unit)
    return {
        "name": check.name,
        "title": _TITLES.get(check.name, check.name),
        "word": word,
        "s": state,
        "summary": here(check.summary, run),
        "fix": here(check.fix, run),
        "number": number,
        "unit": unit,
        "limit": _limit_words(limit, "" if limit_unit == unit else limit_unit, check.unit) if number else "",
        "details": [] if fine else [here(line, run) for line in check.details],
        # A command names its sandbox.
        "ids": list(check.ids) if len(check.commands) < len(check.ids) else [],
        "commands": list(check.commands),
        "more": _more(check),
    }


def here(sentence: str, run: str) -> str:
    """A check's text for the page: command-line options become keys of the configuration file under the run's name."""
    plain = _IN_PARENTHESES.sub(lambda found: "" if _key(found[1]) else found[0], sentence)
    replaced = _OPTION.sub(lambda found: f"set {_example(found[1])}" if _key(found[1]) else found[0], plain)
    section = f"[run.{toml_key(run)}.preflight]"
    under = f" under {section}" if replaced != plain and "[run.NAME.preflight]" not in replaced else ""
    return replaced.replace("run.NAME.", f"run.{toml_key(run)}.") + under


def _key(option: str) -> str:
    """The plan's key of an option; "" for an option of another command."""
    key = {"image": "images"}.get(option, option.replace("-", "_"))
    return key if key in _PLAN else ""


def _example(option: str) -> str:
    return f"{_key(option)} = {_PLAN[_key(option)][2]}"


def _limit_words(limit: str, limit_unit: str, unit: str) -> str:
    """``of 3`` for what is counted out of a whole, else ``against 128``: more may be wanted, or less."""
    word = "of" if unit in ("targets", "engines", "images") else "limit"
    return f"{word} {limit} {limit_unit}".strip() if limit else ""


def _number(value: float | str | None, unit: str) -> tuple[str, str]:
    """(figure, unit). A word ("unlimited") is its own figure."""
    if value is None or isinstance(value, str):
        return value or "", ""
    if not isfinite(value):
        return "unlimited", ""
    if unit == "seconds":
        figure, _, word = text(value, unit).partition(" ")
        return figure, word
    # To the sandbox: 996 of 1,000 is not "1.0k".
    return (f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"), unit.replace("_", " ")


def _more(check: CheckInfo) -> str:
    named = len(check.ids)
    counted = check.value if isinstance(check.value, (int, float)) else 0
    return f"and {counted - named:,.0f} more" if named and counted > named else ""


# ---- plan


def _plan(plan: Mapping[str, Any]) -> View:
    """Keys ``preflight.plan.N``: a row per key of the plan; ``value``: as text."""
    found: View = {}
    for i, (key, (title, unit, _)) in enumerate(_PLAN.items()):
        value = _planned(plan.get(key), unit)
        found[f"preflight.plan.{i}"] = {"key": key, "title": title, "value": value or "not set", "set": bool(value)}
    return found if plan else {}


def _planned(value: Any, unit: str) -> str:
    """A value of the plan as text; "" if it is not set."""
    if value is None or value == [] or value == () or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {amount:g}" for name, amount in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return value
    return text(value, unit) if unit == "seconds" else f"{value:,g} {unit}".strip()


def snippet(run: str, plan: Mapping[str, Any]) -> str:
    """A configuration snippet with examples of the unset keys; "" if all are set."""
    missing = [key for key in _EXAMPLE if not _planned(plan.get(key), "")]
    if not missing:
        return ""
    width = max(map(len, missing))
    lines = [f"{key:<{width}} = {_PLAN[key][2]}" for key in missing]
    return "\n".join([f"[run.{toml_key(run)}.preflight]", *lines]) + "\n"


def toml_key(name: str) -> str:
    """A name as a key of TOML: bare where it may be."""
    if name.isascii() and name.replace("-", "").replace("_", "").isalnum():
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def command(run: str, plan: Mapping[str, Any]) -> str:
    """The same from a shell, before there is a server."""
    more = "" if plan.get("concurrency") else " --concurrency 960 --run-length 24h"
    name = run if run.replace("-", "").replace("_", "").replace(".", "").isalnum() and run.isascii() else "RUN"
    return f"rollscope preflight {name} -c rollscope.toml{more}"
