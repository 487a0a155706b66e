"""Versions per token in engines' answers; the recorded one is of vLLM 0.29.0, paused and resumed between updates."""

import json
from typing import Any

import pytest

from collectors.formats.weight_versions import SPANS_MAX, number_of, together, token_versions
from tests.collectors._reading import TESTDATA


def span(version: Any, start: Any, end: Any) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def test_a_recorded_answer_of_vllm() -> None:
    """900 tokens: 183 by v1, 62 by v2, 655 by v3."""
    answer = json.loads((TESTDATA / "vllm" / "generate_response_weight_versions.json").read_text())
    spans = answer["choices"][0]["weight_versions"]
    assert token_versions(spans) == ((1, 183), (2, 62), (3, 655))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("v1", 1), ("12", 12), ("step-12", 12), ("step_12", 12), ("actor v3", 3), ("007", 7), (5, 5), (5.0, 5),
        ("default", None), ("v1.2", None), ("a1b2", None), ("-1", None), (-1, None), ("", None), (None, None),
        (True, None), ("9" * 16, None), (2.5, None),
    ],
)  # fmt: skip
def test_a_version_is_the_one_number_in_its_name(name: object, number: int | None) -> None:
    assert number_of(name) == number


@pytest.mark.parametrize(
    "spans",
    [
        None, [], {}, "v1", [span("default", 0, 5)], [span("1", 0, 5), span("2", 6, 9)],
        [span("1", 0, 5), span("2", 4, 9)],
        [span("1", 3, 5)], [span("1", 5, 3)], [span("1", 0, None)], [span("1", 0, 5), "x"], [span("1", 0, 0)],
        [span("1", 0, True)], [span("1", n, n + 1) for n in range(SPANS_MAX + 1)],
    ],
)  # fmt: skip
def test_what_does_not_tell_it_all_tells_nothing(spans: object) -> None:
    assert token_versions(spans) == ()


def test_neighbours_of_one_version_are_one() -> None:
    assert token_versions([span("1", 0, 5), span("1", 5, 5), span("1", 5, 9), span("2", 9, 10)]) == ((1, 9), (2, 1))
    assert together([((1, 9), (2, 1)), ((2, 4), (3, 1)), ()]) == ((1, 9), (2, 5), (3, 1))
