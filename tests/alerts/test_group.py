"""Grouping, waiting and deduplication, as a table of what each receiver is told and when."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from server.alerts.group import from_json, group_key, plan, to_json
from server.alerts.model import RESOLVED_SECONDS, Alert, fingerprint
from server.lib.matchers import parse
from server.notify.model import AlertItem, Notification, ReceiverSettings
from server.store.types import GroupRow, OutboxRow

T0 = 1_800_000_000.0
STEP = 5.0
OPS = ReceiverSettings("ops", "webhook")
KEY = '{}:{alertname="A", run="r"}'

Told = tuple[float, str, str, str]
"""When, why, what fires, what is resolved (the values of label ``s``)."""


_fingerprint = cache(fingerprint)


def alert(s: str, fired: float, resolved: float | None = None, name: str = "A", **labels: str) -> Alert:
    """An episode of one series; times in seconds after T0."""
    pairs = tuple(sorted({"alertname": name, "run": "r", "s": s, **labels}.items()))
    ends = None if resolved is None else T0 + resolved
    state = "firing" if resolved is None else "resolved"
    return Alert(name, (), pairs, _fingerprint(pairs), state, T0 + fired, {"summary": s}, T0 + fired, ends)  # type: ignore[arg-type]


@dataclass
class World:
    """Episodes over time, and the rows that `plan` made of them."""

    receivers: Sequence[ReceiverSettings] = (OPS,)
    refresh: Mapping[str, float] = field(default_factory=lambda: {"alertmanager": 60.0})
    groups: dict[tuple[str, str], GroupRow] = field(default_factory=dict)
    outbox: list[OutboxRow] = field(default_factory=list)
    episodes: list[tuple[str, float, float | None, dict[str, str]]] = field(default_factory=list)
    mutes: list[tuple[str, float, float]] = field(default_factory=list)

    def at(self, now: float) -> list[Alert]:
        """What the evaluator holds at an instant: firing, or resolved not long ago."""
        found = []
        for s, fired, resolved, labels in self.episodes:
            over = resolved is not None and resolved <= now
            if fired > now or (over and resolved is not None and resolved <= now - RESOLVED_SECONDS):
                continue
            one = alert(s, fired, resolved if over else None, **labels)
            one.muted = "silenced" if any(m == s and start <= now < end for m, start, end in self.mutes) else ""
            found.append(one)
        return found

    def tick(self, now: float, alerts: Iterable[Alert] | None = None) -> list[OutboxRow]:
        groups, outbox = plan(
            T0 + now, "r", self.at(now) if alerts is None else alerts, self.receivers, self.groups, self.refresh,
            lambda one: f"https://here/{one.rule}", "https://here",
        )  # fmt: skip
        assert len({(row.receiver, row.group_key) for row in groups}) == len(groups)
        for row in groups:
            if row.ended:
                del self.groups[row.receiver, row.group_key]
            else:
                self.groups[row.receiver, row.group_key] = row
        self.outbox += outbox
        return outbox

    def run(self, until: float, start: float = 0.0) -> list[Told]:
        """Every tick from ``start`` to ``until``; what was told."""
        found = []
        now = start
        while now <= until:
            found += [told(now, row) for row in self.tick(now)]
            now += STEP
        return found

    def fire(self, s: str, fired: float, resolved: float | None = None, **labels: str) -> None:
        self.episodes.append((s, fired, resolved, labels))


def told(now: float, row: OutboxRow) -> Told:
    note = from_json(row.payload)
    of = {status: "".join(a.labels.get("s", "?") for a in note.alerts if a.status == status) for status in STATUS}
    return now, note.reason, of["firing"], of["resolved"]


STATUS = ("firing", "resolved")


def world(*episodes: tuple[str, float, float | None], **changes: object) -> World:
    made = World(receivers=(replace(OPS, **changes),))  # type: ignore[arg-type]
    for one in episodes:
        made.fire(*one)
    return made


# -- one group over time


@pytest.mark.parametrize(
    ("episodes", "changes", "until", "expected"),
    [
        # At once, and its end at the next flush after it.
        ([("a", 0, 20)], {}, 300, [(0, "firing", "a", ""), (60, "resolved", "", "a")]),
        # Resolved exactly at a flush: told by that flush, and not again.
        ([("a", 0, 60)], {}, 300, [(0, "firing", "a", ""), (60, "resolved", "", "a")]),
        # A second joins: with the next flush, and the whole group is told.
        ([("a", 0, None), ("b", 10, None)], {}, 300, [(0, "firing", "a", ""), (60, "firing", "ab", "")]),
        # group_wait gathers; what is over before it is never told.
        ([("a", 0, None), ("b", 10, None)], {"group_wait": 30.0}, 300, [(30, "firing", "ab", "")]),
        ([("a", 0, 25)], {"group_wait": 30.0}, 300, []),
        ([("a", 0, 25), ("b", 5, None)], {"group_wait": 30.0}, 300, [(30, "firing", "b", "")]),
        # A group that ended begins anew, without waiting for a flush.
        (
            [("a", 0, 20), ("a", 65, None)], {}, 300,
            [(0, "firing", "a", ""), (60, "resolved", "", "a"), (65, "firing", "a", "")],
        ),
        # Gone and back between two flushes: nobody hears of it.
        ([("a", 0, 20), ("a", 40, None)], {}, 300, [(0, "firing", "a", "")]),
        # An end that was told is not in the next message.
        (
            [("a", 0, 60), ("b", 0, None), ("c", 70, None)], {}, 300,
            [(0, "firing", "ab", ""), (60, "resolved", "b", "a"), (120, "firing", "bc", "")],
        ),
        # One ends while another goes on.
        (
            [("a", 0, 70), ("b", 0, None)], {}, 300, [(0, "firing", "ab", ""), (120, "resolved", "b", "a")],
        ),
        # Fired and gone between two flushes of a group that goes on (as Alertmanager: its end is told).
        ([("a", 0, None), ("b", 10, 30)], {}, 300, [(0, "firing", "a", ""), (60, "resolved", "a", "b")]),
        # Repeats: after repeat_interval, counted from the last notification.
        (
            [("a", 0, None), ("b", 250, None)], {"repeat_interval": 300.0}, 910,
            [(0, "firing", "a", ""), (300, "firing", "ab", ""), (600, "repeat", "ab", ""), (900, "repeat", "ab", "")],
        ),
        ([("a", 0, None)], {"repeat_interval": 290.0}, 400, [(0, "firing", "a", ""), (300, "repeat", "a", "")]),
        # Resolutions are not wanted: the next episode is told all the same.
        (
            [("a", 0, 20), ("a", 65, None)], {"send_resolved": False}, 300,
            [(0, "firing", "a", ""), (65, "firing", "a", "")],
        ),
        (
            [("a", 0, 20), ("b", 0, None), ("a", 130, None)], {"send_resolved": False}, 300,
            [(0, "firing", "ab", ""), (180, "firing", "ab", "")],
        ),
        # group_interval shorter than the grid.
        ([("a", 0, 5)], {"group_interval": 1.0}, 60, [(0, "firing", "a", ""), (5, "resolved", "", "a")]),
    ],
)  # fmt: skip
def test_a_group_over_time(
    episodes: list[tuple[str, float, float | None]], changes: dict[str, object], until: float, expected: list[Told]
) -> None:
    of = world(*episodes, **changes)
    assert of.run(until) == expected
    assert len(of.groups) == any(resolved is None for _, _, resolved in episodes)


@pytest.mark.parametrize(
    ("mutes", "episodes", "until", "expected"),
    [
        # Muted: left out, and told at the flush after the silence ended.
        ([("a", 0, 100)], [("a", 0, None)], 300, [(120, "firing", "a", "")]),
        ([("a", 0, 100)], [("a", 0, None), ("b", 0, None)], 300, [(0, "firing", "b", ""), (120, "firing", "ab", "")]),
        # Muted all its life: nobody ever hears of it.
        ([("a", 0, 100)], [("a", 0, 90)], 400, []),
        # Told, then muted, and it ends so: who was told hears of the end (Alertmanager is silent), and of the next.
        (
            [("a", 10, 200)], [("a", 0, 90), ("a", 250, None)], 400,
            [(0, "firing", "a", ""), (120, "resolved", "", "a"), (250, "firing", "a", "")],
        ),
        # Told, then muted, then not: nothing changed for the receiver.
        ([("a", 10, 100)], [("a", 0, None)], 400, [(0, "firing", "a", "")]),
        # Another one is told meanwhile, without it: for the receiver nothing changed when the mute ends.
        (
            [("a", 10, 130)], [("a", 0, None), ("b", 50, None)], 400,
            [(0, "firing", "a", ""), (60, "firing", "b", "")],
        ),
        # Muted as another is told, and over before the next flush: its end is told.
        (
            [("a", 10, 70)], [("a", 0, 100), ("b", 50, None)], 200,
            [(0, "firing", "a", ""), (60, "firing", "b", ""), (120, "resolved", "b", "a")],
        ),
        # The only one not muted ends.
        (
            [("b", 10, 999)], [("a", 0, 50), ("b", 0, None)], 400,
            [(0, "firing", "ab", ""), (60, "resolved", "", "a")],
        ),
    ],
)  # fmt: skip
def test_muted_alerts(
    mutes: list[tuple[str, float, float]], episodes: list[tuple[str, float, float | None]], until: float,
    expected: list[Told],
) -> None:  # fmt: skip
    of = world(*episodes)
    of.mutes = mutes
    assert of.run(until) == expected
    assert len(of.groups) == any(resolved is None for _, _, resolved in episodes)


def test_what_fires_when_a_replay_reaches_the_present_is_told() -> None:
    of = world(("a", -5000, None), ("b", -7000, -6000), ("c", -300, -200), group_wait=600.0)
    assert of.run(100) == [(0, "firing", "a", "")]  # it has waited long enough; what is over is nobody's news


def test_pending_alerts_are_not_told() -> None:
    one = alert("a", 0)
    one.state, one.fired_at = "pending", None
    of = World()
    assert of.tick(0, [one]) == [] and of.groups == {}


def test_the_newest_episode_of_a_label_set_counts() -> None:
    """The evaluator may still hold the end of the last episode beside the new one, in any order."""
    of = World()
    both = [alert("a", 50), alert("a", 0, 40)]
    assert [told(50, row) for row in of.tick(50, both)] == [(50, "firing", "a", "")]
    assert of.tick(110, both[::-1]) == []


# -- groups and receivers


def test_groups_of_a_run() -> None:
    of = World(receivers=(OPS, replace(OPS, name="byrun", group_by=()), replace(OPS, name="all", group_by=("...",))))
    of.fire("a", 0)
    of.fire("b", 0, name="B")
    rows = of.tick(0)
    assert [(row.receiver, row.group_key, told(0, row)[2]) for row in rows] == [
        ("ops", '{}:{alertname="A", run="r"}', "a"),
        ("ops", '{}:{alertname="B", run="r"}', "b"),
        ("byrun", '{}:{run="r"}', "ab"),
        ("all", '{}:{alertname="A", run="r", s="a"}', "a"),
        ("all", '{}:{alertname="B", run="r", s="b"}', "b"),
    ]
    assert [dict(from_json(row.payload).group_labels) for row in rows[:3]] == [
        {"alertname": "A", "run": "r"}, {"alertname": "B", "run": "r"}, {"run": "r"},
    ]  # fmt: skip


def test_a_label_that_an_alert_lacks_is_not_in_its_group() -> None:
    of = World(receivers=(replace(OPS, group_by=("zone", "run")),))
    of.fire("a", 0, zone="x")
    of.fire("b", 0)
    assert [row.group_key for row in of.tick(0)] == ['{}:{run="r", zone="x"}', '{}:{run="r"}']


def test_matchers_choose_the_alerts() -> None:
    of = World(receivers=(replace(OPS, match=(parse("s=a"),)), replace(OPS, name="rest", match=(parse("s!=a"),))))
    of.fire("a", 0)
    of.fire("b", 0)
    assert [(row.receiver, told(0, row)[2]) for row in of.tick(0)] == [("ops", "a"), ("rest", "b")]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('a"b\\', r'"a\"b\\"'),
        ("\n\t\x00\x7f", r'"\n\t\x00\x7f"'),
        ("é世", '"é世"'),
        ("\u200b\U000e0001\ud800", r'"\u200b\U000e0001\ud800"'),
    ],
)
def test_keys_are_quoted_as_go_does(value: str, written: str) -> None:
    assert group_key((("z", "1"), ("a", value))) == "{}:{a=" + written + ', z="1"}'


def test_a_message() -> None:
    of = world(("b", 0, None), ("a", 0, 20), ("a2", 0, None))
    of.tick(0)
    (row,) = of.tick(60)
    found = from_json(row.payload)
    assert found == Notification(
        "ops", "r", KEY, {"alertname": "A", "run": "r"}, "firing", found.alerts, 0, "resolved", "https://here"
    )
    assert found.alerts[0] == AlertItem(
        "resolved", {"alertname": "A", "run": "r", "s": "a"}, {"summary": "a"}, T0, T0 + 20,
        alert("a", 0).fingerprint, "https://here/A",
    )  # fmt: skip
    assert [(item.labels["s"], item.status, item.ends_at) for item in found.alerts[1:]] == [
        ("a2", "firing", None), ("b", "firing", None),
    ]  # fmt: skip
    assert from_json(to_json(found)) == found
    assert (row.created_at, row.seq, row.refresh) == (round((T0 + 60) * 1000), round((T0 + 60) * 1000), False)


def test_truncation_keeps_what_fires() -> None:
    of = world(("a", 0, 20), ("b", 0, None), ("c", 0, None), ("d", 0, None), max_alerts=3)
    found = from_json(of.tick(0)[0].payload)
    assert ([item.labels["s"] for item in found.alerts], found.truncated) == (["a", "b", "c"], 1)
    found = from_json(of.tick(60)[0].payload)
    assert ([item.labels["s"] for item in found.alerts], found.truncated) == (["b", "c", "d"], 1)
    assert found.status == "firing"


def test_numbers_grow_over_a_groups_lives() -> None:
    of = world(("a", 0, 20), ("a", 65, 100), ("a", 130, None))
    of.run(300)
    numbers = [row.seq for row in of.outbox]
    assert len(numbers) == 5 and numbers == sorted(set(numbers))


# -- changes of the configuration


def test_a_changed_group_by_loses_no_resolution() -> None:
    """Told under the old key, ended under the old key; new ones come under the new key."""
    of = world(("a", 0, 100), ("b", 70, 500))
    of.run(60)
    of.receivers = (replace(OPS, group_by=("run", "s")),)
    of.outbox.clear()
    of.run(600, start=65)
    found = [(row.group_key, *told(round(row.created_at / 1000 - T0), row)) for row in of.outbox]
    assert found == [
        ('{}:{run="r", s="b"}', 70, "firing", "b", ""),
        (KEY, 120, "resolved", "", "a"),
        ('{}:{run="r", s="b"}', 550, "resolved", "", "b"),
    ]
    assert of.groups == {}


def test_changed_matchers_lose_no_resolution() -> None:
    """What is not wanted any more is not repeated, not even in others' messages; but its end is told."""
    of = world(("a", 0, 200), ("b", 0, None), ("c", 70, None), repeat_interval=3600.0)
    of.run(0)
    of.receivers = (replace(of.receivers[0], match=(parse("s!=a"),)),)
    assert of.run(3900, start=5) == [
        (120, "firing", "bc", ""), (240, "resolved", "bc", "a"), (3840, "repeat", "bc", ""),
    ]  # fmt: skip


def test_a_receiver_that_is_gone_is_forgotten() -> None:
    of = world(("a", 0, None))
    of.run(0)
    of.receivers = ()
    assert of.run(60, start=5) == [] and of.groups == {}


def test_a_resolution_that_nobody_saw_is_told() -> None:
    """The process was away for longer than a resolved alert is remembered: the group's labels are all there is."""
    of = world(("a", 0, 100), ("b", 0, None))
    of.run(60)
    note = from_json(of.tick(5000)[0].payload)
    assert [(item.status, dict(item.labels)) for item in note.alerts] == [
        ("firing", {"alertname": "A", "run": "r", "s": "b"}), ("resolved", {"alertname": "A", "run": "r"}),
    ]  # fmt: skip
    assert (note.alerts[1].fingerprint, note.alerts[1].ends_at) == (alert("a", 0).fingerprint, T0 + 5000)
    assert of.tick(5060) == []


# -- receivers that want the whole state


def whole(*episodes: tuple[str, float, float | None]) -> World:
    made = World(receivers=(ReceiverSettings("am", "alertmanager"),))
    for one in episodes:
        made.fire(*one)
    return made


def test_the_whole_state_at_every_change_and_every_minute() -> None:
    of = whole(("a", 0, 80), ("b", 10, 100))
    assert of.run(300) == [
        (0, "firing", "a", ""), (10, "firing", "ab", ""), (70, "repeat", "ab", ""), (80, "resolved", "b", "a"),
        (100, "resolved", "", "b"),
    ]  # fmt: skip
    assert [row.refresh for row in of.outbox] == [False, False, True, False, False]
    assert {row.group_key for row in of.outbox} == {'{}:{run="r"}'} and of.groups == {}


def test_a_silence_is_no_resolution_to_it() -> None:
    of = whole(("a", 0, None), ("b", 20, None))
    of.mutes = [("a", 10, 500), ("b", 10, 100)]
    assert of.run(160) == [
        (0, "firing", "a", ""),
        (60, "repeat", "a", ""),
        (100, "firing", "ab", ""),
        (160, "repeat", "ab", ""),
    ]


def test_from_groups_to_the_whole_state_and_back() -> None:
    of = world(("a", 0, None))
    of.run(0)
    of.receivers = (ReceiverSettings("ops", "alertmanager"),)
    assert of.run(5, start=5) == [(5, "firing", "a", "")]
    assert [key for _, key in of.groups] == ['{}:{run="r"}']


# -- any history at all
