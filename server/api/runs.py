"""HTTP: deletes a run."""

from dataclasses import dataclass

from fastapi import FastAPI, HTTPException

from server.api.responses import errors
from server.lib.clock import Clock
from server.store import Store
from server.store.removal import RunInUse


@dataclass(frozen=True, slots=True)
class RunDeleted:
    """``deleted``: name of the run of which nothing is stored any more."""

    deleted: str


def add_run_removal(api: FastAPI, store: Store, clock: Clock) -> None:
    """`DELETE /api/v1/runs/{run}`."""

    @api.delete("/api/v1/runs/{run}", tags=["runs"], responses=errors(400, 404, 409, 422, 503))
    def delete(run: str, confirm: str = "") -> RunDeleted:
        """Deletes a run with all its data permanently. `confirm` must repeat the run's name.

        409: a process collects the run. If a later push names the run, or a configuration does, it begins again, empty.
        """
        if confirm != run:
            raise HTTPException(400, "this deletes the run permanently: confirm it with ?confirm= and the run's name")
        try:
            removed = store.remove(run, round(clock.now() * 1000))
        except RunInUse as error:
            raise HTTPException(409, str(error)) from None
        if not removed:
            raise HTTPException(404, f"no run named {run!r}; see /api/v1/runs")
        return RunDeleted(run)
