"""``[run.NAME.preflight]``: what it takes, and every refusal with its key."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from server.config.settings import PREFLIGHT_KEYS as KEYS
from server.config.settings import parse_preflight
from server.lib.errors import Problems
from server.preflight.checks import judge
from server.preflight.model import RESOURCES, PreflightPlan
from tests.preflight.support import inputs

WHERE = "run.math.preflight"
FULL = """
concurrency = 960
create_rate = 4
rollout_deadline = "30m"
run_length = "24h"
images = ["python:3.12"]
limits = { concurrent = 1000, starting = 128, creates_per_second = 5 }
price = 0.12
sandbox_ttl = "1h30m"
spinup = 45
size = { cpu = 2, memory_gb = 4.5 }
known_runs = ["alice-*"]
max_dangling = 0
min_credit = 0
engines_later = true
"""


def parsed(text: str) -> tuple[PreflightPlan, list[str]]:
    problems = Problems()
    return parse_preflight(tomllib.loads(text), problems, WHERE), problems.messages


def test_every_key() -> None:
    plan, problems = parsed(FULL)
    assert problems == []
    assert set(tomllib.loads(FULL)) == KEYS
    assert plan == PreflightPlan(
        960, 4.0, 1800.0, 86400.0, ("python:3.12",),
        {"concurrent": 1000.0, "starting": 128.0, "creates_per_second": 5.0},
        0.12, 5400.0, 45.0, {"cpu": 2.0, "memory_gb": 4.5}, ("alice-*",), 0, 0.0, True,
    )  # fmt: skip


def test_the_page_names_every_key_check_and_limit() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/preflight.md").read_text("utf-8")
    assert set(re.findall(r"^(\w+) = ", page, re.MULTILINE)) == KEYS
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [one.name for one in judge(inputs())]
    assert all(f"`{name}`" in page for name in RESOURCES)


def test_the_page_s_example_is_a_configuration() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/preflight.md").read_text("utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    problems = Problems()
    plan = parse_preflight(tomllib.loads(example)["run"]["math"]["preflight"], problems, WHERE)
    assert (problems.messages, plan.concurrency, plan.sandbox_ttl) == ([], 960, 7200.0)


def test_nothing_said_is_nothing_planned() -> None:
    assert parsed("") == (PreflightPlan(), [])


def test_a_sandbox_may_live_for_ever() -> None:
    assert parsed('sandbox_ttl = "unlimited"')[0].sandbox_ttl == math.inf


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("concurency = 5", "concurency: unknown key; did you mean concurrency?"),
        ("concurrency = 0", "concurrency: must be at least 1"),
        ("concurrency = 1.5", "concurrency: must be an integer, is a number"),
        ("create_rate = -1", "create_rate: must be above 0"),
        ("create_rate = inf", "create_rate: must be above 0"),
        ("create_rate = true", "create_rate: must be a number, is a boolean"),
        ('rollout_deadline = "soon"', "rollout_deadline: 'soon' is not a duration"),
        ("run_length = 0", "run_length: must be above 0"),
        ('sandbox_ttl = "for ever"', "sandbox_ttl: 'for ever' is not a duration"),
        ('images = "python"', "images: must be a list, is a string"),
        ("images = [1]", "images: must be a list of strings"),
        ("limits = { seats = 5 }", "limits.seats: unknown key; known: concurrent, "),
        ("limits = { concurrent = -5 }", "limits.concurrent: must be at least 0"),
        ("limits = { concurrent = nan }", "limits.concurrent: must be at least 0"),
        ("size = { starting = 5 }", "size.starting: unknown key; known: cpu, "),
        ("max_dangling = -1", "max_dangling: must be at least 0"),
        ('engines_later = "yes"', "engines_later: must be a boolean, is a string"),
    ],
)
def test_refusals(line: str, problem: str) -> None:
    _, found = parsed(line)
    assert len(found) == 1
    wanted = f"{WHERE}.{problem}"
    # Lists of known keys are sorted; the first is enough.
    assert found[0].startswith(wanted) or (found[0].split("known:")[0] == wanted.split("known:")[0])


def test_all_problems_at_once() -> None:
    assert len(parsed("concurrency = 0\nprice = 0\nx = 1")[1]) == 3


def test_it_must_be_a_table() -> None:
    problems = Problems()
    wrong: Any = 5
    assert parse_preflight(wrong, problems, WHERE) == PreflightPlan()
    assert problems.messages == [f"{WHERE}: must be a table: [run.NAME.preflight]"]


def test_the_command_line_goes_over_the_file() -> None:
    plan, _ = parsed(FULL)
    both = PreflightPlan(concurrency=96, images=("new",)).over(plan)
    assert (both.concurrency, both.images) == (96, ("new",))
    assert (both.create_rate, both.price, both.max_dangling) == (4.0, 0.12, 0)
