"""What a weight update consists of, as the sentence of the Trainer page."""

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from tests.dashboard import fake_actors as actors
from tests.dashboard.shown import shown


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
