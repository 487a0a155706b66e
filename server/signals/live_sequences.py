"""How long the running sequences are, and how many of them the KV caches hold at that length."""

from collections.abc import Iterable
from dataclasses import dataclass

from server.signals.engine_state import Engine, awake
from server.signals.model import View

# Below it a few fresh prompts and the blocks' rounding decide what a "mean length" is.
LOWEST_USAGE = 0.05


@dataclass(frozen=True, slots=True)
class LiveSequences:
    """One engine's mean over five minutes: sequences running, their tokens (None: not reported), share of the cache."""

    engine: Engine
    running: float
    tokens: float | None
    usage: float | None
    capacity: float | None

    @property
    def judged(self) -> bool:
        """Whether the cache holds enough to derive the length of a sequence."""
        filled = self.usage is not None and self.usage >= LOWEST_USAGE
        return filled and self.running > 0 and bool(self.tokens)


def fleet(view: View) -> list[LiveSequences]:
    """Engines that are awake and report their running requests."""
    found: list[LiveSequences] = view.once("live", _fleet)
    return found


def _fleet(view: View) -> list[LiveSequences]:
    found = (_live(engine, view) for engine in awake(view))
    return [one for one in found if one is not None]


def length(engines: Iterable[LiveSequences]) -> float | None:
    """Mean tokens of a running sequence, prompt and answer so far: a ratio of sums."""
    told = [(one.tokens, one.running) for one in engines if one.tokens is not None]
    running = sum(count for _, count in told)
    return sum(tokens for tokens, _ in told) / running if running > 0 else None


def _live(engine: Engine, view: View) -> LiveSequences | None:
    def mean(metric: str) -> float | None:
        return engine.mean(metric, view)

    running, usage, capacity = mean("generator_requests_running"), mean("kv_cache_usage_ratio"), _capacity(engine)
    if running is None:
        return None
    by_usage = usage * capacity if usage is not None and capacity is not None else None
    # The engine's sum of lengths has precedence, because its cache counts a shared prompt once. A sum of 0 is not
    # reported: SGLang's sum is 0 until the first decode log.
    told = (mean("live_sequence_tokens"), mean("kv_cache_used_tokens"), by_usage)
    tokens = next((one for one in told if one), None if running else 0.0)
    if usage is None and tokens is not None and capacity:
        usage = tokens / capacity
    return LiveSequences(engine, running, tokens, usage, capacity)


def _capacity(engine: Engine) -> float | None:
    """Tokens the cache holds. Full-length sequences times their length is right with several pools, blocks are not."""

    def last(metric: str) -> float | None:
        gauge = engine.series.get(metric)
        return gauge.last if gauge is not None else None

    sequences, longest = last("kv_concurrency_limit"), last("generator_max_sequence_tokens")
    return sequences * longest if sequences and longest else last("kv_cache_capacity_tokens")
