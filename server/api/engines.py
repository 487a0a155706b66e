"""HTTP: single engines and single steps of a run."""

from typing import Annotated

from fastapi import FastAPI, HTTPException, Query
from pydantic import SerializeAsAny

from server.api.responses import errors
from server.query import Reader
from server.query.types import MOST_ENGINES, MOST_STEPS, EngineInfo, EngineMetric, StepInfo

# Epoch seconds, as `server.api.app.LAST`: a larger time is in milliseconds by mistake.
_LAST = 1e11
# Columns of one heat map: more than a screen can show.
_COLUMNS = 500


def add_engines(api: FastAPI, reader: Reader) -> None:
    """`GET /api/v1/runs/{run}/engines`, `/engines/history` and `/steps`."""

    @api.get("/api/v1/runs/{run}/engines", tags=["runs"], responses=errors(404, 503))
    def engines(
        run: str, at: Annotated[float | None, Query(ge=0, le=_LAST, description="epoch seconds; default: now")] = None
    ) -> SerializeAsAny[list[EngineInfo]]:
        """Each engine: its newest values, and means over the last five whole minutes."""
        return reader.engines.now(run, at)

    @api.get("/api/v1/runs/{run}/engines/history", tags=["runs"], responses=errors(404, 422, 503))
    def history(
        run: str,
        metric: EngineMetric,
        start: Annotated[float, Query(ge=0, le=_LAST, description="epoch seconds")],
        end: Annotated[float, Query(ge=0, le=_LAST, description="epoch seconds")],
        engine: Annotated[
            list[str], Query(max_length=MOST_ENGINES, description="`key` of /engines; none: the first by name")
        ] = [],  # noqa: B006
        width: Annotated[float, Query(ge=1, description="seconds per column")] = 60.0,
    ) -> dict[str, list[tuple[float, float]]]:
        """[[start of a column, mean within it]] by engine; columns without data are left out."""
        if not start < end or (end - start) / width > _COLUMNS:
            raise HTTPException(422, f"start must be before end, and at most {_COLUMNS} columns between them")
        keys = engine or [engine_row.key for engine_row in reader.engines.now(run, end)][:MOST_ENGINES]
        engine_row = reader.engines.cells(run, metric, keys, start, end, width)
        return {key: sorted(values.items()) for key, values in engine_row.items()}

    @api.get("/api/v1/runs/{run}/steps", tags=["runs"], responses=errors(404, 503))
    def steps(run: str, last: Annotated[int, Query(ge=1, le=MOST_STEPS)] = 40) -> SerializeAsAny[list[StepInfo]]:
        """The trainer's newest steps as logged, oldest first: phases, samples, tokens, learning."""
        return reader.steps.newest(run, last)
