"""Exactly one process collects into a store: the right to, held and watched."""

import threading
from contextlib import suppress

from server.store.lock import Locked, acquire


class Leader:
    """The one right to write. A database that went away took it along; it is asked for again, never assumed."""

    def __init__(self, store: str, url: str) -> None:
        self._store, self._url = store, url
        self._guard = threading.Lock()
        self._lease = acquire(store, serving=url)

    def leading(self) -> bool:
        """Is the lease held, or could it be had again? Asked before each step, on a thread.

        Raises:
            StoreError: the store cannot be asked: it is away, nobody else's.
        """
        with self._guard:
            if self._lease.held():
                return True
            self.release()
            try:
                self._lease = acquire(self._store, serving=self._url)
            except Locked:
                return False
            return True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Files whose holders share the right, whoever of them dies first."""
        return self._lease.descriptors

    def release(self) -> None:
        with suppress(Exception):  # a lease of a connection that is gone
            self._lease.release()
