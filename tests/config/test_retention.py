"""[store]: retention and size limit, with every error at once."""

import pytest

from server.config.settings import build
from server.lib.errors import ConfigError
from server.store.types import RetentionSettings

DAY = 86_400.0


def test_defaults() -> None:
    assert build({}, {}).retention == RetentionSettings(15 * DAY, 90 * DAY, None, 90 * DAY, None)


def test_all_keys() -> None:
    store = {"raw": "10m", "signals": "forever", "rollups": "2y", "records": 7200, "max_size": "1.5 GB"}
    assert build({"store": store}, {}).retention == RetentionSettings(600.0, None, 730 * DAY, 7200.0, 1_500_000_000)


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        ({"raw": "soon"}, "store.raw: 'soon' is not a duration such as 30s, 5m or 1h30m, or \"forever\""),
        ({"raw": "5m"}, 'store.raw: must be at least 10m, or "forever"'),
        ({"raw": True}, 'store.raw: a duration is a number of seconds or a text such as 5m or 1h30m, or "forever"'),
        ({"rollups": "1d"}, "store.rollups: must be at least as long as raw: rollups replace the raw rows"),
        ({"max_size": "50"}, "store.max_size: '50' is not a size such as 500MB or 50GB"),
        ({"max_size": "1MB"}, "store.max_size: must be at least 10MB"),
        ({"max_size": 50}, "store.max_size: must be a string, is an integer"),
    ],
)
def test_errors(store: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        build({"store": store}, {})
    assert error.value.problems == [problem]
