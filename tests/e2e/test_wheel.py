"""The distribution, built the standard way and installed in a clean environment, migrates and serves."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.e2e.program import Program, environment

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("collectors", "dashboard", "demo", "migrations", "server")
MADE = tuple(f"dashboard/vendor/{name}" for name in ("plotly-basic.min.js", "rollscope.min.mjs", "rollscope.min.css"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


def test_the_wheel_installs_one_name_and_no_test(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"rollscope"}
    assert {name.split("/")[1] for name in names} == {"__init__.py", "__main__.py", *PACKAGES}
    for needed in ("migrations/env.py", "dashboard/assets/core/live.mjs", "demo/vllm_page.txt"):
        assert f"rollscope/{needed}" in names
    assert any(name.startswith("rollscope/migrations/versions/0001") for name in names)
    assert not [name for name in names if name.endswith(".pyc")]


def test_sdist_and_wheel_hold_the_files_made_by_npm_if_the_checkout_has_them(built: Path, wheel: Path) -> None:
    present = {name for name in MADE if (ROOT / name).exists()}
    assert {name for name in MADE if f"rollscope/{name}" in zipfile.ZipFile(wheel).namelist()} == present
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        files = {name.split("/", 1)[1] for name in archive.getnames()}
    assert files.intersection(MADE) == present
    assert {name.split("/")[0] for name in files} == {
        "rollscope", *PACKAGES, ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml",
    }  # fmt: skip


def test_a_clean_environment_migrates_and_serves(wheel: Path, tmp_path: Path) -> None:
    """The environment has the locked runtime dependencies (this one's, seen read-only) and the wheel, no checkout.

    PYTHONPATH and the working directory hold other packages with the names of ours, in every process.
    """
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin/python")
    site = next(venv.glob("lib/python*/site-packages"))
    uv = Path(sys.executable).parent / "uv"
    install = [str(uv), "pip", "install", "-q", "--no-deps", "--python", python, str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    assert [path.name for path in site.iterdir() if path.suffix != ".dist-info"] == ["rollscope"]
    # Dependencies come from the developer's environment through a .pth; our own editable install must not.
    (site / "dependencies.pth").write_text(str(next(Path(sys.prefix).glob("lib/python*/site-packages"))))
    script = venv / "bin/rollscope"
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('another {name}')")
    foreign = {"PYTHONPATH": str(tmp_path)}
    env = environment(tmp_path, root=None) | foreign
    where = "import rollscope, collectors, dashboard, demo, migrations, server.main as main; print(main.__file__)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
    assert found.stdout == f"{site}/rollscope/server/main.py\n"
    url = f"sqlite:///{tmp_path}/fresh.db"
    command = [python, "-m", "rollscope", "migrate", "--store", url]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Program(tmp_path, "demo", script=script, **foreign) as program:  # the simulation runs in a child process
        assert program.get("/readyz").json() == {"status": "ok"}
        page = program.get("/")
        assert page.status_code == 200 and "Rollscope" in page.text
        code, _ = program.end()
    assert code == 0
