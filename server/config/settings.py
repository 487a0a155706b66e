"""Validated settings from one TOML file and the environment. Errors are collected, each with its key and the fix.

Secrets come from the environment or from files, and from the TOML only where that cannot be avoided. No error, log line
or API response contains them.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import collectors
from collectors.model import FACTS, Collector, Lifecycle, Mode
from collectors.otlp_names import Maps
from collectors.training_logs.maps import check as check_maps
from server.alerts.settings import AlertSettings
from server.config import alert_rules, cost, discovery
from server.config import alerts as alerts_config
from server.config import otlp as config_otlp
from server.config import retention as retention_config
from server.config.errors import ConfigError, Problems, suggestion
from server.config.preflight import parse as parse_preflight
from server.config.secret import NO_SECRET, Secret
from server.preflight.model import PreflightPlan
from server.push.heartbeats import HeartbeatSettings
from server.store.types import RetentionSettings
from server.targets.discovery.model import RunSettings, TargetSettings
from server.targets.outbound_policy import is_loopback, refuse_target

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
    alerts: AlertSettings = field(default_factory=alerts_config.defaults)
    otlp: Maps = field(default_factory=dict)

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
    problems.unknown(raw, {"server", "store", "run", "alerts", "otlp"}, "config")
    server = problems.take(raw, "server", dict, {}, "config")
    keys = {"host", "port", "token_file", "private", "allowed_hosts", "role", "collect", "push"}
    problems.unknown(server, keys, "server")
    store = problems.take(raw, "store", dict, {}, "config")
    problems.unknown(store, {"url", "url_file", "max_size", *retention_config.KEYS}, "store")
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
        retention=retention_config.parse(problems, store),
        role=_choice(problems, server, "role", env.get("ROLLSCOPE_ROLE", "all"), ("all", "collect", "web")),
        collect=_choice(problems, server, "collect", "auto", ("inside", "apart", "auto")),
        push=problems.take(server, "push", bool, True, "server"),
        runs=tuple(_run(problems, name, table, env, heartbeats, plans) for name, table in runs.items()),
        heartbeats=heartbeats,
        preflight=plans,
        alerts=alerts_config.build(problems.take(raw, "alerts", dict, {}, "config"), env, problems),
        otlp=config_otlp.check(raw.get("otlp", []), lambda where, text: problems.add(f"otlp{where}", text)),
    )
    _one_token_each(heartbeats, problems)
    if problems.messages:
        raise ConfigError(problems.messages)
    return settings


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
    facts = facts | cost.parse(problems, table, where)
    settings = tuple(_target(problems, f"{where}.target[{i}]", target, env) for i, target in enumerate(targets))
    beats = problems.take(table, "heartbeat", list, [], where)
    heartbeats[name] = tuple(_heartbeat(problems, f"{where}.heartbeat[{i}]", beat, env) for i, beat in enumerate(beats))
    plans[name] = parse_preflight(table.get("preflight", {}), problems, f"{where}.preflight")
    lists = discovery.parse(problems, problems.take(table, "discover", list, [], where), where, env, _interval)
    return RunSettings(name, settings, facts, lists)


def _heartbeat(problems: Problems, where: str, table: Any, env: Mapping[str, str]) -> HeartbeatSettings:
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [[run.NAME.heartbeat]]")
        return HeartbeatSettings("", NO_SECRET, 0.0)
    problems.unknown(table, {"name", "token_env", "token_file", "every"}, where)
    token = alerts_config.secret(table, "token", env, problems, where)
    if not {"token_env", "token_file"} & table.keys():
        problems.add(where, "needs token_env or token_file")
    elif token and not re.fullmatch(HEARTBEAT_TOKEN, token):
        problems.add(where, "its token must be 16 to 128 letters, digits, - or _, e.g. from `openssl rand -hex 16`")
    every = alert_rules.seconds(table, "every", 0.0, problems, where)
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
    given = alerts_config.secret(table, "key", env, problems, where)
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
