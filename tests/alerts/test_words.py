"""Texts of notifications: each names the target, its address and the reason in words, never an expression."""

import asyncio
import json
import re
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from msgspec import structs

from collectors.model import Target
from server.alerts.inputs import RunFrame
from server.alerts.model import Alert, Rule
from server.alerts.rules import Evaluator
from server.alerts.settings import AlertSettings
from server.alerts.text import condition_text
from server.config.alerts import load_rules
from server.lib.clock import ScaledClock
from server.lib.errors import Problems
from server.lib.secret import Secret
from server.notify import load
from server.notify.model import AlertItem, ReceiverSettings
from server.notify.receivers import apprise
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached
from tests.alerts.equality import RULES, faults, written
from tests.alerts.support import T0
from tests.notify.support import Reply, note, serving

REASON = "connection refused: nothing listens at this host and port"
ADDRESS = "http://10.0.0.3:8000"
OWN = [
    {"name": "Waits", "signal": "trainer_wait_ratio", "above": 0.4, "for": "5m"},
    {"name": "Down", "signal": "target_up", "equals": 0, "match": ['kind!~"heartbeat"'], "for": "1m"},
    {"name": "Failures", "signal": "sandbox_failures_total", "increase_over": "10m", "above": 10},
    {"name": "Limited", "verdict": ["generator_bound"], "for": "15m"},
]
OPERATOR = re.compile(r'[=!]~|[=!<>]=|&[lg]t;| [<>] |\{|\w="|\$(?!\d)|\[\d+[smhd]\]')


def own_rules() -> list[Rule]:
    problems = Problems()
    rules = load_rules({"default_pack": False, "rule": OWN}, problems)
    assert problems.messages == []
    return rules


ALL = [*RULES.values(), *own_rules()]
LIKE = {"Waits": "TrainerStarved", "Down": "TargetDown", "Failures": "SandboxInitFailures", "Limited": "Bottleneck"}


def fired(rule: Rule) -> Alert:
    """The rule's alert on the series of its fault; a target is at `ADDRESS` and refuses connections."""
    template = RULES[LIKE.get(rule.name, rule.name)]
    evaluator = Evaluator([rule], "r")
    for frame in written(template, "fires and ends", faults(template)["fires and ends"]).frames:
        assert isinstance(frame, RunFrame)
        health = {name: structs.replace(one, error="" if one.up else REASON) for name, one in frame.health.items()}
        evaluator.evaluate(replace(frame, run="r", health=health, address_of=lambda name: name and ADDRESS))
        if evaluator.firing:
            return evaluator.firing[0]
    raise AssertionError(f"{rule.name} does not fire")


def texts(alert: Alert) -> dict[str, str]:
    """Receiver -> what its reader sees."""
    item = AlertItem("firing", dict(alert.labels), alert.annotations, T0, None, alert.fingerprint, "http://here/")
    notification, found = note(item), {"annotations": "\n".join(alert.annotations.values())}
    for kind, receiver in load().items():
        if receiver.render is not None and kind not in ("webhook", "alertmanager"):  # these send the annotations
            settings = ReceiverSettings("ops", kind, Secret("http://127.0.0.1:1/hook"), {"routing_key": Secret("k")})
            found[kind] = "\n".join(strings(json.loads(receiver.render(notification, settings, T0 + 60).body)))
    found["discord"] = found["discord"].replace("\\", "")  # escapes of Markdown
    found["apprise"] = apprise._body(notification, T0 + 60)
    return found


def strings(value: object) -> list[str]:
    """All texts for a reader in a body: keys and ids are for programs."""
    if isinstance(value, dict):
        return [text for key, one in value.items() if key not in ("dedup_key", "routing_key") for text in strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_no_text_has_an_expression(rule: Rule) -> None:
    for receiver, text in texts(fired(rule)).items():
        assert OPERATOR.search(text) is None, (receiver, text)
        for condition in rule.conditions:
            # Names of one word are English words, too.
            assert "_" not in condition.name or condition.name not in text, (receiver, text)
            assert condition_text(condition) not in text, (receiver, text)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_a_target_has_its_address_and_the_reason(rule: Rule) -> None:
    alert = fired(rule)
    if "target" not in dict(alert.labels):
        return
    where = f"{dict(alert.labels)['target']} ({ADDRESS})"
    for receiver, text in texts(alert).items():
        assert where in text, (receiver, text)
        if rule.condition.name == "target_up" and rule.condition.threshold == 0:
            assert REASON in text, (receiver, text)


@pytest.mark.parametrize(
    ("name", "summary", "evidence"),
    [
        (
            "Waits", "Trainer wait of run r: 50%, limit above 40% for 5 min",
            "Trainer wait: 50%, limit above 40% for 5 min",
        ),
        ("Down", f"e0 ({ADDRESS}) of run r cannot be read: {REASON}", f"e0 ({ADDRESS}): {REASON}"),
        (
            "Failures", "Sandbox failures of run r: 11 sandboxes within 10 min, limit above 10 sandboxes",
            "Sandbox failures: 11 sandboxes, limit above 10 sandboxes",
        ),
        ("Limited", "Run r has been generator-bound for more than 15 min", "generator-bound for more than 15 min"),
    ],
)  # fmt: skip
def test_a_rule_without_texts_is_written_in_words(name: str, summary: str, evidence: str) -> None:
    (rule,) = (rule for rule in own_rules() if rule.name == name)
    assert fired(rule).annotations == {"summary": summary, "evidence": evidence}


@pytest.mark.sqlite
@pytest.mark.parametrize("store_url", [pytest.param("sqlite", marks=pytest.mark.sqlite)], indirect=True)
def test_the_address_comes_from_the_configuration_without_its_secrets(store: Store) -> None:
    """A real engine that answers once, then a closed port: through scrape loop, driver and outbox."""
    table = {"name": "Down", "signal": "target_up", "equals": 0, "for": "10s", "lifecycle": ["starting", "running"]}
    (rule,) = load_rules({"default_pack": False, "rule": [table]}, Problems())
    hook = ReceiverSettings("ops", "webhook", Secret("http://127.0.0.1:1/"))
    answer = Reply(200, b'vllm:num_requests_running{engine="0",model_name="m"} 1\n', {"Content-Type": "text/plain"})

    async def follow() -> str:
        with closing(Writer(store)) as writer, ExitStack() as stack:
            port, clock = stack.enter_context(serving(answer)).port, ScaledClock(T0)
            url = f"http://127.0.0.1:{port}/key/metrics?token=t"
            target = Target("engine-0", "run", "vllm", "generator", url=url)
            settings = AlertSettings((rule,), (hook,))
            loop = RunLoop(Attached("run", (target,)), LoopServices(store, writer, clock, settings))
            for seconds in range(0, 91, 5):
                clock.set(T0 + seconds)
                await loop.step(T0 + seconds)
                stack.close()
            await loop.close()
        return f"http://127.0.0.1:{port}"

    address = asyncio.run(follow())
    (sent,) = store.alerts.deliveries("run", 10)
    (item,) = json.loads(sent.payload)["alerts"]
    assert item["annotations"]["summary"] == f"engine-0 ({address}) of run run cannot be read: {REASON}"
