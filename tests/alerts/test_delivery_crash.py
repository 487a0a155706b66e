"""kill -9 at every step from the tick to the log: none lost, and none sent again after its log entry."""

import signal
from typing import Any

import pytest

from server.store import Store
from tests.alerts import delivery_child
from tests.alerts.delivery_child import TICKS, WHERE
from tests.alerts.hook import hook
from tests.killed import begin

SENT = "after-send-before-log"
# Each step early and late, so that some die with a backlog and some with nearly none.
FAULTS = [f"{where}:{n}" for n in (1, 3) for where in WHERE] + [f"{SENT}:5", "after-log:5"]


def child(url: str, receiver: str, now: int, fault: str) -> int | None:
    """Run it to its end; the return code, negative for a signal."""
    process, said = begin(delivery_child.main, url, receiver, now, fault)
    process.join(120)
    said.close()
    return process.exitcode


def number(body: dict[str, Any]) -> int:
    """Which tick's notification it is."""
    return int(body["alerts"][0]["labels"]["n"])


def logged(url: str) -> set[int]:
    """What the log says was sent."""
    store = Store.open(url, read_only=True)
    rows = store.alerts.deliveries("r", 10_000)
    store.close()
    return {row.seq for row in rows if row.status == "sent"}


@pytest.mark.crash
def test_killed_at_every_step(store_url: str) -> None:
    with hook() as receiver:
        before = []
        for n, fault in enumerate([*FAULTS, ""]):
            before.append(logged(store_url))
            assert child(store_url, f"{receiver.url}/{n}", 60 * n, fault) == (-signal.SIGKILL if fault else 0), fault
        # By path: on a loaded machine the receiver reads a request only after the process that sent it was killed.
        for n, fault in enumerate([*FAULTS, ""]):
            sent = zip(receiver.paths, receiver.bodies, strict=True)
            new = [number(body) for path, body in sent if path.endswith(f"/{n}")]
            assert not before[n] & set(new), f"{fault}: sent again after its log entry"
            assert not (new and fault.startswith(("before-commit", "after-commit")))
        got = [(body["groupKey"], number(body)) for body in receiver.bodies]
    # Every tick whose cursor was stored has its notification: nine processes made all their ticks, four were killed
    # at one, of which "before" takes its tick back.
    ticks = TICKS * 9 + (0 + 2) + (1 + 3)
    store = Store.open(store_url)
    assert int(store.runs.cursors("r")["tick"]) == ticks
    assert [row.seq for row in store.alerts.deliveries("r", 10_000)] == list(range(ticks))[::-1]
    store.close()
    assert logged(store_url) == {n for _, n in got} == set(range(ticks))
    # What the receiver had taken and the log had not yet can repeat: of each group the one that was under way.
    assert sum(fault.startswith(SENT) for fault in FAULTS) <= len(got) - ticks <= 3 * len(FAULTS)
    for group in ("g0", "g1", "g2"):
        numbers = [n for key, n in got if key == group]
        assert numbers == sorted(numbers)
