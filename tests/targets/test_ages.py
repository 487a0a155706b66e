"""How old a number is: that of what still reports, not of what fell silent."""

import pytest

from collectors.model import Target
from server.query import SignalNow
from server.store import Store
from tests.targets.engine import engine
from tests.targets.following import Watched, following


def target(name: str, place: str, interval: float) -> Target:
    return Target(name, "run", "vllm", "generator", url=f"http://{place}", interval_seconds=interval)


def told(run: Watched, name: str = 'generator_requests_now{state="running"}') -> SignalNow:
    return run.reader.status("run").signals[name]


def test_a_fleet_is_known_while_one_of_its_engines_reports(kept: Store) -> None:
    with engine(running=30) as seldom, engine(running=4) as often:
        targets = [target("seldom", seldom.place, 60), target("often", often.place, 5)]
        with following(kept, targets=targets) as run:
            run.step()
            assert told(run).value == 34
            seldom.end()
            # 130 s later its 30 are carried (three of its reports are 180 s), and the others' age is a tick's.
            run.step(26)
            assert (told(run).value, told(run).age_seconds, told(run).state) == (34, 0, "ok")
            run.step(11)  # 185 s
            assert (told(run).value, told(run).age_seconds) == (4, 0)
            often.end()
            run.step(2)
            assert (told(run).value, told(run).age_seconds) == (4, 10)
            run.step(2)  # 20 s: three reports of 5 s are over, and so is the signal
            assert (told(run).value, told(run).state) == (None, "unknown")


def test_an_engine_that_is_read_every_minute_is_known_between_two_looks(kept: Store) -> None:
    with engine(running=3) as only, following(kept, targets=[target("only", only.place, 60)]) as run:
        run.step()
        only.end()
        run.step(20)
        assert (told(run).value, told(run).age_seconds) == (3, 100)
        # Nobody ticks any more: then nothing is known, whatever was carried.
        run.clock.set(run.now + 61)
        assert told(run).value is None
        assert told(run).why == "not collected for 61 s; the last value was 3 requests"


def test_what_remains_is_told_when_the_source_that_was_newest_has_fallen_silent(kept: Store) -> None:
    with engine(running=30) as seldom, engine(running=4) as often:
        targets = [target("seldom", seldom.place, 60), target("often", often.place, 5)]
        with following(kept, targets=targets) as run:
            run.step(3)
            often.end()
            run.step(5)  # its last sample is of 15 s, held until 30 s; the other's is of 5 s
            assert (told(run).value, told(run).age_seconds) == (30, 35)


@pytest.mark.parametrize(("options", "seconds"), [((), 180.0), ((("scrape_seconds", "15"),), 45.0)])
def test_a_prometheus_is_carried_by_its_own_interval(
    kept: Store, options: tuple[tuple[str, str], ...], seconds: float
) -> None:
    store = Target("prom", "run", "prometheus", "generator", url="http://127.0.0.1:1", options=options)
    with following(kept, targets=[store]) as run:
        assert run.loop.pipeline.driver.deriver._carry("prom") == seconds
