"""Same seed and start, same bytes: whatever the size of the advances, and however often somebody looks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from server.demo.process import Demo
from server.demo.scenarios import SCENARIOS
from tests.demo.conftest import START

MakeDemo = Callable[..., Demo]


def contents(demo: Demo) -> dict[str, tuple[bytes, float]]:
    """Every file but the configs, which name the ports and the folder: bytes and modification time."""
    folder = Path(str(demo.ready["run_dir"])).parent
    files = [path for path in folder.rglob("*") if path.is_file() and "configs" not in path.parts]
    return {str(path.relative_to(folder)): (path.read_bytes(), _stamp(path)) for path in files}


def _stamp(path: Path) -> float:
    return 0.0 if path.name == "truth.json" else path.stat().st_mtime


def pages(demo: Demo) -> list[bytes]:
    return [demo.page(index) for index in range(len(demo.pages))]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_size_of_the_advances_does_not_matter(make_demo: MakeDemo, scenario: str) -> None:
    coarse, fine = make_demo(scenario), make_demo(scenario)
    assert coarse.advance(START + 600) == START + 600
    for step in range(1, 121):
        fine.advance(START + 5 * step)
        pages(fine)
    assert pages(coarse) == pages(fine)
    assert contents(coarse) == contents(fine)
    assert "run/metrics.jsonl" in contents(coarse)


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
