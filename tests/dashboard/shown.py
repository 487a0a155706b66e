"""The cells of a page with widgets taken apart, as the browser writes them: ``card.kv.figure``, ``chart.kv.0.text``."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dashboard.pages.overview.banner import Answer
from dashboard.pages.overview.cost import Cost
from dashboard.pages.overview.flow import Actor, Arrow
from dashboard.widgets.base import Headline, Quantity
from dashboard.widgets.card import CardNow
from dashboard.widgets.chart import ChartNow
from dashboard.widgets.format import parts, text

KINDS: Mapping[str, type[msgspec.Struct]] = {
    "answer": Answer,
    "actor": Actor,
    "arrow": Arrow,
    "cost": Cost,
    "head": Headline,
}


def shown(view: Mapping[str, Any]) -> dict[str, Any]:
    """Every cell by key; those of cards and charts field by field, their numbers formatted."""
    found: dict[str, Any] = {}
    for key, cell in view.items():
        if cell is not None and key.startswith("card."):
            found |= _of_card(key, msgspec.convert(msgspec.to_builtins(cell), CardNow))
        elif cell is not None and key.startswith("chart."):
            found |= _of_chart(key, msgspec.convert(msgspec.to_builtins(cell), ChartNow))
        elif isinstance(cell, msgspec.Struct) or key.startswith(("answer", "actor.", "arrow.", "cost", "head.")):
            found |= _fields(key, msgspec.convert(msgspec.to_builtins(cell), KINDS[key.partition(".")[0]]))
        else:
            found[key] = cell
    return found


def _fields(key: str, cell: msgspec.Struct) -> dict[str, Any]:
    """Field by field: quantities as text, also as figure and unit; parts of a bar as "Wait 61%"."""
    found: dict[str, Any] = {}
    for name in cell.__struct_fields__:
        value, place = getattr(cell, name), f"{key}.{name}"
        numbers = {f"{place}.{i}": one for i, one in enumerate(value)} if name == "numbers" else {place: value}
        for place, one in numbers.items():
            found[place] = _written(one) if isinstance(one, Quantity) else list(one) if isinstance(one, tuple) else one
            if isinstance(one, Quantity):
                figure, unit = (one.text, "") if one.text else parts(one.value, one.unit)
                found |= {f"{place}.figure": figure, f"{place}.unit": " ".join(filter(None, (unit, one.label)))}
        if value is None and name in ("figure", "usd"):
            found[f"{key}.{name}"] = ""
        if name == "split":
            found |= {f"{place}.{part.key}": f"{part.label} {text(part.share, 'ratio')}" for part in value}
        if name == "causes":
            found |= {f"{place}.{cause}": (_written(one.usd), one.share) for cause, one in value.items()}
    return found


def _written(one: Quantity) -> str:
    return one.prefix + (one.text or text(one.value, one.unit))


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
