"""The cells of a page with widgets taken apart, as the browser writes them: ``card.kv.figure``, ``chart.kv.0.text``."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dashboard.state.format import parts, text
from dashboard.widgets.card import CardNow
from dashboard.widgets.chart import ChartNow


def shown(view: Mapping[str, Any]) -> dict[str, Any]:
    """Every cell by key; those of cards and charts field by field, their numbers formatted."""
    found: dict[str, Any] = {}
    for key, cell in view.items():
        if cell is not None and key.startswith("card."):
            found |= _of_card(key, msgspec.convert(msgspec.to_builtins(cell), CardNow))
        elif cell is not None and key.startswith("chart."):
            found |= _of_chart(key, msgspec.convert(msgspec.to_builtins(cell), ChartNow))
        else:
            found[key] = cell
    return found


def _of_card(key: str, card: CardNow) -> dict[str, Any]:
    figure, unit = parts(card.value, card.unit)
    return {f"{key}.{name}": field for name, field in msgspec.structs.asdict(card).items()} | {
        f"{key}.figure": figure,
        f"{key}.unit": unit,
    }


def _of_chart(key: str, chart: ChartNow) -> dict[str, Any]:
    found = {f"{key}.{name}": field for name, field in msgspec.structs.asdict(chart).items() if name != "lines"}
    found |= {f"{key}.{level}": words for level, words in chart.limits.items()}
    for i, line in enumerate(chart.lines):
        value = text(line.value, line.unit) if line.value is not None else ""
        found |= {f"{key}.{i}.label": line.label, f"{key}.{i}.text": value}
    return found
