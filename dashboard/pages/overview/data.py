"""Everything on the overview that is text, as one flat table ``key -> cell``.

The overview's elements carry the keys (`pages/overview.py`), the browser fills them in, and a tick sends only
the cells that changed: so a number has one formatter, here, on first load and live alike.
Ages are sent as times: the browser counts them up itself, also while the server is gone.
"""

import math
import re
from collections.abc import Iterable, Mapping

from dashboard.charts.limits import fixed_limit, limits
from dashboard.charts.panels import CARDS, PANELS, Card, Panel, PanelLine
from dashboard.pages.overview.banner import banner
from dashboard.pages.overview.cost import cost
from dashboard.pages.overview.flow import flow
from dashboard.state.signal_lookup import Want
from dashboard.state.status import StatusFacts, View, first_clause, joined, worst
from dashboard.widgets.format import STATE_WORDS, number, parts, text
from server.query.types import SignalInfo, SignalNow

Infos = Mapping[str, SignalInfo]


def view(facts: StatusFacts, infos: Infos) -> View:
    """The overview's text for a status."""
    cells: View = {}
    for card in CARDS:
        cells |= card_cells(facts, card, infos)
    for panel in PANELS:
        cells |= panel_cells(facts, panel, infos)
    cells |= _limiter_cells(facts, cells)
    cells |= flow(facts)
    cards, panels = FIRST_SHOWN.get(facts.status.verdict.outcome if facts.present else "", ((), ()))
    cells["first"] = {"cards": list(cards), "panels": list(panels)}
    if facts.status.state.name == "catching_up":
        # States of health describe the present; while catching up they are left out.
        cells |= {key: "" for key in cells if key.endswith(".p")}
    return cells | banner(facts) | cost(facts)


def card_cells(facts: StatusFacts, card: Card, infos: Infos) -> View:
    """The texts of a card, keys ``k.KEY.*``."""
    found = card.find(facts.signals)
    judged = [one for want in card.judges if (one := want.explain(facts.signals)) is not None]
    state = _state(found, judged)
    # A value without bands is not "OK", only known.
    plain = state == "ok" and not any(_banded(one, infos) for one in (found, *judged))
    figure, unit = parts(found.value if found else None, found.unit if found else "")
    key = f"k.{card.key}"
    note = _note(facts, card, found, infos)
    silent = found is None or found.value is None
    return {
        f"{key}.v": figure,
        f"{key}.u": unit,
        f"{key}.s": state,
        f"{key}.p": "" if plain else STATE_WORDS[state],
        f"{key}.w": "" if silent else card.window,
        # A card has room for the problem; its tooltip and the charts below give the fix.
        f"{key}.n": first_clause(note) if silent else note,
        f"{key}.tip": note if silent else "",
    }


def _state(found: SignalNow | None, judged: Iterable[SignalNow]) -> str:
    """The worst of the value's state and the judging signals' states."""
    if found is None:
        return "unknown"
    if found.value is None:
        return found.state
    return worst((*(one.state for one in judged if one.value is not None), found.state))


CARD_OF = {
    "kv_capacity": "kv", "preemption": "kv", "drift": "length", "spin_up": "spinup", "starting_limit": "spinup",
    "quota": "spinup", "init_failures": "spinup", "too_easy": "zero", "too_hard": "zero",
}  # fmt: skip
"""Cause of a verdict -> the card that shows it."""


def _limiter_cells(facts: StatusFacts, cells: View) -> View:
    """Marks the card that shows the limiter: by its bands alone it may look healthy."""
    cause = facts.status.verdict.cause if facts.present else None
    key = f"k.{CARD_OF.get(cause or '', '')}"
    if cells.get(f"{key}.s") != "ok":
        return {}
    return {f"{key}.s": "watch", f"{key}.p": "The limit"}


FIRST_SHOWN: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "generator_bound": (("kv", "wait", "queue"), ("requests", "kv", "steps")),
    "sandbox_bound": (("spinup", "wait", "queue"), ("spinup", "steps", "queue")),
    "reward_bound": (("wait", "queue"), ("steps", "queue")),
    "curriculum_bound": (("zero", "length"), ("zero", "reward", "steps")),
    "orchestrator_bound": (("queue", "staleness", "wait"), ("queue", "requests", "staleness")),
}
"""Outcome of the verdict -> cards, and charts, that are shown first."""


def drift_text(facts: StatusFacts, of: str) -> tuple[str, str]:
    """(text, state) of a behaviour's drift: ``x2.3 since step 12 (2,656)``; of several environments the farthest."""
    moved = [one for one in facts.signals if one.signal == f"{of}_drift_ratio"]
    measured = [one for one in moved if one.value is not None]
    if not measured:
        return (moved[0].why if moved else ""), "unknown"
    farthest = max(measured, key=lambda one: abs(math.log(one.value)) if one.value else 0.0)
    labels = {"of": of, **farthest.labels}
    since, base = facts.value("drift_since_step", **labels), facts.value("drift_baseline", **labels)
    against = f" ({number(base)})" if base is not None else ""
    change = f"x{farthest.value:.2g} since step {since:.0f}" if since is not None else "no drift since its first steps"
    where = f"{farthest.labels['environment']}: " if "environment" in farthest.labels else ""
    return f"{where}{change}{against}", farthest.state


def _banded(found: SignalNow | None, infos: Infos) -> bool:
    """Is there a value that a band judges?"""
    info = infos.get(found.signal) if found is not None and found.value is not None else None
    return info is not None and (info.watch is not None or info.critical is not None)


def _note(facts: StatusFacts, card: Card, found: SignalNow | None, infos: Infos) -> str:
    """The reason for a missing value; else the card's notes, else its bands."""
    if found is None:
        return absent(card.wants[0].signal, infos)
    if found.value is None:
        return found.why
    drift = drift_text(facts, card.drift)[0] if card.drift else ""
    flags = [(word, want) for word, want in card.flags if _flagged(facts, want)]
    beside = joined(drift, *(_beside(facts, word, want) for word, want in (*card.notes, *flags)))
    judged = [one for want in card.judges if (one := want.explain(facts.signals)) is not None]
    limit = next((sentence for one in (found, *judged) if (sentence := _bands(infos.get(one.signal), one.state))), "")
    # Cards with a window are figures of the first screen, which show their limit, too.
    return joined(beside, fixed_limit(card.limit, facts), limit) if card.window else beside or limit


def alerting(facts: StatusFacts) -> View:
    """Since when an alert on a card's signals has been firing: ``k.KEY.since`` and ``k.KEY.a``."""
    begun: dict[str, float] = {}
    for alert in facts.status.alerts if facts.present else ():
        if alert.signal and alert.state == "firing":
            begun[alert.signal] = min(begun.get(alert.signal, math.inf), alert.since)
    cells: View = {}
    for card in CARDS:
        times = [begun[want.signal] for want in (*card.wants, *card.judges) if want.signal in begun]
        cells |= {f"k.{card.key}.since": min(times, default=None), f"k.{card.key}.a": "on" if times else "off"}
    return cells


def absent(signal: str, infos: Infos) -> str:
    """The reason for a signal without any result: its constant hint on what to log."""
    info = infos.get(signal)
    return info.enable if info and info.enable else "nothing has been computed for this run yet"


def _flagged(facts: StatusFacts, want: Want) -> bool:
    found = want.find(facts.signals)
    return found is not None and found.value is not None and found.state in ("watch", "critical")


def _beside(facts: StatusFacts, word: str, want: Want) -> str:
    found = want.find(facts.signals)
    if found is None or found.value is None:
        return ""
    plain = found.unit in ("requests", "tokens", "versions") and word
    value = number(found.value) if plain else text(found.value, found.unit)
    if found.labels.get("state") == word and word:
        return f"{value} {word}"
    shown = f"{word} {value}" if word else value
    return shown.replace("requests", found.labels.get("state", "requests"))


def _bands(info: SignalInfo | None, state: str) -> str:
    """The band that was crossed, or would be next."""
    if info is None:
        return ""
    sign = "≥" if info.higher_is_worse else "≤"
    bands = (("watch", info.watch), ("critical", info.critical))
    known = [f"{word} {sign} {text(band, info.unit)}" for word, band in bands if band is not None]
    return (known[-1] if state in ("watch", "critical") else known[0]) if known else ""


def panel_cells(facts: StatusFacts, panel: Panel, infos: Infos) -> View:
    """The texts of a chart, keys ``p.KEY.*``."""
    cells: View = {}
    found = [_line(cells, facts, slot, line) for slot, line in panel.slots()]
    _shares(cells, panel, found)
    first = next((s for s in found if s is not None and s.value is not None), None)
    silent = next((s for s in found if s is not None), None)
    key = f"p.{panel.key}"
    cells[f"{key}.s"] = "ok" if first else silent.state if silent else "unknown"
    health = _silent_state(first, silent)
    cells |= {f"{key}.p": STATE_WORDS[health], f"{key}.h": health}
    cells[f"{key}.w"] = "" if first else silent.why if silent else absent(panel.lines[0].want.signal, infos)
    cells[f"{key}.src"] = _source(panel, first or silent)
    notes = {level: note for level, _, note in limits(panel, facts, infos)}
    cells |= {f"{key}.{level}": notes.get(level, "") for level in ("watch", "critical", "base")}
    if panel.drift:
        drift, state = drift_text(facts, panel.drift)
        cells |= {f"{key}.d": drift if first else "", f"{key}.ds": state}
    return cells


def _silent_state(first: SignalNow | None, silent: SignalNow | None) -> str:
    return first.state if first else silent.state if silent else "unknown"


def _line(cells: View, facts: StatusFacts, slot: str, line: PanelLine) -> SignalNow | None:
    found = line.want.explain(facts.signals)
    has_value = found is not None and found.value is not None
    cells[f"p.{slot}.v"] = _bare(found) if found is not None and has_value else ""
    cells[f"p.{slot}.f"] = found.source if found is not None and has_value else ""
    cells[f"p.{slot}.s"] = "known" if has_value else "silent"
    if line.named_by and found is not None:
        cells[f"p.{slot}.l"] = found.labels.get(line.named_by, line.label)
    else:
        cells[f"p.{slot}.l"] = line.label
    return found


def _bare(found: SignalNow) -> str:
    """The panel's title names the unit; only units chosen by the formatter are repeated."""
    return text(found.value, found.unit if found.unit in ("ratio", "seconds") else "")


def _shares(cells: View, panel: Panel, found: list[SignalNow | None]) -> None:
    """A panel in percent shows percent in its header too."""
    values = [s.value if s is not None else None for s in found]
    total = sum(value for value in values if value is not None)
    if panel.kind != "share" or total <= 0:
        return
    for (slot, _), value in zip(panel.slots(), values, strict=True):
        cells[f"p.{slot}.v"] = text(value / total, "ratio") if value is not None else ""


def _source(panel: Panel, found: SignalNow | None) -> str:
    signal = found.signal if found else panel.lines[0].want.signal
    source = _short(found.source) if found else ""
    return joined(signal, source, "" if found and found.value is not None else "no value now")


def _short(source: str) -> str:
    """``engine-0, engine-1 and 6 more`` as ``engine-0 and 7 more``: the line under a chart is short."""
    first, *others = [name for name in source.split(", ") if name] or [""]
    if not others:
        return first
    more = re.search(r" and (\d+) more$", source)
    return f"{first} and {len(others) + (int(more[1]) if more else 0)} more"
