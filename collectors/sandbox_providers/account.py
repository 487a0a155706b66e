"""Reads limits and balance of an account, at a lower rate than the listing and without delaying it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from collectors.model import Limits, Sample, ScrapeError, State
from collectors.sandbox_providers.listing import Tally
from collectors.transport import rest

# Interval of the requests: limits and balances change slowly. A gauge holds that long (Collector.report_seconds).
ACCOUNT_SECONDS = 30.0


def due(state: State, begun: float) -> bool:
    """Is the next request due? If so it counts as sent. ``begun``: monotonic seconds, used without an event time.

    The interval is in event time (``state["now"]``), because a replayed hour passes in seconds and needs all its
    balances.
    """
    now, last = state.get("now", begun), state.get("account_read")
    if last is not None and 0 <= now - last < ACCOUNT_SECONDS:
        return False
    state["account_read"] = now
    return True


async def fetch(client: httpx.AsyncClient, path: str, params: rest.Params, limits: Limits, tally: Tally) -> Any:
    """The JSON at ``path``; None, and a gap, if the key has no access to it or there is no answer.

    Takes at most a quarter of the poll's time.

    Raises:
        ScrapeError: ``throttled`` and ``unreachable``, because the listing would fail with them, too.
    """
    try:
        quarter = replace(limits, timeout_seconds=limits.timeout_seconds / 4.0)
        return (await rest.get_json(client, path, params, quarter)).json
    except ScrapeError as error:
        if error.kind in ("throttled", "unreachable"):
            raise
        tally.gap(f"{path.rsplit('/', 1)[-1]}: {error}")
        return None


def quota(resource: str, used: float | None, limit: float | None) -> list[Sample]:
    """Used and granted amount of a resource. Unknown and negative values (no limit) are left out."""
    labels = (("resource", resource),)
    pairs = (("sandbox_quota_used", used), ("sandbox_quota_limit", limit))
    return [Sample(metric, value, labels) for metric, value in pairs if value is not None and value >= 0.0]


def configured(options: Mapping[str, str]) -> list[Sample]:
    """Limits from the configuration (``limit_RESOURCE``), for providers that do not report them."""
    samples = []
    for key, value in options.items():
        if key.startswith("limit_"):
            samples += quota(key.removeprefix("limit_"), None, rest.number(value))
    return samples
