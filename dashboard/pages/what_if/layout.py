"""What-if: sliders and the projected result. Drawn by `assets/widgets/what_if.mjs` from the cells."""

from typing import Any

from dashboard.pages.what_if.data import ASKS, EXPLAINED, TITLES, cells
from dashboard.shell.page import Page, t
from dashboard.widgets.base import headline, html


def tree() -> list[Any]:
    """The page's elements; it has no charts. Which of them are seen depends on ``what_if.mode``."""
    right = html.Div([_sides(), _figures(), _assumed()], className="col")
    return [
        html.Div(
            [_head(), html.Div([_sliders(), right], className="whatboard")],
            className="whatif",
            **{"data-s": "what_if.mode"},
        )
    ]


def _head() -> Any:
    title = headline("head.what_if")
    chip = html.Span("Estimate", className="chip")
    return html.Section(
        [
            html.Div([html.Div([chip], className="row"), title, t(html.P, "head.what_if.text", "text")]),
            t(html.P, "what_if.refused", "error"),
        ],
        className="banner card wi-head",
    )


def _sliders() -> Any:
    """Each element gets a native slider, which supports keyboard, touch and screen readers."""
    reset = html.Button("Reset", id="wi-reset", type="button", className="plain")
    head = html.Div([html.H2("What to change"), reset], className="row")
    places = [
        html.Div(className="slide", **{"data-slider": name, "data-title": TITLES[name], "data-about": EXPLAINED[name]})
        for name in ASKS
    ]
    return html.Section([head, *places], className="card sliders")


def _sides() -> Any:
    limits = html.P(
        [
            html.Span([html.Span("Limit now: "), t(html.B, "what_if.limit.now")]),
            html.Span([html.Span("then: "), t(html.B, "what_if.limit.then")], className="then"),
        ],
        className="limits",
        **{"data-s": "what_if.flip"},
    )
    title = html.Div([html.H2("Limiting side"), html.Span("samples/s", className="unit")], className="row")
    drawn = html.Div(className="twosides", **{"data-draw": "wi-sides"})
    return html.Section([title, limits, drawn], className="card sides")


def _figures() -> Any:
    names = ("", "Now", "Then", "Change")
    head = html.Thead(html.Tr([html.Th(name or html.Span("What", className="sr"), scope="col") for name in names]))
    table = html.Table([head, html.Tbody(**{"data-rows": "wi-rows"})])
    status = html.P(id="wi-said", role="status", className="sr")
    return html.Section([html.H2("Projected result"), table, status], className="card wi-figures")


def _assumed() -> Any:
    return html.Section(
        [
            html.Div([html.H2("Assumptions"), html.Ul(**{"data-rows": "wi-assumed"})], className="assumed"),
            html.Div([html.H2("Missing inputs and how to provide them"), html.Dl(**{"data-rows": "wi-missing"})],
                     className="unsaid"),
        ],
        className="card wi-words",
    )  # fmt: skip


PAGE = Page("what-if", "what-if", "What-if", tree, cells, asks=ASKS, kind="drawer")
