"""What the browser needs to draw charts of its own, from series that it reads (`assets/widgets/own_chart.mjs`)."""

from dashboard.charts.comparison import behind
from dashboard.charts.figures import layout
from dashboard.shell.page import Json, Load
from dashboard.widgets.chart import Panel

# Units whose axis is written in a way of its own, and one of all others.
_AXES = ("", "ratio", "seconds", "other")


def own(load: Load) -> Json:
    """``axes``: layouts by unit. ``beside``: the run drawn behind the lines, and the seconds added to its times."""
    tz = float(load.wanted.get("tz") or 0)
    axes = {unit: layout(Panel("", "", "", unit, ()), load.span, tz, "") for unit in _AXES}
    source = behind(load) if load.address.over and not load.address.by_step else None
    return {"axes": axes} | ({"beside": {"run": source.run, "shift": source.place(0.0)}} if source else {})
