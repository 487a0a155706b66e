"""The read-only part of Prime Intellect's sandbox REST API, as prime-sandboxes 0.5.1 and prime 0.18.0 use it.

`GET /api/v1/sandbox` with paging and filters, `/sandbox/{id}`, `/user/whoami` with the limits, `/billing/wallet`.
A Bearer key is required. Clients above the rate limit get 429 with Retry-After, by event time, so that the demo's fast
first hour is not throttled. Error texts are our own, because no real ones are recorded.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

from server.demo.http_server import NOT_FOUND, Reply
from server.demo.provider import LIVE, Provider, Sandbox

# Requests at once, and per second after that: six listings of 1,000 sandboxes by pages of 50.
BURST_REQUESTS = 240.0
REQUESTS_PER_SECOND = 20.0
PER_PAGE, PER_PAGE_MAX = 50, 1_000
STATUSES = frozenset({*LIVE, "PAUSED", "ERROR", "TERMINATED", "TIMEOUT"})
ROOT = "/api/v1"
_BILLINGS = 20
Query = Mapping[str, list[str]]


class BadQuery(ValueError):
    """An invalid parameter; answered with 422."""


class PrimeApi:
    """Answers for one account. `now` is in seconds since the run began at epoch `start`."""

    def __init__(self, provider: Provider, seed: int, start: float) -> None:
        self.key = "pit_" + hashlib.sha256(f"{seed}:key".encode()).hexdigest()[:40]
        self._provider = provider
        self._user = _id("us", seed, "user")
        self._wallet = _id("wa", seed, "wallet")
        self._start = start
        self._tokens = BURST_REQUESTS
        self._refilled = 0.0

    def respond(self, target: str, headers: Mapping[str, str], now: float) -> Reply:
        """Returns the answer to a GET of `target`, path and query."""
        url = urlsplit(target)
        if not url.path.startswith(f"{ROOT}/"):
            return NOT_FOUND
        if headers.get("authorization") != f"Bearer {self.key}":
            return _refusal(401, "Invalid or missing API key")
        if not self._take(now):
            wait = {"retry-after": str(math.ceil(1 / REQUESTS_PER_SECOND))}
            return _refusal(429, "Rate limit exceeded", wait)
        try:
            return self._route(url.path.removeprefix(ROOT), parse_qs(url.query), now)
        except BadQuery as error:
            return _refusal(422, str(error))

    def _take(self, now: float) -> bool:
        """Takes one request from the bucket, which event time fills."""
        filled = self._tokens + max(0.0, now - self._refilled) * REQUESTS_PER_SECOND
        self._tokens, self._refilled = min(BURST_REQUESTS, filled), max(now, self._refilled)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _route(self, path: str, query: Query, now: float) -> Reply:
        if path == "/sandbox":
            return _reply(self._list(query))
        if path == "/user/whoami":
            return _reply({"data": self._whoami()})
        if path == "/billing/wallet":
            return _reply(self._billing(query, now))
        if match := re.fullmatch(r"/sandbox/(\w+)", path):
            return self._one(match[1])
        return NOT_FOUND

    # -- sandboxes ---------------------------------------------------------------------------------------------

    def _list(self, query: Query) -> dict[str, Any]:
        """Lists newest first. `labels` must all match; `is_active=true` leaves out ended ones."""
        page, per_page = _number(query, "page", 1, 10**6), _number(query, "per_page", PER_PAGE, PER_PAGE_MAX)
        found = self._matching(query)
        begin = (page - 1) * per_page
        return {
            "sandboxes": [self._row(sandbox) for sandbox in found[begin : begin + per_page]],
            "total": len(found),
            "page": page,
            "perPage": per_page,
            "hasNext": begin + per_page < len(found),
        }

    def _matching(self, query: Query) -> list[Sandbox]:
        active = query.get("is_active", ["false"])[-1].lower()
        if active not in ("true", "false"):
            raise BadQuery("is_active: must be true or false")
        pool: Iterable[Sandbox] = (self._provider.live if active == "true" else self._provider.records).values()
        labels = set(query.get("labels", []))
        if labels:
            pool = (sandbox for sandbox in pool if labels <= {sandbox.label})
        status = query.get("status", [""])[-1]
        if status:
            if status not in STATUSES:
                raise BadQuery(f"status: must be one of {', '.join(sorted(STATUSES))}")
            pool = (sandbox for sandbox in pool if sandbox.status == status)
        return list(pool)[::-1]

    def _one(self, id: str) -> Reply:
        sandbox = self._provider.records.get(id)
        return _reply(self._row(sandbox)) if sandbox else _refusal(404, "Sandbox not found")

    def _row(self, sandbox: Sandbox) -> dict[str, Any]:
        plan = self._provider.plan
        is_left_over = sandbox.label == plan.dangling_run
        return {
            "id": sandbox.id,
            "name": sandbox.name,
            "dockerImage": sandbox.image,
            "startCommand": None,
            "cpuCores": plan.cpu_cores,
            "memoryGB": plan.memory_gb,
            "diskSizeGB": plan.disk_gb,
            "diskMountPath": "/sandbox-workspace",
            "gpuCount": 0,
            "gpuType": None,
            "vm": True,
            "status": sandbox.status,
            # verifiers sets no time limit for a VM sandbox except an hour of idleness; the older run set a day.
            "timeoutMinutes": 1_440 if is_left_over else -1,
            "idleTimeoutMinutes": None if is_left_over else 60,
            "terminationReason": None,
            "environmentVars": None,
            "labels": [sandbox.label],
            "createdAt": self._time(sandbox.created),
            "updatedAt": self._time(sandbox.updated),
            "startedAt": self._time(sandbox.started),
            "terminatedAt": self._time(sandbox.ended),
            "exitCode": 137 if sandbox.error_type == "OOM_KILLED" else None,
            "errorType": sandbox.error_type,
            "errorMessage": sandbox.error_message,
            "userId": self._user,
            "teamId": None,
            "region": "us-east",
            "pendingImageBuildId": sandbox.build_id,
        }

    def _time(self, now: float | None) -> str | None:
        if now is None:
            return None
        return datetime.fromtimestamp(self._start + now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    # -- account -----------------------------------------------------------------------------------------------

    def _whoami(self) -> dict[str, Any]:
        limit = self._provider.plan.concurrent_limit
        return {
            "id": self._user,
            "email": "lab@example.org",
            "name": "Example Lab",
            "slug": "example-lab",
            "scope": {"sandbox": {"read": True, "write": True}, "billing": {"read": True, "write": False}},
            # None is "no such limit". The limit of simultaneous starts is in no answer.
            "account_limits": {
                "vm_sandbox_limit": limit,
                "sandbox_total_cpu_limit": 4_096,
                "vm_sandbox_gpu_limit": 0,
                "vm_sandbox_creation_burst_limit": 400,
                "tunnel_limit": 20,
                "tunnel_creations_per_hour_limit": 120,
                "tunnel_ttl_hours": 24,
            },
            "key_limits": {
                "max_concurrent_sandboxes": 2 * limit,
                "max_sandbox_creations_per_hour": None,
                "max_sandbox_cpu_cores": None,
                "max_sandbox_gpu_count": None,
                "max_concurrent_tunnels": None,
                "max_tunnel_creations_per_hour": None,
                "max_tunnel_ttl_hours": None,
            },
        }

    def _billing(self, query: Query, now: float) -> dict[str, Any]:
        limit, offset = _number(query, "limit", _BILLINGS, 100), _number(query, "offset", 0, 10**6, least=0)
        billed = (sandbox for sandbox in reversed(self._provider.over) if sandbox.started is not None)
        return {
            "wallet_id": self._wallet,
            "team_id": None,
            "balance_usd": round(self._provider.plan.credit_usd - self._provider.spent_usd(now), 4),
            "currency": "USD",
            "total_billings": self._provider.billed,
            "recent_billings": [self._bill(sandbox) for sandbox in islice(billed, offset, offset + limit)],
        }

    def _bill(self, sandbox: Sandbox) -> dict[str, Any]:
        assert sandbox.started is not None and sandbox.ended is not None
        hours = (sandbox.ended - sandbox.started) / 3_600.0
        return {
            "id": _id("bi", sandbox.id),
            "created_at": self._time(sandbox.ended),
            "updated_at": self._time(sandbox.ended),
            "last_billed_at": self._time(sandbox.ended),
            "amount_usd": round(hours * self._provider.plan.usd_per_hour, 6),
            "currency": "USD",
            "resource_type": "SANDBOX",
            "resource_id": sandbox.id,
        }


def _number(query: Query, name: str, default: int, most: int, least: int = 1) -> int:
    text = query.get(name, [str(default)])[-1]
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise BadQuery(f"{name}: must be between {least} and {most}")
    return int(text)


def _reply(body: object) -> Reply:
    return Reply(200, "application/json", json.dumps(body, separators=(",", ":")).encode())


def _refusal(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, "application/json", json.dumps({"detail": detail}).encode(), headers or {})


def _id(prefix: str, *parts: object) -> str:
    return prefix + hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:22]
