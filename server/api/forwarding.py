"""HTTP: readings that `rollscope watch --push` makes on another machine and forwards."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

import collectors
from collectors.model import FIRST_TIME, Actor
from server.api.push import RETRY, TARGETS, UploadLimiter, interval_of, plain_of, run_of, target_of
from server.api.responses import errors
from server.ingest.readings import AHEAD_SECONDS
from server.lib.clock import Clock
from server.push import inbox as push_inbox
from server.push.forwarders import SILENT_SECONDS
from server.push.targets import TOO_MANY
from server.store import Store
from server.store.inbox import InboxFull
from server.store.types import Push

AGENT = re.compile(r"[A-Za-z0-9-]{8,64}")
LAST = 2**62
_QUERY = ("run", "target", "kind", "actor", "interval", "agent", "seq", "behind", "sent")
_MAY = ("interval", "behind", "sent")


@dataclass(frozen=True, slots=True)
class ReadingStored:
    """``repeated``: the reading with this ``seq`` was stored before; it is not stored again."""

    seq: int
    repeated: bool


def add_readings(api: FastAPI, store: Store, clock: Clock, admitted: Callable[[str], bool]) -> None:
    """`POST /api/v1/readings`. ``admitted``: may a push name this run?"""
    door, turns = _ForwardingRoutes(store, clock, admitted), UploadLimiter()
    documented = {
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
        "parameters": [
            {"name": name, "in": "query", "required": name not in _MAY, "schema": {"type": "string"}}
            for name in _QUERY
        ],
    }  # fmt: skip

    @api.post(
        "/api/v1/readings",
        tags=["pushes"],
        openapi_extra=documented,
        response_model=ReadingStored,
        responses=errors(400, 409, 413, 415, 429, 503),
    )
    async def forwarded(request: Request) -> Response:
        """Accepts one reading of one target from `rollscope watch --push`; each `seq` of an `agent` counts once."""
        return await turns.taken(door.take, request)


class _ForwardingRoutes:
    """From a request to the inbox. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, admitted: Callable[[str], bool]) -> None:
        self._store, self._clock, self._admitted = store, clock, admitted

    def take(self, request: Request, body: bytes) -> Response:
        """Validates a reading, stores it and acknowledges it; a repeated reading is acknowledged like the first."""
        query, now = request.query_params, self._clock.now()
        try:
            _check_query(query)
            run, target, agent = run_of(query.get("run", "")), target_of(query.get("target", "")), _agent(query)
            kind, actor = _choice(query, "kind", collectors.load()), _choice(query, "actor", get_args(Actor))
            interval, seq = interval_of(query), _whole(query, "seq", 1)
            behind, skew = _whole(query, "behind", 0, "0"), _skew(query, now)
            plain = plain_of(body, request.headers.get("content-encoding", ""))
            outcome = push_inbox.read(plain)
            if not FIRST_TIME <= outcome.started <= now + AHEAD_SECONDS:
                raise ValueError("it was read before 2000 or more than a day ahead of this machine's clock")
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if not self._admitted(run):
            raise HTTPException(429, TOO_MANY, RETRY)
        self._check(run, target, agent, now)
        packed = push_inbox.pack_reading(kind, behind, skew, plain)
        push = Push(run, target, actor, interval, round(now * 1000), push_inbox.weight(outcome), packed)
        try:
            fresh = self._store.pushes.offer_once(push, agent, seq)
        except InboxFull as error:
            raise HTTPException(429, str(error), RETRY) from None
        return JSONResponse({"seq": seq, "repeated": not fresh})

    def _check(self, run: str, target: str, agent: str, now: float) -> None:
        """Refuses a second source of a target: this process, a push client, or one forwarder may report it."""
        # Read the targets before the forwarders: a first reading stored in between then belongs to its forwarder.
        pushers = {pusher.target for pusher in self._store.pushes.pushers(run)}
        known_targets = pushers | {row.name for _, row in self._store.runs.targets(run)}
        tellers = [pusher for pusher in self._store.pushes.forwarders(run) if pusher.target == target]
        if not tellers and target in known_targets:
            raise HTTPException(409, f"target {target} of this run has another source: forward with another --run NAME")
        newest = max(tellers, key=lambda pusher: pusher.last_ts, default=None)
        if newest is not None and newest.agent != agent and now - newest.last_ts / 1000 < SILENT_SECONDS:
            raise HTTPException(
                409,
                f"target {target} of this run was forwarded by another agent less than {SILENT_SECONDS:g} s ago: "
                "give one of the two another --run NAME, or wait until the other one has been silent that long",
                RETRY,
            )
        if target not in pushers and len(pushers) >= TARGETS:
            raise HTTPException(429, f"{TARGETS} targets already push to this run, the maximum", RETRY)


def _check_query(query: Mapping[str, str]) -> None:
    if unknown := set(query) - set(_QUERY):
        raise ValueError(f"unknown parameter {min(unknown)[:40]!r}; known: {', '.join(_QUERY)}")


def _agent(query: Mapping[str, str]) -> str:
    agent = query.get("agent", "")
    if not AGENT.fullmatch(agent):
        raise ValueError("agent must be 8 to 64 letters, digits or -")
    return agent


def _choice(query: Mapping[str, str], name: str, allowed: "Mapping[str, object] | tuple[str, ...]") -> str:
    value = query.get(name, "")
    if value not in allowed:
        raise ValueError(f"{name} {ascii(value)[:80]} is unknown; known: {', '.join(allowed)}")
    return value


def _whole(query: Mapping[str, str], name: str, least: int, usual: str = "") -> int:
    text = query.get(name, usual)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not least <= number <= LAST:
        raise ValueError(f"{name} must be a whole number from {least} on")
    return number


def _skew(query: Mapping[str, str], now: float) -> float:
    """Seconds by which the sender's clock is ahead; 0 if the request has no ``sent``."""
    text = query.get("sent", "")
    try:
        sent = float(text) if text else now
    except ValueError:
        sent = 0.0
    if not FIRST_TIME <= sent <= now + AHEAD_SECONDS:
        raise ValueError("sent must be epoch seconds, of a clock that is less than a day ahead")
    return sent - now
