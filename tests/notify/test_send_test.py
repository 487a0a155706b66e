"""`alerts send-test`: one marked notification through the production path, and what the receiver said to it."""

import json

from server.cli import alerts
from server.lib.secret import Secret
from server.notify.model import ReceiverSettings
from tests.notify.support import T0, Reply, echo, serving

URL = "http://rollscope.lab:8050"


def test_a_webhook_gets_one_marked_message() -> None:
    with serving(Reply(200, b"thanks")) as server:
        settings = ReceiverSettings("ops", "webhook", Secret(f"http://127.0.0.1:{server.port}/hook"))
        assert alerts.send_one(settings, URL, T0) == ("ops (webhook), firing: ok, HTTP 200: thanks", True)
        message = json.loads(server.next().body)
        assert server.got.empty()
    assert message["groupKey"] == '{}:{alertname="RollscopeTest", run="rollscope-test"}'
    assert message["receiver"] == "ops" and message["externalURL"] == URL
    (alert,) = message["alerts"]
    assert alert["labels"] == {
        "alertname": "RollscopeTest",
        "run": "rollscope-test",
        "severity": "info",
        "class": "liveness",
    }
    assert alert["annotations"]["summary"] == "Test of receiver ops: nothing is wrong"
    assert (alert["startsAt"], alert["endsAt"]) == ("2027-01-15T07:59:59Z", "0001-01-01T00:00:00Z")


def test_an_incident_is_opened_and_closed() -> None:
    with serving(Reply(202, b'{"status":"success"}')) as server:
        url = Secret(f"http://127.0.0.1:{server.port}/v2/enqueue")
        settings = ReceiverSettings("pager", "pagerduty", url, {"routing_key": Secret("k" * 32)})
        text, fine = alerts.send_one(settings, URL, T0)
        first, second = json.loads(server.next().body), json.loads(server.next().body)
    assert fine and text == (
        'pager (pagerduty), firing: ok, HTTP 202: {"status":"success"}\n'
        'pager (pagerduty), resolved: ok, HTTP 202: {"status":"success"}'
    )
    assert (first["event_action"], second["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == second["dedup_key"]
    assert first["payload"]["summary"].startswith("[TEST FIRING:1] RollscopeTest in run rollscope-test")


def test_a_refusal_is_told_without_the_secret() -> None:
    with serving(echo) as server:
        settings = ReceiverSettings("chat", "slack", Secret(f"http://127.0.0.1:{server.port}/services/T0/B0-secret"))
        text, fine = alerts.send_one(settings, URL, T0)
    assert not fine
    assert text.startswith("chat (slack), firing: FAILED, HTTP 400: bad request *** host: 127.0.0.1:")
    assert "secret" not in text


def test_apprise_goes_the_same_way() -> None:
    with serving() as server:
        settings = ReceiverSettings("any", "apprise", Secret(f"json://127.0.0.1:{server.port}/hook"))
        assert alerts.send_one(settings, URL, T0) == ("any (apprise), firing: ok, delivered by apprise", True)
        assert json.loads(server.next().body)["title"] == "[TEST FIRING:1] RollscopeTest in run rollscope-test"
