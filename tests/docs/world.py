"""What the guides assume: a run with engines, a server that watches it, lists of targets, secrets and tools."""

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from server.cli.demo import Cluster
from tests.alerts.hook import Hook, hook
from tests.docs.blocks import ROOT, Block, blocks
from tests.e2e.program import Program, environment, run
from tests.targets.serving import serving

HISTORY_SECONDS = 180.0
"""Of the simulated run: enough for a few steps and records of rollouts."""

FORWARDED = "my-run-elsewhere"
"""Name of the run that `watch --push` forwards."""

CONFIGURATION = """\
[run.my-run]
[[run.my-run.target]]
url = "http://127.0.0.1:8000"
[[run.my-run.target]]
path = "/scratch/outputs/my-run"
"""
"""`rollscope.toml` of a page that has no TOML block above its commands."""

SERVER = """\
[run.my-run]
facts = {{ trainer_gpus = 64, generator_gpus = 192 }}
[[run.my-run.target]]
url = "{engine}"
[[run.my-run.target]]
path = "{run}"
"""
"""Configuration of the shared server, with the GPUs of the example in docs/how-to/what-if.md."""

SECRETS = {
    "slack-url": "{hook}",
    "apprise-url": "json://127.0.0.1/x",
    "token": "a-token-of-twenty-and-more-characters",
    "my-run-heartbeat": "0123456789abcdef0123456789abcdef",
}
"""File in /etc/rollscope -> content; every other file holds a URL."""

VARIABLES = {
    "BOT_TOKEN": "x", "DISCORD_WEBHOOK": "http://127.0.0.1/x", "PAGERDUTY_KEY": "x", "PRIME_API_KEY": "x",
    "WATCHDOG_URL": "http://127.0.0.1/x",
}  # fmt: skip
"""Variables that TOML blocks name."""


def relocated(text: str, root: Path) -> str:
    """Replaces absolute paths by paths below ``root``."""
    text = text.replace("sqlite:////var/lib/", f"sqlite:///{root}/var/lib/").replace("/tmp/rollscope", f"{root}/spool")
    return re.sub(r"(?<![\w.~/])/(etc|scratch|backups|var/lib|path/to|runs)/", rf"{root}/\1/", text)


@dataclass(frozen=True, slots=True)
class World:
    """``home``: of the shared server, and of every command that does not serve."""

    root: Path
    home: Path
    server: Program
    engine: str
    router: str
    hook: Hook
    stored: Program
    stored_home: Path

    def local(self, text: str) -> str:
        """Replaces the addresses and absolute paths of the guides."""
        text = relocated(text, self.root)
        for old, new in {
            "http://127.0.0.1:8050": self.server.url,
            "http://login1:8050": self.server.url,
            "http://127.0.0.1:8000": self.engine,
            "http://127.0.0.1:33449": self.engine,
            "http://node1:8000": self.engine,
            "http://router:30000": self.router,
            "postgresql://user@host/rollscope": f"sqlite:///{self.root}/moved.db",
            ".venv/bin/python": "python",
            # The shared server watches a run of this name already.
            "--run my-run": f"--run {FORWARDED}",
        }.items():
            text = text.replace(old, new)
        return text

    def folder(self, block: Block) -> Path:
        """The current folder of a page: its configuration, its tests of rules, and the outputs of the run."""
        folder = self.root / "pages" / block.page.stem
        if not folder.is_dir():
            shutil.copytree(self.root / "scratch/outputs", folder / "outputs", copy_function=os.link)
        page = [one for one in blocks() if one.page == block.page]
        above = "\n".join(one.text for one in page if one.language == "toml" and one.line < block.line)
        (folder / "rollscope.toml").write_text(self.local(above or CONFIGURATION))
        for one in page:
            if one.language == "yaml" and one.text.startswith("rule_files:"):
                (folder / "rules.test.yml").write_text(one.text)
        return folder

    def shell(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Runs the commands of a block with bash, until the first one that fails."""
        home, server = self.home, self.server.url
        script = self.local(block.script)
        if block.page.name == "upgrade.md":  # what deletes and copies has a store of its own
            home, server = self.stored_home, self.stored.url
            script = script.replace(self.server.url, server)
        env = environment(home) | {
            "PATH": f"{self.root / 'bin'}:{environment(home)['PATH']}",
            "ROLLSCOPE_PORT": server.rpartition(":")[2],
            "ROLLSCOPE_DOCS_HOMES": str(self.root),
        }
        if "rollscope move" in script:  # of a store without a server
            env["ROLLSCOPE_STORE"] = f"sqlite:///{self.root}/stopped.db"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], env=env, cwd=self.folder(block), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip


def tools(folder: Path) -> None:
    """Programs that stand before the machine's own on the path."""
    shim = shlex.join([sys.executable, "-P", str(ROOT / "tests/docs/rollscope_command.py")])
    scripts = {
        "rollscope": f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shim} "$@"',
        # Fails for a status of 400 and more.
        "curl": f'exec {shutil.which("curl")} --silent --show-error --fail-with-body "$@"',
        # Targets and variables must exist; what they run is too much for a test.
        "make": f'exec {shutil.which("make")} --dry-run --directory {shlex.quote(str(ROOT))} "$@"',
        # The tests that a line selects must exist.
        "python": f'test "$1 $2" = "-m pytest"; test -e {shlex.quote(str(ROOT))}/"${{@: -1}}"',
    }
    if shutil.which("promtool") is None:
        check = "import pathlib, sys, yaml; assert yaml.safe_load(pathlib.Path(sys.argv[3]).read_text())['groups']"
        scripts["promtool"] = f'exec {sys.executable} -c "{check}" "$@"'
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash -e\n{script}\n")
        (folder / name).chmod(0o755)


def files(root: Path, engine: str, hook_url: str) -> None:
    """Lists of targets, and secrets."""
    targets = root / "etc/prometheus/targets"
    targets.mkdir(parents=True)
    netloc = engine.removeprefix("http://")
    (targets / "engines.json").write_text(f'[{{"targets": ["{netloc}"], "labels": {{"job": "rollout"}}}}]')
    scrape = f"scrape_configs:\n  - job_name: rollout\n    static_configs:\n      - targets: ['{netloc}']\n"
    (root / "path/to").mkdir(parents=True)
    (root / "path/to/prometheus.yml").write_text(scrape)
    secrets = root / "etc/rollscope"
    secrets.mkdir(parents=True)
    for block in blocks():
        for name in re.findall(r'"/etc/rollscope/([\w-]+)"', block.text):
            (secrets / name).write_text(SECRETS.get(name, "http://127.0.0.1/x").format(hook=hook_url))
    for folder in ("backups", "var/lib/rollscope", "runs"):
        (root / folder).mkdir(parents=True)


def aged(path: Path) -> None:
    """As if a minute had passed since a run of this store was collected, so that it may be deleted."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET collected_at = collected_at - 3600000")
    connection.close()


@contextmanager
def world(root: Path) -> Iterator[World]:
    """Everything runs until the end of the block."""
    home, stored_home = root / "home", root / "stored-home"
    home.mkdir()
    stored_home.mkdir()
    tools(root / "bin")
    with (
        Cluster("generator-bound", 0, root / "simulated", time.time() - HISTORY_SECONDS) as cluster,
        hook() as receiver,
        serving() as router,
    ):
        cluster.advance(time.time())
        engine = str(cluster.ready["engines"][0])
        router.paths["/workers"] = (200, "application/json", b'{"workers": [{"url": "%s"}]}' % engine.encode())
        shutil.copytree(cluster.ready["run_dir"], root / "scratch/outputs/my-run")
        files(root, engine, receiver.url)
        configuration = root / "server.toml"
        configuration.write_text(SERVER.format(engine=engine, run=root / "scratch/outputs/my-run"))
        with Program(home, "up", "-c", str(configuration)) as server:
            server.until("/api/v1/runs/my-run/status", lambda status: status["signals"])
            backup = str(root / "backups/rollscope-2026-11-01.db")
            store = stored_home / ".local/state/rollscope/rollscope.db"
            store.parent.mkdir(parents=True)
            for args in (["backup", backup], ["restore", backup, "--store", f"sqlite:///{store}"]):
                done = run(home, *args)
                assert done.returncode == 0, done.stderr
            aged(store)
            shutil.copy(store, root / "stopped.db")
            with Program(stored_home, "up") as stored:
                yield World(root, home, server, engine, router.url, receiver, stored, stored_home)
