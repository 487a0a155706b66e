"""Accounts, engines and directories by hand, and a fake of Prime's REST API and of a vLLM server over real HTTP."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from collectors.model import ErrorKind, Reading, Sample, Sandbox, SandboxState, ScrapeError, Target
from server.preflight.checks import judge
from server.preflight.model import Check, Inputs, PathSeen, PreflightPlan, ReadTarget

NOW = 1_800_000_000.0
KEY = "pit_0123456789abcdef"
PAGE = Path(__file__).parent.parent / "testdata/vllm/synthetic_2_engines.prom"


# ---- by hand


def sandbox(key: str = "sb-1", state: SandboxState = "running", **more: Any) -> Sandbox:
    return Sandbox(**{"provider": "prime", "id": key, "state": state, **more})


def many(count: int, state: SandboxState = "running", **more: Any) -> tuple[Sandbox, ...]:
    return tuple(sandbox(f"sb-{number}", state, **more) for number in range(count))


def account(
    limits: Mapping[str, float] | None = None,
    used: Mapping[str, float] | None = None,
    gauges: Mapping[str, float] | None = None,
    records: tuple[Sandbox, ...] = (),
    *,
    listed: bool = True,
    name: str = "prime",
    collector: str = "prime_sandboxes",
    options: tuple[tuple[str, str], ...] = (),
    **more: Any,
) -> ReadTarget:
    """An account that answered."""
    quota = {"sandbox_quota_limit": limits or {}, "sandbox_quota_used": used or {}}
    samples = [
        Sample(metric, value, (("resource", resource),))
        for metric, values in quota.items()
        for resource, value in values.items()
    ]
    samples += [Sample(metric, value) for metric, value in (gauges or {}).items()]
    target = Target(name, "math", collector, "sandbox", url="http://provider", options=options)
    reading = Reading(tuple(samples), sandboxes=records, listed=("prime",) if listed else ())
    return ReadTarget(target, reading, seconds=0.12, **more)


def refused(
    kind: ErrorKind, text: str = "HTTP 401", retry_after: float | None = None, name: str = "prime"
) -> ReadTarget:
    """An account that could not be read."""
    target = Target(name, "math", "prime_sandboxes", "sandbox", url="http://provider")
    return ReadTarget(target, error=ScrapeError(kind, text, retry_after))


def engine(name: str, version: str = "0.11.0", error: ScrapeError | None = None, **more: Any) -> ReadTarget:
    target = Target(name, "math", "vllm", "generator", url="http://engine")
    return ReadTarget(target, None if error else Reading(), error, version=version, **more)


def directory(exists: bool = True, readable: bool = True, error: ErrorKind | None = None, **more: Any) -> ReadTarget:
    why = ScrapeError(error, "cannot") if error else None
    target = Target("outputs", "math", "prime_rl", "trainer", path="/outputs")
    path = PathSeen(exists, readable, more.pop("written", None), more.pop("why", ""))
    return ReadTarget(target, None if error else Reading(), why, path=path, **more)


def inputs(*seen: ReadTarget, plan: PreflightPlan | None = None, **more: Any) -> Inputs:
    told = {"facts": {}, "keys": frozenset({"math"}), **more}
    return Inputs("math", plan or PreflightPlan(), seen, now=NOW, **told)


def check(name: str, *seen: ReadTarget, plan: PreflightPlan | None = None, **more: Any) -> Check:
    """One check's answer."""
    return next(one for one in judge(inputs(*seen, plan=plan, **more)) if one.name == name)


# ---- over HTTP


@dataclass
class World:
    """What the fake server says. ``ahead``: its clock minus ours; ``refuse``: path -> status."""

    sandboxes: list[dict[str, Any]] = field(default_factory=list)
    balance: float = 500.0
    limits: dict[str, Any] = field(default_factory=lambda: {"max_concurrent_sandboxes": 1000})
    account: dict[str, Any] = field(default_factory=lambda: {"vm_sandbox_creation_burst_limit": 100})
    refuse: dict[str, int] = field(default_factory=dict)
    version: str | None = "0.11.0"
    ahead: float = 0.0
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Any:
        if path == "/api/v1/user/whoami":
            return {"data": {"account_limits": self.account, "key_limits": self.limits}}
        if path == "/api/v1/billing/wallet":
            wallet = {"wallet_id": "w", "balance_usd": self.balance, "currency": "USD"}
            return {**wallet, "total_billings": 0, "recent_billings": []}
        if path == "/api/v1/sandbox":
            return self._listing(query)
        return {"version": self.version} if path == "/version" and self.version else None

    def _listing(self, query: Mapping[str, list[str]]) -> Any:
        page, size = int(query.get("page", ["1"])[0]), int(query.get("per_page", ["50"])[0])
        found = [row for row in self.sandboxes if _matches(row, query)]
        rows = found[(page - 1) * size : page * size]
        more = page * size < len(found)
        return {"sandboxes": rows, "total": len(found), "page": page, "perPage": size, "hasNext": more}


def _matches(row: Mapping[str, Any], query: Mapping[str, list[str]]) -> bool:
    over = row["status"] in ("ERROR", "TERMINATED", "TIMEOUT")
    if query.get("is_active") == ["true"] and over:
        return False
    return "status" not in query or row["status"] in query["status"]


def prime_row(number: int, status: str = "RUNNING", labels: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """A sandbox as Prime lists it: asked for two hours ago, up 40 s later."""
    return {
        "id": f"sb-{number:03d}", "name": f"trace-{number}", "dockerImage": "python:3.12", "cpuCores": 1,
        "memoryGB": 2, "diskSizeGB": 5, "gpuCount": 0, "vm": False, "status": status, "timeoutMinutes": 120,
        "labels": list(labels), "createdAt": _iso(NOW - 7200), "startedAt": _iso(NOW - 7160),
        "updatedAt": _iso(NOW - 7160), "userId": "u", **more,
    }  # fmt: skip


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


@contextmanager
def serving(world: World, now: float = NOW) -> Iterator[str]:
    """The world over HTTP; its URL. ``now``: our time, which its dates are relative to."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            world.asked.append(f"{self.command} {parts.path}")
            status = world.refuse.get(parts.path, 200)
            told = self.headers.get("authorization") == f"Bearer {KEY}" or not parts.path.startswith("/api")
            if not told:
                status = 401
            body, kind = self._body(parts.path, parse_qs(parts.query))
            if body is None:
                status, body = 404, b"{}"
            self.send_response_only(status)
            self.send_header("Date", formatdate(now + world.ahead, usegmt=True))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _body(self, path: str, query: Mapping[str, list[str]]) -> tuple[bytes | None, str]:
            if path == "/metrics":
                return PAGE.read_bytes(), "text/plain; version=0.0.4"
            answer = world.answer(path, query)
            return (None if answer is None else json.dumps(answer).encode()), "application/json"

        def log_message(self, *args: Any) -> None:
            """Nothing: pytest's output is for results."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
