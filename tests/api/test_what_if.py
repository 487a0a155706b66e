"""What-ifs over HTTP: today's numbers out of a real store, changes checked, and what is refused."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from collectors.model import Reading, Sample
from server.api.app import close_api, create_api
from server.api.runs import add_what_if
from server.query.types import SignalNow, Status, format_name
from server.query.what_if import MOST, OutOfRange, changes_of, estimate, today
from server.store import Store
from server.verdict.model import Verdict
from server.verdict.what_if import NEEDS, Changes, CurrentNumbers
from tests.api.test_app import Client
from tests.driven_run import T0, TRAINER, Bench, bench

NONE = Verdict("unknown")

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

WHERE = "/api/v1/runs/run/what-if"


def rows(count: int, step: float, wait: float) -> Reading:
    """Steps of 512 samples."""
    values = (("trainer_step_seconds", step), ("trainer_wait_seconds", wait), ("trainer_samples", 512.0))
    samples = [
        Sample(metric, value, ts=T0 + number * step, step=number, axis="trainer")
        for number in range(1, count + 1)
        for metric, value in values
    ]
    facts = {"framework": "slime", "mode": "async", "trainer_gpus": 64.0, "generator_gpus": 192.0}
    return Reading(samples=tuple(samples), facts=facts, cursor={"row": count})


@pytest.fixture
def run(store: Store) -> Iterator[Bench]:
    """512 samples per 256 s, 80 s of it waiting: 2 of 2.909 samples/s."""
    with bench(store) as made:
        made.commit(TRAINER, rows(12, 256.0, 80.0), T0 + 12 * 256)
        made.advance(T0 + 12 * 256)
        yield made


def client(run: Bench) -> Client:
    api = create_api(run.reader, version="1.2.3", ready=lambda: None)
    add_what_if(api, run.reader)
    close_api(api)
    return Client(api)


def test_without_a_change_then_is_now(run: Bench) -> None:
    body = client(run)("GET", WHERE).json()
    assert body.keys() == {
        "run", "label", "changes", "now", "then", "assumptions", "missing", "inputs", "ranges"
    }  # fmt: skip
    assert body["then"] == body["now"] and body["changes"] == {}
    assert body["now"]["limiter"] == "generator"
    wait, trained = (body["now"]["figures"][name] for name in ("wait_ratio", "trained_samples_per_second"))
    assert wait == {"value": run.value("trainer_wait_ratio"), "unit": "ratio", "bound": "", "why": ""}
    assert (wait["value"], trained["value"]) == (0.3125, 2.0)
    assert body["now"]["figures"]["usd_per_million_tokens"]["value"] is None
    assert "usd_per_gpu_hour in [run.NAME.cost]" in body["now"]["figures"]["usd_per_million_tokens"]["why"]


def test_eight_gpus_moved(run: Bench) -> None:
    body = client(run)("GET", WHERE, params={"move_gpus": 8}).json()
    # 1 - (2 * 200/192) / (2.909090 * 56/64)
    assert body["then"]["figures"]["wait_ratio"]["value"] == pytest.approx(0.1815476)
    assert body["changes"] == {"move_gpus": 8} and body["inputs"]["trainer_gpus"] == 64
    assert body["ranges"]["move_gpus"] == {
        "name": "move_gpus", "low": -191, "high": 63, "step": 1, "today": 0, "unit": "GPUs", "needs": ""
    }  # fmt: skip
    assert body["ranges"]["oversampling"]["today"] is None and body["ranges"]["oversampling"]["needs"]
    assert any(words.startswith("Engines generate as many tokens per GPU") for words in body["assumptions"])


REFUSED = [
    ("move_gpus=64", "this run has 64 GPUs that train and 192 that generate, so -191 to 63"),
    ("move_gpus=1.5", "integer"),
    ("oversampling=0.5", "greater than or equal to 1"),
    ("oversampling=nan", "finite"),
    ("zero_advantage=1", "less than or equal to 0.99"),
    ("max_staleness=0", "greater than or equal to 1"),
    ("max_response_tokens=1", "greater than or equal to 16"),
    ("group_size=4096", "less than or equal to 1024"),
    ("concurrency=1e99", "integer"),
    ("move_gpu=8", "unknown parameter 'move_gpu'; there are move_gpus, add_engines, concurrency, oversampling"),
]


def test_what_cannot_be_is_refused(run: Bench) -> None:
    request = client(run)
    for query, words in REFUSED:
        answer = request("GET", f"{WHERE}?{query}")
        assert answer.status_code == 422 and words in answer.text, query


def test_an_unknown_run_and_the_description(run: Bench) -> None:
    request = client(run)
    assert request("GET", "/api/v1/runs/unknown/what-if").status_code == 404
    described = request("GET", "/openapi.json").json()["paths"]["/api/v1/runs/{run}/what-if"]["get"]
    assert {one["name"] for one in described["parameters"]} == {"run", *MOST}
    assert all(one.get("description") for one in described["parameters"] if one["in"] == "query")
    assert "estimate" in described["description"]


def test_a_synchronous_run_has_no_such_estimate(store: Store) -> None:
    with bench(store) as made:
        made.commit(TRAINER, structs.replace(rows(12, 256.0, 80.0), facts={"mode": "sync_split"}), T0 + 3072)
        made.advance(T0 + 3072)
        body = client(made)("GET", WHERE, params={"oversampling": 2}).json()
    assert body["then"]["limiter"] is None and body["missing"]["mode"].startswith("synchronous run")
    assert {one["value"] for one in body["then"]["figures"].values()} == {None}


# ---- a status as a what-if's start


def status(*signals: SignalNow, mode: str = "async", **facts: float) -> Status:
    return Status("run", "slime", mode, "running", T0, NONE, {one.name: one for one in signals}, (), (), facts)


def signal(name: str, value: float | None, **labels: str) -> SignalNow:
    return SignalNow(format_name(name, tuple(labels.items())), name, labels, value, "", "ok", 0.0, "", "", T0)


def exits(**shares: float) -> list[SignalNow]:
    return [signal("rollout_exit_ratio", share, exit=name) for name, share in shares.items()]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([signal("trainer_phase_seconds", 50.0, phase="compute"), signal("trainer_step_seconds", 100.0),
          signal("trainer_samples_per_second", 2.0)], {"compute_capacity": 4.0, "step_seconds": 100.0, "trained": 2.0}),
        (exits(aborted_oversample=0.5, surplus=0.1, trained=0.3, stale=0.1),
         {"oversampling": pytest.approx(2.5), "stale_share": pytest.approx(0.25)}),
        (exits(aborted_oversample=1.0), {}),
        ([signal("zero_advantage_ratio", 0.5, basis="completed"), signal("zero_advantage_ratio", 0.02,
          basis="admitted")], {"zero_advantage": 0.5, "filtered": True}),
        ([signal("zero_advantage_ratio", 0.5, basis="completed"), signal("zero_advantage_ratio", 0.5,
          basis="admitted")], {"zero_advantage": 0.5, "filtered": False}),
        ([signal("rollouts_in_flight", 400.0), signal("generator_requests", 200.0, state="running")],
         {"concurrency": 400.0, "generating": 0.5}),
        ([signal("generator_engines", 6.0, state="up"), signal("generator_engines", 2.0, state="down")],
         {"engines": 6.0}),
        ([signal("staleness_estimated_versions", 2.0)], {"staleness": 2.0}),
        ([signal("staleness_estimated_versions", 2.0), signal("staleness_versions", 3.0, level="trajectory",
          stat="mean")], {"staleness": 3.0}),
        ([signal("cost_usd_per_million_tokens", 9.0, of="prefill"), signal("cost_usd_per_million_tokens", 2.0,
          of="trained")], {"usd_per_million_tokens": 2.0}),
        ([signal("cost_usd_per_million_tokens", 9.0, of="prefill"), signal("cost_usd_per_million_tokens", None,
          of="trained")], {}),
        ([signal("idle_usd_per_hour", 0.0, cause="stalled"), signal("idle_usd_per_hour", 0.0, cause="starting"),
          signal("idle_usd_per_hour", None, cause="trainer_wait")], {}),
        ([signal("idle_usd_per_hour", 0.0, cause="stalled"), signal("idle_usd_per_hour", 0.0, cause="trainer_wait")],
         {"idle_usd_per_hour": 0.0}),
        ([signal("idle_usd_per_hour", 3.0, cause="wait"), signal("idle_usd_per_hour", 4.0, cause="held")],
         {"idle_usd_per_hour": 7.0}),
        ([signal("trainer_wait_ratio", None)], {}),
    ],
)  # fmt: skip
def test_today_from_signals(told: list[SignalNow], expected: dict[str, Any]) -> None:
    assert today(status(*told)) == CurrentNumbers(**expected)


def test_today_from_facts() -> None:
    told = status(max_in_flight=64.0, oversampling=2.0, filters_zero_advantage=0.0, max_staleness_versions=-1.0)
    assert today(told) == CurrentNumbers(concurrency=64.0, oversampling=2.0, filtered=False)
    # H200s cost 1.59 where nothing else is stated, and of 8 GPUs in all 6 are the generator's when 2 train.
    assert today(status(gpus=8.0, trainer_gpus=2.0, gpu_type="H200")) == CurrentNumbers(  # type: ignore[arg-type]
        trainer_gpus=2.0, generator_gpus=6.0, usd_per_gpu_hour=1.59
    )
    two = status(trainer_usd_per_gpu_hour=2.0, generator_usd_per_gpu_hour=1.0)
    assert today(two) == CurrentNumbers(), "two prices are none for GPUs that move"
    judged = structs.replace(told, verdict=Verdict("sandbox_bound"), mode="async_colocated", facts={})
    assert today(judged) == CurrentNumbers(
        outcome="sandbox_bound", one_pool="trainer and generator share their GPUs: none can move"
    )


def test_changes_that_leave_no_generator_are_refused_together() -> None:
    told = status(signal("generator_engines", 4.0, state="up"), trainer_gpus=4.0, generator_gpus=4.0)
    # 1 - 3/4 of the engines - 3/4 of the GPUs: less than none.
    with pytest.raises(OutOfRange, match="together leave the generator nothing"):
        estimate(told, Changes(move_gpus=-3, add_engines=-3))
    assert estimate(told, Changes(move_gpus=-2, add_engines=-1)).then.figures["generator_gpus"].value == 1.0


def test_an_address_typed_by_hand_still_means_something() -> None:
    told = {"move_gpus": "8", "oversampling": "2.25", "group_size": "many", "zero_advantage": "7", "run": "x"}
    assert changes_of(told) == Changes(move_gpus=8, oversampling=2.25)
    assert changes_of({"concurrency": "nan", "max_staleness": "inf"}) == Changes()


def test_every_change_and_every_need_is_one_of_the_inputs() -> None:
    fields = set(CurrentNumbers.__dataclass_fields__)
    assert set(NEEDS) <= fields and set(MOST) - {"move_gpus", "add_engines"} <= fields
    assert set(MOST) == set(Changes.__dataclass_fields__)


NEAR = status(
    signal("response_tokens", 2_000.0, stat="mean"), group_size=16.0, max_in_flight=512.0,
    max_response_tokens=8_192.0, max_staleness_versions=4.0, oversampling=1.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (Changes(max_response_tokens=16), "max_response_tokens 16: it is now 8,192 tokens, and the estimate holds "
         "for 1,024 to 65,536, from an eighth of it to eight times as many"),
        (Changes(group_size=256), "group_size 256: it is now 16 rollouts per group, and the estimate holds for 2 "),
        (Changes(concurrency=5_000), "concurrency 5,000: it is now 512 rollouts in flight"),
        (Changes(max_staleness=33), "for 1 to 32"),
        (Changes(oversampling=12.5), "for 1 to 12"),
    ],
)  # fmt: skip
def test_what_is_far_from_today_is_refused_with_how_far_the_estimate_holds(changes: Changes, words: str) -> None:
    with pytest.raises(OutOfRange, match=re.escape(words)):
        estimate(NEAR, changes)
    # Eight times and an eighth still are; of what is not known today nothing can be far from it.
    estimate(NEAR, Changes(max_response_tokens=65_536, group_size=2, concurrency=64, max_staleness=32))
    estimate(status(), changes)
