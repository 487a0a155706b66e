"""Alerts, groups, silences and the outbox: written with the tick, claimed once, logged for ever, on both databases."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from msgspec import structs

from server.alerts.model import Alert, Silence
from server.lib.matchers import Matcher
from server.store import Store, StoreError, Writer
from server.store.alerts import Heartbeat
from server.store.types import Batch, DeliveryRow, GroupRow, OutboxRow
from tests.store.helpers import T0

LEASE = 30_000
START = T0 / 1000
LABELS = (("alertname", "Stalled"), ("run", "r"), ("zone", 'a"b\\\n\x00é'))
FIRING = Alert(
    fingerprint="00000000000000aa", active_at=START, rule="Stalled", state="firing", series=(("target", "x"),),
    labels=LABELS, annotations={"summary": "no step for 900 s"}, value=900.5, fired_at=START + 5,
    keep_since=START + 6, held_since=START + 7, reason="why", muted="silenced", replayed=True,
)  # fmt: skip
GROUP = GroupRow("ops", '{}:{run="r"}', LABELS[:2], T0 + 60_000, T0, ("aa", "bb"), ("cc",), 7)


def note(seq: int, receiver: str = "ops", key: str = "g", refresh: bool = False, at: int = T0) -> OutboxRow:
    return OutboxRow(receiver, key, seq, at, f'{{"n": {seq}}}', refresh)


def put(store: Store, *rows: OutboxRow, run: str = "r") -> None:
    store.write(Batch(run, outbox=list(rows)))


def claimed(store: Store, now: int = T0, limit: int = 100, receivers: tuple[str, ...] = ("ops",)) -> list[DeliveryRow]:
    return store.alerts.claim(now, LEASE, limit, receivers)


def seqs(rows: list[DeliveryRow]) -> list[int]:
    return [row.seq for row in rows]


def statuses(store: Store) -> dict[int, str]:
    return {row.seq: row.status for row in store.alerts.deliveries(None, 1000)}


# -- alerts and groups


def test_an_alert_comes_back_as_it_was_written(store: Store) -> None:
    batch = Batch("r", alerts=[FIRING], groups=[GROUP])
    store.write(batch)
    store.write(batch)  # a retry after a lost acknowledgement
    assert store.alerts.active("r", 0) == [FIRING]
    assert store.alerts.groups("r") == [GROUP]
    assert store.alerts.list(None, {"firing"}, 10) == [("r", FIRING)]
    assert store.alerts.active("other", 0) == store.alerts.groups("other") == []


def test_the_newest_state_of_an_episode_stands(store: Store) -> None:
    pending = structs.replace(FIRING, state="pending", fired_at=None)
    store.write(Batch("r", alerts=[pending, FIRING]))
    assert store.alerts.active("r", 0) == [FIRING]
    store.write(Batch("r", alerts=[structs.replace(FIRING, state="resolved", resolved_at=START + 9)]))
    assert [row.state for row in store.alerts.active("r", T0 + 9_000)] == ["resolved"]
    assert store.alerts.active("r", T0 + 9_001) == []


def test_inactive_and_ended_remove_the_row(store: Store) -> None:
    later = structs.replace(FIRING, active_at=START + 1)
    store.write(Batch("r", alerts=[FIRING, later], groups=[GROUP, replace(GROUP, seq=8)]))
    gone = Batch("r", alerts=[structs.replace(FIRING, state="inactive")], groups=[replace(GROUP, ended=True)])
    store.write(gone)
    store.write(gone)
    assert [row.active_at for row in store.alerts.active("r", 0)] == [START + 1]
    assert store.alerts.groups("r") == []
    # Born and gone within one merged batch: never there.
    store.write(Batch("r", alerts=[FIRING, structs.replace(FIRING, state="inactive")]))
    assert [row.active_at for row in store.alerts.active("r", 0)] == [START + 1]


def test_history_is_what_fired_and_ended(store: Store) -> None:
    ends = [
        structs.replace(FIRING, active_at=START + n, state="resolved", resolved_at=START + 100 - n) for n in range(5)
    ]
    never = structs.replace(FIRING, active_at=START + 50, state="resolved", fired_at=None, resolved_at=START + 60)
    store.write(Batch("r", alerts=[*ends, never, structs.replace(FIRING, active_at=START + 60)]))
    store.write(Batch("s", alerts=[structs.replace(ends[0], resolved_at=START + 98)]))
    assert [(run, row.resolved_at) for run, row in store.alerts.history(None, 3)] == [
        ("r", START + 100), ("r", START + 99), ("s", START + 98),
    ]  # fmt: skip
    assert len(store.alerts.history("r", 100)) == 5
    assert [row.active_at for _, row in store.alerts.list("r", {"pending", "firing"}, 100)] == [START + 60]
    assert len(store.alerts.list(None, {"resolved"}, 4)) == 4


def test_everything_of_a_tick_is_one_transaction(store: Store) -> None:
    """A row that cannot be written takes the alerts and the outbox with it."""
    bad = Batch("r", alerts=[FIRING], groups=[GROUP], outbox=[note(1), note(2, receiver=None)])  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"NOT NULL|null value"):
        store.write(bad)
    assert store.alerts.active("r", 0) == store.alerts.groups("r") == store.alerts.deliveries(None, 10) == []


def test_the_writer_takes_alerts_of_merged_batches(store: Store) -> None:
    writer = Writer(store, commit_seconds=10)
    for n in range(3):
        writer.submit(
            Batch("r", alerts=[structs.replace(FIRING, active_at=START + n)], outbox=[note(n)], groups=[GROUP])
        )
    writer.flush()
    writer.close()
    assert writer.committed == 1
    assert len(store.alerts.active("r", 0)) == len(store.alerts.deliveries("r", 10)) == 3


def test_a_group_key_longer_than_an_index_row(store: Store) -> None:
    """PostgreSQL refuses index rows over 2,704 bytes; a group may be named by ten labels of 1,000 characters."""
    keys = [f"{{}}:{{{'x' * 9_000}{n}}}" for n in range(2)]
    store.write(Batch("r", groups=[replace(GROUP, group_key=k) for k in keys], outbox=[note(1, key=k) for k in keys]))
    assert [row.group_key for row in store.alerts.groups("r")] == keys
    assert len(claimed(store)) == 2


def test_ten_thousand_alerts_and_notifications(store: Store) -> None:
    """Both of the bulk paths, and every bound value limit."""
    rows = [structs.replace(FIRING, fingerprint=f"{n:016x}") for n in range(10_000)]
    store.write(Batch("r", alerts=rows, outbox=[note(1, key=str(n)) for n in range(1_000)]))
    assert store.alerts.active("r", 0) == rows
    assert len(claimed(store, limit=1_000)) == 1_000


# -- silences


def silence(name: str, starts: int, ends: int) -> Silence:
    matchers = (Matcher("alertname", "=~", 'a|"b"'), Matcher("run", "!=", ""))
    return Silence(name, matchers, (T0 + starts) / 1000, (T0 + ends) / 1000, "al\x00ice", "maintenance", T0 / 1000)


def test_silences_by_time(store: Store) -> None:
    for one in (silence("over", 0, 10), silence("now", 0, 100), silence("later", 60, 90)):
        store.alerts.put_silence(one)
    assert [s.id for s in store.alerts.silences(T0 + 50)] == ["later", "now"]
    assert [s.id for s in store.alerts.silences(T0 + 50, expired_since=T0 + 10)] == ["over", "later", "now"]
    assert store.alerts.silences(T0 + 50, expired_since=T0 + 11) == store.alerts.silences(T0 + 50)
    assert store.alerts.silences(T0 + 100) == []  # over at its end, not after it
    # PostgreSQL takes no NUL; everything else comes back.
    assert store.alerts.silences(T0 + 95) == [structs.replace(silence("now", 0, 100), created_by="alice")]


def test_expiring_a_silence(store: Store) -> None:
    for one in (silence("now", 0, 100), silence("later", 60, 90)):
        store.alerts.put_silence(one)
    assert store.alerts.expire_silence("now", T0 + 50) is True
    assert store.alerts.expire_silence("now", T0 + 51) is False
    assert store.alerts.expire_silence("none", T0 + 50) is False
    assert store.alerts.expire_silence("later", T0 + 50) is True
    left = {
        s.id: tuple(round(at * 1000) - T0 for at in (s.starts_at, s.ends_at, s.updated_at))
        for s in store.alerts.silences(T0 + 50, T0)
    }
    assert left == {"now": (0, 50, 50), "later": (50, 50, 50)}
    store.alerts.put_silence(silence("now", 0, 200))
    assert [round(s.ends_at * 1000) - T0 for s in store.alerts.silences(T0 + 50)] == [200]


# -- the outbox


def test_only_the_oldest_of_each_group_is_claimed(store: Store) -> None:
    put(store, note(5), note(6), note(1, key="h"), note(1, receiver="away"))
    put(store, note(9), run="s")
    first = claimed(store)
    assert [(row.run, row.group_key, row.seq, row.attempts, row.payload) for row in first] == [
        ("r", "g", 5, 1, '{"n": 5}'), ("r", "h", 1, 1, '{"n": 1}'), ("s", "g", 9, 1, '{"n": 9}'),
    ]  # fmt: skip
    assert claimed(store) == []  # 6 waits for 5, the rest is leased, "away" is not configured
    store.alerts.finish(first[0].id, "sent", "200 OK", T0 + 10)
    assert seqs(claimed(store)) == [6]
    assert seqs(claimed(store, receivers=("away",))) == [1]
    assert claimed(store, receivers=()) == []


def test_writing_a_notification_again_changes_nothing(store: Store) -> None:
    batch = Batch("r", outbox=[note(1), note(2, refresh=True)])
    store.write(batch)
    row = claimed(store)[0]
    store.alerts.finish(row.id, "sent", "200 OK", T0 + 10)
    store.write(batch)
    done = store.alerts.deliveries("r", 10)
    assert [(d.seq, d.status, d.answer, d.sent_at) for d in done] == [
        (2, "pending", "", None), (1, "sent", "200 OK", T0 + 10),
    ]  # fmt: skip


def test_the_limit_and_the_order_of_what_is_due(store: Store) -> None:
    put(store, *(note(1, key=str(n), at=T0 + 10 - n) for n in range(5)))
    assert [row.group_key for row in claimed(store, T0 + 9, limit=3)] == ["4", "3", "2"]
    assert [row.group_key for row in claimed(store, T0 + 9)] == ["1"]  # group 0 is due at T0 + 10
    assert [row.group_key for row in claimed(store, T0 + 10)] == ["0"]


def test_a_lease_runs_out(store: Store) -> None:
    put(store, note(1))
    assert seqs(claimed(store)) == [1]
    assert claimed(store, T0 + LEASE - 1) == []
    assert [row.attempts for row in claimed(store, T0 + LEASE)] == [2]


def test_a_retry_waits(store: Store) -> None:
    put(store, note(1), note(2))
    row = claimed(store)[0]
    store.alerts.retry(row.id, T0 + 5_000, "503")
    assert claimed(store, T0 + 4_999) == []
    again = claimed(store, T0 + 5_000)
    assert [(r.seq, r.attempts, r.answer) for r in again] == [(1, 2, "503")]


def test_next_due(store: Store) -> None:
    ops = ("ops", "b")
    assert store.alerts.next_due(ops) is None
    put(store, note(1, at=T0 + 100), note(2, at=T0 + 50), note(1, receiver="away"))
    assert store.alerts.next_due(ops) == T0 + 100  # the second waits for the first, however early it is
    assert store.alerts.next_due(("away",)) == T0
    row = claimed(store, T0 + 100)[0]
    assert store.alerts.next_due(ops) == T0 + 100 + LEASE
    store.alerts.retry(row.id, T0 + 7_000, "")
    assert store.alerts.next_due(ops) == T0 + 7_000
    store.alerts.finish(row.id, "failed", "404", None)
    assert store.alerts.next_due(ops) == T0 + 50


def test_the_first_log_entry_stands(store: Store) -> None:
    put(store, note(1))
    row = claimed(store)[0]
    store.alerts.finish(row.id, "sent", "200\x00 OK", T0 + 10)
    store.alerts.finish(row.id, "failed", "late", None)
    store.alerts.retry(row.id, T0, "late")
    assert [(d.status, d.answer) for d in store.alerts.deliveries("r", 1)] == [("sent", "200 OK")]
    assert claimed(store, T0 + 10 * LEASE) == []


def test_a_newer_refresh_makes_older_ones_superfluous(store: Store) -> None:
    put(store, note(1, refresh=True), note(2), note(3, refresh=True), note(1, key="h", refresh=True))
    put(store, note(4, refresh=True))
    assert statuses(store) | {1: ""} == {1: "", 2: "pending", 3: "superseded", 4: "pending"}
    rows = {(d.group_key, d.seq): d.status for d in store.alerts.deliveries("r", 10)}
    assert (rows["g", 1], rows["h", 1]) == ("superseded", "pending")


def test_what_is_being_sent_is_not_superseded(store: Store) -> None:
    put(store, note(1, refresh=True))
    (row,) = claimed(store)
    put(store, note(2, refresh=True, at=T0 + LEASE - 1))
    assert statuses(store) == {1: "pending", 2: "pending"}
    # Its holder died: at the end of the lease it is only old.
    put(store, note(3, refresh=True, at=T0 + LEASE))
    assert statuses(store) == {1: "superseded", 2: "superseded", 3: "pending"}
    # It was not dead, only slow: that it was sent is the truth.
    store.alerts.finish(row.id, "sent", "200", T0 + LEASE + 1)
    assert statuses(store)[1] == "sent"


def test_prune(store: Store) -> None:
    put(store, *(note(n, key=str(n), at=T0 + n) for n in range(1, 5)))
    for row in claimed(store, T0 + 10, limit=2):
        store.alerts.finish(row.id, "sent" if row.seq == 1 else "failed", "", None)
    store.alerts.put_silence(silence("over", 0, 3))
    store.alerts.put_silence(silence("later", 0, 4))
    store.alerts.prune(T0 + 4)
    assert statuses(store) == {3: "failed", 4: "pending"}
    assert "no longer configured" in store.alerts.deliveries(None, 2)[1].answer
    assert [s.id for s in store.alerts.silences(T0, 0)] == ["later"]
    store.alerts.prune(T0 + 4)
    assert statuses(store) == {4: "pending"}


def test_deliveries_newest_first(store: Store) -> None:
    put(store, *(note(n) for n in range(5)))
    put(store, note(9), run="s")
    assert seqs(store.alerts.deliveries(None, 3)) == [9, 4, 3]
    assert seqs(store.alerts.deliveries("r", 2)) == [4, 3]
    assert store.alerts.deliveries("none", 2) == []


def test_many_claimers_get_each_row_once(store: Store) -> None:
    """Eight claimers at once (on PostgreSQL: eight connections) share 200 rows of 20 groups, each group in order."""
    put(store, *(note(seq, key=str(key)) for key in range(20) for seq in range(10)))
    got: list[tuple[str, int]] = []
    barrier = threading.Barrier(8)

    def claimer() -> None:
        barrier.wait()
        # Ten rounds of all heads are enough for everything; a claimer that finds nothing uses its rounds up.
        for _ in range(200):
            for row in claimed(store, limit=7):
                got.append((row.group_key, row.seq))
                store.alerts.finish(row.id, "sent", "", T0)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(claimer) for _ in range(8)]:
            future.result()
    assert sorted(got) == sorted((str(key), seq) for key in range(20) for seq in range(10))
    for key in range(20):
        assert [seq for group, seq in got if group == str(key)] == list(range(10))


def test_claims_and_ticks_do_not_wait_for_each_other_for_ever(store: Store) -> None:
    """Ticks supersede what claimers lease: whatever the order, nothing deadlocks and nothing is both."""
    sent: list[int] = []
    done = threading.Event()

    def claim_all() -> bool:
        rows = claimed(store, T0 + 1_000, limit=3)
        for row in rows:
            store.alerts.finish(row.id, "sent", "", T0)
            sent.append(row.seq)
        return bool(rows)

    def claimer() -> None:
        while not done.is_set() or claim_all():
            claim_all()

    with ThreadPoolExecutor(1) as pool:
        claiming = pool.submit(claimer)
        for seq in range(100):
            put(store, note(seq, refresh=True, at=T0))
        done.set()
        claiming.result()
    found = statuses(store)
    assert {seq for seq, status in found.items() if status == "sent"} == set(sent)
    assert len(sent) == len(set(sent))
    assert found[99] == "sent"
    assert set(found.values()) <= {"sent", "superseded"}


# -- heartbeats


def test_heartbeats(store: Store) -> None:
    for ts in (T0, T0 + 10, T0 + 5):
        store.alerts.beat("r", "trainer", ts)
    store.alerts.beat("s", "trainer", T0)
    assert store.alerts.heartbeats("r") == [Heartbeat("trainer", T0 + 10, 3)]
    assert store.alerts.heartbeats("none") == []


# -- the door, and the way up


def test_a_read_only_store_takes_nothing(store: Store, store_url: str) -> None:
    put(store, note(1))
    reading = Store.open(store_url, read_only=True)
    assert seqs(reading.alerts.deliveries(None, 5)) == [1]
    for attempt in (
        lambda: claimed(reading), lambda: reading.alerts.beat("r", "x", 1), lambda: reading.alerts.prune(0),
        lambda: reading.alerts.put_silence(silence("a", 0, 1)), lambda: reading.alerts.finish(1, "sent", "", 1),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="read-only"):
            attempt()
    reading.close()
