"""The socket that tells open tabs of news: who is let in, what is said, and that nobody stays behind."""

import asyncio
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, WebSocketDisconnect
from starlette.testclient import TestClient, WebSocketTestSession

from dashboard.state.push_notifications import AGAIN, PushNotifications
from server.api.gate import Gate
from server.query.run_state import UnknownRun
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.serving import wait

BROKEN = -1
HERE = f"/news?run={fake.RICH}"


class Counting(MemoryReader):
    """Counts the looks at a run's cursor; ``broken``: they fail; ``gone``: no run has that name.

    ``commits``: the mark, for a store that has one; ``marks``: how often it was asked for. ``late``: what the next look
    is about is seen right after it, its writer having been held between the log and the word that it counts.
    """

    looks, broken, gone, late = 0, False, False, False
    commits: int | None = None
    marks = 0

    def mark(self) -> int | None:
        self.marks += 1
        if self.commits == BROKEN:
            raise OSError("disk I/O error")
        return self.commits

    def cursor(self, run: str) -> str:
        self.looks += 1
        if self.broken:
            raise OSError("disk I/O error")
        if self.gone:
            raise UnknownRun(run)
        found = super().cursor(run)
        if self.late:
            self.late = False
            tell(self)
        return found


@pytest.fixture
def reader() -> Counting:
    made = fake.reader(60)
    made.__class__ = Counting
    assert isinstance(made, Counting)
    return made


@pytest.fixture
def news(reader: Counting) -> PushNotifications:
    return PushNotifications(reader, every=0.001, most=3)


@pytest.fixture
def client(news: PushNotifications) -> Iterator[TestClient]:
    api = FastAPI()
    api.add_api_websocket_route("/news", news.serve)
    with TestClient(api) as made:
        yield made


def tell(reader: MemoryReader, run: str = fake.RICH) -> None:
    reader.append(run, fake.TICKS[0][0], [(reader.clock, 7.0)])


def more_looks(reader: Counting) -> None:
    before = reader.looks
    wait(lambda: reader.looks > before + 3)


def code(client: TestClient, path: str, **headers: str) -> int:
    with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect(path, headers=headers):
        pass
    return refused.value.code


def test_every_tab_of_a_run_is_told_once_of_what_is_new(client: TestClient, reader: Counting) -> None:
    other = f"/news?run={fake.DONE}"
    with client.websocket_connect(HERE) as one, client.websocket_connect(HERE) as two:
        more_looks(reader)
        for _ in range(2):
            tell(reader)
            assert [one.receive_text(), two.receive_text()] == ["news", "news"]
            more_looks(reader)
        # Had anything else been said, it would be before these words.
        with client.websocket_connect(other) as three:
            tell(reader, fake.DONE)
            assert three.receive_text() == "news"
            assert queued(one) == queued(two) == queued(three) == 0


def queued(tab: WebSocketTestSession) -> int:
    return int(tab._send_rx.statistics().current_buffer_used)


def test_what_comes_while_a_tab_is_let_in_is_news(reader: Counting) -> None:
    told, accepted = [], asyncio.Event()

    class Slow:
        """A tab whose first look ends before it is let in: what comes then it has not seen."""

        def __init__(self) -> None:
            self.query_params = {"run": fake.RICH}

        async def accept(self) -> None:
            tell(reader)

        async def send_text(self, words: str) -> None:
            told.append(words)
            accepted.set()

        async def receive_text(self) -> str:
            await accepted.wait()
            raise WebSocketDisconnect

    asyncio.run(asyncio.wait_for(PushNotifications(reader, every=0.001).serve(Slow()), 30))  # type: ignore[arg-type]
    assert told == ["news"]


def test_who_is_not_let_in(client: TestClient, news: PushNotifications) -> None:
    assert code(client, "/news?run=nobody") == code(client, "/news") == 4404
    with client.websocket_connect(HERE), client.websocket_connect(HERE), client.websocket_connect(HERE):
        assert code(client, HERE) == 1013
    wait(lambda: not news._tabs)
    with client.websocket_connect(HERE):
        pass


def test_nothing_is_looked_at_for_nobody(client: TestClient, news: PushNotifications, reader: Counting) -> None:
    with client.websocket_connect(HERE) as tab:
        tab.send_text("what a tab says is not heard")
        more_looks(reader)
    wait(lambda: not news._tabs and news._watcher is not None and news._watcher.done())
    assert news._seen == {}
    # The next one starts it again.
    with client.websocket_connect(HERE) as tab:
        tell(reader)
        assert tab.receive_text() == "news"


def test_a_database_that_fails_at_the_door_lets_nobody_in(
    client: TestClient, reader: Counting, news: PushNotifications
) -> None:
    reader.broken = True
    assert code(client, HERE) == 1013
    assert not news._tabs


def test_a_database_that_fails_for_a_while_ends_nothing(client: TestClient, reader: Counting) -> None:
    with client.websocket_connect(HERE) as tab:
        reader.broken = True
        tell(reader)
        more_looks(reader)
        reader.broken = False
        assert tab.receive_text() == "news"


def more_marks(reader: Counting) -> None:
    before = reader.marks
    wait(lambda: reader.marks > before + AGAIN + 3)


def test_where_nobody_writes_no_run_is_looked_at(client: TestClient, reader: Counting) -> None:
    reader.commits = 1
    with client.websocket_connect(HERE) as tab:
        more_marks(reader)
        looks = reader.looks
        # Stored and not committed yet, as it were: the mark alone says when to look.
        tell(reader)
        more_marks(reader)
        assert (reader.looks, queued(tab)) == (looks, 0)
        reader.commits = 2
        assert tab.receive_text() == "news"
        more_marks(reader)
        assert reader.looks == looks + 2


def test_a_commit_that_is_seen_after_its_mark_is_told(client: TestClient, reader: Counting) -> None:
    reader.commits = 1
    with client.websocket_connect(HERE) as tab:
        more_marks(reader)
        reader.late, reader.commits = True, 2
        wait(lambda: queued(tab) == 1)


def test_a_look_that_failed_is_due_again_without_another_commit(client: TestClient, reader: Counting) -> None:
    reader.commits = 1
    with client.websocket_connect(HERE) as tab:
        more_marks(reader)
        reader.broken, reader.commits = True, 2
        tell(reader)
        more_looks(reader)
        reader.broken = False
        assert tab.receive_text() == "news"


def test_a_run_that_is_gone_has_no_other_run_looked_at(client: TestClient, reader: Counting) -> None:
    reader.commits = 1
    with client.websocket_connect(HERE) as tab:
        more_marks(reader)
        reader.gone, reader.commits = True, 2
        more_marks(reader)
        looks = reader.looks
        more_marks(reader)
        assert reader.looks == looks
        reader.gone, reader.commits = False, 3
        tell(reader)
        assert tab.receive_text() == "news"


def test_without_an_answer_to_the_mark_runs_are_looked_at(client: TestClient, reader: Counting) -> None:
    reader.commits = BROKEN
    with client.websocket_connect(HERE) as tab:
        more_looks(reader)
        tell(reader)
        assert tab.receive_text() == "news"


def test_the_gate_stands_before_the_socket(news: PushNotifications) -> None:
    api = FastAPI()
    api.add_api_websocket_route("/news", news.serve)
    bearer = {"authorization": "Bearer 0123456789abcdef"}
    with TestClient(Gate(api, hosts=["testserver"], token="0123456789abcdef")) as client:  # type: ignore[arg-type]
        assert code(client, HERE) == 1008
        # A page of another site, in the browser of somebody who is let in.
        assert code(client, HERE, origin="http://evil.example", **bearer) == 1008
        with client.websocket_connect(HERE, headers={"origin": "http://testserver", **bearer}):
            pass
