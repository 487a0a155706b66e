"""The generated pages, each a function from the program's own registries to Markdown."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
from fastapi import FastAPI

import collectors
from bench.docs import configuration, verdict
from bench.docs.markdown import code, codes, page, section, table
from collectors.catalog import METRICS
from collectors.model import Collector
from dashboard.shell.glossary import WORDS
from server import notify, signals
from server.alerts import text
from server.alerts.model import CLASSES, Rule
from server.api import PROMETHEUS_PREFIX as PREFIX
from server.api.metrics import render
from server.config import alerts as alerts_config
from server.config.settings import Settings
from server.lib.clock import WallClock
from server.main import program
from server.query import Reader
from server.runtime.self_metrics import CollectorNumbers, Numbers, SelfMetrics
from server.runtime.serve import Health, _app
from server.signals import availability
from server.signals.labels import LABELS
from server.store import Store, migrate
from server.store.types import RetentionSettings

ACTORS: Mapping[str, str] = {
    "trainer": "Trainer",
    "queue": "Queue",
    "generator": "Generator",
    "rollout": "Rollouts",
    "sandbox": "Sandboxes",
}
CADENCES: Mapping[str, str] = {"tick": "every 5 s", "step": "per step"}
# Labels of the families on /metrics that describe a run and not a signal, if they have more than the run.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "run_info": ("run", "framework", "mode"),
    "run_state": ("run", "state"),
    "run_data_state": ("run", "state"),
    "target_up": ("run", "target", "kind"),
    "target_scrape_seconds": ("run", "target", "kind"),
    "process_cpu_seconds_total": ("process",),
    "process_written_bytes_total": ("process",),
    "process_resident_bytes": ("process",),
    "process_open_files": ("process",),
    "store_rows_written_total": (),
    "store_commits_total": (),
    "store_retries_total": (),
    "store_dropped_rows_total": (),
    "store_queued_rows": (),
    "store_table_bytes": ("table",),
    "inbox_pushes": (),
    "inbox_rows": (),
    "inbox_bytes": (),
    "outbox_notifications": ("receiver",),
    "retention_lag_seconds": (),
    "packing_backlog_hours": (),
    "target_info": ("run", "target", "source", "job", "label_..."),
    "signal_age_seconds": ("run", "signal"),
    "signal_state": ("run", "signal", "state"),
    "alerts": ("run", "alertname", "severity", "alertstate"),
    "store_bytes": (),
    "store_disk_bytes": (),
    "store_growth_bytes_per_hour": (),
    "store_rows_per_hour": (),
    "store_limit_bytes": (),
    "store_limit_reached_seconds": (),
    "store_deleted_before_timestamp_seconds": ("kind",),
    "store_free_bytes": (),
    "store_oldest_sample_timestamp_seconds": (),
    "build_info": ("version",),
}
SPINUP = "sandbox_spinup_seconds"
OPTION_HEAD = ("argument", "default", "meaning")
# Names of the parameters that most commands share, and of those that `up`, `watch` and `demo` add.
SHARED_OPTIONS = {"config", "store", "verbose", "log_format"}
SERVING_OPTIONS = {"host", "port", "role", "no_browser"}
HTTP_GROUPS: Mapping[str, str] = {
    "Health": r"/healthz|/readyz|/metrics$",
    "Runs and signals": (
        r"/api/v1/((runs|metrics)$|targets|runs/\{run\}/(status|signals|series|verdicts|what-if|engines|steps))"
    ),
    "Rollouts": r"/api/v1/runs/\{run\}/(rollouts|groups|funnel|census|cells|events)",
    "Sandboxes and preflight": r"/api/v1/runs/\{run\}/(sandboxes|preflight)",
    "Alerts": r"/api/v1/(alerts|rules|silences|notifications|heartbeat)",
    "Push": r"/api/v1/(write|readings)|/v1/metrics",
    "Other": r"",
}


# ---- signals and metrics


def signal_page() -> str:
    introduction = """
A signal is a value, *unknown* (with the reason and what to log) or *not applicable* (a synchronous run has no queue).
Trainer signals are means over the last 10 steps (at least 3). Signals of engines and the queue are time-weighted means
over 5 minutes of whole steps; `*_now` is the newest value. *Inputs* are [input metrics](input-metrics.md); a signal
without inputs is computed from [rollout records](rollouts.md), from records of sandboxes or from other signals. The
[coverage table](coverage.md) lists which framework provides which signal.
"""
    found = signals.load()
    by_actor = {
        actor: [item for item in found if item.actor == actor] for actor in dict.fromkeys(i.actor for i in found)
    }
    order = [*(actor for actor in ACTORS if actor in by_actor), *(actor for actor in by_actor if actor not in ACTORS)]
    head = ("signal", "unit", "labels", "meaning", "inputs", "computed")
    sections = [
        section(ACTORS.get(actor, actor.capitalize()), table(head, map(_signal, by_actor[actor]))) for actor in order
    ]
    return page("Signals", introduction, *sections)


def _signal(item: signals.Signal | signals.Counter) -> tuple[str, ...]:
    inputs = [name for name in availability.inputs(item) if name in METRICS]
    shown = codes(inputs[:4]) + (f" and {len(inputs) - 4} more" if len(inputs) > 4 else "")
    computed = CADENCES[item.cadence] if isinstance(item, signals.Signal) else "counter"
    return code(item.name), item.unit, codes(_labels(item)), item.help, shown, computed


def _labels(item: signals.Signal | signals.Counter) -> Sequence[str]:
    own = LABELS.get(item.name, ())
    return own or (sorted(item.by) if isinstance(item, signals.Counter) else ())


def metric_page() -> str:
    introduction = f"""
`GET /metrics` is Prometheus' text format. Every name begins with `{PREFIX}`, and every series of a run has the label
`run`. A signal that becomes stale or unknown disappears from the page. Runs without data for a day are left out.
"""
    families = _families()
    about = [
        (code(PREFIX + name), kind, codes(FAMILIES.get(name, ("run",))), help)
        for name, (kind, help) in families.items()
    ]
    shown = [item for item in signals.load() if not item.name.startswith("sandbox_spinup_") or "latency" in item.name]
    rows = [
        (code(PREFIX + item.name), "counter" if item.name.endswith("_total") else "gauge",
         codes(("run", *_labels(item))), item.unit, item.help)
        for item in shown
    ]  # fmt: skip
    spinup = "Seconds from requested to ready of the run's sandboxes."
    rows.append((code(PREFIX + SPINUP), "histogram", codes(("run",)), "seconds", spinup))
    return page(
        "Metrics on /metrics",
        introduction,
        section("Runs, targets and alerts", table(("name", "type", "labels", "meaning"), about)),
        section("Signals", table(("name", "type", "labels", "unit", "meaning"), sorted(rows))),
    )


class _NoRuns:
    """A reader of an empty store, for the families that /metrics always serves."""

    runs = SimpleNamespace(all=list)
    signals = SimpleNamespace(infos={})

    def now(self) -> float:
        return 0.0


# With an hour of sizes, without which there is no rate of growth.
_NUMBERS = Numbers(CollectorNumbers(sizes=[(0.0, 0, 0), (3600.0, 1, 1)]))
_OWN = SelfMetrics(None, _NUMBERS, RetentionSettings(max_bytes=1))


def _families() -> dict[str, tuple[str, str]]:
    """Name without prefix -> (type, help) of the families that are there without any run."""
    lines = render(cast(Reader, _NoRuns()), "0", _OWN).decode().splitlines()
    helps = dict(re.findall(rf"^# HELP {PREFIX}(\w+) (.*)$", "\n".join(lines), re.M))
    return {name: (kind, helps[name]) for name, kind in re.findall(rf"# TYPE {PREFIX}(\w+) (\w+)", "\n".join(lines))}


def input_page() -> str:
    introduction = """
Collectors translate the keys of each system to these names. Use them to [push](../how-to/push.md), to
[map a log of your own](../how-to/custom-logs.md) and for alert rules on a metric. *Covers* is what one value stands
for: `instant` (the moment), `cumulative` (since the process began), `per_step` (one trainer step), `window_delta` (what
was added since the previous value).
"""
    head = ("metric", "unit", "kind", "covers", "meaning")
    actors = dict.fromkeys(metric.actor for metric in METRICS.values())
    sections = [
        section(
            ACTORS.get(actor, actor.capitalize()),
            table(
                head,
                [
                    (code(row.name), row.unit, row.kind, row.reduction, row.help)
                    for row in METRICS.values()
                    if row.actor == actor
                ],
            ),
        )
        for actor in actors
    ]
    return page("Input metrics", introduction, *sections)


# ---- collectors


def collector_page() -> str:
    introduction = """
A collector reads one kind of system. All collectors are read-only and bounded: they never call an endpoint that changes
anything, poll at most every 5 s, and enforce limits on bytes, lines, samples and labels before they parse. *Checked
against* names the versions whose source or output the mapping was verified with; other versions usually work, and keys
that are not mapped are shown in the target's row. Options are in the
[configuration reference](configuration.md#collector-options).
"""
    found = collectors.load().values()
    records = set(collectors.record_formats())
    parts = {
        "Trainers": [one for one in found if one.actor == "trainer"],
        "Engines, routers and GPUs": [one for one in found if one.actor == "generator" and one.name not in records],
        "Rollout records": [one for one in found if one.name in records],
        "Sandboxes": [one for one in found if one.actor == "sandbox"],
    }
    head = ("collector", "reads", "checked against")
    return page(
        "Collectors", introduction, *(section(name, table(head, map(_row, rows))) for name, rows in parts.items())
    )


def _row(one: Collector) -> tuple[str, str, str]:
    return code(one.name), one.reads, one.versions


def coverage_page() -> str:
    introduction = """
Which framework provides which signal. **N**: native, the framework logs the signal's first input under its own key.
**d**: derived from several keys, from the configuration or from the mode (the staleness of a synchronous run is 0).
**/**: not applicable to its runs. Empty: unknown, and shown as unknown. Several modes of a framework are combined.
`custom` and `mlflow` are missing because they provide what the run's framework provides. `rollscope check SOURCE`
prints the same for one run, with the key behind each value. A test checks every cell against recorded runs.
"""
    return page(
        "Coverage",
        introduction,
        availability.table(),
        section("How to get more signals", "\n".join(availability.hints())),
    )


# ---- command line, HTTP, alerts, glossary


def command_page() -> str:
    introduction = """
`rollscope COMMAND --help` prints the same, and `rollscope` alone lists the commands. Exit codes: 0 success; 1 a check
failed; 2 bad usage or configuration.

Without `-c FILE`, the configuration is the file that `ROLLSCOPE_CONFIG` names, or else the first of `./rollscope.toml`,
`~/.config/rollscope/rollscope.toml` (`$XDG_CONFIG_HOME` is respected) and `/etc/rollscope/rollscope.toml` that exists.
`demo` uses a configuration only if `-c` names it, and `check SOURCE` then checks the named sources only.

Output is coloured on a terminal only; `NO_COLOR=1` turns colours off. The log goes to standard error;
`--log-format json` writes one JSON object per line. To complete commands and options with the Tab key, add this line
to `~/.bashrc`, or with `zsh` instead of `bash` to `~/.zshrc`:

```sh
eval "$(rollscope completion bash)"
```

For fish: `rollscope completion fish > ~/.config/fish/completions/rollscope.fish`.
"""
    context = program().make_context("rollscope", ["help"])
    commands = list(_commands(context))
    up = next(command for command in commands if command.info_name == "up")
    served = [_option(parameter, up) for parameter in up.command.params if parameter.name in SERVING_OPTIONS]
    shared = [_option(parameter, up) for parameter in up.command.params if parameter.name in SHARED_OPTIONS]
    return page(
        "Command line",
        introduction,
        section("Shared options", "Most commands take these options.", table(OPTION_HEAD, shared)),
        section("Server options", "`up`, `watch` and `demo` also take these options.", table(OPTION_HEAD, served)),
        *map(_command, commands),
    )


def _commands(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(below)
        else:
            yield below


def _command(context: click.Context) -> str:
    command = context.command
    names = {parameter.name for parameter in command.params}
    rows = [_option(one, context) for one in command.params if one.name not in SHARED_OPTIONS | SERVING_OPTIONS]
    groups = {"shared": SHARED_OPTIONS, "server": SERVING_OPTIONS}
    links = [f"[{name} options](#{name}-options)" for name, options in groups.items() if options <= names]
    more = f"It {'also ' if rows else ''}takes the {' and the '.join(links)}." if links else ""
    parts = [command.help or "", table(OPTION_HEAD, rows) if rows else "", more]
    example = (command.epilog or "").partition("Example: ")[2]
    return section(context.command_path, *filter(None, parts), f"```sh\n{example}\n```")


def _option(parameter: click.Parameter, context: click.Context) -> tuple[str, str, str]:
    """Returns the cells of one row: name and value, default, meaning."""
    option = isinstance(parameter, click.Option)
    names = ", ".join(parameter.opts) if option else parameter.make_metavar(context).strip("[].")
    takes = f" {parameter.metavar or parameter.make_metavar(context)}" if option and not parameter.is_flag else ""
    default = parameter.to_info_dict()["default"]
    shown = "" if default in (None, False, 0, ()) else code(str(default))
    choices = getattr(parameter.type, "choices", ())
    listed = f"one of {codes(map(str, choices))}" if choices else ""
    meaning = parameter.help if parameter.help and not (choices and "one of" in parameter.help) else ""
    return code(names + takes), shown, "; ".join(part for part in (listed, meaning) if part)


@cache
def openapi() -> dict[str, Any]:
    """The API's own description, from the server's composition over an empty store."""
    made: list[FastAPI] = []

    def attach(api: FastAPI, reader: Reader, version: str) -> tuple[Any, Callable[[], str]]:
        made.append(api)
        return api, lambda: ""

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'empty.db'}"
        migrate(url)
        store = Store.open(url)
        try:
            _app(Settings(), store, WallClock(), attach, "0", Health())
        finally:
            store.close()
    return made[0].openapi()


def http_page() -> str:
    introduction = """
All paths answer with JSON unless noted. The server describes itself at `/docs` and `/openapi.json`, which has a schema
of every answer and error. If it has a token, send `Authorization: Bearer TOKEN`. Times are epoch seconds. To follow a
run, read the `cursor` in the answer of `/api/v1/runs/{run}/series` and pass it as `since`: the next answer has only
newer points, or `"reset": true` if history was rewritten. Errors are `{"detail": "..."}`.

Answers are Rollscope's own records, with every field; null is unknown. In a status, `signals` has by name with labels
what is known of each (also `name`, `signal`, `labels` and `ts`), `trust` has targets as `/api/v1/targets` shows them,
and `gone` those that were removed from their list, which are not down. `/api/v1/runs/{run}/signals` also has
`higher_is_worse`, `inputs` and `cadence`. `rollscope status --json` prints the same status.
"""
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {name: [] for name in HTTP_GROUPS}
    for path, methods in openapi()["paths"].items():
        name = next(name for name, pattern in HTTP_GROUPS.items() if re.match(pattern, path))
        groups[name] += [(method.upper(), path, operation) for method, operation in methods.items()]
    parts = [section(name, *(_operation(*one) for one in found)) for name, found in groups.items() if found]
    return page("HTTP API", introduction, *parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (code(one["name"]), _type(one["schema"]), _initial(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", [])
        if one["in"] == "query"
    ]
    parts = [f"### {method} `{path}`", operation.get("description", "").strip()]
    if rows:
        parts.append(table(("parameter", "type", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _type(schema: Mapping[str, Any]) -> str:
    kinds = [one.get("type", "") for one in schema.get("anyOf", [schema])]
    return " or ".join(kind for kind in kinds if kind and kind != "null") or "string"


def _initial(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    return "" if value in (None, "", []) else code(str(value))


def alert_page() -> str:
    introduction = """
These rules are on without configuration. While an alert of class `liveness` fires, alerts of class `tuning` and `cost`
of the same run are not sent. [Write alert rules](../how-to/alerts.md) shows how to change, disable and add rules.
"""
    found = alerts_config.defaults().rules
    head = ("rule", "condition", "severity", "message")
    sections = [
        section(name.capitalize(), table(head, [_rule(rule) for rule in found if rule.class_ == name]))
        for name in CLASSES
    ]
    kinds = [(code(one.kind), one.reads) for one in notify.load().values()]
    receivers = section("Receivers", "[How to choose and configure one](../how-to/receivers.md)",
                        table(("kind", "speaks to"), kinds))  # fmt: skip
    return page("Alert rules", introduction, *sections, receivers)


def _rule(rule: Rule) -> tuple[str, str, str, str]:
    annotations = dict(rule.annotations)
    message = ". ".join(annotations[key].rstrip(".") for key in ("summary", "description") if key in annotations)
    return code(rule.name), code(text.expression(rule)), rule.severity, message


def glossary_page() -> str:
    introduction = "The same words have the same meaning on every page, in the API and in this documentation."
    return page("Glossary", introduction, table(("term", "meaning"), WORDS))


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/signals.md": signal_page,
    "reference/metrics.md": metric_page,
    "reference/input-metrics.md": input_page,
    "reference/collectors.md": collector_page,
    "reference/coverage.md": coverage_page,
    "reference/command-line.md": command_page,
    "reference/configuration.md": configuration.reference,
    "reference/http-api.md": http_page,
    "reference/alert-rules.md": alert_page,
    "reference/glossary.md": glossary_page,
    "concepts/verdict-rules.md": verdict.rules_page,
}
"""File below docs -> its text."""
