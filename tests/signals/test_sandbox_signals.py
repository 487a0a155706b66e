"""Signals of sandboxes whose numbers are worked out by hand: commands, quotas, failures."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Sandbox
from server.signals import sandbox_spinup, sandboxes
from server.signals.model import Answer, NotApplicable, Unknown
from server.signals.observed_histograms import Bucket, Histograms, quantile
from server.signals.sandbox_window import SandboxBook
from server.signals.window import Gauge
from tests.signals.support import NOW, gauge, histogram, view

EDGES = (0.1, 1.0, 5.0)


def values(answer: Answer) -> dict[tuple[str, ...], float]:
    assert not isinstance(answer, (Unknown, NotApplicable)), answer
    return {tuple(value for _, value in one.labels): one.value for one in answer}


Told = tuple[str, tuple[float, ...], tuple[Sequence[float], ...]]


def buckets(*readings: Sequence[float], target: str = "router", edges: tuple[float, ...] = EDGES) -> Told:
    """A histogram's cumulative readings, one every 5 s."""
    return target, edges, readings


def commands(*told: Told, **facts: float) -> Answer:
    found = Histograms()
    for target, edges, readings in told:
        histogram(found, "sandbox_exec_seconds", edges, *((counts, 0.0) for counts in readings), target=target)
    return sandboxes.sandbox_exec_seconds.compute(view(histograms=found, **facts))


def test_quantiles_of_what_came_within_the_window() -> None:
    """100 commands came since the first reading: 40 up to 0.1 s, 50 up to 1 s, 10 up to 5 s."""
    found = values(commands(buckets((900, 900, 900, 900), (940, 990, 1000, 1000))))
    # The 50th is the 10th of 50 between 0.1 and 1 s; the 95th is the 5th of 10 between 1 and 5 s.
    assert found == {("p50",): pytest.approx(0.28), ("p95",): pytest.approx(3.0)}


def test_a_restarted_source_counts_from_zero() -> None:
    found = values(commands(buckets((50, 90, 90, 90), (0, 10, 10, 10))))
    assert found[("p50",)] == pytest.approx(0.55)


def test_beyond_the_last_edge_it_is_at_least_that() -> None:
    assert values(commands(buckets((0, 0, 0, 0), (0, 0, 1, 10))))[("p95",)] == 5.0


def test_equal_layouts_add_up_and_the_fullest_layout_speaks() -> None:
    both = (
        buckets((0, 0, 0, 0), (10, 10, 10, 10)),
        buckets((0, 0, 0, 0), (0, 0, 10, 10), target="router-2"),
    )
    assert values(commands(*both))[("p50",)] == pytest.approx(0.1)
    other = buckets((0, 0), (0, 30), target="edge", edges=(60.0,))
    assert values(commands(*both, other))[("p50",)] == 60.0


def test_no_command_is_unknown_and_no_sandbox_not_applicable() -> None:
    assert isinstance(commands(), Unknown) and "router" in commands().why  # type: ignore[union-attr]
    assert commands(buckets((5, 5, 5, 5))) == Unknown("no command ended in a sandbox within 5 minutes")
    assert commands(buckets((5, 5, 5, 5), (5, 5, 5, 5))) == Unknown("no command ended in a sandbox within 5 minutes")
    assert isinstance(commands(has_sandbox=0.0), NotApplicable)


# ---- what is counted without any record of a single sandbox (OTLP of Modal, ROCK, Daytona; agent-sandbox's pages)


def test_containers_that_only_a_metric_counts() -> None:
    told = (
        gauge("sandboxes", 7.0, target="otlp", labels=(("state", "running"),)),
        gauge("sandboxes", 2.0, target="gateway", labels=(("state", "running"),)),
        gauge("sandboxes", 5.0, target="gateway", labels=(("state", "unknown"),)),
    )
    # Only what is told: nobody said that none is starting.
    assert values(sandboxes.sandboxes.compute(view(*told))) == {("running",): 9.0, ("unknown",): 5.0}
    assert isinstance(sandboxes.sandboxes.compute(view(*told, has_sandbox=0.0)), NotApplicable)
    assert isinstance(sandboxes.sandboxes.compute(view()), Unknown)
    # Where records are read they count, and count once.
    read = replace(view(*told), sandboxes=SandboxBook(heard={"prime": (NOW, 15.0)}))
    assert values(sandboxes.sandboxes.compute(read))[("running",)] == 0.0
    # A poll that is a minute later than the instant is no answer at that instant.
    history = replace(view(), sandboxes=SandboxBook(heard={"prime": (NOW + 60.0, 15.0)}))
    assert isinstance(sandboxes.sandboxes.compute(history), Unknown)


def test_spin_ups_that_only_a_histogram_times() -> None:
    """10 took up to 5 s, 10 up to 60 s, of them 4 and 8 with a cached image: medians at the edge, and by share."""
    found = Histograms()
    for image, counts in (("cached", (4.0, 12.0, 12.0)), ("built", (6.0, 8.0, 8.0))):
        readings = [([0.0, 0.0, 0.0], 0.0), (counts, 100.0)]
        histogram(found, "sandbox_spinup_seconds", (5.0, 60.0), *readings, labels=(("image", image),))
    told = values(sandbox_spinup.sandbox_spinup_latency_seconds.compute(view(histograms=found)))
    # All: the 19th of 20 is the 9th of 10 between 5 and 60 s. Cached: the 6th of 12 is the 2nd of 8 there.
    assert told[("all", "p95")] == pytest.approx(5 + 55 * 9 / 10)
    assert told[("cached", "p50")] == pytest.approx(5 + 55 * 2 / 8)
    assert ("built", "p50") not in told, "within the first bucket nothing but 'below 5 s' is known"
    assert not any(stat == "max" for _, stat in told)


@st.composite
def histograms(draw: st.DrawFn) -> list[Bucket]:
    edges = draw(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=8, unique=True))
    counts = draw(st.lists(st.integers(0, 50), min_size=len(edges) + 1, max_size=len(edges) + 1))
    counts[-1] += 1  # at least one observation
    total = 0
    found: list[Bucket] = []
    for edge, count in zip([*sorted(edges), math.inf], counts, strict=True):
        total += count
        found.append((edge, float(total)))
    return found


@given(histograms(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_quantile_is_finite_ordered_and_within_the_edges(found: list[Bucket], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= quantile(found, low) <= quantile(found, high) <= found[-2][0]


def test_quota_numbers_stand_by_account_and_resource() -> None:
    def quota(metric: str, what: str, value: float, who: str) -> Gauge:
        return gauge(metric, value, target=who, labels=(("resource", what),))

    used = [
        quota("sandbox_quota_used", "starting", 14, "prime"),
        quota("sandbox_quota_used", "starting", 3, "modal"),
        quota("sandbox_quota_used", "cpu", 0, "prime"),
    ]
    assert values(sandboxes.sandbox_quota_used.compute(view(*used))) == {
        ("cpu", "prime"): 0.0,
        ("starting", "modal"): 3.0,
        ("starting", "prime"): 14.0,
    }
    granted = quota("sandbox_quota_limit", "starting", 128, "prime")
    assert values(sandboxes.sandbox_quota_limit.compute(view(*used, granted))) == {("starting", "prime"): 128.0}
    assert isinstance(sandboxes.sandbox_quota_limit.compute(view(*used)), Unknown)
    assert isinstance(sandboxes.sandbox_quota_used.compute(view(has_sandbox=0.0)), NotApplicable)


def box(number: int, state: str, **times: float) -> Sandbox:
    return Sandbox("p", f"s{number}", state, **times)  # type: ignore[arg-type]


def share(*boxes: Sandbox, heard: bool = True) -> Answer:
    made = view()
    if heard:
        made.sandboxes.heard["p"] = (NOW, 15.0)
    for one in boxes:
        put(made.sandboxes, one)
    return sandboxes.sandbox_failure_ratio.compute(made)


def put(book: SandboxBook, one: Sandbox, own: bool = True) -> None:
    book.put(NOW, one, own=own, dangling=False, created=True, became_ready=False)


def test_failures_among_those_whose_fate_was_decided() -> None:
    """Three became ready, one of which then failed, and one failed at once: two of four."""
    found = share(
        box(1, "running", ready_at=NOW - 10),
        box(2, "running", ready_at=NOW - 20),
        box(3, "running", ready_at=NOW - 30),
        box(3, "failed", ready_at=NOW - 30, ended_at=NOW - 5),
        box(4, "failed", ended_at=NOW - 299),
        box(5, "failed", ended_at=NOW - 301),  # too long ago
        box(6, "starting"),  # still open
    )
    assert values(found) == {(): 0.5}


def test_an_end_is_no_failure_and_others_do_not_count() -> None:
    book_only_others = view()
    book_only_others.sandboxes.heard["p"] = (NOW, 15.0)
    put(book_only_others.sandboxes, box(1, "failed", ended_at=NOW), own=False)
    assert isinstance(sandboxes.sandbox_failure_ratio.compute(book_only_others), Unknown)
    assert values(share(box(1, "terminated", ready_at=NOW - 60, ended_at=NOW - 5))) == {(): 0.0}
    assert isinstance(share(), Unknown) and isinstance(share(heard=False), Unknown)


def test_refusals_by_cause() -> None:
    """Of 10 sandboxes 6 became ready; 2 met a rate limit, 1 a quota, 1 ran out of memory. One refusal is too old."""
    book = SandboxBook()
    causes = [None] * 6 + ["rate_limit", "rate_limit", "quota", "oom"]
    for number, cause in enumerate(causes):
        book.put(
            NOW - 60.0,
            Sandbox(
                "modal", str(number), state="failed" if cause else "running", cause=cause, requested_at=NOW - 90.0,
                ready_at=None if cause else NOW - 70.0, ended_at=NOW - 60.0 if cause else None,
            ),
            own=True, dangling=False, created=True, became_ready=cause is None,
        )  # fmt: skip
    assert book.decided(NOW) == (4, 10)
    assert book.refused(NOW) == {"rate_limit": 0.2, "quota": 0.1, "credit": 0.0, "capacity": 0.0}
    assert book.refused(NOW + 301.0) == {}
