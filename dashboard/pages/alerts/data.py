"""Cells of alerts: firing, pending, notifications, rules, silences.

Every alert has three cells: ``a.KEY`` with what stays as it is while the alert lasts, ``a.KEY.v`` and ``a.KEY.n`` with
its number and its sentence, which change on most ticks. The lists ``al.*`` hold only keys, so an alert that comes or
goes sends itself and not its neighbours.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from dashboard.charts.panels import PANELS
from dashboard.shell.page import Json
from dashboard.state import url as state_url
from dashboard.widgets.format import text, tight
from dashboard.widgets.status import View, joined
from server.query.run_state import LIVE, RunState
from server.query.types import AlertInfo, DeliveryInfo, RuleInfo, SilenceInfo

SEVERITIES: Mapping[str, tuple[str, str]] = {
    "critical": ("critical", "Critical"),
    "warning": ("watch", "Warning"),
    "info": ("unknown", "Info"),
}
"""Severity -> (state, which has the colour; word)."""

_SENT = {"pending": "unknown", "sent": "ok", "failed": "critical", "superseded": "unknown"}
_BRIEF = 6
# Signals that no panel draws, and the panel that shows what they are about.
_NEAR: Mapping[str, str] = {
    "trainer_wait_ratio": "steps",
    "trainer_stall_ratio": "steps",
    "weight_sync_ratio": "steps",
    "queue_batches": "queue",
    "staleness_bound_ratio": "staleness",
    "truncation_ratio": "length",
    "generator_preemption_ratio": "kv",
}
# Longest list: a fleet of a thousand dead engines must not make a page of a thousand cards.
MOST = 100


def firing(alerts: Iterable[AlertInfo]) -> int:
    """How many fire and are not muted: the number in the title."""
    return sum(_open(alert) for alert in alerts)


def _open(alert: AlertInfo) -> bool:
    return alert.state == "firing" and not alert.muted


def key(alert: AlertInfo) -> str:
    """An episode's name on the wire."""
    return f"{alert.fingerprint}-{alert.active_at:.0f}"


def brief(alerts: Sequence[AlertInfo], history: Sequence[AlertInfo], state: RunState) -> View:
    """The overview's short list: what fires, what is pending, and below it what was resolved last.

    Alerts of one rule are one row, that of the newest, with their count (``brief_alerts.n``).
    """
    unmuted = [alert for alert in alerts if not alert.muted]
    of_rule: dict[tuple[str, str], list[AlertInfo]] = {}
    for alert in unmuted:
        of_rule.setdefault((alert.state, alert.name), []).append(alert)
    groups = [sorted(found, key=_begun, reverse=True) for found in of_rule.values()]
    groups.sort(key=lambda found: (found[0].state == "firing", _begun(found[0])), reverse=True)
    shown = [*(found[0] for found in groups), *history][:_BRIEF]
    if state.name in NOT_EVALUATED:
        note = _unevaluated(alerts, state)
        return {
            "brief_alerts.al": [],
            "brief_alerts.n": {},
            "brief_alerts.sum": "Not evaluated now",
            "brief_alerts.s": "unknown",
            "brief_alerts.more": {"hidden": 0, "note": note},
        }
    open_, muted = firing(alerts), len(alerts) - len(unmuted)
    hidden = len(groups[_BRIEF:])
    cells: View = {
        "brief_alerts.al": [key(alert) for alert in shown],
        "brief_alerts.n": {key(found[0]): len(found) for found in groups[:_BRIEF] if len(found) > 1},
        **_summed(open_, unmuted, alerts, state),
        # The browser adds to them those that the card has no room for.
        "brief_alerts.more": {"hidden": hidden, "note": f"{muted} muted" if muted else ""},
    }
    for alert in shown:
        cells |= _row(alert, None)
    return cells


def _begun(alert: AlertInfo) -> float:
    """When it fired; of one that is pending, when its condition began."""
    return alert.fired_at or alert.active_at


NOT_EVALUATED = frozenset({"not_collected", "catching_up"})
"""States of a run in which its rules are not evaluated at the present: silence is no good news then."""


def evaluated(alerts: Iterable[AlertInfo], states: Mapping[str, RunState]) -> list[AlertInfo]:
    """Alerts of runs whose rules are evaluated now."""
    return [one for one in alerts if one.run not in states or states[one.run].name not in NOT_EVALUATED]


def _unevaluated(alerts: Sequence[AlertInfo], state: RunState) -> str:
    if state.name == "catching_up":
        return "Alerts appear once the run has caught up"
    count = firing(alerts)
    return f"{count} fired when the run was last collected" if count else "None fired when the run was last collected"


def _summed(open_: int, unmuted: Sequence[AlertInfo], alerts: Sequence[AlertInfo], state: RunState) -> View:
    """Keys ``brief_alerts.sum``, ``brief_alerts.s``."""
    pending = [alert for alert in unmuted if alert.state == "pending"]
    if open_:
        return {"brief_alerts.sum": f"{open_} firing", "brief_alerts.s": worst(alerts)}
    if pending:
        return {"brief_alerts.sum": f"{len(pending)} pending", "brief_alerts.s": gravest(pending)}
    return {"brief_alerts.sum": "No active alerts", "brief_alerts.s": "unknown" if state.over else "ok"}


def gravest(alerts: Iterable[AlertInfo]) -> str:
    """The state of the gravest of these alerts, whether it fires or not; "ok" without any."""
    found = {_severity(alert.severity)[0] for alert in alerts}
    return next((state for state in ("critical", "watch", "unknown") if state in found), "ok")


def worst(alerts: Iterable[AlertInfo]) -> str:
    """The state of the gravest alert that fires; "ok" when none does."""
    return gravest(alert for alert in alerts if _open(alert))


def board(
    alerts: Sequence[AlertInfo],
    history: Sequence[AlertInfo],
    rules: Sequence[RuleInfo],
    deliveries: Sequence[DeliveryInfo],
    silences: Sequence[SilenceInfo],
    receivers: Sequence[str] | None,
    state: RunState = LIVE,
) -> View:
    """The whole Alerts page.

    Args:
        receivers: names as configured; None when that is not known here.
        state: of the run that the page is about; live for a page about all runs.
    """
    by_name = {rule.name: rule for rule in rules}
    shown, cells = _lists(alerts)
    cells |= _head(alerts, rules, state) | {"alerts.history": [key(alert) for alert in history]}
    for alert in [*shown, *history]:
        cells |= _row(alert, by_name.get(alert.name))
    for alert in shown:
        cells |= _notified(alert, deliveries, silences)
    cells |= _rules(rules, alerts) | _deliveries(deliveries, receivers) | _silences(silences)
    return cells


def _head(alerts: Sequence[AlertInfo], rules: Sequence[RuleInfo], state: RunState) -> View:
    if state.name in NOT_EVALUATED:
        note = _unevaluated(alerts, state)
        return {"alerts.head": "Not evaluated now", "alerts.s": "unknown", "alerts.sub": note, "alerts.none": ""}
    count, able = firing(alerts), sum(not rule.why for rule in rules)
    pending = sum(alert.state == "pending" for alert in alerts)
    muted = sum(alert.state == "firing" and bool(alert.muted) for alert in alerts)
    silent = len(rules) - able
    headline = f"{count} alert{'s' if count > 1 else ''} firing" if count else "No alert is firing"
    if not count and not pending:
        headline = "No active alerts"
    watch = f"{able} rule{'s' if able != 1 else ''} active"
    return {
        "alerts.head": headline,
        "alerts.s": worst(alerts) if count else gravest(alert for alert in alerts if alert.state == "pending"),
        "alerts.sub": joined(
            f"{pending} pending" if pending else "",
            f"{muted} muted" if muted else "",
            watch,
            f"{silent} without data" if silent else "",
        ),
        "alerts.none": "" if count else _quiet(able, silent),
    }


def _quiet(able: int, silent: int) -> str:
    if not able and not silent:
        return "There are no rules, so no alert can fire."
    if not able:
        return "No rule has data yet, so no alert can fire. See Rules for what is missing."
    more = f"{silent} lack{'s' if silent == 1 else ''} data; see Rules." if silent else ""
    return f"{able} rule{'s' if able > 1 else ''} active. {more}".strip()


def _lists(alerts: Sequence[AlertInfo]) -> tuple[list[AlertInfo], View]:
    """(what is shown, the keys of each list)."""
    lists = {
        "firing": [alert for alert in alerts if _open(alert)],
        "pending": [alert for alert in alerts if alert.state == "pending"],
        "muted": [alert for alert in alerts if alert.state == "firing" and alert.muted],
    }
    cells: View = {f"alerts.{name}": [key(alert) for alert in found[:MOST]] for name, found in lists.items()}
    for name, found in lists.items():
        hidden = len(found) - MOST
        cells[f"alerts.{name}.more"] = f"and {hidden:,} more; /api/v1/alerts lists all" if hidden > 0 else ""
    return [alert for found in lists.values() for alert in found[:MOST]], cells


def _severity(severity: str) -> tuple[str, str]:
    """An unknown severity is shown by its own name, in a neutral colour."""
    return SEVERITIES.get(severity, ("unknown", severity or "No severity"))


def _row(alert: AlertInfo, rule: RuleInfo | None) -> View:
    state, word = _severity(alert.severity)
    name = key(alert)
    row = {
        "name": alert.annotations.get("title") or title(alert.name),
        "alert": alert.name,
        "s": state,
        "sev": word,
        "state": alert.state,
        "run": alert.run,
        "labels": dict(sorted(alert.labels.items())),
        "at": round(alert.active_at),
        "fired": _round(alert.fired_at),
        "ended": _round(alert.resolved_at),
        "chart": _chart(alert),
    }
    row |= {"description": alert.annotations.get("description"), "runbook": alert.annotations.get("runbook_url")}
    row |= _terms(alert, rule) | _end(alert)
    cells: View = {f"alert.{name}": {k: v for k, v in row.items() if v not in (None, "")}}
    value = text(alert.value, alert.unit) if alert.value is not None and not _is_a_state(alert, rule) else ""
    return cells | {f"alert.{name}.v": value, f"alert.{name}.n": _summary(alert, rule)}


def _round(at: float | None) -> int | None:
    return round(at) if at is not None else None


def title(name: str) -> str:
    """``TrainerStarved`` as ``Trainer starved``; abbreviations (``KVCache``) stay as they are."""
    parts = re.findall(r"[A-Z]{2,}(?=[A-Z][a-z]|\b|\d)|[A-Z]?[a-z]+|\d+|[A-Z]|[^A-Za-z\d]+", name)
    rest = [word if word.isupper() else word.lower() for word in parts[1:]]
    return " ".join(part for part in (parts[:1] + rest) if part.strip(" _-")) or name


_LASTS = re.compile(r" for (?:more|longer) than .*$")
"""Duration clause of a summary; a pending alert's condition has not held for that long yet."""


def _summary(alert: AlertInfo, rule: RuleInfo | None) -> str:
    found = alert.annotations.get("summary") or (rule.expression if rule else "")
    # The page names the run; only a notification needs its name in the sentence.
    found = found.replace(f" of run {alert.run}", "").replace(f"Run {alert.run} ", "The run ")
    return tight(_LASTS.sub("", found) if alert.state == "pending" else found)


def _terms(alert: AlertInfo, rule: RuleInfo | None) -> Json:
    """The limit in the value's unit, and how long it must hold, both read from the rule's expression."""
    if rule is None:
        return {}
    terms: Json = {"rule": rule.expression}
    sign, limit = _limit(rule)
    if _is_a_state(alert, rule):
        del terms["rule"]
    elif limit is not None:
        terms["limit"] = f"{_NICE.get(sign, sign)} {text(limit, alert.unit)}"
    holds = re.search(r" for (\w+)$", rule.expression)
    return terms | ({"for": holds[1]} if holds and alert.state == "pending" else {})


_NICE = {">=": "≥", "<=": "≤", "==": "=", "!=": "≠"}
_ONE = re.compile(r"\w+(?:\{[^}]*\})? (>=|<=|==|!=|>|<) (-?\d+(?:\.\d+)?)(?: for \w+)?")


def _limit(rule: RuleInfo) -> tuple[str, float | None]:
    """(sign, number) of a rule about one signal with any labels; other rules have no number."""
    one = _ONE.fullmatch(rule.expression)
    if one is not None:
        return one[1], float(one[2])
    sign = re.search(r" (>=|<=|==|!=|>|<) ", rule.expression)
    return (sign[1], rule.threshold) if sign is not None else ("", None)


def _is_a_state(alert: AlertInfo, rule: RuleInfo | None) -> bool:
    """Whether its value is a flag (1 or 0) that the title already describes."""
    sign, limit = _limit(rule) if rule is not None else ("", None)
    return not alert.unit and sign == "==" and limit in (0.0, 1.0)


def _end(alert: AlertInfo) -> Json:
    reason = {"why": alert.reason, "held": alert.held or None}
    if alert.resolved_at is None or alert.fired_at is None:
        return reason
    return reason | {"lasted": text(max(0.0, alert.resolved_at - alert.fired_at), "seconds")}


def _chart(alert: AlertInfo) -> Json:
    """The charts at its moment, as its own address has it."""
    drawn = (p.key for p in PANELS if alert.signal in (p.limits, *(line.want.signal for line in p.lines)))
    panel = next(drawn, _NEAR.get(alert.signal, "")) if alert.signal else ""
    moment = state_url.parse(alert.url.partition("?")[2])
    sandbox = alert.signal.startswith("sandbox")
    shown = {"page": "sandboxes", "panel": "spinups"} if sandbox else {"page": "overview", "panel": panel}
    return {"start": moment.start, "end": moment.end} | shown


def _notified(alert: AlertInfo, deliveries: Sequence[DeliveryInfo], silences: Sequence[SilenceInfo]) -> View:
    """The newest notification per receiver, or why none is sent."""
    newest: dict[str, Json] = {}
    for sent in deliveries:
        mine = sent.run == alert.run and f"{alert.name} firing" in sent.alerts
        if mine and sent.created_at >= alert.active_at and sent.status != "superseded":
            newest.setdefault(sent.receiver, {"receiver": sent.receiver} | _outcome(sent))
    row: Json = {"told": list(newest.values())}
    if alert.muted:
        row |= {"muted": alert.muted} | _silenced(alert.muted, silences)
    return {f"alert.{key(alert)}.x": row}


def _silenced(muted: str, silences: Sequence[SilenceInfo]) -> Json:
    """The silence whose ID the text names."""
    found = next((silence for silence in silences if silence.id and silence.id in muted), None)
    if found is None:
        return {}
    return {"silence": found.id, "by": found.created_by, "comment": found.comment, "until": round(found.ends_at)}


def _outcome(sent: DeliveryInfo) -> Json:
    """Of the newest attempt."""
    if sent.status == "pending":
        again = sent.attempts and sent.next_at is not None
        outcome, at = (f"retry {sent.attempts}", sent.next_at) if again else ("sending", sent.created_at)
        return {"state": "watch" if again else "unknown", "text": outcome, "at": _round(at)}
    at = sent.sent_at if sent.sent_at is not None else sent.created_at
    return {"state": _SENT.get(sent.status, "unknown"), "text": sent.status, "at": round(at)}


def _rules(rules: Sequence[RuleInfo], alerts: Sequence[AlertInfo]) -> View:
    """Keys ``rules.0`` ..: a row per rule."""
    counts: dict[str, list[str]] = {}
    for alert in alerts:
        counts.setdefault(alert.name, []).append("muted" if alert.muted and alert.state == "firing" else alert.state)
    cells: View = {f"rules.{i}": _rule(rule, counts.get(rule.name, [])) for i, rule in enumerate(rules)}
    return cells | {"rules.none": "" if rules else "No rules."}


def _rule(rule: RuleInfo, states: Sequence[str]) -> Json:
    """``now``: what it does now, and ``state`` the colour of that."""
    colour, word = _severity(rule.severity)
    now, state = _rule_now(rule, states, colour)
    return {
        "name": rule.name,
        "severity": word,
        "colour": colour,
        "class": rule.class_,
        "expression": rule.expression,
        "now": now,
        "state": state,
        "summary": rule.summary,
        "builtin": rule.builtin,
    }


def _rule_now(rule: RuleInfo, states: Sequence[str], colour: str) -> tuple[str, str]:
    if not states:
        return (rule.why, "unknown") if rule.why else ("active", "ok")
    counts = [f"{states.count(word)} {word}" for word in ("firing", "pending", "muted") if word in states]
    return joined(*counts), colour if "firing" in states else "unknown"


def _deliveries(deliveries: Sequence[DeliveryInfo], receivers: Sequence[str] | None) -> View:
    """Keys ``deliveries.0`` ..: a row per notification."""
    names = ("receiver", "kind", "run", "alerts", "answer")
    cells: View = {
        f"deliveries.{i}": {name: getattr(sent, name) for name in names} | _outcome(sent)
        for i, sent in enumerate(deliveries)
    }
    unconfigured = receivers is not None and not receivers
    configured = "Configured: " + ", ".join(receivers) if receivers else ""
    cells["deliveries.none"] = (
        "No receivers: alerts appear only here." if unconfigured else "" if deliveries else "None sent yet."
    )
    cells["deliveries.who"] = configured
    # Shown until there is evidence of a configured receiver.
    cells["deliveries.how"] = "1" if unconfigured or (receivers is None and not deliveries) else ""
    return cells


def _silences(silences: Sequence[SilenceInfo]) -> View:
    """Keys ``silences.0`` ..: a `SilenceInfo` each."""
    lasting = (silence for silence in silences if silence.state != "expired")
    cells: View = {f"silences.{i}": structs.asdict(silence) for i, silence in enumerate(lasting)}
    return cells | {"silences.none": "" if cells else "No silences."}
