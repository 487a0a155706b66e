"""Cells of What-if: requested changes from the address, today's numbers, and the projected result."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from msgspec import structs

from dashboard.pages.verdict import simulated
from dashboard.shell.page import Json, Scope
from dashboard.widgets.base import Headline, Quantity
from dashboard.widgets.format import DASH, number, text
from dashboard.widgets.status import View
from server.query.types import Verdict
from server.query.what_if import Changes, Figure, OutOfRange, Range, RunSituation, WhatIfEstimate, changes_of

ASKS = (
    "move_gpus", "add_engines", "concurrency", "oversampling", "group_size", "max_response_tokens", "max_staleness",
    "zero_advantage",
)  # fmt: skip
"""Changes in the order of the sliders; the names of the address are those of the API."""

TITLES = {
    "move_gpus": "Move GPUs",
    "add_engines": "Add engines",
    "concurrency": "Rollouts in flight",
    "oversampling": "Oversampling",
    "group_size": "Group size",
    "max_response_tokens": "Length cap",
    "max_staleness": "Staleness bound",
    "zero_advantage": "Zero-advantage groups",
}
EXPLAINED = {
    "move_gpus": "from the trainer to the generator, or back",
    "add_engines": "on additional GPUs; negative removes engines",
    "concurrency": "max concurrent rollouts",
    "oversampling": "rollouts started per rollout kept",
    "group_size": "rollouts per task",
    "max_response_tokens": "max tokens per response",
    "max_staleness": "max versions behind when trained on",
    "zero_advantage": "share of completed groups whose rewards are all equal",
}


@dataclass(frozen=True, slots=True)
class WhatIfRow:
    """A figure as shown. ``better``: which way is good (1 up, -1 down, 0 neither)."""

    key: str
    title: str
    better: int


ROWS = (
    WhatIfRow("wait_ratio", "Trainer wait", -1),
    WhatIfRow("trained_samples_per_second", "Trained", 1),
    WhatIfRow("useful_samples_per_second", "With a gradient", 1),
    WhatIfRow("staleness_versions", "Staleness", -1),
    WhatIfRow("step_seconds", "Step", -1),
    WhatIfRow("usd_per_million_tokens", "Cost per 1M trained tokens", -1),
    WhatIfRow("idle_usd_per_hour", "Idle GPUs", -1),
)
# Shown where a change moves them.
CONDITIONAL_ROWS = (
    WhatIfRow("trainer_gpus", "Trainer GPUs", 0),
    WhatIfRow("generator_gpus", "Generator GPUs", 0),
    WhatIfRow("zero_advantage_ratio", "Zero-advantage groups", 0),
    WhatIfRow("response_tokens", "Response length", 0),
    WhatIfRow("kv_concurrency_limit", "KV ceiling", 0),
)
# Changes below 0.05% are within the estimate's error; from three times on a factor is shown instead of a percentage.
LITTLE, TIMES = 0.0005, 3.0
_SAME = "no change"
SIDES = (("trainer_could_take", "trainer", "Trainer"), ("generator_could_make", "generator", "Generation"))
ASK = "Move a slider to see the projected result. Share this scenario by copying the link."
TODAY: Mapping[str, str] = {
    "finished": "At the end the trainer waited ",
    "catching_up": "At this point of its history the trainer waits ",
    "stale": "When last reported, the trainer waited ",
    "not_collected": "When last collected, the trainer waited ",
}
"""Beginning of the headline in the states of a run that do not describe the present."""
LABEL = "An estimate from the verdict's throughput model, not a measurement. See its assumptions."


def cells(scope: Scope) -> View:
    """The page's texts. An impossible change is reported, and today's numbers are shown instead."""
    requested = {key: values[-1][:40] for key, values in parse_qs(scope.search.lstrip("?")).items()}
    refused = ""
    try:
        answer = scope.reader.what_if(scope.run, changes_of(requested))
    except OutOfRange as error:
        # The API names its parameter; here it is the slider.
        name, _, rest = str(error).partition(" ")
        refused = f"{TITLES[name]}, {rest}" if name in TITLES else str(error)
        answer = scope.reader.what_if(scope.run, Changes())
    found = answer
    advised = _advised(scope.status.verdict, requested) if found.changes else ""
    return (
        _head(answer, refused, advised, TODAY.get(scope.status.state.name, "Now the trainer waits "))
        | _sliders(answer)
        | {f"what_if_side.{i}": _side(found, *side) for i, side in enumerate(SIDES)}
        | {f"what_if_row.{i}": row for i, row in enumerate(_rows(found))}
        | {f"assumptions.{i}": line for i, line in enumerate(found.assumptions)}
        | {f"missing.{i}": line for i, line in enumerate(_missing(found))}
    )


def _advised(verdict: Verdict, requested: Mapping[str, str]) -> str:
    """The range that the advice gives for exactly these changes; it includes the error of estimates."""
    for one in verdict.advice:
        if one.gain is not None and parse_qs(simulated(one)) == {key: [value] for key, value in requested.items()}:
            low, _, high = one.gain
            return (
                f" The advice gives {low:.3g}× to {high:.3g}× trainable samples/s for this change: this estimate is one"
                " point, and the range includes the error of such estimates."
            )
    return ""


def _head(answer: WhatIfEstimate, refused: str, advised: str, today: str) -> View:
    found = answer
    now, then = found.now.figures["wait_ratio"], found.then.figures["wait_ratio"]
    mode = "apart" if answer.inputs.apart else "none" if now.value is None else "then" if found.changes else "now"
    limits, about = (found.now.limiter, found.then.limiter), _about(answer, mode, now) + advised
    return {
        "what_if.mode": mode,
        "head.what_if": structs.replace(_sentence(found, mode, now, then, today), text=about),
        "what_if.refused": f"Not possible: {refused}. Showing the current values." if refused else "",
        "what_if.limit.now": _limit(found.now), "what_if.limit.then": _limit(found.then) if found.changes else "",
        "what_if.flip": "flipped" if found.changes and limits[0] != limits[1] and all(limits) else "same",
    }  # fmt: skip


def _sentence(found: WhatIfEstimate, mode: str, now: Figure, then: Figure, today: str) -> Headline:
    if mode == "apart":
        return Headline("No estimate for this run")
    if mode == "none":
        return Headline("Current rates are unknown")
    if mode == "now":
        return Headline(today, Quantity(now.value, "ratio"), " of each step")
    if then.value is None:
        return Headline("Projected trainer wait: ", Quantity(text="unknown"))
    return _projection(now, then)


def _projection(now: Figure, then: Figure) -> Headline:
    """``Trainer wait could drop from 63% to`` ``as little as 0%`` ``(best case)``: a bound is not an estimate."""
    wait, projected, today = now.value or 0.0, then.value or 0.0, text(now.value, "ratio")
    figure = Quantity(projected, "ratio")
    if abs(projected - wait) < LITTLE and not then.bound:
        return Headline("Trainer wait would stay at ", Quantity(wait, "ratio"))
    direction = "drop" if projected < wait else "rise"
    if _beyond(now, then):
        extreme, case = ("as little as", "best case") if direction == "drop" else ("as much as", "worst case")
        return Headline(f"Trainer wait could {direction} from {today} to {extreme} ", figure, f" ({case})")
    bound = f"{then.bound} " if then.bound else ""
    return Headline(f"Trainer wait would {direction} from {today} to {bound}", figure)


def _beyond(now: Figure, then: Figure) -> bool:
    """Whether the projected bound lies on the far side of today's value, so that even "no change" is possible."""
    if then.bound not in ("at least", "at most") or now.value is None or then.value is None:
        return False
    return then.value < now.value if then.bound == "at least" else then.value > now.value


def _about(answer: WhatIfEstimate, mode: str, now: Figure) -> str:
    if mode == "apart":
        return answer.inputs.apart[:1].upper() + answer.inputs.apart[1:] + "."
    if mode == "none":
        return f"Needed: {now.why}."
    return LABEL if mode == "then" else ASK


def _limit(state: RunSituation) -> str:
    sides = {"trainer": "the trainer", "generator": "generation (engines and sandboxes)"}
    return sides.get(state.limiter or "", "unknown")


def _say(figure: Figure) -> str:
    """``at most 16%``."""
    label = text(figure.value, figure.unit)
    if figure.bound == "at least" and figure.value == 0:
        return f"as little as {label}"
    return f"{figure.bound} {label}" if figure.bound and figure.value is not None else label


def _sliders(answer: WhatIfEstimate) -> View:
    return {f"what_if_slider.{name}": _slider(answer.ranges[name], answer) for name in ASKS}


def _slider(found: Range, what: WhatIfEstimate) -> Json:
    value = what.changes.get(found.name, found.today)
    return {
        "low": found.low, "high": found.high, "step": found.step, "today": found.today, "value": value,
        "unit": found.unit, "needs": found.needs,
    }  # fmt: skip


def _side(found: WhatIfEstimate, key: str, side: str, title: str) -> Json:
    """A bar of what a side could do, on one scale with the other's; the shorter one is the limit."""
    figures = [state.figures[name].value for state in (found.now, found.then) for name, _, _ in SIDES]
    most = max((value for value in figures if value is not None), default=0.0) or 1.0
    now, then = found.now.figures[key], found.then.figures[key]
    return {
        "side": side, "title": title, "now": _say(now), "then": _say(then),
        "from": round(100 * now.value / most, 1) if now.value is not None else None,
        "to": round(100 * then.value / most, 1) if then.value is not None else None,
        "limits": found.then.limiter == side, "limited": found.now.limiter == side,
    }  # fmt: skip


def _rows(found: WhatIfEstimate) -> list[Json]:
    asides = [row for row in CONDITIONAL_ROWS if found.now.figures[row.key] != found.then.figures[row.key]]
    return [_row(row, found) for row in (*ROWS, *asides)]


def _row(row: WhatIfRow, found: WhatIfEstimate) -> Json:
    """``state``: better, worse or same; ``why``: it is unknown."""
    now, then = found.now.figures[row.key], found.then.figures[row.key]
    changed, state = _change(row, now, then) if found.changes else ("", "same")
    why = "; ".join(dict.fromkeys(one.partition(": ")[0] for one in (then.why or now.why).split("; ")))
    return {
        "key": row.key, "title": row.title, "now": _say(now), "then": _say(then) if found.changes else "",
        "change": changed, "state": state, "why": why,
    }  # fmt: skip


def _missing(found: WhatIfEstimate) -> list[str]:
    """Everything that is not known, each once: of the changes, and of today's figures."""
    figures = [state.figures[row.key] for state in (found.now, found.then) for row in ROWS]
    reasons = [*found.missing.values(), *(one for figure in figures if figure.why for one in figure.why.split("; "))]
    return list(dict.fromkeys(reasons))


def _change(row: WhatIfRow, now: Figure, then: Figure) -> tuple[str, str]:
    if now.value is None or then.value is None:
        return "", "same"
    more = then.value - now.value
    if abs(more) <= 1e-9 * max(1.0, abs(now.value)):
        return _SAME, "same"
    difference = _difference(now, then.value, more)
    if difference != _SAME and _beyond(now, then):
        # The bound shows only how far the figure could move.
        return f"up to {difference}", "same"
    state = "same" if not row.better else "better" if more * row.better > 0 else "worse"
    return (f"{then.bound} {difference}" if then.bound and difference != _SAME else difference), state


def _difference(now: Figure, then: float, more: float) -> str:
    sign = "+" if more > 0 else "−"
    if now.unit == "ratio":
        return f"{sign}{number(abs(100 * more))} points" if abs(more) >= LITTLE else _SAME
    if not now.value:
        return f"{sign}{number(abs(more))}"
    if abs(more) < LITTLE * abs(now.value):
        return _SAME
    if then >= TIMES * now.value:
        return f"× {number(then / now.value)}"
    return f"{sign}{number(abs(100 * more / now.value))}%" if then else DASH
