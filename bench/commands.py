"""CPU of the command line: help, usage and configuration errors of each command, the first page of `up`. JSON lines.

CPU time is that of the process as the system counts it; a busy machine raises it by half, so the least of several tries
counts. The reference is the start of an interpreter that imports click.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from bench.server import cpu_seconds
from server.main import COMMANDS

ROLLSCOPE = Path(sys.executable).parent / "rollscope"
TRIES = 4
# Bounds of the design, CPU s.
ANSWER = 0.4
FIRST_PAGE = 2.0
UNKNOWN_KEY = "[run.a]\ntargets = []\n"
# Beside `--help` and an unknown option of every command: errors that need the configuration.
CONFIGURED = ("up", "check", "status", "preflight")


def child_seconds(arguments: list[str], folder: str) -> float:
    """CPU seconds of a command, with its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "HOME": folder}
    subprocess.run(
        arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def answers(folder: str) -> dict[str, object]:
    """The slowest answer of any command that has nothing to do."""
    Path(folder, "wrong.toml").write_text(UNKNOWN_KEY)
    lines = [f"{command} {option}" for command in COMMANDS for option in ("--help", "--nothing")]
    lines += [f"{command} -c wrong.toml" for command in CONFIGURED]
    seconds = {line: child_seconds([str(ROLLSCOPE), *line.split()], folder) for line in lines}
    for line in sorted(seconds, key=lambda line: seconds[line])[-TRIES:]:
        seconds[line] = min(
            seconds[line], *(child_seconds([str(ROLLSCOPE), *line.split()], folder) for _ in range(TRIES))
        )
    slowest = max(seconds, key=lambda line: seconds[line])
    reference = min(child_seconds([sys.executable, "-c", "import click"], folder) for _ in range(TRIES))
    return {
        "bench": "help and errors of the command line, CPU s", "commands": len(lines), "slowest": slowest,
        "value": round(seconds[slowest], 2), "reference": round(reference, 2),
        "ratio": round(seconds[slowest] / reference, 1), "target": ANSWER, "ok": seconds[slowest] <= ANSWER,
    }  # fmt: skip


def first_page_seconds(folder: str) -> float:
    """CPU seconds until a new `up` with a new store has served its page: imports, schema and page."""
    environment = {**os.environ, "HOME": folder}
    command = [str(ROLLSCOPE), "up", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next(line for line in process.stdout if line.startswith("Rollscope is at")).split()[-1]
        httpx.get(url, timeout=30, trust_env=False).raise_for_status()
        seconds = cpu_seconds(process.pid)
        process.terminate()
    return seconds


def first_page() -> dict[str, object]:
    seconds = []
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(first_page_seconds(folder))
    best = min(seconds)
    return {"bench": "first page of up, CPU s", "value": round(best, 2), "target": FIRST_PAGE, "ok": best <= FIRST_PAGE}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(answers(folder)), flush=True)
    print(json.dumps(first_page()), flush=True)


if __name__ == "__main__":
    main()
