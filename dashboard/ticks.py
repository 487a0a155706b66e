"""Answers one pull of a browser with the changes of the page it shows."""

from collections.abc import Callable, Mapping
from typing import Any

from dashboard.pages import by_key
from dashboard.pages.cells import cells, shown
from dashboard.shell.page import Json, Page, Scope
from dashboard.state import url as state_url
from dashboard.state.deltas import SentViews
from dashboard.state.url import Span
from server.query.run_state import UnknownRun


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
    new = {"view": views.changes(str(pull.get("have", "")), found), "points": body.pop("points", None)}
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
    scope.search = str(pull.get("ask") or "") if page.asks or page.charts else ""
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
