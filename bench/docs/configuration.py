"""Every key of the configuration file: type, default and meaning.

The code checks keys where it uses them, so types and meanings are written here. A test compares the keys of each
table with those that the program accepts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import collectors
from bench.docs.markdown import code, codes, page, section, table
from collectors.model import FACTS
from server import notify
from server.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``default``: as text; "" if there is none, and "required" if it must be given."""

    name: str
    type: str
    default: str
    meaning: str


_SERVER = Settings()

TABLES: Mapping[str, tuple[Key, ...]] = {
    "[server]": (
        Key("host", "string", _SERVER.host, "address to bind; any address beyond loopback needs a token"),
        Key("port", "integer", str(_SERVER.port), "port; 0 selects a free one"),
        Key("token_file", "path", "", "file with the access token, at least 20 printable ASCII characters"),
        Key("private", "boolean", "false", "on a loopback address: reading and pushing need the admin token, too"),
        Key("allowed_hosts", "list of strings", "[]",
            "host names that requests may use, in addition to loopback; if empty and bound beyond loopback: any"),
        Key("role", "string", _SERVER.role,
            "`all`; or `collect` (one process) and `web` (any number), which share a PostgreSQL store"),
        Key("collect", "string", _SERVER.collect,
            "`inside`: targets are read in the server's process; `apart`: in a separate process; `auto`: in a separate "
            "process if there are 20 URL targets or more"),
        Key("push", "boolean", "true", "push updates to open tabs over a WebSocket; if false, tabs poll"),
    ),
    "[store]": (
        Key("url", "string", "sqlite:///~/.local/state/rollscope/rollscope.db",
            "`sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`"),
        Key("url_file", "path", "", "file with that URL, if it contains a password"),
        Key("raw", "duration", "15d", "how long samples of targets are kept; `forever` keeps them permanently"),
        Key("signals", "duration", "90d", "the same for signals at full resolution and histograms"),
        Key("rollups", "duration", "forever", "the same for rollups (1 min, 10 min, 1 h), which charts of long or old "
            "ranges read"),
        Key("records", "duration", "90d", "the same for rollouts, groups and sandboxes; their sums stay"),
        Key("max_size", "string", "no limit", "size limit of the database on disk, such as `50GB`; beyond it the "
            "oldest samples are deleted first"),
    ),
    "[run.NAME]": (
        Key("facts", "table", "{}", "facts that you state; they override those that collectors find"),
        Key("target", "list of tables", "[]", "what to read: `[[run.NAME.target]]`"),
        Key("discover", "list of tables", "[]", "lists of targets: `[[run.NAME.discover]]`"),
        Key("heartbeat", "list of tables", "[]", "signs of life from trainers: `[[run.NAME.heartbeat]]`"),
        Key("preflight", "table", "{}", "the plan for checks before a launch: `[run.NAME.preflight]`"),
        Key("cost", "table", "{}", "GPUs and prices: `[run.NAME.cost]`"),
    ),
    "[[run.NAME.target]]": (
        Key("url", "string", "", "http:// or https:// address; exactly one of `url` and `path`, unless the collector "
            "has a default URL"),
        Key("path", "string", "", "run directory, log file or database"),
        Key("name", "string", "derived from the source", "name of the target in labels and messages"),
        Key("collector", "string", "detected", "name of the [collector](collectors.md)"),
        Key("interval", "number", "5", "seconds between two reads, 5 to 3600; sandbox providers: as often as they have "
            "new data"),
        Key("bearer_env", "string", "", "environment variable with a bearer token"),
        Key("key_env", "string", "the provider's own variable", "environment variable with the provider's key"),
        Key("key_file", "path", "", "file with the provider's key"),
        Key("options", "table of strings", "{}", "options of the collector, see [below](#collector-options)"),
        Key("map", "list of tables", "[]", "keys of a log of your own, for `collector = \"custom\"`"),
    ),
    "[[run.NAME.target.map]]": (
        Key("key", "string", "required", "regular expression that matches the whole key in the log"),
        Key("metric", "string", "required", "an [input metric](input-metrics.md)"),
        Key("unit", "string", "the metric's unit", "unit in the log"),
        Key("scale", "number", "1", "factor that is applied after the unit"),
        Key("reduction", "string", "value", "`value`, or `total` for counts since the process began"),
        Key("fold", "string", "sum for parts of a step", "`sum`, `mean`, `max` or `first`, if several keys match"),
        Key("labels", "table of strings", "{}", "fixed labels of the metric"),
        Key("axis", "string", "trainer", "step counter of the row"),
        Key("ignore", "boolean", "false", "the key is not wanted; it is not reported as unmapped"),
    ),
    "[[run.NAME.discover]]": (
        Key("file_sd", "string or list", "", "file list of Prometheus; exactly one of the first five keys is required"),
        Key("http_sd", "string", "", "URL of such a list"),
        Key("prometheus_yml", "string", "", "configuration of a Prometheus"),
        Key("router", "string", "", "URL of a router"),
        Key("run_dir", "string", "", "run directory of prime-rl"),
        Key("name", "string", "the kind", "name of the list"),
        Key("collector", "string", "detected", "collector of its targets"),
        Key("interval", "number", "5", "seconds between two reads of a target"),
        Key("refresh", "number", "5 for files, 15 for a router, 60 for http_sd", "seconds between reads of the list"),
        Key("job", "string or list", "all", "only targets of these jobs"),
        Key("match", "list of matchers", "[]", "only targets whose labels all match"),
        Key("headers", "table of strings", "{}", "HTTP headers sent to every target; must not contain secrets"),
        Key("bearer_env", "string", "", "environment variable with the bearer token of the targets"),
        Key("list_bearer_env", "string", "", "environment variable with the bearer token of the list's server"),
        Key("labels_as_name", "list of strings", "job and instance", "labels that name a target"),
    ),
    "[[run.NAME.heartbeat]]": (
        Key("name", "string", "heartbeat", "name of the target"),
        Key("token_env", "string", "", "environment variable with the token of the heartbeat URL; "
            "`token_env` or `token_file` is required"),
        Key("token_file", "path", "", "file with that token: 16 to 128 letters, digits, `-` or `_`"),
        Key("every", "duration", "required", "longest silence, at least 5s"),
    ),
    "[run.NAME.cost]": (
        Key("gpu", "string", "detected", "GPU type of the whole run, such as `H200`"),
        Key("trainer_gpu", "string", "", "GPU type of the trainer, if it differs"),
        Key("generator_gpu", "string", "", "GPU type of the generator, if it differs"),
        Key("gpus", "integer", "the trainer's configuration", "GPUs of the whole run"),
        Key("trainer_gpus", "integer", "the trainer's configuration", "GPUs of the trainer"),
        Key("generator_gpus", "integer", "the trainer's configuration", "GPUs of the generator"),
        Key("usd_per_gpu_hour", "number or table", "price of the type",
            "one price, or `{ trainer = ..., generator = ... }`"),
        Key("target_usd_per_million_tokens", "number", "", "target price for `cost_target_ratio` and `CostOverTarget`"),
    ),
    "[run.NAME.preflight]": (
        Key("concurrency", "integer", "", "sandboxes alive at once"),
        Key("create_rate", "number", "", "sandboxes created per second"),
        Key("rollout_deadline", "duration", "", "longest rollout"),
        Key("run_length", "duration", "", "length of the run"),
        Key("images", "list of strings", "[]", "images that sandboxes start from"),
        Key("limits", "table of numbers", "{}", "limits that the provider does not report"),
        Key("price", "number", "", "USD per sandbox-hour"),
        Key("sandbox_ttl", "duration", "", "lifetime of a sandbox, or `unlimited`"),
        Key("spinup", "duration", "", "typical spin-up time, if none was observed"),
        Key("size", "table of numbers", "{}", "`cpu`, `memory_gb`, `disk_gb`, `gpu` of one sandbox"),
        Key("known_runs", "list of strings", "[]", "runs in the same accounts, not in this file; `*` is allowed"),
        Key("max_dangling", "integer", "10", "the check fails if more sandboxes than this are left over"),
        Key("min_credit", "number", "10", "USD; if no price is available, the check fails below this credit"),
        Key("engines_later", "boolean", "false", "the run starts its own engines"),
    ),
    "[alerts]": (
        Key("default_pack", "boolean", "true", "use the [default rules](alert-rules.md)"),
        Key("disable", "list of strings", "[]", "names of rules to switch off"),
        Key("group_by", "list of strings", '["alertname", "run"]', "labels by which alerts share a notification"),
        Key("group_wait", "duration", "0s", "wait before the first notification of a group"),
        Key("group_interval", "duration", "1m", "shortest time between two notifications of a group"),
        Key("repeat_interval", "duration", "4h", "time until a firing alert is repeated, at least 60s"),
        Key("external_url", "string", "this server's address", "address for links in notifications"),
        Key("rule", "list of tables", "[]", "rules: `[[alerts.rule]]`"),
        Key("receiver", "list of tables", "[]", "receivers: `[[alerts.receiver]]`"),
        Key("inhibit", "list of tables", "liveness inhibits tuning and cost", "more inhibition: `[[alerts.inhibit]]`"),
        Key("deadman", "table", "", "dead-man switch: `[alerts.deadman]`"),
    ),
    "[[alerts.rule]]": (
        Key("name", "string", "required", "name; that of a default rule changes this rule"),
        Key("signal", "string", "", "a [signal](signals.md); one source of the condition is required"),
        Key("metric", "string", "", "an [input metric](input-metrics.md)"),
        Key("drift", "string", "", "`response_length`, `turns`, `tool_calls` or `prefill_decode`; needs `factor`"),
        Key("verdict", "list of strings", "", "outcomes of the verdict"),
        Key("forecast", "string", "", "`kv_concurrency_limit`; needs `within`"),
        Key("burn_usd", "number", "", "idle dollars; needs `over`"),
        Key("above", "number", "", "comparison; one of these six keys is required"),
        Key("at_least", "number", "", "comparison"),
        Key("below", "number", "", "comparison"),
        Key("at_most", "number", "", "comparison"),
        Key("equals", "number", "", "comparison"),
        Key("not_equals", "number", "", "comparison"),
        Key("match", "list of matchers", "[]", "only series whose labels match"),
        Key("recover", "number", "the level itself", "level at which a firing alert resolves"),
        Key("increase_over", "duration", "", "compare the growth of a counter over this time"),
        Key("factor", "number", "", "drift against the first steps"),
        Key("within", "duration", "", "horizon of the forecast"),
        Key("over", "duration", "", "time over which `burn_usd` is counted"),
        Key("absent", "boolean", "false", "true if there is no such series"),
        Key("also", "list of tables", "[]", "further conditions that must hold"),
        Key("for", "duration", "0s", "the condition must hold this long"),
        Key("keep_firing_for", "duration", "0s", "keep firing this long after the condition ended"),
        Key("severity", "string", "warning", "`critical`, `warning` or `info`"),
        Key("class", "string", "tuning", "`liveness`, `infrastructure`, `tuning` or `cost`"),
        Key("labels", "table of strings", "{}", "further labels"),
        Key("annotations", "table of strings", "{}", "`summary` and `description` with `$` variables"),
        Key("no_data", "string", "hold", "`hold`, `alert` or `ok`"),
        Key("no_data_after", "duration", "5m", "time without data until `no_data` applies"),
        Key("lifecycle", "list of strings", '["running"]', "lifecycles in which the rule applies"),
        Key("promql", "string", "", "expression for `rollscope export rules`"),
    ),
    "[[alerts.receiver]]": (
        Key("name", "string", "required", "name"),
        Key("kind", "string", "required", f"one of {codes(notify.load())}"),
        Key("url", "string", "", "address; `url`, `url_file` or `url_env` is required, except for `pagerduty`"),
        Key("url_file", "path", "", "file with the address"),
        Key("url_env", "string", "", "environment variable with the address"),
        Key("match", "list of matchers", "[]", "only alerts that match"),
        Key("send_resolved", "boolean", "true", "also notify when an alert ends"),
        Key("max_alerts", "integer", "0 (all)", "alerts in one notification"),
        Key("group_by", "list of strings", "as in [alerts]", "grouping"),
        Key("group_wait", "duration", "as in [alerts]", "grouping"),
        Key("group_interval", "duration", "as in [alerts]", "grouping"),
        Key("repeat_interval", "duration", "as in [alerts]", "grouping"),
    ),
    "[[alerts.inhibit]]": (
        Key("source", "list of matchers", "required", "alerts that suppress others while they fire"),
        Key("target", "list of matchers", "required", "alerts that are not sent during that time"),
        Key("equal", "list of strings", '["run"]', "labels in which both must agree"),
    ),
    "[alerts.deadman]": (
        Key("url", "string", "", "URL fetched while everything works; `url`, `url_file` or `url_env` is required"),
        Key("url_file", "path", "", "file with the address"),
        Key("url_env", "string", "", "environment variable with the address"),
        Key("interval", "duration", "1m", "time between two requests, at least 10s"),
    ),
    "[[dashboard.panel]]": (
        Key("signal", "string", "", "a [signal](signals.md), with labels of its series; this or `metric`"),
        Key("metric", "string", "", "an [input metric](input-metrics.md), with labels, such as `target`"),
        Key("title", "string", "the name", "title of the chart, shown below every Overview"),
        Key("split", "string", "", "a label: one chart per value of it"),
        Key("log", "boolean", "false", "logarithmic value axis"),
    ),
    "[[otlp]]": (
        Key("name", "string", "required", "name of the OpenTelemetry metric"),
        Key("metric", "string", "required", "an [input metric](input-metrics.md)"),
        Key("run", "string", "all", "only this run"),
        Key("unit", "string", "the unit that is sent", "unit of the values"),
        Key("scale", "number", "", "factor, instead of `unit`"),
        Key("labels", "table of strings", "{}", "fixed labels of the metric"),
        Key("keep", "table of strings", "{}", "attribute of the point or resource = label of the metric"),
        Key("ignore", "boolean", "false", "accept the name without using it"),
    ),
}  # fmt: skip

VARIABLES: Mapping[str, str] = {
    "ROLLSCOPE_CONFIG": "the configuration file, if no `-c FILE` is given; empty: no file",
    "ROLLSCOPE_LOG_FORMAT": "`text` or `json`, as `--log-format`",
    "ROLLSCOPE_TOKEN": "the access token",
    "ROLLSCOPE_STORE": "URL of the store",
    "ROLLSCOPE_HOST": "as `[server] host`",
    "ROLLSCOPE_PORT": "as `[server] port`",
    "ROLLSCOPE_ROLE": "as `[server] role`",
    "ROLLSCOPE_ALLOWED_HOSTS": "as `[server] allowed_hosts`, separated by commas",
}

OPTIONS: Mapping[str, str] = {
    "app": "name of the Modal app",
    "app_id": "id of the Modal app",
    "ca_file": "certificate authority of the server",
    "cert_file": "client certificate",
    "environment": "Modal environment",
    "experiment_id": "only this experiment",
    "format": "`jsonl`, `trackio`, `mlflow`, `tensorboard` or `wandb`",
    "framework": "the framework whose keys the run uses",
    "group_size": "rollouts per group",
    "key_file": "key of the client certificate",
    "kind": "`pods` (default), `sandboxes` or `both`",
    "label": "only containers with these labels, separated by commas",
    "label_selector": "only objects that match this Kubernetes selector",
    "limit_concurrent": "limit on running sandboxes, which the provider does not report",
    "limit_creates_per_second": "limit on creations, which the provider does not report",
    "name": "name of the server",
    "namespace": "only this namespace",
    "organization": "id of the organization",
    "region": "region whose quota applies",
    "run_key": "value of the run's label, if it is not the run's name",
    "run_label": "label, tag or metadata key that holds the run's name (default `run`)",
    "scrape_seconds": "scrape interval of the store (default 60)",
    "selector": "matchers that select the engines of this run",
    "socket": "path of the engine's socket",
    "state": "`on`: also read the environment's state",
    "step_key": "field with the step",
    "team": "id of the team, for quota and limits",
    "tenant": "sent as `X-Scope-OrgID`",
    "time_key": "field with the time",
    "token_file": "file with a service account's token",
    "user_id": "only this user",
}

INTRODUCTION = """
Rollscope needs no configuration file. If there is one (`rollscope up -c FILE`), it is TOML. All errors are reported at
once, each with its key. The command line overrides the file. `ROLLSCOPE_TOKEN` and `ROLLSCOPE_STORE` override the file
too; the other variables are defaults that the file overrides.

A *duration* is a number of seconds or text such as `"30s"`, `"5m"`, `"1h30m"`. A *matcher* is text such as
`'severity=~"critical|warning"'`, with the operators of Prometheus. Keys whose name ends in `_file` or `_env` name a
file or an environment variable that contains the value.
"""


def reference() -> str:
    """docs/reference/configuration.md."""
    tables = [section(code(name), _keys(keys), _more(name)) for name, keys in TABLES.items()]
    facts = section("Facts", "Keys of `facts` in `[run.NAME]`.", table(("fact", "meaning"), _rows(FACTS)))
    variables = section("Environment variables", table(("variable", "meaning"), _rows(VARIABLES)))
    return page("Configuration", INTRODUCTION, variables, *tables, facts, _options())


def _keys(keys: tuple[Key, ...]) -> str:
    rows = [(code(key.name), key.type, _default(key.default), key.meaning) for key in keys]
    return table(("key", "type", "default", "meaning"), rows)


def _default(text: str) -> str:
    words = " " in text and not text.startswith("[")
    return text if words or text in ("required", "detected", "all") else code(text)


def _rows(items: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(code(name), meaning) for name, meaning in items.items()]


def _more(name: str) -> str:
    """Keys of the kinds of receivers."""
    if name != "[[alerts.receiver]]":
        return ""
    rows = []
    for kind in notify.load().values():
        for key, option in kind.options.items():
            names = codes((f"{key}_file", f"{key}_env")) if option.secret else code(key)
            rows.append((code(kind.kind), names, "required" if option.required else "", option.help))
    return "Keys of single kinds:\n\n" + table(("kind", "key", "default", "meaning"), rows)


def _options() -> str:
    rows = [
        (code(one.name), code(one.default_url), code(one.key_variable), codes(sorted(set(one.options) - {"map"})))
        for one in collectors.load().values()
        if one.options or one.default_url or one.key_variable
    ]
    head = ("collector", "default URL", "key from", "options")
    used = {name for one in collectors.load().values() for name in one.options} | {"run_key"}
    meanings = table(("option", "meaning"), _rows({name: OPTIONS[name] for name in sorted(used - {"map"})}))
    return section("Collector options", "All values are strings. `run_key` exists for every collector.",
                   table(head, rows), meanings)  # fmt: skip
