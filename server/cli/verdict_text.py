"""A verdict for a terminal: what is slow and for how long, then the evidence, then the advice."""

from collections.abc import Iterator, Mapping
from typing import Any

# Label and key of each number; the JSON has all of them.
_RATES = (
    ("trained", "trained_samples_per_second"),
    ("capacity", "capacity_samples_per_second"),
    ("arrivals", "arrivals_samples_per_second"),
)
_WAITS = (("reported", "reported_wait_ratio"), ("predicted from arrivals", "predicted_wait_ratio"))
_CONFIDENCE = ((0.75, "high"), (0.45, "medium"), (0.0, "low"))
# Lines of each list.
_EVIDENCE = 8
_SHARES = 4
_BRIEF_EVIDENCE = 4
_BRIEF_MISSING = 3
# Share of a finished run's time below which a limiter is left out of its summary.
LEAST_SHARE = 0.05


def named(outcome: str, cause: str | None) -> str:
    """``generator-bound (KV capacity)``."""
    text = outcome.replace("_bound", "-bound").replace("_", " ")
    return text + (f" ({cause.replace('_', ' ').replace('kv ', 'KV ')})" if cause else "")


def lines(verdict: Mapping[str, Any], now: float, lifecycle: str = "running") -> Iterator[str]:
    """The verdict in words, indented below its first line."""
    yield f"verdict: {_head(verdict, now, lifecycle)}"
    yield f"  {verdict['summary']}"
    yield from _listed("arithmetic", list(_arithmetic(verdict)))
    yield from _listed("evidence", [item["text"] for item in verdict.get("evidence", ())][:_EVIDENCE])
    contradictions = [item["text"] for item in verdict.get("contradictions", ())]
    yield from _listed("in doubt", [*verdict.get("disagreements", ()), *contradictions])
    if beyond := verdict.get("next"):
        yield f"  next limiter: {_limiter(beyond)}"
    if advice := verdict.get("advice"):
        yield f"  change first: {advice}"
    yield from _idle(verdict)
    yield from _listed("for more confidence, log", list(verdict.get("missing", ())))


def brief(verdict: Mapping[str, Any], now: float, lifecycle: str = "running") -> Iterator[str]:
    """The verdict, its main evidence and the advice, for the short status."""
    yield f"verdict: {_head(verdict, now, lifecycle)}"
    yield f"  {verdict['summary']}"
    yield from (f"    - {item['text']}" for item in verdict.get("evidence", ())[:_BRIEF_EVIDENCE])
    if verdict.get("outcome") == "unknown" and (missing := verdict.get("missing")):
        more = [f"and {len(missing) - _BRIEF_MISSING} more"] if len(missing) > _BRIEF_MISSING else []
        yield from _listed("to find it, log", [*missing[:_BRIEF_MISSING], *more])
    if advice := verdict.get("advice"):
        yield f"  change first: {advice}"
    yield from _idle(verdict)


def ended(summary: Mapping[str, Any]) -> Iterator[str]:
    """A finished run in one line: steps, time, reward, what limited it for how much of its time, and dollars."""
    steps, seconds, reward = summary.get("steps"), summary.get("seconds"), summary.get("reward")
    figures = [f"{steps:,} steps"] if steps is not None else []
    figures += [f"in {span(seconds)}"] if seconds is not None else []
    parts = [" ".join(figures)] if figures else []
    parts += [f"final reward {reward:.4g}"] if reward is not None else []
    limiters = summary.get("limiters") or {}
    total = sum(limiters.values())
    shares = sorted(((seconds / total, name) for name, seconds in limiters.items()), reverse=True) if total else []
    parts += [f"{named(name, None)} {share:.0%}" for share, name in shares if share >= LEAST_SHARE]
    if (dollars := summary.get("usd")) is not None:
        idle = summary.get("idle_usd")
        parts.append(
            f"${dollars:,.2f} at its mean hourly rate" + ("" if idle is None else f", ${idle:,.2f} of it idle")
        )
    if parts:
        yield f"summary: {', '.join(parts)}"


def _idle(verdict: Mapping[str, Any]) -> Iterator[str]:
    if (dollars := verdict.get("usd_per_hour")) is not None:
        missing = verdict.get("usd_lacks")
        at_least, reason = ("at least ", f" (incomplete: {missing})") if missing else ("", "")
        yield f"  idle now: {at_least}${dollars:,.2f}/h{reason}"


def _head(verdict: Mapping[str, Any], now: float, lifecycle: str) -> str:
    parts = [named(str(verdict.get("outcome", "unknown")), verdict.get("cause"))]
    over, as_of = lifecycle in ("finished", "crashed"), verdict.get("as_of")
    if over and as_of is not None:
        parts.append(f"as of its end {span(now - as_of)} ago")
    since = verdict.get("since")
    if since is not None:
        parts.append(f"for {span((as_of if over and as_of is not None else now) - since)}")
    confidence = verdict.get("confidence") or 0.0
    if confidence > 0:
        label = next(label for least, label in _CONFIDENCE if confidence >= least)
        parts.append(f"{label} confidence ({confidence:.2f})")
    return ", ".join(parts)


def _arithmetic(verdict: Mapping[str, Any]) -> Iterator[str]:
    numbers = verdict.get("numbers", {})
    rates = [f"{label} {numbers[key]:.3g}" for label, key in _RATES if numbers.get(key) is not None]
    factor = numbers.get("gap_factor")
    gap = f"; the gap is a factor of {factor:.2g}" if factor is not None and rates else ""
    if rates:
        yield f"samples/s: {', '.join(rates)}{gap}"
    waits = [f"{label} {numbers[key]:.0%}" for label, key in _WAITS if numbers.get(key) is not None]
    if waits:
        # Only one source: the framework's own number is not confirmed by a prediction.
        yield f"wait: {', '.join(waits)}" + ("" if len(waits) > 1 else " (not cross-checked)")
    shares = [(name, share) for name, share in verdict.get("shares", {}).items() if share >= 0.005][:_SHARES]
    if shares:
        texts = (f"{named(*name.split('/', 1))} {share:.0%}" for name, share in shares)
        yield f"share of the gap: {', '.join(texts)}"


def _limiter(limiter: Mapping[str, Any]) -> str:
    gain = f", worth {limiter['gain']:.2g}x" if limiter.get("gain", 1.0) > 1.0 else ""
    text = f": {limiter['text']}" if limiter.get("text") else ""
    return f"{named(limiter['outcome'], limiter['cause'])}{gain}{text}"


def _listed(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield f"  {title}:"
        yield from (f"    - {row}" for row in rows)


def span(seconds: float) -> str:
    """A duration as the dashboard shows it: ``45 s``, ``12 min``, ``3 h 20 min``, ``4 d``."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{round(whole / 60)} min"
    hours, rest = divmod(whole, 3600)
    if whole >= 172_800:
        return f"{round(whole / 86_400)} d"
    return f"{hours} h" + (f" {rest // 60} min" if rest >= 60 else "")
