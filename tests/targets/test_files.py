"""Targets out of files: file_sd, prometheus.yml, prime-rl's configs. Expected URLs by hand."""

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.targets import model
from server.targets import polling as files
from server.targets.lists import FileSd, PrimeRl, PrometheusYml, parse
from server.targets.model import DiscoveryError, Found, Listing, Provider
from server.targets.polling import KEEP_SECONDS

NOW = 1_795_300_870.0


def ask(provider: Provider, at: float = 0.0) -> Listing:
    return asyncio.run(provider.targets(NOW + at))


def urls(listing: Listing) -> list[str]:
    return [found.url for found in listing.found]


def groups(data: Any) -> list[Found]:
    return parse(json.dumps(data).encode(), Path("t.json")).found


def test_labels_that_begin_with_two_underscores_say_how_to_reach_it() -> None:
    labels = {
        "__metrics_path__": "engine_metrics", "__scheme__": "https", "__param_name": "a b", "__param_x": "1",
        "__scrape_interval__": "1m30s", "__meta_url": "secret", "job": "ray", "zone": "b", "app": "a", "empty": "",
    }  # fmt: skip
    assert groups([{"targets": ["h:1", "[::1]:2", "name"], "labels": labels}]) == [
        Found(f"https://{host}/engine_metrics?name=a+b&x=1", (("app", "a"), ("zone", "b")), "ray", 90.0)
        for host in ("h:1", "[::1]:2", "name")
    ]
    assert groups([{"targets": ["h:1"]}, {"labels": {}}, {"targets": []}]) == [Found("http://h:1/metrics")]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"targets": []}, "it must be a list"),
        ([["h:1"]], "[0] must be a table with a list of targets"),
        ([{"targets": "h:1"}], "[0] must be a table with a list of targets"),
        ([{"targets": [], "sources": []}], "[0] has the unknown key 'sources'"),
        ([{"targets": ["h:1", 7]}], '[0].targets[1] must be "host:port"'),
        ([{"targets": ["http://h:1"]}], '[0].targets[0] must be "host:port"'),
        ([{"targets": ["h:1/metrics"]}], '[0].targets[0] must be "host:port"'),
        ([{"targets": ["user:pass@h:1"]}], '[0].targets[0] must be "host:port"'),
        ([{"targets": [""]}], '[0].targets[0] must be "host:port"'),
        ([{"targets": [], "labels": {"a": 1}}], "[0].labels must be a table of strings"),
        ([{"targets": [], "labels": {"a-b": "1"}}], "[0].labels: 'a-b' is not a valid label name"),
        ([{"targets": [], "labels": {"a": "x" * 600}}], "[0].labels holds more than 64 labels, or one longer"),
        ([{"targets": [], "labels": {"__scheme__": "ftp"}}], "[0].labels.__scheme__ must be http or https"),
        ([{"targets": [], "labels": {"__scrape_interval__": "5"}}], "[0].labels.__scrape_interval__: '5' is not"),
        ([{"targets": [f"h:{n}" for n in range(10_001)]}], "more than 10000 targets"),
    ],
)
def test_what_is_no_list_of_targets_is_refused_with_its_place(data: Any, why: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        groups(data)
    assert why in str(caught.value)


def test_an_address_that_is_refused_is_left_out_and_its_neighbours_are_not() -> None:
    found = parse(json.dumps([{"targets": ["h:1", "169.254.169.254", "metadata:80", "h:2"]}]).encode(), Path("t.json"))
    assert [one.url for one in found.found] == ["http://h:1/metrics", "http://h:2/metrics"]
    assert found.problems == [
        "[0].targets[1] is a link-local or multicast address (clouds serve metadata there)",
        "[0].targets[2] is a cloud metadata name",
    ]


def test_targets_come_and_go_without_a_restart(tmp_path: Path) -> None:
    one, two = tmp_path / "a.json", tmp_path / "b.yml"
    provider = FileSd([str(tmp_path / "*.json"), str(two)])
    assert ask(provider) == Listing((), False, f"{two}: is missing")
    one.write_text('[{"targets": ["h:1"]}]')
    two.write_text("- targets: ['h:2']\n  labels: {zone: b}\n")
    assert ask(provider) == Listing(
        (Found("http://h:1/metrics"), Found("http://h:2/metrics", (("zone", "b"),))), True, ""
    )
    assert ask(provider).changed is False
    one.write_text("[]")
    assert (urls(ask(provider)), ask(provider).changed) == (["http://h:2/metrics"], False)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"targets": ["h:1"]}]')
    provider = FileSd([str(path)])
    ask(provider)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was read"))
    assert urls(ask(provider)) == ["http://h:1/metrics"]


WHOLE = '[{"targets": ["h:1", "h:2"]}]'


@given(st.integers(0, len(WHOLE) - 1))
def test_half_a_file_keeps_the_last_list(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    path = tmp_path_factory.mktemp("sd") / "a.json"
    path.write_text('[{"targets": ["h:0"]}]')
    provider = FileSd([str(path)])
    ask(provider)
    path.write_text(WHOLE[:at])
    for _ in range(3):
        listing = ask(provider)
        assert urls(listing) == ["http://h:0/metrics"] and not listing.changed and listing.error.startswith(f"{path}: ")
    path.write_text(WHOLE)
    assert ask(provider) == Listing((Found("http://h:1/metrics"), Found("http://h:2/metrics")), True, "")


def test_half_a_yaml_file_would_be_a_whole_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("- targets: [h:1]\n- targets: [h:2]\n")
    provider = FileSd([str(path)])
    ask(provider)
    path.write_text("- targets: [h:1]\n- targets:\n  - h:2\n  - h:3"[:-4])
    assert len(ask(provider).found) == 2 and "is being written" in ask(FileSd([str(path)])).error
    # One that nobody goes on with is whole.
    assert urls(ask(provider)) == ["http://h:1/metrics", "http://h:2/metrics"]
    path.write_text("")
    assert len(ask(provider).found) == 2
    assert "is empty" in ask(provider).error


def test_a_file_that_is_gone_keeps_its_list_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(WHOLE)
    provider = FileSd([str(path)])
    ask(provider)
    path.unlink()
    first = ask(provider, 10)
    assert len(first.found) == 2 and first.error == f"{path}: is missing; its last list is kept for 5 minutes"
    assert len(ask(provider, 10 + KEEP_SECONDS).found) == 2
    gone = ask(provider, 11 + KEEP_SECONDS)
    assert (gone.found, gone.changed, gone.error) == ((), True, f"{path}: is missing")
    path.write_text(WHOLE)
    assert ask(provider, 12 + KEEP_SECONDS).error == "" and len(ask(provider, 12 + KEEP_SECONDS).found) == 2


def test_one_broken_file_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(WHOLE)
    (tmp_path / "b.json").write_text('{"targets": 1}')
    listing = ask(FileSd([str(tmp_path / "*.json"), str(tmp_path / "c.txt")]))
    assert len(listing.found) == 2
    assert (
        listing.error
        == f"{tmp_path / 'b.json'}: it must be a list of at most 10000 groups {{targets, labels}}; "
        + (f"{tmp_path / 'c.txt'}: is missing")
    )


def test_files_are_bounded_before_they_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(WHOLE)
    monkeypatch.setattr(files, "BYTES", len(WHOLE) - 1)
    assert ask(FileSd([str(path)])) == Listing((), False, f"{path}: larger than {len(WHOLE) - 1} bytes")


def test_a_file_system_that_hangs_is_told_and_costs_one_thread(tmp_path: Path) -> None:
    pipe = tmp_path / "a.json"
    os.mkfifo(pipe)
    provider = FileSd([str(pipe)])

    async def twice() -> tuple[bool, Listing]:
        first = asyncio.ensure_future(provider.targets(NOW))
        await asyncio.sleep(0)
        second = await provider.targets(NOW)
        waits = not first.done()
        with pipe.open("wb") as file:  # what the thread waits for
            file.write(WHOLE.encode())
        return waits, (await first, second)[1]

    assert asyncio.run(twice()) == (
        True,
        Listing((), False, "the previous read has not returned yet; the file system may hang"),
    )


def test_a_list_that_nobody_waited_for_is_taken_by_the_next_look(tmp_path: Path) -> None:
    """Its file is unchanged then: read anew it would say that nothing is new, and the targets would never come."""
    pipe = tmp_path / "a.json"
    os.mkfifo(pipe)
    provider = FileSd([str(pipe)])

    async def late() -> Listing:
        first = asyncio.ensure_future(provider.targets(NOW))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        (reading,) = (thread for thread in threading.enumerate() if thread.name == "discovery")
        with pipe.open("wb") as file:
            file.write(WHOLE.encode())
        reading.join()
        return await asyncio.wait_for(provider.targets(NOW), 10)  # read again, the pipe would wait for ever

    listing = asyncio.run(late())
    path = tmp_path / "plain.json"
    path.write_text(WHOLE)
    assert listing.changed and listing.found == ask(FileSd([str(path)])).found != ()


@given(st.binary(max_size=200), st.sampled_from([".json", ".yml"]))
def test_any_bytes_are_a_list_or_an_error_in_words(data: bytes, kind: str) -> None:
    try:
        parse(data, Path(f"t{kind}"))
    except DiscoveryError as error:
        assert str(error)


def test_ten_thousand_targets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("- targets:\n" + "".join(f"  - 10.0.{n // 250}.{n % 250}:8000\n" for n in range(model.TARGETS)))
    assert len(ask(FileSd([str(path)])).found) == model.TARGETS


# As verl 0.9.1 writes it on every Ray node, anew with every start of a rollout server.
VERL = """global:
  scrape_interval: 10s
  evaluation_interval: 10s
scrape_configs:
- job_name: ray
  file_sd_configs:
  - files:
    - {sd}
- job_name: rollout
  static_configs:
  - targets: {targets}
"""


def test_what_verl_writes(tmp_path: Path) -> None:
    path, ray = tmp_path / "prometheus.yml", tmp_path / "prom_metrics_service_discovery.json"
    path.write_text(VERL.format(sd=ray, targets="['192.0.2.1:40001', '[2001:db8::1]:40002']"))
    ray.write_text('[{"labels": {"job": "ray"}, "targets": ["192.0.2.1:44217"]}]')
    provider = PrometheusYml(str(path))
    rollout = (Found("http://192.0.2.1:40001/metrics", (), "rollout"),)
    second = Found("http://[2001:db8::1]:40002/metrics", (), "rollout")
    assert ask(provider) == Listing((*rollout, second, Found("http://192.0.2.1:44217/metrics", (), "ray")), True, "")
    path.write_text(VERL.format(sd=ray, targets="['192.0.2.1:40001']"))
    assert ask(provider).found == (*rollout, Found("http://192.0.2.1:44217/metrics", (), "ray"))
    # Its first half, as it is on disk while it is written.
    path.write_text(VERL.format(sd=ray, targets="[]").partition("scrape_configs")[0])
    half = ask(provider)
    assert len(half.found) == 2 and half.error == f"{path}: has no scrape_configs"


def test_ways_of_a_job_hold_for_its_files_too(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    (tmp_path / "sd").mkdir()
    (tmp_path / "sd/a.json").write_text('[{"targets": ["h:2"], "labels": {"__scheme__": "http"}}]')
    path.write_text(
        "scrape_configs:\n- job_name: r\n  scheme: https\n  metrics_path: /engine_metrics\n  relabel_configs: [{}]\n"
        "  static_configs: [{targets: [h:1], labels: {a: b}}]\n  file_sd_configs: [{files: ['sd/*.json']}]\n"
    )
    assert ask(PrometheusYml(str(path))).found == (
        Found("https://h:1/engine_metrics", (("a", "b"),), "r"), Found("http://h:2/engine_metrics", (), "r"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scrape_configs: 1\n", "has no scrape_configs"),
        ("scrape_configs: [1]\n", "scrape_configs[0] must be a table"),
        ("scrape_configs: [{job_name: 1}]\n", "scrape_configs[0].job_name must be a string"),
        ("scrape_configs: [{scheme: ftp}]\n", "scrape_configs[0].scheme must be http or https"),
        (
            "scrape_configs: [{static_configs: {}}, {static_configs: 1}]\n",
            "scrape_configs[1].static_configs must be a list",
        ),
        ("scrape_configs: [{file_sd_configs: [{files: a}]}]\n", "scrape_configs[0].file_sd_configs[0].files must be"),
        ("scrape_configs: [\n", "invalid or incomplete YAML: line"),
    ],
)
def test_a_wrong_prometheus_yml_names_the_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "p.yml"
    path.write_text(text)
    listing = ask(PrometheusYml(str(path)))
    assert listing.found == () and f"{path}: {why}" in listing.error


def prime(folder: Path, name: str, client: dict[str, Any]) -> None:
    document = {"model": {"client": client}}
    (folder / "configs").mkdir(exist_ok=True)
    (folder / f"configs/{name}.json").write_text(json.dumps({"orchestrator": document} if name == "rl" else document))


@pytest.mark.parametrize("name", ["rl", "orchestrator"])
def test_engines_of_a_prime_rl_run(tmp_path: Path, name: str) -> None:
    provider = PrimeRl(str(tmp_path))
    assert ask(provider).error.startswith(f"{tmp_path}/configs/rl.json: is missing; ")
    listed = [
        "http://192.0.2.1:8100/v1",
        "http://192.0.2.2:8100/v1",
        "http://192.0.2.1:8100",
        "http://169.254.169.254/v1",
    ]
    prime(tmp_path, name, {"base_url": "http://localhost:8000/v1", "admin_base_url": listed})
    found = (Found("http://192.0.2.1:8100/metrics"), Found("http://192.0.2.2:8100/metrics"))
    listing = ask(provider)
    assert (listing.found, listing.changed) == (found, True)
    assert listing.error == "" and "admin_base_url[3] is a link-local" in listing.left_out


def test_a_prime_rl_run_behind_a_router_says_what_is_missing(tmp_path: Path) -> None:
    prime(tmp_path, "rl", {"base_url": "http://localhost:8000/v1", "admin_base_url": None})
    assert ask(PrimeRl(str(tmp_path))) == Listing(
        (), False, f"{tmp_path}: no admin_base_url in its configs: give the engines' URLs"
    )
