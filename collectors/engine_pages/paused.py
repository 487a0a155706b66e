"""Is generation paused? No engine has a metric for it; its HTTP server counts the calls that begin and end a pause.

More pauses than resumes, and no token since: paused. A caller may pause twice and resume once, so the difference at
which tokens were last seen to move counts as even. The engine's own answer (vLLM's /is_paused) stands above the count.

Does not know: pauses made from Python inside the engine's process (verl, Ray), which no page shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collectors.engine_pages import side_requests
from collectors.model import Labels, Reading, Sample, State

METRIC = "generator_paused"
# Once is none: the step that a pause let end, and what came between a page and the pause, show on the page after it.
PROOF = 2


@dataclass(frozen=True, slots=True)
class _Seen:
    """One HTTP server's last page. ``balance``: pauses less resumes, None where neither was ever called.

    ``moves``: pages in a row on which tokens had grown and the balance had not changed.
    """

    pauses: float
    balance: float | None
    tokens: float
    even: float = 0.0
    answer: bool | None = None
    moves: int = 0


def judged(reading: Reading, state: State) -> Reading:
    """The reading with `generator_paused` where the page, or an answer that still holds, tells it."""
    before: dict[Labels, _Seen] = state.get("paused", {})
    seen = {labels: _judge(now, before.get(labels)) for labels, now in _pages(reading)}
    state["paused"] = seen
    found = [(labels, _paused(one)) for labels, one in seen.items()]
    return _with(reading, {labels: paused for labels, paused in found if paused is not None})


def joined(page: Reading, side: Reading, state: State) -> Reading:
    """A judged page, and what was told beside it."""
    if side is side_requests.NOTHING:
        return page
    answers = [bool(sample.value) for sample in side.samples if sample.metric == METRIC]
    rest = replace(side, samples=tuple(sample for sample in side.samples if sample.metric != METRIC))
    return side_requests.joined(_answered(page, state, answers[0]) if answers else page, rest)


def _answered(reading: Reading, state: State, paused: bool) -> Reading:
    """The server's own word: it stands until tokens prove otherwise, and the calls are counted from it."""
    seen: dict[Labels, _Seen] = state["paused"]
    known = seen[()]
    even = known.even if known.balance is None else known.balance - paused
    seen[()] = replace(known, even=even, answer=paused, moves=0)
    return _with(reading, {(): paused})


def _judge(now: _Seen, before: _Seen | None) -> _Seen:
    if before is None or now.pauses < before.pauses or now.tokens < before.tokens:
        return now  # first sight, or another process
    moves = before.moves + 1 if now.tokens > before.tokens and now.balance == before.balance else 0
    if moves < PROOF:
        return replace(now, even=before.even, answer=before.answer, moves=moves)
    answer = None if before.answer is None else False
    return replace(now, even=before.even if now.balance is None else now.balance, answer=answer, moves=moves)


def _paused(one: _Seen) -> bool | None:
    return one.balance > one.even if one.balance is not None else one.answer


def _pages(reading: Reading) -> Iterator[tuple[Labels, _Seen]]:
    """One entry per HTTP server on the page (a router's merged page holds several)."""
    calls: dict[Labels, dict[str, float]] = {(): {}}
    tokens: dict[Labels, float] = {}
    for sample in reading.samples:
        if sample.metric == "generator_control_requests_total":
            calls.setdefault(_replica(sample), {})[dict(sample.labels)["call"]] = sample.value
        elif sample.metric == "generator_tokens_total":
            tokens[_replica(sample)] = tokens.get(_replica(sample), 0.0) + sample.value
    for replica, counts in calls.items():
        pauses, resumes = counts.get("pause", 0.0), counts.get("resume", 0.0)
        balance = pauses - resumes if {"pause", "resume"} & counts.keys() else None
        yield replica, _Seen(pauses, balance, tokens.get(replica, 0.0))


def _replica(sample: Sample) -> Labels:
    return tuple(pair for pair in sample.labels if pair[0] == "replica")


def _with(reading: Reading, paused: dict[Labels, bool]) -> Reading:
    if not paused:
        return reading
    kept = tuple(s for s in reading.samples if s.metric != METRIC or s.labels not in paused)
    added = tuple(Sample(METRIC, float(value), labels) for labels, value in paused.items())
    return replace(reading, samples=kept + added)
