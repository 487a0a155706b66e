"""The frame of every page: header, navigation, run menu, live state, theme, stores and the timer."""

from collections.abc import Sequence
from typing import Any

from dash import dcc

from dashboard.shell.page import Page, t
from dashboard.widgets.base import html

# What a run reports is a quarter of a second older on the screen at the median, and never a second.
INTERVAL_MS = 750
# Pages that a phone has in its bar.
_THUMB = ("overview", "alerts", "rollouts")


def layout(pages: Sequence[Page], base: str) -> Any:
    """The shell with an empty container per page; a page's elements are added when it is first opened.

    ``base``: where the dashboard is reached, with slashes at both ends.
    """
    places = [_place(page) for page in pages]
    return html.Div(
        [
            html.A("Skip to the page", href="#main", className="skip"),
            _header(pages, base),
            html.Main([_message(), html.Div(places, className="body")], id="main"),
            *_machinery(),
        ],
        id="app",
        **{"data-page": "loading", "data-base": base},
    )


def _place(page: Page) -> Any:
    """A drawer is a dialog: modal over another page, else like any page (`assets/core/nav.mjs`)."""
    names = {"data-place": page.key, "data-title": page.title}
    if page.kind == "drawer":
        return html.Dialog(id=f"page-{page.key}", className="place drawer", **names, **{"aria-label": page.title})
    return html.Div(id=f"page-{page.key}", className="place", **names)


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
        className="drop",
    )
    brand = html.A([html.Span(className="logo"), "Rollscope"], href=base, className="brand")
    return html.Header(
        [
            html.Div([brand], className="what"),
            _nav(pages, base),
            html.Div([menu, _time()], className="where"),
            html.Div(
                [_sources(base), _explore(base), _what_if(base), _live(), _theme(), _help(base)], className="when"
            ),
        ]
    )


def _time() -> Any:
    """The range control: links, or the past range shown, because an old hour must not look like the last one."""
    out = html.Button("−", id="zoom-out", type="button", title="Zoom out", **{"aria-label": "Zoom out"})
    back = html.Button("Back to live", id="unzoom", type="button")
    past = html.Div([out, html.Span(id="past-range"), back], id="past")
    pick = html.Button("Custom", id="pick", type="button", **{"aria-haspopup": "dialog"})
    return html.Div(
        [html.Nav(id="ranges", **{"aria-label": "Time range"}), past, pick, html.Div(id="modes")], id="time"
    )


def _nav(pages: Sequence[Page], base: str) -> Any:
    """Plain links: `assets/core/nav.mjs` adds run and range, and they open in a tab of their own.

    On a phone it is a bar at the bottom; what does not fit is behind More.
    """
    links = [_link(page, base) for page in pages if page.kind == "page"]
    rest = [_link(page, base) for page in pages if page.key not in _THUMB]
    more = html.Details([html.Summary("More"), html.Div(rest, className="rest")], id="more", className="drop")
    return html.Nav([*links, more], id="pages", **{"aria-label": "Pages"})


def _link(page: Page, base: str) -> Any:
    # What is about all runs stands apart from what is about one run.
    name = "thumb" if page.key in _THUMB else "apart" if page.key == "runs" else ""
    # Pages about one run have nothing to show before the first run.
    names = {"data-nav": page.key, "data-whole": "1" if page.whole else ""}
    tip = {"data-h": "header.boxes"} if page.key == "sandboxes" else {}
    return html.A([page.title, *_count(page)], href=base + page.path, className=name, **names, **tip)


def _sources(base: str) -> Any:
    """How many targets answer; the page behind it has the same numbers (`dashboard.pages.sources.data.chip`)."""
    words = [t(html.B, "header.src"), html.Span(" sources"), t(html.Span, "header.src.w")]
    return html.A(
        [html.Span(className="dot"), html.Span(words)],
        href=base + "sources", id="sources", className="tool", **{"data-nav": "sources", "data-s": "header.src.s"},
    )  # fmt: skip


def _explore(base: str) -> Any:
    return html.A("Explore", href=base + "explore", className="tool", id="to-explore", **{"data-nav": "explore"})


def _what_if(base: str) -> Any:
    return html.A("What-if", href=base + "what-if", className="tool", id="what-if", **{"data-nav": "what-if"})


def _help(base: str) -> Any:
    names = {"data-nav": "help", "aria-label": "Help", "title": "Help (?)"}
    return html.A("?", href=base + "help", className="tool", id="help", **names)


def _count(page: Page) -> list[Any]:
    if page.key == "sources":
        return [t(html.Span, "header.src", "note")]
    if page.key != "alerts":
        return []
    return [html.Span([t(html.B, "header.firing"), html.Span(" firing", className="sr")], className="count")]


def _live() -> Any:
    dot = html.Span(className="dot")
    parts = [html.Span("…", id="live-word"), html.Span(id="live-age", className="age")]
    return html.Button([dot, html.Span(parts)], id="live", type="button", **{"data-live": "wait"})


def _theme() -> Any:
    word = html.Span("Theme", id="theme-word")
    return html.Button([html.Span(className="half"), word], id="theme", type="button")


def _message() -> Any:
    parts = [
        html.H1("Nothing to show", id="message-title"),
        html.P(id="message"),
        html.A(id="message-back", className="strong", hidden=True, **{"data-in": ""}),
        html.Div(id="message-found"),
    ]
    return html.Section(parts, className="message")
