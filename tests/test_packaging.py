"""Locks, compose file and Dockerfile agree with the program."""

import re
import shlex
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

import collectors
from collectors.sandboxes.modal import TESTED
from server.config.settings import build
from server.main import program
from tests.support_sdks import ENVIRONMENTS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def names(lines: list[str]) -> set[str]:
    return {line for line in lines if line and not line.startswith(("#", "-"))}


def test_lock_inputs_are_the_projects_dependencies() -> None:
    runtime = names((ROOT / "requirements/runtime.in").read_text("utf-8").splitlines())
    assert set(PROJECT["project"]["dependencies"]) | {"hatchling>=1.27", "editables>=0.5"} == runtime
    dev = names((ROOT / "requirements/dev.in").read_text("utf-8").splitlines())
    assert set(PROJECT["dependency-groups"]["dev"]) == dev


def test_locks_name_versions_and_hashes_and_no_address() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text("utf-8")
        assert "://" not in text, path
        pins = re.findall(r"^([A-Za-z0-9._-]+)==", text, re.M)
        assert len(pins) == len(re.findall(r"^\S+==[^\n]*\\\n(?:    --hash=sha256:)", text, re.M)), path
    npm = (ROOT / "package-lock.json").read_text("utf-8")
    assert "resolved" not in npm and "://" not in re.sub(r'"(url|funding)": "[^"]*"', "", npm)


def test_every_direct_dependency_is_locked() -> None:
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements/runtime.txt").read_text("utf-8"), re.M))
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.split(r"[\[<>=]", requirement)[0] in locked


def pins(name: str) -> dict[str, str]:
    """Package -> version of a lock file."""
    text = (ROOT / f"requirements/{name}.txt").read_text("utf-8")
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;]+)", text, re.M))


def test_extras_are_locked_for_the_tests_and_not_in_the_runtime() -> None:
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items():
        # Modal's SDK brings 23 packages: it is tested in a separate environment, with the other providers' SDKs.
        inputs, lock = ("sdks.in", "sdks") if extra == "modal" else ("dev.in", "dev")
        assert set(requirements) <= names((ROOT / "requirements" / inputs).read_text("utf-8").splitlines())
        for requirement in requirements:
            pin = re.split(r"[\[<>=]", requirement)[0]
            assert pin in pins(lock) and pin not in pins("runtime")


def test_the_modal_extra_is_pinned_and_changes_none_of_our_versions() -> None:
    """The collector calls private parts of the SDK, and an installation with the extra must have the tested runtime."""
    assert PROJECT["project"]["optional-dependencies"]["modal"] == [f"modal=={TESTED}"]
    assert pins("runtime").items() <= pins("sdks").items()


def test_each_sdk_is_locked_at_the_version_its_collector_names() -> None:
    stated = " ".join(collector.versions for collector in collectors.load().values() if collector.actor == "sandbox")
    for name in ("sdks", "sdks-apart"):
        direct = names((ROOT / f"requirements/{name}.in").read_text("utf-8").splitlines())
        for package, version in (requirement.split("==") for requirement in direct):
            assert pins(name)[package] == version
            word = "SDK" if package == "modal" else f"(?:{package}|{package.replace('-', '_')})"
            assert re.search(rf"\b{word} {re.escape(version)}\b", stated), package


def test_make_sets_up_locks_and_cleans_every_environment() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    inputs = sorted(path.stem for path in (ROOT / "requirements").glob("*.in"))
    lock = re.search(r"for name in ([a-z -]+); do \$\(BIN\)/uv pip compile", makefile)
    assert lock is not None and sorted(lock[1].split()) == inputs
    assert sorted(path.stem for path in (ROOT / "requirements").glob("*.txt")) == inputs
    sdks = [name for name in inputs if name.startswith("sdks")]
    assert [ROOT / ".venv-sdks" / name for name in sdks] == sorted(ENVIRONMENTS)
    assert "SDKS := .venv-sdks\n" in makefile
    assert "SDKS_READY := " + " ".join(f"$(SDKS)/{name}/.ready" for name in sdks) + "\n" in makefile
    assert re.search(r"^test: .*\$\(SDKS_READY\)", makefile, re.M)
    assert re.search(r"^\trm -rf .*\$\(SDKS\)", makefile, re.M)
    assert ".venv-sdks" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def compose() -> dict[str, dict[str, object]]:
    services: dict[str, dict[str, object]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))[
        "services"
    ]
    return services


def parsed(words: list[str]) -> str | None:
    """The command of a command line; raises for an unknown command or option."""
    group = program()
    context = group.make_context("rollscope", words)
    name, command, rest = group.resolve_command(context, words)
    assert command is not None
    command.make_context(name, rest, parent=context)
    return name


def test_compose_commands_are_the_programs_own() -> None:
    for name, service in compose().items():
        if service.get("build"):
            assert parsed(service["command"]) == {"rollscope": "up", "demo": "demo"}[name]


def test_compose_variables_are_read_by_the_program() -> None:
    for name, service in compose().items():
        if not service.get("build"):
            continue
        environment: dict[str, str] = service["environment"]  # type: ignore[assignment]
        settings = build({}, {**environment, "ROLLSCOPE_HOST": "0.0.0.0", "HOME": "/x"})
        host, outer, inner = str(service["ports"][0]).split(":")  # type: ignore[index]
        assert (settings.port, outer, host) == (int(inner), inner, "127.0.0.1"), name
        assert settings.token, f"{name} binds beyond loopback, so it must have a token"
    assert build({}, {**compose()["rollscope"]["environment"], "HOME": "/x"}).store.startswith("postgresql+psycopg://")  # type: ignore[dict-item]
    assert compose()["demo"]["profiles"] == ["demo"]


def test_dockerfile_copies_what_exists_and_the_image_ignores_the_rest() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sources = [word for line in re.findall(r"^COPY (.*)$", text, re.M) for word in line.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists() and f"!{source}" in kept, source
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]) <= set(sources)
    command = re.search(r"^CMD (\[.*\])$", text, re.M)
    assert command is not None
    assert parsed(yaml.safe_load(command[1])) == "up"
    assert "EXPOSE 8050" in text and build({}, {"HOME": "/x"}).port == 8050


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_of_the_image_asks_the_port_that_is_set(status: int) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    check = re.search(r"^HEALTHCHECK CMD python -c (.*)$", (ROOT / "Dockerfile").read_text("utf-8"), re.M)
    assert check is not None
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        env = {"ROLLSCOPE_PORT": str(server.server_port)}
        (code,) = shlex.split(check[1])
        ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
        thread.join()
    assert (ended.returncode == 0) == (status == 200)


def test_foreign_packages_do_not_disturb_a_checkout(tmp_path: Path) -> None:
    """PYTHONPATH names other packages before ours. The wheel is tested in tests/e2e/test_wheel.py."""
    for name in ("collectors", "dashboard", "demo", "migrations", "server"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('another {name}')")
    (tmp_path / "rollscope").symlink_to(ROOT / "rollscope")  # without the packages next to it
    command = [sys.executable, "-m", "rollscope", "--version"]
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("rollscope ")


def test_the_console_script_is_the_installed_package() -> None:
    assert PROJECT["project"]["scripts"] == {"rollscope": "rollscope:main"}
    versions = [text[-4:] for text in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert versions == ["3.11", "3.12", "3.13"], "the versions that docs/get-started/install.md names"
    install = (ROOT / "docs/get-started/install.md").read_text("utf-8")
    assert "(tested with 3.11, 3.12 and 3.13)" in install
