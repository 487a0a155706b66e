"""Help: what each signal means and how to have it. Its signals are drawn by `assets/widgets/help.mjs`."""

from typing import Any

from dashboard.pages.help.data import cells
from dashboard.shell.glossary import WORDS
from dashboard.shell.page import Page
from dashboard.shell.shortcuts import SHORTCUTS
from dashboard.widgets.base import html


def tree() -> list[Any]:
    """The page's elements; it has no charts."""
    side = html.Div([_shortcuts(), _words()], className="col")
    return [_head(), html.Div([_signals(), side], className="helpboard")]


def _head() -> Any:
    heading = html.Div(
        [
            html.H1("Signals, glossary and shortcuts"),
            html.P("What each number means and how to get it reported.", className="text"),
        ]
    )
    return html.Section([heading, html.Div(id="hp-find", className="find")], className="banner card help-head")


def _signals() -> Any:
    status = html.P(id="hp-said", role="status", className="note")
    return html.Section(
        [html.H2("Signals"), status, html.Div(className="meanings", **{"data-rows": "help"})], className="card helplist"
    )


def _shortcuts() -> Any:
    rows = [html.Div([html.Dt(_keys(key)), html.Dd(description)]) for key, description in SHORTCUTS]
    return html.Section([html.H2("Keyboard"), html.Dl(rows, className="keys")], className="card side", id="shortcuts")


def _keys(key: str) -> list[Any]:
    return [html.Span("–") if one == ".." else html.Kbd(one) for one in key.split(" ")]


def _words() -> Any:
    rows = [part for word, meaning in WORDS for part in (html.Dt(word), html.Dd(meaning))]
    return html.Section([html.H2("Glossary"), html.Dl(rows, className="words")], className="card side", id="words")


PAGE = Page("help", "help", "Help", tree, cells, asks=("find",), whole=True, kind="drawer")
