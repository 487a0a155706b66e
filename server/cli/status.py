"""`rollscope status`: a run's state now.

The store is only loaded where it is read: `server.store` and `server.query` hand out what they name on use.
"""

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx

from collectors.transport import failures
from server import query
from server import store as stores
from server.cli import OK, verdict_text
from server.cli.options import common
from server.clock import WallClock
from server.config.errors import ConfigError
from server.config.run_names import shown_url
from server.config.settings import load
from server.query import shape
from server.query.names import mode_words
from server.signals.model import SYNC_MODES

WAIT_SECONDS = 5.0


def fetch(run: str | None, url: str | None, store: str, token: str | None, *, named: bool) -> dict[str, Any]:
    """The status object of a run (the most recent one when none is named).

    Args:
        url: the server to ask; None reads the store.
        named: the user named that server: its silence is an error, not a reason to read the store.

    Raises:
        ConfigError: no such run, or neither server nor store to ask.
    """
    answer = _ask(url, run, token or "", required=named) if url is not None else None
    return answer if answer is not None else _read(run, store)


def _ask(url: str, run: str | None, token: str, *, required: bool) -> dict[str, Any] | None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=WAIT_SECONDS, trust_env=False) as client:
            runs = _runs(client.get("/api/v1/runs"))
            name = run or _first(runs)
            found: dict[str, Any] = _json(client.get(f"/api/v1/runs/{quote(name, safe='')}/status"))
            return found
    except _NotRollscope as error:
        if required:
            raise ConfigError([f"--url {shown_url(url)}: {error}"]) from None
        return None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        if required:
            raise ConfigError([f"--url {shown_url(url)}: {failures.sentence(error)}"]) from None
        return None


class _NotRollscope(Exception):
    """Another kind of server answers. The message is safe to show."""


def _json(response: httpx.Response) -> Any:
    code, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip()
    if code == 401:
        given = "authorization" in response.request.headers
        why = "is not this server's token" if given else "is not set, and this server needs its token"
        raise ConfigError([f"status: HTTP 401: ROLLSCOPE_TOKEN {why}"])
    try:
        found = response.json()
    except ValueError:
        raise _NotRollscope(f"a server answers that is not Rollscope (HTTP {code}, {kind or 'no type'})") from None
    if code != 200:
        detail = found.get("detail") if isinstance(found, dict) else None
        raise ConfigError([f"status: {detail}"] if detail else [f"status: {failures.status(code)}"])
    return found


def _runs(response: httpx.Response) -> list[dict[str, Any]]:
    found = None if response.status_code == 404 else _json(response)
    if not isinstance(found, list) or not all(isinstance(run, dict) and "name" in run for run in found):
        raise _NotRollscope("a server answers that is not Rollscope (it has no list of runs at /api/v1/runs)")
    return found


def _first(runs: list[dict[str, Any]]) -> str:
    if not runs:
        raise ConfigError(["status: no run yet; start one with: rollscope watch URL|DIRECTORY..."])
    return str(runs[0]["name"])


def _read(run: str | None, url: str) -> dict[str, Any]:
    path = url.removeprefix("sqlite:///")
    if path != url and not os.path.exists(path):
        raise ConfigError(
            [f"status: no server answers on this machine and there is no store at {path}; try: rollscope demo"]
        )
    try:
        with closing(stores.Store.open(url, read_only=True)) as store:
            reader = query.StoreReader(store, WallClock())
            name = run or _first([{"name": found.name} for found in reader.runs()])
            return shape.status(reader.status(name))
    except query.UnknownRun:
        raise ConfigError([f"status: no run named {run!r}"]) from None
    except stores.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None


def text(status: Mapping[str, Any]) -> str:
    """The status for a terminal: what is known first, then what is not and why."""
    framework, mode = status["framework"] or "no trainer yet", mode_words(status["mode"], status["facts"])
    mode = "mode unknown" if mode == "unknown" else mode
    head = f"{status['run']}: {framework}, {mode}, {status['lifecycle']}"
    # The verdict stands above in words: as ten zeros and a one it says no more.
    signals = [(name, one) for name, one in status["signals"].items() if not name.startswith("bottleneck")]
    rows = [_row(name, signal) + _by_mode(name, status) for name, signal in signals if signal["value"] is not None]
    gaps = [_gap(name, signal) for name, signal in signals if signal["value"] is None]
    trust = [_target(target) for target in status["trust"]]
    verdict = verdict_text.lines(status["verdict"], status.get("now", 0.0), status["lifecycle"])
    state = [f"state: {_state(found, status)}"] if (found := status.get("state")) else []
    return "\n".join([head, *state, *verdict, "signals:", *rows, "no value:", *gaps, "targets:", *trust])


def _state(state: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """``not collected since 13:50:05 UTC (18 min)``: the state that the dashboard's header shows."""
    now, since, as_of = float(status["now"]), state.get("since"), state.get("as_of")
    name = str(state["name"])
    if name == "catching_up":
        return _catching_up(state)
    if name == "live":
        return "live" + (f", newest data {verdict_text.span(now - as_of)} old" if as_of is not None else "")
    word = str(status["lifecycle"]) if name == "finished" else name.replace("_", " ")
    if since is None:
        return {"stale": "stale: no data yet", "not_collected": "not collected yet"}.get(name, word)
    return f"{word} {'at' if name == 'finished' else 'since'} {_at(since)} ({verdict_text.span(now - since)})"


def _catching_up(state: Mapping[str, Any]) -> str:
    parts = ["catching up" + (f" at {_at(state['as_of'])}" if state.get("as_of") is not None else "")]
    if state.get("progress") is not None:
        parts.append(f"{state['progress']:.0%}")
    if state.get("seconds_left") is not None:
        parts.append(f"about {verdict_text.span(state['seconds_left'])} left")
    return ", ".join(parts)


def _at(ts: float) -> str:
    return f"{datetime.fromtimestamp(ts, UTC):%H:%M:%S} UTC"


def _row(name: str, signal: Mapping[str, Any]) -> str:
    mark = "" if signal["state"] == "ok" else signal["state"].upper()
    return f"  {name:<58} {_number(signal['value']):>10} {signal['unit']:<10} {mark}".rstrip()


def _by_mode(name: str, status: Mapping[str, Any]) -> str:
    """0 in a synchronous run follows from the mode alone: of an assumed one it is no fact."""
    follows = name.startswith("staleness_versions") and status["mode"] in SYNC_MODES
    return " (mode assumed)" if follows and status["facts"].get("mode_assumed") else ""


def _gap(name: str, signal: Mapping[str, Any]) -> str:
    return f"  {name}: {signal['state'].replace('_', ' ')}: {signal['why']}"


def _target(target: Mapping[str, Any]) -> str:
    return f"  {'up  ' if target['up'] else 'DOWN'} {target['target']} ({target['kind']}) {target['error']}".rstrip()


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def dump(status: Mapping[str, Any]) -> str:
    return json.dumps(status, indent=2)


def arguments(parser: argparse.ArgumentParser) -> None:
    common(parser)
    parser.add_argument("run", nargs="?", default=None, metavar="RUN")
    parser.add_argument("--json", action="store_true", help="print the API's complete status object")
    parser.add_argument(
        "--url", default=None, help="a running server (default: the one on this machine, or else the store)"
    )


def execute(args: argparse.Namespace) -> int:
    settings = load(args.config, os.environ)
    # Who names a store wants that one, not whatever server happens to listen here.
    server = None if args.store else args.url or f"http://127.0.0.1:{settings.port}"
    found = fetch(args.run, server, args.store or settings.store, settings.token, named=args.url is not None)
    print(dump(found) if args.json else text(found))
    return OK
