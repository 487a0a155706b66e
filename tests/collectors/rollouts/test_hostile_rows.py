"""Any field of a record may be anything: its neighbour is read all the same, and what is read can be stored."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.model import Limits, Rollout
from collectors.rollouts import areal_rollouts, pipeline_rl_rollouts, verifiers_rollouts
from tests.collectors.rollouts._episodes import BEGAN, episode, trace
from tests.collectors.rollouts.test_areal_rollouts import session
from tests.collectors.rollouts.test_pipeline_rl_rollouts import sample

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
GOOD = trace("good", 1.0, BEGAN)
CASES: dict[str, tuple[Any, str, Any, Any]] = {
    "verifiers": (
        verifiers_rollouts, "rollouts/step_1/train/all/traces.jsonl",
        episode("e", "g", 1, [trace("bad", 1.0, BEGAN)]), episode("e2", "g", 1, [GOOD]),
    ),
    "batch": (
        verifiers_rollouts, "rollouts/step_1/train/effective/traces.jsonl",
        episode("e", "g", 1, [trace("bad", 1.0, BEGAN)]), episode("e2", "g", 1, [GOOD]),
    ),
    "areal": (
        areal_rollouts, "session_tracer/sessions-r0.jsonl", session(3, 7, BEGAN, reason="x"), session(3, 8, BEGAN + 1),
    ),
    "pipeline": (pipeline_rl_rollouts, "streams/actor/0/0/0.jsonl", [sample(0, 0, 1.0, 0)], [sample(5, 0, 1.0, 0)]),
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a record where something may stand instead."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def damaged(row: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    row = copy.deepcopy(row)
    inner = row
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return row


def storable(one: Rollout) -> None:
    """Text on one line without NUL, bounded; numbers finite and of the right kind."""
    words = (one.rollout_id, one.group_id, one.environment, one.agent, one.error, *one.sandbox_ids)
    for text in words:
        assert text == text.encode().decode() and "\0" not in text and len(text) <= 250, text
    counts = (one.group_size, one.version_dispatched, one.version_start, one.version_finish, one.prompt_tokens,
              one.response_tokens, one.loss_tokens, one.turn_count, one.tool_calls)  # fmt: skip
    assert all(count is None or (type(count) is int and count >= 0) for count in counts), counts
    numbers = (one.reward, one.advantage, one.dispatched_at, one.started_at, one.finished_at, one.scored_at,
               one.group_complete_at)  # fmt: skip
    assert all(number is None or math.isfinite(number) for number in numbers), numbers
    assert all(math.isfinite(span.start) and (span.end is None or math.isfinite(span.end)) for span in one.spans)
    assert one.rollout_id


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_field_may_be_anything(tmp_path: Path, name: str, data: st.DataObject) -> None:
    module, file, row, good = CASES[name]
    place = data.draw(st.sampled_from(list(places(row))))
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(damaged(row, place, data.draw(JSON))) + "\n" + json.dumps(good) + "\n")
    reading = module.COLLECTOR.tail(tmp_path, {}, Limits(), path.stat().st_mtime + 100)
    assert reading.samples_scraped == 2 and reading.rollouts
    last = reading.rollouts[-1].rollout_id
    assert last == "good" or last.endswith((" session 8", "/5"))
    for one in reading.rollouts:
        storable(one)
    json.dumps(reading.cursor)
