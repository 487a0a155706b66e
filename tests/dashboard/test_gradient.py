"""Whether the gradient can be trusted: from a recorded log, through its collector and the signals, to the sentence."""

import shutil
from pathlib import Path

import pytest
from msgspec import structs

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from server.alerts.settings import AlertSettings
from server.config.alerts import load_rules
from server.lib.errors import Problems
from server.store import Store
from tests.collectors._frameworks import tail
from tests.collectors.test_pipeline_rl import COLLECTOR, RUN, WRITTEN, dated
from tests.dashboard import fake_actors as actors
from tests.dashboard.shown import shown
from tests.driven_run import ON_SQLITE, TRAINER, bench

MEASURED = (
    "no non-finite step, entropy 0.5 nats, mismatch KL 0.002 nats, log-prob difference 0.01 nats, importance ratio 1, "
    "effective samples 88%"
)
NOT_CLIPPED = "Unknown: clipped tokens (not reported by pipeline_rl; this trainer reports no clipped share)."


def rule(above: float) -> dict[str, object]:
    return {"name": "MismatchHigh", "signal": "mismatch_kl", "above": above, "severity": "warning"}


@ON_SQLITE
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule(0.05)], (f"Gradients can be trusted: {MEASURED}", NOT_CLIPPED, "ok")),
        # Twelve steps of 0.002 nats; the mean needs three of them.
        ([rule(0.001)], ("Doubtful: mismatch KL 0.002 nats is beyond its limit (alert MismatchHigh) since step 3",
                         NOT_CLIPPED, "watch")),
    ],
)  # fmt: skip
def test_a_recorded_run_is_judged_by_its_limits(
    store: Store, tmp_path: Path, rules: list[dict[str, object]], expected: tuple[str, str, str]
) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    problems = Problems()
    settings = AlertSettings(load_rules({"rule": rules}, problems))
    assert not problems.messages
    with bench(store, settings) as run:
        target = structs.replace(TRAINER, collector="pipeline_rl")
        run.commit(target, tail(COLLECTOR, dated(tmp_path / "run")), WRITTEN)
        run.advance(WRITTEN + 5)
        page = by_key("trainer")
        assert page is not None
        found = shown(of_page(page, Scope(run.reader, "run")))
    assert (found["head.gradient.before"], found["head.gradient.text"], found["head.gradient.state"]) == expected


def test_a_gradient_that_is_not_finite_is_a_doubt_and_nothing_is_unknown() -> None:
    reader = actors.reader(600)
    reader.append(actors.RUN, actors.one("gradient_nonfinite_steps", "steps", "critical"), [(actors.NOW, 2.0)])
    page = by_key("trainer")
    assert page is not None
    found = shown(of_page(page, Scope(reader, actors.RUN)))
    assert found["head.gradient.before"] == "Doubtful: 2 of the last 10 steps had a non-finite gradient"
    assert found["head.gradient.state"] == "critical"
    found = shown(of_page(page, Scope(reader, actors.BARE)))
    assert (found["head.gradient.before"], found["head.gradient.state"]) == ("Unknown", "unknown")
    assert found["head.gradient.text"].startswith("Unknown: non-finite steps, ")
