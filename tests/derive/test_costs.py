"""Money over time: idle dollars add up exactly once, whatever restarts, and alerts hear of it. Both databases."""

import pytest

from collectors.model import Reading, Sample
from server.config.settings import build
from server.lib.errors import ConfigError
from server.signals.gpus import PRICES
from server.store import Store
from server.targets.model import RunSettings
from tests.derive.test_alerts import settings, states
from tests.driven_run import ENGINE, T0, TRAINER, Bench, bench, page, steps

FACTS = {"trainer_gpus": 64.0, "generator_gpus": 192.0, "usd_per_gpu_hour": 2.0, "has_sandbox": 0.0}
"""128 and 384 USD an hour; the trainer waits 12 of 30 s: 51.20 USD/h."""
WAIT = 51.2


def live(run: Bench, begin: int, end: int, running: float = 5.0) -> None:
    """Engine pages every 10 s, ticks every 5 s, a step every 30 s: each as it is written."""
    for at in range(begin, end + 1, 10):
        if at % 30 == 0:
            run.commit(TRAINER, steps(at // 30, at // 30), T0 + at)
        run.commit(ENGINE, page(running, 100.0 * at), T0 + at)
        run.advance(T0 + at, live=True)


def total(run: Bench, cause: str) -> float:
    return run.value(f'idle_usd_total{{cause="{cause}"}}') or 0.0


def test_idle_dollars_add_up_over_time(store: Store) -> None:
    """Three steps are needed, at 90 s; known from then on, at every tick for 5 s: 21 ticks to 190 s are 105 s."""
    with bench(store, None, None, **FACTS) as run:
        live(run, 30, 190)
        assert run.value('idle_usd_per_hour{cause="trainer_wait"}') == pytest.approx(WAIT)
        assert total(run, "trainer_wait") == pytest.approx(WAIT * 105 / 3600)
        assert total(run, "generator_idle") == 0.0
        before = total(run, "trainer_wait")
        run.advance(T0 + 190)
        run.advance(T0 + 190, live=True)
        assert total(run, "trainer_wait") == before


def test_a_reason_that_is_over_is_not_shown_beside_the_number(store: Store) -> None:
    """Engines are read before the configuration: until it comes, how many GPUs there are is not known."""
    with bench(store) as run:
        run.commit(ENGINE, page(5.0, 0.0), T0)
        run.advance(T0 + 5, live=True)
        (before,) = [one for one in run.reader.status("run").signals.values() if one.signal == "idle_usd_per_hour"]
        assert before.why.startswith("the number of GPUs is unknown: set [run.NAME.cost] trainer_gpus")
        run.commit(TRAINER, Reading(facts=FACTS), T0 + 30)
        live(run, 30, 190)
        assert run.value('idle_usd_per_hour{cause="trainer_wait"}') == pytest.approx(WAIT)
        assert run.reader.status("run").verdict.usd_lacks == ""


@pytest.mark.parametrize("died", [90, 140])
def test_a_restart_changes_no_dollar(store: Store, died: int) -> None:
    with bench(store, None, None, **FACTS) as run:
        live(run, 30, died)
        # Committed, and the process died before it was derived.
        run.commit_only(ENGINE, page(5.0, 100.0 * (died + 5)), T0 + died + 5)
    with bench(store, None, None, **FACTS) as run:
        live(run, died + 10, 190)
        assert total(run, "trainer_wait") == pytest.approx(WAIT * 105 / 3600, abs=1e-9)


def test_what_nobody_watched_adds_nothing(store: Store) -> None:
    """An hour between two starts of ours: what was last seen holds for 15 s and the tick after, then 20 s are new."""
    with bench(store, None, None, **FACTS) as run:
        live(run, 30, 190)
        before = total(run, "trainer_wait")
    with bench(store, None, None, **FACTS) as run:
        live(run, 3_780, 3_800)
        grown = total(run, "trainer_wait") - before
        assert grown == pytest.approx(WAIT * (20 + 20) / 3600)


BURN = """
default_pack = false
[[receiver]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:1/x"
[[rule]]
name = "IdleBurn"
burn_usd = 8.2
over = "2m"
annotations.summary = "$value"
"""


def test_idle_burn_is_of_all_causes_together(store: Store) -> None:
    """Nothing runs: 384 USD/h from the first tick at 30 s on, 51.20 more from 90 s on.

    A total's growth is counted from its first value: the engines' at 35 s, the trainer's at 90 s. At 110 s these are
    384 x 75 s and 51.20 x 20 s: 8.00 and 0.2844 USD. Neither reaches 8.2 alone.
    """
    with bench(store, settings(BURN), None, **FACTS) as run:
        live(run, 30, 100, running=0.0)
        assert states(run) == []
        live(run, 110, 110, running=0.0)
        (alert,) = run.reader.alerts.active("run")
        assert (alert.name, alert.state, "cause" in alert.labels) == ("IdleBurn", "firing", False)
        assert alert.value == pytest.approx(8.0 + 0.28444, abs=1e-3)


def test_the_packs_cost_rules_have_a_source(store: Store) -> None:
    """1000 trained tokens a step of 30 s on 512 USD/h: 4,267 USD a million, against 4,000."""
    with bench(store, settings(""), None, **FACTS, target_usd_per_million_tokens=4_000.0) as run:
        for at in range(30, 1_050, 30):
            run.commit(TRAINER, steps(at // 30, at // 30), T0 + at)
            run.commit(ENGINE, page(5.0, 100.0 * at), T0 + at)
            run.advance(T0 + at, live=True)
        assert run.value("cost_target_ratio") == pytest.approx(512 / 3600 * 30 / 1000 * 1e6 / 4_000)
        assert ("CostOverTarget", "firing") in states(run)
        sources = {rule.name: rule.why for rule in run.reader.alerts.rules(run.reader.status("run"))}
        assert (sources["CostOverTarget"], sources["IdleBurn"]) == ("", "")


# ---- [run.NAME.cost]


def stated(**cost: object) -> RunSettings:
    return build({"run": {"a": {"cost": cost}}}, {"HOME": "/home/x"}).runs[0]


def refused(**cost: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        stated(**cost)
    return [problem.removeprefix("run.a.cost") for problem in caught.value.problems]


def test_what_is_stated_becomes_facts() -> None:
    found = stated(
        gpu="H200", generator_gpu="h100 sxm", trainer_gpus=64, generator_gpus=192,
        usd_per_gpu_hour={"trainer": 2.5}, target_usd_per_million_tokens=4,
    )  # fmt: skip
    assert found.facts == {
        "gpu_type": "H200", "generator_gpu_type": "h100 sxm", "trainer_gpus": 64.0, "generator_gpus": 192.0,
        "trainer_usd_per_gpu_hour": 2.5, "target_usd_per_million_tokens": 4.0,
    }  # fmt: skip


def test_every_default_price_can_be_had_by_its_name() -> None:
    for name, price in PRICES.items():
        assert price.usd is None or stated(gpu=name).facts == {"gpu_type": name}


def test_all_that_is_wrong_is_said_at_once_with_the_fix() -> None:
    known = "default prices exist for A100, B200, B300, GB200, H100, H200, L40S"
    found = refused(
        gpu="GB300", trainer_gpu="TPU v5", trainer_gpus=12.5, generator_gpus=0, gpus=4, usd_per_gpu_hour={"judge": 1},
        target_usd_per_million_tokens=float("inf"), price=3,
    )  # fmt: skip
    assert found == [
        ".price: unknown key; known: generator_gpu, generator_gpus, gpu, gpus, target_usd_per_million_tokens, "
        "trainer_gpu, trainer_gpus, usd_per_gpu_hour",
        ".usd_per_gpu_hour.judge: unknown key; known: generator, trainer",
        ".target_usd_per_million_tokens: must be a positive number, at most 1,000,000",
        ".trainer_gpus: must be a whole number of GPUs",
        ".generator_gpus: must be a positive number, at most 1,000,000",
        f".gpu: 'GB300' has no default price ({known}): set usd_per_gpu_hour",
        f".trainer_gpu: 'TPU v5' has no default price ({known}): set usd_per_gpu_hour = {{ trainer = ... }}",
    ]


def test_a_type_without_a_default_needs_a_price_and_no_more() -> None:
    assert stated(gpu="GB300", usd_per_gpu_hour=9).facts == {"gpu_type": "GB300", "usd_per_gpu_hour": 9.0}
    assert stated(trainer_gpu="MI300X", usd_per_gpu_hour={"trainer": 3}).facts["trainer_usd_per_gpu_hour"] == 3.0
    assert refused(generator_gpus=8, gpus=4) == [
        ".generator_gpus: is more than gpus, the GPUs of the whole run: leave one of the two out"
    ]


def test_a_gpu_that_an_exporter_names_has_its_types_price(store: Store) -> None:
    with bench(store, None, None, trainer_gpus=8.0, generator_gpus=8.0, has_sandbox=0.0) as run:
        run.commit(ENGINE, Reading((Sample("generator_requests_running", 1.0),)), T0)
        run.advance(T0, live=True)
        assert run.value("cost_usd_per_hour") is None
        run.commit(
            ENGINE, Reading((Sample("generator_requests_running", 1.0),), facts={"gpu_type": "NVIDIA H200"}), T0 + 5
        )
        run.advance(T0 + 5, live=True)
        assert run.value("cost_usd_per_hour") == pytest.approx(16 * 1.59)
