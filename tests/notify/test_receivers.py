"""What each receiver is told: fields, limits of the service, escapes, and words fit for 3 am."""

import hashlib
import json
from typing import Any

import pytest

from server.lib.secret import Secret
from server.notify import load
from server.notify.model import AlertItem, Notification, ReceiverSettings
from server.notify.receivers import discord, pagerduty, slack, webhook
from server.notify.text import clip, details, headline, rfc3339, span, units
from tests.notify.support import GROUP_KEY, T0, alert, note

NOW = T0 + 750.0
HOSTILE = '<!channel> @everyone & [x](http://evil) *b* _i_ `c` ~s~ > q | "√" \U0001f525\n'


def body(kind: str, found: Notification, **options: str | Secret) -> Any:
    render = load()[kind].render
    assert render is not None
    settings = ReceiverSettings("ops", kind, Secret("http://127.0.0.1:1/hook"), options)
    request = render(found, settings, NOW)
    assert request.headers["Content-Type"] == "application/json"
    return json.loads(request.body)


def huge() -> Notification:
    """60 alerts, every text of which is far too long and made of what must be escaped."""
    texts = {"summary": HOSTILE * 200, "description": HOSTILE * 500}
    alerts = [alert(engine=str(n), annotations=texts, url="http://rollscope.lab/" + "x" * 5000) for n in range(60)]
    return note(*alerts, truncated=7)


def test_every_kind_is_there() -> None:
    assert list(load()) == ["alertmanager", "apprise", "discord", "pagerduty", "slack", "webhook"]


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (T0, "2027-01-15T08:00:00Z"),
        (T0 + 0.5, "2027-01-15T08:00:00.5Z"),
        (T0 + 0.12, "2027-01-15T08:00:00.12Z"),
        (T0 + 0.001, "2027-01-15T08:00:00.001Z"),
        (T0 + 0.9996, "2027-01-15T08:00:01Z"),
        (None, "0001-01-01T00:00:00Z"),
    ],
)
def test_times_are_written_as_go_writes_them(t: float | None, text: str) -> None:
    assert rfc3339(t) == text


def test_webhook_message_field_for_field() -> None:
    first, second = alert(engine="1"), alert("resolved", ends_at=T0 + 60.25, engine="0", annotations={"summary": "s"})
    assert body("webhook", note(first, second, truncated=3)) == {
        "version": "4",
        "groupKey": GROUP_KEY,
        "truncatedAlerts": 3,
        "status": "firing",
        "receiver": "ops",
        "groupLabels": {"alertname": "TrainerStarved", "run": "a"},
        "commonLabels": {"alertname": "TrainerStarved", "run": "a", "severity": "warning", "class": "tuning"},
        "commonAnnotations": {},
        "externalURL": "http://rollscope.lab:8050",
        "notification_reason": "new alerts added",
        "alerts": [
            {
                "status": "resolved",
                "labels": {**second.labels},
                "annotations": {"summary": "s"},
                "startsAt": "2027-01-15T08:00:00Z",
                "endsAt": "2027-01-15T08:01:00.25Z",
                "generatorURL": "http://rollscope.lab:8050/?run=a&at=1800000000",
                "fingerprint": second.fingerprint,
            },
            {
                "status": "firing",
                "labels": {**first.labels},
                "annotations": {**first.annotations},
                "startsAt": "2027-01-15T08:00:00Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://rollscope.lab:8050/?run=a&at=1800000000",
                "fingerprint": first.fingerprint,
            },
        ],
    }


def test_webhook_order_is_alertmanagers() -> None:
    alerts = [alert(z="1"), alert(job="b"), alert(instance="x"), alert(job="a", instance="y"), alert(job="a"), alert()]
    message = webhook.message(note(*alerts))
    found = [{k: v for k, v in one["labels"].items() if k in ("job", "instance", "z")} for one in message["alerts"]]  # type: ignore[index,attr-defined]
    assert found == [{"job": "a", "instance": "y"}, {"job": "a"}, {"job": "b"}, {"instance": "x"}, {}, {"z": "1"}]


@pytest.mark.parametrize(
    ("reason", "status", "words"),
    [
        ("firing", "firing", "new alerts added"),
        ("repeat", "firing", "repeat interval elapsed"),
        ("resolved", "firing", "some alerts resolved"),
        ("resolved", "resolved", "all alerts resolved"),
        ("test", "firing", "first notification"),
    ],
)
def test_webhook_reasons(reason: str, status: str, words: str) -> None:
    assert body("webhook", note(reason=reason, status=status))["notification_reason"] == words


def test_webhook_bearer() -> None:
    settings = ReceiverSettings("ops", "webhook", Secret("http://h/"), {"bearer": Secret("tok")})
    assert webhook.render(note(), settings, NOW).headers["Authorization"] == "Bearer tok"


def test_the_headline_counts_and_marks() -> None:
    both = (alert(), alert("resolved", ends_at=T0 + 1, engine="1"), alert(engine="2"))
    assert headline(note(*both)) == "[FIRING:2, RESOLVED:1] TrainerStarved in run a"
    assert headline(note(reason="test")) == "[TEST FIRING:1] TrainerStarved in run a"
    assert headline(note(reason="repeat")) == "[STILL FIRING:1] TrainerStarved in run a"
    assert headline(note(both[1], status="resolved", reason="resolved")) == "[RESOLVED:1] TrainerStarved in run a"


def test_details_say_value_since_when_and_where() -> None:
    texts = {"summary": "s", "description": "wait is 0.62, limit 0.4", "runbook": "docs/starved.md"}
    assert details(alert(engine="1", annotations=texts), NOW) == (
        "wait is 0.62, limit 0.4\nfiring since 2027-01-15 08:00:00 UTC (12 min)\n"
        "warning, tuning, engine=1\nrunbook: docs/starved.md"
    )
    ended = alert("resolved", ends_at=T0 + 60, annotations={})
    assert details(ended, NOW) == "from 2027-01-15 08:00:00 to 2027-01-15 08:01:00 UTC (1 min)\nwarning, tuning"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (750, "12 min"),
        (3600, "1 h"),
        (14520, "4 h 2 min"),
        (86400, "1 d"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_clip_counts_escapes_and_tears_none() -> None:
    assert clip("a&b", 7, slack.escape) == "a&amp;b"
    assert clip("a&b", 6, slack.escape) == "a…"
    assert clip("a&&", 7, slack.escape) == "a&amp;…"
    assert clip("\U0001f525" * 3, 5) == "\U0001f525\U0001f525…"  # two UTF-16 units each
    assert clip("\U0001f525" * 3, 6) == "\U0001f525" * 3
    assert clip("abc", 0) == ""


def test_slack_message() -> None:
    found = body("slack", note(alert(severity="critical"), truncated=2))
    assert found == {
        "text": "[FIRING:1] TrainerStarved in run a",
        "attachments": [
            {
                "color": "#d32f2f",
                "fallback": "[FIRING:1] TrainerStarved in run a",
                "blocks": [
                    section(
                        "*The trainer waits 62 % of its step*\n"
                        "trainer_wait_ratio is 0.62, the limit is 0.4, for 5 min.\n"
                        "firing since 2027-01-15 08:00:00 UTC (12 min)\ncritical, tuning\n"
                        "<http://rollscope.lab:8050/?run=a&amp;at=1800000000|charts>"
                    ),
                    section("and 2 more"),
                    section("<http://rollscope.lab:8050|Rollscope>"),
                ],
            }
        ],
    }


def section(text: str) -> dict[str, object]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def test_slack_limits_and_escapes() -> None:
    found = body("slack", huge())
    blocks = found["attachments"][0]["blocks"]
    assert len(blocks) == 22 and blocks[20] == section("and 47 more")  # 60 + 7 left out - 20 shown
    for block in blocks[:20]:
        text = block["text"]["text"]
        assert 2990 < units(text) <= 3000
        assert "<" not in text and ">" not in text
    assert "&lt;!channel&gt; @everyone &amp;" in blocks[0]["text"]["text"]


def test_slack_colours() -> None:
    ended = alert("resolved", ends_at=T0 + 1, severity="critical")
    colours = {
        "#d32f2f": note(alert(severity="critical"), alert(severity="info")),
        "#f9a825": note(alert(severity="warning"), ended),  # what fires decides
        "#1976d2": note(alert(severity="info")),
        "#757575": note(alert(severity="page")),
        "#2e7d32": note(ended, status="resolved"),
    }
    for colour, found in colours.items():
        assert body("slack", found)["attachments"][0]["color"] == colour


def test_discord_message() -> None:
    ended = alert("resolved", ends_at=T0 + 60.5, engine="1", annotations={"summary": "over"}, url="")
    assert body("discord", note(ended, alert(), truncated=1)) == {
        "content": "\\[FIRING:1, RESOLVED:1\\] TrainerStarved in run a\nand 1 more",
        "embeds": [
            {
                "title": "The trainer waits 62 % of its step",
                "description": "trainer\\_wait\\_ratio is 0.62, the limit is 0.4, for 5 min.\n"
                "firing since 2027\\-01\\-15 08:00:00 UTC \\(12 min\\)\nwarning, tuning",
                "color": 0xF9A825,
                "timestamp": "2027-01-15T08:00:00Z",
                "url": "http://rollscope.lab:8050/?run=a&at=1800000000",
            },
            {
                "title": "resolved: over",
                "description": "from 2027\\-01\\-15 08:00:00 to 2027\\-01\\-15 08:01:00 UTC \\(1 min\\)\n"
                "warning, tuning, engine=1",
                "color": 0x2E7D32,
                "timestamp": "2027-01-15T08:01:00.5Z",
            },
        ],
        "allowed_mentions": {"parse": []},
    }


def test_discord_limits() -> None:
    found = body("discord", huge())
    embeds = found["embeds"]
    assert 1 <= len(embeds) <= 10 and units(found["content"]) <= 2000
    assert all(units(one["title"]) <= 256 and units(one["description"]) <= 4096 and "url" not in one for one in embeds)
    assert sum(units(one["title"]) + units(one["description"]) for one in embeds) <= 6000
    assert found["content"].endswith(f"and {67 - len(embeds)} more")
    many = body("discord", note(*(alert(engine=str(n), annotations={}) for n in range(12))))
    assert len(many["embeds"]) == 10 and many["content"].endswith("and 2 more")


def test_discord_markdown_is_shown_not_obeyed() -> None:
    found = body("discord", note(alert(annotations={"summary": "[x](http://evil) **b** <@1>"})))
    assert found["embeds"][0]["title"] == "\\[x\\]\\(http://evil\\) \\*\\*b\\*\\* \\<@1\\>"
    assert discord.escape("a\\b") == "a\\\\b"


def test_pagerduty_trigger() -> None:
    later = alert(severity="critical", target="engine-1", starts_at=T0 + 5)
    found = body("pagerduty", note(alert(target="engine-1"), later, truncated=1), routing_key=Secret("R" * 32))
    assert found["payload"].pop("custom_details") == {
        "firing": 2,
        "resolved": 0,
        "alerts": [f"firing: {later.annotations['summary']}\n{details(later, NOW)}", first_details()],
        "left out": "and 1 more",
    }
    assert found == {
        "routing_key": "R" * 32,
        "event_action": "trigger",
        "dedup_key": hashlib.sha256(GROUP_KEY.encode()).hexdigest(),
        "payload": {
            "summary": "[FIRING:2] TrainerStarved in run a: The trainer waits 62 % of its step",
            "source": "a",
            "severity": "critical",
            "timestamp": "2027-01-15T08:00:00Z",
            "component": "engine-1",
            "group": "a",
            "class": "TrainerStarved",
        },
        "client": "Rollscope",
        "client_url": "http://rollscope.lab:8050/?run=a&at=1800000000",
        "links": [
            {"href": "http://rollscope.lab:8050/?run=a&at=1800000000", "text": "The trainer waits 62 % of its step"}
        ]
        * 2,
    }


def first_details() -> str:
    found: AlertItem = alert(target="engine-1")
    return f"firing: {found.annotations['summary']}\n{details(found, NOW)}"


def test_pagerduty_resolves_the_same_incident() -> None:
    ended = note(alert("resolved", ends_at=T0 + 1), status="resolved", reason="resolved")
    found = body("pagerduty", ended, routing_key=Secret("k"))
    assert found["event_action"] == "resolve"
    assert found["dedup_key"] == body("pagerduty", note(), routing_key=Secret("k"))["dedup_key"]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("critical", "critical"), ("warning", "warning"), ("info", "info"), ("page", "error")]
)
def test_pagerduty_severities(ours: str, theirs: str) -> None:
    assert body("pagerduty", note(alert(severity=ours)))["payload"]["severity"] == theirs


def test_pagerduty_limits() -> None:
    render = load()["pagerduty"].render
    assert render is not None
    request = render(huge(), ReceiverSettings("ops", "pagerduty", options={"routing_key": Secret("k")}), NOW)
    assert request.url == "https://events.pagerduty.com/v2/enqueue"
    assert len(request.body) < 512_000
    found = json.loads(request.body)
    assert units(found["payload"]["summary"]) == 1024
    assert len(found["payload"]["custom_details"]["alerts"]) == 20
    assert load()["pagerduty"].options["routing_key"].required and not load()["pagerduty"].needs_url
    assert pagerduty.dedup_key("") == hashlib.sha256(b"").hexdigest()
