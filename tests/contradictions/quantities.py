"""What the overview states in a browser, as (quantity, window, value): banner, cards, strip, legends and alerts."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

READ = """() => {
  const words = (el) => (el && el.checkVisibility() ? el.textContent.trim() : "");
  const all = (at, of = document) => [...of.querySelectorAll(at)];
  return {
    lines: all(".banner h1, .banner .text, .banner .evidence li, .banner .note, .steps .note, #alerts li").map(words),
    cards: all(".kpi").filter((el) => el.checkVisibility()).map((el) => ({
      key: el.id.replace("card-", ""), state: el.dataset.state, title: words(el.querySelector("h2")),
      value: words(el.querySelector(".big")), window: words(el.querySelector(".window")),
      note: words(el.querySelector(".note")),
    })),
    strip: all(".actor .numbers > span").map(words),
    panels: all("[data-panel]").filter((el) => el.checkVisibility()).map((el) => ({
      title: words(el.querySelector("h2")), drift: words(el.querySelector(".drift")),
      items: all(".legend .item", el).map((item) => ["span", "b"].map((tag) => words(item.querySelector(tag)))),
      spoken: (document.getElementById("sum-" + el.dataset.panel) || {}).textContent || "",
    })),
  };
}"""
"""Reads the page's texts. Only what is visible counts."""

NOW, MEAN, STEPS = "now", "5 min mean", "last 10 steps"
_NUMBER = r"(\d[\d,]*(?:\.\d+)?(?:k|M)?)"
# (pattern, quantity, its window if the text does not state one).
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (rf"trainer wait(?:s|ed)? {_NUMBER}%(?! of the time in its)", "trainer wait", STEPS),
    (rf"in its (?:last \d+ steps|open step) \({_NUMBER}% in the last ten\)", "trainer wait", STEPS),
    (rf"KV cache {_NUMBER}% full", "KV cache", MEAN),
    (rf"(?<![\d.])(?<!At least )(?<!bout ){_NUMBER}% of (?:the )?groups carry no gradient", "zero advantage", STEPS),
    (rf"[Ee]ngines r[au]n {_NUMBER} requests", "requests running", MEAN),
    (rf"{_NUMBER} requests run\b", "requests running", MEAN),
    (rf"{_NUMBER} running now", "requests running", NOW),
    (rf"{_NUMBER} waiting now", "requests waiting", NOW),
    (rf"(?<![\d.])(?<![≤≥] ){_NUMBER} batch(?:es)?\b", "batches in the queue", MEAN),
    (rf"[xX]{_NUMBER} since step", "length drift", STEPS),
    (rf"{_NUMBER} times as long as in", "length drift", STEPS),
    (rf"oldest pending {_NUMBER} (?:s|min|h)\b", "oldest pending", NOW),
    (rf"{_NUMBER} (?:s|min|h) oldest pending", "oldest pending", NOW),
)
_CARDS = {
    "wait": "trainer wait", "zero": "zero advantage", "kv": "KV cache", "queue": "queue", "staleness": "staleness mean",
    "length": "response length", "spinup": "spin-up p95",
}  # fmt: skip
# (title of the panel, label of the line) -> (quantity, window).
_LINES = {
    ("Generator requests", "running"): ("requests running", MEAN),
    ("Generator requests", "waiting"): ("requests waiting", MEAN),
    ("KV cache usage", "used"): ("KV cache", MEAN),
    ("Queue depth", "now"): ("queue", NOW),
    ("Policy staleness", "mean"): ("staleness mean", STEPS),
    ("Response length", "mean"): ("response length", STEPS),
    ("Sandbox spin-up", "p95"): ("spin-up p95", "ready in 5 min"),
    ("Sandbox spin-up", "oldest pending"): ("oldest pending", NOW),
    ("Where each step goes", "wait"): ("trainer wait", STEPS),
}
_WINDOW = re.compile(r"\((5 min mean|mean of [^()]+|now|last 10 steps)\)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One number on the page. ``value``: without its unit, as written."""

    place: str
    quantity: str
    window: str
    value: str


def statements(shown: Mapping[str, Any]) -> Iterator[Statement]:
    """Everything that the page states about the quantities above."""
    for line in shown["lines"]:
        yield from _of_text("text", line)
    for words in shown["strip"]:
        yield from _of_text("strip", words)
    for card in shown["cards"]:
        if (quantity := _CARDS.get(card["key"])) and (number := re.match(_NUMBER, card["value"])):
            yield Statement(f"card {card['title']}", quantity, card["window"], number[1])
        yield from _of_text(f"note of card {card['title']}", card["note"])
    for panel in shown["panels"]:
        yield from _of_panel(panel)


def _of_panel(panel: Mapping[str, Any]) -> Iterator[Statement]:
    if panel["title"] == "Response length":
        yield from _of_text("drift below Response length", panel["drift"])
    for label, value in panel["items"]:
        known = _LINES.get((panel["title"], label))
        if known and (number := re.match(_NUMBER, value)):
            yield Statement(f"legend of {panel['title']}", *known, number[1])
            name = "" if label == "now" else f"{re.escape(label)} "
            spoken = re.search(rf"[:;] {name}now {_NUMBER}", panel["spoken"])
            if spoken:
                yield Statement(f"spoken text of {panel['title']}", *known, spoken[1])


def _of_text(place: str, text: str) -> Iterator[Statement]:
    stated = _WINDOW.search(text)
    for pattern, quantity, window in _PATTERNS:
        for match in re.finditer(pattern, text):
            yield Statement(f"{place}: {text[:60]}", quantity, stated[1] if stated else window, match[1].rstrip("."))


def contradictions(found: Iterable[Statement]) -> Iterator[str]:
    """Pairs of different values of one quantity in one window."""
    by_quantity: dict[tuple[str, str], list[Statement]] = defaultdict(list)
    for one in found:
        by_quantity[one.quantity, one.window].append(one)
    for (quantity, window), same in by_quantity.items():
        for other in same[1:]:
            if not _equal(same[0].value, other.value):
                yield f"{quantity} ({window}): {same[0].value} in {same[0].place!r}, {other.value} in {other.place!r}"


def _equal(one: str, other: str) -> bool:
    """Whether two numbers are the same to the digits of the shorter one."""
    (first, of_first), (second, of_second) = _parsed(one), _parsed(other)
    step = max(of_first, of_second)
    return abs(first - second) <= step / 2 + 1e-9 * abs(first)


def _parsed(text: str) -> tuple[float, float]:
    """(value, value of its last digit)."""
    scale = {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    digits = text.rstrip("kM").replace(",", "")
    places = len(digits.partition(".")[2])
    return float(digits) * scale, scale * 10.0**-places
