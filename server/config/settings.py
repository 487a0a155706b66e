"""Validated settings from one TOML file and the environment. Errors are collected, each with its key and the fix.

Secrets come from the environment or from files, and from the TOML only where that cannot be avoided. No error, log line
or API response contains them.
"""

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import collectors
from collectors.catalog import METRICS
from collectors.model import FACTS, Collector, Labels, Lifecycle, Mode
from collectors.otlp_names import Attributes, Maps, Rule, factor_of
from collectors.training_logs.maps import check as check_maps
from server import signals
from server.alerts.settings import AlertSettings
from server.alerts.text import parse_duration
from server.config import alerts as config_alerts
from server.config.alerts import secret
from server.lib.errors import ConfigError, Problems, suggestion
from server.lib.outbound_policy import is_loopback, refuse_target
from server.lib.secret import NO_SECRET, Secret
from server.preflight.model import MAX_DANGLING, MIN_CREDIT_USD, RESOURCES, SIZES, PreflightPlan
from server.push.heartbeats import HeartbeatSettings
from server.signals.gpus import PRICES, ROLES, known_type
from server.store.types import MOST_PANELS, PANEL_KEYS, OwnPanel, RetentionSettings, panel_mistakes
from server.targets.model import (
    BY_URL,
    KINDS,
    REFRESH_MOST,
    REFRESH_SECONDS,
    DiscoverSettings,
    RunSettings,
    TargetSettings,
)

# ---- cost
# `[run.NAME.cost]`: the GPUs and prices that the user states, as facts of the run.

PER_GPU_HOUR = "usd_per_gpu_hour"
TARGET = "target_usd_per_million_tokens"
COUNTS = ("gpus", "trainer_gpus", "generator_gpus")
# Key -> the fact it states. A GPU type needs a price.
TYPES = {"gpu": "gpu_type", "trainer_gpu": "trainer_gpu_type", "generator_gpu": "generator_gpu_type"}
# Larger numbers are typing errors: no cluster has as many GPUs, no GPU-hour or million tokens costs as much.
MOST_GPUS = 1e6
MOST_USD = 1e6

Facts = dict[str, str | float]


def parse_cost(problems: Problems, table: Mapping[str, Any], where: str) -> Facts:
    """Facts of a run's table; errors go into ``problems``."""
    cost, where = problems.take(table, "cost", dict, {}, where), f"{where}.cost"
    problems.unknown(cost, {*TYPES, *COUNTS, PER_GPU_HOUR, TARGET}, where)
    prices = _prices(problems, cost, where)
    prices |= _numbers(problems, cost, (TARGET,), MOST_USD, where)
    prices |= _numbers(problems, cost, COUNTS, MOST_GPUS, where)
    _add_up(problems, prices, where)
    return prices | _types(problems, cost, prices, where)


def _prices(problems: Problems, cost: Mapping[str, Any], where: str) -> Facts:
    """One price, or a table with a price for each role."""
    given = cost.get(PER_GPU_HOUR)
    if not isinstance(given, dict):
        return _numbers(problems, cost, (PER_GPU_HOUR,), MOST_USD, where)
    problems.unknown(given, set(ROLES), f"{where}.{PER_GPU_HOUR}")
    prices = _numbers(problems, given, ROLES, MOST_USD, f"{where}.{PER_GPU_HOUR}")
    return {f"{role}_{PER_GPU_HOUR}": usd for role, usd in prices.items()}


def _numbers(problems: Problems, table: Mapping[str, Any], keys: tuple[str, ...], limit: float, where: str) -> Facts:
    numbers: Facts = {}
    for key in keys:
        value = problems.take(table, key, (int, float), None, where)
        if value is None:
            continue
        if not (math.isfinite(value) and 0 < value <= limit):
            problems.add(f"{where}.{key}", f"must be a positive number, at most {limit:,.0f}")
        elif key in COUNTS and value != int(value):
            problems.add(f"{where}.{key}", "must be a whole number of GPUs")
        else:
            numbers[key] = float(value)
    return numbers


def _add_up(problems: Problems, prices: Facts, where: str) -> None:
    """No role may have more GPUs than the run. Both may have all of them, because colocated roles share GPUs."""
    for key in COUNTS[1:]:
        if float(prices.get(key, 0)) > float(prices.get("gpus", math.inf)):
            problems.add(f"{where}.{key}", "is more than gpus, the GPUs of the whole run: leave one of the two out")


def _types(problems: Problems, cost: Mapping[str, Any], prices: Facts, where: str) -> Facts:
    """Fact -> GPU type. A type without a default price needs a stated one."""
    types: Facts = {}
    for key, fact in TYPES.items():
        name = problems.take(cost, key, str, "", where)
        if not name:
            continue
        types[fact] = name
        default = PRICES.get(known_type(name))
        if default is None or default.usd is None:
            for price in _unpriced(key, prices):
                problems.add(
                    f"{where}.{key}",
                    f"{name!r} has no default price (default prices exist for {_priced_types()}): set {price}",
                )
    return types


def _unpriced(key: str, prices: Facts) -> list[str]:
    """Keys that would set the missing price; [] if there is a price."""
    if PER_GPU_HOUR in prices:
        return []
    if key == "gpu":
        return [] if all(f"{role}_{PER_GPU_HOUR}" in prices for role in ROLES) else [PER_GPU_HOUR]
    role = key.removesuffix("_gpu")
    return [] if f"{role}_{PER_GPU_HOUR}" in prices else [f"{PER_GPU_HOUR} = {{ {role} = ... }}"]


def _priced_types() -> str:
    return ", ".join(sorted(name for name, price in PRICES.items() if price.usd is not None))


# ---- paths
# Where the configuration file is looked for when no option names one.

FILE = "rollscope.toml"
# Where a package or an image puts the configuration of a whole machine.
SYSTEM = Path("/etc/rollscope") / FILE


def config_path(env: Mapping[str, str]) -> Path | None:
    """The first that exists: ./rollscope.toml, the user's file, the machine's file; None: there is none.

    ROLLSCOPE_CONFIG overrides them and may name a missing file, which is then an error. If it is set but empty, no
    file is used.

    Raises:
        ConfigError: a folder cannot be searched, so that it is unknown whether its file exists.
    """
    if "ROLLSCOPE_CONFIG" in env:
        return Path(env["ROLLSCOPE_CONFIG"]) if env["ROLLSCOPE_CONFIG"] else None
    user = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config") / "rollscope" / FILE
    return next((path for path in (Path(FILE), user, SYSTEM) if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigError(
            [
                f"{path}: cannot look for the configuration: {error.strerror}; name a file with -c FILE, or set "
                "ROLLSCOPE_CONFIG to nothing to use none"
            ]
        ) from None


# ---- discovery
# `[[run.NAME.discover]]`: settings of target lists that other systems maintain.

# Seconds.
REFRESH_LEAST = 1.0
KEYS = {
    *KINDS, "name", "collector", "interval", "refresh", "job", "match", "headers", "bearer_env", "list_bearer_env",
    "labels_as_name",
}  # fmt: skip
# Headers with secrets: their values belong in the environment, because many users may read the file.
SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"})


Interval = Callable[[Problems, Mapping[str, Any], str, float], float]


def parse_lists(
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
        match=config_alerts.match_list(table, "match", problems, where),
        headers=_headers(problems, table, where),
        bearer=_discovery_bearer(problems, table, "bearer", env, where),
        list_bearer=_discovery_bearer(problems, table, "list_bearer", env, where),
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


def _discovery_bearer(
    problems: Problems, table: Mapping[str, Any], key: str, env: Mapping[str, str], where: str
) -> Secret:
    return secret({f"{key}_env": table[f"{key}_env"]} if f"{key}_env" in table else {}, key, env, problems, where)


# ---- preflight
# `[run.NAME.preflight]`: what the run will need, and limits that no provider reports.

PREFLIGHT_KEYS = {
    "concurrency", "create_rate", "rollout_deadline", "run_length", "images", "limits", "price", "sandbox_ttl",
    "spinup", "size", "known_runs", "max_dangling", "min_credit", "engines_later",
}  # fmt: skip
UNLIMITED = "unlimited"


def parse_preflight(table: Mapping[str, Any], problems: Problems, where: str) -> PreflightPlan:
    """The plan of a table; errors go to ``problems``, each with its key below ``where``."""
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [run.NAME.preflight]")
        return PreflightPlan()
    problems.unknown(table, PREFLIGHT_KEYS, where)
    return PreflightPlan(
        concurrency=_count(table, "concurrency", problems, where, least=1),
        create_rate=_number(table, "create_rate", problems, where),
        rollout_deadline=_seconds(table, "rollout_deadline", problems, where),
        run_length=_seconds(table, "run_length", problems, where),
        images=_preflight_strings(table, "images", problems, where),
        limits=_preflight_numbers(table, "limits", RESOURCES, problems, where),
        price=_number(table, "price", problems, where),
        sandbox_ttl=_ttl(table, problems, where),
        spinup=_seconds(table, "spinup", problems, where),
        size=_preflight_numbers(table, "size", SIZES, problems, where),
        known_runs=_preflight_strings(table, "known_runs", problems, where),
        max_dangling=_or(_count(table, "max_dangling", problems, where, least=0), MAX_DANGLING),
        min_credit=_or(_number(table, "min_credit", problems, where, least=0.0), MIN_CREDIT_USD),
        engines_later=problems.take(table, "engines_later", bool, False, where),
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _count(table: Mapping[str, Any], key: str, problems: Problems, where: str, least: int) -> int | None:
    value: int | None = problems.take(table, key, int, None, where)
    if value is not None and value < least:
        problems.add(f"{where}.{key}", f"must be at least {least}")
        return None
    return value


def _number(
    table: Mapping[str, Any], key: str, problems: Problems, where: str, least: float | None = None
) -> float | None:
    """A finite number above 0, or from `least` on."""
    value = problems.take(table, key, (int, float), None, where)
    if value is None:
        return None
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        problems.add(f"{where}.{key}", "must be above 0" if least is None else f"must be at least {least:g}")
        return None
    return float(value)


def _preflight_numbers(
    table: Mapping[str, Any], key: str, allowed: tuple[str, ...], problems: Problems, where: str
) -> dict[str, float]:
    """A table of finite numbers, at least 0: a limit of 0 is valid."""
    found = problems.take(table, key, dict, {}, where)
    problems.unknown(found, set(allowed), f"{where}.{key}")
    read = {name: _number(found, name, problems, f"{where}.{key}", least=0.0) for name in allowed}
    return {name: value for name, value in read.items() if value is not None}


def _seconds(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> float | None:
    """A duration above 0: "30m", "24h" or a number of seconds."""
    if key not in table:
        return None
    try:
        seconds = parse_duration(table[key])
    except ValueError as error:
        problems.add(f"{where}.{key}", str(error))
        return None
    if seconds == 0:
        problems.add(f"{where}.{key}", "must be above 0")
        return None
    return seconds


def _ttl(table: Mapping[str, Any], problems: Problems, where: str) -> float | None:
    """A duration, or "unlimited" for providers whose sandboxes have no end."""
    return math.inf if table.get("sandbox_ttl") == UNLIMITED else _seconds(table, "sandbox_ttl", problems, where)


def _preflight_strings(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> tuple[str, ...]:
    texts = problems.take(table, key, list, [], where)
    if not all(isinstance(text, str) and text for text in texts):
        problems.add(f"{where}.{key}", "must be a list of strings, none of them empty")
        return ()
    return tuple(texts)


# ---- retention
# [store]: how long rows are kept, and how large the database may become.

RETENTION_KEYS = ("raw", "signals", "rollups", "records")
PERMANENT = "forever"
LEAST_SECONDS = 600.0  # a slot of raw samples: charts of the last minutes, and open rollup buckets, need it
LEAST_BYTES = 10_000_000
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_retention(problems: Problems, store: Mapping[str, Any]) -> RetentionSettings:
    """The retention keys of [store]; what is wrong with them goes into ``problems``."""
    defaults = RetentionSettings()
    retention = {key: _retention_seconds(problems, store, key, getattr(defaults, key)) for key in RETENTION_KEYS}
    rollups, raw = retention["rollups"], retention["raw"]
    if rollups is not None and (raw is None or rollups < raw):
        problems.add("store.rollups", "must be at least as long as raw: rollups replace the raw rows")
    return RetentionSettings(**retention, max_bytes=_size(problems, store))


def _retention_seconds(problems: Problems, store: Mapping[str, Any], key: str, default: float | None) -> float | None:
    if key not in store:
        return default
    if store[key] == PERMANENT:
        return None
    try:
        seconds = parse_duration(store[key])
    except ValueError as error:
        problems.add(f"store.{key}", f'{error}, or "{PERMANENT}"')
        return default
    if seconds < LEAST_SECONDS:
        problems.add(f"store.{key}", f'must be at least {LEAST_SECONDS / 60:.0f}m, or "{PERMANENT}"')
    return seconds


def _size(problems: Problems, store: Mapping[str, Any]) -> int | None:
    value = problems.take(store, "max_size", str, "", "store")
    if not value:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]B)\s*", value, re.IGNORECASE)
    if match is None:
        problems.add("store.max_size", f"{value[:40]!r} is not a size such as 500MB or 50GB")
        return None
    size = round(float(match[1]) * _UNITS[match[2].upper()])
    if size < LEAST_BYTES:
        problems.add("store.max_size", f"must be at least {LEAST_BYTES // 10**6}MB")
    return size


# ---- otlp
# `[[otlp]]`: the user's table from OTLP names to our metrics, checked.

FIELDS = ("name", "metric", "run", "unit", "scale", "labels", "keep", "ignore")
MAX_ROWS = 500
NAME_LENGTH = 200  # characters


Add = Callable[[str, str], None]


def parse_otlp(rows: Any, add: Add) -> Maps:
    """Rows of `[[otlp]]`; every error goes to ``add(where, text)``."""
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        add("", f"must be a list of tables, {MAX_ROWS} at most: [[otlp]]")
        return {}
    rules: dict[tuple[str, str], Rule | None] = {}
    for number, row in enumerate(rows):
        where = f"[{number}]"
        if not isinstance(row, dict):
            add(where, "must be a table")
            continue
        key = _text(row, "run", where, add), _text(row, "name", where, add)
        if not key[1]:
            add(f"{where}.name", "is missing: the metric's name as it is sent")
        if key in rules:
            add(f"{where}.name", f"{key[1]!r} is defined twice")
        rules[key] = _rule(row, where, add)
    return rules


def _text(row: Mapping[str, Any], key: str, where: str, add: Add) -> str:
    value = row.get(key, "")
    if isinstance(value, str) and len(value) <= NAME_LENGTH:
        return value
    add(f"{where}.{key}", f"must be a string of at most {NAME_LENGTH} characters")
    return ""


def _rule(row: Mapping[str, Any], where: str, add: Add) -> Rule | None:
    for key in sorted(row.keys() - set(FIELDS)):
        add(f"{where}.{key}", f"unknown key; known: {', '.join(FIELDS)}")
    if row.get("ignore") is True:
        return None
    name = _text(row, "metric", where, add)
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; the names are those of /api/v1/metrics"
        add(f"{where}.metric", f"there is no metric {name!r}{hint}")
        return None
    fixed, copied = _table(row, "labels", where, add), _table(row, "keep", where, add)
    return Rule(name, _factor(row, name, where, add), _labels(fixed, copied))


def _factor(row: Mapping[str, Any], name: str, where: str, add: Add) -> float:
    """The divisor of a value; 0 if it depends on the unit of the data point."""
    if "scale" in row:
        scale = row["scale"]
        if isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale < 1e15:
            return 1 / scale
        add(f"{where}.scale", "must be a number above 0: stored value = sent value * scale")
    unit = _text(row, "unit", where, add)
    if not unit:
        return 0.0
    factor = factor_of(unit, METRICS[name].unit)
    if factor is None:
        add(f"{where}.unit", f"{name} is in {METRICS[name].unit or 'no unit'}, to which {unit} does not convert")
    return factor or 1.0


def _table(row: Mapping[str, Any], key: str, where: str, add: Add) -> dict[str, str]:
    found = row.get(key, {})
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    add(f"{where}.{key}", 'must be a table of strings, such as { reason = "cause" }')
    return {}


def _labels(fixed: Mapping[str, str], copied: Mapping[str, str]) -> Callable[[Attributes], Labels]:
    """``kept``: OTLP attribute -> our label; an attribute of the point overrides one of its resource."""

    def labels(attributes: Attributes) -> Labels:
        attribute_labels = {
            label: attributes[attribute] for attribute, label in copied.items() if attributes.get(attribute)
        }
        return tuple(sorted((dict(fixed) | attribute_labels).items()))

    return labels


DEFAULT_PORT = 8050
LAST_PORT = 65535
STORES = ("sqlite:///", "postgresql://", "postgresql+psycopg://")
# Characters. Short enough to type in a lab, too long to guess over HTTP.
TOKEN_LENGTH = 20
# Facts whose value is text; the others are numbers.
TEXT_FACTS = frozenset(
    {
        "framework", "framework_version", "lifecycle_why", "gpu_type", "trainer_gpu_type", "generator_gpu_type",
        "model", "run_name", "source_path",
    }
)  # fmt: skip
TARGET_KEYS = {
    "url", "path", "name", "collector", "interval", "bearer_env", "key_env", "key_file", "options", "map",
}  # fmt: skip
# The token is part of the heartbeat's URL and its only protection.
HEARTBEAT_TOKEN = r"[A-Za-z0-9_-]{16,128}"
# Seconds. Targets are read on the 5 s grid of event time, so a shorter interval has no effect.
INTERVAL_MIN = 5.0
INTERVAL_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: Secret | None = None
    # On a loopback address: reading and pushing need the admin token, too.
    private: bool = False
    allowed_hosts: tuple[str, ...] = ()
    store: Secret = NO_SECRET  # its URL may hold a password
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    role: str = "all"
    collect: str = "auto"
    push: bool = True
    runs: tuple[RunSettings, ...] = ()
    # By the name of their run.
    heartbeats: Mapping[str, tuple[HeartbeatSettings, ...]] = field(default_factory=dict)
    preflight: Mapping[str, PreflightPlan] = field(default_factory=dict)
    alerts: AlertSettings = field(default_factory=config_alerts.defaults)
    otlp: Maps = field(default_factory=dict)
    # Charts below every Overview.
    panels: tuple[OwnPanel, ...] = ()

    @property
    def planned(self) -> list[tuple[RunSettings, PreflightPlan]]:
        """Every run with its preflight plan."""
        return [(run, self.preflight.get(run.name, PreflightPlan())) for run in self.runs]


def state_dir(env: Mapping[str, str]) -> Path:
    """A local directory for our state, never in the run directory: cluster homes are NFS, where SQLite's WAL breaks."""
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME", "/tmp"), ".local", "state")
    return Path(base) / "rollscope"


def default_store(env: Mapping[str, str]) -> str:
    return env.get("ROLLSCOPE_STORE") or f"sqlite:///{state_dir(env) / 'rollscope.db'}"


def load(path: Path | None, env: Mapping[str, str]) -> Settings:
    """Settings from a file (or none) and the environment.

    Raises:
        ConfigError: with every problem found.
    """
    return build(read(path), env)


def read(path: Path | None) -> dict[str, Any]:
    """A configuration file's tables, unchecked; none without a file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: not TOML: {error}"]) from None


def build(raw: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """Settings from parsed TOML; see `load`."""
    problems = Problems()
    problems.unknown(raw, {"server", "store", "run", "alerts", "otlp", "dashboard"}, "config")
    server = problems.take(raw, "server", dict, {}, "config")
    keys = {"host", "port", "token_file", "private", "allowed_hosts", "role", "collect", "push"}
    problems.unknown(server, keys, "server")
    store = problems.take(raw, "store", dict, {}, "config")
    problems.unknown(store, {"url", "url_file", "max_size", *RETENTION_KEYS}, "store")
    runs = problems.take(raw, "run", dict, {}, "config")
    heartbeats: dict[str, tuple[HeartbeatSettings, ...]] = {}
    plans: dict[str, PreflightPlan] = {}
    settings = Settings(
        host=problems.take(server, "host", str, env.get("ROLLSCOPE_HOST", "127.0.0.1"), "server"),
        port=_port(problems, server, env),
        token=_secret(problems, server, "token_file", env, "ROLLSCOPE_TOKEN", "server"),
        private=problems.take(server, "private", bool, False, "server"),
        allowed_hosts=_names(problems, server, env),
        store=_store(problems, store, env),
        retention=parse_retention(problems, store),
        role=_choice(problems, server, "role", env.get("ROLLSCOPE_ROLE", "all"), ("all", "collect", "web")),
        collect=_choice(problems, server, "collect", "auto", ("inside", "apart", "auto")),
        push=problems.take(server, "push", bool, True, "server"),
        runs=tuple(_run(problems, name, table, env, heartbeats, plans) for name, table in runs.items()),
        heartbeats=heartbeats,
        preflight=plans,
        alerts=config_alerts.build(problems.take(raw, "alerts", dict, {}, "config"), env, problems),
        panels=parse_panels(problems, problems.take(raw, "dashboard", dict, {}, "config")),
        otlp=parse_otlp(raw.get("otlp", []), lambda where, text: problems.add(f"otlp{where}", text)),
    )
    _one_token_each(heartbeats, problems)
    if problems.messages:
        raise ConfigError(problems.messages)
    return settings


def parse_panels(problems: Problems, table: Mapping[str, Any]) -> tuple[OwnPanel, ...]:
    """`[[dashboard.panel]]`: what is wrong goes into ``problems``."""
    problems.unknown(table, {"panel"}, "dashboard")
    rows = problems.take(table, "panel", list, [], "dashboard")
    if len(rows) > MOST_PANELS:
        problems.add("dashboard.panel", f"{len(rows)} panels; at most {MOST_PANELS}")
    # Loaded only where there are panels.
    names = {item.name for item in signals.load() if not isinstance(item, signals.Counter)} if rows else set()
    found = []
    for i, row in enumerate(rows):
        where = f"dashboard.panel[{i}]"
        if not isinstance(row, dict):
            problems.add(where, "must be a table: [[dashboard.panel]]")
            continue
        problems.unknown(row, set(PANEL_KEYS), where)
        known = {key: value for key, value in row.items() if key in PANEL_KEYS}
        wrong = panel_mistakes(known, names, {*METRICS, *config_alerts.HEALTH})
        for key, reason in wrong:
            problems.add(f"{where}.{key}" if key else where, reason)
        if not wrong:
            found.append(OwnPanel(**known))
    return tuple(found)


def _one_token_each(heartbeats: Mapping[str, Sequence[HeartbeatSettings]], problems: Problems) -> None:
    """Refuse two heartbeats with one token, because the token alone identifies a heartbeat."""
    seen: set[str] = set()
    for run, beats in heartbeats.items():
        for beat in beats:
            if beat.token and beat.token in seen:
                problems.add(f"run.{run}.heartbeat", f"{beat.name}: another heartbeat has the same token")
            seen.add(beat.token)


def check(settings: Settings) -> None:
    """Check settings after the command line changed them: a supported store, and a token for other machines.

    Raises:
        ConfigError: with the fix.
    """
    if not settings.store.startswith(STORES):
        raise ConfigError(["--store: must begin with sqlite:/// or postgresql://"])
    if not 0 <= settings.port <= LAST_PORT:
        raise ConfigError([f"--port: must be between 0 and {LAST_PORT}"])
    token = settings.token
    if token is not None and not (token.isascii() and token.isprintable() and len(token.strip()) >= TOKEN_LENGTH):
        raise ConfigError(
            [f"token: must have at least {TOKEN_LENGTH} printable ASCII characters, e.g. from `openssl rand -hex 16`"]
        )
    if is_loopback(settings.host) or token:
        return
    raise ConfigError(
        [
            f"server.host: {settings.host} is reachable from other machines, which needs a token: set ROLLSCOPE_TOKEN "
            "or [server] token_file, or bind 127.0.0.1"
        ]
    )


def _port(problems: Problems, server: Mapping[str, Any], env: Mapping[str, str]) -> int:
    fallback = env.get("ROLLSCOPE_PORT", str(DEFAULT_PORT))
    given = int(fallback) if fallback.isascii() and fallback.isdigit() and len(fallback) < 6 else -1
    port: int = problems.take(server, "port", int, given, "server")
    if not 0 <= port <= LAST_PORT:
        key = "server.port" if "port" in server else "ROLLSCOPE_PORT"
        problems.add(key, f"must be a number between 0 and {LAST_PORT}")
    return port


def _names(problems: Problems, server: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, ...]:
    from_env = [name for name in env.get("ROLLSCOPE_ALLOWED_HOSTS", "").split(",") if name]
    names = problems.take(server, "allowed_hosts", list, from_env, "server")
    for name in names:
        if not isinstance(name, str):
            problems.add("server.allowed_hosts", "must be a list of host names")
    return tuple(str(name) for name in names)


def _choice(problems: Problems, server: Mapping[str, Any], key: str, default: str, choices: tuple[str, ...]) -> str:
    value: str = problems.take(server, key, str, default, "server")
    if value not in choices:
        where = f"server.{key}" if key in server else f"ROLLSCOPE_{key.upper()}"
        problems.add(where, f"must be {', '.join(choices[:-1])} or {choices[-1]}")
    return value


def _secret(
    problems: Problems, table: Mapping[str, Any], key: str, env: Mapping[str, str], variable: str, where: str
) -> Secret | None:
    if env.get(variable):
        return Secret(env[variable])
    path = problems.take(table, key, str, "", where)
    if not path:
        return None
    return problems.secret_file(path, f"{where}.{key}")


def store_of_options(given: str | None, config: Path | None, env: Mapping[str, str]) -> str:
    """The store's URL from the command line, the configuration or the environment, in this order.

    Raises:
        ConfigError: what is wrong with it.
    """
    url = given or store_of(read(config), env)
    if not url.startswith(STORES):
        raise ConfigError(["--store: must begin with sqlite:/// or postgresql://"])
    return url


def store_of(raw: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """The store's URL of a configuration; the rest is not checked.

    Raises:
        ConfigError: what is wrong with it.
    """
    problems = Problems()
    store = _store(problems, problems.take(raw, "store", dict, {}, "config"), env)
    if problems.messages:
        raise ConfigError(problems.messages)
    return store


def _store(problems: Problems, store: Mapping[str, Any], env: Mapping[str, str]) -> Secret:
    url = _secret(problems, store, "url_file", env, "ROLLSCOPE_STORE", "store")
    url_text = url or problems.take(store, "url", str, "", "store") or default_store(env)
    if not url_text.startswith(STORES):
        problems.add("store.url", "must begin with sqlite:/// or postgresql://")
    return Secret(url_text)


def _run(
    problems: Problems, name: str, table: Any, env: Mapping[str, str],
    heartbeats: dict[str, tuple[HeartbeatSettings, ...]], plans: dict[str, PreflightPlan],
) -> RunSettings:  # fmt: skip
    """One run. Its heartbeats and its preflight plan are added to ``heartbeats`` and ``plans``."""
    where = f"run.{name}"
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [run.NAME]")
        return RunSettings(name)
    problems.unknown(table, {"target", "discover", "facts", "heartbeat", "preflight", "cost"}, where)
    targets = problems.take(table, "target", list, [], where)
    facts = problems.take(table, "facts", dict, {}, where)
    for key, value in facts.items():
        if key not in FACTS:
            problems.add(f"{where}.facts.{key}", f"unknown fact; {suggestion(key, FACTS)}")
        elif (problem := _fact_problem(key, value)) is not None:
            problems.add(f"{where}.facts.{key}", problem)
    facts = facts | parse_cost(problems, table, where)
    settings = tuple(_target(problems, f"{where}.target[{i}]", target, env) for i, target in enumerate(targets))
    beats = problems.take(table, "heartbeat", list, [], where)
    heartbeats[name] = tuple(_heartbeat(problems, f"{where}.heartbeat[{i}]", beat, env) for i, beat in enumerate(beats))
    plans[name] = parse_preflight(table.get("preflight", {}), problems, f"{where}.preflight")
    lists = parse_lists(problems, problems.take(table, "discover", list, [], where), where, env, _interval)
    return RunSettings(name, settings, facts, lists)


def _heartbeat(problems: Problems, where: str, table: Any, env: Mapping[str, str]) -> HeartbeatSettings:
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [[run.NAME.heartbeat]]")
        return HeartbeatSettings("", NO_SECRET, 0.0)
    problems.unknown(table, {"name", "token_env", "token_file", "every"}, where)
    token = config_alerts.secret(table, "token", env, problems, where)
    if not {"token_env", "token_file"} & table.keys():
        problems.add(where, "needs token_env or token_file")
    elif token and not re.fullmatch(HEARTBEAT_TOKEN, token):
        problems.add(where, "its token must be 16 to 128 letters, digits, - or _, e.g. from `openssl rand -hex 16`")
    every = config_alerts.seconds(table, "every", 0.0, problems, where)
    if every < INTERVAL_MIN:
        problems.add(f"{where}.every", 'is missing or below 5s: set the longest silence, such as "30m"')
    return HeartbeatSettings(problems.take(table, "name", str, "heartbeat", where), token, every)


def _fact_problem(key: str, value: object) -> str | None:
    """Why a stated fact is invalid, or None."""
    choices: dict[str, tuple[str, ...]] = {"mode": get_args(Mode), "lifecycle": get_args(Lifecycle)}
    if key in choices:
        return None if value in choices[key] else f"must be one of {', '.join(choices[key])}"
    if key in TEXT_FACTS:
        return None if isinstance(value, str) else "must be a string"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return "must be a finite number"
    return None


def _target(problems: Problems, where: str, table: Any, env: Mapping[str, str]) -> TargetSettings:
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [[run.NAME.target]]")
        return TargetSettings("")
    problems.unknown(table, TARGET_KEYS, where)
    name = problems.take(table, "collector", str, "", where)
    if name and name not in collectors.load():
        problems.add(f"{where}.collector", f"unknown collector; {suggestion(name, collectors.load())}")
    collector = collectors.load().get(name)
    source = _source(problems, table, collector, where)
    return TargetSettings(
        source=source,
        name=problems.take(table, "name", str, "", where),
        collector=name,
        interval_seconds=_interval(problems, table, where, _default_interval(collector)),
        bearer=_bearer(problems, table, env, where),
        key=_key(problems, table, env, collector, where),
        options=(*_options(problems, table, collector, where), *_map(problems, table, collector, where)),
    )


def _map(
    problems: Problems, table: Mapping[str, Any], collector: Collector | None, where: str
) -> tuple[tuple[str, str], ...]:
    """Checks `[[run.NAME.target.map]]`, the user's table of keys, and returns it as an option in JSON."""
    rows = table.get("map")
    takes_map = collector is not None and collector.takes_map
    if rows is None:
        if takes_map and collector is not None:
            problems.add(
                f"{where}.map", f"is missing: collector {collector.name} reads what [[run.NAME.target.map]] names"
            )
        return ()
    if not takes_map:
        names = [f'"{one.name}"' for one in collectors.load().values() if one.takes_map]
        problems.add(f"{where}.map", f"needs collector = {' or '.join(names)}")
    check_maps(rows, lambda key, text: problems.add(f"{where}.map{key}", text))
    return (("map", json.dumps(rows, default=str)),)


def _source(problems: Problems, table: Mapping[str, Any], collector: Collector | None, where: str) -> str:
    """The URL or path; a provider's collector has a default URL."""
    url, path = problems.take(table, "url", str, "", where), problems.take(table, "path", str, "", where)
    if not url and not path and collector is not None:
        url = collector.default_url
    if bool(url) == bool(path):
        problems.add(where, "needs exactly one of url and path")
    refusal = refuse_target(url) if url else None
    if refusal:
        problems.add(f"{where}.url", refusal)
    return str(url or path)


def _default_interval(collector: Collector | None) -> float:
    """Seconds between reads: a provider at its own reporting interval, an engine at every tick."""
    return max(INTERVAL_MIN, collector.report_seconds) if collector and collector.actor == "sandbox" else INTERVAL_MIN


def _key(
    problems: Problems, table: Mapping[str, Any], env: Mapping[str, str], collector: Collector | None, where: str
) -> Secret:
    """A provider's key: from the table, or else from the variable that the provider's own SDK reads."""
    given = config_alerts.secret(table, "key", env, problems, where)
    if given or collector is None or not collector.key_variable or {"key_env", "key_file"} & table.keys():
        return given
    return Secret(env.get(collector.key_variable, ""))


def _options(
    problems: Problems, table: Mapping[str, Any], collector: Collector | None, where: str
) -> tuple[tuple[str, str], ...]:
    options = problems.take(table, "options", dict, {}, where)
    allowed = {"run_key", *(collector.options if collector else ())} - {"map"}
    for key, value in options.items():
        if key not in allowed:
            problems.add(f"{where}.options.{key}", f"unknown option of this collector; {suggestion(key, allowed)}")
        elif not isinstance(value, str):
            problems.add(f"{where}.options.{key}", "must be a string")
        elif collector is not None and value not in collector.option_values.get(key, (value,)):
            problems.add(f"{where}.options.{key}", f"must be one of {', '.join(collector.option_values[key])}")
    return tuple(sorted((str(key), str(value)) for key, value in options.items()))


def _interval(problems: Problems, table: Mapping[str, Any], where: str, default: float) -> float:
    interval = float(problems.take(table, "interval", (int, float), default, where))
    if not INTERVAL_MIN <= interval <= INTERVAL_MAX:
        problems.add(f"{where}.interval", f"must be between {INTERVAL_MIN:g} and {INTERVAL_MAX:g} seconds")
        return 5.0
    return interval


def _bearer(problems: Problems, table: Mapping[str, Any], env: Mapping[str, str], where: str) -> Secret:
    variable = problems.take(table, "bearer_env", str, "", where)
    if variable and not env.get(variable):
        problems.add(f"{where}.bearer_env", f"the environment has no {variable}")
    return Secret(env.get(variable, "") if variable else "")
