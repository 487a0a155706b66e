"""`[[run.NAME.discover]]`: what is taken, and every mistake with its key and the fix."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from server.config.settings import KEYS, Settings, build
from server.lib.errors import ConfigError
from server.lib.matchers import Matcher
from server.targets.model import DiscoverSettings

DOC = (Path(__file__).parent.parent.parent / "docs/how-to/discovery.md").read_text("utf-8")


def built(text: str, **env: str) -> Settings:
    return build(tomllib.loads(text), env)


def lists(text: str, **env: str) -> tuple[DiscoverSettings, ...]:
    (run,) = built(text, **env).runs
    return run.discover


def test_every_kind_and_key_is_taken() -> None:
    found = lists(
        """
        [[run.r.discover]]
        file_sd = "/etc/sd/*.json"
        [[run.r.discover]]
        http_sd = "https://inventory.example/sd"
        name = "inventory"
        collector = "vllm"
        interval = 10
        refresh = 30
        job = "rollout"
        match = ['zone=~"eu-.*"', 'gpu!=""']
        headers = { X-Team = "rl" }
        bearer_env = "PAGES"
        list_bearer_env = "LIST"
        labels_as_name = ["job", "pod"]
        [[run.r.discover]]
        prometheus_yml = "/etc/prometheus.yml"
        job = ["rollout", "ray"]
        [[run.r.discover]]
        router = "http://router:30000"
        [[run.r.discover]]
        run_dir = "~/outputs/r"
        """,
        PAGES="p",
        LIST="l",
    )
    zone, gpu = Matcher("zone", "=~", "eu-.*"), Matcher("gpu", "!=", "")
    assert found == (
        DiscoverSettings("file_sd", ("/etc/sd/*.json",), "file_sd"),
        DiscoverSettings(
            "http_sd", ("https://inventory.example/sd",), "inventory", "vllm", 10.0, 30.0, ("rollout",), (zone, gpu),
            (("X-Team", "rl"),), found[1].bearer, found[1].list_bearer, ("job", "pod"),
        ),
        DiscoverSettings("prometheus_yml", ("/etc/prometheus.yml",), "prometheus_yml", jobs=("rollout", "ray")),
        DiscoverSettings("router", ("http://router:30000",), "router", refresh_seconds=15.0),
        DiscoverSettings("run_dir", ("~/outputs/r",), "run_dir"),
    )  # fmt: skip
    assert (str(found[1].bearer), str(found[1].list_bearer)) == ("p", "l")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("", ": needs exactly one of file_sd, http_sd, prometheus_yml, router, run_dir"),
        ('file_sd = "a.json"\nrouter = "http://r"', ": needs exactly one of"),
        ("file_sd = []", ".file_sd: is empty: a path"),
        ('file_sd = [""]', ".file_sd: must be a string or a list of strings, none of them empty"),
        ("file_sd = 3", ".file_sd: must be a string or a list of strings"),
        ('http_sd = ""', ".http_sd: is empty: a URL"),
        ('http_sd = "http://169.254.169.254/"', ".http_sd: is a link-local"),
        ('router = "router:30000"', ".router: must be an http:// or https:// URL"),
        ('run_dir = "r"\nintervall = 5', ".intervall: unknown key; did you mean interval?"),
        ('run_dir = "r"\ninterval = 1', ".interval: must be between 5 and 3600 seconds"),
        ('run_dir = "r"\nrefresh = 0', ".refresh: must be between 1 and 3600 seconds"),
        ('run_dir = "r"\ncollector = "prime_rl_"', ".collector: reads no URL; collectors that do: "),
        ('run_dir = "r"\ncollector = "trl"', ".collector: reads no URL; collectors that do: "),
        ('run_dir = "r"\nmatch = ["a"]', ".match[0]: 'a' is not a matcher"),
        ('run_dir = "r"\njob = [1]', ".job: must be a string or a list"),
        ('run_dir = "r"\nheaders = { Authorization = "Bearer x" }', ".headers.Authorization: contains a secret"),
        ('run_dir = "r"\nheaders = { X = "a\\nb" }', ".headers.X: must be a string of printable ASCII"),
        ('run_dir = "r"\nbearer_env = "NOWHERE"', ".bearer_env: the environment has no NOWHERE"),
        ('run_dir = "r"\nlist_bearer_env = "NOWHERE"', ".list_bearer_env: the environment has no NOWHERE"),
    ],
)
def test_every_mistake_names_its_key(table: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(f"[[run.r.discover]]\n{table}")
    (found,) = caught.value.problems
    assert found.startswith(f"run.r.discover[0]{problem}")


def test_all_mistakes_are_told_at_once() -> None:
    raw: dict[str, Any] = {"discover": ["x", {"run_dir": "a"}, {"run_dir": "b"}, {"interval": 1}]}
    with pytest.raises(ConfigError) as caught:
        build({"run": {"r": raw}}, {})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "run.r.discover[0]", "run.r.discover[2].name", "run.r.discover[3]", "run.r.discover[3].interval",
    ]  # fmt: skip


def test_every_key_is_documented() -> None:
    assert [key for key in sorted(KEYS) if f"`{key} = " not in DOC] == []
