"""Inhibition and silences, as Alertmanager means them."""

import random

import pytest

from server.alerts.model import Alert, Silence, State, fingerprint
from server.alerts.mute import InhibitRule, mute
from server.lib.matchers import Matcher, parse

NOON = 1_800_014_400.0  # 2027-01-15 12:00 UTC
LIVENESS = InhibitRule((parse("class=liveness"),), (parse('class=~"tuning|cost"'),), ("run",))


def alert(name: str, class_: str = "tuning", state: State = "firing", at: float = NOON, **labels: str) -> Alert:
    pairs = tuple(sorted({"alertname": name, "run": "r", "class": class_, **labels}.items()))
    return Alert(name, (), pairs, fingerprint(pairs), state, at, fired_at=at)


def muted(alerts: list[Alert], *inhibits: InhibitRule, silences: tuple[Silence, ...] = ()) -> dict[str, str]:
    """rule -> words."""
    names = {one.fingerprint: one.rule for one in alerts}
    return {names[found]: words for found, words in mute(alerts, inhibits, silences, NOON).items()}


def silence(*matchers: str, starts: float = -60.0, ends: float = 1800.0, comment: str = "maintenance") -> Silence:
    return Silence("5f", tuple(parse(one) for one in matchers), NOON + starts, NOON + ends, "alice", comment)


# -- inhibition


def test_what_is_dead_cannot_be_tuned() -> None:
    alerts = [alert("RunStalled", "liveness"), alert("Drift"), alert("Bill", "cost"), alert("Kv", "infrastructure")]
    words = "inhibited by RunStalled (liveness)"
    assert muted(alerts, LIVENESS) == {"Drift": words, "Bill": words}
    assert muted(alerts) == {}


@pytest.mark.parametrize(("state", "count"), [("firing", 1), ("pending", 0), ("resolved", 0), ("inactive", 0)])
def test_only_what_fires_inhibits(state: State, count: int) -> None:
    assert len(muted([alert("RunStalled", "liveness", state), alert("Drift")], LIVENESS)) == count


def test_pending_and_resolved_are_inhibited_too() -> None:
    alerts = [alert("RunStalled", "liveness"), alert("A", state="pending"), alert("B", state="resolved")]
    assert set(muted(alerts, LIVENESS)) == {"A", "B"}
    assert muted([alerts[0], alert("C", state="inactive")], LIVENESS) == {}


@pytest.mark.parametrize(
    ("source", "target", "inhibited"),
    [
        ({"zone": "a"}, {"zone": "a"}, True),
        ({"zone": "a"}, {"zone": "b"}, False),
        ({"zone": "a"}, {}, False),
        ({}, {}, True),
        ({"zone": ""}, {}, True),  # a missing label equals an empty one
        ({}, {"zone": ""}, True),
    ],
)
def test_equal(source: dict[str, str], target: dict[str, str], inhibited: bool) -> None:
    rule = InhibitRule((parse("class=liveness"),), (parse("class=tuning"),), ("zone", "run"))
    found = muted([alert("S", "liveness", **source), alert("T", **target)], rule)
    assert found == ({"T": "inhibited by S (liveness)"} if inhibited else {})


def test_an_alert_does_not_inhibit_itself_nor_its_like() -> None:
    """Source: Alertmanager's `inhibit_rule`: both sides match, so neither is inhibited by the other."""
    both = InhibitRule((parse("severity=critical"),), (parse("severity=critical"),))
    assert muted([alert("A", severity="critical")], both) == {}
    assert muted([alert("A", severity="critical"), alert("B", severity="critical")], both) == {}


def test_one_on_both_sides_is_inhibited_by_a_pure_source() -> None:
    rule = InhibitRule((parse("class=liveness"),), (parse("severity=warning"),))
    pure = alert("Pure", "liveness", severity="critical", at=NOON + 5)
    both = alert("Both", "liveness", severity="warning")
    target = alert("Target", severity="warning")
    assert muted([both, target], rule) == {"Target": "inhibited by Both (liveness)"}
    assert muted([pure, both, target], rule) == {
        "Both": "inhibited by Pure (liveness)", "Target": "inhibited by Both (liveness)",
    }  # fmt: skip


def test_an_inhibited_source_inhibits_still() -> None:
    rules = (LIVENESS, InhibitRule((parse("alertname=Drift"),), (parse("alertname=Kv"),)))
    alerts = [alert("RunStalled", "liveness"), alert("Drift"), alert("Kv", "infrastructure")]
    assert muted(alerts, *rules)["Kv"] == "inhibited by Drift (tuning)"


def test_the_oldest_source_is_named_in_any_order() -> None:
    alerts = [alert(f"S{n}", "liveness", at=NOON - n) for n in range(5)] + [alert("Drift")]
    random.Random(1).shuffle(alerts)
    assert muted(alerts, LIVENESS) == {"Drift": "inhibited by S4 (liveness)"}


def brute(alerts: list[Alert], rule: InhibitRule) -> set[str]:
    """Every pair, by the definition."""
    found = set()
    for target in alerts:
        labels = dict(target.labels)
        if not all(m.matches(labels) for m in rule.target):
            continue
        both = all(m.matches(labels) for m in rule.source)
        for source in alerts:
            other = dict(source.labels)
            if source.state != "firing" or not all(m.matches(other) for m in rule.source):
                continue
            if both and all(m.matches(other) for m in rule.target):
                continue
            if all(labels.get(name, "") == other.get(name, "") for name in rule.equal):
                found.add(target.fingerprint)
    return found


def test_the_index_says_what_every_pair_says() -> None:
    rng = random.Random(7)
    states: tuple[State, ...] = ("firing", "pending", "resolved")
    classes, names = ("liveness", "tuning"), ("class", "x", "y")
    for _ in range(300):
        alerts = [
            alert(str(n), rng.choice(classes), rng.choice(states), x=rng.choice("ab"), y=rng.choice("ab"))
            for n in range(rng.randrange(8))
        ]  # fmt: skip
        sides = [
            tuple(Matcher(rng.choice(names), rng.choice(("=", "!=")), rng.choice(("a", "tuning"))) for _ in "12")
            for _ in "st"
        ]  # fmt: skip
        rule = InhibitRule(sides[0], sides[1], tuple(rng.sample(("run", "x", "y"), rng.randrange(3))))
        assert set(mute(alerts, [rule], [], NOON)) == brute(alerts, rule)


# -- silences


def test_a_silence_in_words() -> None:
    found = muted([alert("Drift"), alert("Kv")], silences=(silence('alertname=~"Dri.*"', "run=r"),))
    assert found == {"Drift": "silenced by alice until 12:30 UTC: maintenance (id 5f)"}


@pytest.mark.parametrize(
    ("starts", "ends", "active"),
    [(-10.0, 10.0, True), (0.0, 10.0, True), (1.0, 10.0, False), (-10.0, 0.0, False), (-10.0, 0.001, True)],
)
def test_when_a_silence_holds(starts: float, ends: float, active: bool) -> None:
    found = muted([alert("Drift")], silences=(silence("run=r", starts=starts, ends=ends),))
    assert bool(found) is active


def test_all_matchers_must_hold() -> None:
    assert muted([alert("Drift")], silences=(silence("run=r", "class=cost"),)) == {}


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (11.9 * 3600, "until 23:54 UTC"),
        (13 * 3600, "until 2027-01-16 01:00 UTC"),
        (40 * 86_400, "until 2027-02-24 12:00 UTC"),
        (1e15, "until further notice"),
    ],
)
def test_until_when(ends: float, words: str) -> None:
    (found,) = muted([alert("Drift")], silences=(silence("run=r", ends=ends),)).values()
    assert f"silenced by alice {words}: maintenance" in found


def test_long_and_wild_comments_stay_in_one_line() -> None:
    (found,) = muted([alert("Drift")], silences=(silence("run=r", comment="a\n\tb" + "x" * 999),)).values()
    assert found == f"silenced by alice until 12:30 UTC: a b{'x' * 197} (id 5f)"
    (found,) = muted([alert("Drift")], silences=(silence("run=r", comment=" "),)).values()
    assert found == "silenced by alice until 12:30 UTC (id 5f)"


def test_inhibition_is_named_before_a_silence() -> None:
    alerts = [alert("RunStalled", "liveness"), alert("Drift")]
    found = muted(alerts, LIVENESS, silences=(silence("run=r"),))
    assert found["Drift"].startswith("inhibited") and found["RunStalled"].startswith("silenced")
