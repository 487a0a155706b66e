"""Pairs of statements that exclude each other, whatever the truth is. One function for each pair.

A check yields one text for each contradiction that it finds in a snapshot.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from bench.verdict.contradictions import Walker
from dashboard.charts.panels import CARDS, PANELS
from dashboard.pages.generator.data import CARDS as GENERATOR_CARDS
from dashboard.pages.generator.data import PANELS as GENERATOR_PANELS
from dashboard.pages.rollouts.data import CARDS as ROLLOUT_CARDS
from dashboard.pages.sandboxes.data import PANELS as SANDBOX_PANELS
from dashboard.pages.sandboxes.data import SPARKS as SANDBOX_CARDS
from dashboard.pages.trainer.data import CARDS as TRAINER_CARDS
from dashboard.pages.trainer.data import PANELS as TRAINER_PANELS
from dashboard.state.run_state import WORDS
from dashboard.widgets.card import Card
from dashboard.widgets.chart import Panel
from dashboard.widgets.format import text
from server.query.run_state import STATES
from tests.contradictions.snapshot import Snapshot

Check = Callable[[Snapshot], Iterator[str]]

ACTORS = {"generator": "generator", "trainer": "trainer", "overhead": "trainer", "sandbox": "sandbox"}
"""Colour of the banner's chip -> the actor of the strip that the page marks as the limit."""
WHOLE_PAGES = ("runs",)
"""Pages of all runs: their header is about no single run."""
RUN_PAGES = ("overview", "rollouts", "generator", "trainer", "sandboxes")
"""Pages of one run with numbers, states of health and a headline."""
DRAWN: dict[str, tuple[tuple[Card, ...], tuple[Panel, ...]]] = {
    "overview": (CARDS, PANELS),
    "generator": (GENERATOR_CARDS, GENERATOR_PANELS),
    "trainer": (TRAINER_CARDS, TRAINER_PANELS),
    "rollouts": (ROLLOUT_CARDS, ()),
    "sandboxes": (SANDBOX_CARDS, SANDBOX_PANELS),
}
HEADLINES = ("answer.", "head.", "generator.", "trainer.")
"""Beginnings of the keys of sentences about the run."""
PRESENT_TENSE = re.compile(
    r"\b(is|are|has waited|waits|runs|holds|spends|takes|could be|can|today|now)\b", re.IGNORECASE
)
TIMELESS = re.compile(r"by definition|configured|not applicable", re.IGNORECASE)
"""In sentences about a definition or a configuration, which no end of a run changes."""


def one_state(shown: Snapshot) -> Iterator[str]:
    """Header, banner, Runs, API, /metrics and command line show the same state of the run."""
    state, lifecycle = shown.state, str(shown.status["lifecycle"])
    word = lifecycle.capitalize() if state == "finished" else WORDS[state]  # type: ignore[index]
    for page, load in shown.pages.items():
        if page not in WHOLE_PAGES and (found := load["view"].get("run_state", {})).get("word") != word:
            yield f"header of {page}: {found}, API: {state}"
    runs = [run["state"]["name"] for run in shown.runs if run["name"] == shown.run]
    if runs != [state]:
        yield f"/api/v1/runs: {runs}, status: {state}"
    row = shown.text("runs", "runs.0")["state"]
    if (row["name"], row["word"]) != (state, word):
        yield f"Runs: {row}, API: {state}"
    metrics = {labels["state"]: value for name, labels, value in shown.metrics if name == "rollscope_run_data_state"}
    if metrics != {name: float(name == state) for name in STATES}:
        yield f"/metrics: {metrics}, API: {state}"
    line = next((line for line in shown.cli.splitlines() if line.startswith("state: ")), "")
    if not line.startswith(f"state: {lifecycle if state == 'finished' else state.replace('_', ' ')}"):
        yield f"rollscope status: {line}, API: {state}"


def one_banner(shown: Snapshot) -> Iterator[str]:
    """The banner's chip shows the state of a run that is not live, and never a limit of the present."""
    chip, colour = shown.text("overview", "answer.chip"), shown.text("overview", "answer.chip_state")
    if shown.state == "finished":
        wanted = {str(shown.status["lifecycle"]).capitalize()}
    elif shown.state == "stale":
        wanted = {WORDS["stale"], "Stalled"}
    else:
        wanted = {WORDS.get(shown.state, "")}  # type: ignore[call-overload]
    if shown.state != "live" and (chip not in wanted or colour in ACTORS):
        yield f"state {shown.state}, and the banner shows {chip} ({colour})"


def no_current_verdict(shown: Snapshot) -> Iterator[str]:
    """A run that catches up, is stale or is not collected has no current verdict, advice, cost or health."""
    if shown.state in ("live", "finished"):
        return
    allowed = ("unknown", "stalled") if shown.state == "stale" else ("unknown",)
    if (outcome := shown.verdict.get("outcome", "unknown")) not in allowed:
        yield f"API: verdict {outcome} while {shown.state}"
    head = next(line for line in shown.cli.splitlines() if line.startswith("verdict: "))
    if not head.startswith(tuple(f"verdict: {one}" for one in allowed)):
        yield f"rollscope status: {head!r} while {shown.state}"
    row = shown.text("runs", "runs.0")
    if row["colour"] not in ("none", "stalled") or (row["since"] is not None and shown.state != "stale"):
        yield f"Runs: {row['verdict']} since {row['since']} while {shown.state}"
    for key in ("answer.usd", "answer.advice", "answer.cause"):
        if shown.text("overview", key) and outcome == "unknown":
            yield f"Overview {key}: {shown.text('overview', key)!r} while {shown.state}"
    for page in ("generator", "trainer"):
        words = " ".join(str(shown.text(page, f"head.{page}.{part}")) for part in ("before", "figure", "after", "text"))
        if outcome == "unknown" and re.search(r"\blimit\b", words):
            yield f"{page}: {words!r} while {shown.state}"
    bound = [labels for name, labels, value in shown.metrics if name == "rollscope_bottleneck" and value == 1.0]
    if [labels for labels in bound if labels["verdict"] not in allowed]:
        yield f"/metrics: {bound} while {shown.state}"


def no_current_health(shown: Snapshot) -> Iterator[str]:
    """While a run catches up or is not collected, no pill and no line judges its present health."""
    if shown.state not in ("catching_up", "not_collected"):
        return
    if found := re.findall(r"^flagged signals:|^alerts:$|\b(?:WATCH|CRITICAL)$", shown.cli, re.MULTILINE):
        yield f"rollscope status: {found} while {shown.state}"
    judged = {name for name, one in shown.cli_json["signals"].items() if one["state"] in ("ok", "watch", "critical")}
    if judged or shown.cli_json["alerts"]:
        yield f"rollscope status --json: {sorted(judged)[:3]}, {len(shown.cli_json['alerts'])} alerts, {shown.state}"
    for page in RUN_PAGES:
        for key, word in shown.pages[page]["view"].items():
            if key.endswith((".p", ".word")) and word in ("OK", "Watch", "Critical"):
                yield f"{page} {key}: {word} while {shown.state}"


def limit_applies(shown: Snapshot) -> Iterator[str]:
    """The actor that is marked as the limit is one that this run has."""
    actor = ACTORS.get(shown.text("overview", "answer.chip_state"), "")
    if actor and shown.text("overview", f"actor.{actor}.state") == "not_applicable":
        yield f"the banner marks {actor} as the limit, and its box is not applicable"
    outcomes = {shown.verdict.get("outcome"), *(one["outcome"] for one in shown.verdict.get("limiters", ()))}
    if shown.text("sandboxes", "sandboxes.mode") == "na" and "sandbox_bound" in outcomes:
        yield "the verdict names sandboxes, and the Sandboxes page states that this run uses none"


def rules_of_verdicts(shown: Snapshot) -> Iterator[str]:
    """The verdict contradicts no number of the same answer (the pairs of `bench.verdict.contradictions`)."""
    if shown.state != "live":
        return
    walker = Walker()
    signals = {name: one["value"] for name, one in shown.status["signals"].items() if one["value"] is not None}
    walker.check(shown.status["now"], shown.verdict, signals, shown.status["facts"], shown.status["mode"])
    for name, ticks in walker.found.items():
        yield f"{name}: {ticks[0][1]}"


def tool_time_with_sandboxes_queued(shown: Snapshot) -> Iterator[str]:
    """A verdict of tool time never stands beside queued sandboxes."""
    queued = re.search(r"([\d,]+) queued", shown.text("sandboxes", "card.sb_starting.note"))
    running = shown.value('sandboxes{state="running"}') or 0.0
    if shown.text("overview", "answer.cause") == "tool time" and queued:
        number = float(queued[1].replace(",", ""))
        if number > 0.2 * (number + running):
            yield f"the verdict is tool time, and {queued[0]} beside {running:.0f} running sandboxes"


def starved_engines_with_full_engines(shown: Snapshot) -> Iterator[str]:
    """A verdict that the engines get too few rollouts never stands beside engines that are full."""
    outcome = shown.verdict.get("outcome")
    waiting = shown.value('generator_requests_now{state="waiting"}') or 0.0
    running = shown.value('generator_requests_now{state="running"}') or 0.0
    if outcome in ("orchestrator_bound", "sandbox_bound") and shown.current and waiting > max(1.0, 0.1 * running):
        yield f"{outcome}, and {waiting:.0f} requests wait in the engines beside {running:.0f} that run"


def evidence_equals_signals(shown: Snapshot) -> Iterator[str]:
    """A number in the verdict's evidence equals the signal that the evidence names, at the same instant."""
    if shown.state != "live":
        return
    for item in shown.verdict.get("evidence", ()):
        signal, value = item["signal"], item["value"]
        if not signal or value is None:
            continue
        values = [
            one["value"] for name, one in shown.status["signals"].items()
            if name.partition("{")[0] == signal and one["value"] is not None
        ]  # fmt: skip
        if not any(text(value, item["unit"]) == text(one, item["unit"]) for one in values):
            yield f"evidence {item['text']!r} states {value}, the signal {signal} is {values}"


def headline_equals_card(shown: Snapshot) -> Iterator[str]:
    """The wait in the banner, on the Trainer page, on Runs and in What-if equals the Trainer wait card."""
    card = shown.text("overview", "card.wait.figure") + shown.text("overview", "card.wait.unit")
    if shown.value("trainer_wait_ratio") is None:
        return
    stated = {
        "Runs": shown.text("runs", "runs.0")["wait"]["text"],
        "Trainer card": shown.text("trainer", "card.tr_wait.figure") + shown.text("trainer", "card.tr_wait.unit"),
    }
    if "trainer wait" in shown.text("trainer", "head.trainer.before"):
        stated["Trainer headline"] = shown.text("trainer", "head.trainer.figure")
    if shown.text("what-if", "what_if.mode") == "now":
        stated["What-if"] = shown.text("what-if", "head.what_if.figure")
    before, below = (
        shown.text("overview", "answer.before"),
        re.search(r"^The trainer waits (\S+) of", shown.text("overview", "answer.text")),
    )
    if shown.current and re.search(r"the trainer waits $", before, re.IGNORECASE):
        stated["banner"] = shown.text("overview", "answer.figure")
    elif shown.current and below:
        stated["banner"] = below[1]
    for place, figure in stated.items():
        if figure != card:
            yield f"{place}: {figure}, Trainer wait card: {card}"


def not_reported_over_points(shown: Snapshot) -> Iterator[str]:
    """A card or chart that says that nothing is reported never stands over points of the time shown."""
    for page, (cards, panels) in DRAWN.items():
        for card in cards:
            note = shown.text(page, f"card.{card.key}.why") or shown.text(page, f"card.{card.key}.note")
            silent = shown.text(page, f"card.{card.key}.figure") == "–" and _denies(note)
            if silent and shown.points(page, f"card.{card.key}"):
                yield f"{page} card {card.key}: {note!r} over a line with points"
        for panel in panels:
            note = shown.text(page, f"chart.{panel.key}.why")
            drawn = [slot for slot, _ in panel.slots() if shown.points(page, slot)]
            if _denies(note) and drawn:
                yield f"{page} chart {panel.key}: {note!r} over points of {drawn}"
    boxes = shown.text("overview", "actor.queue.sub")
    if _denies(boxes) and shown.points("overview", "queue.0"):
        yield f"overview, box of the queue: {boxes!r} over points of the queue"


def _denies(note: Any) -> bool:
    return bool(re.search(r"not reported|reports no|no \w+ reports|never reported", str(note)))


def limit_not_reported_beside_limit(shown: Snapshot) -> Iterator[str]:
    """The Sandboxes page does not say that a limit is unknown while the verdict states it."""
    stated = re.search(r"account limit of (\d+)", str(shown.verdict.get("summary", "")))
    for page, key, words in shown.texts("sandboxes"):
        if stated and key.startswith("card.sb_starting") and "limit not reported" in words:
            yield f"{page} {key}: {words!r}, and the verdict states {stated[0]!r}"


def past_tense(shown: Snapshot) -> Iterator[str]:
    """A finished run is described in the past tense."""
    if shown.state != "finished":
        return
    for page, key, words in shown.texts(*RUN_PAGES, "what-if"):
        if key.startswith(HEADLINES) and not TIMELESS.search(words) and (found := PRESENT_TENSE.search(words)):
            yield f"{page} {key}: {words!r} ({found[0]!r})"


def one_count_of_alerts(shown: Snapshot) -> Iterator[str]:
    """Header, Alerts, Overview, Runs, /metrics and API count the same firing alerts."""
    is_evaluated = shown.state not in ("catching_up", "not_collected")
    firing = sum(one["state"] == "firing" and not one["muted"] for one in shown.alerts)
    counted = firing if is_evaluated else 0
    counts = {f"header of {page}": load["view"].get("header.firing") or 0 for page, load in shown.pages.items()}
    counts["Runs"] = shown.text("runs", "runs.0")["fire"]
    counts["Alerts, list"] = len(shown.text("alerts", "alerts.firing")) if is_evaluated else 0
    for place, words in (
        ("Alerts", shown.text("alerts", "alerts.head")),
        ("Overview", shown.text("overview", "brief_alerts.sum")),
    ):
        found = re.match(r"(\d+) .*firing", words)
        counts[place] = int(found[1]) if found else 0
        if not is_evaluated and words != "Not evaluated now":
            yield f"{place}: {words!r} while {shown.state}"
    for place, count in counts.items():
        if count != counted:
            yield f"{place}: {count} alerts fire, API: {counted}"
    everything = sum(one["state"] == "firing" for one in shown.alerts)
    exported = sum(
        value for name, labels, value in shown.metrics
        if name == "rollscope_alerts" and labels["alertstate"] == "firing"
    )  # fmt: skip
    status = sum(one["state"] == "firing" for one in shown.status["alerts"])
    if not exported == status == everything:
        yield f"/metrics: {exported:.0f} firing, status: {status}, /api/v1/alerts: {everything}"


def one_count_of_targets(shown: Snapshot) -> Iterator[str]:
    """Sources, header, Runs, /metrics and API count the same targets that answer."""
    if shown.state in ("not_collected", "finished"):
        return
    up, targets = sum(one["up"] for one in shown.status["trust"]), len(shown.status["trust"])
    exported = [value for name, _, value in shown.metrics if name == "rollscope_target_up"]
    words = {
        "Runs": shown.text("runs", "runs.0")["up"],
        "Sources": shown.text("sources", "targets.head"),
        "Header": shown.text("overview", "header.src"),
    }
    if (sum(exported), len(exported)) != (up, targets):
        yield f"/metrics: {sum(exported):.0f} of {len(exported)} up, API: {up} of {targets}"
    for place, found in words.items():
        numbers = [int(one) for one in re.findall(r"\d+", found)[:2]]
        if numbers != [up, targets] and (up, numbers) != (0, [targets, targets]):
            yield f"{place}: {found!r}, API: {up} of {targets} up"


def same_signal_same_figure(shown: Snapshot) -> Iterator[str]:
    """Cards of different pages that show the same signal show the same figure."""
    figures: dict[tuple[str, Any], tuple[str, str]] = {}
    for page, (cards, _) in DRAWN.items():
        for card in cards:
            if len(card.wants) > 1 or f"card.{card.key}.figure" not in shown.pages[page]["view"]:
                continue
            figure = str(shown.text(page, f"card.{card.key}.figure"))
            want = card.wants[0]
            place, other = figures.setdefault((want.signal, want.labels), (page, figure))
            if other != figure:
                yield f"{want.signal}: {other} on {place}, {figure} on {page}"


def census_fits_sandboxes(shown: Snapshot) -> Iterator[str]:
    """No more rollouts generate than have a running sandbox, where each rollout needs one."""
    if shown.text("sandboxes", "sandboxes.mode") != "ok" or shown.text("rollouts", "rollouts.mode") != "ok":
        return
    rows = [value for key, value in shown.pages["rollouts"]["view"].items() if re.fullmatch(r"census\.\d+", key)]
    # A label states that the number is of all rollouts in flight.
    count = {row["state"]: row["rollouts"] for row in rows if row and not row["label"]}
    running = shown.value('sandboxes{state="running"}')
    generating = count.get("generating")
    if running is not None and generating is not None and generating > 1.2 * running and not math.isnan(running):
        yield f"Rollouts: {generating} generate, Sandboxes: {running:.0f} run"


def finished_has_no_open_health(shown: Snapshot) -> Iterator[str]:
    """A finished run has no target that counts as down."""
    if shown.state == "finished" and shown.text("runs", "runs.0")["down"]:
        yield f"Runs: {shown.text('runs', 'runs.0')['down']} targets down of a finished run"


CHECKS: tuple[Check, ...] = (
    one_state, one_banner, no_current_verdict, no_current_health, limit_applies, rules_of_verdicts,
    tool_time_with_sandboxes_queued, starved_engines_with_full_engines, evidence_equals_signals, headline_equals_card,
    not_reported_over_points, limit_not_reported_beside_limit, past_tense, one_count_of_alerts, one_count_of_targets,
    same_signal_same_figure, census_fits_sandboxes, finished_has_no_open_health,
)  # fmt: skip
"""Every pair, in the order of the report."""
