"""Reads targets and forwards readings to a remote server, without loss or duplicates while the server is unreachable.

Each target is read into the spool as the server would read it (`server.scrape.target_reader.TargetReader`). Each
target's bodies are sent oldest first and leave the spool when the server has acknowledged them.
"""

import asyncio
import gzip
import logging
import random
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import httpx
from msgspec import structs

import collectors
from collectors.model import Limits, Target
from collectors.transport import http as failures
from server.lib.clock import stopped_within
from server.push import inbox as push_inbox
from server.push.inbox import Outcome
from server.runtime.spool import Queued, Spool
from server.scrape.target_reader import BACKOFF_MAX_SECONDS, TargetReader

log = logging.getLogger("rollscope.forward")

PATH = "/api/v1/readings"
# First retry interval, s: a server that restarts is back within seconds. It doubles with each failure.
BACKOFF_SECONDS = 1.0
# Longest retry interval, s.
BACKOFF_MOST_SECONDS = 15.0
# Retry interval after a refusal, s. A refusal is mostly permanent, but a wrong token may be corrected meanwhile.
REFUSED_SECONDS = 60.0
# Longest Retry-After that is respected, s.
RETRY_AFTER_MOST_SECONDS = 300.0
# Time limit of a request, s.
TIMEOUT_SECONDS = 30.0
# Pause between checks of a full spool, s.
FULL_SECONDS = 1.0
# Interval at which sources that do not exist yet are looked for, s.
LOOK_SECONDS = 5.0
# Pause after an error of the spool, s.
BROKEN_SECONDS = 5.0
# Time for sending at the end, s. A job's process is killed after 30 s; what remains is sent after the next start.
DRAIN_SECONDS = 10.0
# Limits of one reading: a few bodies, so that history is sent while more of it is read.
LIMITS = Limits(tail_bytes=1 << 20, tail_rows=1_000)
_HINTS = {
    401: "; set ROLLSCOPE_TOKEN or --token-file to the server's token",
    404: "; is this the server's URL, and is the server of this version?",
    405: "; is this the server's URL, and is the server of this version?",
}


Look = Callable[[Collection[str]], Awaitable[Sequence[Target]]]


class Refused(Exception):
    """The server refused a body. ``wait``: seconds until the next attempt."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


@dataclass(slots=True)
class FaultLog:
    """Faults by target. Logs a line per new fault, and one when all faults are over."""

    texts: dict[str, str] = field(default_factory=dict)

    def bad(self, target: str, text: str) -> None:
        """Records a fault of a target's queue."""
        if text not in self.texts.values():
            log.warning("%s; nothing is lost, it waits in the spool", text)
        self.texts[target] = text

    def good(self, target: str) -> None:
        """Records success of a target's queue."""
        if self.texts.pop(target, None) is not None and not self.texts:
            log.info("the server accepts readings again")


class Forwarder:
    """Forwards all targets of one run, on one event loop.

    Args:
        client: bound to the server, with its token.
        facts: further facts of the run, sent with every reading of a file.
        now: epoch seconds.
        look: returns targets of sources that exist only now; it gets the names of the run's targets.
    """

    def __init__(
        self, run: str, targets: Sequence[Target], spool: Spool, client: httpx.AsyncClient, now: Callable[[], float], *,
        facts: Callable[[Target], dict[str, str | float]] = lambda target: {}, backoff: float = BACKOFF_SECONDS,
        look: Look | None = None, look_seconds: float = LOOK_SECONDS,
    ) -> None:  # fmt: skip
        self._look, self._look_seconds = look, look_seconds
        self._reading, self._sending = list[asyncio.Task[None]](), list[asyncio.Task[None]]()
        self._run, self._spool, self._client, self._now, self._facts = run, spool, client, now, facts
        self._backoff, self._faults, self._random = backoff, FaultLog(), random.Random()
        self.readers = [self._reader(one) for one in targets]
        # Queued bodies of targets that are no longer configured are sent too.
        self._wake = {name: asyncio.Event() for name in {*spool.targets(), *(one.name for one in targets)}}
        self._full = self._broken = self._ended = False

    async def run(self, stop: asyncio.Event) -> None:
        """Reads and sends until `stop`; then reads each file once more and sends what it can."""
        self._sending = [asyncio.create_task(self._send(name)) for name in self._wake]
        self._reading = [asyncio.create_task(self._read(reader, stop)) for reader in self.readers]
        try:
            if self._look is not None:
                await self._attach(self._look, stop)
            await asyncio.gather(*self._reading)
            self._ended = True
            for event in self._wake.values():
                event.set()
            if self._sending:
                await asyncio.wait(self._sending, timeout=DRAIN_SECONDS)
        finally:
            for task in (*self._reading, *self._sending):
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)
            ends = await asyncio.gather(*self._sending, return_exceptions=True)
            for reader in self.readers:
                await reader.close()
        if self._spool.rows:
            log.warning("%d readings wait in %s for the next start", self._spool.rows, self._spool.path)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    # ---- reading

    def _reader(self, target: Target) -> TargetReader:
        return TargetReader(target, collectors.load()[target.collector], self._spool.cursor(target), LIMITS)

    async def _attach(self, look: Look, stop: asyncio.Event) -> None:
        """Starts targets whose source appears later, until `stop`."""
        while not stop.is_set():
            for target in await look({reader.target.name for reader in self.readers}):
                log.info("%s exists now: it is read as %s", target.name, target.collector)
                self.readers.append(reader := self._reader(target))
                if target.name not in self._wake:
                    self._wake[target.name] = asyncio.Event()
                    self._sending.append(asyncio.create_task(self._send(target.name)))
                self._reading.append(asyncio.create_task(self._read(reader, stop)))
            failed = next((task for task in self._reading if task.done() and not stop.is_set()), None)
            if failed is not None:
                await failed
            await stopped_within(stop, self._look_seconds)

    async def _read(self, reader: TargetReader, stop: asyncio.Event) -> None:
        while not stop.is_set():
            wait = reader.due - self._now()
            if wait > BACKOFF_MAX_SECONDS + reader.target.interval_seconds and not reader.failures:
                wait = 0.0  # the clock went back, so the due time is void
            if self._crowded():
                wait = max(wait, FULL_SECONDS)
                await stopped_within(stop, wait)
                continue
            if wait > 0 and await stopped_within(stop, wait):
                break
            if not await self._once(reader):
                await stopped_within(stop, BROKEN_SECONDS)
        if reader.target.path and not self._crowded():
            await self._once(reader)

    async def _once(self, reader: TargetReader) -> bool:
        """Reads once into the spool; returns False if the spool failed: then the same rows are read again."""
        outcome = await reader.read(self._now())
        try:
            await asyncio.to_thread(self._keep, reader.target, outcome)
        except sqlite3.Error as error:
            if not self._broken:
                log.error("cannot write to the spool %s: %s; reading is paused", self._spool.path, error)
            self._broken = True
            return False
        self._broken = False
        reader.committed(outcome)
        self._wake[reader.target.name].set()
        return True

    def _keep(self, target: Target, outcome: Outcome) -> None:
        cursor = outcome.reading.cursor if outcome.reading is not None else None
        if outcome.reading is not None and (facts := self._facts(target)):
            outcome = replace(
                outcome, reading=structs.replace(outcome.reading, facts={**facts, **outcome.reading.facts})
            )
        # Bodies have a few kB; the fastest level finds nearly all redundancy.
        packed = [gzip.compress(body, 1, mtime=0) for body in push_inbox.bodies(outcome)]
        self._spool.put(target, packed, cursor)

    def _crowded(self) -> bool:
        full = self._spool.full
        if full and not self._full:
            log.warning("the spool %s is full: reading is paused until the server accepts some of it", self._spool.path)
        elif self._full and not full:
            log.info("the spool has room again: reading continues")
        self._full = full
        return full

    # ---- sending

    async def _send(self, target: str) -> None:
        failures, event = 0, self._wake[target]
        while True:
            event.clear()
            try:
                if await self._next(target):
                    failures = 0
                    self._faults.good(target)
                    continue
            except Refused as error:
                self._faults.bad(target, str(error))
                failures += 1
                await asyncio.sleep(self._pause(failures, error.wait))
                continue
            if self._ended:
                return
            await event.wait()

    async def _next(self, target: str) -> bool:
        """Sends the oldest body and removes it; returns False if there is none."""
        try:
            body = await asyncio.to_thread(self._spool.first, target)
            if body is not None:
                await self._post(body)
                await asyncio.to_thread(self._spool.done, body)
        except sqlite3.Error as error:
            # If it was sent already, the server recognises its number when it is sent again.
            raise Refused(f"the spool {self._spool.path} does not answer: {error}", BROKEN_SECONDS) from None
        return body is not None

    def _pause(self, failures: int, retry_after: float | None) -> float:
        """Returns seconds until the next attempt: doubled each time, with jitter so that senders differ."""
        usual = min(BACKOFF_MOST_SECONDS, self._backoff * 2.0 ** min(failures - 1, 10))
        wait = usual if retry_after is None else max(usual, min(retry_after, RETRY_AFTER_MOST_SECONDS))
        return wait * self._random.uniform(0.8, 1.2)

    async def _post(self, body: Queued) -> None:
        query: dict[str, str | int | float] = {
            "run": self._run, "target": body.target, "kind": body.kind, "actor": body.actor,
            "interval": body.interval_seconds, "agent": self._spool.agent, "seq": body.seq, "behind": body.behind,
            "sent": self._now(),
        }  # fmt: skip
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        try:
            answer = await self._client.post(PATH, params=query, content=body.body, headers=headers)
        except httpx.HTTPError as error:
            raise Refused(f"the server does not answer: {failures.sentence(error)}") from None
        # The number is checked, because a proxy or another program may answer 200 to any request.
        if answer.status_code == 200 and _acknowledged(answer, body.seq):
            return
        raise _refusal(answer)


def _acknowledged(answer: httpx.Response, seq: int) -> bool:
    try:
        return bool(answer.json()["seq"] == seq)
    except (ValueError, KeyError, TypeError):
        return False


def _refusal(answer: httpx.Response) -> Refused:
    code = answer.status_code
    if code == 429 or code >= 500:
        retry_after = answer.headers.get("retry-after", "")
        text = f"the server answers {code}: {_detail(answer)}"
        return Refused(
            text,
            float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6 else None,
        )
    if code == 200:
        return Refused("the answer is not from a Rollscope server", REFUSED_SECONDS)
    return Refused(f"the server refuses with {code}: {_detail(answer)}{_HINTS.get(code, '')}", REFUSED_SECONDS)


def _detail(answer: httpx.Response) -> str:
    try:
        return ascii(answer.json()["detail"])[1:-1][:300]
    except (ValueError, KeyError, TypeError):
        plain = answer.headers.get("content-type", "").startswith("text/plain")
        return ascii(answer.text[:300])[1:-1] if plain and answer.text else "no reason given"
