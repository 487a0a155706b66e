"""A gRPC server for one simulated system, on its own event loop and thread.

Needs grpclib and the system's own messages, from an extra. They are imported when a server is created; ImportError
means that they are not installed. A function answers each unary call; a call without one is UNIMPLEMENTED.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# Longest wait for calls in flight at close, s.
_CLOSE_SECONDS = 5.0

# A request and the call's metadata, names in lower case -> the reply; or Refusal.
Answer = Callable[[Any, Mapping[str, str]], Any]


class Refusal(Exception):
    """Refusal of a call. ``status``: the name of a gRPC status; the text is the message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Call:
    """One method: the classes of its messages, and its handler."""

    request: Any
    reply: Any
    answer: Answer


class GrpcServer:
    """Serves `calls`, path -> call, on a free port of this machine, until `close`.

    Raises:
        ImportError: grpclib is not installed.
    """

    def __init__(self, name: str, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._const = import_module("grpclib.const")
        self._errors = import_module("grpclib")
        grpc = import_module("grpclib.server")
        self._loop = asyncio.new_event_loop()
        # Named as TCP, asyncio switches Nagle's algorithm off; else each reply waits 40 ms for a delayed ACK.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._server = self._wait(self._start(grpc, sock))

    def __mapping__(self) -> dict[str, Any]:
        """Returns the service description that grpclib requires."""
        unary = self._const.Cardinality.UNARY_UNARY
        return {
            path: self._const.Handler(self._handler(call.answer), unary, call.request, call.reply)
            for path, call in self._calls.items()
        }

    def _handler(self, answer: Answer) -> Callable[[Any], Awaitable[None]]:
        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            metadata = {key: value for key, value in stream.metadata.items() if isinstance(value, str)}
            try:
                reply = answer(request, metadata)
            except Refusal as refusal:
                raise self._errors.GRPCError(self._errors.Status[refusal.status], str(refusal)) from None
            await stream.send_message(reply)

        return handle

    async def _start(self, grpc: Any, sock: socket.socket) -> Any:
        server = grpc.Server([self])
        await server.start(sock=sock)
        return server

    async def _stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CLOSE_SECONDS)

    def close(self) -> None:
        """Stops serving, with connections and thread."""
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()
