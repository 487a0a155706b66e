"""`[alerts]` of the configuration: the default pack merged with the user's rules, receivers, inhibition.

Pure except for secrets, which come from the environment or from files. Errors are collected, each with its key.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from server import notify
from server.alerts.model import Rule
from server.alerts.mute import InhibitRule
from server.alerts.settings import LIVENESS_FIRST, AlertSettings, DeadManSettings
from server.config import alert_rules
from server.config.errors import ConfigError, Problems
from server.config.secret import NO_SECRET, Secret
from server.notify.model import ReceiverSettings
from server.targets.outbound_policy import refuse_target

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
    rules = [
        alert_rules.parse(table, problems, places[key], builtin=key not in own_names) for key, table in tables.items()
    ]
    return tuple(rule for rule in rules if rule is not None)


def _over(base: Mapping[str, Any] | None, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A user's rule with the name of a pack rule changes the keys it sets and keeps the others."""
    if base is None:
        return table
    merged = dict(base)
    for group in (alert_rules.SOURCES, tuple(alert_rules.COMPARISONS)):
        if any(key in table for key in group):
            # Another source or comparison replaces the old one and the keys that only the old one used.
            drop = {*group, "recover", "promql"} if group is not alert_rules.SOURCES else alert_rules.CONDITION_KEYS
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
        match=alert_rules.match_list(table, "match", problems, where),
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
        options[key] = alert_rules.seconds(table, key, getattr(base, key), problems, where)
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
        source, target = (alert_rules.match_list(table, key, problems, where) for key in ("source", "target"))
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
    interval = alert_rules.seconds(table, "interval", 60.0, problems, "alerts.deadman")
    if interval < SHORTEST_PING:
        problems.add("alerts.deadman.interval", f"must be at least {SHORTEST_PING:.0f}s")
    return DeadManSettings(url, interval)
