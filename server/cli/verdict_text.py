"""A verdict for a terminal: what an engineer on call needs first, then why, then what to do. No judgement here."""

from collections.abc import Iterator, Mapping
from typing import Any

# What the arithmetic is called, and how it is written; all of it is in the JSON.
_RATES = (
    ("trained", "trained_samples_per_second"),
    ("could take", "capacity_samples_per_second"),
    ("reach the queue", "arrivals_samples_per_second"),
)
_WAITS = (("reported", "reported_wait_ratio"), ("predicted from what arrives", "predicted_wait_ratio"))
_CONFIDENCE = ((0.75, "high"), (0.45, "medium"), (0.0, "low"))
_EVIDENCE, _SHARES = 8, 4


def named(outcome: str, cause: str | None) -> str:
    """``generator-bound (KV capacity)``."""
    words = outcome.replace("_bound", "-bound").replace("_", " ")
    return words + (f" ({cause.replace('_', ' ').replace('kv ', 'KV ')})" if cause else "")


def lines(verdict: Mapping[str, Any], now: float, lifecycle: str = "running") -> Iterator[str]:
    """The verdict in words, indented below its first line."""
    yield f"verdict: {_head(verdict, now, lifecycle)}"
    yield f"  {verdict['summary']}"
    yield from _listed("arithmetic", list(_arithmetic(verdict)))
    yield from _listed("evidence", [one["text"] for one in verdict.get("evidence", ())][:_EVIDENCE])
    contradictions = [one["text"] for one in verdict.get("contradictions", ())]
    yield from _listed("in doubt", [*verdict.get("disagreements", ()), *contradictions])
    if beyond := verdict.get("next"):
        yield f"  next limiter: {_limiter(beyond)}"
    if advice := verdict.get("advice"):
        yield f"  change first: {advice}"
    if (dollars := verdict.get("usd_per_hour")) is not None:
        lacks = verdict.get("usd_lacks")
        least, rest = ("at least ", f" (in part: {lacks})") if lacks else ("", "")
        yield f"  idle now: {least}{dollars:,.2f} USD an hour{rest}"
    yield from _listed("to be sure, log", list(verdict.get("missing", ())))


def _head(verdict: Mapping[str, Any], now: float, lifecycle: str) -> str:
    words = [named(str(verdict.get("outcome", "unknown")), verdict.get("cause"))]
    over, as_of = lifecycle in ("finished", "crashed"), verdict.get("as_of")
    if over and as_of is not None:
        words.append(f"as of its end {span(now - as_of)} ago")
    since = verdict.get("since")
    if since is not None:
        words.append(f"for {span((as_of if over and as_of is not None else now) - since)}")
    confidence = verdict.get("confidence") or 0.0
    if confidence > 0:
        word = next(word for least, word in _CONFIDENCE if confidence >= least)
        words.append(f"{word} confidence ({confidence:.2f})")
    return ", ".join(words)


def _arithmetic(verdict: Mapping[str, Any]) -> Iterator[str]:
    numbers = verdict.get("numbers", {})
    rates = [f"{word} {numbers[key]:.3g}" for word, key in _RATES if numbers.get(key) is not None]
    factor = numbers.get("gap_factor")
    gap = f": a factor of {factor:.2g}" if factor is not None and rates else ""
    if rates:
        yield f"samples/s: {', '.join(rates)}{gap}"
    waits = [f"{word} {numbers[key]:.0%}" for word, key in _WAITS if numbers.get(key) is not None]
    if waits:
        # A wait that only the framework tells is a claim.
        yield f"wait: {', '.join(waits)}" + ("" if len(waits) > 1 else " (not cross-checked)")
    shares = [(name, share) for name, share in verdict.get("shares", {}).items() if share >= 0.005][:_SHARES]
    if shares:
        told = (f"{named(*name.split('/', 1))} {share:.0%}" for name, share in shares)
        yield f"share of the gap: {', '.join(told)}"


def _limiter(one: Mapping[str, Any]) -> str:
    gain = f", worth {one['gain']:.2g}x" if one.get("gain", 1.0) > 1.0 else ""
    return f"{named(one['outcome'], one['cause'])}{gain}" + (f": {one['text']}" if one.get("text") else "")


def _listed(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield f"  {title}:"
        yield from (f"    - {row}" for row in rows)


def span(seconds: float) -> str:
    """As on the page: ``45 s``, ``12 min``, ``3 h 20 min``, ``4 d``."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{round(whole / 60)} min"
    hours, rest = divmod(whole, 3600)
    if whole >= 172_800:
        return f"{round(whole / 86_400)} d"
    return f"{hours} h" + (f" {rest // 60} min" if rest >= 60 else "")
