"""What is read for all browsers together is young here: tests change it without a new point, and do not wait."""

import pytest

from dashboard.shell import page


@pytest.fixture(autouse=True)
def young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "STATUS_SECONDS", 0.4)
