"""The application with its rollout routes, for tests of what is pushed to it and read of it."""

import json
from typing import Any

import httpx

from server.api.rollouts import add_rollouts
from server.store import Store
from tests.api.test_alerts import Web as AlertWeb
from tests.push.test_pushed_targets import T0

MS = round(T0 * 1000)


class Web(AlertWeb):
    """With the rollout routes."""

    routes = (add_rollouts,)


def web(run: Any) -> Web:
    return Web(run)


def complete(name: str, **more: Any) -> dict[str, Any]:
    """A rollout from dispatch to its use at version 3."""
    return {
        "rollout_id": name, "purpose": "train", "environment": "math", "version_start": 1, "version_finish": 1,
        "token_versions": [[1, 100]], "dispatched_at": T0 - 50, "started_at": T0 - 45, "finished_at": T0 - 15,
        "scored_at": T0 - 14, "response_tokens": 100, "loss_tokens": 100, "reward": 1.0, "version_consumed": 3,
        "consumed_at": T0 - 4,
    } | more  # fmt: skip


def post(run: Any, what: str, body: Any, **kwargs: Any) -> httpx.Response:
    content = body if isinstance(body, (bytes, str)) else "\n".join(json.dumps(one) for one in body)
    return web(run)("POST", f"/api/v1/runs/run/{what}", content=content, **kwargs)


def totals(store: Store) -> dict[str, int]:
    return {one.exit: one.rollouts for one in store.rollouts.sums("run", MS - 3_600_000, MS + 60_000)}
