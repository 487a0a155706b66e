"""The list of targets: who is gone is not down."""

from typing import Any

from msgspec import structs

from dashboard.pages.sources.trust import trust
from server.query.types import Status, TargetTrust
from server.verdict.model import Verdict

NONE = Verdict("unknown")

NOW = 1_800_000_000.0
ENGINE = TargetTrust("rollout/n:1", "run", "vllm", "generator", True, 3.0, "", 0.1, 9, 0, {}, "engines", "rollout")
GONE = structs.replace(
    ENGINE, target="rollout/n:2", up=False, error="engines no longer lists it", gone_since=NOW - 3600
)
DOWN = structs.replace(ENGINE, target="mine", up=False, error="HTTP 500", source="", job="")


def status(*targets: TargetTrust) -> Status:
    here = tuple(target for target in targets if target.gone_since is None)
    gone = tuple(target for target in targets if target.gone_since is not None)
    return Status("run", "", "", "running", NOW, NONE, {}, (), here, {}, gone=gone)


def test_who_is_gone_comes_last_says_since_when_and_is_not_counted() -> None:
    cells = trust(status(GONE, ENGINE, DOWN))
    rows: list[Any] = [cells[f"t.{number}"] for number in range(3)]
    assert [(row["target"], row["kind"], row["state"], row["error"]) for row in rows] == [
        ("mine", "vllm", "down", "HTTP 500"),
        ("rollout/n:1", "vllm (rollout, from engines)", "up", ""),
        (
            "rollout/n:2", "vllm (rollout, from engines)", "gone",
            "gone since 07:00 UTC: engines no longer lists it",
        ),
    ]  # fmt: skip
    assert (cells["t.sum"], cells["t.s"]) == ("1 of 2 up, 1 gone", "watch")
    assert trust(status(GONE))["t.s"] == "unknown"


def test_targets_stand_in_the_order_in_which_one_counts() -> None:
    names = [f"engine-{number}" for number in (1, 10, 11, 2, 100, 9)]
    cells = trust(
        status(*(structs.replace(ENGINE, target=name) for name in names), structs.replace(ENGINE, target="alone"))
    )
    shown = [cells[f"t.{number}"]["target"] for number in range(7)]  # type: ignore[index, call-overload]
    assert shown == ["alone", "engine-1", "engine-2", "engine-9", "engine-10", "engine-11", "engine-100"]
