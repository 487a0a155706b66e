"""The generator in the strip of actors names the engines that answer and do not work."""

from dashboard.facts import Facts
from dashboard.flow import flow
from server.query.types import SignalNow, Status, TargetTrust

NOW = 1_790_000_000.0
FLEET = tuple(TargetTrust(f"e{n}", "run", "vllm", "generator", True, 3.0, "", 0.1, 0, 0, {}) for n in range(8))


def one(signal: str, value: float, **labels: str) -> SignalNow:
    return SignalNow(f"{signal}{sorted(labels.items())}", signal, labels, value, "", "ok", 0, "", "", NOW)


def generator(*engines: tuple[str, str, str], life: str = "running", more: float = 0) -> tuple[object, object]:
    """(state, subtitle); engines as (state, target, rank)."""
    states = [state for state, _, _ in engines]
    signals = [one("generator_engine_state", 1.0, state=s, target=t, engine=rank) for s, t, rank in engines]
    signals += [one("generator_engines", states.count(s) + more, state=s) for s in sorted(set(states))]
    cells = flow(Facts(Status("run", "vllm", "async", life, NOW, None, tuple(signals), (), FLEET, {})))
    return cells["f.generator.s"], cells["f.generator.sub"]


def test_the_hung_and_the_paused_are_told_apart_and_named() -> None:
    found = generator(("paused", "e1", "0"), ("hung", "e3", "0"), ("paused", "e2", "1"))
    assert found == ("critical", "vllm · 1 hung (e3) · 2 paused (e1, e2:1)")


def test_of_many_two_are_named() -> None:
    assert generator(("paused", "e1", "0"), ("paused", "e2", "0"), more=4)[1] == "vllm · 6 paused (e1, e2, ...)"


def test_a_pause_is_no_fault_and_a_run_that_is_over_needs_no_engine() -> None:
    assert generator(("paused", "e1", "0"))[0] == "unknown"  # no band judged anything here
    assert generator(("hung", "e1", "0"), life="finished") == ("unknown", "vllm")
