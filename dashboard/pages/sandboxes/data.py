"""Cells of the Sandboxes page: states, spin-up, failures, quotas, credit, leftovers."""

from collections.abc import Mapping
from math import floor
from urllib.parse import quote

from msgspec import structs

from dashboard.pages.sandboxes.records import SandboxRecords, records
from dashboard.pages.sandboxes.tables import STATE_WORDS, by_cause, tables
from dashboard.pages.sources.setup import toml_key
from dashboard.shell.page import Scope
from dashboard.widgets import card, chart
from dashboard.widgets.base import Headline, Quantity, absent
from dashboard.widgets.card import Card, CardNow
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import money, text
from dashboard.widgets.signal_lookup import want
from dashboard.widgets.status import LAST, StatusFacts, View, first_clause, joined, worst
from server.query import Reader
from server.query.types import SignalInfo

# ---- spinups
# Spin-ups over time as columns of a heat map: ``spin_ups.N`` is the column that starts N widths after the epoch.

COLUMNS = 60
EDGES = ("1", "2", "5", "10", "20", "30", "60", "120", "300", "600", "1200", "1800", "3600", "7200", "+Inf")
"""Upper edges in seconds, as of the histogram on `/metrics`; edges found only in the data get a row, too."""

Counts = Mapping[int, Mapping[str, int]]

# Cache time: at least 4 s, else a twelfth of a column, so that a week is not read at each tick.
_LEAST_SECONDS, _LOOKS_PER_COLUMN = 4.0, 12


def heat(scope: Scope) -> View:
    """Keys ``h.*``; nothing for a scope without a time to show."""
    if scope.span is None:
        return {}
    # Exact at every tick: times of these decades are multiples of one power of two, and so is their difference.
    width = (scope.span.end - scope.span.start) / COLUMNS
    first = floor(scope.span.start / width)
    keep = max(_LEAST_SECONDS, width / _LOOKS_PER_COLUMN)
    reader, run = scope.reader, scope.run
    counts = scope.shared.get(("spinups", run, first, width), keep, lambda: _read(reader, run, first, width))
    return spinup_cells(counts, width)


def _read(reader: Reader, run: str, first: int, width: float) -> Counts:
    # One column more than fit: the first and the last are cut by the edges of the time shown.
    start, count = first * width, COLUMNS + 1
    found = reader.sandboxes.spinups(run, start, start + count * width, count)
    return {round(at / width): dict(counts) for at, counts in found}


def spinup_cells(counts: Counts, width: float) -> View:
    """``spin_ups.N``: [[edge, how many], ...]; ``.edges`` the rows from below; ``.most`` the fullest cell."""
    found_edges = {edge for column in counts.values() for edge in column}
    edges = sorted({*EDGES, *found_edges}, key=_seconds)
    found: View = {f"spin_ups.{number}": [[edge, column[edge]] for edge in edges if edge in column]
                   for number, column in counts.items()}  # fmt: skip
    full = max((n for column in counts.values() for n in column.values()), default=0)
    total = sum(n for column in counts.values() for n in column.values())
    none = "" if total else "No sandbox became ready in this range."
    return found | {
        "spin_ups.edges": list(edges),
        "spin_ups.width": width,
        "spin_ups.most": full,
        "spin_ups.total": total,
        "spin_ups.none": none,
    }


def _seconds(edge: str) -> float:
    try:
        return float(edge)
    except ValueError:
        return float("inf")


_OLDEST, _P95 = "sandbox_oldest_pending_seconds", {"image": "all", "stat": "p95"}
_SPIN = "sandbox_spinup_latency_seconds"
_ZERO = want("zero_advantage_ratio", basis="completed|admitted")
_LOST, _BROKEN = "sandbox_failed_rollout_ratio", "sandbox_failure_ratio"
# Starting is at the bottom, so that the limit on how many start at once can be drawn over it; then in lifecycle order.
# Teal and plum, which colour-blind readers confuse, are not adjacent.
_DRAWN = (("starting", "teal"), ("running", "purple"), ("building_image", "gold"), ("queued", "plum"))
_NOT_DRAWN = ("paused", "stopping", "unknown")

CARDS: tuple[Card, ...] = (
    # A count of sandboxes under its title needs no unit.
    Card("sb_running", "Running", "purple", (want("sandboxes", state="running"),), unit=""),
    Card(
        "sb_starting",
        "Starting",
        "teal",
        (want("sandboxes", state="starting"),),
        # The limit on how many start at once is what a wall is made of.
        judges=(want("sandbox_quota_used_ratio", resource="starting"),),
        notes=(("quota used", want("sandbox_quota_used_ratio", resource="starting")),),
        unit="",
    ),
    Card("sb_oldest", "Oldest pending", "orange", (want(_OLDEST),), peaks=True),
    Card(
        "sb_p95",
        "Spin-up p95",
        "purple",
        (want(_SPIN, **_P95),),
        notes=(("p50", want(_SPIN, image="all", stat="p50")), ("max", want(_SPIN, image="all", stat="max"))),
    ),
    Card(
        "sb_exec",
        "Commands p95",
        "purple",
        (want("sandbox_exec_seconds", stat="p95"),),
        notes=(("p50", want("sandbox_exec_seconds", stat="p50")),),
    ),
    Card("sb_failed", "Failures", "orange", (want("sandbox_failures_total"),)),
    Card("sb_dangling", "Dangling", "gold", (want("sandboxes_dangling"),), unit=""),
    Card("sb_credit", "Credit lasts", "blue", (want("sandbox_credit_hours"),)),
)
# Failures are many counters, and the credit falls slowly: their cards have no small line.
SPARKS = tuple(card for card in CARDS if card.key not in ("sb_failed", "sb_credit"))
PANELS: tuple[Panel, ...] = (
    Panel(
        "boxes",
        "States over time",
        "live sandboxes",
        "sandboxes",
        tuple(PanelLine(STATE_WORDS[state], want("sandboxes", state=state), colour) for state, colour in _DRAWN),
        kind="stack",
        limits="starting_limit",
    ),
    Panel(
        "infra",
        "Infra failures and zero advantage",
        "%",
        "ratio",
        (
            PanelLine("rollouts lost to their sandbox", want(_LOST), "purple"),
            PanelLine("sandboxes failed", want(_BROKEN), "grey"),
            PanelLine("groups without a gradient", _ZERO, "gold"),
        ),
    ),
    Panel(
        "creates",
        "Creations",
        "sandboxes/s over 5 min",
        "sandboxes/s",
        (
            PanelLine("requested", want("sandbox_creates_per_second"), "purple", "zero"),
            PanelLine("became ready", want("sandbox_outcomes_per_second", outcome="ready"), "teal"),
            PanelLine("refused", want("sandbox_outcomes_per_second", outcome="refused"), "orange"),
            PanelLine(
                "limit", want("sandbox_quota_limit", resource="creates_per_second"), "grey", thin=True, limit=True
            ),
        ),
    ),
    Panel(
        "commands",
        "Commands and tools",
        "mean per rollout; commands over 5 min",
        "seconds",
        (
            PanelLine("tools per rollout", want("rollout_phase_seconds", phase="tools"), "purple"),
            PanelLine("set-up per rollout", want("rollout_phase_seconds", phase="setup"), "teal"),
            PanelLine("command p50", want("sandbox_exec_seconds", stat="p50"), "grey"),
            PanelLine("command p95", want("sandbox_exec_seconds", stat="p95"), "grey", "band", thin=True),
        ),
    ),
)

_CLOCKS: Mapping[str, str] = {
    "server": "the provider's clock",
    "client": "the caller's clock",
    "log": "log lines",
    "trace": "traces",
    "poll_bound": "polling (upper bound)",
}
_TARGETS = 4
# Placeholder for the server's address, which `assets/widgets/sandboxes.mjs` fills in from the browser's location.
HERE = "@here@"


def cells(scope: Scope) -> View:
    """All texts of the page. Its ``sandboxes.mode`` is ``na`` (uses none), ``none`` (none is reported) or ``ok``."""
    facts, infos, boxes = scope.facts, scope.reader.signals.infos, records(scope)
    shown = mode(facts, boxes)
    found: View = {"sandboxes.mode": shown, "head.sandboxes": _head(facts, boxes, shown), **_sources(facts)}
    if shown != "ok":
        return found
    cards, charts = card.bind_all(CARDS, facts, infos), chart.bind_all(PANELS, facts, infos)
    notes = {"sb_starting": _starting(facts), "sb_p95": _p95(facts, boxes), "sb_credit": _credit(facts)}
    cards |= {key: structs.replace(cards[key], note=note) for key, note in notes.items() if note}
    cards["sb_failed"] = _failed(cards["sb_failed"], facts, boxes)
    found |= _spin_ups(facts, boxes) | _infra(facts, infos) | _rest(facts) | heat(scope) | tables(facts, boxes, infos)
    message, error = unanswered(facts)
    if message:
        # All reasons are one while no target has answered: hints of single signals would mislead.
        whole = f"{message}: {error}" if error else message
        silent = [key for key, one in cards.items() if one.state == "unknown"]
        cards |= {key: structs.replace(cards[key], note=message, why=whole) for key in silent}
        charts |= {key: structs.replace(one, why=whole) for key, one in charts.items() if one.why}
        found |= {"quotas.none": message + "."} if found.get("quotas.none") else {}
    return found | card.cells(cards) | chart.cells(charts)


def mode(facts: StatusFacts, boxes: SandboxRecords) -> str:
    """Which content the page has."""
    if facts.number("has_sandbox") == 0 or facts.state("sandboxes") == "not_applicable":
        return "na"
    reported = facts.value("sandboxes", state="running") is not None or boxes.any or facts.kinds("sandbox")
    return "ok" if reported else "none"


# ---- head


def _head(facts: StatusFacts, boxes: SandboxRecords, shown: str) -> Headline:
    why = facts.find("sandboxes")
    reason = why.why if why is not None else ""
    if shown == "na":
        sentence = f"Not applicable: {reason or 'has_sandbox = 0 in its facts'}."
        return Headline("This run uses no sandboxes", text=sentence, state="not_applicable")
    if shown == "none":
        return Headline("No sandbox provider is configured", text="No data on this run's sandboxes.", state="unknown")
    running, oldest = facts.value("sandboxes", state="running"), facts.find(_OLDEST)
    if running is None:
        message, error = unanswered(facts)
        begin = message or first_clause(reason) or "No current sandbox data"
        last = "The last known values are below." if _once(facts, boxes) else ""
        # A target's name keeps its case; a reason starts with a capital letter.
        return Headline(message or begin[0].upper() + begin[1:], text=joined(error, last), state="unknown")
    if oldest is not None and oldest.value is not None and oldest.state in ("watch", "critical") and not facts.over:
        figure = Quantity(oldest.value, "seconds")
        return Headline("The oldest pending sandbox has waited ", figure, text=_behind(facts), state=oldest.state)
    tail = " sandboxes were running at the end" if facts.over else " sandboxes running"
    state = worst((facts.state("sandboxes_unreachable"), facts.state(_SPIN, **_P95)))
    beside = joined(_live(facts), _spin(facts), _unreachable(facts))
    return Headline(figure=Quantity(running), after=tail, text=beside, state=state)


def unanswered(facts: StatusFacts) -> tuple[str, str]:
    """(text, error) when there are sandbox targets and none has ever answered; ("", "") otherwise."""
    rows = [target for target in (*facts.status.trust, *facts.status.gone) if target.actor == "sandbox"]
    if not rows or any(target.age_seconds is not None for target in rows):
        return "", ""
    subject = rows[0].target if len(rows) == 1 else f"None of {len(rows)} sandbox targets"
    verb = ("has not" if len(rows) == 1 else "has") if not facts.over else ("never" if len(rows) == 1 else "ever")
    error = next((target.error for target in rows if target.error), "")
    return f"{subject} {verb} answered" + ("" if facts.over else " yet"), error


def _once(facts: StatusFacts, boxes: SandboxRecords) -> bool:
    """Was anything ever known of its sandboxes?"""
    mine = (signal for signal in facts.signals if signal.signal.startswith("sandbox"))
    return boxes.any or any(signal.value is not None or LAST in signal.why for signal in mine)


def _behind(facts: StatusFacts) -> str:
    """Why the p95 excludes pending sandboxes."""
    p95 = facts.say(_SPIN, **_P95)
    note = f"Sandboxes that started took {p95} (p95). Pending ones are not in that figure." if p95 else ""
    return " ".join(word for word in (note, joined(_live(facts), _unreachable(facts))) if word)


def _live(facts: StatusFacts) -> str:
    live = [facts.value("sandboxes", state=state) for state in STATE_WORDS]
    measured = [value for value in live if value is not None]
    return f"{sum(measured):,.0f} live" if measured else ""


def _spin(facts: StatusFacts) -> str:
    p95, oldest = facts.say(_SPIN, **_P95), facts.say(_OLDEST)
    return joined(f"oldest pending {oldest}" if oldest else "", f"spin-up p95 {p95}" if p95 else "")


def _unreachable(facts: StatusFacts) -> str:
    lost = facts.value("sandboxes_unreachable")
    return f"{lost:,.0f} running but unreachable" if lost else ""


def _sources(facts: StatusFacts) -> View:
    """Keys ``sandbox_sources.0`` ..: a row per target, the broken first."""
    rows = [target for target in (*facts.status.trust, *facts.status.gone) if target.actor == "sandbox"]
    rows.sort(key=lambda target: (target.up, not target.error, target.target))
    now = facts.status.now
    found: View = {
        f"sandbox_sources.{i}": {
            "target": t.target,
            "kind": t.kind,
            "up": t.up,
            "seen_at": None if t.age_seconds is None else round(now - t.age_seconds),
            "error": t.error,
        }
        for i, t in enumerate(rows[:_TARGETS])
    }
    more = len(rows) - _TARGETS
    return found | {
        "sandbox_sources.more": f"and {more} more" if more > 0 else "",
        "sandboxes.toml": snippet(facts.status.run),
        "sandboxes.recipe": recipe(facts.status.run),
    }


def recipe(run: str, address: str = HERE) -> str:
    """Python code that reports sandboxes without a provider's key: a wrapper around `create()` that never raises.

    ``address``: of this server, without a slash at its end; the page puts the one it came from.
    """
    return f'''import json, sys, time, uuid
from urllib.request import Request, urlopen

URL = "{address}/api/v1/runs/{quote(run, safe="")}/sandboxes"
HEADERS = {{}}  # {{"authorization": "Bearer TOKEN"}} if Rollscope has a token


def report(box, **more):  # takes at most a second and never raises
    try:
        urlopen(Request(URL, json.dumps({{**box, **more}}).encode(), HEADERS), timeout=1).close()
    except Exception as error:
        print("rollscope:", error, file=sys.stderr)


box = {{"id": uuid.uuid4().hex, "provider": "e2b", "requested_at": time.time()}}
report(box)  # pending from here on
try:
    sandbox = Sandbox.create()
except BaseException as error:
    report(box, state="failed", detail=str(error))
    raise
box["ready_at"] = time.time()
report(box)
# ... and at its end: report(box, state="terminated", ended_at=time.time())
'''


def snippet(run: str) -> str:
    """What to write into the configuration, with the run's own name."""
    return (
        f"[[run.{toml_key(run)}.target]]\n"
        'collector = "prime_sandboxes"   # or e2b, daytona, runloop, modal, kubernetes, docker, ...\n'
        'key_env = "PRIME_API_KEY"\n'
    )


# ---- cards


def _starting(facts: StatusFacts) -> str:
    """What else waits: a wall may stand before the image or in the queue."""
    if facts.value("sandboxes", state="starting") is None:
        return ""
    waits = {state: facts.value("sandboxes", state=state) for state in ("building_image", "queued")}
    words = [f"{value:,.0f} {STATE_WORDS[state]}" for state, value in waits.items() if value]
    used = facts.say("sandbox_quota_used_ratio", resource="starting")
    # The number of starting sandboxes is judged against the limit only.
    # The verdict infers a limit from a constant number of starting sandboxes; its cause may be of the last verdict.
    verdict = facts.status.verdict
    causes = {one.cause for one in (verdict, verdict.last) if one}
    inferred = "at a limit inferred by the verdict" if "starting_limit" in causes else "limit not reported"
    return joined(f"{used} of the limit" if used else inferred, *words)


def _p95(facts: StatusFacts, boxes: SandboxRecords) -> str:
    """The other quantiles, and the clock that timed the spin-ups."""
    if facts.value(_SPIN, **_P95) is None:
        return ""
    beside = [f"{name} {value}" for name in ("p50", "max") if (value := facts.say(_SPIN, image="all", stat=name))]
    clock = clocks(boxes)
    return joined(*beside, f"by {clock}" if clock else "")


def _spin_ups(facts: StatusFacts, boxes: SandboxRecords) -> View:
    """Beside the map of spin-ups: its clock, the two figures that it draws as lines, and p95 by image."""
    clock, split = clocks(boxes), []
    if facts.value(_SPIN, **_P95) is not None:
        split = [
            f"p95 {value} {word}"
            for image, word in (("cached", "cached image"), ("built", "built image"))
            if (value := facts.say(_SPIN, image=image, stat="p95"))
        ]
    return {
        "sandboxes.clock": f"timed by {clock}" if clock else "",
        "sandboxes.oldest": facts.say(_OLDEST),
        "sandboxes.p95": facts.say(_SPIN, **_P95),
        "sandboxes.split": joined(*split),
    }


def clocks(boxes: SandboxRecords) -> str:
    """The clocks that timed spin-ups (`latency_source`), as text."""
    return " and ".join(_CLOCKS.get(name, name) for name in boxes.sources)


def _failed(shown: CardNow, facts: StatusFacts, boxes: SandboxRecords) -> CardNow:
    """The sum over causes, which has no bands and no state. Without a record there is no zero."""
    requested = boxes.funnel.get("requested") or 0
    total = sum(value for _, value in by_cause(facts)) or float(boxes.funnel.get("failed") or 0)
    if not requested and not total:
        note = "no sandbox of this run reported yet"
        return structs.replace(shown, note=note, why=note)
    share = f"{text(total / requested, 'ratio')} of {requested:,} requested" if requested else ""
    if late := boxes.funnel.get("met_ended"):
        # Providers list failed sandboxes longer than completed ones, so a share would be too high.
        share = f"no share: {late:,} ended before Rollscope started"
    return CardNow(value=total, state="ok", note=share, since=shown.since)


def _credit(facts: StatusFacts) -> str:
    if facts.value("sandbox_credit_hours") is None:
        return ""
    left, rate = facts.value("sandbox_credit_usd"), facts.value("sandbox_cost_usd_per_hour")
    return joined(f"{money(left)} left" if left is not None else "", f"{money(rate)}/h" if rate is not None else "")


def _infra(facts: StatusFacts, infos: Mapping[str, SignalInfo]) -> View:
    """Which of the two failure lines there is, and why it matters here."""
    if facts.value(_LOST) is not None:
        note = "A failed sandbox gives a false zero reward. If both lines rise together, check sandboxes before tasks."
    elif facts.value(_BROKEN) is not None:
        note = "Showing sandbox failure rate: failures cannot be linked to rollouts here."
    else:
        note = (first_clause(facts.silence(_BROKEN)) or "No current failure data").rstrip(".") + "."
    zero = facts.find(_ZERO.signal, **dict(_ZERO.labels))
    if zero is None or zero.value is None:
        why = first_clause(zero.why if zero else absent(_ZERO.signal, infos))
        note += f" Groups without gradient: {why}."
    return {"sandboxes.infra": note}


def _rest(facts: StatusFacts) -> View:
    """Live ones that the chart leaves out, because they are few: never silently."""
    counts = {state: facts.value("sandboxes", state=state) for state in _NOT_DRAWN}
    words = [f"{value:,.0f} {STATE_WORDS[state]}" for state, value in counts.items() if value]
    return {"sandboxes.rest": f"Not drawn: {', '.join(words)}." if words else ""}
