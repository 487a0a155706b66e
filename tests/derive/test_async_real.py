"""A recorded asynchronous run (TRL AsyncGRPO, 41 steps, a live vLLM with weight swaps): its verdict, explained.

What is known of it: step 0.97 s, wait 0.13 s of it over steps 6 to 41, staleness at its bound of 3, 8.9 samples dropped
as stale a step of 16. So 25 are made a step and 16 used: it is the trainer that is slow, and what it waits is what was
was dropped. Of its step a third is computing; most is what it does not name.
"""

import io
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import collectors
from collectors.model import Limits, Reading, Target
from server.query.types import VerdictSpan
from server.store import Store
from tests.driven_run import ENGINE, bench

DATA = Path(__file__).parents[1] / "testdata"
TRAINER = Target("trainer", "run", "trl", "trainer", path=str(DATA / "trl" / "async"))


@cache
def pages() -> tuple[tuple[float, bytes], ...]:
    """(time of the scrape, page), every two seconds."""
    with tarfile.open(DATA / "async_real" / "vllm.tar.xz") as archive:
        members = [member for member in archive if member.isfile()]
        found = [(member.name, archive.extractfile(member) or io.BytesIO()) for member in members]
        texts = [(re.search(r"_(\d{13})\.prom", name), body.read()) for name, body in found]
    return tuple(sorted((int(match[1]) / 1000, body) for match, body in texts if match))


def logged() -> Iterator[Reading]:
    """The trainer's log as it was while it ran: nothing yet tells its end."""
    trl, cursor = collectors.load()["trl"], dict[str, Any]()
    assert trl.tail is not None
    while True:
        reading = trl.tail(Path(TRAINER.path), cursor, Limits(), 0.0)
        if not reading.samples:
            return
        facts = {name: value for name, value in reading.facts.items() if not name.startswith("lifecycle")}
        yield structs.replace(reading, facts=facts)
        cursor = reading.cursor


def test_the_trainer_is_slow_and_its_wait_is_what_was_dropped(store: Store) -> None:
    vllm = collectors.load()["vllm"]
    assert vllm.parse is not None
    state: dict[str, Any] = {}
    with bench(store) as run:
        for reading in logged():
            run.commit(TRAINER, reading, pages()[0][0])
        for ts, body in pages():
            run.commit(ENGINE, vllm.parse(body, state, Limits()), ts)
            run.advance(ts)
        found = run.reader.status("run").verdict
        spans: list[VerdictSpan] = run.reader.verdicts.spans("run", 0.0, ts)
    assert found is not None
    assert (found.outcome, found.cause) == ("trainer_bound", "other")
    # Never anything else, but for the time before its third step.
    assert [(one.outcome, one.cause) for one in spans] == [("unknown", "starting"), ("trainer_bound", "other")]
    numbers: Any = found.numbers
    # Of the last ten steps: 13.6 trained, 18.4 could be; 48 were dropped, beside 160 that were trained: 48 of 208.
    assert numbers["trained_samples_per_second"] == pytest.approx(13.61, abs=0.01)
    assert numbers["capacity_samples_per_second"] == pytest.approx(18.44, abs=0.01)
    assert numbers["compute_capacity_samples_per_second"] == pytest.approx(50.0, abs=0.1)
    assert numbers["stale_drop_ratio"] == pytest.approx(48 / 208, abs=0.0005)
    assert numbers["in_flight_ratio"] == 1.0
    # It says it waits a quarter of the step; what arrives would leave 6 %.
    assert numbers["reported_wait_ratio"] == pytest.approx(0.262, abs=0.001)
    assert numbers["predicted_wait_ratio"] < 0.1
    assert "dropped as stale" in str(found.disagreements)
    texts = [one.text for one in found.evidence]
    assert any("23% of the samples were dropped as stale" in text for text in texts), texts
    # 208 samples in 11.8 s are 17.7 per second, and the queue grew by 6: 18.2 arrived, 13.6 were trained.
    shares: Any = found.shares
    assert max(shares, key=shares.get) == "trainer_bound/other" and shares["trainer_bound/other"] > 0.7
    assert not [name for name in shares if name.startswith("generator_bound")]
    assert found.summary.startswith("The trainer limits the run: 18.2 samples/s could arrive, 13.6 are trained")
    # A pause for weights preempts what runs; with a cache of 0.3 % that is no limiter.
    assert not any(one.cause == "preemption" for one in found.limiters)
