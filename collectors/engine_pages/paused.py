"""Derives whether generation is paused from the engine's HTTP counters: no engine has a metric for it.

The HTTP server counts the calls that start and end a pause. Generation is paused if there were more pauses than resumes
and no token since. A client may pause twice and resume once, so the difference at the last token progress is the
baseline. The engine's own answer (vLLM's /is_paused) has precedence over the counts.

Pauses from Python inside the engine's process (verl, Ray) are not detected, because no page shows them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collectors.engine_pages import side_requests
from collectors.model import Labels, Reading, Sample, State

METRIC = "generator_paused"
# Pages in a row with token progress that prove that generation runs. One page is not enough: it may still show tokens
# generated before the pause, or by the step that the pause let finish.
PROOF_PAGES = 2


@dataclass(frozen=True, slots=True)
class _Server:
    """State of one HTTP server at its last page.

    Attributes:
        balance: pauses minus resumes; None if neither was ever called.
        baseline: the balance at which generation runs.
        answer: the engine's last own answer.
        moves: pages in a row on which the tokens had increased and the balance had not changed.
    """

    pauses: float
    balance: float | None
    tokens: float
    baseline: float = 0.0
    answer: bool | None = None
    moves: int = 0


def with_paused(reading: Reading, state: State) -> Reading:
    """The reading with `generator_paused`, if the page or a valid earlier answer shows it."""
    previous: dict[Labels, _Server] = state.get("paused", {})
    servers = {labels: _updated(now, previous.get(labels)) for labels, now in _servers(reading)}
    state["paused"] = servers
    states = [(labels, _paused(server)) for labels, server in servers.items()]
    return _with(reading, {labels: paused for labels, paused in states if paused is not None})


def joined(page: Reading, side: Reading, state: State) -> Reading:
    """Combines a reading from `with_paused` and the reading of the side requests."""
    if side is side_requests.NOTHING:
        return page
    answers = [bool(sample.value) for sample in side.samples if sample.metric == METRIC]
    rest = replace(side, samples=tuple(sample for sample in side.samples if sample.metric != METRIC))
    return side_requests.joined(_answered(page, state, answers[0]) if answers else page, rest)


def _answered(reading: Reading, state: State, paused: bool) -> Reading:
    """Applies the server's own answer: valid until tokens prove otherwise, and the new baseline of the calls."""
    servers: dict[Labels, _Server] = state["paused"]
    server = servers[()]
    baseline = server.baseline if server.balance is None else server.balance - paused
    servers[()] = replace(server, baseline=baseline, answer=paused, moves=0)
    return _with(reading, {(): paused})


def _updated(now: _Server, before: _Server | None) -> _Server:
    if before is None or now.pauses < before.pauses or now.tokens < before.tokens:
        return now  # the first page, or another process
    moves = before.moves + 1 if now.tokens > before.tokens and now.balance == before.balance else 0
    if moves < PROOF_PAGES:
        return replace(now, baseline=before.baseline, answer=before.answer, moves=moves)
    answer = None if before.answer is None else False
    return replace(now, baseline=before.baseline if now.balance is None else now.balance, answer=answer, moves=moves)


def _paused(server: _Server) -> bool | None:
    return server.balance > server.baseline if server.balance is not None else server.answer


def _servers(reading: Reading) -> Iterator[tuple[Labels, _Server]]:
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
        yield replica, _Server(pauses, balance, tokens.get(replica, 0.0))


def _replica(sample: Sample) -> Labels:
    return tuple(pair for pair in sample.labels if pair[0] == "replica")


def _with(reading: Reading, paused: dict[Labels, bool]) -> Reading:
    if not paused:
        return reading
    others = tuple(s for s in reading.samples if s.metric != METRIC or s.labels not in paused)
    added = tuple(Sample(METRIC, float(value), labels) for labels, value in paused.items())
    return replace(reading, samples=others + added)
