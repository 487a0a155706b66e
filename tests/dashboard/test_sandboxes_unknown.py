"""Sandboxes as cells where something is missing: unknown, not applicable, never answered, watched too late."""

import json
import tomllib

import pytest
from msgspec import structs

from dashboard.pages.sandboxes import data as sandboxes_data
from server.query.types import TargetTrust
from tests.dashboard import fake
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.test_sandboxes import cells, empty


@pytest.fixture
def reader() -> MemoryReader:
    return wall.reader(600)


def test_a_run_that_needs_none(reader: MemoryReader) -> None:
    found = cells(reader, wall.MATH)
    assert (found["sandboxes.mode"], found["head.sandboxes.before"]) == ("na", "This run uses no sandboxes")
    assert found["head.sandboxes.text"] == "Not applicable: this task uses no sandbox."
    assert not [key for key in found if key.startswith(("card.", "spin_ups.", "pending.", "sandboxes.funnel"))]


def test_nobody_tells_of_any(reader: MemoryReader) -> None:
    found = cells(reader, wall.BARE)
    assert (found["sandboxes.mode"], found["head.sandboxes.before"]) == ("none", "No sandbox provider is configured")
    assert found["sandboxes.toml"].startswith("[[run.no-provider.target]]\ncollector = ")


@pytest.mark.parametrize(
    ("run", "line"),
    [("a.b", '[[run."a.b".target]]'), ('say "x"', '[[run."say \\"x\\"".target]]'), ("né", '[[run."né".target]]')],
)
def test_snippet_is_toml_whatever_a_run_is_called(run: str, line: str) -> None:
    assert sandboxes_data.snippet(run).splitlines()[0] == line
    found = tomllib.loads(sandboxes_data.snippet(run))["run"][run]["target"][0]
    assert found == {"collector": "prime_sandboxes", "key_env": "PRIME_API_KEY"}


def test_a_provider_that_never_answered_is_no_missing_provider() -> None:
    made = empty()
    made.silence(wall.WALL, fake.signal("sandboxes", state="unknown", why="no provider has answered for 310 s"))
    made.set_targets(wall.WALL, fake.target("prime", "sandbox", "prime_sandboxes", up=False, error="401"))
    found = cells(made)
    assert (found["sandboxes.mode"], found["head.sandboxes.before"], found["head.sandboxes.state"]) == (
        "ok",
        "No provider has answered for 310 s",
        "unknown",
    )
    # Absent is never zero.
    assert (found["card.sb_failed.figure"], found["card.sb_failed.state"]) == ("–", "unknown")
    none = {
        key: found[key] for key in ("pending.none", "dangling.none", "failure_causes.none", "sandboxes.funnel.none")
    }
    assert none == {
        "pending.none": "No data on pending sandboxes.",
        "dangling.none": "No data on dangling sandboxes.",
        "failure_causes.none": "No failure data.",
        "sandboxes.funnel.none": "No sandbox of this run reported yet.",
    }


NEVER = structs.replace(fake.target("prime_sandboxes", "sandbox", "prime_sandboxes", up=False), age_seconds=None)
COUNTS = "counts sandbox_failed, which no target reports yet"


@pytest.mark.parametrize(
    ("targets", "lifecycle", "head"),
    [
        ((structs.replace(NEVER, error="ConnectError"),), "running", "prime_sandboxes has not answered yet"),
        ((structs.replace(NEVER, error="ConnectError"),), "crashed", "prime_sandboxes never answered"),
        (
            (structs.replace(NEVER, error="ConnectError"), structs.replace(NEVER, target="e2b")),
            "running",
            "None of 2 sandbox targets has answered yet",
        ),
    ],
)
def test_a_provider_that_is_configured_is_no_missing_one(
    targets: tuple[TargetTrust, ...], lifecycle: str, head: str
) -> None:
    made = empty(lifecycle)
    made.silence(wall.WALL, fake.signal("sandboxes", state="unknown", why=wall.NOT_READ))
    made.silence(wall.WALL, fake.signal("sandbox_failures_total", state="unknown", why=COUNTS))
    made.set_targets(wall.WALL, *targets)
    found = cells(made)
    # Nothing was known last.
    assert (found["head.sandboxes.before"], found["head.sandboxes.text"], found["sandboxes.mode"]) == (
        head,
        "ConnectError",
        "ok",
    )
    notes = {found[f"card.{card.key}.note"] for card in sandboxes_data.CARDS}
    tips = {found[f"card.{card.key}.why"] for card in sandboxes_data.CARDS}
    assert (notes, tips, found["chart.boxes.why"]) == ({head}, {f"{head}: ConnectError"}, f"{head}: ConnectError")
    assert "provider is read" not in json.dumps(found) and COUNTS not in json.dumps(found)
    assert found["quotas.none"] == f"{head}."


def test_one_that_answered_once_speaks_for_itself() -> None:
    made = empty()
    made.silence(wall.WALL, fake.signal("sandboxes", state="unknown", why="no provider has answered for 310 s"))
    made.silence(wall.WALL, fake.signal("sandbox_failures_total", state="unknown", why=COUNTS))
    made.set_targets(
        wall.WALL, structs.replace(NEVER, error="401"), fake.target("e2b", "sandbox", "e2b", up=False, error="503")
    )
    found = cells(made)
    assert (found["head.sandboxes.before"], found["head.sandboxes.text"]) == ("No provider has answered for 310 s", "")
    # Names of our own tables help nobody.
    assert COUNTS not in json.dumps(found)
    assert found["card.sb_failed.note"] == found["card.sb_failed.why"] == "no sandbox of this run reported yet"
    made.put_boxes(wall.WALL, wall.ready(1, 60, 20))
    assert cells(made)["head.sandboxes.text"] == "The last known values are below."


def test_no_share_of_what_had_ended_before_anybody_watched(reader: MemoryReader) -> None:
    assert cells(reader)["sandboxes.funnel.shares"] == 1
    reader.met_ended = 812
    found = cells(reader)
    assert (found["card.sb_failed.figure"], found["sandboxes.funnel.shares"]) == ("51", 0)
    assert found["card.sb_failed.note"] == "no share: 812 ended before Rollscope started"
    assert found["sandboxes.funnel.n"].startswith(
        "812 ended before Rollscope started and others may no longer be listed"
    )


def test_nobody_told_a_start() -> None:
    made = empty()
    made.put_boxes(wall.WALL, wall.box(1, "queued", 60), wall.box(2, "queued", 60))
    found = cells(made)
    assert found["sandboxes.funnel"][:3] == [
        {"stage": "requested", "count": 2, "share": 1.0},
        {"stage": "started", "count": None, "share": 0.0},
        {"stage": "ready", "count": 0, "share": 0.0},
    ]
    assert found["sandboxes.funnel.n"] == "No start reported yet. First exec: not reported by provider."


def test_a_line_that_is_missing_says_why(reader: MemoryReader) -> None:
    assert "without gradient" not in cells(reader)["sandboxes.infra"]
    made = wall.reader(600)
    why = "no step for 3 h: look at the trainer"
    unknown = wall.signal_of("zero_advantage_ratio", "ratio", "unknown", basis="completed")
    made.silence(wall.WALL, structs.replace(unknown, value=None, why=why))
    assert cells(made)["sandboxes.infra"].endswith(" Groups without gradient: no step for 3 h.")


def test_advice_for_the_command_line_is_not_for_the_page() -> None:
    made = empty()
    made.put_boxes(wall.WALL, wall.ready(1, 60, 20))
    why = "no provider reports its quota: state limits with `rollscope preflight`"
    made.silence(wall.WALL, fake.signal("sandbox_quota_used_ratio", state="unknown", why=why))
    assert cells(made)["quotas.none"] == "No provider reports its quota."


def test_known_zeros_are_zeros() -> None:
    made = empty()
    made.put_boxes(wall.WALL, wall.ready(1, 60, 20))
    made.append(wall.WALL, wall.signal_of("sandboxes", "sandboxes", state="running"), [(wall.NOW, 1.0)])
    made.append(wall.WALL, wall.signal_of("sandboxes_dangling", "sandboxes"), [(wall.NOW, 0.0)])
    found = cells(made)
    assert (found["card.sb_failed.figure"], found["card.sb_dangling.figure"]) == ("0", "0")
    assert (found["failure_causes.none"], found["dangling.none"], found["pending.none"]) == (
        "No sandbox has failed.", "None.", "Nothing is pending.",
    )  # fmt: skip


def test_of_a_run_that_is_over(reader: MemoryReader) -> None:
    reader.change(wall.WALL, lifecycle="finished")
    found = cells(reader)
    assert found["head.sandboxes.figure"] + found["head.sandboxes.after"] == "780 sandboxes were running at the end"
