"""The two server callbacks: `page` (first load, another page, run or range) and `tick` (what is new).

Both are `async` and read on threads: on this backend a synchronous callback blocks the event loop, and
with it every other reader, the API and the scrapes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from dash import Dash, Input, Output, no_update

from dashboard.charts import step_axis
from dashboard.charts.events import events
from dashboard.pages import PAGES, by_key, by_path
from dashboard.pages.alerts.data import evaluated, firing
from dashboard.pages.rollouts.data import recipe
from dashboard.pages.sources.data import chip, unread
from dashboard.pages.verdict import ribbon
from dashboard.shell.page import STATUS_SECONDS, Json, Load, Page, RuleCache, Scope
from dashboard.state import url as state_url
from dashboard.state.cache import TimedCache
from dashboard.state.deltas import SentViews
from dashboard.state.run_state import cell as state_cell
from dashboard.state.run_state import word as state_word
from dashboard.state.url import Address, Span
from dashboard.widgets.base import html
from dashboard.widgets.format import system
from dashboard.widgets.status import StatusFacts, View, joined
from server.query import Reader
from server.query.run_state import RunState, UnknownRun
from server.query.types import RunInfo, mode_words

Looking = Callable[[str, bool], Scope]
"""(run, all runs?) -> what is to be read."""

Candidates = Callable[[], Sequence[tuple[str, str]]]
"""Finds what could be monitored: (description, command). It may take seconds and runs on a thread."""

# Of an unknown address in the sentence about it: about two lines.
PATH_CHARACTERS = 120

_NO_RUNS = "No run yet. Start with: rollscope watch http://127.0.0.1:8000 ./outputs/my-run"
_NO_RUNS_HERE = "Attach a run, push one, or start a simulated one."


def register(
    app: Dash, reader: Reader, receivers: Sequence[str] | None = None, candidates: Candidates | None = None
) -> None:
    """Adds the callbacks to this app (never to Dash's global list, which all apps of a process share)."""
    views, rules, shared = SentViews(), RuleCache(), TimedCache()
    places = [Output(f"page-{page.key}", "children") for page in PAGES]

    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything, receivers, rules, shared)

    @app.callback(
        Output("boot", "data"),
        Output("runs", "children"),
        Output("ranges", "children"),
        *places,
        Input("view", "data"),
        prevent_initial_call=True,
    )
    async def page(wanted: Json) -> list[Any]:
        return await asyncio.to_thread(build, look, views, wanted, candidates)

    @app.callback(
        Output("delta", "data"),
        Input("pull", "data"),
        prevent_initial_call=True,
    )
    async def answer_pull(pull: Json) -> Json:
        return await asyncio.to_thread(tick, look, views, pull)


def build(
    look: Looking, views: SentViews, wanted: Mapping[str, Any], candidates: Candidates | None = None
) -> list[Any]:
    """Everything a page needs: [boot, run menu, range links, elements per page]. Elements are sent once per visit."""
    address = state_url.parse(str(wanted.get("search") or ""))
    page = by_path(str(wanted.get("path") or ""))
    reader = look("", True).reader
    runs, states = reader.runs.all(), reader.runs.states()
    chosen = _choose(runs, address)
    try:
        if page is None or address.unknown_range or (chosen is None and not page.whole):
            raise UnknownRun(address.run)
        boot = _load(look, views, wanted, chosen, address, page)
    except UnknownRun:
        nothing = _nothing(address, wanted, page, chosen, runs)
        if candidates is not None and not runs:
            found = [{"text": what, "command": command} for what, command in candidates()]
            nothing |= {"found": found, "push": recipe("my-run"), "error": _NO_RUNS_HERE}
        return [nothing, run_links(runs, states, address), [], *(no_update for _ in PAGES)]
    links = [run_links(runs, states, address, boot["run"]), range_links(address, chosen) if chosen else []]
    if page.key in wanted.get("have", ()):
        return [boot, *links, *(no_update for _ in PAGES)]
    shut = html.Button("Close", className="shut", type="button", **{"data-shut": ""})
    tree = [shut, *page.tree()] if page.kind == "drawer" else page.tree()
    return [boot, *links, *(tree if one is page else no_update for one in PAGES)]


def _choose(runs: Sequence[RunInfo], address: Address) -> RunInfo | None:
    """The requested run; without a request the most recently active one."""
    if address.run is None:
        return runs[0] if runs else None
    return next((run for run in runs if run.name == address.run), None)


def _back(text: str, page: str, query: str) -> Json:
    return {"text": text, "page": page, "query": query}


def _nothing(
    address: Address, wanted: Mapping[str, Any], page: Page | None, chosen: RunInfo | None, runs: Sequence[RunInfo]
) -> Json:
    """Why there is nothing to show, and the way ``back``; ``page``: its path below the prefix."""
    nothing: Json = {"page": wanted.get("n", 0), "run": address.run or "", "key": page.key if page else ""}
    if page is None:
        path = str(wanted.get("path") or "").strip("/")[:PATH_CHARACTERS]
        return nothing | {"error": f"There is no page at /{path}.", "back": _back("Go to Overview", "", "")}
    if chosen is None and address.run is None:
        return nothing | {"error": _NO_RUNS, "title": "No runs yet"}
    if chosen is None or not address.unknown_range:
        query = state_url.link(runs[0].name, address.range) if runs else ""
        back = _back(f"Open {runs[0].name}", page.path, query) if runs else None
        return nothing | {"error": f"No run is named “{address.run}”.", "back": back}
    back = _back("Show the last hour", page.path, state_url.link(chosen.name, state_url.DEFAULT_RANGE))
    ranges = ", ".join(state_url.RANGES)
    return nothing | {"error": f"“{address.unknown_range}” is not a time range. Ranges: {ranges}.", "back": back}


def _load(
    look: Looking, views: SentViews, wanted: Mapping[str, Any], run: RunInfo | None, address: Address, page: Page
) -> Json:
    if run is None or page.whole:
        return _load_whole(look(run.name if run else "", True), views, wanted, page)
    scope = look(run.name, address.all and page.charts is None)
    # The cursor first: a point that arrives while we read is then sent twice (and drawn once), never lost.
    cursor = {"cursor": scope.reader.signals.cursor(run.name)} if page.charts else {}
    now = StatusFacts(scope.status)
    span = scope.span = state_url.span(address, run, now.moment, now.newest())
    scope.at = address.end
    scope.search = str(wanted.get("search") or "") if page.asks else ""
    charts = page.charts(Load(scope, address, run, span, wanted)) if page.charts else {}
    return _boot(views, scope, span, wanted, page) | cursor | charts


def _load_whole(scope: Scope, views: SentViews, wanted: Mapping[str, Any], page: Page) -> Json:
    """Loads a page about all runs; it stays live even if the selected run is over."""
    now = scope.reader.now()
    scope.search = str(wanted.get("search") or "")
    return _boot(views, scope, Span(now - 3600, now, True), wanted, page)


def _boot(views: SentViews, scope: Scope, span: Span, wanted: Mapping[str, Any], page: Page) -> Json:
    found, now = cells(page, scope), scope.reader.now() if page.whole else scope.facts.moment
    return {
        "page": wanted.get("n", 0),
        "key": page.key,
        "run": scope.run,
        "all": scope.everything,
        "now": now,
        "start": span.start,
        "end": span.end,
        "follow": span.follow,
        "grows": span.grows,
        "at": scope.at,
        "timed": page.timed,
        "asks": list(page.asks),
        "over": found["life"] in state_url.OVER,
        "bucket": (span.end - span.start) / state_url.points(span),
        "have": views.remember(found),
        "view": found,
    }


def run_links(
    runs: Sequence[RunInfo], states: Mapping[str, RunState], address: Address, current: str = ""
) -> list[Any]:
    """The run menu: links, because Dash's dropdown fails accessibility checks."""
    return [
        html.A(
            [html.Span(run.name, className="name"), html.Span(_about(run, states.get(run.name)), className="about")],
            href=state_url.link(run.name, address.range, **state_url.manner(address)),
            className="current" if run.name == current else "",
            **{"data-in": ""},
        )
        for run in runs
    ]


def _about(run: RunInfo, state: RunState | None) -> str:
    mode = mode_words(run.mode, run.facts) if run.mode else ""
    state_text = state_word(state, run.lifecycle) if state is not None else run.lifecycle
    return joined(state_text, *(word for word in (system(run.framework), mode) if word and word != "unknown"))


def range_links(address: Address, run: RunInfo) -> list[Any]:
    """The segmented control; of an absolute time none is chosen (`assets/core/address.mjs` shows it)."""
    chosen = None if address.start is not None else address.range
    return [
        html.A(name, href=state_url.link(run.name, name), className="current" if name == chosen else "")
        for name in state_url.RANGES
    ]


# ---- the cells of a page and of the shell around it


def shown(page: Page, scope: Scope) -> View:
    """`cells`, which browsers share that show the same page of a run at the same points."""
    if scope.fresh or not scope.cursor:
        return cells(page, scope)
    span = scope.span
    when = (span.end - span.start, None if span.follow else span.end) if span else None
    key = ("cells", page.key, scope.run, scope.everything, scope.search, when, scope.at, scope.cursor)
    return scope.shared.get(key, STATUS_SECONDS, lambda: cells(page, scope))


def cells(page: Page, scope: Scope) -> View:
    """The page's own texts and the shell's."""
    count: View = {"header.firing": firing(evaluated(scope.alerts, scope.states)) or ""}
    if page.whole:
        # Nothing of one run is read: what it is about is every run's.
        return _plain(page.cells(scope)) | {"life": ""} | count
    status = scope.status
    count |= chip([*status.trust, *status.gone], unread(status))
    count["header.boxes"] = "This run uses no sandboxes" if scope.facts.number("has_sandbox") == 0 else ""
    shell: View = {"life": status.lifecycle, "newest": scope.facts.newest()} | state_cell(
        status.state, status.lifecycle
    )
    if page.charts and scope.span:
        shell |= ribbon(scope.reader, scope.run, scope.span, scope.shared)
        shell |= events(scope.reader, scope.run, scope.alerts, scope.span, scope.shared)
        # Also of charts over time: the tooltip has the step.
        shell |= step_axis.cells(scope.reader, scope.run, scope.span, scope.shared)
    return _plain(page.cells(scope)) | shell | count


def _plain(found: View) -> View:
    """As JSON has it: structs as objects."""
    plain: View = msgspec.to_builtins(found)
    return plain


# ---- tick: what is new


def tick(look: Callable[[str, bool], Scope], views: SentViews, pull: Mapping[str, Any]) -> Json:
    """The answer to one pull. ``reset`` makes the browser load its page again."""
    head = {"page": pull["page"]}
    page = by_key(str(pull.get("key", "")))
    try:
        body = _at_once(page, _scope(look, page, pull), pull) if page else None
    except UnknownRun:
        body = None
    if page is None or body is None:
        return head | {"reset": True}
    found = body.pop("cells")
    whole, fields = views.changes(str(pull.get("have", "")), found)
    new = {"view": whole, "fields": fields, "points": body.pop("points", None)}
    # Nothing new is the common case of an idle run: leave even the empty keys out.
    return head | body | {"have": views.remember(found)} | {key: value for key, value in new.items() if value}


def _scope(look: Callable[[str, bool], Scope], page: Page, pull: Mapping[str, Any]) -> Scope:
    """What is to be read, at the time that the browser shows and the server's clock has moved on."""
    scope = look(str(pull["run"]), bool(pull.get("all")))
    scope.fresh = bool(pull.get("fresh"))
    span = state_url.shown(pull.get("span")) if page.timed else None
    at = pull.get("at")
    scope.at = float(at) if isinstance(at, (int, float)) and not isinstance(at, bool) else None
    scope.span = state_url.moved(span, scope.reader.now()) if span else None
    scope.search = str(pull.get("ask") or "") if page.asks else ""
    return scope


def _at_once(page: Page, scope: Scope, pull: Mapping[str, Any]) -> Json | None:
    # Points and texts are of one state.
    with scope.reader.one_state():
        return _news(page, scope, pull)


def _news(page: Page, scope: Scope, pull: Mapping[str, Any]) -> Json | None:
    """None when history was rewritten. A page without charts needs no cursor: its texts are all there is."""
    if page.points is None:
        now = scope.reader.now() if page.whole else scope.facts.moment
        return {"now": round(now, 3), "cells": cells(page, scope)}
    delta = scope.reader.signals.since(scope.run, str(pull.get("cursor") or ""))
    if delta.reset:
        return None
    scope.cursor = delta.cursor
    # While the run catches up, the time shown ends where its numbers do.
    now = scope.facts.moment if scope.status.state.name == "catching_up" else delta.now
    if scope.span and scope.span.follow:
        scope.span = Span(now - (scope.span.end - scope.span.start), now, follow=True)
    points = page.points(delta, scope.status)
    return {"cursor": delta.cursor, "now": round(now, 3), "cells": shown(page, scope), "points": points}
