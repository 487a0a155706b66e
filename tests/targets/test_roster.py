"""The roster alone, where the order of answers matters: who is asked is a function, who is listed a real file."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectors.model import Limits
from server.targets import discovery
from server.targets.discovery import DETECTIONS_AT_ONCE as AT_ONCE
from server.targets.discovery import Detector, TargetDiscovery
from server.targets.lists import FileSd
from server.targets.model import Listing
from tests.targets.following import by_file, write


def test_an_instance_that_moved_is_read_at_its_new_place_before_that_said_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, answers = tmp_path / "engines.json", asyncio.Event()

    async def ask(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
        if url == "http://newer:1/metrics":
            await answers.wait()
            return "sglang"
        return "vllm"

    async def moved() -> list[list[tuple[str, str, str]]]:
        found = TargetDiscovery("run", [by_file(listed)], ask)
        write(listed, "old:1", job="rollout", instance="node-7")
        looks = [await found.look(0, patient=True)]
        write(listed, "newer:1", job="rollout", instance="node-7")
        monkeypatch.setattr(discovery, "PATIENCE_SECONDS", 0.0)
        for _ in range(1000):  # a file is read on a thread: how many looks that takes is the machine's business
            looks.append(await found.look(5.0 * len(looks)))
            if looks[-1].started:
                break
            await asyncio.sleep(0.001)
        answers.set()
        looks.append(await found.look(1e6, patient=True))
        await found.close()
        assert not any(look.gone for look in looks)
        return [[(one.name, one.url, one.collector) for one in look.started.values()] for look in looks if look.started]

    name = "rollout/node-7"
    assert asyncio.run(moved()) == [
        [(name, "http://old:1", "vllm")], [(name, "http://newer:1", "vllm")], [(name, "http://newer:1", "sglang")],
    ]  # fmt: skip


def test_a_reader_with_a_bug_stops_neither_its_targets_nor_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write(one, "h:1")
    write(two, "h:2")

    async def broken(self: FileSd, now: float) -> Listing:
        raise RuntimeError("a bug")

    async def names() -> list[str]:
        found = TargetDiscovery(
            "run", [by_file(one, "one", collector="vllm"), by_file(two, "two", collector="vllm")], _nobody
        )
        await found.look(0, patient=True)
        monkeypatch.setattr(FileSd, "targets", broken)
        write(one)
        change = await found.look(5, patient=True)
        assert not change.gone and [found.error(one) for one in found.sources] == ["internal error: RuntimeError"] * 2
        monkeypatch.undo()
        assert (await found.look(10, patient=True)).gone == ["one/h:1"]
        return [held.name for held in found.held.values()]

    assert asyncio.run(names()) == ["two/h:2"]


async def _nobody(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
    raise AssertionError("its kind is configured")


def test_few_pages_are_asked_at_once_and_each_once() -> None:
    running, most, asked = 0, 0, list[str]()

    async def ask(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        asked.append(url)
        await asyncio.sleep(0)
        running -= 1
        return "vllm"

    async def all_of_them() -> int:
        detector = Detector(ask)
        for number in range(3 * AT_ONCE):
            detector.want(str(number), f"http://h:{number}", (), 0.0)
        return len(await detector.look(0.0, None))

    assert asyncio.run(all_of_them()) == 3 * AT_ONCE
    assert most == AT_ONCE and len(set(asked)) == len(asked) == 3 * AT_ONCE
