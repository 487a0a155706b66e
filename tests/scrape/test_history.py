"""A long log: its end is shown first, and its history is there once, whatever dies."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from server.lib.clock import ScaledClock, loads
from server.query import Reader
from server.store import Store, Writer, migrate
from tests.driven_run import ENGINE, T0, TRAINER, bench, page, steps
from tests.killed import run_and_kill
from tests.scrape import history_child
from tests.scrape.history_child import NOW, STEPS, fill, loop_of, shrink, write_log

KILLS = 4


def content(url: str) -> dict[str, Any]:
    """What is stored of the run, by names and not by ids."""
    engine = create_engine(url)
    name = "s.metric || s.labels || s.axis"
    queries = {
        "points": f"SELECT {name}, p.ts, p.v, p.state FROM points p JOIN series s ON s.id = p.series",
        "latest": f"SELECT {name}, l.ts, l.v, l.state, l.why FROM latest l JOIN series s ON s.id = l.series",
        "counters": f"SELECT {name}, c.v FROM counters c JOIN series s ON s.id = c.series",
        "values": f"SELECT {name}, x.incarnation, x.step, x.v FROM step_values x JOIN series s ON s.id = x.series",
        "steps": "SELECT axis, incarnation, step, ts FROM steps",
        "verdicts": "SELECT ts, outcome, cause FROM verdicts",
    }
    with engine.connect() as connection:
        found = {what: sorted(map(tuple, connection.execute(text(sql)))) for what, sql in queries.items()}
    engine.dispose()
    return found


def read_whole(url: str, log: Path) -> dict[str, Any]:
    """The same log without a look ahead."""
    migrate(url)
    store = Store.open(url)
    writer = Writer(store)
    asyncio.run(loop_of(store, writer, str(log)).step(NOW, patient=True))
    writer.close()
    store.close()
    return content(url)


@pytest.fixture
def long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink(monkeypatch.setattr)
    return write_log(tmp_path)


def test_the_end_of_a_long_log_is_shown_before_its_history(store: Store, store_url: str, long_log: Path) -> None:
    writer, reader = Writer(store), Reader(store, ScaledClock(NOW))
    loop = loop_of(store, writer, str(long_log), late=True)

    async def attach() -> None:
        await loop.look_ahead(NOW)
        first = reader.status("run")
        now = {one.name: one for one in first.signals.values()}
        # The last ten steps: rewards 391 to 400, 12 s of each 30 s step are waiting.
        assert now['reward{stat="mean"}'].value == 395.5
        assert (now["policy_version"].value, now["trainer_wait_ratio"].value) == (400.0, 0.4)
        assert now["response_length_drift_ratio"].value is None
        assert "history is being read" in now["response_length_drift_ratio"].why
        assert first.state.name == "catching_up"
        assert first.verdict is not None and first.verdict.as_of == NOW - NOW % 5
        assert "nothing is collected" not in first.verdict.summary
        assert content(store_url)["points"] == []
        await loop.step(NOW)
        row = store.runs.get("run")
        assert row is not None
        behind = loads(row.catch_up)
        assert behind is not None
        assert behind.bytes_total == long_log.stat().st_size and 5_000 < (behind.bytes_read or 0) <= 9_000
        # One part of the history is derived: what is shown is still the present.
        assert {one.name: one for one in reader.status("run").signals.values()}['reward{stat="mean"}'].value == 395.5
        assert {step for _, _, step, _ in content(store_url)["steps"]} == set(range(1, (behind.steps_read or 0) + 1))
        await fill(loop)

    asyncio.run(attach())
    writer.close()
    whole = content(store_url)
    after = {one.name: one for one in reader.status("run").signals.values()}
    assert after['reward{stat="mean"}'].value == 395.5 and after["trainer_wait_seconds_total"].value == 12.0 * STEPS
    assert after["response_length_drift_ratio"].value is not None
    assert reader.status("run").state.name != "catching_up"
    plain = read_whole(f"sqlite:///{long_log.parent}/whole.db", long_log)
    for found in (whole, plain):
        found["latest"] = [row for row in found["latest"] if row[3] == 0]
    assert whole == plain


@pytest.mark.crash
def test_killed_while_history_is_read(store_url: str, long_log: Path) -> None:
    """Every step, point and total is there once, and equal to those of a process that was not killed."""
    rng = random.Random(4)
    for _ in range(KILLS):
        lines, spin = rng.randrange(1, 3), rng.randrange(2_000_000)
        run_and_kill(history_child.main, store_url, str(long_log), lines=lines, spin=spin)
    store = Store.open(store_url)
    writer = Writer(store)
    asyncio.run(fill(loop_of(store, writer, str(long_log))))
    writer.close()
    states = store.runs.states("run")
    store.close()
    assert states.get("history:latest", (1, "")) == (1, "")
    killed, whole = content(store_url), read_whole(f"sqlite:///{long_log.parent}/whole.db", long_log)
    for found in (killed, whole):
        # When a row was met is not stored, and what is unknown is asked again at a start.
        found["points"] = [row for row in found["points"] if not row[0].startswith("trainer_stall_ratio")]
        found["latest"] = [row for row in found["latest"] if row[3] == 0 and not row[0].startswith("trainer_stall")]
    assert killed == whole


# ---- at once, or as it happened

BY_STEP = ("trainer_wait_ratio", "trainer_step_seconds", "trainer_phase_seconds", "policy_version")

PART = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 6)),
    st.tuples(st.just("gap"), st.integers(1, 600)),
    st.tuples(st.just("restart"), st.integers(1, 5)),
    st.tuples(st.just("engine"), st.integers(1, 20)),
)


def _rows(parts: list[tuple[str, int]]) -> list[tuple[float, str, Any]]:
    """(time, target, reading) in order of time."""
    found: list[tuple[float, str, Any]] = []
    now, number, tokens = T0, 0, 0.0
    for what, count in parts:
        if what == "gap":
            now += count
        elif what == "restart":
            number = max(0, number - count)
        for _ in range(count if what in ("steps", "engine") else 0):
            if what == "steps":
                number, now = number + 1, now + 17.0
                row = steps(number, number, wait=number % 9, start=now - number * 30.0)
                found.append((now, "trainer", row))
            else:
                now, tokens = now + 5.0, tokens + 50.0
                found.append((now, "engine", page(count, tokens)))
    return found


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# An engine reports again only after a step that it was silent at.
@example(parts=[("engine", 2), ("engine", 1), ("steps", 5), ("engine", 1), ("steps", 1)], age=200_000.0)
@given(parts=st.lists(PART, min_size=1, max_size=8), age=st.sampled_from([0.0, 50_000.0, 200_000.0]))
def test_history_at_once_is_what_was_derived_as_it_happened(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, int]], age: float
) -> None:
    """Steps: the same points. Ticks: the same on the instants that a wider grid keeps."""
    rows = _rows(parts)
    if not rows:
        return
    found = []
    for at_once in (True, False):
        url = f"sqlite:///{tmp_path_factory.mktemp('history')}/store.db"
        migrate(url)
        store = Store.open(url)
        with bench(store) as run:
            tick, end = T0, rows[-1][0] + 60.0
            for ts, target, reading in rows:
                while not at_once and tick < ts:
                    run.driver.advance(tick)
                    tick += 5.0
                run.commit(TRAINER if target == "trainer" else ENGINE, reading, ts)
            for t in [end] if at_once else [tick + 5.0 * n for n in range(13) if tick + 5.0 * n <= end]:
                run.driver.advance(t, present=t + (age if at_once else 0.0))
        store.close()
        stored = content(url)
        # What a run without a tick says of itself at the end of a piece is on no grid, and no number.
        rows_of = [row for row in stored["points"] if row[0].startswith(BY_STEP) or (row[1] % 5_000, row[3]) == (0, 0)]
        # Both follow from the ticks before as well: when a row was met, and for how long a change held.
        rows_of = [row for row in rows_of if not row[0].startswith(("trainer_stall_ratio", "bottleneck"))]
        found.append({(name, ts): (value, state) for name, ts, value, state in rows_of})
        found[-1] |= {("counter", name): (value, 0) for name, value in stored["counters"] if "usd" not in name}
    whole, live = found
    assert {key: whole[key] for key in whole.keys() - live.keys()} == {}
    assert {key: (whole[key], live[key]) for key in whole if whole[key] != live[key]} == {}
    stepwise = {key for key in live if key[0].startswith((*BY_STEP, "counter"))}
    assert stepwise - whole.keys() == set()
