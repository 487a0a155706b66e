"""Whether training pays: from recorded logs and pushed steps, through the signals, to the cells of the Trainer page."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from collectors.model import Limits, Reading, Sample
from collectors.trainers import art, miles, openrlhf, skyrl, slime, tinker_cookbook, verl
from collectors.trainers.prime_rl import collector as prime_rl
from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from server.store import Store
from tests.collectors._reading import TESTDATA
from tests.dashboard.shown import shown
from tests.driven_run import ON_SQLITE, T0, TRAINER, Bench, bench

# Collector, recorded run, (task, score, step) of its evaluations.
RECORDED = [
    (verl, "verl/fully_async_console", [("gsm8k", 0.3419, 5), ("gsm8k", 0.3398, 10)]),
    (slime, "slime/async", [("aime", 0.5, 5)]),
    (miles, "miles/events_run", [("aime", 0.5, 5)]),
    (openrlhf, "openrlhf/async", [("math", 0.5, 6)]),
    (skyrl, "skyrl/async", [("all", 0.25, 0)]),
    (tinker_cookbook, "tinker_cookbook/sync", [("eval", 0.5, 0), ("eval", 0.75, 12)]),
    (art, "art/loop", [("val", 0.5, 4)]),
]


@pytest.mark.parametrize(("module", "path", "scores"), RECORDED, ids=[path for _, path, _ in RECORDED])
def test_every_collector_reads_its_scores(module: Any, path: str, scores: list[tuple[str, float, int]]) -> None:
    read: Reading = module.COLLECTOR.tail(TESTDATA / path, {}, Limits(), T0)
    found = [(dict(one.labels)["task"], one.value, one.step) for one in read.samples if one.axis == "eval"]
    assert found == scores


def test_evaluations_of_prime_rl_that_end_late_are_no_restart(tmp_path: Path) -> None:
    """The evaluation of step 20 ends after that of step 40: it is older, and left out."""
    key = "eval/aime/effective/agent/avg@8"
    rows: list[dict[str, Any]] = [
        {"step": step, "time": T0 + at, "time/step": 9.0, "progress/rollouts": 8}
        for at, step in enumerate(range(39, 42))
    ]
    rows += [{"step": 40, "time": T0 + 50, key: 0.5}, {"step": 20, "time": T0 + 60, key: 0.4}]
    (tmp_path / "orchestrator").mkdir()
    (tmp_path / "orchestrator/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read: Reading = prime_rl.COLLECTOR.tail(tmp_path, {}, Limits(), T0 + 70)  # type: ignore[misc]
    found = [(dict(one.labels), one.value, one.step) for one in read.samples if one.axis == "eval"]
    assert found == [({"task": "aime"}, 0.5, 40)]


def cells(run: Bench) -> dict[str, Any]:
    page = by_key("trainer")
    assert page is not None
    return shown(of_page(page, Scope(run.reader, "run")))


@ON_SQLITE
def test_the_scores_of_a_recorded_run(store: Store) -> None:
    """verl logs `val-core/gsm8k/reward/mean@1` 0.3419 at step 5 and 0.3398 at step 10."""
    with bench(store) as run:
        read = verl.COLLECTOR.tail(TESTDATA / "verl/fully_async", {}, Limits(), T0)  # type: ignore[misc]
        run.commit(structs.replace(TRAINER, collector="verl"), read, T0)
        run.advance(T0 + 5)
        assert run.value('evaluation_score{task="gsm8k"}') == 0.3398
        found = cells(run)
        steps = run.reader.steps.newest("run", 40)
    assert found["scores.0"] == {"task": "gsm8k", "score": "0.34", "note": "step 10; -0.0021 since step 5"}
    assert found["chart.tscore.0.text"] == "0.34"
    # An evaluation is no step of training.
    assert [one.step for one in steps] == list(range(1, 15))


def step(number: int, **values: float) -> tuple[Sample, ...]:
    ts = T0 + 90.0 * number
    named = {"reward_mean": 0.5 - 0.01 * number, "trained_tokens": 30_000.0, **values}
    functions = {"accuracy": 0.9 - 0.02 * number, "format": 0.2 + 0.01 * number}
    parts = [Sample("reward_component_mean", value, (("function", name),), ts, number, "trainer")
             for name, value in functions.items()]  # fmt: skip
    return (*(Sample(metric, value, (), ts, number, "trainer") for metric, value in named.items()), *parts)


@ON_SQLITE
def test_a_component_that_rises_while_the_reward_falls(store: Store) -> None:
    """40 steps of 90 s on 8 GPUs at $2: 39 x 90 s are 0.975 h, $15.60; 39 x 30,000 tokens."""
    cost: dict[str, Any] = {"trainer_gpus": 4.0, "generator_gpus": 4.0, "usd_per_gpu_hour": 2.0}
    with bench(store, mode="async", **cost) as run:
        samples = [sample for number in range(1, 41) for sample in step(number)]
        scored = (("task", "aime"),)
        samples += [
            Sample("evaluation_score", value, scored, T0 + 90.0 * at, at, "eval")
            for at, value in ((20, 0.4), (40, 0.45))
        ]
        samples.append(Sample("evaluation_samples", 240.0, scored, T0 + 3600, 40, "eval"))
        run.commit(TRAINER, Reading(samples=tuple(samples), facts={"mode": "async", **cost}), T0 + 3600)
        run.advance(T0 + 3605)
        expected = {
            'reward_rise{of="total"}': -0.39,
            'reward_rise{function="accuracy",of="component"}': -0.78,
            'reward_rise{function="format",of="component"}': 0.39,
            # Of steps 31 to 40.
            'reward_component{function="format"}': 0.555,
            "reward_rise_tokens": 39 * 30_000.0,
            "reward_rise_usd": 15.6,
            'evaluation_score{task="aime"}': 0.45,
        }
        assert {name: run.value(name) for name in expected} == pytest.approx(expected)
        found = cells(run)
    assert found["head.scores.before"] == "Reward -0.39 over 39 steps, 1.17M trained tokens, $15.60"
    assert found["head.scores.text"] == "A component rises while the reward falls: format +0.39."
    assert found["scores.0"]["note"] == "step 40; +0.05 since step 20; 240 samples"
    assert [found[f"chart.tparts_of_reward.{n}.label"] for n in range(2)] == ["accuracy", "format"]


@ON_SQLITE
def test_without_prices_and_tokens_they_are_named_as_unknown(store: Store) -> None:
    with bench(store, mode="async") as run:
        samples = [s for number in range(1, 11) for s in step(number) if s.metric == "reward_mean"]
        run.commit(TRAINER, Reading(samples=tuple(samples), facts={"mode": "async"}), T0 + 900)
        run.advance(T0 + 905)
        found = cells(run)
    assert found["head.scores.before"] == "Reward -0.09 over 9 steps"
    assert found["head.scores.text"].startswith(
        "Unknown: tokens (not reported by prime_rl; this trainer reports no trained tokens); dollars (the number"
    )
    assert found["scores.none"].startswith("Not reported by prime_rl; this trainer logs no evaluation score")
