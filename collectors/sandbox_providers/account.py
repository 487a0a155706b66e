"""What an account tells beside its sandboxes (limits, money): read seldom, and never at the listing's cost."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from collectors.model import Limits, Sample, ScrapeError, State
from collectors.sandbox_providers.listing import Tally
from collectors.transport import rest

# Limits and balances change slowly; a gauge is carried for one such interval (Collector.report_seconds).
ACCOUNT_SECONDS = 30.0


def due(state: State, begun: float) -> bool:
    """Is it time to ask again? ``begun``: seconds, where the poll has no event time. Asking counts, answered or not.

    Event time (``state["now"]``), for a replayed hour passes in seconds: a balance that is asked once in it would be
    unknown for most of it, and repeated it would seem not to fall.
    """
    now, last = state.get("now", begun), state.get("account_read")
    if last is not None and 0 <= now - last < ACCOUNT_SECONDS:
        return False
    state["account_read"] = now
    return True


async def ask(client: httpx.AsyncClient, path: str, params: rest.Params, limits: Limits, tally: Tally) -> Any:
    """The JSON at ``path``, or None where this key may not see it or it does not answer: that is told, not fatal.

    Takes at most a quarter of the poll's time.

    Raises:
        ScrapeError: ``throttled`` and ``unreachable``, which hold for the listing as well.
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
    """Used and granted of one resource; what is not known, or negative (no limit), is left out."""
    labels = (("resource", resource),)
    pairs = (("sandbox_quota_used", used), ("sandbox_quota_limit", limit))
    return [Sample(metric, value, labels) for metric, value in pairs if value is not None and value >= 0.0]


def configured(options: Mapping[str, str]) -> list[Sample]:
    """Limits from the configuration (``limit_RESOURCE``), for providers that do not tell them."""
    found = []
    for key, value in options.items():
        if key.startswith("limit_"):
            found += quota(key.removeprefix("limit_"), None, rest.number(value))
    return found
