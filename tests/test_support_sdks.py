"""A missing SDK makes the test fail that needs it, because a skip would hide that nothing was checked."""

from pathlib import Path

import pytest

from tests.support_sdks import ENVIRONMENTS, python_with


def with_package(folder: Path, name: str) -> Path:
    package = folder / "lib" / "python3.11" / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return folder


def test_the_first_environment_with_the_sdk_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = with_package(tmp_path / "one", "alpha"), with_package(tmp_path / "two", "beta")
    with_package(two, "alpha")
    monkeypatch.setenv("ROLLSCOPE_TEST_SDKS", f"{one}:{two}")
    assert python_with("alpha") == str(one / "bin/python")
    assert python_with("beta") == str(two / "bin/python")


def test_a_missing_sdk_fails_with_the_command_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSCOPE_TEST_SDKS", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="has modal: run `make test`"):
        python_with("modal")


def test_the_default_environments_are_those_of_make_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLSCOPE_TEST_SDKS", raising=False)
    assert python_with("modal") == python_with("prime_sandboxes") == str(ENVIRONMENTS[0] / "bin/python")
    assert python_with("e2b") == python_with("daytona") == str(ENVIRONMENTS[1] / "bin/python")
