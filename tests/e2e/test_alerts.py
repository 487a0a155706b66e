"""Alerting by the whole program: real engines' pages in, real receivers out, and death in between.

One program serves most of it. All its engines cross their level at the same moment; each test follows one of them.
"""

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.alerts.model import fingerprint
from tests.e2e.alerting import Engines, Receiver, begin, engines, receiver, run_toml
from tests.e2e.program import Program, run
from tests.notify.test_alertmanager import BINARY, running

TOKEN = "server-token-1f2e3d4c5b6a"
HOOK_PATH, HOOK_BEARER = "hook-path-9a8b7c6d5e", "hook-bearer-0f1e2d3c4b"
PING_PATH, BEAT = "ping-path-77aa88bb99", "beat-token-55cc66dd77ee"
SECRETS = (TOKEN, HOOK_PATH, HOOK_BEARER, PING_PATH, BEAT)
ENV = {"ROLLSCOPE_TOKEN": TOKEN, "HOOK_BEARER": HOOK_BEARER, "BEAT_TOKEN": BEAT}
WAIT_SECONDS, POLL_SECONDS = 60.0, 0.1
HTTP_OK = httpx.codes.OK

RULES = """
[alerts]
default_pack = false
group_by = ["alertname", "target"]
group_interval = "1s"

[[alerts.rule]]
name = "QueueLong"
metric = "generator_requests_waiting"
above = 100
recover = 50
severity = "critical"
labels.team = "rl"
annotations.summary = "$value at $label_target"
"""


class Site(Program):
    """The program, with a token; polls with one connection, so that the question does not slow the answer."""

    def __init__(self, home: Path, config: Path, *args: str) -> None:
        super().__init__(home, "up", "-c", str(config), *args, **ENV)
        self.client = httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30, trust_env=False)

    def __exit__(self, *ended: Any) -> None:
        self.client.close()
        super().__exit__(*ended)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.client.get(self.url + path, **kwargs)

    def until(self, path: str, good: Callable[[Any], Any]) -> Any:
        """What `good` makes of the JSON of `path`, once that is something."""
        deadline = time.monotonic() + WAIT_SECONDS
        pause, last = threading.Event(), None
        while time.monotonic() < deadline:
            answer = self.get(path)
            last = answer.json() if answer.status_code == HTTP_OK else answer.text
            if answer.status_code == HTTP_OK and (found := good(last)):
                return found
            pause.wait(POLL_SECONDS)
        raise AssertionError(f"{path} never became good; last: {str(last)[:2000]}")

    def scraped(self, targets: list[str]) -> None:
        """Every engine was read and the run is one that is judged."""
        self.until("/api/v1/targets", lambda found: {t["target"] for t in found if t["up"]} >= {*targets, "trainer"})
        self.until("/api/v1/runs/r1/status", lambda status: status["lifecycle"] == "running")

    def alert(self, target: str, value: float = 250.0) -> dict[str, Any]:
        """The target's alert, once it fires with that value."""

        def pick(found: Any) -> Any:
            own = [a for a in found["alerts"] if a["labels"]["target"] == target]
            return next((a for a in own if (a["state"], a["value"]) == ("firing", value)), None)

        return dict(self.until("/api/v1/alerts", pick))

    def notified(self, receiver: str, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The newest notification of a receiver that is good."""
        pick = lambda rows: next((r for r in rows if r["receiver"] == receiver and good(r)), None)  # noqa: E731
        return dict(self.until("/api/v1/notifications", pick))


class Story:
    """The module's program and all around it. Every engine in `TARGETS` is over its level; `late` has just come up."""

    TARGETS = ("cross", "quiet", "late", "am")

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home = home
        self.engines: Engines = stack.enter_context(engines(*self.TARGETS))
        self.hook: Receiver = stack.enter_context(receiver())
        self.late: Receiver = stack.enter_context(receiver(listening=False))
        self.back: Receiver = stack.enter_context(receiver())
        am = stack.enter_context(running(home, self.back.port)) if BINARY else None
        self.config = home / "rollscope.toml"
        self.config.write_text(self._config(am))
        # Verbose: what is never said must not be said in any log.
        self.program: Site = stack.enter_context(Site(home, self.config, "-v"))
        self.beat = httpx.get(f"{self.program.url}/api/v1/heartbeat/{BEAT}", trust_env=False)
        self.program.scraped([*self.TARGETS, "beat"])
        self.silence = self.quieten("quiet")
        for name in self.TARGETS:
            self.engines.set(name, 250)
        self.refused = self.program.notified("late", lambda row: row["attempts"] >= 1 and row["answer"] != "")
        self.late.listen()

    def _config(self, am: str | None) -> str:
        url, ping = self.home / "hook-url", self.home / "ping-url"
        url.write_text(f"{self.hook.url}/{HOOK_PATH}")
        ping.write_text(f"{self.hook.url}/{PING_PATH}")
        receivers = [
            f'name = "hook"\nkind = "webhook"\nurl_file = "{url}"\nbearer_env = "HOOK_BEARER"\n'
            "match = ['target=\"cross\"']\n",
            f'name = "calm"\nkind = "webhook"\nurl = "{self.hook.url}/calm"\nmatch = [\'target="quiet"\']\n',
            f'name = "late"\nkind = "webhook"\nurl = "{self.late.url}/late"\nmatch = [\'target="late"\']\n',
            f'name = "echo"\nkind = "webhook"\nurl = "{self.hook.url}/echo/{HOOK_PATH}"\nbearer_env = "HOOK_BEARER"\n'
            "match = ['target=\"late\"']\n",
        ]
        if am is not None:
            receivers.append(f'name = "am"\nkind = "alertmanager"\nurl = "{am}"\nmatch = [\'target="am"\']\n')
        beat = '[[run.r1.heartbeat]]\nname = "beat"\ntoken_env = "BEAT_TOKEN"\nevery = "5s"\n'
        deadman = f'[alerts.deadman]\nurl_file = "{ping}"\ninterval = "10s"\n'
        return (
            run_toml("r1", begin(self.home / "run"), self.engines, list(self.TARGETS))
            + beat + RULES + "".join(f"[[alerts.receiver]]\n{one}" for one in receivers) + deadman
        )  # fmt: skip

    def quieten(self, target: str) -> str:
        """Silence a target's alerts for an hour; the silence's id."""
        body = {
            "matchers": [{"name": "target", "value": target, "isRegex": False, "isEqual": True}],
            "endsAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
            "createdBy": "alice",
            "comment": "planned",
        }
        answer = self.program.client.post(f"{self.program.url}/api/v1/silences", json=body)
        assert answer.status_code == HTTP_OK, answer.text
        return str(answer.json()["silenceID"])

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run(self.home, *args, **ENV)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with ExitStack() as stack:
        yield Story(tmp_path_factory.mktemp("alerts"), stack)


def said(target: str) -> dict[str, str]:
    """Annotations of an alert of the rule above: its own, and the numbers every alert has."""
    evidence = "Generator requests waiting: 250 requests, limit above 100 requests"
    return {"summary": f"250 requests at {target}", "evidence": evidence}


def statuses(messages: list[dict[str, Any]]) -> list[str]:
    return [message["status"] for message in messages]


def test_a_crossing_reaches_the_webhook_and_so_does_the_recovery(story: Story) -> None:
    message = story.hook.message("cross", "firing")
    alert = message["alerts"][0]
    labels = {
        "alertname": "QueueLong", "class": "tuning", "engine": "0", "run": "r1", "severity": "critical",
        "target": "cross", "team": "rl",
    }  # fmt: skip
    began = datetime.fromisoformat(alert["startsAt"]).timestamp()
    grouped = {"alertname": "QueueLong", "run": "r1", "target": "cross"}
    assert message == {
        "receiver": "hook",
        "status": "firing",
        "alerts": [
            {
                "status": "firing",
                "labels": labels,
                "annotations": said("cross"),
                "startsAt": alert["startsAt"],
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": f"{story.program.url}/?run=r1&start={began - 1800:.0f}&end={began + 900:.0f}",
                "fingerprint": fingerprint(tuple(labels.items())),
            }
        ],
        "groupLabels": grouped,
        "commonLabels": labels,
        "commonAnnotations": said("cross"),
        "externalURL": story.program.url,
        "notification_reason": "new alerts added",
        "version": "4",
        "groupKey": '{}:{alertname="QueueLong", run="r1", target="cross"}',
        "truncatedAlerts": 0,
    }
    assert began % 5 == 0, "it fires at the tick that saw it"
    assert story.program.get(alert["generatorURL"].removeprefix(story.program.url)).status_code == HTTP_OK
    sent = next(one for one in story.hook.got if one.body == message)
    assert (sent.path, sent.headers["authorization"]) == (f"/{HOOK_PATH}", f"Bearer {HOOK_BEARER}")

    story.engines.set("cross", 60)  # below the level, above recovery
    assert story.program.alert("cross", 60.0)["state"] == "firing"
    story.engines.set("cross", 40)
    over = story.hook.message("cross", "resolved")
    ended = datetime.fromisoformat(over["alerts"][0]["endsAt"]).timestamp()
    assert over["alerts"][0]["startsAt"] == alert["startsAt"] and ended > began and ended % 5 == 0
    assert (over["alerts"][0]["fingerprint"], over["groupKey"]) == (alert["fingerprint"], message["groupKey"])
    assert statuses(story.hook.told("cross")) == ["firing", "resolved"]


def test_a_receiver_that_is_away_at_first_is_told_once(story: Story) -> None:
    assert story.refused["status"] == "pending", "it is not given up"
    assert story.refused["answer"].startswith("no answer: connection refused")
    first = story.late.message("late", "firing")
    assert first["alerts"][0]["annotations"] == said("late")
    story.engines.set("late", 0)
    story.late.message("late", "resolved")
    assert statuses(story.late.told("late")) == ["firing", "resolved"]


def test_a_silence_keeps_quiet_and_its_end_tells(story: Story) -> None:
    alert = story.program.alert("quiet")
    # An alert and what is told of it are one commit: whoever sees it fire and finds nothing knows there is nothing.
    rows = story.program.get("/api/v1/notifications").json()
    assert rows and [row for row in rows if row["receiver"] == "calm"] == []
    assert alert["muted"].startswith("silenced by alice until ")
    assert alert["muted"].endswith(f": planned (id {story.silence})")
    answer = story.program.client.delete(f"{story.program.url}/api/v1/silences/{story.silence}")
    assert (answer.status_code, answer.json()) == (HTTP_OK, {"status": "ended"})
    message = story.hook.message("quiet", "firing")
    assert message["alerts"][0]["fingerprint"] == alert["fingerprint"]
    assert datetime.fromisoformat(message["alerts"][0]["startsAt"]).timestamp() == alert["fired_at"]
    assert statuses(story.hook.told("quiet")) == ["firing"]


@pytest.mark.skipif(BINARY is None, reason="prometheus-alertmanager is not installed: nothing real to be told by us")
def test_a_real_alertmanager_groups_our_alert_and_calls_back(story: Story) -> None:
    alert = story.program.alert("am")
    back = story.back.message("am", "firing")
    assert back["groupLabels"] == {"alertname": "QueueLong", "run": "r1"}
    genuine = back["alerts"][0]
    assert genuine["labels"] == alert["labels"] and genuine["fingerprint"] == alert["fingerprint"]
    assert datetime.fromisoformat(genuine["startsAt"]).timestamp() == alert["fired_at"]
    assert genuine["annotations"] == said("am")
    assert genuine["generatorURL"].startswith(f"{story.program.url}/?run=r1&start=")
    story.engines.set("am", 0)
    over = story.back.message("am", "resolved")
    assert over["alerts"][0]["fingerprint"] == alert["fingerprint"]


def test_a_heartbeat_needs_no_header_and_its_silence_is_a_target_that_is_down(story: Story) -> None:
    # Sent when the program had begun; that the target was up is what `Story` waited for.
    assert (story.beat.status_code, story.beat.json()) == (HTTP_OK, {"status": "ok"})
    wrong = httpx.get(f"{story.program.url}/api/v1/heartbeat/{BEAT[:-1]}x", trust_env=False)
    assert wrong.status_code == httpx.codes.NOT_FOUND
    assert httpx.get(f"{story.program.url}/api/v1/targets", trust_env=False).status_code == httpx.codes.UNAUTHORIZED
    pick = lambda found: next((t for t in found if t["target"] == "beat" and not t["up"]), None)  # noqa: E731
    silent = story.program.until("/api/v1/targets", pick)
    assert silent["kind"] == "heartbeat" and silent["error"].endswith("; expected every 5 s"), silent


def test_the_dead_mans_url_is_pinged_while_all_is_well(story: Story) -> None:
    pings = story.hook.until(lambda got: [one for one in got if one.path == f"/{PING_PATH}"])
    assert {(one.method, one.body) for one in pings} == {("GET", None)}


def test_send_test_reaches_the_receiver_or_says_why_not(story: Story) -> None:
    done = story.command("alerts", "send-test", "hook", "-c", str(story.config))
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == "hook (webhook), firing: ok, HTTP 200: ok\n"
    sent = next(one for one in story.hook.got if one.body and one.body["groupLabels"]["alertname"] == "RollscopeTest")
    assert sent.body["notification_reason"] == "first notification"
    quoted = story.command("alerts", "send-test", "echo", "-c", str(story.config))
    assert quoted.returncode == 1 and quoted.stdout.startswith("echo (webhook), firing: FAILED, HTTP 400: ")
    assert_no_secret(quoted.stdout + quoted.stderr)
    unknown = story.command("alerts", "send-test", "nobody", "-c", str(story.config))
    assert unknown.returncode == 2 and "configured: hook, calm, late, echo" in unknown.stderr


def test_send_test_to_a_dead_receiver_exits_1(tmp_path: Path) -> None:
    with receiver(listening=False) as dead:
        config = tmp_path / "c.toml"
        config.write_text(f'[[alerts.receiver]]\nname = "r"\nkind = "webhook"\nurl = "{dead.url}/{HOOK_PATH}"\n')
        done = run(tmp_path, "alerts", "send-test", "r", "-c", str(config))
    assert done.returncode == 1 and done.stdout.startswith("r (webhook), firing: FAILED, no answer: connection refused")
    assert_no_secret(done.stdout + done.stderr)


@pytest.mark.parametrize(("level", "code"), [(0.9, 0), (0.1, 1), ("broken", 2)])
def test_alerts_test_tells_right_wrong_and_broken_apart(tmp_path: Path, level: float | str, code: int) -> None:
    (tmp_path / "test.yml").write_text(
        "evaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n"
        f"  - {{series: trainer_wait_ratio, values: '{level}+0x20'}}\n"
        "  alert_rule_test:\n  - eval_time: 10m\n    alertname: TrainerStarved\n"
        "    exp_alerts: [{exp_labels: {severity: warning}}]\n"
    )
    done = run(tmp_path, "alerts", "test", "test.yml")
    assert done.returncode == code, done.stdout + done.stderr
    assert ("SUCCESS" in done.stdout, "FAILED" in done.stdout) == (code == 0, code == 1)
    assert (code == 2) == bool(done.stderr) and "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: nobody to check the rules")
def test_exported_rules_pass_promtool(tmp_path: Path) -> None:
    exported = run(tmp_path, "export", "rules")
    (tmp_path / "rules.yml").write_text(exported.stdout)
    checked = subprocess.run(
        ["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (exported.returncode, checked.returncode) == (0, 0), exported.stderr + checked.stderr
    assert "SUCCESS: " in checked.stdout


def test_check_names_the_rules_that_can_fire(story: Story) -> None:
    done = story.command("check", "-c", str(story.config), story.engines.url("cross"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 alert rules; alerts go to hook (webhook), calm (webhook), late (webhook), echo (webhook)" in done.stdout
    assert done.stdout.count("rules that can fire: 1 of 1: QueueLong") == 2  # of the file's run, and of the source
    assert_no_secret(done.stdout + done.stderr)


@pytest.mark.crash
def test_killed_between_firing_and_resolving_and_while_a_receiver_is_away(tmp_path: Path, empty_url: str) -> None:
    """kill -9, then the same program again: nothing told twice, nothing lost. Both databases."""
    names = ["told", "kept"]
    with engines(*names) as pages, receiver() as hook, receiver(listening=False) as away:
        config = tmp_path / "rollscope.toml"
        own = f'[[alerts.receiver]]\nname = "hook"\nkind = "webhook"\nurl = "{hook.url}"\nmatch = [\'target="told"\']\n'
        other = (
            f'[[alerts.receiver]]\nname = "away"\nkind = "webhook"\nurl = "{away.url}"\nmatch = [\'target="kept"\']\n'
        )
        store = f'[store]\nurl = "{empty_url}"\n'
        config.write_text(store + run_toml("r1", begin(tmp_path / "run"), pages, names) + RULES + own + other)
        for name in names:
            pages.set(name, 250)
        with Site(tmp_path, config) as first:
            hook.message("told", "firing")
            first.notified("hook", lambda row: row["status"] == "sent")
            first.notified("away", lambda row: row["attempts"] >= 1 and row["answer"] != "")
            fired = first.alert("kept")["fired_at"]
            assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
        pages.set("told", 260)
        with Site(tmp_path, config) as second:
            away.listen()
            second.alert("told", 260.0)  # it was judged again, as the same alert
            pages.set("told", 0)
            over = hook.message("told", "resolved")
            assert over["alerts"][0]["startsAt"] == hook.told("told")[0]["alerts"][0]["startsAt"]
            late = away.message("kept", "firing")
            assert datetime.fromisoformat(late["alerts"][0]["startsAt"]).timestamp() == fired
            second.notified("away", lambda row: row["status"] == "sent")
        assert statuses(hook.told("told")) == ["firing", "resolved"]
        assert statuses(away.told("kept")) == ["firing"]


def assert_no_secret(text: str) -> None:
    found = [secret for secret in SECRETS if secret in text]
    assert found == [], text[:2000]


def test_secrets_are_shown_nowhere(story: Story) -> None:
    """The last one: it ends the program to read what it has said."""
    # A receiver that quotes what it was sent: its words are kept, without what was secret in them.
    quoted = story.program.notified("echo", lambda row: row["status"] == "failed")
    assert quoted["answer"].startswith("HTTP 400: ***") and quoted["attempts"] == 1, quoted
    for path in ("rules", "notifications", "alerts?history=50", "silences?expired=true", "targets", "runs/r1/status"):
        answer = story.program.get(f"/api/v1/{path}")
        assert answer.status_code == HTTP_OK and answer.json(), path
        assert_no_secret(answer.text)
    for path in ("/metrics", "/", "/alerts", "/_dash-layout", "/openapi.json", "/readyz"):
        answer = story.program.get(path)
        assert answer.status_code == HTTP_OK, path
        assert_no_secret(answer.text)
    story.program.process.send_signal(signal.SIGTERM)
    said, errors = story.program.process.communicate(timeout=30)
    assert story.program.process.returncode == 0 and "Traceback" not in errors
    assert "receiver late: delivered again" in errors and "receiver echo: a notification was not" in errors
    assert_no_secret(said + errors)
