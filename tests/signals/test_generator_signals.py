"""What the engines' numbers mean: rates, shares, lengths, the ceiling, who stands still and why. Numbers by hand."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from collectors.model import Labels
from server.signals import engines as signals_engines
from server.signals import generator, kv_cache, staleness, weights
from server.signals.model import Answer, NotApplicable, Signal, Unknown
from server.signals.observed_histograms import Histograms
from server.signals.window import Gauge
from tests.signals.support import book, gauge, health, histogram, view

RUNNING, TOKENS, USAGE = "generator_requests_running", "generator_tokens_total", "kv_cache_usage_ratio"
WINDOW = 61  # pages of five minutes at 5 s


def values(answer: Answer) -> dict[str, float]:
    """By label values, joined."""
    assert not isinstance(answer, (Unknown, NotApplicable)), answer
    return {" ".join(value for _, value in one.labels): one.value for one in answer}


def why(answer: Answer) -> str:
    assert isinstance(answer, (Unknown, NotApplicable)), answer
    return answer.why


def ask(signal: Signal, *gauges: Gauge, **more: object) -> dict[str, float]:
    return values(signal.compute(view(*gauges, **more)))  # type: ignore[arg-type]


def engine(target: str = "e0", *, labels: Labels = (), **metrics: float) -> list[Gauge]:
    """An engine that has told the same for five minutes."""
    names = {"running": RUNNING, "tokens": TOKENS, "usage": USAGE, "capacity": "kv_cache_capacity_tokens"}
    return [
        gauge(names.get(name, name), *[value] * WINDOW, target=target, labels=labels) for name, value in metrics.items()
    ]


# ---- rates and shares


def test_prompt_tokens_per_second_and_per_generated_token() -> None:
    prompt = gauge("generator_prompt_tokens_total", 0, 500, 1000), gauge("generator_prompt_tokens_total", 0, 20, 50)
    pages = [prompt[0], gauge("generator_prompt_tokens_total", 7, 27, 57, target="e1"), gauge(TOKENS, 0, 100, 350)]
    assert ask(generator.generator_prompt_tokens_per_second, *pages) == {"": 105.0}
    assert ask(generator.generator_prefill_decode_ratio, *pages) == {"": 3.0}
    idle = gauge("generator_prompt_tokens_total", 5, 5), gauge(TOKENS, 9, 9)
    assert "no token was generated" in why(generator.generator_prefill_decode_ratio.compute(view(*idle)))
    assert "a rate needs two" in why(
        generator.generator_prompt_tokens_per_second.compute(view(gauge("generator_prompt_tokens_total", 5)))
    )


def test_finish_reasons_are_shares_of_what_ended_within_the_window() -> None:
    def ended(reason: str, *counts: float, target: str = "e0") -> Gauge:
        return gauge("generator_requests_finished_total", *counts, target=target, labels=(("reason", reason),))

    pages = [ended("stop", 100, 106), ended("length", 40, 41), ended("stop", 0, 1, target="e1"), ended("abort", 3, 3)]
    # An engine that counts without a reason (SGLang) takes no share from those that tell.
    pages.append(gauge("generator_requests_finished_total", 0, 50, target="e2"))
    assert ask(generator.generator_finish_ratio, *pages) == {"abort": 0.0, "length": 0.125, "stop": 0.875}
    assert "no request finished" in why(generator.generator_finish_ratio.compute(view(ended("stop", 4, 4))))
    bare = gauge("generator_requests_finished_total", 0, 50)
    assert "without a reason" in why(generator.generator_finish_ratio.compute(view(bare)))


def test_prefix_hits_are_a_ratio_of_sums_and_else_the_engines_own() -> None:
    counted = [
        gauge("prefix_cache_queries_total", 0, 900), gauge("prefix_cache_hits_total", 0, 450),
        gauge("prefix_cache_queries_total", 0, 100, target="e1"), gauge("prefix_cache_hits_total", 0, 50, target="e1"),
    ]  # fmt: skip
    own = [gauge("prefix_cache_hit_ratio", 0.2, target="e2"), gauge("prefix_cache_hit_ratio", 0.4, target="e3")]
    assert ask(kv_cache.prefix_cache_hit_ratio, *counted, *own) == {"": 0.5}
    assert ask(kv_cache.prefix_cache_hit_ratio, *own) == {"": pytest.approx(0.3)}
    idle = gauge("prefix_cache_queries_total", 7, 7), gauge("prefix_cache_hits_total", 3, 3)
    assert "no prompt was looked up" in why(kv_cache.prefix_cache_hit_ratio.compute(view(*idle)))
    # Counters that never move (SGLang, driven) do not outvote the engine's own ratio.
    assert ask(kv_cache.prefix_cache_hit_ratio, *idle, *own) == {"": pytest.approx(0.3)}


def at_the_end(target: str = "e0") -> Gauge:
    """Tokens of a counter that moves when a request ends: once in five minutes."""
    return gauge(TOKENS, *[0.0] * 40, *[9000.0] * 21, target=target)


def test_an_engine_that_counts_at_the_end_is_believed_by_its_own_rate() -> None:
    busy, own = engine(running=8), gauge("generator_token_throughput", *[500.0, 300.0] * 30, 400.0)
    assert ask(generator.generator_tokens_per_second, *busy, at_the_end(), own) == {"": 400.0}
    # Without its word the counter is all there is; a live counter needs none.
    assert ask(generator.generator_tokens_per_second, *busy, at_the_end()) == {"": 30.0}
    live = gauge(TOKENS, *(50.0 * n for n in range(WINDOW)))
    assert ask(generator.generator_tokens_per_second, *busy, live, own) == {"": 10.0}


def test_the_rate_that_a_hung_engine_last_told_is_not_its_rate() -> None:
    stuck = engine(running=8, tokens=9000, generator_token_throughput=400)
    assert ask(generator.generator_tokens_per_second, *stuck) == {"": 0.0}


# ---- the fleet and its tail


def test_the_fleet_has_a_mean_and_a_tail() -> None:
    fleet = [*engine("e0", running=10, usage=0.2), *engine("e1", running=40, usage=0.9)]
    asleep = engine("e2", running=0, usage=0.0, generator_asleep=1)
    assert ask(signals_engines.generator_engine_requests, *fleet, *asleep) == {"min": 10.0, "mean": 25.0, "max": 40.0}
    assert ask(signals_engines.kv_cache_engine_usage_ratio, *fleet, *asleep) == {
        "min": pytest.approx(0.2), "mean": pytest.approx(0.55), "max": pytest.approx(0.9),
        "full e1": pytest.approx(0.9),
    }  # fmt: skip
    moving = [gauge(TOKENS, 0, 50), gauge(TOKENS, 0, 250, target="e1")]
    assert ask(signals_engines.generator_engine_tokens_per_second, *moving) == {"min": 10.0, "mean": 30.0, "max": 50.0}


def test_the_three_fullest_caches_are_named_from_90_percent_on() -> None:
    shares = {"a": 0.89, "b": 0.91, "c": 0.99, "d": 0.95, "e": 0.92, "f": 0.3}
    fleet = [one for name, share in shares.items() for one in engine(name, running=10, usage=share)]
    found = ask(signals_engines.kv_cache_engine_usage_ratio, *fleet)
    assert {name: round(value, 6) for name, value in found.items() if name.startswith("full")} == {
        "full c": 0.99, "full d": 0.95, "full e": 0.92,
    }  # fmt: skip
    even = [one for name in "ab" for one in engine(name, running=10, usage=0.6)]
    assert ask(signals_engines.kv_cache_engine_usage_ratio, *even).keys() == {"min", "mean", "max"}


def test_uneven_engines_are_named_and_only_the_worst_few() -> None:
    loads = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 20, "f": 20, "g": 20, "h": 20, "i": 50, "j": 24}
    fleet = [one for name, load in loads.items() for one in engine(name, running=load)]
    assert ask(signals_engines.generator_outlier_ratio, *fleet) == {
        "idlest": 0.05, "busiest": 2.5, "idlest a": 0.05, "idlest b": 0.1, "idlest c": pytest.approx(0.15),
        "busiest i": 2.5,
    }  # fmt: skip
    even = [one for name in "abc" for one in engine(name, running=20)]
    assert ask(signals_engines.generator_outlier_ratio, *even) == {"idlest": 1.0, "busiest": 1.0}
    assert isinstance(signals_engines.generator_outlier_ratio.compute(view(*engine(running=3))), NotApplicable)
    assert "run nothing" in why(
        signals_engines.generator_outlier_ratio.compute(view(*engine(running=0), *engine("e1", running=0)))
    )


SLOW, FAST = {"running": 31, "waiting": 29}, {"running": 1.7, "waiting": 0}


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        # Two engines get the same requests, and one is slow: 90 tokens/s of 31 requests against 96 of 1.7.
        (((SLOW, 90), (FAST, 96)), {"idlest": 1.7 / 60, "busiest": 60 / 1.7, "slowest e0": (90 / 31) / (96 / 1.7)}),
        # A router that sends the first too much: it makes more tokens, 27 each against 33 each.
        (((SLOW, 840), (FAST, 56)), {
            "idlest": 1.7 / 60, "busiest": 60 / 1.7, "idlest e1": 1.7 / 60, "busiest e0": 60 / 1.7,
        }),
        # Three with the same load, one at a fifth.
        ((({"running": 20}, 100), ({"running": 20}, 500), ({"running": 20}, 520)),
         {"idlest": 1.0, "busiest": 1.0, "slowest e0": 5 / 25.5}),
        # Larger batches: 25 of 40 against 30 of 10 is no slow engine.
        ((({"running": 40}, 1000), ({"running": 10}, 300)), {
            "idlest": 0.25, "busiest": 4.0, "idlest e1": 0.25, "busiest e0": 4.0,
        }),
    ],
)  # fmt: skip
def test_the_slow_engine_of_a_few_is_named_and_not_the_healthy_one(
    fleet: Sequence[tuple[dict[str, float], float]], expected: dict[str, float]
) -> None:
    pages = []
    for number, (load, tokens) in enumerate(fleet):
        waits = {"generator_requests_waiting": load.get("waiting", 0)}
        pages += engine(f"e{number}", running=load["running"], **waits)
        pages.append(gauge(TOKENS, *(5 * tokens * page for page in range(WINDOW)), target=f"e{number}"))
    assert ask(signals_engines.generator_outlier_ratio, *pages) == {
        name: pytest.approx(of) for name, of in expected.items()
    }


# ---- lengths and the ceiling


def test_live_length_by_the_engines_sum_else_by_what_its_cache_holds() -> None:
    told = engine(running=10, live_sequence_tokens=20_000)
    by_usage = engine("e1", running=30, usage=0.5, capacity=200_000)
    assert ask(kv_cache.live_sequence_length_tokens, *told) == {"": 2000.0}
    assert ask(kv_cache.live_sequence_length_tokens, *told, *by_usage) == {"": 3000.0}  # 120,000 tokens of 40
    assert "no request ran" in why(
        kv_cache.live_sequence_length_tokens.compute(view(*engine(running=0, usage=0.0, capacity=200_000)))
    )
    untold = engine(running=10, live_sequence_tokens=0, usage=0.5, capacity=200_000)
    assert ask(kv_cache.live_sequence_length_tokens, *untold) == {"": 10_000.0}, (
        "running sequences of no tokens: not told"
    )
    assert "together with" in why(kv_cache.live_sequence_length_tokens.compute(view(*engine(running=3))))


def ceiling(*gauges: Gauge) -> Answer:
    return kv_cache.kv_concurrency_limit.compute(view(*gauges))


def test_the_ceiling_is_capacity_by_live_length_and_at_most_the_engines_limit() -> None:
    full = engine(running=30, usage=0.5, capacity=200_000)  # 3,333 tokens each: 60 of them fill it
    assert values(ceiling(*full)) == {"": pytest.approx(60.0)}
    capped = engine("e1", running=30, usage=0.5, capacity=200_000, generator_request_limit=48)
    assert values(ceiling(*full, *capped)) == {"": pytest.approx(108.0)}


def test_the_ceiling_is_at_most_the_limit_that_the_run_states() -> None:
    """`max_num_seqs` 32 of every engine; one that tells its own, 48, knows better."""
    full = engine(running=30, usage=0.5, capacity=200_000)
    capped = engine("e1", running=30, usage=0.5, capacity=200_000, generator_request_limit=48)
    assert ask(kv_cache.kv_concurrency_limit, *full, *capped, max_num_seqs=32.0) == {"": pytest.approx(80.0)}


def test_the_engines_own_word_on_its_capacity_comes_first() -> None:
    """With several pools blocks are not tokens: 4 full sequences of 25,000 are what 200,000 "tokens" hold."""
    own = engine(
        running=10, live_sequence_tokens=50_000, usage=0.5, capacity=200_000, kv_concurrency_limit=4,
        generator_max_sequence_tokens=25_000,
    )  # fmt: skip
    assert values(ceiling(*own)) == {"": 20.0}


def test_an_empty_cache_and_a_sleeping_engine_have_no_ceiling() -> None:
    low = engine(running=1, usage=0.04, capacity=200_000)
    assert "less than 5%" in why(ceiling(*low))
    asleep = engine(running=30, usage=0.5, capacity=200_000, generator_asleep=1)
    assert why(ceiling(*asleep)) == "every engine is asleep"
    assert "no engine reports" in why(ceiling(*engine(running=30)))
    # Beside one that is full an empty one is taken at the same length.
    full = engine("e1", running=30, usage=0.5, capacity=200_000)
    assert values(ceiling(*low, *full)) == {"": pytest.approx(120.0)}


# ---- states


def states(*gauges: Gauge, **more: object) -> dict[str, float]:
    return {state: count for state, count in ask(signals_engines.generator_engines, *gauges, **more).items() if count}


def test_each_engine_is_in_one_state() -> None:
    still = {"running": 4.0, "tokens": 200.0}
    fleet = [
        *engine("idle", running=0, tokens=200), *engine("hung", **still),
        *engine("paused", **still, generator_paused=1),
        *engine("asleep", **still, generator_asleep=1), *engine("pulse", **still, generator_requests_paused=4),
        gauge(RUNNING, *[4.0] * WINDOW, target="works"), gauge(TOKENS, *map(float, range(WINDOW)), target="works"),
        *engine("down", **still), gauge(RUNNING, 4.0, target="silent", age=60.0),
    ]  # fmt: skip
    up = [health(name, "generator", 1.0) for name in ("idle", "hung", "paused", "asleep", "pulse", "works", "silent")]
    targets = (*up, health("down", "generator", 90.0, up=False), health("never", "generator", None, up=False))
    assert ask(signals_engines.generator_engines, *fleet, targets=targets) == {
        "up": 2.0, "down": 2.0, "paused": 2.0, "asleep": 1.0, "hung": 1.0, "silent": 1.0, "stale": 0.0,
    }  # fmt: skip
    assert set(ask(signals_engines.generator_engine_state, *fleet, targets=targets)) == {
        "down down", "down never", "paused paused", "paused pulse", "asleep asleep", "hung hung", "silent silent",
    }  # fmt: skip


def test_without_engines_nothing_is_counted_and_a_router_is_none() -> None:
    assert "no engine is a target" in why(signals_engines.generator_engines.compute(view()))
    router = structs.replace(health("router", "generator", 1.0), collector="sglang_router")
    assert "no engine is a target" in why(signals_engines.generator_engines.compute(view(targets=(router,))))
    assert isinstance(signals_engines.generator_engine_state.compute(view(*engine(running=0, tokens=2))), NotApplicable)


def test_of_many_that_are_down_ten_are_named() -> None:
    targets = tuple(health(f"e{n:03}", "generator", None, up=False) for n in range(64))
    assert states(targets=targets) == {"down": 64.0}
    assert len(ask(signals_engines.generator_engine_state, targets=targets)) == 10


@pytest.mark.parametrize(
    "sign", ["generator_prompt_tokens_total", USAGE, "kv_cache_used_tokens", "live_sequence_tokens"]
)
def test_whatever_moves_in_an_engine_proves_that_it_works(sign: str) -> None:
    """A long prefill generates no token for minutes, and an engine that counts at the end shows none."""
    stuck = engine(running=4, tokens=200)
    assert states(*stuck) == {"hung": 1.0}
    moving = gauge(sign, *(0.1 + 0.001 * n for n in range(WINDOW)))
    assert states(*stuck, moving) == {"up": 1.0}
    assert ask(generator.generator_frozen, *stuck, moving) == {"e0": 0.0}


@pytest.mark.parametrize("held", ["generator_paused", "generator_asleep", "generator_requests_paused"])
def test_an_engine_that_was_held_is_given_its_minute_after_it(held: str) -> None:
    """The counters stood still through the pause, as they should: the first page after it proves nothing."""
    stuck = engine(running=4, tokens=200)
    resumed = gauge(held, *[1.0] * (WINDOW - 1), 0.0)
    assert states(*stuck, resumed) == {"up": 1.0}
    assert ask(generator.generator_frozen, *stuck, resumed) == {"e0": 0.0}
    long_ago = gauge(held, *[1.0] * (WINDOW - 14), *[0.0] * 14)  # held until 70 s ago
    assert states(*stuck, long_ago) == {"hung": 1.0}


def test_ranks_of_one_page_are_engines_of_their_own() -> None:
    first, second = (("engine", "0"),), (("engine", "1"),)
    works = gauge(TOKENS, *map(float, range(WINDOW)), labels=first)
    pages = [*engine(running=4, labels=first), works, *engine(running=4, tokens=7, labels=second)]
    assert states(*pages) == {"up": 1.0, "hung": 1.0}
    assert ask(signals_engines.generator_engine_state, *pages) == {"1 hung e0": 1.0}
    assert ask(generator.generator_frozen, *pages) == {"e0": 1.0}
    # What the server says of itself holds for both.
    assert states(*pages, gauge("generator_paused", 1.0)) == {"paused": 2.0}


# ---- versions and weight updates


def serve(*versions: float) -> list[Gauge]:
    return [gauge("generator_policy_version", one, target=f"e{n}") for n, one in enumerate(versions)]


def test_engine_staleness_is_against_the_trainers_newest_version() -> None:
    steps = book([{"policy_version": 11.0}, {"policy_version": 12.0}])
    assert ask(staleness.generator_staleness_versions, *serve(12, 12, 9), steps=steps) == {"mean": 1.0, "max": 3.0}
    # Weights go out before the step's row is written: the engine that has them is not behind, the others are.
    assert ask(staleness.generator_staleness_versions, *serve(13, 12), steps=steps) == {"mean": 0.5, "max": 1.0}


def test_versions_of_another_clock_are_not_compared() -> None:
    steps = book([{"policy_version": 12.0}])
    assert "count differently" in why(staleness.generator_staleness_versions.compute(view(*serve(640), steps=steps)))
    assert "no policy version" in why(staleness.generator_staleness_versions.compute(view(*serve(3))))
    assert "no engine reports" in why(staleness.generator_staleness_versions.compute(view(steps=steps)))


def call(name: str, *counts: float, target: str = "e0", metric: str = "requests") -> Gauge:
    return gauge(f"generator_control_{metric}_total", *counts, target=target, labels=(("call", name),))


def test_weight_updates_are_counted_by_the_call_that_is_made_once() -> None:
    """prime-rl: pause, update_weights, resume; the second engine missed one of three."""
    pages = [call("pause", 5, 8), call("update_weights", 5, 8), call("resume", 5, 8)]
    pages += [call("pause", 5, 7, target="e1"), call("update_weights", 5, 7, target="e1")]
    assert ask(weights.generator_weight_updates, *pages) == {"min": 2.0, "mean": 2.5, "max": 3.0}
    times = [call("pause", 1, 2.5, metric="seconds"), call("update_weights", 10, 16, metric="seconds")]
    times.append(call("reset_prefix_cache", 1, 9, metric="seconds"))  # at once with the update, or of no weight
    assert ask(weights.generator_weight_stall_seconds, *times) == {"min": 7.5, "mean": 7.5, "max": 7.5}


def test_the_load_of_an_update_and_the_slowest_engine() -> None:
    """HTTP calls: 6 s in 3 updates, 9 s in 2; the pause is no load. SGLang's gauge of the last load comes first."""
    pages = [call("update_weights", 5, 8), call("update_weights", 5, 7, target="e1")]
    pages += [call("pause", 1, 50, metric="seconds"), call("update_weights", 10, 16, metric="seconds")]
    pages.append(call("update_weights", 10, 19, target="e1", metric="seconds"))
    assert ask(weights.generator_weight_load_seconds, *pages) == {"median": 3.25, "max": 4.5}

    def loaded(target: str, seconds: float, source: str = "distributed") -> Gauge:
        return gauge("generator_weight_load_seconds", seconds, target=target, labels=(("source", source),))

    gauges = loaded("e0", 2.0), loaded("e1", 2.0), loaded("e2", 5.0), loaded("e0", 90.0, "disk")
    found = weights.generator_weight_load_seconds.compute(view(*pages, *gauges))
    assert values(found) == {"median": 2.0, "max": 5.0}
    assert [one.why for one in found] == ["", "e2, 2.5 times the median"]  # type: ignore[union-attr]
    assert ask(weights.generator_weight_load_seconds, gauges[-1]) == {"median": 90.0, "max": 90.0}
    assert "within 5 minutes" in why(weights.generator_weight_load_seconds.compute(view(call("update_weights", 5, 5))))
    assert "no engine reports" in why(weights.generator_weight_load_seconds.compute(view()))


def test_weight_updates_by_the_engines_own_histogram_come_first() -> None:
    found = Histograms()
    for operation, seconds in (("start", 0.5), ("update", 8.0), ("finish", 1.5), ("init", 60.0)):
        labels = (("operation", operation),)
        pages = (((0, 1), 1.0), ((0, 3), 1.0 + seconds))
        histogram(found, "generator_weight_update_seconds", (0.01,), *pages, labels=labels)
    calls = [call("update_weights", 5, 105)]
    assert ask(weights.generator_weight_updates, *calls, histograms=found) == {"min": 2.0, "mean": 2.0, "max": 2.0}
    assert ask(weights.generator_weight_stall_seconds, histograms=found)["mean"] == pytest.approx(10.0)
    assert ask(weights.generator_weight_load_seconds, histograms=found)["max"] == pytest.approx(5.0)


def test_the_time_of_a_pause_counts_until_the_page_that_ends_it() -> None:
    """Two pauses of 10 and 15 s, of which the calls themselves took 0.5 s; of two replicas the longest counts."""
    flags = [*[0.0] * 40, 1, 1, *[0.0] * 10, 1, 1, 1, *[0.0] * 6]
    short = [*[0.0] * 50, 1, *[0.0] * 10]
    paused = gauge("generator_paused", *flags)
    other = gauge("generator_paused", *short, labels=(("replica", "b"),))
    calls = call("pause", 1, 1.5, metric="seconds")
    assert ask(weights.generator_weight_stall_seconds, paused, other, calls)["max"] == pytest.approx(25.0)
    # One that goes on counts up to now; what was before the window does not.
    now_on = gauge("generator_paused", *[1.0] * 3, *[0.0] * 60, *[1.0] * 4)
    assert ask(weights.generator_weight_stall_seconds, now_on)["max"] == pytest.approx(15.0)
    # Weights that took longer than the pause around them count whole; one that never paused is not known to stall.
    slow = call("update_weights", 0, 40, metric="seconds")
    assert ask(weights.generator_weight_stall_seconds, paused, slow)["max"] == pytest.approx(40.0)
    never = gauge("generator_paused", *[0.0] * WINDOW)
    assert "no engine counts" in why(weights.generator_weight_stall_seconds.compute(view(never)))


def test_calls_that_may_be_anything_count_nothing() -> None:
    """TRL and OpenRLHF load weights by /collective_rpc, and do other things by it."""
    calls = call("collective_rpc", 1, 90, metric="seconds")
    assert "no engine counts" in why(weights.generator_weight_stall_seconds.compute(view(calls)))


def test_calls_that_were_never_made_count_nothing() -> None:
    assert "no engine counts" in why(weights.generator_weight_updates.compute(view(call("pause", 3, 4))))
    assert "no engine counts" in why(weights.generator_weight_stall_seconds.compute(view()))
