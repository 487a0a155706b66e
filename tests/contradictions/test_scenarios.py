"""No page of any demo scenario contradicts itself, another page, the API, `/metrics` or the command line."""

import json
from contextlib import closing
from copy import deepcopy
from typing import Any

import pytest
from playwright.sync_api import Browser

from bench.screenshots import WORDS, WORDS_FILE
from dashboard.app import attach
from dashboard.charts.panels import CARDS
from dashboard.pages.alerts.data import title
from dashboard.widgets.card import LIMIT_SIGNALS
from demo.scenarios import SCENARIOS
from server.api import app as routes
from server.config.alerts import defaults
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store
from tests.browser_support import exposed
from tests.contradictions import checks
from tests.contradictions.checks import CHECKS, Check
from tests.contradictions.quantities import READ, contradictions, statements
from tests.contradictions.recorded import (
    BRIEF,
    BRIEF_ALL_MOMENTS,
    BRIEF_LONG_STEPS,
    LIVE,
    MOMENTS,
    WHOLE,
    Length,
    moments,
)
from tests.contradictions.snapshot import Snapshot
from tests.dashboard.serving import Serving, until

# Words of the pictures in README and the guides, without alerts and numbers: they depend on how long a run was driven.
ALERTS = {name for rule in defaults().rules for name in (rule.name, title(rule.name))}
PICTURES = {
    key: {word.partition(": ")[0] for word in words if word not in ALERTS and "firing" not in word}
    for key, words in json.loads(WORDS_FILE.read_text()).items()
}
PICTURED = {"sandboxes": "gb300-sandbox-wall"}
# `make test` drives this scenario through all moments, and the others until they are live.
ALL_MOMENTS = "glm5-easy-curriculum"
LENGTHS = {ALL_MOMENTS: BRIEF_ALL_MOMENTS, "qwen3-235b-slime": BRIEF_LONG_STEPS}
STATES = dict(zip(MOMENTS, ("catching_up", "live", "live", "not_collected", "stale", "finished"), strict=True))
CASES = [
    *(pytest.param(name, LENGTHS.get(name, BRIEF), id=f"{name}-brief") for name in SCENARIOS),
    *(pytest.param(name, WHOLE, id=f"{name}-whole", marks=pytest.mark.long) for name in SCENARIOS),
]


@pytest.mark.parametrize(("scenario", "length"), CASES)
def test_no_page_contradicts_another(scenario: str, length: Length) -> None:
    found = moments(scenario, length)
    assert [(shown.moment, shown.state) for shown in found] == [(name, STATES[name]) for name in length.moments]
    contradictions = [
        f"{shown.moment}: {check.__name__}: {words}" for shown in found for check in CHECKS for words in check(shown)
    ]
    assert not contradictions, "\n".join(contradictions)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_overview_states_one_value_of_each_quantity(scenario: str, browser: Browser) -> None:
    """Read in Chromium: banner, cards, strip, legends, alerts and what a screen reader gets of the charts."""
    length = LENGTHS.get(scenario, BRIEF)
    moments(scenario, length)
    stored = LIVE[scenario, length]
    with closing(Store.open(stored.url)) as store:
        api = routes.create_api(Reader(store, ScaledClock(stored.now), defaults()), version="test", ready=lambda: None)
        reader = Reader(store, ScaledClock(stored.now), defaults())
        attach(api, reader, version="test")
        with Serving(lambda: api) as serving:
            page = exposed(browser.new_page(viewport={"width": 1440, "height": 900}))
            page.goto(f"{serving.url}?run={stored.run}")
            page.wait_for_selector("[data-page=ok]")
            until(page, "() => RS.chartsReady() && RS.ticks() >= 1")
            page.evaluate("RS.drawAll(); RS.summarise()")
            shown = page.evaluate(READ)
            page.set_viewport_size({"width": 1440, "height": 5000})
            for key, words in PICTURES.items():
                if scenario == PICTURED.get(key, "generator-bound"):
                    page.goto(f"{serving.url}{key if key != 'overview' else ''}?run={stored.run}")
                    page.wait_for_selector("[data-page=ok]")
                    until(page, "() => RS.ticks() >= 1")
                    today = {word.partition(": ")[0] for word in page.evaluate(WORDS)}
                    assert words - today == set(), f"the picture of {key} is old: make screenshots ARGS=--readme"
            page.close()
        verdict = reader.status(stored.run).verdict
    found = list(statements(shown))
    assert len({one.quantity for one in found}) >= 3, found
    assert list(contradictions(found)) == []
    limiter = next((one.key for one in CARDS if one.wants[0].signal == LIMIT_SIGNALS.get(verdict.cause or "")), "")
    assert not [card for card in shown["cards"] if card["key"] == limiter and card["state"] == "ok"], verdict


def test_two_values_of_one_quantity_are_found() -> None:
    """The faults that a review found on one screen."""
    line, spoken = "Engines ran 284 requests of 311 that fit, 112 waited (5 min mean)", "Queue depth: now 104, steady"
    panels = [
        {"title": "Generator requests", "drift": "", "items": [["running", "265"]], "spoken": ""},
        {"title": "Queue depth", "drift": "", "items": [["now", "200"]], "spoken": spoken},
    ]
    shown = {"lines": [line], "cards": [], "strip": ["291 running now"], "panels": panels}
    found = list(contradictions(statements(shown)))
    assert [words.partition(":")[0] for words in found] == ["requests running (5 min mean)", "queue (now)"]


PLANTED: dict[Check, tuple[str, dict[str, Any]]] = {
    checks.one_state: ("live", {"trainer:run_state": {"name": "stale", "word": "Stale"}}),
    checks.one_banner: (
        "catching up", {"overview:answer.chip": "Generator-bound", "overview:answer.chip_state": "generator"},
    ),
    checks.no_current_verdict: ("not collected", {"trainer:head.trainer.text": "The trainer is the limit"}),
    checks.no_current_health: ("catching up", {"generator:card.ge_kv.word": "OK"}),
    checks.limit_applies: (
        "live", {"overview:answer.chip_state": "sandbox", "overview:actor.sandbox.state": "not_applicable"},
    ),
    checks.rules_of_verdicts: ("live", {"verdict:outcome": "balanced"}),
    checks.tool_time_with_sandboxes_queued: (
        "live",
        {"overview:answer.cause": "tool time", "sandboxes:card.sb_starting.note": "limit not reported · 1,553 queued"},
    ),
    checks.starved_engines_with_full_engines: (
        "live",
        {"verdict:outcome": "sandbox_bound", 'signal:generator_requests_now{state="waiting"}': 900.0},
    ),
    checks.evidence_equals_signals: ("live", {"signal:trainer_wait_ratio": 0.11}),
    checks.headline_equals_card: ("live", {"overview:card.wait.figure": "11"}),
    checks.not_reported_over_points: (
        "live",
        {
            "overview:card.wait.figure": "–",
            "overview:card.wait.note": "not reported by verl",
            "overview:card.wait.why": "",
        },
    ),
    checks.limit_not_reported_beside_limit: (
        "live",
        {
            "verdict:summary": "an account limit of 128",
            "sandboxes:card.sb_starting.note": "limit not reported · 553 queued",
        },
    ),
    checks.past_tense: ("finished", {"what-if:head.what_if.before": "Now the trainer waits "}),
    checks.one_count_of_alerts: ("live", {"generator:header.firing": 77}),
    checks.one_count_of_targets: ("live", {"overview:header.src": "1/99"}),
    checks.same_signal_same_figure: ("live", {"trainer:card.tr_wait.figure": "11"}),
    checks.census_fits_sandboxes: (
        "live",
        {"sandboxes:sandboxes.mode": "ok", 'signal:sandboxes{state="running"}': 3.0,
         "rollouts:census.2": {"state": "generating", "rollouts": 960, "label": ""}},
    ),
    checks.finished_has_no_open_health: ("finished", {"runs:runs.0": {"down": 2}}),
}  # fmt: skip
"""Check -> (moment, statements that contradict the others): ``page:key``, ``signal:name`` or ``verdict:field``."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_each_check_finds_its_contradiction(check: Check) -> None:
    moment, planted = PLANTED[check]
    shown = next(one for one in moments(ALL_MOMENTS, BRIEF_ALL_MOMENTS) if one.moment == moment)
    assert list(check(shown)) == []
    assert list(check(_with(shown, planted))) != []


def _with(shown: Snapshot, planted: dict[str, Any]) -> Snapshot:
    changed = deepcopy(shown)
    for place, value in planted.items():
        kind, _, key = place.partition(":")
        if kind == "verdict":
            changed.verdict[key] = value
        elif kind == "signal":
            changed.status["signals"].setdefault(key, {"unit": ""})["value"] = value
        else:
            changed.pages[kind]["view"][key] = value
    return changed
