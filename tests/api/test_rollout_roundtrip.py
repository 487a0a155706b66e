"""Any record that is pushed comes back from the API field by field, whatever died in between. Both databases."""

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs

from collectors.model import Exit, Purpose, Rollout, SpanKind
from server.push.records import FIELDS, rollout
from server.rollouts.merge import TIMES, cleaned
from server.store import Store
from tests.api.rollouts_web import web
from tests.ingest import roundtrip_child
from tests.ingest.roundtrip_child import BODY, T0, offer
from tests.killed import run_and_kill
from tests.push.test_pushed_targets import lived, waiting

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

RECORDS, KILLS = 150, 3


def any_record(number: int) -> dict[str, Any]:
    """A record with a third of all fields, each with any value within its bounds."""
    rng = random.Random(number)

    def whole(most: int = 2**53) -> int:
        return rng.choice((0, 1, rng.randrange(100), rng.randrange(most), most))

    def time() -> float:
        return T0 - rng.randrange(900_000) / 1000

    def number_() -> float:
        return rng.choice((0.0, -0.5, 1e-9, 1e300, rng.uniform(-10, 10)))

    def text() -> str:
        return rng.choice(("", "math", "a b/c?d#e", "naïve 中文 \U0001f600", "x" * 200, '"quoted"\n'))

    def flag() -> bool:
        return rng.random() < 0.5

    def turn() -> dict[str, Any]:
        every = {
            "version": whole(), "tool_calls": whole(10**7), "mutated": flag(), "reset": flag(), "sandbox_id": text()
        }  # fmt: skip
        return {name: value for name, value in every.items() if flag()}

    def span() -> dict[str, Any]:
        start = time()
        every = {"end": start + rng.randrange(9), "version": whole(), "detail": text()}
        return {"kind": rng.choice(get_args(SpanKind)), "start": start} | {k: v for k, v in every.items() if flag()}

    def use() -> dict[str, Any]:
        return {"version": whole(), "at": time()}

    makers: dict[str, Any] = dict.fromkeys(TIMES, time) | dict.fromkeys(
        ("attempt", "version_dispatched", "version_start", "version_finish"), whole
    )
    makers |= dict.fromkeys(("prompt_tokens", "response_tokens", "loss_tokens"), lambda: whole(10**9))
    makers |= dict.fromkeys(("tool_calls", "turn_count"), lambda: whole(10**7))
    makers |= dict.fromkeys(("environment", "agent", "difficulty", "engine", "error"), text)
    makers |= dict.fromkeys(("reward", "max_reward", "advantage"), number_)
    makers |= dict.fromkeys(("solved", "truncated", "sampled"), flag)
    makers |= {
        "group_id": lambda: f"g{whole(9)}", "group_size": lambda: max(1, whole()), "purpose": lambda: pick(Purpose),
        "exit": lambda: pick(Exit), "token_versions": lambda: [[whole(), whole(10**9)] for _ in range(3)],
        "turns": lambda: [turn() for _ in range(rng.randrange(4))], "spans": lambda: [span() for _ in range(2)],
        "sandbox_ids": lambda: sorted({f"box-{number}-{whole(9)}" for _ in range(2)}),
        "consumptions": lambda: [use()], "incarnation": lambda: 0,
    }  # fmt: skip
    short = {"version_consumed", "consumed_at", "weight_versions", "rollout_id"}
    assert makers.keys() | short == set(FIELDS), "every field that can be pushed"

    def pick(kind: Any) -> str:
        return rng.choice(get_args(kind))

    return {"rollout_id": f"r-{number}"} | {name: make() for name, make in makers.items() if rng.random() < 0.33}


def answered(detail: dict[str, Any]) -> dict[str, Any]:
    """The record that an answer describes."""
    return {name: detail["rollout"][name] for name in Rollout.__struct_fields__}


def expected(record: Rollout, detail: dict[str, Any]) -> dict[str, Any]:
    """The record as the API spells it: nothing is left out but the details of a rollout that keeps none."""
    found: dict[str, Any] = json.loads(json.dumps(structs.asdict(record), default=structs.asdict))
    if not detail["rollout"]["detailed"]:
        found |= {"turns": [], "spans": []}
    return found


@pytest.mark.crash
def test_any_record_comes_back_equal_with_processes_killed_in_between(store_url: str, tmp_path: Path) -> None:
    lines = [json.dumps(any_record(n)).encode() for n in range(RECORDS)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    rng = random.Random(5)
    for _ in range(KILLS):
        spin = rng.randrange(3_000_000)
        run_and_kill(roundtrip_child.main, store_url, str(path), lines=rng.randrange(1, RECORDS // BODY), spin=spin)
    store = Store.open(store_url)
    for at in range(0, RECORDS, BODY):
        offer(store, lines[at : at + BODY])
    with lived(store) as run:
        run.at(0, 5)
        assert waiting(store) == 0
        ask = web(run)
        for line in lines:
            record = cleaned(rollout(line, T0))
            answer = ask("GET", f"/api/v1/runs/run/rollouts/{record.rollout_id}")
            assert answer.status_code == 200, answer.text
            found, wanted = answered(answer.json()), expected(record, answer.json())
            odd = {name: (found.get(name), wanted[name]) for name in wanted if found[name] != wanted[name]}
            assert not odd, (record.rollout_id, odd)
    store.close()
