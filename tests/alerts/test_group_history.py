"""Any history of alerts, silences and restarts: what receivers believe is what is true."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from server.alerts.group import from_json
from server.store.types import OutboxRow
from tests.alerts.test_group import OPS, STEP, T0, World

EPISODES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.integers(1, 20), st.sampled_from("AB")), max_size=8
)
WINDOWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.integers(1, 20)), max_size=3)


def history(episodes: list[tuple[str, int, int, str]], of: World) -> World:
    """Episodes of one series one after the other, without overlaps."""
    free: dict[tuple[str, str], float] = {}
    for s, start, length, name in sorted(episodes, key=lambda one: one[1]):
        begin = max(start * STEP, free.get((s, name), 0.0))
        of.fire(s, begin, begin + length * STEP, name=name)
        free[s, name] = begin + (length + 1) * STEP
    return of


@settings(max_examples=200, deadline=None)
@given(
    episodes=EPISODES, mutes=WINDOWS, wait=st.sampled_from((0.0, 30.0)), interval=st.sampled_from((5.0, 60.0)),
    resolved=st.booleans(), kind=st.sampled_from(("webhook", "alertmanager")), shuffle=st.randoms(),
)  # fmt: skip
def test_any_history(
    episodes: list[tuple[str, int, int, str]], mutes: list[tuple[str, int, int]], wait: float, interval: float,
    resolved: bool, kind: str, shuffle: "object",
) -> None:  # fmt: skip
    """Rows only depend on rows; nothing is repeated early; who was told of a beginning is told of the end."""
    receiver = replace(OPS, kind=kind, group_wait=wait, group_interval=interval, send_resolved=resolved)
    of = history(episodes, World(receivers=(receiver,)))
    of.mutes = [(s, start * STEP, (start + length) * STEP) for s, start, length in mutes]
    again = replace(of, groups={}, outbox=[])
    before: dict[str, set[tuple[str, float]]] = {}
    believed: dict[str, float] = {}
    last = max((ends for _, _, ends, _ in of.episodes if ends is not None), default=0.0)
    for n in range(round((last + wait + interval) / STEP) + 2):
        now = n * STEP
        rows = of.tick(now)
        # A restart: alerts in another order, groups only as they were stored.
        alerts = again.at(now)
        shuffle.shuffle(alerts)  # type: ignore[attr-defined]
        again.groups = dict(sorted(again.groups.items(), reverse=True))
        assert again.tick(now, alerts) == rows and again.groups == of.groups
        check(of, now, rows, before, believed)
    assert of.groups == {}
    assert len({(row.group_key, row.seq) for row in of.outbox}) == len(of.outbox)


def still_believed(
    believed: dict[str, float], firing: set[str], now: float, patience: float, ends_told: bool
) -> set[str]:
    """Over for longer than a flush takes, the next episode is news; a shorter break is not seen by anybody."""
    for one in list(believed):
        if one in firing:
            believed[one] = now
        elif now - believed[one] > patience:
            assert not ends_told, "its end was not told"
            del believed[one]
    return set(believed)


def check(
    of: World, now: float, rows: Sequence[OutboxRow], before: dict[str, set[tuple[str, float]]],
    believed: dict[str, float],
) -> None:  # fmt: skip
    """What receivers believe, from the messages alone, against what is true.

    ``believed``: fingerprint of what was told to fire and not told to be over -> when it last did fire.
    """
    receiver = of.receivers[0]
    alerts = of.at(now)
    firing = {one.fingerprint for one in alerts if one.state == "firing"}
    loud = {one.fingerprint for one in alerts if one.state == "firing" and not one.muted}
    for row in rows:
        note = from_json(row.payload)
        told_now = {(item.fingerprint, item.starts_at) for item in note.alerts if item.status == "firing"}
        said = {fingerprint for fingerprint, _ in told_now}
        assert said <= firing
        assert note.reason in ("firing", "resolved") or row.refresh  # nothing lasts for a repeat_interval here
        if not row.refresh:
            # Never the same again: another set, another episode, or somebody's end.
            assert before.get(row.group_key) != told_now or any(item.status == "resolved" for item in note.alerts)
        if receiver.kind == "webhook":
            assert said <= loud
        before[row.group_key] = told_now
        for item in note.alerts:
            if item.status == "firing":
                believed[item.fingerprint] = now
            else:
                believed.pop(item.fingerprint, None)
    # Whatever fires unmuted since before the last possible flush is known to the receiver.
    patience = 0.0 if receiver.kind == "alertmanager" else max(receiver.group_wait, receiver.group_interval)
    ends_told = receiver.send_resolved and receiver.kind != "alertmanager"
    known = still_believed(believed, firing, now, patience, ends_told)
    for one in alerts:
        quiet = any(m == dict(one.labels)["s"] and start <= now and now - patience < end for m, start, end in of.mutes)
        if one.state == "firing" and one.fired_at is not None and T0 + now - one.fired_at >= patience and not quiet:
            assert one.fingerprint in known
