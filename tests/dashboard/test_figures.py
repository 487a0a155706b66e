"""Figures are plain dicts with gaps, without markup, without colours Plotly would refuse."""

import json
import re
from dataclasses import replace

import pytest

from dashboard.charts.figures import figure, layout, limit_line
from dashboard.charts.panels import PANELS
from dashboard.shell import theme
from dashboard.state.url import Span
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.signal_lookup import Want
from server.query.types import Series

SPAN = Span(1000.0, 2000.0, follow=True)
BY_KEY = {panel.key: panel for panel in PANELS}


def series(name: str, *values: float | None, spread: float = 0.0) -> Series:
    ts = tuple(1000.0 + 10 * i for i in range(len(values)))
    low = tuple(None if v is None else v - spread for v in values)
    high = tuple(None if v is None else v + spread for v in values)
    return Series(name, "", ts, values, low, high)


def metas(panel: str, **found: Series) -> list[str]:
    given = {slot.replace("_", "."): one for slot, one in found.items()}
    return [trace["meta"] for trace in figure(BY_KEY[panel], given, SPAN, 0, "r")["data"]]


def test_line_breaks_at_none_and_its_area_is_empty_there() -> None:
    data = figure(BY_KEY["kv"], {"kv.0": series("kv", 0.5, None, 0.7)}, SPAN, 3600, "r")["data"]
    area, line = data
    assert (area["meta"], area["y"], area["fill"]) == ("kv.0:fill", [0.5, 0, 0.7], "tozeroy")
    assert (line["meta"], line["y"], line["connectgaps"]) == ("kv.0", [0.5, None, 0.7], False)
    # An hour east of Greenwich, in milliseconds.
    assert line["x"] == [4_600_000, 4_610_000, 4_620_000]
    assert (line["type"], line["mode"]) == ("scatter", "lines+markers")


def test_band_lies_under_its_lines_and_needs_both() -> None:
    assert metas("length", length_0=series("a", 1, 2), length_1=series("b", 3, 4)) == [
        "length.1:band",
        "length.0",
        "length.1",
    ]
    assert metas("length", length_1=series("b", 3, 4)) == ["length.1"]


def test_extremes_of_a_bucket_are_drawn() -> None:
    assert metas("reward", reward_0=series("r", 1, 2, spread=0.5)) == ["reward.0:lo", "reward.0:hi", "reward.0"]
    assert metas("reward", reward_0=series("r", 1, 2)) == ["reward.0"]


def test_extremes_have_no_height_in_a_gap() -> None:
    # Plotly fills across gaps: unguarded, this drew a wedge from the last value to the next.
    found = series("generator_requests", 10.0, None, 12.0, spread=2.0)
    traces = {t["meta"]: t for t in figure(BY_KEY["requests"], {"requests.0": found}, SPAN, 0, "")["data"]}
    assert traces["requests.0"]["y"] == [10.0, None, 12.0]
    assert traces["requests.0:lo"]["y"] == [8.0, 10.0, 10.0]
    assert traces["requests.0:hi"]["y"] == [12.0, 10.0, 14.0]


def test_shares_stack_to_a_hundred() -> None:
    found = {f"steps.{i}": series(str(i), 1.0, 2.0) for i in range(3)}
    drawn = figure(BY_KEY["steps"], found, SPAN, 0, "r")
    assert {trace["stackgroup"] for trace in drawn["data"]} == {"steps"}
    assert {trace["groupnorm"] for trace in drawn["data"]} == {"percent"}
    assert drawn["layout"]["yaxis"]["range"] == [0, 100]


def test_empty_series_draw_nothing() -> None:
    assert metas("kv", kv_0=series("kv", None, None)) == []
    assert metas("kv") == []


def test_labels_cannot_be_markup() -> None:
    line = PanelLine("<a href='https://evil'>x</a> & y", Want("s"), "blue")
    panel = Panel("p", "t", "u", "", (line,))
    drawn = figure(panel, {"p.0": series("s", 1.0)}, SPAN, 0, "r")
    assert drawn["data"][0]["name"] == "&lt;a href='https://evil'&gt;x&lt;/a&gt; &amp; y"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.key)
def test_every_panel_is_plain_transparent_and_small(panel: Panel) -> None:
    found = {slot: series(slot, 1.0, 2.0) for slot, _ in panel.slots()}
    drawn = figure(panel, found, SPAN, 0, "run|1h")
    text = json.dumps(drawn)
    assert "scattergl" not in text
    assert all(re.fullmatch(r"#[0-9a-f]{6}", colour) for colour in re.findall(r'"(#[^"]*)"', text))
    assert drawn["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    assert drawn["layout"]["uirevision"] == "run|1h"
    assert drawn["layout"]["xaxis"]["range"] == [1_000_000, 2_000_000]
    assert len(panel.lines) <= 3


def test_values_lose_digits_nobody_sees() -> None:
    line = figure(BY_KEY["reward"], {"reward.0": series("r", 0.123456789)}, SPAN, 0, "r")["data"][0]
    assert line["y"] == [0.12346]


def test_axis_of_a_reward_does_not_start_at_zero() -> None:
    assert "rangemode" not in layout(BY_KEY["reward"], SPAN, 0, "r")["yaxis"]
    assert layout(BY_KEY["queue"], SPAN, 0, "r")["yaxis"]["rangemode"] == "tozero"
    free = layout(replace(BY_KEY["kv"], ceiling=None), SPAN, 0, "r")["yaxis"]
    assert (free["tickformat"], free["rangemode"]) == ("~%", "tozero")


def test_limit_line() -> None:
    assert limit_line(0.9, "watch")["y0"] == 0.9
    assert limit_line(0.9, "critical")["line"]["color"] == theme.LIMIT["critical"]


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("tokens", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_colours_can_be_seen_and_texts_read(tokens: dict[str, str]) -> None:
    assert [name for name, colour in theme.TRACE.items() if contrast(colour, tokens["card"]) < 3] == []
    pairs = [("ink", "card"), ("muted", "card"), ("muted", "inset"), ("accent", "card"), ("critical", "card")]
    pairs += [(state, f"{state}-bg") for state in ("ok", "watch", "critical", "unknown")]
    assert [pair for pair in pairs if contrast(tokens[pair[0]], tokens[pair[1]]) < 4.5] == []


def test_themes_have_the_same_tokens() -> None:
    assert theme.LIGHT.keys() == theme.DARK.keys()
