"""What widgets have in common: quantities, the reason for a value that is absent, drift as text, words of a state."""

import math
from collections.abc import Mapping
from typing import Any

from dash import html as _html
from msgspec import Struct

from dashboard.widgets.format import STATE_WORDS, number
from dashboard.widgets.status import StatusFacts
from server.query.types import SignalInfo

Infos = Mapping[str, SignalInfo]
# Dash's own types know no `data-*` attributes.
html: Any = _html


class Quantity(Struct, frozen=True, omit_defaults=True):
    """A number that the browser formats. ``prefix`` and ``label`` stand before and after it; ``text`` in its place."""

    value: float | None = None
    unit: str = ""
    label: str = ""
    prefix: str = ""
    text: str = ""


class Part(Struct, frozen=True):
    """A part of a bar: its share of the whole is 0 to 1."""

    key: str
    label: str
    share: float


class Headline(Struct, frozen=True, omit_defaults=True):
    """A page's answer in one line, and the sentence below it. ``split``: the parts of what it is about."""

    before: str = ""
    figure: Quantity | None = None
    after: str = ""
    text: str = ""
    state: str = ""
    split: tuple[Part, ...] = ()


def headline(key: str) -> Any:
    """The heading of the cell ``key``, a `Headline`."""
    return html.H1([html.Span(**{"data-t": f"{key}.before"}), figure_of(f"{key}.figure"),
                    html.Span(**{"data-t": f"{key}.after"})])  # fmt: skip


def figure_of(key: str, name: str = "num") -> Any:
    """An element that shows the quantity at ``key``."""
    return html.B(className=name or None, **{"data-n": key})


def split_bar(key: str) -> Any:
    """A bar of the parts at ``key``; empty where none are known (`assets/widgets/split.mjs`)."""
    return html.Div(className="split", **{"data-split": key})


def absent(signal: str, infos: Infos) -> str:
    """The reason for a signal without any result: its constant hint on what to log."""
    info = infos.get(signal)
    return info.enable if info and info.enable else "nothing has been computed for this run yet"


def state_word(facts: StatusFacts, state: str) -> str:
    """A state in a word. Of a run that is catching up there is none: words of health describe the present."""
    return "" if facts.status.state.name == "catching_up" else STATE_WORDS[state]


def drift_text(facts: StatusFacts, of: str, levels: bool = False) -> tuple[str, str]:
    """(text, state) of a behaviour's drift: ``x2.3 since step 12, from 2,656``; of several environments the farthest.

    ``levels``: ``20 → 51 (median step), x2.5 since step 12``, for a chart, which shows no median.
    """
    moved = [one for one in facts.signals if one.signal == f"{of}_drift_ratio"]
    measured = [one for one in moved if one.value is not None]
    if not measured:
        return (moved[0].why if moved else ""), "unknown"
    farthest = max(measured, key=lambda one: abs(math.log(one.value)) if one.value else 0.0)
    labels = {"of": of, **farthest.labels}
    since, base = facts.value("drift_since_step", **labels), facts.value("drift_baseline", **labels)
    where = f"{farthest.labels['environment']}: " if "environment" in farthest.labels else ""
    change = f"x{farthest.value:.2g} since step {since:,.0f}" if since is not None else "no drift since its first steps"
    if base is None or since is None:
        change += f" ({number(base)})" if base is not None else ""
    elif levels and farthest.value is not None:
        change = f"{number(base)} → {number(base * farthest.value)} (median step), {change}"
    else:
        change += f", from {number(base)}"
    return where + change, farthest.state
