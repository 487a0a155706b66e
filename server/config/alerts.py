"""`[alerts]` of the configuration: the default pack merged with the user's rules, receivers, inhibition.

Pure except for secrets, which come from the environment or from files. Errors are collected, each with its key.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from collectors.catalog import METRICS
from collectors.model import Labels
from server import notify, signals
from server.alerts import text
from server.alerts.inputs import TARGET_UP
from server.alerts.model import CLASSES, Condition, Operator, Rule
from server.alerts.mute import InhibitRule
from server.alerts.settings import LIVENESS_FIRST, AlertSettings, DeadManSettings
from server.lib import matchers
from server.lib.errors import ConfigError, Problems, suggestion
from server.lib.matchers import Matcher
from server.lib.outbound_policy import refuse_target
from server.lib.secret import NO_SECRET, Secret
from server.notify.model import SEVERITIES, ReceiverSettings
from server.verdict.model import VERDICT_OUTCOMES

# ---- alert rules
# Parses one rule's TOML table into a `Rule`; every error is reported with its fix.

COMPARISONS: Mapping[str, Operator] = {
    "above": ">", "at_least": ">=", "below": "<", "at_most": "<=", "equals": "==", "not_equals": "!=",
}  # fmt: skip
SOURCES = ("signal", "metric", "drift", "verdict", "forecast", "burn_usd")
CONDITION_KEYS = frozenset(
    {*SOURCES, *COMPARISONS, "match", "recover", "increase_over", "factor", "within", "over", "absent"}
)
RULE_KEYS = CONDITION_KEYS | {
    "name", "for", "keep_firing_for", "severity", "class", "labels", "annotations", "no_data", "no_data_after",
    "lifecycle", "also", "promql",
}  # fmt: skip
LIFECYCLES = ("starting", "running", "paused", "finished", "crashed")
# Receivers identify alerts by these labels, so a rule must not set them.
RESERVED = frozenset({"alertname", "run", "severity", "class"})
HEALTH = frozenset({"up", "scrape_duration_seconds", "scrape_samples_scraped"})
# Seconds. Samples of a metric are retained for five minutes; our counters longer.
METRIC_WINDOW = 300.0
DEFAULT_NO_DATA_AFTER = 300.0


def known_signals() -> frozenset[str]:
    """Every name a rule may use as a signal."""
    return frozenset(item.name for item in signals.load()) | {TARGET_UP}


def parse_rule(table: Mapping[str, Any], problems: Problems, where: str, *, builtin: bool = False) -> Rule | None:
    """A rule, or None if it has errors, which are then in ``problems``."""
    before = len(problems.messages)
    problems.unknown(table, set(RULE_KEYS), where)
    name = problems.take(table, "name", str, "", where)
    if not name:
        problems.add(f"{where}.name", "is missing")
    _check_promql(table, problems, where)
    rule = Rule(
        name=name,
        condition=_condition(table, problems, where),
        also=tuple(_also(table, problems, where)),
        for_seconds=seconds(table, "for", 0.0, problems, where),
        keep_firing_seconds=seconds(table, "keep_firing_for", 0.0, problems, where),
        severity=_choice(table, "severity", SEVERITIES, "warning", problems, where),
        class_=_choice(table, "class", CLASSES, "tuning", problems, where),
        labels=_labels(table, problems, where),
        annotations=_annotations(table, problems, where),
        no_data=_choice(table, "no_data", ("hold", "alert", "ok"), "hold", problems, where),  # type: ignore[arg-type]
        no_data_after=seconds(table, "no_data_after", DEFAULT_NO_DATA_AFTER, problems, where),
        lifecycle=frozenset(_lifecycle(table, problems, where)),
        builtin=builtin,
        promql=problems.take(table, "promql", str, "", where),
    )
    return rule if len(problems.messages) == before else None


def seconds(table: Mapping[str, Any], key: str, default: float, problems: Problems, where: str) -> float:
    """A duration: "5m", "1h30m" or a number of seconds."""
    try:
        return text.parse_duration(table[key]) if key in table else default
    except ValueError as error:
        problems.add(f"{where}.{key}", str(error))
        return default


def match_list(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> tuple[Matcher, ...]:
    """Matchers as strings, each checked."""
    found = []
    for index, item in enumerate(problems.take(table, key, list, [], where)):
        try:
            found.append(matchers.parse(str(item)))
        except ValueError as error:
            problems.add(f"{where}.{key}[{index}]", str(error))
    return tuple(found)


# ---- conditions


def _also(rule: Mapping[str, Any], problems: Problems, where: str) -> Iterable[Condition]:
    for index, table in enumerate(problems.take(rule, "also", list, [], where)):
        where_also = f"{where}.also[{index}]"
        if isinstance(table, dict):
            problems.unknown(table, set(CONDITION_KEYS), where_also)
            yield _condition(table, problems, where_also)
        else:
            problems.add(where_also, 'must be a table such as { metric = "generator_requests_running", above = 0 }')


def _condition(table: Mapping[str, Any], problems: Problems, where: str) -> Condition:
    given = [key for key in SOURCES if key in table]
    if len(given) != 1:
        problems.add(
            where, f"needs exactly one of {', '.join(SOURCES)}" + (f", has {' and '.join(given)}" if given else "")
        )
        return Condition("threshold", "signal", "")
    match = match_list(table, "match", problems, where)
    parse_condition = {"drift": _drift, "verdict": _verdict, "forecast": _forecast, "burn_usd": _burn}.get(
        given[0], _threshold
    )
    condition = parse_condition(table, match, problems, where)
    _check_name(condition, problems, f"{where}.{given[0]}")
    return condition


def _threshold(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """A threshold on a signal or metric, or its absence."""
    source = "signal" if "signal" in table else "metric"
    name = problems.take(table, source, str, "", where)
    if problems.take(table, "absent", bool, False, where):
        if any(key in table for key in COMPARISONS):
            problems.add(where, "absent cannot be combined with a comparison")
        return Condition("absence", source, name, matchers=match)  # type: ignore[arg-type]
    op, level = _comparison(table, problems, where)
    window = seconds(table, "increase_over", 0.0, problems, where)
    if source == "metric" and window > METRIC_WINDOW:
        problems.add(f"{where}.increase_over", f"samples are retained for {METRIC_WINDOW:.0f} s only; use a signal")
    of = "increase" if window > 0 else "value"
    recover = _recover(table, op, level, problems, where)
    return Condition("threshold", source, name, op, level, recover, match, of, window)  # type: ignore[arg-type]


def _drift(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """A signal's factor relative to the run's first steps."""
    name = problems.take(table, "drift", str, "", where)
    factor = _number(table, "factor", problems, where)
    recover = _recover(table, ">", factor, problems, where)
    return Condition("drift", "signal", f"{name}_drift_ratio", ">", factor, recover, match)


def _verdict(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """The verdict is one of the listed outcomes."""
    outcomes = problems.take(table, "verdict", list, [], where)
    wrong = [outcome for outcome in outcomes if not isinstance(outcome, str) or not outcome.isidentifier()]
    if wrong or not outcomes:
        problems.add(f"{where}.verdict", 'must be a list of outcomes such as ["generator_bound", "sandbox_bound"]')
        return Condition("verdict", "signal", "bottleneck")
    for unknown in [outcome for outcome in outcomes if outcome not in VERDICT_OUTCOMES]:
        problems.add(f"{where}.verdict", f"no outcome is named {unknown!r}; {suggestion(unknown, VERDICT_OUTCOMES)}")
    is_one = Matcher("verdict", "=~", "|".join(outcomes))
    return Condition("verdict", "signal", "bottleneck", "==", 1.0, None, (is_one, *match))


def _forecast(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """A signal will cross its limit within a time."""
    name = problems.take(table, "forecast", str, "", where)
    within = seconds(table, "within", 0.0, problems, where)
    if within <= 0:
        problems.add(f"{where}.within", 'is missing: how far ahead, such as "6h"')
    return Condition("forecast", "signal", f"{name}_forecast_seconds", "<", within, None, match)


def _burn(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """Cost of idle time within a window, in USD."""
    dollars = _number(table, "burn_usd", problems, where)
    window = seconds(table, "over", 3600.0, problems, where)
    return Condition("burn", "signal", "idle_usd_total", ">", dollars, None, match, "increase", window)


def _check_promql(table: Mapping[str, Any], problems: Problems, where: str) -> None:
    """Check brackets and quotes: one broken expression makes Prometheus refuse the whole exported file."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(table.get("promql", "")))
    open_ = [bare.count(char) for char in "({["]
    if open_ != [bare.count(char) for char in ")}]"] or '"' in bare or "{{" in bare:
        problems.add(f"{where}.promql", "its brackets or quotes do not match")


def _check_name(condition: Condition, problems: Problems, where: str) -> None:
    known_names = known_signals() if condition.source == "signal" else METRICS.keys() | HEALTH
    if condition.name in known_names or not condition.name:
        return
    near = difflib.get_close_matches(condition.name, known_names, 2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    problems.add(where, f"no {condition.source} is named {condition.name!r}{hint}")


def _comparison(table: Mapping[str, Any], problems: Problems, where: str) -> tuple[Operator, float]:
    given = [key for key in COMPARISONS if key in table]
    if len(given) != 1:
        problems.add(where, f"needs exactly one of {', '.join(COMPARISONS)} (or absent = true)")
        return ">", 0.0
    return COMPARISONS[given[0]], _number(table, given[0], problems, where)


def _recover(table: Mapping[str, Any], op: Operator, level: float, problems: Problems, where: str) -> float | None:
    if "recover" not in table:
        return None
    recover = _number(table, "recover", problems, where)
    up, down = op in (">", ">="), op in ("<", "<=")
    if (up and recover > level) or (down and recover < level) or not (up or down):
        problems.add(f"{where}.recover", "must be on the healthy side of the above, at_least, below or at_most level")
    return recover


def _number(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> float:
    value = problems.take(table, key, (int, float), None, where)
    if value is None and key not in table:
        problems.add(f"{where}.{key}", "is missing")
    if value is not None and not abs(value) <= 1e300:
        problems.add(f"{where}.{key}", "must be a finite number")
    return float(value) if value is not None else 0.0


# ---- other keys


def _choice(
    table: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str, problems: Problems, where: str
) -> str:
    value: str = problems.take(table, key, str, default, where)
    if value not in choices:
        problems.add(f"{where}.{key}", f"must be one of {', '.join(choices)}")
    return value


def _labels(table: Mapping[str, Any], problems: Problems, where: str) -> Labels:
    labels = problems.take(table, "labels", dict, {}, where)
    for name, value in labels.items():
        if name in RESERVED or not name.isidentifier() or not isinstance(value, str):
            problems.add(f"{where}.labels.{name}", f"must be a string, and not one of {', '.join(sorted(RESERVED))}")
    return tuple(sorted((name, str(value)) for name, value in labels.items()))


def _annotations(table: Mapping[str, Any], problems: Problems, where: str) -> dict[str, str]:
    annotations = problems.take(table, "annotations", dict, {}, where)
    for name, value in annotations.items():
        errors = text.problems(value) if isinstance(value, str) else ["must be a string"]
        for problem in errors:
            problems.add(f"{where}.annotations.{name}", problem)
    return {str(name): str(value) for name, value in annotations.items()}


def _lifecycle(table: Mapping[str, Any], problems: Problems, where: str) -> list[str]:
    states = problems.take(table, "lifecycle", list, ["running"], where)
    if not states or any(state not in LIFECYCLES for state in states):
        problems.add(f"{where}.lifecycle", f"must be a list of {', '.join(LIFECYCLES)}")
    return [str(state) for state in states]


ALERT_KEYS = {
    "default_pack", "disable", "group_by", "group_wait", "group_interval", "repeat_interval", "external_url", "rule",
    "receiver", "inhibit", "deadman",
}  # fmt: skip
GROUP_KEYS = {"group_by", "group_wait", "group_interval", "repeat_interval"}
RECEIVER_KEYS = {"name", "kind", "url", "url_file", "url_env", "send_resolved", "max_alerts", "match", *GROUP_KEYS}
# Seconds. A shorter interval would repeat a notification at almost every tick.
SHORTEST_REPEAT = 60.0
# Seconds between pings of the dead-man switch.
SHORTEST_PING = 10.0


def defaults() -> AlertSettings:
    """Settings without any configuration: the pack's rules and no receiver."""
    return AlertSettings(rules=load_rules({}, Problems()))


@cache
def pack() -> Mapping[str, Mapping[str, Any]]:
    """The default pack's tables by rule name, in order. Read only."""
    text = files("server.alerts").joinpath("pack.toml").read_text("utf-8")
    return {str(table["name"]): table for table in tomllib.loads(text)["rule"]}


def load_rules(raw: Mapping[str, Any], problems: Problems) -> tuple[Rule, ...]:
    """Rules of an ``[alerts]`` table: the pack with the user's changes, then the user's own rules."""
    tables: dict[str, Mapping[str, Any]] = {}
    if problems.take(raw, "default_pack", bool, True, "alerts"):
        tables.update(pack())
    places = dict.fromkeys(tables, "default pack")
    own_names: set[str] = set()
    for index, table in enumerate(problems.take(raw, "rule", list, [], "alerts")):
        where = f"alerts.rule[{index}]"
        name = str(table.get("name", "")) if isinstance(table, dict) else ""
        if not isinstance(table, dict):
            problems.add(where, "must be a table: [[alerts.rule]]")
        elif name in own_names:
            problems.add(f"{where}.name", f"{name!r} is defined twice")
        else:
            own_names.add(name)
            key = name or where
            tables[key], places[key] = _over(tables.get(key), table), where
    _disable(raw, tables, problems)
    rules = [parse_rule(table, problems, places[key], builtin=key not in own_names) for key, table in tables.items()]
    return tuple(rule for rule in rules if rule is not None)


def _over(base: Mapping[str, Any] | None, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A user's rule with the name of a pack rule changes the keys it sets and keeps the others."""
    if base is None:
        return table
    merged = dict(base)
    for group in (SOURCES, tuple(COMPARISONS)):
        if any(key in table for key in group):
            # Another source or comparison replaces the old one and the keys that only the old one used.
            drop = {*group, "recover", "promql"} if group is not SOURCES else CONDITION_KEYS
            merged = {key: value for key, value in merged.items() if key not in drop and key != "promql"}
    annotations = {**merged.get("annotations", {}), **_table_of(table.get("annotations"))}
    return {**merged, **table, "annotations": annotations}


def _table_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _disable(raw: Mapping[str, Any], tables: dict[str, Mapping[str, Any]], problems: Problems) -> None:
    for name in problems.take(raw, "disable", list, [], "alerts"):
        if tables.pop(str(name), None) is None:
            problems.add("alerts.disable", f"there is no rule {name!r}; known: {', '.join(pack())}")


def rules_of(raw: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of a configuration file. Receivers are not read, so no secret is needed.

    Raises:
        ConfigError: with every problem found.
    """
    problems = Problems()
    rules = load_rules(problems.take(raw, "alerts", dict, {}, "config"), problems)
    if problems.messages:
        raise ConfigError(problems.messages)
    return rules


def build(raw: Mapping[str, Any], env: Mapping[str, str], problems: Problems) -> AlertSettings:
    """Settings of an ``[alerts]`` table."""
    problems.unknown(raw, ALERT_KEYS, "alerts")
    defaults = _grouping(raw, ReceiverSettings("", ""), problems, "alerts")
    external = problems.take(raw, "external_url", str, "", "alerts")
    if external and urlsplit(external).scheme not in ("http", "https"):
        problems.add("alerts.external_url", "must be the http:// or https:// URL at which users reach this server")
    return AlertSettings(
        rules=load_rules(raw, problems),
        receivers=tuple(_receivers(raw, env, defaults, problems)),
        inhibits=(LIVENESS_FIRST, *_inhibits(raw, problems)),
        external_url=external.rstrip("/"),
        deadman=_deadman(problems.take(raw, "deadman", dict, {}, "alerts"), env, problems),
    )


# ---- receivers


def _receivers(
    raw: Mapping[str, Any], env: Mapping[str, str], defaults: Mapping[str, Any], problems: Problems
) -> Sequence[ReceiverSettings]:
    receivers: dict[str, ReceiverSettings] = {}
    for index, table in enumerate(problems.take(raw, "receiver", list, [], "alerts")):
        where = f"alerts.receiver[{index}]"
        if not isinstance(table, dict):
            problems.add(where, "must be a table: [[alerts.receiver]]")
            continue
        settings = _receiver(table, env, defaults, problems, where)
        if settings.name in receivers:
            problems.add(f"{where}.name", f"{settings.name!r} is defined twice")
        receivers[settings.name] = settings
    return list(receivers.values())


def _receiver(
    table: Mapping[str, Any], env: Mapping[str, str], defaults: Mapping[str, Any], problems: Problems, where: str
) -> ReceiverSettings:
    kinds = notify.load()
    name, kind = (problems.take(table, key, str, "", where) for key in ("name", "kind"))
    if not name:
        problems.add(f"{where}.name", "is missing")
    if kind not in kinds:
        problems.add(f"{where}.kind", f"must be one of {', '.join(kinds)}")
        return ReceiverSettings(name, kind)
    allowed = set(RECEIVER_KEYS)
    for key, option in kinds[kind].options.items():
        allowed |= {f"{key}_file", f"{key}_env"} if option.secret else {key}
    problems.unknown(table, allowed, where)
    base = ReceiverSettings("", "", **defaults)
    receiver = ReceiverSettings(
        name=name,
        kind=kind,
        url=_url(table, env, problems, where, kinds[kind].needs_url),
        options=_options(table, env, kinds[kind].options, problems, where),
        send_resolved=problems.take(table, "send_resolved", bool, True, where),
        max_alerts=_count(table, "max_alerts", problems, where),
        match=match_list(table, "match", problems, where),
        **_grouping(table, base, problems, where),
    )
    check = kinds[kind].check
    if receiver.url and kind != "apprise" and (refusal := refuse_target(receiver.url)):
        problems.add(f"{where}.url", refusal)
    elif check is not None and (problem := check(receiver)):
        problems.add(where, problem)
    return receiver


def _count(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> int:
    count: int = problems.take(table, key, int, 0, where)
    if count < 0:
        problems.add(f"{where}.{key}", "must be 0 (all alerts) or more")
    return count


def _grouping(table: Mapping[str, Any], base: ReceiverSettings, problems: Problems, where: str) -> dict[str, Any]:
    labels = problems.take(table, "group_by", list, list(base.group_by), where)
    if not all(isinstance(label, str) for label in labels):
        problems.add(f"{where}.group_by", 'must be a list of label names such as ["alertname"]')
    options: dict[str, Any] = {"group_by": tuple(str(label) for label in labels)}
    for key in ("group_wait", "group_interval", "repeat_interval"):
        options[key] = seconds(table, key, getattr(base, key), problems, where)
    if options["repeat_interval"] < SHORTEST_REPEAT:
        problems.add(f"{where}.repeat_interval", f"must be at least {SHORTEST_REPEAT:.0f}s")
    return options


def _options(
    table: Mapping[str, Any],
    env: Mapping[str, str],
    allowed: Mapping[str, notify.Option],
    problems: Problems,
    where: str,
) -> dict[str, str | Secret]:
    options: dict[str, str | Secret] = {}
    for key, option in allowed.items():
        if option.secret:
            value: str | Secret = secret(table, key, env, problems, where)
        else:
            value = problems.take(table, key, str, "", where)
        if value:
            options[key] = value
        elif option.required and not {f"{key}_file", f"{key}_env"} & table.keys():
            keys = f"{key}_file or {key}_env" if option.secret else key
            problems.add(where, f"needs {keys}: {option.help}")
    return options


def _url(table: Mapping[str, Any], env: Mapping[str, str], problems: Problems, where: str, required: bool) -> Secret:
    inline = problems.take(table, "url", str, "", where)
    if sum(key in table for key in ("url", "url_file", "url_env")) > 1:
        problems.add(where, "has more than one of url, url_file and url_env")
    url = Secret(inline) if inline else secret(table, "url", env, problems, where)
    if required and not url and not {"url_file", "url_env"} & table.keys():
        problems.add(where, "needs url, url_file or url_env")
    return url


def secret(table: Mapping[str, Any], key: str, env: Mapping[str, str], problems: Problems, where: str) -> Secret:
    """The value of the variable ``KEY_env`` or the file ``KEY_file``; "" if neither is set."""
    variable = problems.take(table, f"{key}_env", str, "", where)
    path = problems.take(table, f"{key}_file", str, "", where)
    if variable:
        if not env.get(variable):
            problems.add(f"{where}.{key}_env", f"the environment has no {variable}")
        return Secret(env.get(variable, ""))
    return problems.secret_file(path, f"{where}.{key}_file") if path else NO_SECRET


# ---- inhibition, dead-man switch


def _inhibits(raw: Mapping[str, Any], problems: Problems) -> Sequence[InhibitRule]:
    inhibits = []
    for index, table in enumerate(problems.take(raw, "inhibit", list, [], "alerts")):
        where = f"alerts.inhibit[{index}]"
        if not isinstance(table, dict):
            problems.add(where, "must be a table: [[alerts.inhibit]]")
            continue
        problems.unknown(table, {"source", "target", "equal"}, where)
        source, target = (match_list(table, key, problems, where) for key in ("source", "target"))
        if not source or not target:
            problems.add(where, "needs source and target: lists of matchers; an empty one would match everything")
        equal = problems.take(table, "equal", list, ["run"], where)
        inhibits.append(InhibitRule(source, target, tuple(str(label) for label in equal)))
    return inhibits


def _deadman(table: Mapping[str, Any], env: Mapping[str, str], problems: Problems) -> DeadManSettings:
    problems.unknown(table, {"url", "url_file", "url_env", "interval"}, "alerts.deadman")
    if not table:
        return DeadManSettings()
    url = _url(table, env, problems, "alerts.deadman", required=True)
    if url and (refusal := refuse_target(url)):
        problems.add("alerts.deadman.url", refusal)
    interval = seconds(table, "interval", 60.0, problems, "alerts.deadman")
    if interval < SHORTEST_PING:
        problems.add("alerts.deadman.interval", f"must be at least {SHORTEST_PING:.0f}s")
    return DeadManSettings(url, interval)
