"""What every collector gets for free by being found: names, facts, bounds, errors that leak nothing.

Garbage raises `ScrapeError` and nothing else; a tail may instead count what it refuses.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import collectors
from collectors.catalog import METRICS
from collectors.model import FACTS, Collector, Limits, Reading, ScrapeError
from tests.collectors._reading import TESTDATA

SECRET = "sekret-token"
ALL = sorted(collectors.load().values(), key=lambda collector: collector.name)
PARSERS = [collector for collector in ALL if collector.parse is not None]
POLLERS = [collector for collector in ALL if collector.poll is not None]
TAILS = [collector for collector in ALL if collector.tail is not None]
# What a user has to configure first recognises nothing by itself.
KNOWING = [collector for collector in TAILS if collector.configured is None]

# A sixteenth of the real limits, and bodies above them a sixteenth as large: what is refused is refused the same way.
SMALL = Limits(body_bytes=1 << 20, line_bytes=256 << 10, samples=12_500, tail_bytes=512 << 10)
BAD_BODIES = {
    "empty": b"",
    "blank": b"\n \n",
    "html": b"<html><title>sekret-token</title></html>",
    "json": b'{"detail": "sekret-token"}',
    "binary": bytes(range(256)) * 64,
    "text": b"sekret-token is no metric of ours at all\n",
    "nested": b"[" * 100_000,
    "too large": (b"# sekret-token " * 20 + b"\n") * 6_250,
    "too many samples": b'vllm:a{engine="0"} 1\n' * 15_625,
    "a long line": b'a{x="' + b"y" * (320 << 10) + b'"} 1\n',
}
BAD_FILES = {key: body for key, body in BAD_BODIES.items() if key != "too many samples"}


def ids(found: list[Collector]) -> list[str]:
    return [collector.name for collector in found]


def check(reading: Reading) -> None:
    """Only catalogue names with their kinds, declared facts, sorted labels, JSON-able cursors."""
    for sample in reading.samples:
        assert METRICS[sample.metric].kind != "histogram", sample.metric
        assert METRICS[sample.metric].reduction != "per_step" or (sample.step is not None and sample.axis), sample
        assert list(sample.labels) == sorted(sample.labels)
        assert not {"run", "actor", "instance", "target"} & {name for name, _ in sample.labels}
    for histogram in reading.histograms:
        assert METRICS[histogram.metric].kind == "histogram", histogram.metric
        assert len(histogram.counts) == len(histogram.edges) + 1
        assert list(histogram.edges) == sorted(histogram.edges)
    assert set(reading.facts) <= set(FACTS)
    assert len({event.key for event in reading.events}) == len(reading.events)
    json.dumps(reading.cursor)


def recorded(collector: Collector) -> list[Path]:
    return sorted((TESTDATA / collector.name).glob("**/*.prom"))


def runs(collector: Collector) -> list[Path]:
    return sorted(path for path in (TESTDATA / collector.name).glob("*") if path.is_dir())


@pytest.mark.parametrize("collector", ALL, ids=ids(ALL))
def test_it_describes_itself(collector: Collector) -> None:
    assert collector.reads and collector.versions
    assert collector.parse or collector.tail or collector.poll
    assert (collector.parse is None) == (collector.matches_page is None)
    assert (collector.tail is None) == (collector.matches_path is None)


@pytest.mark.parametrize("collector", PARSERS, ids=ids(PARSERS))
def test_recorded_pages_keep_the_contract(collector: Collector) -> None:
    assert recorded(collector), "a collector needs a recorded body"
    for path in recorded(collector):
        body = path.read_bytes()
        assert collector.matches_page(body)
        reading = collector.parse(body, {}, Limits())
        check(reading)
        assert reading.samples and reading.samples_scraped > len(reading.samples) / 2


@pytest.mark.parametrize("collector", KNOWING, ids=ids(KNOWING))
def test_recorded_runs_keep_the_contract(collector: Collector) -> None:
    assert runs(collector), "a collector needs a recorded run"
    for path in runs(collector):
        assert collector.matches_path(path)
        reading = collector.tail(path, {}, Limits(), 1_000.0)
        check(reading)
        assert (reading.samples or reading.rollouts) and reading.cursor is not None
        again = collector.tail(path, reading.cursor, Limits(), 1_000.0)
        assert again.samples == () and again.rollouts == ()


def refuses(call: Callable[[], Reading]) -> None:
    with pytest.raises(ScrapeError) as caught:
        call()
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("collector", PARSERS, ids=ids(PARSERS))
def test_bad_pages_are_scrape_errors(collector: Collector, name: str) -> None:
    refuses(lambda: collector.parse(BAD_BODIES[name], {}, SMALL))
    assert not collector.matches_page(BAD_BODIES[name]) or name == "too many samples"


@pytest.mark.parametrize("collector", PARSERS, ids=ids(PARSERS))
def test_truncated_pages_are_scrape_errors(collector: Collector) -> None:
    body = recorded(collector)[0].read_bytes()
    for cut in range(1, len(body) - 1, len(body) // 23):
        part = body[:cut]
        if not part.endswith(b"\n"):
            refuses(lambda part=part: collector.parse(part, {}, Limits()))


@pytest.mark.parametrize("status", [200, 302, 401, 404, 500])
@pytest.mark.parametrize("collector", POLLERS, ids=ids(POLLERS))
def test_polls_leak_no_secret(collector: Collector, status: int) -> None:
    async def app(scope, receive, send) -> None:
        headers = [(b"location", b"http://other/?sekret-token"), (b"x-key", b"sekret-token")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"sekret-token sekret-token\n"})

    async def run() -> Reading:
        base = f"http://user:{SECRET}@engine:8000/{SECRET}"
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(
            base_url=base, headers=headers, params={"k": SECRET}, transport=httpx.ASGITransport(app)
        ) as client:
            return await collector.poll(client, {}, Limits())

    refuses(lambda: asyncio.run(run()))


@pytest.mark.parametrize("collector", TAILS, ids=ids(TAILS))
def test_what_is_no_run_is_refused(collector: Collector, tmp_path: Path) -> None:
    folder = tmp_path / SECRET
    folder.mkdir()
    (folder / "readme.md").write_text(SECRET)
    (folder / "other.db").write_bytes(b"SQLite format 3\0" + bytes(500))
    with pytest.raises(ScrapeError) as caught:
        collector.tail(folder, {}, Limits(), 1_000.0)
    assert caught.value.kind == "not_a_run"
    assert "looked for" in str(caught.value)
    assert collector.matches_path(folder) is None
    assert collector.matches_path(folder / "readme.md") is None
    assert collector.matches_path(folder / "absent") is None


@pytest.mark.parametrize("collector", TAILS, ids=ids(TAILS))
def test_a_path_the_system_refuses_is_missing(collector: Collector, tmp_path: Path) -> None:
    """Any OSError will do (a name too long here; for users a folder that may not be entered)."""
    path = tmp_path / ("x" * 300)
    assert collector.matches_path(path) is None
    with pytest.raises(ScrapeError) as caught:
        collector.tail(path, {}, Limits(), 1_000.0)
    assert caught.value.kind == "missing"


def damaged(source: Path, target: Path, damage: Callable[[bytes], bytes]) -> Iterator[Path]:
    """Copies of a run with one file damaged each."""
    files = [path.relative_to(source) for path in source.glob("**/*") if path.is_file()]
    for index, file in enumerate(files):
        copy = target / str(index)
        shutil.copytree(source, copy)
        (copy / file).write_bytes(damage((copy / file).read_bytes()))
        yield copy
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", [*BAD_FILES, "cut", "cut short"])
@pytest.mark.parametrize("collector", TAILS, ids=ids(TAILS))
def test_damaged_runs_are_scrape_errors_or_counted(collector: Collector, name: str, tmp_path: Path) -> None:
    cuts = {"cut": lambda data: data[: len(data) // 2 + 7], "cut short": lambda data: data[:9]}
    damage = cuts.get(name, lambda _: BAD_FILES[name])
    for run in damaged(runs(collector)[0], tmp_path, damage):
        collector.matches_path(run)
        try:
            reading = collector.tail(run, {}, SMALL, 1_000.0)
        except ScrapeError as error:
            assert SECRET not in str(error)
        else:
            check(reading)
            assert SECRET not in reading.why_dropped


@pytest.mark.parametrize("collector", TAILS, ids=ids(TAILS))
def test_a_tail_stays_within_its_rows_and_says_more(collector: Collector) -> None:
    reading = collector.tail(runs(collector)[0], {}, Limits(tail_rows=10), 1_000.0)
    assert reading.more
    assert reading.samples_scraped <= 10
