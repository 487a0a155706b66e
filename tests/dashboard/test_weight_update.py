"""What a weight update consists of: from a recorded log, through its collector and the signals, to the sentence."""

import pytest
from msgspec import structs

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from server.store import Store
from tests.collectors.test_trl import ASYNC, tail
from tests.dashboard import fake_actors as actors
from tests.dashboard.shown import shown
from tests.driven_run import ON_SQLITE, TRAINER, bench

WRITTEN = 1_795_250_203.0


@ON_SQLITE
def test_the_parts_of_a_recorded_run(store: Store) -> None:
    with bench(store) as run:
        run.commit(structs.replace(TRAINER, collector="trl"), tail(ASYNC), WRITTEN)
        run.advance(WRITTEN + 5)
        page = by_key("trainer")
        assert page is not None
        found = shown(of_page(page, Scope(run.reader, "run")))
    # Means of the last ten steps: 80.4 ms = 37.8 + 0.06 + 37.3 + the rest, 5.2.
    values = [
        run.value(f'weight_sync_part_seconds{{part="{part}"}}') for part in ("pause", "barrier", "transfer", "other")
    ]
    assert values == pytest.approx([0.0377677, 0.0000607, 0.0373403, 0.0052337], abs=1e-6)
    assert found["head.weights.before"] == "0.08 s per step: pause 0.038 s, transfer 0.037 s, other 0.005 s"
    assert found["head.weights.text"].startswith("Unknown: engines' load (no engine reports")
    assert "GB/s (not reported by trl; this trainer does not report how many bytes" in found["head.weights.text"]
    assert [found[f"chart.tparts.{i}.text"] for i in range(4)] == ["0.038 s", "6.1e-05 s", "0.037 s", "0.005 s"]


def test_the_slowest_engine_and_a_lower_bound_of_the_bandwidth() -> None:
    reader = actors.reader(600)
    slowest = actors.one("generator_weight_load_seconds", "seconds", why="vllm-3, 2.5 times the median", stat="max")
    middle = actors.one("generator_weight_load_seconds", "seconds", stat="median")
    sent = actors.one("weight_sync_bandwidth", "GB/s", why="lower bound: over the whole weight sync")
    for signal, value in ((slowest, 5.0), (middle, 2.0), (sent, 3.0)):
        reader.append(actors.RUN, signal, [(actors.NOW, value)])
    page = by_key("trainer")
    assert page is not None
    found = shown(of_page(page, Scope(reader, actors.RUN)))
    assert found["head.weights.before"] == (
        "1.5 s per step; at least 3 GB/s; engines load it in 2 s (median); the slowest in 5 s "
        "(vllm-3, 2.5 times the median)"
    )
    # An engine that is as fast as the others is not named.
    reader.append(actors.RUN, slowest, [(actors.NOW + 1, 2.1)])
    assert shown(of_page(page, Scope(reader, actors.RUN)))["head.weights.before"].endswith(
        "engines load it in 2 s (median)"
    )
    bare = shown(of_page(page, Scope(reader, actors.BARE)))
    assert (bare["head.weights.before"], bare["head.weights.state"]) == ("Unknown", "unknown")
