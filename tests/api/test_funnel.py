"""The funnel over HTTP: tokens, GPU seconds and dollars by how rollouts left. Both databases."""

from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Rollout
from dashboard.callbacks import cells
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.url import Span
from server.rollouts.model import RolloutRow
from server.store import Store
from server.store.types import Batch, RolloutSum, SeriesKey
from tests.api.rollouts_web import MS, complete, post, web
from tests.push.test_pushed_targets import T0, Lived, lived
from tests.store.helpers import rollout_row

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


@pytest.fixture
def run(store: Store) -> Iterator[Lived]:
    with lived(store) as made:
        yield made


def test_the_funnel_in_tokens_gpu_seconds_and_dollars(run: Lived) -> None:
    """An hour of two engines' 100 tokens/s on 8 GPUs at 2 dollars; 270,000 tokens are recorded."""
    store, series = run.store, run.store.series.intern("run", [SeriesKey("", "generator_tokens_per_second")])[0]
    sums = [
        RolloutSum(3_600_000, MS, "trained", "math", "train", 90, 0, 180_000, 0, 0.0, 90),
        RolloutSum(3_600_000, MS, "stale", "code", "", 30, 0, 60_000, 0, 0.0, 30),
        RolloutSum(3_600_000, MS, "trained", "math", "eval", 10, 0, 30_000, 0, 0.0, 10),
        RolloutSum(3_600_000, MS, "surplus", "math", "train", 5, 0, 0, 0, 0.0),
    ]
    points = [(series, MS + 5000 * n, 100.0, 0) for n in range(721)]
    facts: dict[str, str | float] = {
        "generator_gpus": 8.0, "usd_per_gpu_hour": 3.0, "generator_usd_per_gpu_hour": 2.0
    }  # fmt: skip
    live = rollout_row("t", Rollout("x"), 0, MS, MS, "generating", MS)
    store.write(Batch("run", points=points, rollout_sums=sums, facts=facts, rollouts=[live]))
    run.clock.set(T0 + 3600)
    found = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0}&end={T0 + 3600}").json()
    bars = {
        bar["exit"]: (bar["rollouts"], bar["response_tokens"], bar["gpu_seconds"], bar["usd"]) for bar in found["bars"]
    }
    assert bars["trained"] == (90, 180_000, 14_400.0, 8.0)  # half of 8 GPUs for an hour
    assert bars["stale"] == (30, 60_000, 4_800.0, pytest.approx(2.6667, abs=1e-4))
    assert bars["unrecorded"] == (0, 90_000, 7_200.0, 4.0)
    assert bars["surplus"] == (5, None, None, None) and bars["env_error"] == (0, 0, 0.0, 0.0)
    assert (found["in_flight"], found["why"]) == (
        1, "130 of 135 rollouts report response_tokens: amounts cover only those",
    )  # fmt: skip
    assert found["wasted_usd"] == pytest.approx(2.6667 + 4.0, abs=1e-4)  # all that is known but the trained
    assert [bar["exit"] for bar in found["bars"] if bar["derived"]] == ["unrecorded"]


def _funnel(run: Lived, *, engines: bool) -> dict[str, Any]:
    """An hour at 2 dollars of 8 GPUs: of 90 trained 60 tell 120,000 tokens, all 30 stale ones tell 60,000."""
    store = run.store
    sums = [
        RolloutSum(3_600_000, MS, "trained", "math", "train", 90, 0, 120_000, 0, 0.0, 60),
        RolloutSum(3_600_000, MS, "stale", "code", "train", 30, 0, 60_000, 0, 0.0, 30),
    ]
    points = []
    if engines:
        series = store.series.intern("run", [SeriesKey("", "generator_tokens_per_second")])[0]
        points = [(series, MS + 5000 * n, 100.0, 0) for n in range(721)]
    facts: dict[str, str | float] = {"generator_gpus": 8.0, "usd_per_gpu_hour": 2.0}
    store.write(Batch("run", points=points, rollout_sums=sums, facts=facts, rollouts=[live_row()]))
    run.clock.set(T0 + 3600)
    found: dict[str, Any] = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0}&end={T0 + 3600}").json()
    return found | {"bars": {bar["exit"]: bar for bar in found["bars"]}}


def test_tokens_of_before_the_first_record_are_no_waste(run: Lived) -> None:
    """Records begin in the last quarter of an hour in which the engines made 100 tokens/s all the time."""
    store, series = run.store, run.store.series.intern("run", [SeriesKey("", "generator_tokens_per_second")])[0]
    first = MS + 2_700_000
    # 100 rollouts of 60 s each, in the minute in which they left: their tokens were made from 2,640 s on.
    amounts = (100, 0, 90_000, 0, 6000.0, 100)
    sums = [
        RolloutSum(tier, at, "trained", "math", "train", *amounts) for tier, at in ((60_000, first), (3_600_000, MS))
    ]
    points = [(series, MS + 5000 * n, 100.0, 0) for n in range(721)]
    facts: dict[str, str | float] = {"generator_gpus": 8.0, "usd_per_gpu_hour": 2.0}
    store.write(Batch("run", points=points, rollout_sums=sums, facts=facts))
    run.clock.set(T0 + 3600)
    found = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0}&end={T0 + 3600}").json()
    bars = {bar["exit"]: bar for bar in found["bars"]}
    # 96,000 tokens in 960 s, of which 90,000 have a record; not 360,000 - 90,000 = 270,000 without one.
    assert bars["unrecorded"]["response_tokens"] == 6000
    assert bars["unrecorded"]["gpu_seconds"] == pytest.approx(6000 / 96_000 * 8 * 960)


def live_row() -> RolloutRow:
    return rollout_row("t", Rollout("x"), 0, MS, MS, "generating", MS)


def test_tokens_that_only_some_tell_are_a_lower_bound(run: Lived) -> None:
    found = _funnel(run, engines=True)
    names = ("rollouts", "told", "response_tokens", "gpu_seconds", "usd", "bound")
    # A third of the engines' 360,000 tokens, at least; what nobody tells is at most half of them.
    assert [found["bars"]["trained"][name] for name in names] == [90, 60, 120_000, 9_600.0, 5.3333333333333333, "lower"]
    assert [found["bars"]["stale"][name] for name in names[:4]] == [30, 30, 60_000, 4_800.0]
    assert (found["bars"]["stale"]["bound"], found["bars"]["unrecorded"]["bound"]) == ("", "upper")
    assert found["why"] == "90 of 120 rollouts report response_tokens: amounts cover only those"


def test_shares_of_what_only_some_tell_are_unknown_without_the_engines(run: Lived) -> None:
    found = _funnel(run, engines=False)
    assert [found["bars"][name]["gpu_seconds"] for name in ("trained", "stale")] == [None, None]
    assert [found["bars"][name]["usd"] for name in ("trained", "stale")] == [None, None]
    assert found["bars"]["trained"]["response_tokens"] == 120_000
    assert "and shares of GPU time are unknown" in found["why"]


def test_a_funnel_says_what_it_lacks(run: Lived) -> None:
    run.store.ensure_run("run")
    found = web(run)("GET", "/api/v1/runs/run/funnel").json()
    assert found["bars"] == [] and all(
        word in found["why"] for word in ("no rollout", "engines", "generator_gpus", "usd_per_gpu_hour")
    )


def _left(name: str, number: int, environment: str, tokens: int, exit_: str) -> list[dict[str, Any]]:
    unused = {} if exit_ == "trained" else {"version_consumed": None, "consumed_at": None, "exit": exit_}
    more = {"environment": environment, "response_tokens": tokens, "token_versions": None, **unused}
    return [complete(f"{name}{n}", **more) for n in range(number)]


def _shown(run: Lived) -> tuple[str, list[tuple[str, str, float]]]:
    """The sentence and the rows of the Rollouts page: (environment, share, width)."""
    page = by_key("rollouts")
    assert page is not None
    found: dict[str, Any] = cells(page, Scope(run.reader, "run", span=Span(T0 - 3600, T0 + 60, True)))
    rows = [found[f"discards.{n}"] for n in range(9) if f"discards.{n}" in found]
    return found["exits.bias"], [(row["environment"], row["share"], row["width"]) for row in rows]


def test_discarded_rollouts_are_compared_with_trained_ones(run: Lived) -> None:
    """20 x 1,000 and 20 x 500 tokens are trained on, 20 x 2,000 and 4 x 500 are not: 750 against 1,750 on average."""
    trained = _left("a", 20, "code", 1000, "trained") + _left("b", 20, "math", 500, "trained")
    post(run, "rollouts", trained + _left("c", 20, "code", 2000, "surplus") + _left("d", 4, "math", 500, "stale"))
    # Neither is training, or has left.
    post(run, "rollouts", [complete("e", purpose="eval", response_tokens=90_000), {"rollout_id": "f"}])
    run.at(5)
    found = web(run)("GET", f"/api/v1/runs/run/funnel?start={T0 - 3600}&end={T0 + 60}").json()["discards"]
    names = ("environment", "trained", "discarded", "trained_tokens", "discarded_tokens", "cut")
    assert [tuple(one[name] for name in names) for one in found] == [
        ("", 40, 24, 750.0, 1750.0, 0), ("code", 20, 20, 1000.0, 2000.0, 0), ("math", 20, 4, 500.0, 500.0, 0),
    ]  # fmt: skip
    assert _shown(run) == (
        "Discarded rollouts are 2.33 times as long as trained ones (1,750 against 750 tokens on average): the discard "
        "is biased by length.",
        [("code", "50% of 40", 50.0), ("math", "17% of 24", 16.7)],
    )


def test_rollouts_that_were_cut_short_prove_a_bias_only_if_they_are_longer(run: Lived) -> None:
    post(run, "rollouts", _left("a", 20, "code", 1000, "trained") + _left("b", 19, "code", 400, "aborted_oversample"))
    run.at(5)
    assert _shown(run)[0] == ""  # fewer than 20
    post(run, "rollouts", _left("c", 1, "code", 400, "infra_error"))
    run.at(10)
    assert _shown(run)[0] == (
        "Whether the discard is biased by length is unknown: 400 against 1,000 tokens on average; 20 of 20 were cut "
        "short."
    )
    post(run, "rollouts", _left("d", 20, "code", 2600, "surplus"))
    run.at(15)
    assert _shown(run)[0] == (
        "Discarded rollouts are at least 1.5 times as long as trained ones (1,500 against 1,000 tokens on average; "
        "20 of 40 were cut short): the discard is biased by length."
    )
