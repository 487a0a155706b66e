"""What a run lacks, in the words of the framework that leaves it out; and a mode that nobody told."""

import re

import msgspec
import pytest

import collectors
from collectors.model import Collector, Reading, Sample, Target
from server import signals
from server.cli.status import text
from server.signals import Signal, availability
from server.signals.availability import missing_metrics
from server.store import Store
from tests.driven_run import T0, bench
from tests.recorded import report, runs

LOG = Target("trainer", "run", "slime", "trainer", path="/nowhere")
PAGE = Target("queue", "run", "verl_transfer_queue", "trainer", url="http://127.0.0.1:1")
GUESS: dict[str, str | float] = {"framework": "slime", "usual_mode": "async"}
SIGNALS = {one.name: one for one in signals.load() if isinstance(one, Signal)}


def steps(count: int, **facts: str | float) -> Reading:
    rows = ((number, T0 + 30.0 * number) for number in range(1, count + 1))
    found = tuple(Sample("trainer_step_seconds", 30.0, (), ts, number, "trainer") for number, ts in rows)
    return Reading(samples=found, facts={**GUESS, **facts})


def test_an_empty_panel_says_what_turns_it_on(store: Store) -> None:
    with bench(store) as run:
        run.commit(LOG, Reading(facts=GUESS), T0)
        run.advance(T0 + 10)
        assert run.why("turns") == SIGNALS["turns"].hint  # no row yet: nobody knows what they will hold
        run.commit(LOG, steps(4), T0 + 130)
        run.advance(T0 + 150)
        assert run.why("turns") == "not reported by slime: `--log-multi-turn`"
        assert run.why("entropy") == "not reported by slime; this trainer reports no entropy"
        assert msgspec.to_builtins(run.reader.status("run"))["signals"]["turns"]["why"] == run.why("turns")


@pytest.mark.parametrize("kinds", [("verl", "slime"), ("slime", "verl")])
def test_the_hint_is_the_watched_frameworks_own(kinds: tuple[str, ...]) -> None:
    """Both know how to get a queue; whose run it is decides, not whose target comes first."""
    known, item = collectors.load(), SIGNALS["queue_samples"]

    def reports(metric: str) -> bool:
        return metric == "trainer_step_seconds"

    for framework in ("slime", "verl"):
        how = known[framework].hints["queue_samples"]
        assert missing_metrics(item, item.hint, reports, (framework, *kinds)) == f"not reported by {framework}: {how}"


@pytest.mark.parametrize("framework", availability.frameworks(), ids=lambda one: one.name)
def test_no_advice_is_another_frameworks(framework: Collector) -> None:
    """Whatever its run lacks, by name or by key: TRL's `frac_reward_zero_std` is nothing that slime could log."""
    others = [one.name.replace("_", "[-_ ]?") for one in availability.frameworks() if one.name not in framework.name]
    stranger = re.compile(rf"\b(?:{'|'.join(others)})\b", re.IGNORECASE)
    foreign = {"time/step", "perf/mfu", "frac_reward_zero_std", "completions/clipped_ratio", "off_policy/mean"}
    for item in SIGNALS.values():
        for given in ("learning_rate", "trainer_step_seconds"):
            words = missing_metrics(item, item.hint, given.__eq__, (framework.name,))
            if words == item.hint:
                continue  # nothing of it comes from trainers
            assert words.startswith(f"not reported by {framework.name}"), item.name
            assert stranger.search(words) is None, words
            keys = set(re.findall(r"`([^`]+)`", words))
            assert not keys & foreign or keys <= set(re.findall(r"`([^`]+)`", " ".join(framework.hints.values())))


def test_a_rules_line_says_what_its_signals_says() -> None:
    (path,) = [path for path in runs() if path.parent.name == "slime"][:1]
    found = report(path)
    told = {f"no source: {line.why}" for line in found.lines}
    lacks = {text for text in found.lacking.values() if "not reported by" in text}
    assert lacks
    assert lacks <= told
    assert not any(item.hint in text for item in SIGNALS.values() for text in found.lacking.values() if "TRL" in text)


def test_without_a_framework_examples_stay() -> None:
    item = SIGNALS["entropy"]
    assert "TRL `entropy`" in missing_metrics(item, item.hint, "loss_mean".__eq__, ("custom",))


def test_what_turns_one_input_on_is_no_advice_where_another_is_missing() -> None:
    """Configured logs give TRL's batch, and nothing counts what a synchronous trainer throws away."""
    item = SIGNALS["discarded_rollout_ratio"]
    words = missing_metrics(item, item.hint, "loss_mean".__eq__, ("trl",))
    assert words == "not reported by trl: only the asynchronous trainer counts the rollouts that it drops"
    assert "JSON lines" not in missing_metrics(item, item.hint, "loss_mean".__eq__, ("verl",))
    rate = SIGNALS["trainer_samples_per_second"]
    assert "this log does not contain" in missing_metrics(rate, rate.hint, "loss_mean".__eq__, ("verl",))


def test_what_another_target_tells_is_not_lacking() -> None:
    """A queue in groups comes from the page; that the batch is not known is said in the signal's own words."""
    item = SIGNALS["turns"]
    assert missing_metrics(item, item.hint, {"turns_mean", "turns_max"}.__contains__, ("slime",)) == item.hint
    assert (
        missing_metrics(item, "2 of the 3 steps needed", {"loss_mean"}.__contains__, ("slime",))
        == "2 of the 3 steps needed"
    )
    assert missing_metrics(item, item.hint, {"loss_mean"}.__contains__, ("vllm",)) == item.hint


def test_a_mode_that_no_source_reports_is_unknown_and_the_usual_one_a_guess(store: Store) -> None:
    with bench(store) as run:
        run.commit(LOG, steps(3), T0 + 100)
        run.advance(T0 + 110)
        status = msgspec.to_builtins(run.reader.status("run"))
        assert status["mode"] == ""
        assert text(status).startswith("run: slime, mode unknown (usually async), ")
        run.commit(LOG, Reading(facts={"framework": "slime", "mode": "sync_split"}), T0 + 120)
        run.commit(PAGE, Reading(facts=GUESS), T0 + 125)  # guesses again, and does not count
        run.advance(T0 + 130)
        status = msgspec.to_builtins(run.reader.status("run"))
        assert status["mode"] == "sync_split"
        assert text(status).startswith("run: slime, sync_split, ")
