"""`rollscope status`: prints the current state of a run.

The store is imported only if it is read: `server.store` and `server.query` import their parts on first use.
"""

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click
import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from collectors.transport import http
from server import query
from server import store as stores
from server.alerts.text import duration
from server.cli import OK, program
from server.cli.options import Options, common
from server.cli.program import Command
from server.config.settings import load
from server.lib.clock import WallClock
from server.lib.errors import ConfigError
from server.query import health
from server.query.types import mode_words
from server.store.types import KINDS, RetentionSettings, size_words
from server.targets.naming import shown_url

# ---- verdict text
# A verdict for a terminal: what is slow and for how long, then the evidence, then the advice.

# Label and key of each number; the JSON has all of them.
_RATES = (
    ("trained", "trained_samples_per_second"),
    ("capacity", "capacity_samples_per_second"),
    ("arrivals", "arrivals_samples_per_second"),
)
_WAITS = (("reported", "reported_wait_ratio"), ("predicted from arrivals", "predicted_wait_ratio"))
_CONFIDENCE = ((0.75, "high"), (0.45, "medium"), (0.0, "low"))
# Lines of each list.
_EVIDENCE = 8
_SHARES = 4
_BRIEF_EVIDENCE = 4
_BRIEF_MISSING = 3
# Share of a finished run's time below which a limiter is left out of its summary.
LEAST_SHARE = 0.05


def named(outcome: str, cause: str | None) -> str:
    """``generator-bound (KV capacity)``."""
    text = outcome.replace("_bound", "-bound").replace("_", " ")
    return text + (f" ({cause.replace('_', ' ').replace('kv ', 'KV ')})" if cause else "")


def verdict_lines(verdict: Mapping[str, Any], now: float, lifecycle: str = "running") -> Iterator[str]:
    """The verdict in words, indented below its first line."""
    yield f"verdict: {_verdict_head(verdict, now, lifecycle)}"
    yield f"  {verdict['summary']}"
    yield from _listed("arithmetic", list(_arithmetic(verdict)))
    yield from _listed("evidence", [item["text"] for item in verdict.get("evidence", ())][:_EVIDENCE])
    contradictions = [item["text"] for item in verdict.get("contradictions", ())]
    yield from _listed("in doubt", [*verdict.get("disagreements", ()), *contradictions])
    if beyond := verdict.get("next"):
        yield f"  next limiter: {_limiter(beyond)}"
    yield from _changes(verdict)
    yield from _idle(verdict)
    yield from _listed("for more confidence, log", list(verdict.get("missing", ())))
    yield from _listed("for more advice", list(verdict.get("advice_lacks", ())))


def _changes(verdict: Mapping[str, Any]) -> Iterator[str]:
    """The changes to make, best first, with their gains and costs."""
    for place, one in enumerate(verdict.get("advice") or ()):
        gain, words = one["gain"], [] if one["cost"] == "setting" else [_COSTS[one["cost"]]]
        words = [f"{gain[0]:.2g}x to {gain[2]:.2g}x", *words] if gain is not None else words
        known = f" ({', '.join(words)})" if words else ""
        yield f"  {'or' if place else 'change first'}: {one['text']}{known}"


_COSTS = {"restart": "needs a restart", "money": "costs money"}


def brief(verdict: Mapping[str, Any], now: float, lifecycle: str = "running") -> Iterator[str]:
    """The verdict, its main evidence and the advice, for the short status."""
    yield f"verdict: {_verdict_head(verdict, now, lifecycle)}"
    yield f"  {verdict['summary']}"
    yield from (f"    - {item['text']}" for item in verdict.get("evidence", ())[:_BRIEF_EVIDENCE])
    if verdict.get("outcome") == "unknown" and (missing := verdict.get("missing")):
        more = [f"and {len(missing) - _BRIEF_MISSING} more"] if len(missing) > _BRIEF_MISSING else []
        yield from _listed("to find it, log", [*missing[:_BRIEF_MISSING], *more])
    yield from list(_changes(verdict))[:1]
    yield from _idle(verdict)


def ended_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """A finished run in one line: steps, time, reward, what limited it for how much of its time, and dollars."""
    steps, seconds, reward = summary.get("steps"), summary.get("seconds"), summary.get("reward")
    figures = [f"last step {steps:,}"] if steps is not None else []
    figures += [f"after {span(seconds)}"] if seconds is not None else []
    parts = [" ".join(figures)] if figures else []
    parts += [f"final reward {reward:.4g}"] if reward is not None else []
    limiters = summary.get("limiters") or {}
    total = sum(limiters.values())
    shares = sorted(((seconds / total, name) for name, seconds in limiters.items()), reverse=True) if total else []
    parts += [f"{named(name, None)} {share:.0%}" for share, name in shares if share >= LEAST_SHARE]
    if (dollars := summary.get("usd")) is not None:
        idle = summary.get("idle_usd")
        parts.append(
            f"${dollars:,.2f} at its mean hourly rate" + ("" if idle is None else f", ${idle:,.2f} of it idle")
        )
    if parts:
        yield f"summary: {', '.join(parts)}"


def _idle(verdict: Mapping[str, Any]) -> Iterator[str]:
    if (dollars := verdict.get("usd_per_hour")) is not None:
        missing = verdict.get("usd_lacks")
        at_least, reason = ("at least ", f" (incomplete: {missing})") if missing else ("", "")
        yield f"  idle now: {at_least}${dollars:,.2f}/h{reason}"


def _verdict_head(verdict: Mapping[str, Any], now: float, lifecycle: str) -> str:
    parts = [named(str(verdict.get("outcome", "unknown")), verdict.get("cause"))]
    over, as_of = lifecycle in ("finished", "crashed"), verdict.get("as_of")
    if over and as_of is not None:
        parts.append(f"as of its end {span(now - as_of)} ago")
    since = verdict.get("since")
    if since is not None:
        parts.append(f"for {span((as_of if over and as_of is not None else now) - since)}")
    confidence = verdict.get("confidence") or 0.0
    if confidence > 0:
        label = next(label for least, label in _CONFIDENCE if confidence >= least)
        parts.append(f"{label} confidence ({confidence:.2f})")
    return ", ".join(parts)


def _arithmetic(verdict: Mapping[str, Any]) -> Iterator[str]:
    numbers = verdict.get("numbers", {})
    rates = [f"{label} {numbers[key]:.3g}" for label, key in _RATES if numbers.get(key) is not None]
    factor = numbers.get("gap_factor")
    gap = f"; the gap is a factor of {factor:.2g}" if factor is not None and rates else ""
    if rates:
        yield f"samples/s: {', '.join(rates)}{gap}"
    waits = [f"{label} {numbers[key]:.0%}" for label, key in _WAITS if numbers.get(key) is not None]
    if waits:
        # Only one source: the framework's own number is not confirmed by a prediction.
        yield f"wait: {', '.join(waits)}" + ("" if len(waits) > 1 else " (not cross-checked)")
    shares = [(name, share) for name, share in verdict.get("shares", {}).items() if share >= 0.005][:_SHARES]
    if shares:
        texts = (f"{named(*name.split('/', 1))} {share:.0%}" for name, share in shares)
        yield f"share of the gap: {', '.join(texts)}"


def _limiter(limiter: Mapping[str, Any]) -> str:
    gain = f", worth {limiter['gain']:.2g}x" if limiter.get("gain", 1.0) > 1.0 else ""
    text = f": {limiter['text']}" if limiter.get("text") else ""
    return f"{named(limiter['outcome'], limiter['cause'])}{gain}{text}"


def _listed(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield f"  {title}:"
        yield from (f"    - {row}" for row in rows)


def span(seconds: float) -> str:
    """A duration as the dashboard shows it: ``45 s``, ``12 min``, ``3 h 20 min``, ``4 d``."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{round(whole / 60)} min"
    hours, rest = divmod(whole, 3600)
    if whole >= 172_800:
        return f"{round(whole / 86_400)} d"
    return f"{hours} h" + (f" {rest // 60} min" if rest >= 60 else "")


# For each request to the server.
WAIT_SECONDS = 5.0
# Lines of each list in the short form; `--all` prints the rest.
SHORT_LIST = 5
# Names in the error for an unknown run.
SHOWN_RUNS = 10
# Signals that only a trainer's own metrics give begin so.
TRAINER = "trainer_"
# States of a signal that are marked in the output, worst first.
FLAGGED = ("critical", "watch")
# States of a run in which its signals and alerts are of the past, with the reason that is printed.
NOT_JUDGED = {
    "catching_up": "history is being read",
    "not_collected": "nothing is collected for this run now",
}


def fetch(
    run: str | None, url: str | None, store: str, token: str | None, *, named: bool
) -> tuple[dict[str, Any], str | None]:
    """Fetch the status object of a run, by default of the most recent one, and the server it comes from (None: none).

    Args:
        url: the server to query; None reads the store.
        named: the user named that server, so a failure is an error and the store is not read instead.

    Raises:
        ConfigError: no such run, or neither a server nor a store.
    """
    status = _from_server(url, run, token or "", required=named) if url is not None else None
    return (status, url) if status is not None else (_from_store(run, store), None)


def _from_server(url: str, run: str | None, token: str, *, required: bool) -> dict[str, Any] | None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=WAIT_SECONDS, trust_env=False) as client:
            runs = _runs(client.get("/api/v1/runs"))
            name = _chosen(run, [str(item["name"]) for item in runs])
            status: dict[str, Any] = _json(client.get(f"/api/v1/runs/{quote(name, safe='')}/status"))
            return status
    except _NotRollscope as error:
        cause = str(error)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        cause = http.sentence(error)
    if required:
        raise ConfigError([f"--url {shown_url(url)}: {cause}"])
    return None


class _NotRollscope(Exception):
    """A server of another kind responds. The message is safe to show."""


def stored(url: str | None, store: str, token: str | None, retention: RetentionSettings) -> str:
    """One line on the store: its size, its oldest raw samples and what is kept; "" if it cannot be read.

    Args:
        url: the server that answered; None: the store was read.
        kept: the retention of the configuration, used without a server.
    """
    days = {kind: getattr(retention, kind) for kind in KINDS}
    if url is None:
        try:
            with closing(stores.Store.open(store, read_only=True)) as opened:
                from server.store.retention import Retention  # noqa: PLC0415 - loaded with the store anyway

                size = opened.retention.size()
                found = opened.retention.deleted_by_size(Retention.of(retention), round(time.time() * 1000))
        except stores.StoreError:
            return ""
        limit = size_words(retention.max_bytes, {kind: before / 1000 for kind, before in found.items()})
        return _store_line(size.bytes, None if size.oldest_raw is None else size.oldest_raw / 1000, days, limit)
    try:
        page = _page(url, token)
    except httpx.HTTPError:
        return ""
    metrics = dict(re.findall(r"^rollscope_((?:store|retention)_\S+) (\S+)$", page, re.MULTILINE))
    if "store_bytes" not in metrics:
        return ""
    oldest = metrics.get("store_oldest_sample_timestamp_seconds")
    days = {kind: float(metrics.get(f'retention_seconds{{kind="{kind}"}}', "nan")) for kind in KINDS}
    most = metrics.get("store_limit_bytes")
    before = {kind: metrics.get(f'store_deleted_before_timestamp_seconds{{kind="{kind}"}}') for kind in KINDS}
    deleted = {kind: float(ts) for kind, ts in before.items() if ts is not None}
    limit = size_words(None if most is None else round(float(most)), deleted)
    return _store_line(float(metrics["store_bytes"]), None if oldest is None else float(oldest), days, limit)


def healthy(url: str, token: str | None) -> list[str]:
    """Lines on Rollscope itself, as on the Sources page; empty if the server's page of metrics cannot be read."""
    try:
        families = list(text_string_to_metric_families(_page(url, token)))
    except (httpx.HTTPError, ValueError):
        return []
    return [f"{health.TOPICS[topic].lower()}: {said}" for topic, said in health.words(families).items()]


def _page(url: str, token: str | None) -> str:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=url, headers=headers, timeout=WAIT_SECONDS, trust_env=False) as client:
        return client.get("/metrics").text


def _store_line(size: float, oldest: float | None, retention: Mapping[str, float | None], limit: str) -> str:
    since = (
        "no raw samples"
        if oldest is None
        else f"raw samples since {datetime.fromtimestamp(oldest, UTC):%Y-%m-%d %H:%M} UTC"
    )
    spans = [f"{name} {_span(seconds)}" for name, seconds in zip(KINDS.values(), retention.values(), strict=True)]
    return f"store: {size / 1e6:,.0f} MB, {since}; kept: {', '.join(spans)}" + (f"; {limit}" if limit else "")


def _span(seconds: float | None) -> str:
    if seconds is None or seconds == math.inf:
        return "permanently"
    return "not reported" if math.isnan(seconds) else duration(seconds)


def _json(response: httpx.Response) -> Any:
    code, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip()
    if code == 401:
        given = "authorization" in response.request.headers
        own = "; that of a private server is in the file admin-token of its state folder"
        why = "is not this server's token" if given else f"is not set, and this server needs its token{own}"
        raise ConfigError([f"status: access denied (HTTP 401): ROLLSCOPE_TOKEN {why}"])
    try:
        body = response.json()
    except ValueError:
        raise _NotRollscope(f"a server answers that is not Rollscope (HTTP {code}, {kind or 'no type'})") from None
    if code != 200:
        detail = body.get("detail") if isinstance(body, dict) else None
        raise ConfigError([f"status: {detail}"] if detail else [f"status: {http.status_text(code)}"])
    return body


def _runs(response: httpx.Response) -> list[dict[str, Any]]:
    listed = None if response.status_code == 404 else _json(response)
    if not isinstance(listed, list) or not all(isinstance(run, dict) and "name" in run for run in listed):
        raise _NotRollscope("a server answers that is not Rollscope (it has no list of runs at /api/v1/runs)")
    return listed


def _chosen(run: str | None, names: list[str]) -> str:
    """The run to show. Names are sorted, the most recent run first."""
    if not names:
        raise ConfigError(["status: there is no run yet; start one with: rollscope watch URL|DIRECTORY..."])
    if run is not None and run not in names:
        more = f" and {len(names) - SHOWN_RUNS} more" if len(names) > SHOWN_RUNS else ""
        raise ConfigError([f"status: no run is named {run!r}; runs: {', '.join(names[:SHOWN_RUNS])}{more}"])
    return run or names[0]


def _from_store(run: str | None, url: str) -> dict[str, Any]:
    path = url.removeprefix("sqlite:///")
    if path != url and not os.path.exists(path):
        raise ConfigError(
            [f"status: no server answers on this machine and there is no store at {path}; try: rollscope demo"]
        )
    try:
        with closing(stores.Store.open(url, read_only=True)) as store:
            reader = query.Reader(store, WallClock())
            name = _chosen(run, [info.name for info in reader.runs.all()])
            answer: dict[str, Any] = msgspec.to_builtins(reader.status(name))
            return answer
    except stores.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None


def _not_judged(status: Mapping[str, Any]) -> str:
    """Why the states of health and the alerts of a status are of the past; "" if they are of the present."""
    return NOT_JUDGED.get((status.get("state") or {}).get("name", ""), "")


def _without_past_health(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status without states of health and alerts if these are of the past; the pages leave them out, too."""
    if not (why := _not_judged(status)):
        return status
    signals = {
        name: signal if signal["value"] is None else {**signal, "state": "unknown", "why": f"not judged: {why}"}
        for name, signal in status["signals"].items()
    }
    return {**status, "signals": signals, "alerts": []}


def short(status: Mapping[str, Any]) -> str:
    """The lines that matter: verdict, evidence, flagged signals, targets that are down, alerts."""
    status = _without_past_health(status)
    flagged = [(name, signal) for name, signal in _listed_signals(status) if signal["state"] in FLAGGED]
    flagged.sort(key=lambda item: FLAGGED.index(item[1]["state"]))
    down = [target for target in status["trust"] if not target["up"]]
    lines = [*_head(status), *brief(status["verdict"], status.get("now", 0.0), status["lifecycle"])]
    lines += _cut("flagged signals:", [_row(name, signal) for name, signal in flagged])
    lines += _cut("targets down:", [_target(target) for target in down])
    lines += _cut("alerts:", [_alert(alert) for alert in status["alerts"]])
    lines += _judged_later(status)
    return "\n".join([*lines, _rest(status, len(flagged), len(down))])


def _judged_later(status: Mapping[str, Any]) -> list[str]:
    why = _not_judged(status)
    return [f"signals and alerts are not judged: {why}"] if why else []


def _cut(title: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"  and {len(rows) - SHORT_LIST} more"] if len(rows) > SHORT_LIST else []
    return [title, *rows[:SHORT_LIST], *more]


def _rest(status: Mapping[str, Any], flagged: int, down: int) -> str:
    """What `short` leaves out."""
    values = [signal["value"] is not None for _, signal in _listed_signals(status)]
    other, missing, up = sum(values) - flagged, values.count(False), len(status["trust"]) - down
    return f"{other} other signals, {missing} without a value, {up} targets up: rollscope status --all"


def text(status: Mapping[str, Any]) -> str:
    """The complete status for a terminal: signals with a value first, then those without and the reason."""
    status = _without_past_health(status)
    signals = _listed_signals(status)
    rows = [_row(name, signal) for name, signal in signals if signal["value"] is not None]
    gaps = [_gap(name, signal) for name, signal in signals if signal["value"] is None]
    targets = [_target(target) for target in status["trust"]]
    alerts = ["alerts:", *map(_alert, status["alerts"])] if status.get("alerts") else _judged_later(status)
    verdict = verdict_lines(status["verdict"], status.get("now", 0.0), status["lifecycle"])
    return "\n".join(
        [*_head(status), *verdict, "signals:", *rows, "no value:", *gaps, "targets:", *targets, *alerts]
    )  # fmt: skip


def _head(status: Mapping[str, Any]) -> list[str]:
    framework, mode = status["framework"] or _unnamed(status), mode_words(status["mode"], status["facts"])
    mode = f"mode {mode}" if mode.startswith("unknown") else mode
    state = [f"state: {_state(run_state, status)}"] if (run_state := status.get("state")) else []
    ended = ended_lines(status.get("summary") or {})
    return [f"{status['run']}: {framework}, {mode}, {status['lifecycle']}", *state, *ended]


def _unnamed(status: Mapping[str, Any]) -> str:
    """Whether a trainer reports without its framework's name, as one whose metrics are pushed does."""
    names = (name for name, signal in _listed_signals(status) if signal["value"] is not None)
    return "trainer without a name" if any(name.startswith(TRAINER) for name in names) else "no trainer yet"


def _listed_signals(status: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Signals without the verdict's own, which repeat it as numbers."""
    return [(name, signal) for name, signal in status["signals"].items() if not name.startswith("bottleneck")]


def _state(state: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """``not collected since 13:50:05 UTC (18 min)``: the state that the dashboard's header shows."""
    now, since, as_of = float(status["now"]), state.get("since"), state.get("as_of")
    name = str(state["name"])
    if name == "catching_up":
        return _catching_up(state)
    if name == "live":
        return "live" + (f", newest data {span(now - as_of)} old" if as_of is not None else "")
    text = str(status["lifecycle"]) if name == "finished" else name.replace("_", " ")
    if since is None:
        return {"stale": "stale: no data yet", "not_collected": "not collected yet"}.get(name, text)
    return f"{text} {'at' if name == 'finished' else 'since'} {_at(since)} ({span(now - since)})"


def _catching_up(state: Mapping[str, Any]) -> str:
    parts = ["catching up" + (f" at {_at(state['as_of'])}" if state.get("as_of") is not None else "")]
    if state.get("progress") is not None:
        parts.append(f"{state['progress']:.0%}")
    if state.get("seconds_left") is not None:
        parts.append(f"about {span(state['seconds_left'])} left")
    return ", ".join(parts)


def _at(ts: float) -> str:
    return f"{datetime.fromtimestamp(ts, UTC):%H:%M:%S} UTC"


def _row(name: str, signal: Mapping[str, Any]) -> str:
    mark = signal["state"].upper() if signal["state"] in FLAGGED else ""
    return f"  {name:<58} {_number(signal['value']):>10} {signal['unit']:<10} {mark}".rstrip()


def _gap(name: str, signal: Mapping[str, Any]) -> str:
    return f"  {name}: {signal['state'].replace('_', ' ')}: {signal['why']}"


def _target(target: Mapping[str, Any]) -> str:
    return f"  {'up  ' if target['up'] else 'DOWN'} {target['target']} ({target['kind']}) {target['error']}".rstrip()


def _alert(alert: Mapping[str, Any]) -> str:
    """``  firing for 12 min: TrainerStarved (warning): The trainer waits ...``."""
    muted = f", muted: {alert['muted']}" if alert.get("muted") else ""
    age = span(alert["age_seconds"])
    return f"  {alert['state']} for {age}: {alert['name']} ({alert['severity']}{muted}): {alert['summary']}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def dump(status: Mapping[str, Any]) -> str:
    """The status object as JSON."""
    return json.dumps(_without_past_health(status), indent=2)


@click.command(cls=Command)
@common
@click.argument("run", required=False, metavar="[RUN]", help="name of a run (default: the most recent)")
@click.option("--all", "complete", is_flag=True, help="print every signal and target")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the complete status object; without health and alerts while history is read",
)
@click.option(
    "--url",
    default=None,
    metavar="URL",
    help="a running server (default: the one on this machine, or else the store)",
)
def command(options: Options, run: str | None, complete: bool, as_json: bool, url: str | None) -> int:
    settings = load(options.config, os.environ)
    # With --store the store is read, whether or not a server runs on this machine.
    server = None if options.store else url or f"http://127.0.0.1:{settings.port}"
    status, served = fetch(run, server, options.store or settings.store, settings.token, named=url is not None)
    if as_json:
        print(dump(status))
    else:
        line = stored(served, options.store or settings.store, settings.token, settings.retention)
        own = healthy(served, settings.token) if complete and served is not None else []
        program.show("\n".join(filter(None, [text(status) if complete else short(status), line, *own])))
    return OK
