"""HTTP: the preflight of a run, begun on demand and read afterwards."""

import math

from fastapi import FastAPI, HTTPException
from pydantic import SerializeAsAny

from server.api.responses import errors
from server.preflight.live import Busy, NotConfigured, Preflights, TooSoon
from server.query import Reader, shape


def add_preflight(api: FastAPI, reader: Reader, preflights: Preflights) -> None:
    """Routes below `/api/v1/runs/{run}/preflight`. The gate decides which clients may write."""

    @api.get("/api/v1/runs/{run}/preflight", tags=["preflight"], responses=errors(404, 503))
    def last(run: str) -> SerializeAsAny[shape.PreflightAnswer]:
        """The last preflight. `state`: never, running, done, failed or not_configured; `checks`: its results."""
        return shape.preflight(run, reader.preflight(run))

    # Not async: what it does (a lock, a thread's start) is done on a thread, and the reading on one of its own.
    @api.post("/api/v1/runs/{run}/preflight", status_code=202, tags=["preflight"], responses=errors(404, 409, 429, 503))
    def begin(run: str) -> SerializeAsAny[shape.PreflightAnswer]:
        """Starts a preflight: reads every target once, changes nothing. One at a time, every 30 s at most."""
        reader.preflight(run)
        try:
            return shape.preflight(run, preflights.begin(run))
        except NotConfigured:
            message = (
                "this server's configuration has no such run; `rollscope preflight -c FILE RUN` checks other files"
            )
            raise HTTPException(409, message) from None
        except Busy:
            raise HTTPException(409, "the previous preflight is still running") from None
        except TooSoon as soon:
            raise HTTPException(429, str(soon), {"retry-after": str(math.ceil(soon.seconds))}) from None
