"""TRL's logs of other versions and forks, what its trainer prints, and runs that were resumed in another directory."""

from pathlib import Path

import pytest

from collectors.model import Limits
from collectors.trainers.trl import collector as trl
from tests.field.product import INPUTS, RUN, Product, watching

ZERO = 'zero_advantage_ratio{basis="completed"}'


def newest(product: Product) -> dict[str, float]:
    """The values of the newest step."""
    values = product.reader.steps.newest(RUN, 1)[-1].values
    return dict(values)


def components(path: Path) -> dict[str, float]:
    """The newest mean of each reward function, which no signal shows yet."""
    assert trl.COLLECTOR.tail is not None
    samples = trl.COLLECTOR.tail(path, {}, Limits(), 2e9).samples
    return {sample.labels[0][1]: sample.value for sample in samples if sample.metric == "reward_component_mean"}


@pytest.mark.parametrize("log", ["wandb", "tensorboard"])
def test_keys_of_early_2025(log: str) -> None:
    with watching([INPUTS / "14-trl-old-keys" / log], 1795601010.0) as product:
        product.step(60)
        # Steps 31 to 40: reward 1.4 + step / 1000, length 232 + step, a row every 25 s.
        assert product.value('reward{stat="mean"}') == pytest.approx(1.4355)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(267.5)
        assert product.value("trainer_step_seconds") == pytest.approx(25.0)
        assert newest(product)["reference_kl_mean"] == pytest.approx(0.0005)
    assert components(INPUTS / "14-trl-old-keys" / log) == pytest.approx({"format_reward": 1.0, "accuracy_reward": 0.4})


def test_evaluations_under_the_keys_of_training() -> None:
    with watching([INPUTS / "11-trl-eval-rows-as-train"], 1795600815.0) as product:
        product.step(60)
        assert product.value('reward{stat="mean"}') == pytest.approx(0.30)
        assert product.value('response_tokens{stat="mean"}') == pytest.approx(400.0)
        assert product.value(ZERO) == pytest.approx(0.25)
        assert product.value("truncation_ratio") == pytest.approx(0.04)
        assert product.value("trainer_step_seconds") == pytest.approx(20.0)
        # An evaluation after every 5th step, 9 s after the step's own row.
        evaluations = product.reader.runs.events(RUN, 0, 2e9, ("eval",))
    assert [event.ts - 1795600000 for event in evaluations] == [109, 209, 309, 409, 509, 609, 709, 809]
