"""HTTP: what would become of a run if it were changed."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from pydantic import SerializeAsAny

from server.api.responses import errors
from server.query import Reader
from server.query.what_if import MOST, Changes, OutOfRange, WhatIfEstimate, what_if_answer


def _within(name: str, description: str) -> Any:
    low, high = MOST[name]
    return Query(ge=low, le=high, allow_inf_nan=False, description=f"{description}; {low:g} to {high:g}")


def add_what_if(api: FastAPI, reader: Reader) -> None:
    """`GET /api/v1/runs/{run}/what-if`."""

    @api.get("/api/v1/runs/{run}/what-if", tags=["runs"], responses=errors(404, 422, 503))
    def what_if(
        request: Request,
        run: str,
        move_gpus: Annotated[
            int, _within("move_gpus", "GPUs from the trainer to the generator, or back if negative")
        ] = 0,
        add_engines: Annotated[int, _within("add_engines", "engines on additional GPUs; negative: removed")] = 0,
        concurrency: Annotated[int | None, _within("concurrency", "rollouts in flight")] = None,
        oversampling: Annotated[float | None, _within("oversampling", "rollouts started per rollout kept")] = None,
        group_size: Annotated[int | None, _within("group_size", "rollouts per group")] = None,
        max_response_tokens: Annotated[int | None, _within("max_response_tokens", "length cap of responses")] = None,
        max_staleness: Annotated[int | None, _within("max_staleness", "the staleness bound, in versions")] = None,
        zero_advantage: Annotated[float | None, _within("zero_advantage", "zero-advantage share: 0.4 is 40 %")] = None,
    ) -> SerializeAsAny[WhatIfEstimate]:
        """An estimate from the verdict's throughput model: `now` and `then`, with assumptions and missing inputs.

        Omitted parameters keep today's value. `value` is null if an input is missing (`why` names it); `bound` marks a
        lower or upper bound.
        """
        _check_query(request.query_params)
        changes = Changes(
            move_gpus, add_engines, group_size, oversampling, concurrency, max_response_tokens, max_staleness,
            zero_advantage,
        )  # fmt: skip
        try:
            return what_if_answer(reader.what_if(run, changes))
        except OutOfRange as error:
            raise HTTPException(422, str(error)) from None


def _check_query(query: Mapping[str, str]) -> None:
    """A misspelt change would be answered with today's numbers."""
    if unknown := set(query) - set(MOST):
        raise HTTPException(422, f"unknown parameter {min(unknown)[:40]!r}; there are {', '.join(MOST)}")
