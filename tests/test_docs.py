"""The documentation agrees with the program: generated pages, keys, commands, examples, links and language."""

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.docs.configuration import TABLES, VARIABLES
from bench.docs.pages import PAGES
from bench.docs.site import menu, orphans
from collectors.model import FACTS, Limits
from demo.faults import KINDS
from demo.scenarios import SCENARIOS
from server import signals
from server.config.settings import build
from server.lib.errors import ConfigError
from server.lib.secret import Secret
from server.main import COMMANDS, main
from server.notify.model import ReceiverSettings
from server.signals.labels import LABELS
from tests.notify.support import alert, note
from tests.signals.support import book, view

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GENERATED = {DOCS / name for name in PAGES}
WRITTEN = sorted(
    {*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"}
    - GENERATED
)
README_BYTES = 10_000
CHANGELOG_LINES = 20
# Words of a style that readers who are not native speakers cannot follow; each has a plain replacement.
FORBIDDEN = re.compile(
    r"\b(nobody|whoever|somebody|told|tells?|said|says|beside|under way|anew|for ever|heard|asks? (it|them|that))\b",
    re.I,
)


# ---- generated pages


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    """`python -m bench.docs` writes them."""
    assert (DOCS / name).read_text("utf-8") == PAGES[name]()


def unknown_keys(raw: dict[str, Any]) -> list[str]:
    """What the program accepts in the table that holds the key ``zz``, from its own error."""
    with pytest.raises(ConfigError) as error:
        build(raw, {})
    (line,) = [line for line in error.value.problems if "zz" in line]
    return sorted(re.split(r",\s*", line.partition("known: ")[2].partition(";")[0]))


def table_with(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """``[[run.NAME.target]]`` and a content -> the parsed TOML."""
    value: Any = content
    for part in reversed(name.strip("[]").split(".")):
        value = {("x" if part == "NAME" else part): [value] if f"{part}]]" in name else value}
        if part == "map":
            value |= {"collector": "custom", "path": "/x"}
        if part == "target" and not isinstance(value["target"], list):
            value["target"] = [value["target"]]
    return dict(value)


@pytest.mark.parametrize("name", TABLES)
def test_every_key_of_the_configuration_is_documented(name: str) -> None:
    needed = {"name": "a", "kind": "slack"} if name == "[[alerts.receiver]]" else {}
    assert sorted(key.name for key in TABLES[name]) == unknown_keys(table_with(name, {"zz": 1, **needed}))


def test_every_fact_and_table_is_documented() -> None:
    assert sorted(FACTS) == unknown_keys({"run": {"x": {"facts": {"zz": 1}}}})
    assert unknown_keys({"zz": 1}) == ["alerts", "dashboard", "otlp", "run", "server", "store"]


def test_every_variable_is_documented() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "server").rglob("*.py"))
    assert set(re.findall(r'"(ROLLSCOPE_[A-Z_]+)"', code)) == set(VARIABLES)


def test_labels_are_of_signals_that_exist() -> None:
    assert LABELS.keys() <= {item.name for item in signals.load()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out.partition("Example: ")[2]
    assert f"rollscope {name}" in shown


# ---- pages that are not generated


def first_column(page: str, heading: str) -> list[str]:
    """First cells of the first table below a heading, without its header."""
    section = (DOCS / page).read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n\n| scenario | figure", 1)[0]
    lines = [line for line in section.split("\n## ", 1)[0].splitlines() if line.startswith("|")]
    return [line.strip("|").split("|")[0].strip().strip("`") for line in lines[2:]]


def test_every_scenario_and_fault_of_the_demo_has_its_row() -> None:
    assert set(first_column("reference/demo.md", "Scenarios")) == set(SCENARIOS)
    assert first_column("reference/demo.md", "Faults") == list(KINDS)


def test_the_readme_is_short_and_the_changelog_readable() -> None:
    assert (ROOT / "README.md").stat().st_size <= README_BYTES
    sections = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    assert sections[1].startswith("Unreleased\n")
    first = next(one for one in sections if one.startswith("0.1.0"))
    assert len(first.strip().splitlines()) <= CHANGELOG_LINES
    assert set(re.findall(r"^### (\w+)$", "\n".join(sections), re.M)) <= {"Added", "Changed", "Fixed", "Removed"}


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_pages_are_in_plain_english(path: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`|\"[^\"]*\"", "", path.read_text("utf-8"), flags=re.S)
    assert [match[0] for match in FORBIDDEN.finditer(prose)] == []


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[Path, str]]:
    for path in (*WRITTEN, *GENERATED):
        text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text("utf-8"), flags=re.S)
        for target in (*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'(?:src|srcset)="([^"]+)"', text)):
            if "://" not in target:
                yield path, target


def test_every_relative_link_has_a_target() -> None:
    for path, target in links():
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{path}: {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{path}: {target}"


def test_every_page_is_in_the_menu_once() -> None:
    assert orphans() == []
    assert len(menu()) == len(set(menu()))
    assert [page for page in menu() if not (DOCS / page).is_file()] == []


def test_pages_that_the_code_names_exist() -> None:
    for folder in ("collectors", "server", "dashboard", "demo", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"(?<![\w./])docs/[\w/-]+\.md", path.read_text("utf-8")):
                assert (ROOT / name).is_file() or "configuration/" in name, f"{path}: {name}"


# ---- examples of CONTRIBUTING.md


def example(name: str) -> types.ModuleType:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (code,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", text, re.S)
    module = types.ModuleType(name)
    exec(code, module.__dict__)
    return module


def test_the_collector_of_the_contributors_guide_reads_its_log(tmp_path: Path) -> None:
    line = '{"step": 7, "time": 1767225600.0, "t/step": 31.5, "t/wait_ms": 12100, "reward": 0.42}'
    assert line in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    collector = example("collector").COLLECTOR
    reading = collector.tail(tmp_path, {}, Limits(), 1767225700.0)
    assert {sample.metric: sample.value for sample in reading.samples} == {
        "trainer_step_seconds": 31.5, "trainer_wait_seconds": pytest.approx(12.1), "reward_mean": 0.42,
    }  # fmt: skip


def test_the_signal_of_the_contributors_guide_has_a_value() -> None:
    rows = [{"padding_ratio": 0.1}, {"padding_ratio": 0.2}, {"padding_ratio": 0.6}]
    (value,) = example("signal").padding_share_ratio.compute(view(steps=book(rows)))
    assert value.value == pytest.approx(0.3)


def test_the_receiver_of_the_contributors_guide_makes_a_request() -> None:
    settings = ReceiverSettings("ops", "mattermost", Secret("http://127.0.0.1:1/hook"))
    request = example("receiver").RECEIVER.render(note(alert(engine="7")), settings, 0.0)
    assert request.url == "http://127.0.0.1:1/hook" and b'"text":' in request.body and b"engine=7" in request.body


# ---- modules


def test_every_module_starts_with_a_docstring() -> None:
    for folder in ("collectors", "server", "dashboard", "demo", "migrations"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8").strip()
            assert not text or text.startswith('"""'), path
