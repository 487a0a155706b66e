"""`[[otlp]]`: the user's table from OTLP names to our metrics, checked. Pure."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from collectors.catalog import METRICS
from collectors.model import Labels
from collectors.otlp_names import Attributes, Maps, Rule, factor_of

FIELDS = ("name", "metric", "run", "unit", "scale", "labels", "keep", "ignore")
MAX_ROWS = 500
NAME_LENGTH = 200  # characters


Add = Callable[[str, str], None]


def check(rows: Any, add: Add) -> Maps:
    """Rows of `[[otlp]]`; every error goes to ``add(where, text)``."""
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        add("", f"must be a list of tables, {MAX_ROWS} at most: [[otlp]]")
        return {}
    rules: dict[tuple[str, str], Rule | None] = {}
    for number, row in enumerate(rows):
        where = f"[{number}]"
        if not isinstance(row, dict):
            add(where, "must be a table")
            continue
        key = _text(row, "run", where, add), _text(row, "name", where, add)
        if not key[1]:
            add(f"{where}.name", "is missing: the metric's name as it is sent")
        if key in rules:
            add(f"{where}.name", f"{key[1]!r} is defined twice")
        rules[key] = _rule(row, where, add)
    return rules


def _text(row: Mapping[str, Any], key: str, where: str, add: Add) -> str:
    value = row.get(key, "")
    if isinstance(value, str) and len(value) <= NAME_LENGTH:
        return value
    add(f"{where}.{key}", f"must be a string of at most {NAME_LENGTH} characters")
    return ""


def _rule(row: Mapping[str, Any], where: str, add: Add) -> Rule | None:
    for key in sorted(row.keys() - set(FIELDS)):
        add(f"{where}.{key}", f"unknown key; known: {', '.join(FIELDS)}")
    if row.get("ignore") is True:
        return None
    name = _text(row, "metric", where, add)
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; the names are those of /api/v1/metrics"
        add(f"{where}.metric", f"there is no metric {name!r}{hint}")
        return None
    fixed, copied = _table(row, "labels", where, add), _table(row, "keep", where, add)
    return Rule(name, _factor(row, name, where, add), _labels(fixed, copied))


def _factor(row: Mapping[str, Any], name: str, where: str, add: Add) -> float:
    """The divisor of a value; 0 if it depends on the unit of the data point."""
    if "scale" in row:
        scale = row["scale"]
        if isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale < 1e15:
            return 1 / scale
        add(f"{where}.scale", "must be a number above 0: stored value = sent value * scale")
    unit = _text(row, "unit", where, add)
    if not unit:
        return 0.0
    factor = factor_of(unit, METRICS[name].unit)
    if factor is None:
        add(f"{where}.unit", f"{name} is in {METRICS[name].unit or 'no unit'}, to which {unit} does not convert")
    return factor or 1.0


def _table(row: Mapping[str, Any], key: str, where: str, add: Add) -> dict[str, str]:
    found = row.get(key, {})
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    add(f"{where}.{key}", 'must be a table of strings, such as { reason = "cause" }')
    return {}


def _labels(fixed: Mapping[str, str], copied: Mapping[str, str]) -> Callable[[Attributes], Labels]:
    """``kept``: OTLP attribute -> our label; an attribute of the point overrides one of its resource."""

    def labels(attributes: Attributes) -> Labels:
        attribute_labels = {
            label: attributes[attribute] for attribute, label in copied.items() if attributes.get(attribute)
        }
        return tuple(sorted((dict(fixed) | attribute_labels).items()))

    return labels
