"""The cost card: what a million tokens and an hour cost, the idle causes and their sum, and what to set."""

import pytest

from dashboard.pages.overview.cost import CAUSES, Cause, Cost, cost
from dashboard.widgets.base import Quantity
from dashboard.widgets.status import StatusFacts
from server.query.types import SignalNow, Status
from server.signals import cost as signals_cost
from server.verdict.model import Verdict
from tests.dashboard.fake import NOW, by_name, signal

NONE = Verdict("unknown")

FACTS: dict[str, str | float] = {"target_usd_per_million_tokens": 8.0}


def cells(*signals: SignalNow, **facts: str | float) -> Cost:
    return cost(
        StatusFacts(
            Status("run", "slime", "async", "running", NOW, NONE, by_name(*signals), (), (), {**FACTS, **facts})
        )
    )


def idle(cause: str, usd: float | None, why: str = "") -> SignalNow:
    return signal("idle_usd_per_hour", usd, "usd/h", "ok" if usd is not None else "unknown", why, cause=cause)


def million(of: str, usd: float) -> SignalNow:
    return signal("cost_usd_per_million_tokens", usd, "usd", of=of)


def test_every_cause_has_words_in_its_order() -> None:
    assert tuple(CAUSES) == signals_cost.CAUSES


def test_the_bill_and_the_causes_that_add_up() -> None:
    """30.53 + 4.07 + 9.16 = 43.76 of 427.04 USD an hour: 10%. Widths are parts of the sum."""
    found = cells(
        signal("cost_usd_per_hour", 427.04, "usd/h", why="64 x 1.59 + 192 x 1.59 + sandboxes"),
        million("trained", 11.862), million("sampled", 5.93), million("prefill", 30.1),
        signal("cost_target_ratio", 1.48, "ratio", "watch"),
        idle("trainer_wait", 30.53), idle("weight_sync", 4.07), idle("generator_idle", 9.16), idle("stalled", 0.0),
        signal("idle_usd_total", 100.0, "usd", cause="trainer_wait"),
        signal("idle_usd_total", 20.0, "usd", cause="stalled"),
        signal("underused_usd_per_hour", 12.0, "usd/h"),
    )  # fmt: skip
    assert found == Cost(
        state="known",
        million=Quantity(11.862, "usd"), million_state="watch", million_word="Watch",
        million_note="sampled $5.93 · prefill $30.10 · target $8.00",
        hour=Quantity(427.04, "usd"), basis="64 x 1.59 + 192 x 1.59 + sandboxes",
        idle=Quantity(found.idle.value, "usd"), idle_share="10% of the bill",
        causes={
            "trainer_wait": Cause(Quantity(30.53, "usd"), 0.698), "weight_sync": Cause(Quantity(4.07, "usd"), 0.093),
            "generator_idle": Cause(Quantity(9.16, "usd"), 0.209),
        },
        also="$120.00 so far · $12.00/h underused on running engines",
    )  # fmt: skip
    assert found.idle.value == pytest.approx(43.76)


def test_empty_says_what_to_set() -> None:
    why = "the number of GPUs is unknown: set [run.NAME.cost] trainer_gpus"
    found = cells(signal("cost_usd_per_hour", None, "usd/h", "unknown", why), idle("trainer_wait", None, why))
    assert (found.state, found.why) == ("unknown", why)
    assert "set [run.NAME.cost]" in cells().why


def test_one_reason_that_hides_several_causes_is_said_once() -> None:
    silent = [idle(cause, None, "no engine answers") for cause in ("generator_idle", "generator_down")]
    found = cells(signal("cost_usd_per_hour", 10.0, "usd/h"), idle("trainer_wait", 0.0), *silent)
    assert found.also.count("no engine answers") == 1
    assert (found.idle.value, found.nothing) == (0.0, "")


def test_nothing_idle_is_a_finding_only_where_all_is_known() -> None:
    assert cells(signal("cost_usd_per_hour", 10.0, "usd/h"), idle("trainer_wait", 0.0)).nothing == "Nothing is idle."
