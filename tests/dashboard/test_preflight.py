"""The cells of the tab Setup: numbers by hand, values that are missing, and names that stay text in HTML and TOML."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dashboard.pages.sources import setup as preflight_data
from dashboard.shell.page import Scope
from dashboard.widgets.status import View
from server.config.settings import parse_preflight
from server.lib.errors import Problems
from server.query.preflight import CheckInfo, PreflightInfo
from tests.dashboard import fake_preflight as fakes
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reader() -> MemoryReader:
    return fakes.reader()


def cells(reader: MemoryReader, run: str = wall.WALL) -> View:
    return preflight_data.cells(Scope(reader, run))


def rows(found: View, status: str) -> list[Any]:
    prefix = f"preflight.{status}."
    return [found[key] for key in sorted(found, key=lambda key: (len(key), key)) if key.startswith(prefix)]


def test_the_gravest_first_with_number_and_fix(reader: MemoryReader) -> None:
    found = cells(reader)
    assert (found["preflight.head"], found["preflight.s"], found["preflight.mode"]) == (
        "The plan does not fit",
        "critical",
        "ok",
    )
    assert found["preflight.text"] == "1 failed · 3 warning · 2 unknown · 6 ok"
    assert found["preflight.at"] == fakes.NOW - 60
    assert [found[f"preflight.{status}"] for status in preflight_data.GROUPS] == [
        "Does not fit · 1", "Check before launch · 3", "Unknown · 2", "OK · 6", "",
    ]  # fmt: skip
    (bad,) = rows(found, "fail")
    assert (bad["title"], bad["word"], bad["number"], bad["unit"], bad["limit"]) == (
        "Concurrent starts", "Failed", "152", "sandboxes", "limit 128",
    )  # fmt: skip
    assert bad["fix"] == "lower the create rate to 2.7 per second, or ask prime for a higher starting limit"
    assert [row["title"] for row in rows(found, "warn")] == ["Quota", "Credit", "Leftover sandboxes"]


@pytest.mark.parametrize(
    ("check", "figure"),
    [
        (CheckInfo("quota", "ok", "", value=999.0, limit=1000.0, unit="sandboxes"),
         ("999", "sandboxes", "limit 1,000")),
        (CheckInfo("credit", "warn", "", value=476.16, limit=2073.6, unit="USD"),
         ("476.16", "USD", "limit 2,073.60")),
        (CheckInfo("sandbox_ttl", "ok", "", value=7200.0, limit=1980.0, unit="seconds"), ("2", "h", "limit 33 min")),
        (CheckInfo("sandbox_ttl", "ok", "", value="unlimited", limit=1980.0, unit="seconds"),
         ("unlimited", "", "limit 33 min")),
        (CheckInfo("engines", "ok", "", value=3.0, limit=4.0, unit="engines"), ("3", "engines", "of 4")),
        (CheckInfo("create_rate", "unknown", "", value=4.0, unit="sandboxes/s"), ("4", "sandboxes/s", "")),
        (CheckInfo("images", "unknown", "", limit=5.0), ("", "", "")),
        (CheckInfo("dangling", "ok", "", value=0.0, limit=10.0, unit="sandboxes"), ("0", "sandboxes", "limit 10")),
    ],
)  # fmt: skip
def test_numbers(reader: MemoryReader, check: CheckInfo, figure: tuple[str, str, str]) -> None:
    reader.preflights[wall.WALL] = structs.replace(fakes.FOUND, checks=(check,), outcome=check.status)
    (row,) = rows(cells(reader), check.status)
    assert (row["number"], row["unit"], row["limit"]) == figure


def test_leftovers_have_their_commands_and_the_rest_is_counted(reader: MemoryReader) -> None:
    left = rows(cells(reader), "warn")[2]
    assert (len(left["commands"]), left["commands"][0]) == (20, "prime sandbox delete sbx-09000")
    assert (left["ids"], left["more"]) == ([], "and 3 more")
    # A provider without a command: then the ids stand for themselves.
    bare = structs.replace(fakes.CHECKS[6], commands=())
    reader.preflights[wall.WALL] = structs.replace(fakes.FOUND, checks=(bare,), outcome="warn")
    (left,) = rows(cells(reader), "warn")
    assert (left["commands"], left["ids"]) == ([], list(fakes.IDS))


def test_a_math_run_needs_no_sandbox(reader: MemoryReader) -> None:
    found = cells(reader, wall.MATH)
    assert (found["preflight.head"], found["preflight.s"]) == ("The plan fits", "ok")
    assert found["preflight.not_applicable"] == "Not applicable · 9"
    assert {row["summary"] for row in rows(found, "not_applicable")} == {"this run needs no sandbox"}
    reader.preflights[wall.MATH] = PreflightInfo("never", plan=fakes.EMPTY)
    assert cells(reader, wall.MATH)["preflight.text"].startswith(
        "This run uses no sandboxes: only engines, run directory and clocks"
    )


def test_what_was_never_begun_claims_nothing(reader: MemoryReader) -> None:
    found = cells(reader, fakes.NEW)
    assert (found["preflight.mode"], found["preflight.head"], found["preflight.s"], found["preflight.at"]) == (
        "none", "Not checked yet", "unknown", None,
    )  # fmt: skip
    assert (found["preflight.btn"], found["preflight.busy"]) == ("Run preflight", 0)
    assert not any(found[f"preflight.{status}"] for status in preflight_data.GROUPS)
    assert found["preflight.plan.0"] == {
        "key": "concurrency", "title": "Concurrent sandboxes", "value": "not set", "set": False,
    }  # fmt: skip


def test_a_run_that_is_not_configured_here(reader: MemoryReader) -> None:
    found = cells(reader, wall.BARE)
    assert (found["preflight.mode"], found["preflight.head"]) == ("nc", "Not configured here")
    assert not [key for key in found if key.startswith("preflight.plan")]


def test_while_it_reads_the_last_answer_stays(reader: MemoryReader) -> None:
    reader.preflights[wall.WALL] = structs.replace(fakes.FOUND, state="running", started_at=fakes.NOW - 3)
    found = cells(reader)
    assert (found["preflight.btn"], found["preflight.busy"], found["preflight.since"]) == (
        "Reading …",
        1,
        fakes.NOW - 3,
    )
    assert found["preflight.head"] == "The plan does not fit"
    broken = PreflightInfo("failed", fakes.NOW, error="it failed: OSError", plan=fakes.EMPTY)
    reader.preflights[wall.WALL] = broken
    found = cells(reader)
    assert (found["preflight.head"], found["preflight.btn"]) == ("Not checked yet", "Run again")
    assert found["preflight.text"].endswith("· it failed: OSError")


def test_the_plan_in_words(reader: MemoryReader) -> None:
    found = cells(reader)
    rows: list[Any] = [found[key] for key in found if key.startswith("preflight.plan.")]
    plan = {row["key"]: row["value"] for row in rows}
    assert plan == {
        "concurrency": "960", "create_rate": "4", "rollout_deadline": "30 min", "run_length": "24 h",
        "sandbox_ttl": "unlimited", "spinup": "not set", "price": "0.09 USD per sandbox-hour", "size": "not set",
        "limits": "starting 128", "images": "not set", "known_runs": "alice-*", "max_dangling": "10",
        "min_credit": "10 USD", "engines_later": "no",
    }  # fmt: skip


@pytest.mark.parametrize("run", ["math", "a.b", 'say "x"', "né"])
def test_the_example_is_toml_that_the_configuration_takes(run: str) -> None:
    table = tomllib.loads(preflight_data.snippet(run, fakes.EMPTY))["run"][run]["preflight"]
    problems = Problems()
    plan = parse_preflight(table, problems, "run.x.preflight")
    assert problems.messages == []
    assert (plan.concurrency, plan.rollout_deadline, plan.limits) == (
        960,
        1800.0,
        {"concurrent": 1000.0, "starting": 128.0},
    )


def test_examples_of_what_is_missing_only() -> None:
    assert (
        preflight_data.snippet("math", {**fakes.EMPTY, **fakes.PLAN, "price": None})
        == "[run.math.preflight]\nprice = 0.12\n"
    )
    assert preflight_data.snippet("math", fakes.PLAN) == ""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("give --create-rate", "set create_rate = 4 under [run.gb300-sandbox-wall.preflight]"),
        (
            "plan --concurrency and --run-length",
            'set concurrency = 960 and set run_length = "24h" under [run.gb300-sandbox-wall.preflight]',
        ),
        (
            "name what sandboxes start from: --image NAME",
            "name what sandboxes start from: set "
            'images = ["ghcr.io/me/env:3"] under [run.gb300-sandbox-wall.preflight]',
        ),
        ("state spinup under [run.NAME.preflight]", "state spinup under [run.gb300-sandbox-wall.preflight]"),
        ("add a [[run.NAME.target]] for each engine", "add a [[run.gb300-sandbox-wall.target]] for each engine"),
        ("no concurrency planned (--concurrency), 0 in use", "no concurrency planned, 0 in use"),
        ("docker rm --force x (--volumes)", "docker rm --force x (--volumes)"),
    ],
)
def test_the_page_speaks_of_the_file_and_names_the_run(reader: MemoryReader, said: str, shown: str) -> None:
    bad = CheckInfo("quota", "unknown", said, said, details=(said,))
    reader.preflights[wall.WALL] = structs.replace(fakes.FOUND, checks=(bad,), outcome="unknown")
    (row,) = rows(cells(reader), "unknown")
    assert (row["summary"], row["fix"], row["details"]) == (shown, shown, [shown])


def test_no_fix_of_the_program_speaks_the_command_line_here() -> None:
    """Whatever the checks come to say: every option the command has is a key of the plan's."""
    checks = ("checks", "quota", "sandboxes")
    source = "".join((ROOT / f"server/preflight/{name}.py").read_text("utf-8") for name in checks)
    options = set(re.findall(r"[( \"]--([a-z]+(?:-[a-z]+)*)", source)) - {"force", "namespace"}
    assert {"concurrency", "create-rate", "image"} <= options
    for option in options:
        assert "--" not in preflight_data.here(f"give --{option}", "r"), option
    assert preflight_data.here("run.NAME.target", 'a "b"') == 'run."a \\"b\\"".target'
