"""An engine that restarts, moves, vanishes or misbehaves while it is watched: its line breaks, its counters go on.

Tokens by hand: 100 at first (the base), 150 before the trouble, 400 after it: 300 in all, whatever the trouble was.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.model import Target
from server.store import Store
from tests.targets.engine import Engine, engine
from tests.targets.following import HASTY, LIMITS, Watched, by_file, following, write


@pytest.fixture
def one() -> Iterator[Engine]:
    with engine(running=3, tokens=100) as found:
        yield found


def target(engine: Engine) -> Target:
    return Target("one", "run", "vllm", "generator", url=f"http://{engine.place}")


def begin(run: Watched, one: Engine) -> None:
    run.step()
    one.tokens = 150
    run.step()
    assert (run.running, run.tokens) == (3, 50)


TROUBLE = {
    "error": "HTTP 500",
    "hang": "no complete answer within 0.2 s",
    "half": "the server closed the connection before its answer was complete",
    "redirect": "HTTP 302: redirects are not followed; configure the final URL",
}


@pytest.mark.parametrize("how", TROUBLE)
def test_trouble_breaks_the_line_and_loses_no_count(kept: Store, one: Engine, how: str) -> None:
    with following(kept, targets=[target(one)]) as run:
        begin(run, one)
        one.how = how
        if how == "hang":
            run.loop.readers[0].limits = HASTY
        run.step()
        row = run.targets()["one"]
        assert not row.up and row.error.startswith(TROUBLE[how])
        assert run.running == 3, "one missed page is carried"
        run.step(3)
        assert run.seen() == (None, 50)
        one.how, one.tokens = "ok", 400
        one.let_go.set()
        run.loop.readers[0].limits = LIMITS
        run.step(3)
        assert (run.seen(), run.targets()["one"].error) == ((3, 300), "")


def test_gzip_that_nobody_asked_for_is_read(kept: Store, one: Engine) -> None:
    with following(kept, targets=[target(one)]) as run:
        begin(run, one)
        one.how, one.tokens = "gzip", 400
        run.step()
        assert (run.seen(), run.targets()["one"].error) == ((3, 300), "")
        assert one.asked[-1]["accept-encoding"] == "identity"


def test_a_restart_at_the_same_place_counts_from_zero(kept: Store) -> None:
    with engine(running=3, tokens=100) as before, following(kept, targets=[target(before)]) as run:
        begin(run, before)
        port = before.port
        before.end()
        run.step(4)
        row = run.targets()["one"]
        assert (row.up, row.error.startswith("connection refused: "), run.running) == (False, True, None)
        with engine(port, running=3, tokens=30):
            run.step(3)
            assert (run.running, run.tokens, run.up()) == (3, 80, {"one": True})


def test_a_restart_between_two_pages_is_seen_by_its_counters_alone(kept: Store) -> None:
    with engine(running=3, tokens=100) as before, following(kept, targets=[target(before)]) as run:
        begin(run, before)
        port = before.port
        before.end()
        with engine(port, running=3, tokens=30):
            run.step()
            # 30 tokens since it began: no more are known, and none is taken away.
            assert (run.running, run.tokens, run.up()) == (3, 80, {"one": True})


def test_the_same_instance_at_another_port_is_the_same_target(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=3, tokens=100) as before, following(kept, by_file(listed)) as run:
        write(listed, before.place, job="rollout", instance="node-7")
        begin(run, before)
        with engine(running=3, tokens=20) as after:
            write(listed, after.place, job="rollout", instance="node-7")
            run.step(2)
            assert (run.up(), run.seen()) == ({"rollout/node-7": True}, (3, 70))
            assert run.targets()["rollout/node-7"].gone_since is None


def test_a_move_to_where_nobody_answers_yet_is_a_target_that_is_down(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine() as later:
        pass
    with engine(running=3, tokens=100) as before, following(kept, by_file(listed)) as run:
        write(listed, before.place, job="rollout", instance="node-7")
        begin(run, before)
        write(listed, later.place, job="rollout", instance="node-7")
        run.step(4)
        assert run.up() == {"rollout/node-7": False}, "the old place is not read on"
        row = run.targets()["rollout/node-7"]
        assert row.kind == "vllm" and row.error.startswith("connection refused: ") and run.seen() == (None, 50)
        with engine(later.port, running=3, tokens=20):
            run.step(5)
            assert (run.up(), run.seen()) == ({"rollout/node-7": True}, (3, 70))


def test_an_engine_of_another_kind_at_the_same_place_is_read_as_what_it_is(kept: Store, tmp_path: Path) -> None:
    """Until it was asked it is taken for what it was."""
    listed = tmp_path / "engines.json"
    page = (Path(__file__).parent.parent / "testdata/sglang").glob("*/*.prom")
    body = next(iter(sorted(page))).read_bytes()
    with engine(running=3, tokens=100) as before, following(kept, by_file(listed)) as run:
        write(listed, before.place, job="rollout", instance="node-7")
        begin(run, before)
        with engine() as after:
            after.body = body
            write(listed, after.place, job="rollout", instance="node-7")
            run.step(3)
            row = run.targets()["rollout/node-7"]
            assert (row.kind, row.up, row.error) == ("sglang", True, "")
