"""Whether training pays: the reward's rise against its cost, reward components, and scores of evaluations."""

from dashboard.pages.trainer.gradient import unknown
from dashboard.shell.page import Scope
from dashboard.widgets.base import Headline, absent
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import money, number
from dashboard.widgets.signal_lookup import Want
from dashboard.widgets.status import StatusFacts, View
from server.query.types import SignalNow

_SCORE, _COMPONENT, _RISE = "evaluation_score", "reward_component", "reward_rise"
_INPUTS = (("tokens", "reward_rise_tokens"), ("dollars", "reward_rise_usd"))
_COLOURS = ("blue", "orange", "teal", "plum", "gold", "grey")


def _family(signal: str, label: str) -> tuple[PanelLine, ...]:
    """A line per value of the label, for the first ones by name; Explore has all."""
    return tuple(PanelLine("", Want(signal, (), n), colour, named_by=label) for n, colour in enumerate(_COLOURS))


PANELS: tuple[Panel, ...] = (
    Panel("tscore", "Evaluations", "score by task", "", _family(_SCORE, "task"), from_zero=False),
    Panel(
        "tparts_of_reward", "Reward components", "mean per step", "", _family(_COMPONENT, "function"), from_zero=False
    ),
)


def cells(scope: Scope) -> View:
    """``head.scores``: the rise and its cost in one sentence, below it components that move against the reward;
    ``scores.N``: a row per evaluation.
    """
    facts, infos = scope.facts, scope.reader.signals.infos
    rise = facts.find(_RISE, of="total")
    if rise is None or rise.value is None:
        found = Headline("Unknown", text=rise.why if rise is not None else absent(_RISE, infos), state="unknown")
    else:
        found = Headline(
            f"Reward {_signed(rise.value)} {rise.why}{_cost(facts)}",
            text=f"{_against(facts, rise)} {unknown(scope, _INPUTS)}".strip(),
        )
    scores = [one for one in facts.signals if one.signal == _SCORE]
    rows = [one for one in scores if one.value is not None]
    why = next((one.why for one in scores if one.value is None), "") or absent(_SCORE, infos)
    view: View = {"head.scores": found, "scores.none": "" if rows else why[:1].upper() + why[1:] + "."}
    return view | {
        f"scores.{i}": {"task": one.labels.get("task", ""), "score": number(one.value or 0.0), "note": one.why}
        for i, one in enumerate(rows)
    }


def _cost(facts: StatusFacts) -> str:
    """``, 1.2M trained tokens, $340``, as far as known."""
    tokens, usd = facts.value("reward_rise_tokens"), facts.value("reward_rise_usd")
    parts = [f"{number(tokens)} trained tokens"] if tokens is not None else []
    parts += [money(usd)] if usd is not None else []
    return "".join(f", {part}" for part in parts)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{number(abs(value))}"


def _clear(one: SignalNow) -> bool:
    return bool(one.value) and not one.why.endswith("no clear trend")


def _against(facts: StatusFacts, total: SignalNow) -> str:
    """Components with a clear trend against that of the reward."""
    parts = [one for one in facts.signals if one.signal == _RISE and one.labels.get("of") == "component"]
    if not parts or not _clear(total):
        return ""
    far = [one for one in parts if _clear(one) and (one.value or 0.0) * (total.value or 0.0) < 0]
    verb, other = ("falls", "rises") if (total.value or 0.0) < 0 else ("rises", "falls")
    named = ", ".join(f"{one.labels.get('function', '')} {_signed(one.value or 0.0)}" for one in far)
    return f"A component {other} while the reward {verb}: {named}." if far else "No component moves against it."
