"""docs/how-to/receivers.md says what the program does: kinds, keys, examples that are valid, differences."""

import re
import tomllib
from pathlib import Path

from server.config import alerts
from server.lib.errors import Problems
from server.notify import load
from server.notify.outbound import AFTER_MAX_SECONDS, EXCERPT, FRAGMENT, LIMITS
from tests.notify.test_alertmanager import DIFFERENCES

PAGE = (Path(__file__).parents[2] / "docs/how-to/receivers.md").read_text("utf-8")


def rows(header: str) -> list[list[str]]:
    """Cells of the table with that header."""
    lines = PAGE.split(f"{header}\n", 1)[1].splitlines()[1:]
    table = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_kind_has_its_row_with_all_its_keys() -> None:
    found = rows("| kind | service | keys in addition to the common ones |")
    assert [(kind, reads) for kind, reads, _ in found] == [(f"`{kind}`", one.reads) for kind, one in load().items()]
    for (_, _, keys), receiver in zip(found, load().values(), strict=True):
        expected: set[str] = set()
        for name, option in receiver.options.items():
            expected |= {f"{name}_file", f"{name}_env"} if option.secret else {name}
        assert set(re.findall(r"`(\w+)`", keys)) == expected


def test_every_common_key_is_documented() -> None:
    keys = {key for row in rows("| key | default | meaning |") for key in re.findall(r"`(\w+)`", row[0])}
    assert keys == alerts.RECEIVER_KEYS


def test_the_examples_are_valid_and_one_of_each(tmp_path: Path) -> None:
    for name in re.findall(r'"/etc/rollscope/([\w-]+)"', PAGE):
        (tmp_path / name).write_text("json://127.0.0.1/x" if "apprise" in name else "http://127.0.0.1/x")
    text = "\n".join(re.findall(r"```toml\n(.*?)```", PAGE, re.S)).replace("/etc/rollscope", str(tmp_path))
    env = {name: "http://127.0.0.1/x" for name in ("BOT_TOKEN", "DISCORD_WEBHOOK", "PAGERDUTY_KEY")}
    problems = Problems()
    settings = alerts.build(tomllib.loads(text)["alerts"], env, problems)
    assert problems.messages == []
    assert sorted(receiver.kind for receiver in settings.receivers) == list(load())
    assert settings.deadman.interval == 60.0 and settings.deadman.url


def test_the_differences_are_those_of_the_comparison() -> None:
    assert tuple(row[0].strip("`") for row in rows("| field | Alertmanager 0.25 | here |")) == DIFFERENCES


def test_the_numbers_are_the_programs() -> None:
    assert (EXCERPT, FRAGMENT, AFTER_MAX_SECONDS) == (120, 8, 3600.0)
    text = " ".join(PAGE.split())
    assert "the first 120 characters" in text and "a piece of 8 characters" in text and "up to an hour" in text
    head = f"{LIMITS.head_seconds:g} s for name resolution, connection and response headers"
    assert head in text and f"{LIMITS.body_seconds:g} s and {LIMITS.body_bytes >> 10} kB for the response body" in text
