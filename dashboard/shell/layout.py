"""The frame of every page: header, navigation, run menu, live state, theme, stores and the timer."""

import json
from collections.abc import Sequence
from typing import Any

from dash import dcc

from dashboard.shell.page import Page, html, t
from dashboard.shell.shortcuts import SHORTCUTS

# What a run reports is a quarter of a second older on the screen at the median, and never a second.
INTERVAL_MS = 750


def layout(pages: Sequence[Page], base: str) -> Any:
    """The shell with an empty container per page; a page's elements are added when it is first opened.

    ``base``: where the dashboard is reached, with slashes at both ends.
    """
    places = [html.Div(id=f"page-{page.key}", className="place", **{"data-place": page.key}) for page in pages]
    return html.Div(
        [
            html.A("Skip to the page", href="#main", className="skip"),
            _header(pages, base),
            html.Main([_message(), html.Div(places, className="body")], id="main"),
            *_machinery(),
        ],
        id="app",
        **{"data-page": "loading", "data-base": base, "data-shortcuts": json.dumps(SHORTCUTS)},
    )


def _machinery() -> list[Any]:
    stores = [dcc.Store(id=name) for name in ("view", "boot", "pull", "delta", "sink")]
    return [dcc.Location(id="url", refresh=False), dcc.Interval(id="clock", interval=INTERVAL_MS), *stores]


def _header(pages: Sequence[Page], base: str) -> Any:
    menu = html.Details(
        [
            html.Summary([html.Span("Run: ", className="sr"), html.Span("…", id="run-name")]),
            html.Nav(id="runs", **{"aria-label": "Runs"}),
        ],
        id="run-menu",
    )
    # A zoom stays while the charts go on, so the header shows it: an old hour must not look like the last one.
    reset = html.Button("Reset zoom", id="unzoom", type="button")
    brand = html.A([html.Span(className="logo"), "Rollscope"], href=base, className="brand")
    return html.Header(
        [
            html.Div([brand], className="what"),
            _nav(pages, base),
            html.Div([menu, html.Nav(id="ranges", **{"aria-label": "Time range"}), reset], className="where"),
            html.Div([_live(), _theme(), _keys()], className="when"),
        ]
    )


def _nav(pages: Sequence[Page], base: str) -> Any:
    """Plain links: `assets/core/nav.mjs` adds run and range, and they open in a tab of their own."""
    links = [
        html.A(
            [page.title, *_count(page)],
            href=base + page.path,
            # What is about all runs, and the tools, stand apart from what is about one run.
            className="apart" if page.key == "runs" else "",
            # Pages about one run have nothing to show before the first run.
            **{"data-nav": page.key, "data-title": page.title, "data-whole": "1" if page.whole else ""},
        )
        for page in pages
    ]
    return html.Nav(links, id="pages", **{"aria-label": "Pages"})


def _count(page: Page) -> list[Any]:
    if page.key != "alerts":
        return []
    return [html.Span([t(html.B, "n.firing"), html.Span(" firing", className="sr")], className="count")]


def _live() -> Any:
    dot = html.Span(className="dot")
    parts = [html.Span("…", id="live-word"), html.Span(id="live-age", className="age")]
    return html.Button([dot, html.Span(parts)], id="live", type="button", **{"data-live": "wait"})


def _theme() -> Any:
    word = html.Span("Theme", id="theme-word")
    return html.Button([html.Span(className="half"), word], id="theme", type="button")


def _keys() -> Any:
    name = "Keyboard shortcuts"
    return html.Button("?", id="keys", type="button", title=f"{name} (?)", **{"aria-label": name})


def _message() -> Any:
    parts = [html.H1("Nothing to show", id="message-title"), html.P(id="message"), html.Ul(id="message-found")]
    return html.Section(parts, className="message")
