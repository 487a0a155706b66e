"""The generator in the strip of actors names the engines that answer and do not work."""

from msgspec import structs

from dashboard.pages.overview.flow import flow
from dashboard.widgets.status import StatusFacts
from server.query.types import SignalNow, Status, TargetTrust
from server.verdict.model import Verdict
from tests.dashboard.fake import by_name
from tests.dashboard.shown import shown

NONE = Verdict("unknown")

NOW = 1_790_000_000.0
FLEET = tuple(TargetTrust(f"e{n}", "run", "vllm", "generator", True, 3.0, "", 0.1, 0, 0, {}) for n in range(8))


def one(signal: str, value: float, **labels: str) -> SignalNow:
    return SignalNow(f"{signal}{sorted(labels.items())}", signal, labels, value, "", "ok", 0, "", "", NOW)


def tail(*signals: SignalNow, life: str = "running") -> tuple[object, object]:
    """(state, subtitle) of a fleet whose caches are 60% full."""
    mean = one("kv_cache_usage_ratio", 0.6)
    cells = flow(StatusFacts(Status("run", "vllm", "async", life, NOW, NONE, by_name(mean, *signals), (), FLEET, {})))
    return shown(cells)["actor.generator.state"], shown(cells)["actor.generator.sub"]


def full(target: str, value: float, **labels: str) -> SignalNow:
    return structs.replace(
        one("kv_cache_engine_usage_ratio", value, stat="full", target=target, **labels), unit="ratio"
    )


def test_the_engine_that_is_full_while_the_mean_looks_fine_is_named() -> None:
    most = structs.replace(one("kv_cache_engine_usage_ratio", 0.99, stat="max"), state="watch")
    assert tail(most, full("e7", 0.99, engine="0"), full("e2", 0.91)) == ("watch", "vLLM · fullest e7 99%")
    router = full("router", 0.99, replica="10.0.0.7:30000", engine="1")
    assert tail(most, router)[1] == "vLLM · fullest router/10.0.0.7:30000:1 99%"
    assert tail(full("e7", 0.64))[1] == "vLLM"  # as full as all of them
    assert tail(full("e7", 0.99), life="finished")[1] == "vLLM"


def test_the_engine_that_gets_little_work_is_named() -> None:
    idle = [
        structs.replace(one("generator_outlier_ratio", v, side="idlest", target=t), unit="ratio")
        for t, v in (("e1", 0.3), ("e4", 0.1))
    ]
    busy = one("generator_outlier_ratio", 3.0, side="busiest", target="e5")
    assert tail(*idle, busy)[1] == "vLLM · least busy e4 (10% of the median)"


def test_records_that_cannot_be_read_are_no_engine_that_is_down() -> None:
    """Whether there are engines or none: formats of records are kept apart."""
    records = structs.replace(
        FLEET[0], target="dump", kind="verl_rollouts", up=False, error="no such folder", records=True
    )
    unknown = structs.replace(one("kv_cache_usage_ratio", 0.0), value=None, state="unknown", why="log `kv`")
    for fleet, kinds in ((FLEET, "vLLM"), ((), "")):
        facts = StatusFacts(
            Status("run", "vllm", "async", "running", NOW, NONE, by_name(unknown), (), (*fleet, records), {})
        )
        assert (facts.kinds("generator"), facts.down("generator")) == (kinds, ("", ""))
        assert (facts.kinds("records"), facts.down("records")) == ("verl_rollouts", ("critical", "1 of 1 down"))
        assert facts.signals[0].why == "log `kv`"


def generator(*engines: tuple[str, str, str], life: str = "running", more: float = 0) -> tuple[object, object]:
    """(state, subtitle); engines as (state, target, rank)."""
    states = [state for state, _, _ in engines]
    signals = [one("generator_engine_state", 1.0, state=s, target=t, engine=rank) for s, t, rank in engines]
    signals += [one("generator_engines", states.count(s) + more, state=s) for s in sorted(set(states))]
    cells = flow(StatusFacts(Status("run", "vllm", "async", life, NOW, NONE, by_name(*signals), (), FLEET, {})))
    return shown(cells)["actor.generator.state"], shown(cells)["actor.generator.sub"]


def test_the_hung_and_the_paused_are_told_apart_and_named() -> None:
    found = generator(("paused", "e1", "0"), ("hung", "e3", "0"), ("paused", "e2", "1"))
    assert found == ("critical", "vLLM · 1 hung (e3) · 2 paused (e1, e2:1)")


def test_of_many_two_are_named() -> None:
    assert generator(("paused", "e1", "0"), ("paused", "e2", "0"), more=4)[1] == "vLLM · 6 paused (e1, e2, ...)"


def test_a_pause_is_no_fault_and_a_run_that_is_over_needs_no_engine() -> None:
    assert generator(("paused", "e1", "0"))[0] == "unknown"  # no band judged anything here
    assert generator(("hung", "e1", "0"), life="finished") == ("unknown", "vLLM")
