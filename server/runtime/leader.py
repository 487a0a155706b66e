"""The lease that lets exactly one process write to a store."""

import threading
from contextlib import suppress

from server.store.foreign import refuse_foreign
from server.store.lock import Locked, acquire


class Leader:
    """The lease for writing. It is lost with the database connection, and then acquired again."""

    def __init__(self, store: str, url: str) -> None:
        self._store, self._url = store, url
        self._guard = threading.Lock()
        refuse_foreign(store)  # or the lock's file would be made next to it
        self._lease = acquire(store, serving=url)

    def leading(self) -> bool:
        """Is the lease held, or can it be acquired again? Called before each step, on a thread.

        Raises:
            StoreError: the store is unreachable, so the answer is unknown.
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
        """File descriptors that hold the lease; a child process shares it through them."""
        return self._lease.descriptors

    def release(self) -> None:
        with suppress(Exception):  # a lease of a connection that is gone
            self._lease.release()
