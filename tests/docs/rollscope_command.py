"""The command `rollscope` of the executed guides. One that serves is asked for a page and ended, so that scripts go on.

Usage: `python rollscope_command.py ARGS`. Exit codes are those of the program.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile

import httpx

from tests.e2e.program import PROGRAM

READY = re.compile(r"Rollscope is at (\S+)|Forwarding \S+ to ")
"""The last line of a start. Serving: with the address."""


def serves(args: list[str]) -> bool:
    """`watch` without a source only lists what is there."""
    return args[:1] in (["up"], ["demo"]) or (args[:1] == ["watch"] and len(args) > 1)


def serve(args: list[str]) -> int:
    """Starts it, asks for a page once it printed where it is, and ends it with SIGTERM. It gets a home of its own."""
    forwards = "--push" in args
    with tempfile.TemporaryDirectory(prefix="home-", dir=os.environ["ROLLSCOPE_DOCS_HOMES"]) as home:
        command = [*PROGRAM, *args, *([] if forwards else ["--port", "0", "--no-browser"])]
        env = {**os.environ, "HOME": home, "TMPDIR": home}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = iter(process.stdout)
            for line in lines:
                print(line, end="", flush=True)
                if ready := READY.search(line):
                    break
            else:
                return process.wait() or 1  # it must not end by itself
            try:
                if ready[1]:
                    pages(ready[1], env.get("ROLLSCOPE_TOKEN"))
            finally:
                process.send_signal(signal.SIGTERM)
            rest = "".join(lines)
            print(rest, end="", flush=True)
            return process.wait()


def pages(url: str, token: str | None) -> None:
    """Its health, and its first page."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        for path in ("/healthz", "/"):
            client.get(path).raise_for_status()


def main(args: list[str]) -> int:
    if serves(args):
        return serve(args)
    return subprocess.run([*PROGRAM, *args], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
