"""The reason of a signal that had a value earlier and has none now."""

LAST_VALUE = "; the last value was "
"""Separates the reason from the value. Readers recognise by it that the signal has a source."""
NO_CURRENT_REPORT = "no current report"


def lapsed(reason: str, value: float | None, unit: str) -> str:
    """``no step for 3 h; the last value was 66%``."""
    return reason if value is None else f"{reason}{LAST_VALUE}{_figure(value, unit)}"


def _figure(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{100 * value:.4g}%"
    return f"{value:.4g} {'s' if unit == 'seconds' else unit}".rstrip()
