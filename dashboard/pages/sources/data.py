"""The Sources page as cells: the health of the run's targets, and what its signals lack; or the tab Setup."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from dashboard.pages.sources import setup
from dashboard.shell.page import Json, Scope
from dashboard.widgets.format import system
from dashboard.widgets.status import LAST, View, joined
from server.query.health import TOPICS
from server.query.signals import coverage
from server.query.types import SignalInfo, SignalNow, Status, TargetTrust

# A tick's grid: nothing is younger.
KEEP_SECONDS = 5.0
# A signal is found or lost with a source, not with a tick.
COVERAGE_SECONDS = 10.0
HEALTH_SECONDS = 10.0
MOST, MOST_KEYS = 200, 300
ASKS = ("tab", "find", "unhealthy", "keys", "of")
STATES = ("down", "waiting", "up", "gone")
_WAITS = "unknown"
GROUPS: Mapping[str, str] = {
    "lack": "Missing",
    "silent": "Stale",
    "has": "Available",
    "none": "Not applicable",
}
"""What becomes of a signal in a run, in the order of what to do about it."""
_NUMBER = re.compile(r"([0-9]+)")


def cells(scope: Scope) -> View:
    """Keys ``targets.0`` .. (rows), ``.n`` (their numbers), ``.keys`` (those of one target), ``coverage.*``,
    and ``health.*``, of Rollscope itself.
    """
    filters = {key: values[-1] for key, values in parse_qs(scope.search.lstrip("?")).items()}
    if filters.get("tab") == "setup":
        return {"sources.tab": "setup"} | setup.cells(scope)
    every = [*scope.status.trust, *scope.status.gone]
    if scope.everything:
        every = scope.shared.get("targets", KEEP_SECONDS, scope.reader.targets)
    found = sorted(_matching(every, filters), key=_badness)
    shown, now = found[:MOST], scope.reader.now()
    idle = not scope.everything and unread(scope.status)
    health = scope.shared.get("health", HEALTH_SECONDS, scope.reader.health)
    rows: View = {f"targets.{i}": _row(one, idle) for i, one in enumerate(shown)}
    return (
        rows
        | {"targets.n": [_numbers(one, now) for one in shown], "sources.tab": "list"}
        | _head(every, found, idle)
        | _keys(every, filters)
        | _coverage(scope)
        | {f"health.{topic}": health.get(topic, "") for topic in TOPICS}
    )


def state(target: TargetTrust) -> str:
    """``waiting``: named, and never answered yet; ``gone``: no list names it any more, which is no failure."""
    if target.gone_since is not None:
        return "gone"
    if target.up:
        return "up"
    never = target.age_seconds is None and (target.kind == _WAITS or not target.error)
    return "waiting" if never else "down"


def healthy(target: TargetTrust) -> bool:
    """Whether the target answers in full, or is not expected to."""
    status = state(target)
    return status == "gone" or (status == "up" and not target.error and not target.dropped)


def unread(status: Status) -> bool:
    """Whether the run is over or has no collector: its targets are not read, which is not down."""
    return status.state.name in ("finished", "not_collected")


def counted(name: str) -> list[str | int]:
    """Sorts as one counts: engine-2 before engine-10."""
    return [int(part) if at % 2 else part for at, part in enumerate(_NUMBER.split(name))]


def kind_words(target: TargetTrust) -> str:
    """``vllm (rollout, from engines)``: the job and the list that names it, where one does."""
    found = ", ".join(filter(None, (target.job, target.source and f"from {target.source}")))
    return f"{target.kind} ({found})" if found else target.kind


def _matching(every: Iterable[TargetTrust], filters: Mapping[str, str]) -> list[TargetTrust]:
    word, only = filters.get("find", "").lower(), filters.get("unhealthy") == "1"
    return [one for one in every if not (only and healthy(one)) and word in _haystack(one)]


def _haystack(one: TargetTrust) -> str:
    return "\n".join((one.run, one.target, one.kind, one.actor, one.job, one.source, one.error)).lower()


def _badness(one: TargetTrust) -> tuple[Any, ...]:
    return healthy(one), STATES.index(state(one)), one.run, counted(one.target)


def _row(one: TargetTrust, idle: bool) -> Json:
    """``keys``: how many are not mapped."""
    names = ("run", "target", "actor", "error", "dropped", "gone_since")
    word = "unread" if idle and state(one) == "down" else state(one)
    more: Json = {"kind": kind_words(one), "state": word, "keys": len(one.unmapped)}
    return {name: getattr(one, name) for name in names} | more


def _seen(one: TargetTrust, now: float) -> int | None:
    return round(now - one.age_seconds) if one.age_seconds is not None else None


def _numbers(one: TargetTrust, now: float) -> Json:
    """What changes with every scrape."""
    seconds = float(f"{one.scrape_seconds:.2g}")
    return {"seen_at": _seen(one, now), "scrape_seconds": seconds, "samples": one.samples}


def chip(targets: Sequence[TargetTrust], idle: bool) -> View:
    """``header.src``: how many of the run's targets answer, in the header; ``header.src.w``: how many are down."""
    counts = Counter(map(state, targets))
    here, bad = len(targets) - counts["gone"], counts["down"]
    partly = any(state(one) == "up" and not healthy(one) for one in targets)
    health = "unknown" if not here else "critical" if bad == here else "watch" if bad or partly else "ok"
    if idle:
        return {"header.src": f"{here:,}", "header.src.w": ", not read now", "header.src.s": "unknown"}
    words = f", {bad:,} down" if bad else ", with errors" if partly else ""
    return {"header.src": f"{counts['up']:,}/{here:,}" if here else "", "header.src.w": words, "header.src.s": health}


def _head(every: Sequence[TargetTrust], found: Sequence[TargetTrust], idle: bool) -> View:
    counts = Counter(map(state, every))
    here = len(every) - counts["gone"]
    bad = counts["down"]
    runs = len({one.run for one in every})
    waits, gone = (f"{counts[name]:,} {name}" if counts[name] else "" for name in ("waiting", "gone"))
    headline = f"{here:,} targets, not read now" if idle else f"{counts['up']:,} of {here:,} targets up"
    partly = sum(state(one) == "up" and not healthy(one) for one in every)
    hidden = len(found) - MOST
    none = "" if found else "No target matches." if every else "No targets yet. Runs may still send pushes."
    return {
        "targets.head": headline if every else "No targets",
        "targets.s": chip(every, idle)["header.src.s"],
        "targets.sub": joined(
            f"{bad:,} down" if bad and not idle else "", waits, f"{partly:,} up with an error" if partly else "", gone,
            f"{runs:,} run{'s' if runs != 1 else ''}" if runs else "",
        ),
        "targets.more": f"{hidden:,} more are not shown, none in worse health. Use the filter." if hidden > 0 else "",
        "targets.none": none,
    }  # fmt: skip


def _keys(every: Iterable[TargetTrust], filters: Mapping[str, str]) -> View:
    """``targets.keys``: of one target, the most frequent first; ``more``: how many are left out."""
    wanted = filters.get("of", ""), filters.get("keys", "")
    one = next((one for one in every if (one.run, one.target) == wanted), None)
    if one is None:
        return {}
    keys = sorted(one.unmapped.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [{"key": key, "count": count} for key, count in keys[:MOST_KEYS]]
    more = max(0, len(keys) - MOST_KEYS)
    return {"targets.keys": {"run": one.run, "target": one.target, "keys": shown, "more": more}}


# ---- coverage


def _coverage(scope: Scope) -> View:
    """Of the run that the menu names: ``targets.c.GROUP.0`` .. rows; ``can``: whether the framework can report it."""
    run, infos = scope.run, scope.reader.signals.infos
    status = scope.shared.get(("status", run), COVERAGE_SECONDS, lambda: scope.reader.status(run))
    found: View = {"coverage.run": run}
    for group, rows in covered(status.signals.values(), infos, status.framework).items():
        found |= {f"coverage.{group}.{i}": row for i, row in enumerate(rows)} | {f"coverage.{group}": f"{len(rows)}"}
    return found


def covered(
    signals: Iterable[SignalNow], infos: Mapping[str, SignalInfo], framework: str = ""
) -> dict[str, list[Json]]:
    """Group -> its signals, by actor. A signal is as well off as the best of its series."""
    by_signal: dict[str, list[SignalNow]] = {name: [] for name, info in infos.items() if info.cadence != "counter"}
    for one in signals:
        if one.signal in by_signal:
            by_signal[one.signal].append(one)
    found: dict[str, list[Json]] = {group: [] for group in GROUPS}
    for name, rows in by_signal.items():
        group, label = _best(rows, infos[name])
        can = _can(name, framework) if group == "lack" else ""
        row = {"signal": name, "title": infos[name].title, "actor": infos[name].actor, "text": label, "can": can}
        found[group].append(row)
    return {group: sorted(rows, key=lambda row: str(row["actor"])) for group, rows in found.items()}


def _can(signal: str, framework: str) -> str:
    """Whether this framework's log can have it at all; nothing of what does not come from a log."""
    cell = coverage().cells.get(signal, {}).get(framework, "")
    return f"{system(framework)} can report it" if cell in ("native", "derived") else ""


def _best(rows: Sequence[SignalNow], info: SignalInfo) -> tuple[str, str]:
    measured = [one for one in rows if one.value is not None]
    if measured:
        return "has", f"{len(measured)} series" if len(measured) > 1 else ""
    silent = next((one.why for one in rows if LAST in one.why), "")
    if silent:
        return "silent", silent
    # Not applicable holds for all of its series or for none.
    na = next((one.why for one in rows if one.state == "not_applicable"), None)
    if na is not None:
        return "none", na
    return "lack", next((one.why for one in rows if one.why), info.enable)
