"""The spool, and the agent that reads into it and sends from it. Real files, a server that is told what to answer."""

import asyncio
import gzip
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.model import Target
from server.cli.attaching import spool_name
from server.lib.errors import ConfigError
from server.main import main
from server.push import inbox as readings
from server.runtime import forwarder
from server.runtime.forwarder import Forwarder
from server.runtime.spool import Spool
from server.targets.model import RunSettings, TargetSettings
from server.targets.pending import PendingSources
from server.targets.resolve import attach

NFS = "36 35 98:0 / / rw,noatime - nfs4 server:/home rw\n"


def target(path: Path, name: str = "out") -> Target:
    return Target(name, "run", "prime_rl", "trainer", path=str(path))


ENGINE = Target("engine", "run", "vllm", "generator", url="http://127.0.0.1:1")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool/run.db")
    yield opened
    opened.close()


def bodies(spool: Spool, name: str = "out") -> list[bytes]:
    found = []
    while (one := spool.first(name)) is not None:
        found.append(one.body)
        spool.done(one)
    return found


# ---- the spool


def test_what_was_kept_is_there_after_a_start(tmp_path: Path) -> None:
    path, out = tmp_path / "run.db", target(tmp_path)
    spool = Spool(path)
    agent = spool.agent
    spool.put(out, [b"one", b"two"], {"row": 2})
    spool.put(ENGINE, [b"page"], None)
    spool.close()
    spool = Spool(path)
    assert (spool.agent, spool.rows, spool.targets()) == (agent, 3, ["engine", "out"])
    assert (spool.cursor(out), spool.cursor(ENGINE)) == ({"row": 2}, {})
    first = spool.first("out")
    assert first is not None and (first.seq, first.body, first.behind) == (1, b"one", 1)
    assert (first.kind, first.actor, first.interval_seconds) == ("prime_rl", "trainer", 5.0)
    assert bodies(spool) == [b"one", b"two"] and spool.rows == 1
    assert os.stat(path).st_mode & 0o777 == 0o600
    spool.close()


def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    """Not even when everything before it was sent: the server would take the next for a repeat."""
    for expected in (1, 2, 3):
        spool = Spool(tmp_path / "run.db")
        spool.put(ENGINE, [b"x"], None)
        first = spool.first("engine")
        assert first is not None and first.seq == expected
        spool.done(first)
        spool.close()


def test_a_place_is_a_sources_own(spool: Spool, tmp_path: Path) -> None:
    spool.put(target(tmp_path / "a"), [b"x"], {"row": 9})
    assert spool.cursor(target(tmp_path / "b")) == {}


def test_reading_and_place_are_kept_together_or_not_at_all(spool: Spool, tmp_path: Path) -> None:
    spool.put(target(tmp_path), [b"x"], {"row": 1})
    with pytest.raises(sqlite3.Error):
        spool.put(target(tmp_path), [b"y", object()], {"row": 2})  # type: ignore[list-item]
    assert spool.cursor(target(tmp_path)) == {"row": 1} and spool.rows == 1
    spool.put(target(tmp_path), [b"z"], {"row": 3})
    assert bodies(spool) == [b"x", b"z"]


def test_a_full_spool_says_so_until_a_tenth_is_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run.db", limit=10_000)
    spool.put(ENGINE, [bytes(800)] * 9, None)  # 9 x (800 + 200)
    assert not spool.full
    spool.put(ENGINE, [bytes(800)], None)
    assert spool.full
    spool.done(spool.first("engine"))
    assert spool.full, "9,000 bytes are not yet less than nine tenths"
    spool.done(spool.first("engine"))
    assert not spool.full
    spool.close()


def test_one_process_holds_it(spool: Spool) -> None:
    with pytest.raises(ConfigError, match="is in use: another process forwards this run"):
        Spool(spool.path)


def test_no_spool_on_a_network_file_system(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="network file system: name a local --spool DIR"):
        Spool(tmp_path / "run.db", mountinfo=NFS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("held", [b"no database at all, but long enough to be read as one" * 40])
def test_a_damaged_spool_is_refused_with_its_name(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "run.db").write_bytes(held)
    with pytest.raises(ConfigError, match=r"run\.db: file is not a database"):
        Spool(tmp_path / "run.db")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(st.lists(st.sampled_from(["put", "send", "lost", "kill"]), max_size=30), st.data())
def test_whatever_dies_each_reading_is_taken_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, acts: Sequence[str], data: st.DataObject
) -> None:
    """Against the server's rule: of a target, only a number beyond the last counts. ``lost``: its answer was."""
    path, names = tmp_path_factory.mktemp("spool") / "run.db", ["a", "b"]
    spool, told, newest = Spool(path), {name: 0 for name in names}, {name: 0 for name in names}
    taken: dict[str, list[int]] = {name: [] for name in names}
    for act in [*acts, *["send"] * 60]:
        name = data.draw(st.sampled_from(names)) if act != "send" else names[sum(map(len, taken.values())) % 2]
        name = name if act == "put" or spool.first(name) else names[1 - names.index(name)]
        one = Target(name, "run", "prime_rl", "trainer", path=f"/{name}")
        if act == "put":
            told[name] = int(spool.cursor(one).get("row", 0)) + 1
            spool.put(one, [str(told[name]).encode()], {"row": told[name]})
        elif act == "kill":
            spool.close()
            spool = Spool(path)
        elif (body := spool.first(name)) is not None:
            if body.seq > newest[name]:
                newest[name] = body.seq
                taken[name].append(int(body.body))
            if act == "send":
                spool.done(body)
    spool.close()
    assert taken == {name: list(range(1, told[name] + 1)) for name in names}


# ---- the agent


class Server:
    """Answers by a list of statuses, then 200; keeps what it took."""

    def __init__(self, *answers: int | Exception | httpx.Response) -> None:
        self.answers, self.taken, self.asked = list(answers), [], 0  # type: ignore[var-annotated]
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._take), base_url="http://server:8050/base")

    def _take(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        assert request.url.path == "/base/api/v1/readings"
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        query = dict(request.url.params)
        if answer == 200:
            self.taken.append((query, readings.read(gzip.decompress(request.content))))
            return httpx.Response(200, json={"seq": int(query["seq"]), "repeated": False})
        return httpx.Response(answer, json={"detail": "for a reason"})

    def steps(self) -> list[int]:
        """Steps taken, in order."""
        found = [one for _, outcome in self.taken if outcome.reading for one in outcome.reading.samples]
        return [one.step for one in found if one.metric == "reward_mean"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    (folder / "orchestrator").mkdir(parents=True)
    write(folder, 1, 2, 3)
    return folder


def write(folder: Path, *steps: int) -> None:
    """Rows as prime-rl's orchestrator writes them."""
    with (folder / "orchestrator/metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in steps:
            row = {"step": step, "time": 1.8e9 + step, "train/agg/all/reward/mean": 0.5, "time/step": 30.0}
            file.write(json.dumps(row) + "\n")


def agent(
    spool: Spool,
    server: Server,
    targets: Sequence[Target],
    until: Callable[[], bool],
    look: forwarder.Look | None = None,
) -> Forwarder:
    """Run it until something holds, at most for 500 turns of 20 ms."""
    made = Forwarder("run", targets, spool, server.client, lambda: 1.8e9, backoff=0.01, look=look, look_seconds=0.01)

    async def scene() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(made.run(stop))
        for _ in range(500):
            if until() or running.done():
                break
            await asyncio.sleep(0.02)
        stop.set()
        await running
        await server.client.aclose()

    asyncio.run(scene())
    return made


def test_a_file_is_read_and_told_with_its_place(spool: Spool, run_dir: Path) -> None:
    server = Server()
    agent(spool, server, [target(run_dir)], lambda: bool(server.taken))
    assert server.steps() == [1, 2, 3]
    query = server.taken[0][0]
    assert {key: query[key] for key in ("run", "target", "kind", "actor", "interval", "seq", "behind")} == {
        "run": "run", "target": "out", "kind": "prime_rl", "actor": "trainer", "interval": "5.0", "seq": "1",
        "behind": "0",
    }  # fmt: skip
    assert query["agent"] == spool.agent and spool.rows == 0
    write(run_dir, 4)
    again = Server()
    agent(spool, again, [target(run_dir)], lambda: bool(again.taken))
    assert again.steps() == [4]


def test_a_source_that_exists_later_holds_no_other_back(spool: Spool, run_dir: Path) -> None:
    server, later = Server(), run_dir.parent / "later"
    named = RunSettings("run", (TargetSettings(str(run_dir)), TargetSettings(str(later))))
    attached = attach(named, wait=True)
    assert [one.name for one in attached.targets] == ["my-run"]
    pending, clock = PendingSources(attached.awaited, attach, (), ["my-run"]), count(1_800_000_000, 60)

    async def look(taken: Collection[str]) -> Sequence[Target]:
        if server.steps() == [1, 2, 3] and not later.exists():
            # The first source is forwarded before the second exists.
            (later / "orchestrator").mkdir(parents=True)
            write(later, 7, 8)
        return (await pending.look(next(clock), taken)).targets

    agent(spool, server, attached.targets, lambda: len(server.steps()) == 5, look)
    assert server.steps() == [1, 2, 3, 7, 8]
    assert [query["target"] for query, outcome in server.taken if outcome.reading and outcome.reading.samples] == [
        "my-run",
        "later",
    ]


def test_an_error_is_told_too(spool: Spool) -> None:
    server = Server()
    agent(spool, server, [ENGINE], lambda: bool(server.taken))
    (_, outcome), *_ = server.taken
    assert outcome.reading is None and outcome.error.kind == "unreachable"


@pytest.mark.parametrize("answer", [429, 500, 503, 302, httpx.ConnectError("no"), httpx.ReadTimeout("no")])
def test_what_is_not_taken_comes_again(
    spool: Spool,
    run_dir: Path,
    answer: int | Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(forwarder, "REFUSED_SECONDS", 0.01)
    server = Server(answer, answer, answer)
    with caplog.at_level(logging.INFO, logger="rollscope"):
        agent(spool, server, [target(run_dir)], lambda: bool(server.taken))
    assert server.steps() == [1, 2, 3] and spool.rows == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "rollscope.forward"]
    assert len(lines) == 2 and "nothing is lost" in lines[0] and lines[1] == "the server accepts readings again"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (401, "refuses with 401: for a reason; set ROLLSCOPE_TOKEN or --token-file"),
        (404, "refuses with 404: for a reason; is this the server's URL"),
        (409, "refuses with 409: for a reason"),
        (httpx.Response(200, text="<html>"), "the answer is not from a Rollscope server"),
        (httpx.Response(200, json={"seq": 99}), "the answer is not from a Rollscope server"),
    ],
)
def test_what_is_refused_is_kept_and_said_once(
    spool: Spool, run_dir: Path, answer: int | httpx.Response, said: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(forwarder, "REFUSED_SECONDS", 0.01)
    monkeypatch.setattr(forwarder, "DRAIN_SECONDS", 0.01)
    server = Server(*[answer] * 1000)
    agent(spool, server, [target(run_dir)], lambda: server.asked >= 3)
    lines = [
        record.getMessage()
        for record in caplog.records
        if "refuses" in record.getMessage() or "the answer is not" in record.getMessage()
    ]
    assert len(lines) == 1 and said in lines[0]
    assert server.taken == [] and spool.rows >= 1
    later = Server()
    agent(spool, later, [], lambda: later.steps() != [])
    assert later.steps() == [1, 2, 3], "what waited is sent, though nobody names its source any more"


def test_a_full_spool_leaves_the_rest_in_the_file(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forwarder, "DRAIN_SECONDS", 0.01)
    spool = Spool(tmp_path / "small.db", limit=100)
    away = Server(*[503] * 1000)
    write(run_dir, 4)
    agent(spool, away, [target(run_dir)], lambda: spool.full)
    write(run_dir, 5, 6)
    held = spool.rows
    agent(spool, Server(*[503] * 1000), [target(run_dir)], lambda: "is full: reading is paused" in caplog.text)
    assert spool.rows == held == 1
    back = Server()
    agent(spool, back, [target(run_dir)], lambda: back.steps() == [1, 2, 3, 4, 5, 6])
    assert back.steps() == [1, 2, 3, 4, 5, 6]
    spool.close()


def test_a_spool_that_takes_nothing_moves_no_place(
    spool: Spool, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full, and has room again."""
    monkeypatch.setattr(forwarder, "BROKEN_SECONDS", 0.01)
    plain, failures = spool.put, [sqlite3.OperationalError("database or disk is full")] * 3

    def put(*args: object) -> None:
        if failures:
            raise failures.pop()
        plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(spool, "put", put)
    server = Server()
    agent(spool, server, [target(run_dir)], lambda: server.steps() != [])
    assert server.steps() == [1, 2, 3]
    assert len([one for one in caplog.records if "database or disk is full" in one.getMessage()]) == 1


def test_pauses_grow_to_a_quarter_of_a_minute_and_differ(spool: Spool) -> None:
    made = Forwarder("run", [], spool, Server().client, lambda: 0.0)
    found = [[made._pause(failures, None) for _ in range(20)] for failures in (1, 2, 4, 9, 500)]
    for pauses, middle in zip(found, (1.0, 2.0, 8.0, 15.0, 15.0), strict=True):
        assert all(0.8 * middle <= one <= 1.2 * middle for one in pauses) and len(set(pauses)) > 1
    assert 24 <= made._pause(1, 30.0) <= 36 and made._pause(1, 9999.0) <= 360


# ---- the command


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--spool", "/tmp/x"], "--spool: only with --push URL"),
        (["--token-file", "x"], "--token-file: only with --push URL"),
        (["--push", "http://h", "--store", "sqlite:///x"], "--store: not with --push"),
        (["--push", "http://h", "--port", "1"], "--port: not with --push"),
        (["--push", "login1:8050"], "--push: must be an http:// or https:// URL"),
        (["--push", "http://169.254.169.254/"], "--push: is a link-local"),
        (["--push", "http://me:word@h/"], "--push: must be a plain URL"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", ".", *args]) == 2
    found = capsys.readouterr().err
    assert f"rollscope: {said}" in found and "word" not in found


def test_a_spool_is_one_runs_and_one_servers() -> None:
    one = spool_name("http://a:1", "my run/1")
    assert one.startswith("my-run-1-") and one.endswith(".db")
    assert one == spool_name("http://a:1/", "my run/1")
    assert len({one, spool_name("http://b:1", "my run/1"), spool_name("http://a:1", "my run-1")}) == 3
