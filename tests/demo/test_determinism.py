"""Same seed and start, same bytes: whatever the size of the advances, and however often somebody looks."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.scenarios import SCENARIOS
from tests.demo.conftest import START

MakeDemo = Callable[..., Any]


def contents(demo: Any) -> dict[str, tuple[bytes, float]]:
    """Every file but the configs, which name the ports and the folder: bytes and modification time."""
    folder = Path(str(demo.ready["run_dir"])).parent
    files = [path for path in folder.rglob("*") if path.is_file() and "configs" not in path.parts]
    return {str(path.relative_to(folder)): (path.read_bytes(), _stamp(path)) for path in files}


def _stamp(path: Path) -> float:
    return 0.0 if path.name == "truth.json" else path.stat().st_mtime


def pages(demo: Any) -> list[bytes]:
    return [demo.page(index) for index in range(len(demo.pages))]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_size_of_the_advances_does_not_matter(make_demo: MakeDemo, scenario: str) -> None:
    coarse, fine = make_demo(scenario), make_demo(scenario)
    assert coarse.advance(START + 300) == START + 300
    for step in range(1, 61):
        fine.advance(START + 5 * step)
        pages(fine)
    assert pages(coarse) == pages(fine)
    assert contents(coarse) == contents(fine)
    other = {"qwen3-235b-slime": "run/job.log", "math-sync-colocated": "run/grpo-math/qwen3-8b-sync.jsonl"}
    other |= {"glm5-easy-curriculum": "run/grpo-agents/glm5-search.jsonl"}
    assert contents(coarse)[other.get(scenario, "run/metrics.jsonl")][0]


def test_odd_advances_do_not_matter_either(make_demo: MakeDemo) -> None:
    whole, odd = make_demo("generator-bound"), make_demo("generator-bound")
    whole.advance(START + 123.456)
    for moment in (0.0, 0.001, 33.3, 33.3, 77.7, 123.456):
        odd.advance(START + moment)
    assert pages(whole) == pages(odd)
    assert contents(whole) == contents(odd)


def test_time_never_goes_back(make_demo: MakeDemo) -> None:
    demo = make_demo()
    demo.advance(START + 60)
    assert demo.advance(START + 30) == START + 60


def test_seeds_give_different_runs(make_demo: MakeDemo) -> None:
    one, two = make_demo(seed=1), make_demo(seed=2)
    for demo in (one, two):
        demo.advance(START + 120)
    assert pages(one) != pages(two)


# Of 300 s with seed 1, as they were before the demo had faults and other stacks: neither may move what was there.
DIGESTS = {
    "healthy": "e0a890b16ad64a9d91518a087506e0da50bef2934c2102a4c3d8c8792ed2c259",
    "generator-bound": "c43ca2c5a88424722dab8e2cc8f2fe16bc08f4256459d43e6ce495cba2ec717c",
    "gb300-sandbox-wall": "4583addfeef47f527091b2242c85b6559599596d58497544b3045c84edbebcc4",
}


@pytest.mark.parametrize("scenario", DIGESTS)
def test_what_a_scenario_writes_stays_as_it_was(make_demo: MakeDemo, scenario: str) -> None:
    demo, digest = make_demo(scenario), hashlib.sha256()
    demo.advance(START + 300)
    for name, (body, _) in sorted(contents(demo).items()):
        digest.update(name.encode() + body)
    for page in pages(demo):
        digest.update(page)
    assert digest.hexdigest() == DIGESTS[scenario]
