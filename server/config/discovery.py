"""`[[run.NAME.discover]]`: settings of target lists that other systems maintain. Pure: no list is read here."""

from collections.abc import Callable, Mapping
from typing import Any

import collectors
from server.config import alert_rules
from server.config.alerts import secret
from server.config.errors import Problems
from server.config.secret import Secret
from server.targets.discovery.model import BY_URL, KINDS, REFRESH_MOST, REFRESH_SECONDS, DiscoverSettings
from server.targets.outbound_policy import refuse_target

# Seconds.
REFRESH_LEAST = 1.0
KEYS = {
    *KINDS, "name", "collector", "interval", "refresh", "job", "match", "headers", "bearer_env", "list_bearer_env",
    "labels_as_name",
}  # fmt: skip
# Headers with secrets: their values belong in the environment, because many users may read the file.
SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"})


Interval = Callable[[Problems, Mapping[str, Any], str, float], float]


def parse(
    problems: Problems, given: Any, where: str, env: Mapping[str, str], interval: Interval
) -> tuple[DiscoverSettings, ...]:
    """Every list of a run. ``interval``: reads and checks the interval, as for a target configured by hand."""
    sources: list[DiscoverSettings] = []
    for number, table in enumerate(given):
        where_list = f"{where}.discover[{number}]"
        if not isinstance(table, dict):
            problems.add(where_list, "must be a table: [[run.NAME.discover]]")
            continue
        settings = _parse_list(problems, table, where_list, env, interval)
        if any(settings.name == other.name for other in sources):
            problems.add(f"{where_list}.name", f"another list is also named {settings.name!r}: give each list a name")
        sources.append(settings)
    return tuple(sources)


def _parse_list(
    problems: Problems, table: Mapping[str, Any], where: str, env: Mapping[str, str], interval: Interval
) -> DiscoverSettings:
    problems.unknown(table, KEYS, where)
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        problems.add(where, f"needs exactly one of {', '.join(KINDS)}")
    kind = kinds[0] if kinds else "file_sd"
    return DiscoverSettings(
        kind,
        _sources(problems, table, kind, where),
        name=problems.take(table, "name", str, kind, where) or kind,
        collector=_collector(problems, table, where),
        interval_seconds=interval(problems, table, where, 5.0),
        refresh_seconds=_refresh(problems, table, kind, where),
        jobs=_strings(problems, table, "job", where),
        match=alert_rules.match_list(table, "match", problems, where),
        headers=_headers(problems, table, where),
        bearer=_bearer(problems, table, "bearer", env, where),
        list_bearer=_bearer(problems, table, "list_bearer", env, where),
        labels_as_name=_strings(problems, table, "labels_as_name", where),
    )


def _sources(problems: Problems, table: Mapping[str, Any], kind: str, where: str) -> tuple[str, ...]:
    before = len(problems.messages)
    if kind == "file_sd":
        paths = _strings(problems, table, kind, where)
    else:
        paths = tuple(filter(None, [problems.take(table, kind, str, "", where)]))
    if kind in table and not paths and len(problems.messages) == before:
        problems.add(f"{where}.{kind}", "is empty: " + ("a URL" if kind in BY_URL else "a path"))
    for source in paths if kind in BY_URL else ():
        if refusal := refuse_target(source):
            problems.add(f"{where}.{kind}", refusal)
    return paths


def _collector(problems: Problems, table: Mapping[str, Any], where: str) -> str:
    name: str = problems.take(table, "collector", str, "", where)
    names = {collector.name for collector in collectors.load().values() if collector.poll is not None}
    if name and name not in names:
        problems.add(f"{where}.collector", f"reads no URL; collectors that do: {', '.join(sorted(names))}")
        return ""
    return name


def _refresh(problems: Problems, table: Mapping[str, Any], kind: str, where: str) -> float:
    seconds = float(problems.take(table, "refresh", (int, float), REFRESH_SECONDS[kind], where))
    if REFRESH_LEAST <= seconds <= REFRESH_MOST:
        return seconds
    problems.add(f"{where}.refresh", f"must be between {REFRESH_LEAST:g} and {REFRESH_MOST:g} seconds")
    return REFRESH_SECONDS[kind]


def _strings(problems: Problems, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A string, or a list of them."""
    given = table.get(key, [])
    given = [given] if isinstance(given, str) else given
    if isinstance(given, list) and all(isinstance(text, str) and text for text in given):
        return tuple(given)
    problems.add(f"{where}.{key}", "must be a string or a list of strings, none of them empty")
    return ()


def _headers(problems: Problems, table: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    headers = problems.take(table, "headers", dict, {}, where)
    for name, value in headers.items():
        if name.lower() in SECRET_HEADERS:
            problems.add(f"{where}.headers.{name}", "contains a secret: use bearer_env and an environment variable")
        elif not isinstance(value, str) or not f"{name}{value}".isascii() or not f"{name}{value}".isprintable():
            problems.add(f"{where}.headers.{name}", "must be a string of printable ASCII characters")
    return tuple(sorted((str(name), str(value)) for name, value in headers.items()))


def _bearer(problems: Problems, table: Mapping[str, Any], key: str, env: Mapping[str, str], where: str) -> Secret:
    return secret({f"{key}_env": table[f"{key}_env"]} if f"{key}_env" in table else {}, key, env, problems, where)
