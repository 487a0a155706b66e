"""The two server callbacks: `page` (first load, another run or range) and `tick` (what is new).

Both are `async` and read on threads: on this backend a synchronous callback blocks the event loop, and
with it every other reader, the API and the scrapes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, dcc, html

from dashboard import live, urlstate
from dashboard.facts import Facts, joined
from dashboard.figures import figure, has_points, limit_line
from dashboard.limits import limits
from dashboard.panels import CARDS, PANELS, Panel, names_by_slot
from dashboard.urlstate import Address, Span
from dashboard.view import view
from server.query.types import Reader, RunInfo, Series, Status, UnknownRun

Json = dict[str, Any]

_SPARK_POINTS = 60
_NO_RUNS = "No run yet. Point Rollscope at one: rollscope watch http://127.0.0.1:8000 ./outputs/my-run"


def register(app: Dash, reader: Reader) -> None:
    """Adds the callbacks to this app (never to Dash's global list, which all apps of a process share)."""
    views = live.Views()
    graphs = [Output(f"graph-{panel.key}", "figure") for panel in PANELS]

    @app.callback(
        Output("boot", "data"),
        Output("runs", "children"),
        Output("ranges", "children"),
        *graphs,
        Input("view", "data"),
        prevent_initial_call=True,
    )
    async def page(wanted: Json) -> list[Any]:
        return await asyncio.to_thread(build, reader, views, wanted)

    @app.callback(
        Output("delta", "data"),
        Input("pull", "data"),
        prevent_initial_call=True,
    )
    async def tick(pull: Json) -> Json:
        return await asyncio.to_thread(live.tick, reader, views, pull)


def build(reader: Reader, views: live.Views, wanted: Mapping[str, Any]) -> list[Any]:
    """Everything the page needs: [boot, run menu, range links, one figure per panel]."""
    address = urlstate.parse(str(wanted.get("search") or ""))
    runs = reader.runs()
    chosen = _choose(runs, address)
    try:
        if chosen is None:
            raise UnknownRun(address.run)
        boot, figures = _load(reader, views, wanted, chosen, address)
    except UnknownRun:
        return [_nothing(address, wanted), run_links(runs, address), [], *({} for _ in PANELS)]
    return [
        boot,
        run_links(runs, address, chosen.name),
        range_links(address, chosen, float(wanted.get("tz") or 0)),
        *figures,
    ]


def _choose(runs: Sequence[RunInfo], address: Address) -> RunInfo | None:
    """The run asked for; the most recently active one when none was."""
    if address.run is None:
        return runs[0] if runs else None
    return next((run for run in runs if run.name == address.run), None)


def _nothing(address: Address, wanted: Mapping[str, Any]) -> Json:
    message = _NO_RUNS if address.run is None else f"No run is called “{address.run}”. Choose one from the menu."
    return {"page": wanted.get("n", 0), "error": message, "run": address.run or ""}


def _load(
    reader: Reader, views: live.Views, wanted: Mapping[str, Any], run: RunInfo, address: Address
) -> tuple[Json, list[Json]]:
    # The cursor first: a point that arrives while we read is then sent twice (and drawn once), never lost.
    cursor = reader.cursor(run.name)
    status = reader.status(run.name)
    span = urlstate.span(address, run, status.now, Facts(status).newest())
    slots = names_by_slot(status.signals)
    series = _read(reader, run.name, slots, span)
    figures = _figures(reader, status, series, span, wanted, f"{run.name}|{address.range}|{address.start}")
    drawn = [slot for panel in PANELS for slot, _ in panel.slots() if slot in series]
    boot = _boot(reader, views, status, span, wanted) | {"cursor": cursor, "drawn": drawn}
    boot["sparks"] = {key: live.spark(series[key]) for card in CARDS if (key := f"k.{card.key}") in series}
    return boot, figures


def _read(reader: Reader, run: str, slots: Mapping[str, Sequence[str]], span: Span) -> dict[str, Series]:
    """Chart series at full width, card series at a sparkline's."""
    found: dict[str, Series] = {}
    for cards, points in ((False, urlstate.points(span)), (True, _SPARK_POINTS)):
        part = {slot: names for slot, names in slots.items() if slot.startswith("k.") == cards}
        wanted = sorted({name for names in part.values() for name in names})
        read = reader.series(run, wanted, span.start, span.end, points)
        found |= live.by_slot(part, {series.name: series for series in read})
    return {slot: series for slot, series in found.items() if has_points(series)}


def _figures(
    reader: Reader, status: Status, series: Mapping[str, Series], span: Span, wanted: Mapping[str, Any], revision: str
) -> list[Json]:
    tz = float(wanted.get("tz") or 0)
    facts, infos = Facts(status), reader.infos()

    def drawn(panel: Panel) -> Json:
        chart = figure(panel, series, span, tz, revision)
        shapes = [limit_line(value, level) for level, value, _ in limits(panel, facts, infos)]
        # A finger that drags over a chart wants to scroll the page.
        drag = {"dragmode": False} if wanted.get("touch") else {}
        return {"data": chart["data"], "layout": chart["layout"] | {"shapes": shapes} | drag}

    return [drawn(panel) for panel in PANELS]


def _boot(reader: Reader, views: live.Views, status: Status, span: Span, wanted: Mapping[str, Any]) -> Json:
    cells = view(status, reader.infos())
    return {
        "page": wanted.get("n", 0),
        "run": status.run,
        "now": status.now,
        "start": span.start,
        "end": span.end,
        "follow": span.follow,
        "over": status.lifecycle in urlstate.OVER,
        "bucket": (span.end - span.start) / urlstate.points(span),
        "have": views.remember(cells),
        "view": cells,
    }


def run_links(runs: Sequence[RunInfo], address: Address, current: str = "") -> list[Any]:
    """The run menu: links, because Dash's dropdown fails accessibility checks."""
    return [
        dcc.Link(
            [html.Span(run.name, className="name"), html.Span(_about(run), className="about")],
            href=urlstate.link(run.name, address.range),
            className="current" if run.name == current else "",
        )
        for run in runs
    ]


def _about(run: RunInfo) -> str:
    return joined(run.lifecycle, *(word for word in (run.framework, run.mode) if word and word != "unknown"))


def range_links(address: Address, run: RunInfo, tz: float = 0.0) -> list[Any]:
    """The segmented control; an absolute time is a segment of its own, chosen, because its charts stand still."""
    chosen = None if address.start is not None else address.range
    links = [
        dcc.Link(name, href=urlstate.link(run.name, name), className="current" if name == chosen else "")
        for name in urlstate.RANGES
    ]
    if address.start is None or address.end is None:
        return links
    here = f"{urlstate.link(run.name, address.range)}&start={address.start:.15g}&end={address.end:.15g}"
    return [*links, dcc.Link(urlstate.words(address.start, address.end, tz), href=here, className="current")]
