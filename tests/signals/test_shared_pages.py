"""Pages of several engines: what they tell together counts once, and an engine that leaves one is missed."""

import pytest

from collectors.model import Labels
from server.signals import engines as signals_engines
from server.signals import generator, kv_cache
from server.signals.model import Unknown
from server.signals.window import Gauge
from tests.signals.support import gauge, health, view
from tests.signals.test_generator_signals import RUNNING, TOKENS, USAGE, WINDOW, ask, engine, values

RANKS: tuple[Labels, Labels] = ((("engine", "0"),), (("engine", "1"),))


def replica(address: str) -> Labels:
    return (("replica", address),)


def counting(per_second: float, labels: Labels = (), target: str = "e0") -> Gauge:
    return gauge(TOKENS, *(5 * per_second * at for at in range(WINDOW)), labels=labels, target=target)


def test_tokens_that_a_page_counts_for_all_its_ranks_count_once() -> None:
    """SGLang's tokenizer knows no ranks: 200 a second are not 400. The tokens of another engine are its own."""
    ranks = [one for labels in RANKS for one in engine(labels=labels, running=10, usage=0.5, capacity=10_000)]
    assert ask(generator.generator_tokens_per_second, *ranks, counting(200)) == {"": pytest.approx(200.0)}
    other = [*engine("e1", running=10), counting(70, target="e1")]
    assert ask(generator.generator_tokens_per_second, *ranks, counting(200), *other) == {"": pytest.approx(270.0)}
    answer = signals_engines.generator_engine_tokens_per_second.compute(view(*ranks, counting(200)))
    assert answer == Unknown("the page counts the tokens of all its engines together")


def test_a_page_of_one_engine_is_its_own() -> None:
    one = engine(labels=RANKS[0], running=10)
    assert ask(signals_engines.generator_engine_tokens_per_second, *one, counting(200))["mean"] == pytest.approx(200.0)


def test_what_each_rank_counts_is_not_added_to_what_the_page_counts() -> None:
    ranks = [one for labels in RANKS for one in (*engine(labels=labels, running=10), counting(100, labels))]
    assert ask(generator.generator_tokens_per_second, *ranks, counting(200)) == {"": pytest.approx(200.0)}


def test_lengths_that_a_page_sums_over_its_ranks_are_no_ranks_own() -> None:
    """By their caches: half of 10,000 tokens for 10 requests; not the page's 8,000 for each."""
    ranks = [one for labels in RANKS for one in engine(labels=labels, running=10, usage=0.5, capacity=10_000)]
    together = gauge("live_sequence_tokens", *[8000.0] * WINDOW)
    assert ask(kv_cache.live_sequence_length_tokens, *ranks, together) == {"": pytest.approx(500.0)}


def test_ranks_hang_where_the_page_they_share_counts_no_token_either() -> None:
    ranks = [one for labels in RANKS for one in engine(labels=labels, running=10, usage=0.5)]
    assert ask(generator.generator_frozen, *ranks, counting(0)) == {"e0": 1.0}
    assert ask(generator.generator_frozen, *ranks, counting(200)) == {"e0": 0.0}


def test_running_requests_without_the_label_that_tokens_and_cache_have() -> None:
    """One engine: 5 requests hold half of 10,000 tokens, so 10 of them fit."""
    labels = RANKS[0]
    page = [
        gauge(RUNNING, *[5.0] * WINDOW), counting(20, labels), gauge(USAGE, *[0.5] * WINDOW, labels=labels),
        gauge("kv_cache_capacity_tokens", 10_000.0, labels=labels),
    ]  # fmt: skip
    assert ask(generator.generator_tokens_per_second, *page) == {"": pytest.approx(20.0)}
    assert ask(kv_cache.kv_concurrency_limit, *page) == {"": pytest.approx(10.0)}
    assert ask(signals_engines.generator_engines, *page)["up"] == 1.0


def test_several_engines_whose_requests_the_page_tells_together() -> None:
    page = [
        gauge(RUNNING, *[5.0] * WINDOW),
        *(one for labels in RANKS for one in (counting(20, labels), gauge(USAGE, *[0.5] * WINDOW, labels=labels))),
    ]
    assert ask(generator.generator_tokens_per_second, *page) == {"": pytest.approx(40.0)}
    assert ask(signals_engines.generator_engines, *page)["up"] == 2.0


# ---- who left


def left(seconds: float, address: str = "b:1", target: str = "router") -> Gauge:
    """A replica that was on the page for a minute, until so long ago."""
    return gauge(RUNNING, *[6.0] * 12, labels=replica(address), target=target, age=seconds)


def stayed(*addresses: str) -> list[Gauge]:
    return [gauge(RUNNING, *[6.0] * WINDOW, labels=replica(one), target="router") for one in addresses]


def states(*gauges: Gauge, up: bool = True) -> dict[str, float]:
    found = signals_engines.generator_engines.compute(view(*gauges, targets=(health("router", "generator", 0, up=up),)))
    return {state: count for state, count in values(found).items() if count}


def test_an_engine_that_left_a_page_which_still_answers_is_silent_by_name() -> None:
    """Within its carry, 15 s, it is only late; after five minutes it was taken away."""
    assert states(*stayed("a:1"), left(15)) == {"up": 2.0}
    assert states(*stayed("a:1"), left(20)) == {"up": 1.0, "silent": 1.0}
    assert states(*stayed("a:1"), left(300)) == {"up": 1.0, "silent": 1.0}
    assert states(*stayed("a:1"), left(305)) == {"up": 1.0}
    older = gauge(RUNNING, *[6.0] * 40, labels=replica("a:1"), target="router", every=10.0, age=5.0)
    assert states(older, left(302)) == {"up": 1.0}
    (one,) = signals_engines.generator_engine_state.compute(view(*stayed("a:1"), left(20)))  # type: ignore[misc]
    assert one.labels == (("replica", "b:1"), ("state", "silent"), ("target", "router"))


def test_a_replica_in_the_place_of_another_is_no_loss() -> None:
    """Restarted under another name: it came after the other had left. Of two that left one is missed."""
    new = gauge(RUNNING, *[6.0] * 3, labels=replica("c:1"), target="router")
    assert states(*stayed("a:1"), left(40), new) == {"up": 2.0}
    assert states(*stayed("a:1"), left(45), left(40, "d:1"), new) == {"up": 2.0, "silent": 1.0}


def test_a_page_that_does_not_answer_is_down_and_nobody_on_it_is_silent() -> None:
    assert states(*stayed("a:1"), left(20), up=False) == {"down": 1.0}
