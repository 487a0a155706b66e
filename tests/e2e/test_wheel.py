"""A wheel in a clean environment migrates and serves: nothing is missing from it but what tests need."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.program import Program, environment

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_four_packages_and_no_test(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"collectors", "server", "dashboard", "migrations"}
    for needed in ("migrations/env.py", "dashboard/assets/app.css", "server/demo/vllm_page.txt"):
        assert needed in names
    assert any(name.startswith("migrations/versions/0001") for name in names)


def test_a_clean_environment_migrates_and_serves(wheel: Path, tmp_path: Path) -> None:
    """The environment has the locked runtime dependencies (this one's, seen read-only) and the wheel, no checkout."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    uv = Path(sys.executable).parent / "uv"
    install = [str(uv), "pip", "install", "-q", "--no-deps", "--python", str(venv / "bin/python"), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # Dependencies come from the developer's environment through a .pth; our own editable install must not.
    (site / "dependencies.pth").write_text(str(next(Path(sys.prefix).glob("lib/python*/site-packages"))))
    script = venv / "bin/rollscope"
    where = [str(venv / "bin/python"), "-c", "import server, migrations; print(server.__file__, migrations.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert found.count(str(venv)) == 2
    url = f"sqlite:///{tmp_path}/fresh.db"
    command = [str(script), "migrate", "--store", url]
    env = environment(tmp_path, root=None)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Program(tmp_path, "up", "--store", url, script=script) as program:
        assert program.get("/readyz").json() == {"status": "ok"}
        page = program.get("/")
        assert page.status_code == 200 and "Rollscope" in page.text
        code, errors = program.end()
    assert code == 0 and "Traceback" not in errors


def test_a_stranger_on_our_names_is_named() -> None:
    """Another distribution's package over one of ours: one sentence, not a traceback."""
    guard = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "import collectors, server.main as main\n"
        "del collectors.__dist__\n"
        "print(main.guard_names())"
    )
    done = subprocess.run([sys.executable, "-c", guard], capture_output=True, text=True, check=True)
    assert "another package named 'collectors'" in done.stdout and "uv tool install rollscope" in done.stdout
