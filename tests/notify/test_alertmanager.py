"""A real Alertmanager takes our alerts, groups them, calls back, and says what our own webhook message says."""

import asyncio
import json
import os
import queue
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.cli import alerts as cli_alerts
from server.lib.secret import Secret
from server.notify.model import Notification, ReceiverSettings
from server.notify.outbound import send
from server.notify.receivers import alertmanager, webhook
from tests.notify.support import WAIT_SECONDS, Server, alert, note, serving

BINARY = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

DIFFERENCES = ("notification_reason",)
"""Fields of our message that Alertmanager 0.25 does not send; the others are equal (docs/how-to/receivers.md)."""

CONFIG = """
route:
  receiver: ops
  group_by: [alertname, run]
  group_wait: 500ms
  group_interval: 200ms
  repeat_interval: 4h
receivers:
  - name: ops
    webhook_configs:
      - url: http://127.0.0.1:{port}/hook
        send_resolved: true
"""


@contextmanager
def running(folder: Path, callback: int) -> Iterator[str]:
    """The base URL of an Alertmanager that notifies the port; ended by its own process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "config.yml").write_text(CONFIG.format(port=callback))
    assert BINARY is not None
    command = [BINARY, f"--config.file={folder}/config.yml", f"--storage.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    command += ["--web.external-url=http://rollscope.lab:8050"]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    lines: queue.Queue[str] = queue.Queue()
    assert process.stderr is not None
    reader = threading.Thread(target=_drain, args=(process.stderr, lines))
    reader.start()
    try:
        while "Listening" not in (line := lines.get(timeout=WAIT_SECONDS)):
            assert line, "Alertmanager ended before it listened"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
        reader.join()
        process.stderr.close()


def _drain(stream: Any, lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def tell(base: str, found: Notification) -> None:
    settings = ReceiverSettings("am", "alertmanager", Secret(base))
    answer = asyncio.run(send(alertmanager.render(found, settings, time.time())))
    assert (answer.ok, answer.text) == (True, "HTTP 200")


def ours(found: Notification) -> dict[str, Any]:
    request = webhook.render(found, ReceiverSettings("ops", "webhook", Secret("http://x/")), time.time())
    message: dict[str, Any] = json.loads(request.body)
    return message


def same(genuine: Mapping[str, Any], found: Notification) -> None:
    """All fields and values, but for the documented ones; none of which Alertmanager has."""
    own = ours(found)
    assert set(own) - set(genuine) == set(DIFFERENCES)
    assert genuine == {name: value for name, value in own.items() if name not in DIFFERENCES}


def active(base: str) -> list[str]:
    found = httpx.get(f"{base}/api/v2/alerts", trust_env=False, timeout=WAIT_SECONDS).json()
    return [one["labels"]["alertname"] for one in found]


def arrived(server: Server, alerts: int) -> dict[str, Any]:
    """The next message with that many alerts. On a stalled machine the first may come before its group is whole."""
    while True:
        got = server.next()
        message: dict[str, Any] = json.loads(got.body)
        assert got.headers["content-type"] == "application/json"
        assert len(message["alerts"]) <= alerts
        if len(message["alerts"]) == alerts:
            return message


@pytest.mark.skipif(BINARY is None, reason="prometheus-alertmanager is not installed: nothing genuine to compare with")
def test_our_message_is_alertmanagers_own(tmp_path: Path) -> None:
    with serving() as server, running(tmp_path, server.port) as base:
        # In the present: alerts older than group_wait are not waited for. What ends has ended when it is told.
        now = round(time.time(), 1)
        first = alert(starts_at=now - 0.12, engine="1")
        second = alert(starts_at=now, engine="0", annotations={"summary": "The trainer waits <62 %> & more √"})
        ended = alert("resolved", starts_at=first.starts_at, ends_at=now + 0.002, engine="1")
        firing = note(first, second)
        tell(base, firing)
        same(arrived(server, 2), firing)

        partly = note(ended, second, reason="resolved")
        tell(base, partly)
        same(arrived(server, 2), partly)

        # What Alertmanager has told of is gone from its group: only the other one is left to end.
        over = note(
            alert("resolved", starts_at=now, ends_at=now + 0.25, engine="0", annotations=second.annotations),
            status="resolved",
            reason="resolved",
        )
        tell(base, over)
        same(arrived(server, 1), over)


@pytest.mark.skipif(BINARY is None, reason="prometheus-alertmanager is not installed: nothing to send a test to")
def test_a_test_notification_leaves_nothing_open(tmp_path: Path) -> None:
    with serving() as server, running(tmp_path, server.port) as base:
        settings = ReceiverSettings("am", "alertmanager", Secret(base))
        text, fine = cli_alerts.send_one(settings, "http://rollscope.lab:8050", time.time())
        assert fine
        assert text == "am (alertmanager), firing: ok, HTTP 200\nam (alertmanager), resolved: ok, HTTP 200"
        assert active(base) == []
        # The list is not simply empty: the same alert, not ended, is in it.
        tell(base, cli_alerts.notification(settings, "http://rollscope.lab:8050", time.time(), "firing"))
        assert active(base) == ["RollscopeTest"]


def test_a_firing_alert_ends_by_itself_four_refreshes_ahead() -> None:
    settings = ReceiverSettings("am", "alertmanager", Secret("http://h:9093/prefix/"))
    request = alertmanager.render(note(alert(url="")), settings, 1_800_000_030.25)
    assert request.url == "http://h:9093/prefix/api/v2/alerts" and request.method == "POST"
    assert json.loads(request.body) == [
        {
            "labels": {"alertname": "TrainerStarved", "run": "a", "severity": "warning", "class": "tuning"},
            "annotations": {
                "summary": "The trainer waits 62 % of its step",
                "description": "trainer_wait_ratio is 0.62, the limit is 0.4, for 5 min.",
            },
            "startsAt": "2027-01-15T08:00:00Z",
            "endsAt": "2027-01-15T08:04:30.25Z",
        }
    ]
    assert alertmanager.RECEIVER.refresh_seconds == 60.0


def test_a_resolved_alert_has_its_own_end() -> None:
    settings = ReceiverSettings("am", "alertmanager", Secret("http://h:9093"))
    ended = alert("resolved", ends_at=1_800_000_001.001)
    body = json.loads(alertmanager.render(note(ended), settings, 1_800_000_500.0).body)
    assert body[0]["endsAt"] == "2027-01-15T08:00:01.001Z"
    assert body[0]["generatorURL"] == "http://rollscope.lab:8050/?run=a&at=1800000000"


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"bearer": Secret("tok")}, "Bearer tok"),
        ({"username": "ann", "password": Secret("p:w")}, "Basic YW5uOnA6dw=="),
        ({}, None),
    ],
)
def test_credentials(options: dict[str, str | Secret], header: str | None) -> None:
    settings = ReceiverSettings("am", "alertmanager", Secret("http://h:9093"), options)
    request = alertmanager.render(note(), settings, 0.0)
    assert request.headers.get("Authorization") == header
    assert "tok" not in repr(request) and "YW5" not in repr(request)
