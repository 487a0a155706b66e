"""Latency from an engine's page that crosses a threshold to the webhook: Rollscope, Prometheus with Alertmanager.

All systems scrape the same pages at once and call the same receiver, each with its own path; every program is started
as its users start it. The phase of a crossing in the 5 s scrape interval is stratified over the trials and then
shuffled, which makes the median of 20 more accurate than random phases.
"""

import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.alerting import Engines, Receiver, begin, engines, receiver, run_toml

TRIALS = 20
LEVEL, OVER = 100, 250
INTERVAL = 5.0
PER_INTERVAL = 2
# Longest latency measured, s: an interval, an evaluation and a group wait of the example settings.
LOST_SECONDS = 90.0
START_SECONDS = 60.0
TARGET_SECONDS = 3.0

PROMETHEUS, ALERTMANAGER = shutil.which("prometheus"), shutil.which("prometheus-alertmanager")

RULES = f"""
[alerts]
default_pack = false
group_by = ["alertname", "target"]

[[alerts.rule]]
name = "QueueLong"
metric = "generator_requests_waiting"
above = {LEVEL}
annotations.summary = "$value at $label_target"
"""

PROMETHEUS_YML = """
global: {{scrape_interval: {scrape}s, scrape_timeout: 5s, evaluation_interval: {evaluation}s}}
rule_files: [rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]}}
scrape_configs:
- job_name: engines
  static_configs:
{targets}
"""

RULES_YML = f"""
groups:
- name: bench
  rules:
  - alert: QueueLong
    expr: vllm:num_requests_waiting > {LEVEL}
    annotations: {{summary: "{{{{ $value }}}} at {{{{ $labels.target }}}}"}}
"""

ALERTMANAGER_YML = """
route: {{receiver: hook, group_by: [alertname, target], group_wait: {wait}s, group_interval: 1m, repeat_interval: 4h}}
receivers: [{{name: hook, webhook_configs: [{{url: "{url}"}}]}}]
"""


@dataclass(frozen=True)
class Settings:
    """Settings of one Prometheus with its Alertmanager, in seconds."""

    path: str
    scrape: int
    evaluation: int
    wait: int

    @property
    def words(self) -> str:
        wait = f"group_wait {self.wait} s"
        return f"Prometheus + Alertmanager (scrape {self.scrape} s, evaluation {self.evaluation} s, {wait})"


# No delays at all, and the values in Prometheus' and Alertmanager's own example files.
OTHERS = (Settings("/fast", 5, 5, 0), Settings("/example", 15, 15, 30))
OURS = "/rollscope"


def lines() -> Iterator[dict[str, object]]:
    """One line per system: seconds from crossing to POST; ``reference`` is Rollscope's value."""
    names = [f"engine-{n:02}" for n in range(TRIALS)]
    installed = PROMETHEUS is not None and ALERTMANAGER is not None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pages, hook = stack.enter_context(engines(*names)), stack.enter_context(receiver())
        stack.enter_context(_rollscope(folder / "ours", pages, hook, names))
        for settings in OTHERS if installed else ():
            stack.enter_context(_prometheus(folder / settings.path[1:], settings, pages, hook, names))
        crossed = _cross(pages, names)
        _wait(hook, [OURS, *(one.path for one in OTHERS if installed)], names)
        took = {path: _took(hook, path, crossed) for path in (OURS, *(one.path for one in OTHERS))}
    yield _line("Rollscope (tick 5 s)", took[OURS]) | _verdict(took[OURS])
    for settings in OTHERS:
        if installed:
            yield _line(settings.words, took[settings.path]) | _beside(took[settings.path], took[OURS])
        else:
            yield {"bench": _name(settings.words), "skipped": "prometheus or prometheus-alertmanager is not installed"}


def _name(system: str) -> str:
    return f"crossing to webhook, s: {system}"


def _line(system: str, took: Sequence[float]) -> dict[str, object]:
    found = {"bench": _name(system), "trials": TRIALS, "lost": TRIALS - len(took)}
    if not took:
        return found
    return found | {
        "median": round(statistics.median(took), 2), "min": round(min(took), 2), "max": round(max(took), 2),
    }  # fmt: skip


def _verdict(took: Sequence[float]) -> dict[str, object]:
    whole = len(took) == TRIALS
    return {"target": TARGET_SECONDS, "ok": whole and statistics.median(took) <= TARGET_SECONDS}


def _beside(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, object]:
    if not theirs or not ours:
        return {}
    own, other = statistics.median(ours), statistics.median(theirs)
    return {"reference": round(own, 2), "ratio": round(other / own, 2)}


# ---- crossings


def _cross(pages: Engines, names: Sequence[str]) -> Mapping[str, float]:
    """Makes every engine cross once; returns name -> when (`time.time()`)."""
    rng = random.Random(3)
    places = [INTERVAL * (n + rng.random()) / TRIALS for n in range(TRIALS)]
    rng.shuffle(places)
    begun = time.time() + INTERVAL
    plan = [(begun + n // PER_INTERVAL * INTERVAL + place, names[n]) for n, place in enumerate(places)]
    crossed = {}
    for at, name in sorted(plan):
        time.sleep(max(0.0, at - time.time()))
        crossed[name] = time.time()
        pages.set(name, OVER)
    return crossed


def _wait(hook: Receiver, paths: Sequence[str], names: Sequence[str]) -> None:
    """Waits until every system has reported every engine, or the time is over."""
    whole = len(paths) * len(names)
    try:
        hook.until(
            lambda got: len({(one.path, name) for one in got for name in _firing(one.body)}) == whole, LOST_SECONDS
        )
    except AssertionError:
        return  # missing notifications count as lost


def _took(hook: Receiver, path: str, crossed: Mapping[str, float]) -> list[float]:
    """Returns seconds from each crossing to the first POST that contains it."""
    first: dict[str, float] = {}
    for got in hook.got:
        if got.path == path:
            for name in _firing(got.body):
                first.setdefault(name, got.at)
    return [first[name] - at for name, at in crossed.items() if name in first]


def _firing(body: object) -> list[str]:
    alerts = body.get("alerts", []) if isinstance(body, dict) else []
    return [str(alert["labels"]["target"]) for alert in alerts if alert["status"] == "firing"]


# ---- programs


@contextmanager
def _rollscope(folder: Path, pages: Engines, hook: Receiver, names: list[str]) -> Iterator[None]:
    folder.mkdir()
    config = folder / "rollscope.toml"
    receiver_toml = f'[[alerts.receiver]]\nname = "hook"\nkind = "webhook"\nurl = "{hook.url}{OURS}"\n'
    store = f'[store]\nurl = "sqlite:///{folder}/bench.db"\n'
    config.write_text(store + run_toml("bench", begin(folder / "run"), pages, names) + RULES + receiver_toml)
    script = Path(sys.executable).parent / "rollscope"
    command = [str(script), "up", "-c", str(config), "--port", "0", "--no-browser"]
    with _running(command, folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        _until(f"{url}/api/v1/targets", lambda answer: sum(one["up"] for one in answer.json()) == len(names) + 1)
        yield


@contextmanager
def _prometheus(
    folder: Path, settings: Settings, pages: Engines, hook: Receiver, names: Sequence[str]
) -> Iterator[None]:
    folder.mkdir()
    own, other = _free_port(), _free_port()
    address = f"127.0.0.1:{pages.server_address[1]}"
    targets = "".join(
        f'  - {{targets: ["{address}"], labels: {{__metrics_path__: "/{name}/metrics", target: "{name}"}}}}\n'
        for name in names
    )
    (folder / "prometheus.yml").write_text(
        PROMETHEUS_YML.format(
            scrape=settings.scrape, evaluation=settings.evaluation, alertmanager=other, targets=targets
        )
    )
    (folder / "rules.yml").write_text(RULES_YML)
    (folder / "am.yml").write_text(ALERTMANAGER_YML.format(wait=settings.wait, url=hook.url + settings.path))
    assert PROMETHEUS is not None and ALERTMANAGER is not None
    alertmanager = [ALERTMANAGER, f"--config.file={folder}/am.yml", f"--storage.path={folder}/am"]
    alertmanager += [f"--web.listen-address=127.0.0.1:{other}", "--cluster.listen-address=", "--log.level=error"]
    prometheus = [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    prometheus += [f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"]
    with _running(alertmanager, folder), _running(prometheus, folder):
        _until(f"http://127.0.0.1:{other}/-/ready", lambda answer: answer.status_code == httpx.codes.OK)
        _until(
            f"http://127.0.0.1:{own}/api/v1/targets",
            lambda answer: answer.text.count('"health":"up"') == len(names) and "QueueLong" in _rules(own),
        )
        yield


def _rules(port: int) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/api/v1/rules", trust_env=False).text


@contextmanager
def _running(command: Sequence[str], folder: Path, **more: int) -> Iterator["subprocess.Popen[str]"]:
    """Starts a program, ended by its own process id; its error output is in the folder."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with (folder / f"{Path(command[0]).name}.log").open("w") as errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stderr=errors, text=True, **more)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()


def _until(url: str, good: Callable[[httpx.Response], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            answer = httpx.get(url, trust_env=False, timeout=START_SECONDS)
            if answer.status_code == httpx.codes.OK and good(answer):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} is not ready after {START_SECONDS:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
