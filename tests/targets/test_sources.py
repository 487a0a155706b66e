"""What a source of the command line is taken for, and what `check` and `watch` say of a list."""

import json
from pathlib import Path

import pytest

from server.lib.errors import ConfigError
from server.main import main
from server.targets.model import RunSettings
from server.targets.resolve import Ambiguous, attach, source_of
from tests.targets.engine import engine
from tests.targets.following import write
from tests.targets.serving import serving

LIST = '[{"targets": ["192.0.2.1:8000"]}]'
JSON = "application/json"


def lists(*sources: str) -> list[tuple[str, str, tuple[str, ...]]]:
    run = attach(RunSettings("run", tuple(map(source_of, sources))))
    assert run.targets == ()
    return [(one.name, one.kind, one.sources) for one in run.discover]


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("prom_metrics_service_discovery.json", LIST, "file_sd"),
        ("targets.yml", "- targets: ['192.0.2.1:8000']\n", "file_sd"),
        ("prometheus.yml", "scrape_configs:\n- job_name: rollout\n", "prometheus_yml"),
    ],
)
def test_a_file_is_known_by_what_it_holds(tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)
    assert lists(str(tmp_path / name)) == [(kind, kind, (str(tmp_path / name),))]


@pytest.mark.parametrize(("name", "text"), [("steps.json", '{"step": 1}'), ("config.yml", "a: 1\n"), ("x.txt", LIST)])
def test_other_files_are_no_lists(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="no run log was recognised here"):
        lists(str(tmp_path / name))


def test_a_list_may_be_named_and_two_of_a_kind_are_told_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    assert lists(
        "router+http://192.0.2.1:30000", "router=http://192.0.2.2:30000", "http_sd+https://192.0.2.3/sd",
        f"run_dir={one}", f"file_sd={two}/*.json",
    ) == [
        ("router", "router", ("http://192.0.2.1:30000",)),
        ("router-2", "router", ("http://192.0.2.2:30000",)),
        ("http_sd", "http_sd", ("https://192.0.2.3/sd",)),
        ("run_dir", "run_dir", (str(one),)),
        ("file_sd", "file_sd", (f"{two}/*.json",)),
    ]  # fmt: skip


def test_a_router_is_asked_for_its_engines_where_it_has_no_page() -> None:
    with serving() as answers:
        answers.paths["/list_workers"] = (200, JSON, b'{"urls": ["http://192.0.2.1:3001"]}')
        assert lists(answers.url) == [("router", "router", (answers.url,))]


def test_what_is_no_list_and_no_target_is_said(tmp_path: Path) -> None:
    with serving() as answers, pytest.raises(ConfigError) as caught:
        lists(answers.url, "router+http://169.254.169.254", f"file_sd={tmp_path}/none.json", "router=router:30000")
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "HTTP 404: there is no such page (--wait waits for it)",
        "is a link-local or multicast address (clouds serve metadata there)",
        "no such file or directory (--wait waits for it)",
        "must be an http:// or https:// URL with a host",
    ]
    with pytest.raises(Ambiguous, match="no collector is named rooter: did you mean router"):
        source_of("rooter=http://192.0.2.1:30000")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("engines.json", '[{"targets": ["192.0.2.1:8', "invalid or incomplete JSON: line 1"),
        ("engines.json", '[\n{"targets":\n', "invalid or incomplete JSON: line 3"),
        ("engines.json", "", "invalid or incomplete JSON: line 1"),
        ("engines.yml", "- targets: ['192.0.2.1:8", "invalid or incomplete YAML: line 1"),
        ("prometheus.yml", "", "is empty; an empty list is written []"),
    ],
)
def test_a_list_that_is_being_written_is_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path / name)]) == 1
    told = capsys.readouterr().out
    assert f"{tmp_path / name}: {why} (`up` and `watch --wait` wait for it)" in told
    assert "looked for" not in told and "no known run log" not in told


def test_a_log_of_json_lines_is_not_half_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert main(["check", str(tmp_path / "log.json")]) == 1
    assert "no run log was recognised here" in capsys.readouterr().out


def test_check_says_what_each_list_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed, broken = tmp_path / "engines.json", tmp_path / "broken.json"
    with engine(running=3) as one, engine() as node, engine() as dead:
        dead.end()
        node.how = "stranger"
        write(listed, one.place, node.place, job="rollout")
        assert main(["check", str(listed)]) == 0
        text = capsys.readouterr().out
        assert (
            f"  discovery file_sd (file_sd): 2 targets, of no known system, not read: rollout/{node.place}\n"
            f"  rollout/{one.place} (vllm): up, 2 samples of 2 metrics, "
        ) in text
        broken.write_text("[\n{]")
        write(listed, one.place, dead.place)
        assert main(["check", "--json", str(listed), f"file_sd={broken}"]) == 1
        found = json.loads(capsys.readouterr().out)["runs"][0]
        assert [target["target"] for target in found["targets"]] == [f"file_sd/{one.place}", f"file_sd/{dead.place}"]
        assert [target["up"] for target in found["targets"]] == [True, False]
        first, second = found["lists"]
        assert (first["targets"], first["unknown"]) == ([f"file_sd/{one.place}", f"file_sd/{dead.place}"], {})
        assert (second["targets"], second["error"]) == ([], f"{broken}: invalid or incomplete JSON: line 2")


def test_check_names_who_does_not_answer_and_was_never_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "engines.json"
    with engine() as dead:
        dead.end()
    write(listed, dead.place)
    assert main(["check", str(listed)]) == 1
    told = (
        f"discovery file_sd (file_sd): 1 target, not recognised: file_sd/{dead.place}: "
        "connection refused: nothing listens at this host and port"
    )
    assert told in capsys.readouterr().out


def test_a_list_is_not_forwarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(LIST)
    assert main(["watch", str(tmp_path / "a.json"), "--push", "http://127.0.0.1:1"]) == 2
    assert "put the list into the server's configuration" in capsys.readouterr().err
