"""Where an alert leads: to the page that shows what it watches, at its own moment."""

from urllib.parse import parse_qs, urlsplit

import pytest

from server.alerts import text
from server.alerts.model import Condition, Rule
from server.config.alerts import defaults

RULES = {rule.name: rule for rule in defaults().rules}


def watching(name: str) -> Rule:
    return Rule("Own", Condition("threshold", "signal", name))


def test_every_rule_of_sandboxes_leads_to_their_page() -> None:
    found = {name for name, rule in RULES.items() if text.moment("r", rule, 0.0).startswith("/sandboxes?")}
    assert found == {
        "SandboxCreditLow", "SandboxInitFailures", "SandboxPendingLong", "SandboxQuotaLow", "SandboxSpinupSlow",
        "SandboxesDangling",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (RULES["TrainerStarved"], "/"),
        (watching("sandbox_exec_seconds"), "/sandboxes"),
        (watching("no_such_signal"), "/"),
        (None, "/"),
    ],
)
def test_run_and_time_are_kept(rule: Rule | None, path: str) -> None:
    found = urlsplit(text.moment("a&b", rule, 10_000.0, 12_000.0))
    assert (found.path, parse_qs(found.query)) == (path, {"run": ["a&b"], "start": ["8200"], "end": ["12900"]})
    assert parse_qs(urlsplit(text.moment("r", rule, 10_000.0)).query)["end"] == ["10900"]
