"""Configuration: all errors at once, each with key and fix; secrets never echoed."""

from pathlib import Path

import pytest

from server.config.settings import build, check, load
from server.lib.errors import ConfigError
from server.lib.secret import Secret

HOME = {"HOME": "/home/u"}


def problems(raw: dict[str, object], env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(raw, env or HOME)
    return caught.value.problems


def test_nothing_configured_is_loopback_and_a_local_store() -> None:
    settings = build({}, HOME)
    assert (settings.host, settings.port, settings.token, settings.role) == ("127.0.0.1", 8050, None, "all")
    assert settings.store == "sqlite:////home/u/.local/state/rollscope/rollscope.db"
    assert build({}, {**HOME, "XDG_STATE_HOME": "/x"}).store == "sqlite:////x/rollscope/rollscope.db"


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "c.toml").write_text(f"""
[server]
host = "0.0.0.0"
port = 9000
token_file = "{tmp_path}/token"
[store]
url = "postgresql://u@db/rollscope"
[run.a]
facts = {{ group_size = 8 }}
[[run.a.target]]
url = "http://10.0.0.1:8000"
interval = 10
bearer_env = "KEY"
[[run.a.target]]
path = "/runs/a"
collector = "prime_rl"
""")
    settings = load(tmp_path / "c.toml", {**HOME, "KEY": "k"})
    assert (settings.host, settings.port, settings.token) == ("0.0.0.0", 9000, "s3cret")
    run = settings.runs[0]
    assert (run.name, dict(run.facts)) == ("a", {"group_size": 8})
    assert [(t.source, t.collector, t.interval_seconds, t.bearer) for t in run.targets] == [
        ("http://10.0.0.1:8000", "", 10.0, "k"), ("/runs/a", "prime_rl", 5.0, "")
    ]  # fmt: skip


def test_every_error_at_once_with_its_key() -> None:
    found = problems(
        {
            "server": {"port": "80", "role": "boss", "collect": "never", "colour": 1},
            "store": {"url": "mysql://x"},
            "run": {
                "a": {"facts": {"wings": 2}, "target": [{"url": "http://x", "path": "/y"}, {"url": "ftp://x"}, {}]}
            },
            "typo": {},
        }
    )
    keys = {line.split(":")[0] for line in found}
    assert keys == {
        "server.port", "server.role", "server.collect", "server.colour",
        "store.url", "run.a.facts.wings", "run.a.target[0]",
        "run.a.target[1].url", "run.a.target[2]", "config.typo",
    }  # fmt: skip


def test_a_boolean_is_not_a_port() -> None:
    assert problems({"server": {"port": True}}) == ["server.port: must be an integer, is a boolean"]


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://metadata.google.internal/", "file:///etc/passwd"],
)
def test_metadata_addresses_are_refused(url: str) -> None:
    assert [line.split(":")[0] for line in problems({"run": {"a": {"target": [{"url": url}]}}})] == [
        "run.a.target[0].url"
    ]


def test_other_hosts_need_a_token() -> None:
    with pytest.raises(ConfigError, match="ROLLSCOPE_TOKEN"):
        check(build({"server": {"host": "0.0.0.0"}}, HOME))
    check(build({"server": {"host": "0.0.0.0"}}, {**HOME, "ROLLSCOPE_TOKEN": "0123456789abcdef0123"}))
    check(build({"server": {"host": "::1"}}, HOME))


def test_bad_files_name_themselves(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml: not TOML"):
        load(tmp_path / "bad.toml", HOME)
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        load(tmp_path / "gone.toml", HOME)


def test_an_unset_bearer_variable_is_an_error_not_an_empty_token() -> None:
    found = problems({"run": {"a": {"target": [{"url": "http://x", "bearer_env": "NOPE"}]}}})
    assert found == ["run.a.target[0].bearer_env: the environment has no NOPE"]


def test_secrets_do_not_print_themselves() -> None:
    settings = build({}, {**HOME, "ROLLSCOPE_TOKEN": "hunter2"})
    assert "hunter2" not in repr(settings) and settings.token == Secret("hunter2")


@pytest.mark.parametrize("token", ["short", "only-19-characters-", "   ", "tok-\u00e9-0123456789", "line\nbreak-0123"])
def test_a_token_nobody_could_send_or_anybody_guess_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        check(build({}, {**HOME, "ROLLSCOPE_TOKEN": token}))


@pytest.mark.parametrize(
    "facts", [{"mode": "asynchronous"}, {"lifecycle": "done"}, {"group_size": "eight"}, {"batch_samples": float("inf")}]
)
def test_stated_facts_must_make_sense(facts: dict[str, object]) -> None:
    (key,) = facts
    assert [line.split(":")[0] for line in problems({"run": {"a": {"facts": facts}}})] == [f"run.a.facts.{key}"]


@pytest.mark.parametrize("port", ["\u00b2", "abc", "99999", "-1", ""])
def test_a_port_from_the_environment_is_checked(port: str) -> None:
    assert problems({}, {**HOME, "ROLLSCOPE_PORT": port})[0].startswith("ROLLSCOPE_PORT")


@pytest.mark.parametrize(
    "url",
    [
        "http://2852039166/", "http://0xa9fea9fe/", "http://169.254.43518/", "http://169.254.169.254./",
        "http://metadata/computeMetadata/", "http://[bad/", "http://h:99999/x", "http://h:abc/",
    ],
)  # fmt: skip
def test_every_spelling_of_a_bad_address_is_refused(url: str) -> None:
    assert [line.split(":")[0] for line in problems({"run": {"a": {"target": [{"url": url}]}}})] == [
        "run.a.target[0].url"
    ]


def test_the_stores_password_does_not_print_itself() -> None:
    settings = build({"store": {"url": "postgresql://u:hunter2@db/x"}}, HOME)
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("interval", [0, 1, 4.9, 3601, float("nan")])
def test_an_interval_nobody_could_keep_is_refused(interval: float) -> None:
    found = problems({"run": {"a": {"target": [{"url": "http://x", "interval": interval}]}}})
    assert [line.split(":")[0] for line in found] == ["run.a.target[0].interval"]


def test_a_table_nobody_reads_yet_is_not_swallowed() -> None:
    assert problems({"alert": {"group_wait": 30}})[0].startswith("config.alert: unknown key")


def test_the_users_names_of_otlp_are_checked_with_the_rest() -> None:
    found = build({"otlp": [{"name": "acme.queue", "metric": "queue_samples", "run": "r"}]}, {})
    assert list(found.otlp) == [("r", "acme.queue")]
    with pytest.raises(ConfigError) as caught:
        build({"otlp": [{"name": "acme.queue", "metric": "queue_sample"}]}, {})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["otlp[0].metric"]


def test_a_price_is_a_fact_of_its_run() -> None:
    settings = build({"run": {"a": {"cost": {"usd_per_gpu_hour": 2}, "facts": {"generator_gpus": 8}}}}, HOME)
    assert settings.runs[0].facts == {"usd_per_gpu_hour": 2.0, "generator_gpus": 8}


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ({"usd_per_gpu_hour": 0}, "run.a.cost.usd_per_gpu_hour: must be a positive number, at most 1,000,000"),
        ({"usd_per_gpu_hour": "2"}, "run.a.cost.usd_per_gpu_hour: must be a number, is a string"),
    ],
)
def test_a_price_that_cannot_be(cost: dict[str, object], said: str) -> None:
    assert problems({"run": {"a": {"cost": cost}}}) == [said]
