"""Formats numbers and texts. `assets/core/format.mjs` does the same for hovered values;
`tests/dashboard/test_browser.py` compares the two.
"""

import math
import re
from decimal import ROUND_HALF_UP, Decimal


def milliseconds(seconds: float, tz: float) -> int:
    """Plotly draws dates in UTC; shifted by the reader's offset they read as local time."""
    return round((seconds + tz) * 1000)


def short(value: float | None) -> float | None:
    """Five significant digits: more than a screen can show, and half the bytes."""
    return None if value is None else float(f"{value:.5g}")


STATE_WORDS = {
    "ok": "OK",
    "watch": "Watch",
    "critical": "Critical",
    "unknown": "Unknown",
    "not_applicable": "Not applicable",
}
DASH = "–"
_BIG = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_TIMES = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"))
_MONEY = {"usd": "", "usd/h": "/h"}
"""Unit of an amount of dollars -> what follows the amount."""
_SYMBOLS = {"hours": "h", "celsius": "°C", "watts": "W", "hertz": "Hz"}
"""Unit -> its symbol."""
_PREFIXED = ("W", "Hz")
"""Symbols that take the prefix of a large number: ``1.98 GHz``."""

SYSTEMS = {
    "areal": "AReaL",
    "art": "ART",
    "atropos": "Atropos",
    "dcgm": "DCGM",
    "dynamo": "Dynamo",
    "mlflow": "MLflow",
    "nemo_rl": "NeMo-RL",
    "oat": "OAT",
    "open_instruct": "open-instruct",
    "openrlhf": "OpenRLHF",
    "pipeline_rl": "PipelineRL",
    "prime_rl": "prime-rl",
    "prime_sandboxes": "Prime",
    "production_stack": "vLLM production stack",
    "prometheus": "Prometheus",
    "ray_node": "Ray",
    "roll": "ROLL",
    "sglang": "SGLang",
    "sglang_router": "sglang-router",
    "skyrl": "SkyRL",
    "tensorrt_llm": "TensorRT-LLM",
    "tinker_cookbook": "Tinker cookbook",
    "torchforge": "TorchForge",
    "triton": "Triton",
    "trl": "TRL",
    "tunix": "Tunix",
    "vllm": "vLLM",
    "vllm_router": "vllm-router",
}
"""Name of a collector or framework -> the system's own spelling. Other names are spelled as they are."""


def system(name: str) -> str:
    """The name of a framework or engine as its authors spell it: ``prime-rl``, ``vLLM``."""
    return SYSTEMS.get(name, name)


def money(value: float) -> str:
    """An amount of dollars: ``$4.70``, ``$1,204``, ``$10.4k``."""
    if value == 0:
        return "$0"
    return f"${_fixed(value, 2)}" if abs(value) < 999.995 else f"${number(value)}"


def number(value: float) -> str:
    """Three significant digits, without noise: 10.4k, 1,204, 412, 34.2, 1.95, 0.02."""
    size = abs(value)
    for limit, suffix in _BIG:
        if size >= limit:
            # Thousands start at 10,000: 1,204 reads better than 1.2k.
            return _digits(value / (limit if suffix != "k" else 1e3)) + suffix
    return f"{int(_fixed(value, 0)):,}" if size >= 999.5 else _digits(value)


def _fixed(value: float, places: int) -> str:
    """As JavaScript's `toFixed`: a tie rounds up, where Python's goes to the even digit (12.5 would be 12)."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):f}"


def _digits(value: float) -> str:
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        return f"{value:.1e}"
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.1 else 3
    text = _fixed(value, places)
    return text.rstrip("0").rstrip(".") if "." in text else text


def parts(value: float | None, unit: str) -> tuple[str, str]:
    """A value and its unit as shown: ``(0.64, "ratio")`` is ``("64", "%")``."""
    if value is None or not math.isfinite(value):
        return DASH, ""
    if unit == "ratio":
        percent = 100 * value
        return (_fixed(percent, 0) if abs(percent) >= 9.95 else _tenth(percent)), "%"
    if unit == "seconds":
        return _time(value)
    if unit in _MONEY:
        return money(value), _MONEY[unit]
    figure, symbol = number(value), _SYMBOLS.get(unit, unit)
    if symbol in _PREFIXED and figure[-1].isalpha():
        return figure[:-1], figure[-1] + symbol
    return figure, symbol


def _tenth(value: float) -> str:
    return _fixed(value, 1).removesuffix(".0")


def _time(seconds: float) -> tuple[str, str]:
    for limit, size, unit in _TIMES:
        if abs(seconds) >= limit:
            return number(seconds / size), unit
    if 0 < abs(seconds) < 0.001:
        return number(seconds * 1e6), "µs"
    return number(seconds), "s"


def text(value: float | None, unit: str) -> str:
    """Value and unit in one string: ``64%``, ``41.2 s``, ``$4.70/h``, ``1.95 samples/s``."""
    figure, word = parts(value, unit)
    if word in ("%", "/h"):
        return f"{figure}{word}"
    return f"{figure} {word}" if word else figure


def tight(sentence: str) -> str:
    """A sentence with its factors as the page writes them: ``1.3×``, where it has ``1.3x``."""
    return re.sub(r"(?<=\d)x(?!\w)", "×", sentence)


def escape(label: str) -> str:
    """Plotly reads pseudo-HTML in every label: a run named ``<a href=...>`` must stay a name."""
    return label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def series_name(signal: str, labels: dict[str, str]) -> str:
    """The name of a series as `SignalNow.name` has it: labels sorted by key."""
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{signal}{{{inner}}}" if inner else signal
