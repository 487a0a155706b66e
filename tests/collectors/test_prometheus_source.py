"""An existing store as a source: through a real Prometheus the engines' own numbers, and every way it can mislead."""

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from collectors.generators import prometheus, sglang, vllm
from collectors.model import Histogram, Labels, Limits, Reading, Sample, ScrapeError
from tests.collectors._promql_store import NOW, Row, Store, engine
from tests.collectors._reading import TESTDATA, value

VLLM = sorted((TESTDATA / "vllm" / "default").glob("*_load.prom"))
SGLANG = TESTDATA / "sglang" / "driven" / "metrics_1795248877036_load.prom"
E0 = (("engine", "0"), ("replica", "e0:8000"))


# ---- a real one


def exposed(page: Path, at: float, underscores: bool = False, **target: str) -> str:
    """A page as a scrape of a target at a time leaves it: its samples with the target's labels and the time."""
    own = ",".join(f'{name}="{text}"' for name, text in target.items())
    lines = [line for line in page.read_text().splitlines() if line and not line.startswith("#")]
    return "".join(_stored(line, own, at, underscores) for line in lines) + f"up{{{own}}} 1 {at:.3f}\n"


def _stored(line: str, own: str, at: float, underscores: bool) -> str:
    series, _, number = line.rpartition(" ")
    name, _, labels = series.partition("{")
    name = name.replace(":", "_") if underscores else name
    inside = ",".join(part for part in (labels.rstrip("}"), own) if part)
    return f"{name}{{{inside}}} {number} {at:.3f}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, float]]:
    """URL of a Prometheus over a database of scrapes, and the time of the last."""
    folder, at = tmp_path_factory.mktemp("prometheus"), float(int(time.time()))
    down = f'up{{instance="e5:8000",job="vllm"}} 0 {at:.3f}\n'
    pages = (
        exposed(VLLM[0], at - 20, instance="e0:8000", job="vllm", prometheus_replica="a"),
        exposed(VLLM[1], at - 5, instance="e0:8000", job="vllm", prometheus_replica="b"),
        exposed(VLLM[2], at - 5, instance="e1:8000", job="vllm", pod="p1"),
        exposed(VLLM[2], at - 5, instance="e1:8000", job="pods", pod="p1"),  # the same engine by a second job
        exposed(VLLM[3], at - 5, instance="e1:8000", job="vllm", cluster="west"),  # another of the same address
        exposed(SGLANG, at - 5, underscores=True, instance="e3:30000", job="sglang"),
        exposed(VLLM[0], at - 600, instance="e4:8000", job="vllm"),  # gone, and within the lookback
        exposed(VLLM[0], at - 5, instance="e5:8000", job="vllm").rpartition("up{")[0] + down,
        exposed(VLLM[0], at - 5, instance="e6:8000", job="other"),
    )
    (folder / "scrapes.om").write_text("".join(pages) + "# EOF\n")
    backfill = ("promtool", "tsdb", "create-blocks-from", "openmetrics", "scrapes.om", "data")
    subprocess.run(backfill, cwd=folder, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # Five minutes by default: longer here, so that a slow machine finds the same.
    options = ("--storage.tsdb.path=data", "--query.lookback-delta=1h", f"--web.listen-address={address}")
    command = ("prometheus", "--config.file=prometheus.yml", *options)
    running = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        assert any("ready to receive web requests" in line for line in running.stderr)
        yield f"http://{address}", at
    finally:
        running.terminate()
        running.communicate()


def polled(url: str, at: float, selector: str, state: dict[str, object] | None = None) -> Reading:
    memory = state if state is not None else {}
    memory |= {"options": {"selector": selector}, "now": at}

    async def run() -> Reading:
        async with httpx.AsyncClient(base_url=url) as client:
            return await prometheus.poll(client, memory, Limits())

    return asyncio.run(run())


def placed(labels: Labels, replica: str) -> Labels:
    return tuple(sorted((*labels, ("replica", replica))))


def told(samples: tuple[Sample, ...]) -> dict[tuple[str, Labels], float]:
    return {(one.metric, one.labels): one.value for one in samples}


def shapes(histograms: tuple[Histogram, ...]) -> dict[tuple[str, Labels], tuple[object, ...]]:
    return {(one.metric, one.labels): (one.edges, one.counts, one.total) for one in histograms}


def expected(page: Reading, replica: str) -> tuple[dict[tuple[str, Labels], float], object]:
    """What a collector reads from the page itself, under the name of its engine."""
    samples = {(metric, placed(labels, replica)): one for (metric, labels), one in told(page.samples).items()}
    return samples, {(metric, placed(own, replica)): one for (metric, own), one in shapes(page.histograms).items()}


def of(reading: Reading, replica: str) -> tuple[dict[tuple[str, Labels], float], object]:
    samples = tuple(one for one in reading.samples if dict(one.labels)["replica"] == replica)
    return told(samples), shapes(tuple(h for h in reading.histograms if dict(h.labels)["replica"] == replica))


@pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="prometheus and promtool (Debian package prometheus) are not installed",
)
class TestThroughARealPrometheus:
    def test_values_are_those_of_the_pages(self, store: tuple[str, float]) -> None:
        url, at = store
        reading = polled(url, at, '{job=~"vllm|sglang|pods"}')
        # Of a pair the newer scrape; of two jobs one; two clusters are two engines.
        for page, replica in ((VLLM[1], "e0:8000"), (VLLM[2], "e1:8000"), (VLLM[3], "west/e1:8000")):
            assert of(reading, replica) == expected(vllm.parse(page.read_bytes(), {}, Limits()), replica)
        assert of(reading, "e3:30000") == expected(sglang.parse(SGLANG.read_bytes(), {}, Limits()), "e3:30000")
        assert {dict(one.labels)["replica"] for one in reading.samples} == {
            "e0:8000", "e1:8000", "west/e1:8000", "e3:30000",
        }  # fmt: skip

    def test_engines_that_are_gone_are_left_out_and_named(self, store: tuple[str, float]) -> None:
        gaps = polled(*store, '{job="vllm"}').gaps
        assert len(gaps) == 2
        assert "1 of 5 engines down or no longer a target, by the store's `up` (e5:8000)" in gaps
        assert "1 of 5 engines without a sample for more than 180 s (e4:8000)" in gaps

    def test_the_selector_selects(self, store: tuple[str, float]) -> None:
        reading = polled(*store, '{job="other", instance!="x"}')
        assert {dict(one.labels)["replica"] for one in reading.samples} == {"e6:8000"}

    def test_nothing_under_the_selector_is_an_error(self, store: tuple[str, float]) -> None:
        with pytest.raises(ScrapeError, match="no series of vLLM or SGLang") as caught:
            polled(*store, '{job="none"}')
        assert caught.value.kind == "missing"

    def test_a_scrape_is_read_once(self, store: tuple[str, float]) -> None:
        state: dict[str, object] = {}
        assert polled(*store, '{job="other"}', state).samples
        assert polled(*store, '{job="other"}', state).samples == ()

    def test_what_prometheus_refuses_is_told_in_its_words(self, store: tuple[str, float]) -> None:
        with pytest.raises(ScrapeError, match=r"HTTP 400.*error parsing regexp") as caught:
            polled(*store, '{job=~"("}')
        assert caught.value.kind == "status"
        assert "127.0.0.1" not in str(caught.value)

    def test_it_is_known_as_a_store(self, store: tuple[str, float]) -> None:
        async def ask() -> bool:
            async with httpx.AsyncClient(base_url=store[0]) as client:
                return await prometheus.matches_server(client, Limits())

        assert asyncio.run(ask())


# ---- answers as a store may give them


def test_a_value_has_the_time_of_its_scrape_by_our_clock() -> None:
    """The store's clock is 1,000 s behind ours; the scrape was 7 s before it was asked."""
    reading = Store.of(engine(NOW - 7)).poll(now=NOW + 1000)
    (sample,) = reading.samples
    assert (sample.metric, sample.labels, sample.value, sample.ts) == ("generator_requests_running", E0, 3, NOW + 993)


def test_queries_are_posted_as_forms_at_one_time() -> None:
    store = Store.of(engine(NOW - 7))
    store.poll(selector='{job="vllm"}')
    assert [kind for kind, _ in store.asked] == ["seen", "up", "values", "servers", "histograms"]
    assert all('job="vllm"' in form["query"] for _, form in store.asked)
    assert {form.get("time") for _, form in store.asked} == {None, f"{NOW:.3f}"}
    assert "time" not in store.asked[0][1]


def test_without_news_the_store_is_asked_for_times_only() -> None:
    store = Store.of(engine(NOW - 7))
    store.poll()
    store.asked.clear()
    assert store.poll(now=NOW + 5).samples == ()
    assert [kind for kind, _ in store.asked] == ["seen", "up"]
    store.seen, store.values = [engine(NOW + 8)[0]], [engine(0, 4.0)[1]]
    store.at = NOW + 10
    assert [sample.value for sample in store.poll(now=NOW + 10).samples] == [4]


@pytest.mark.parametrize(
    ("up", "there"),
    [
        ([({"instance": "e0:8000", "job": "vllm"}, 1)], True),
        ([({"instance": "e0:8000", "job": "vllm"}, 0)], False),
        ([({"instance": "e9:8000", "job": "vllm"}, 1)], False),  # of its job others are targets, it is not any more
        ([({"instance": "e9:8000", "job": "other"}, 1)], True),  # pushed: nobody scrapes its job
        ([], True),
    ],
)
def test_up_is_believed_before_what_the_store_still_holds(up: list[Row], there: bool) -> None:
    reading = Store.of(engine(NOW - 7), up=up).poll()
    assert bool(reading.samples) == there == (not reading.gaps)


def test_an_engine_whose_scrapes_fail_is_told_until_it_answers() -> None:
    """A failed scrape ends its series at once (staleness markers): only `up` still names it."""
    one, two = engine(NOW), engine(NOW, 5.0, instance="e1:8000")
    well = [({"instance": name, "job": "vllm"}, 1.0) for name in ("e0:8000", "e1:8000", "n7:9100")]
    store = Store.of(one, two, up=well)
    assert store.poll(scrape_seconds="15").gaps == ()

    def at(
        seconds: float, *engines: tuple[Row, Row], up: list[Row]
    ) -> tuple[list[tuple[str, str, float]], tuple[str, ...]]:
        store.seen, store.values = [seen for seen, _ in engines], [row for _, row in engines]
        store.up, store.at = up, NOW + seconds
        reading = store.poll(now=NOW + seconds, scrape_seconds="15")
        told = [one for one in reading.samples if one.metric == "generator_up"]
        return [(dict(one.labels)["replica"], f"{one.ts - NOW:g}", one.value) for one in told if one.ts], reading.gaps

    dead = [well[0], (well[1][0], 0.0), (well[2][0], 0.0)]
    gaps = (
        "1 of 2 engines down, by the store's up (e1:8000)",
        "1 further targets of the engines' jobs are down (n7:9100)",
    )
    assert at(17, engine(NOW + 15), up=dead) == ([("e1:8000", "17", 0.0)], gaps)
    # For as long as the store asks it and it does not answer, and be it for days.
    assert at(90_000, engine(NOW + 89_999), up=dead) == ([("e1:8000", "90000", 0.0)], gaps)
    back = engine(NOW + 90_004, 5.0, instance="e1:8000")
    assert at(90_005, engine(NOW + 90_004), back, up=well) == ([("e1:8000", "90004", 1.0)], ())
    assert at(90_010, engine(NOW + 90_004), back, up=well) == ([], ())
    # Who is no target any more is not missed, and for five minutes named.
    ended = ("1 of 2 engines no longer a target (e1:8000)",)
    assert at(90_300, engine(NOW + 90_299), up=[well[0]]) == ([], ended)
    assert at(90_305, engine(NOW + 90_304), up=[well[0]]) == ([], ())


def test_a_store_without_any_engine_says_how_many_there_were() -> None:
    store = Store.of(engine(NOW), engine(NOW, instance="e1:8000"))
    store.poll()
    store.seen = []
    with pytest.raises(
        ScrapeError, match=r"no series of vLLM or SGLang now .*; 2 engines were read before, e0:8000 first"
    ):
        store.poll(now=NOW + 5)


@pytest.mark.parametrize(("age", "there"), [(0, True), (179, True), (181, False)])
def test_three_missed_scrapes_end_an_engine(age: float, there: bool) -> None:
    assert bool(Store.of(engine(NOW - age)).poll().samples) == there
    assert bool(Store.of(engine(NOW - age / 6)).poll(scrape_seconds="10").samples) == there


def test_two_scrapes_of_one_engine_are_never_added_up() -> None:
    pair = [engine(NOW - age, load, prometheus_replica=name) for name, age, load in (("a", 9, 3.0), ("b", 4, 5.0))]
    reading = Store.of(*pair).poll()
    assert [(sample.value, sample.labels) for sample in reading.samples] == [(5, E0)]


def test_replicas_behind_ray_stay_apart() -> None:
    """There `replica` is an engine's; elsewhere it is that of the Prometheus that scraped."""
    own = {"instance": "node:8080", "job": "ray"}
    gauge = {"__name__": "ray_vllm_num_requests_running", "engine": "0"}
    rows: list[Row] = [(own | gauge | {"replica": name}, load) for name, load in (("r1", 3.0), ("r2", 4.0))]
    reading = Store(seen=[(own, NOW)], values=rows).poll()
    assert {dict(s.labels)["replica"]: s.value for s in reading.samples} == {"node:8080/r1": 3, "node:8080/r2": 4}


def test_a_pause_shows_through_the_store() -> None:
    """Two pauses, one resume, and no token since: as on the page itself, scrape by scrape."""
    own = {"instance": "e0:8000", "job": "vllm"}

    def scrape(at: float, pauses: float, tokens: float) -> Reading:
        call = own | {"__name__": "http_requests_total", "method": "POST", "status": "2xx"}
        store.at, store.seen = at, [(own, at)]
        store.values = [(own | {"__name__": "vllm:generation_tokens_total", "engine": "0"}, tokens)]
        store.servers = [(call | {"handler": "/pause"}, pauses), (call | {"handler": "/resume"}, 1.0)]
        return store.poll(now=at)

    store = Store()
    for number in range(4):
        scrape(NOW + 15 * number, 1.0, 100.0 * number)
    paused = scrape(NOW + 60, 2.0, 300.0)
    assert value(paused, "generator_paused", (("replica", "e0:8000"),)) == 1


def test_a_stranger_under_the_selector_is_nobodys_page() -> None:
    sglang_gauge = {"__name__": "sglang:num_running_reqs", "instance": "e3:30000", "job": "sglang"}
    began = {"__name__": "process_start_time_seconds"}
    store = Store.of(engine(NOW), engine(NOW, instance="e3:30000", job="sglang"))
    store.values[1] = (sglang_gauge, 4.0)
    store.servers = [(began | {"instance": "db:9100"}, 5.0), (began | {"instance": "e3:30000", "job": "sglang"}, 5.0)]
    reading = store.poll()
    assert {dict(s.labels)["replica"]: s.value for s in reading.samples} == {"e0:8000": 3, "e3:30000": 4}
    assert reading.gaps == ()


def test_warnings_of_a_partial_answer_are_told() -> None:
    words = "receive series from Addr: http://10.0.0.1:10901 failed"
    reading = Store.of(engine(NOW), more={"warnings": [words, 5, words]}).poll()
    assert [sample.value for sample in reading.samples] == [3]
    assert any("the store warns: receive series from Addr" in gap for gap in reading.gaps)
    assert len(reading.gaps) <= prometheus.MAX_GAPS


def test_histograms_may_fail_alone() -> None:
    reading = Store.of(engine(NOW), histograms=422).poll()
    assert [sample.value for sample in reading.samples] == [3]
    assert reading.gaps == ("histograms: HTTP 422",)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            422,
            {"status": "error", "error": "query processing would load too many samples"},
            "status",
            "too many samples",
        ),
        (200, {"status": "error", "error": "no org id"}, "status", "no org id"),
        (401, {"status": "error", "error": "sekret"}, "auth", "credentials"),
        (503, {"status": "error", "error": "query timed out at http://sekret/x"}, "status", "timed out"),
        (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}, "garbage", "not that of"),
        (200, {"status": "success", "data": {"resultType": "vector", "result": "x"}}, "garbage", "not that of"),
        (200, ["x"], "garbage", "not that of"),
        (404, {}, "status", "404"),
    ],
)
def test_errors_are_told(status: int, body: object, kind: str, words: str) -> None:
    with pytest.raises(ScrapeError, match=words) as caught:
        Store(status=status, raw=json.dumps(body).encode()).poll()
    assert caught.value.kind == kind
    assert "sekret" not in str(caught.value)


def test_a_result_too_large_is_refused() -> None:
    engines = [engine(NOW, instance=f"e{number}:8000") for number in range(5)]
    with pytest.raises(ScrapeError, match="narrow option selector") as caught:
        Store.of(*engines).poll(limits=Limits(samples=4))
    assert caught.value.kind == "too_large"
    assert len(Store.of(*engines).poll(limits=Limits(samples=5)).samples) == 5


def test_rows_of_no_use_are_left_out() -> None:
    store = Store.of(engine(NOW))
    store.raw = None
    native = {"metric": {"__name__": "vllm:x", "instance": "e0:8000"}, "histogram": [NOW, {}]}
    good = [{"metric": labels, "value": [NOW, str(number)]} for labels, number in store.seen]
    store.raw = json.dumps(
        {
            "status": "success",
            "data": {"resultType": "vector", "result": [*good, native, 5, {"metric": {}, "value": [1]}]},
        }
    ).encode()
    assert "native histograms are not read" in store.poll().gaps


def test_labels_with_quotes_and_line_feeds_are_only_labels() -> None:
    seen, (labels, load) = engine(NOW)
    reading = Store([seen], [(labels | {"model_name": 'a"} 7\nvllm:num_requests_running{engine="9'}, load)]).poll()
    assert told(reading.samples) == {("generator_requests_running", E0): 3}


def test_an_instance_that_is_a_url_shows_no_credentials() -> None:
    reading = Store.of(engine(NOW, instance="http://user:sekret@e0:8000/metrics")).poll()
    assert [sample.labels for sample in reading.samples] == [E0]


def test_the_tenant_is_sent() -> None:
    store = Store.of(engine(NOW))
    store.poll(tenant="team-a")
    assert store.headers["x-scope-orgid"] == "team-a"


@pytest.mark.parametrize(
    "options",
    [{"tenant": "a\r\nX: y"}, {"scrape_seconds": "often"}, {"scrape_seconds": "0"}, {"selector": "up"}],
)
def test_options_that_cannot_be_used(options: dict[str, str]) -> None:
    store = Store.of(engine(NOW))
    with pytest.raises(ScrapeError, match=f"option {next(iter(options))}") as caught:
        store.poll(**options)
    assert caught.value.kind == "missing"
    assert store.asked == []
