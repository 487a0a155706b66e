"""The fenced blocks of the guides, and the lines of each block that call the program."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs/get-started").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "docs/concepts").glob("*.md")),
    ROOT / "docs/reference/demo.md",
)
MARKER = re.compile(r"<!-- not run: (.+) -->\n$")
"""Directly above a block that a test cannot run, with the reason."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"(?<!`)`(rollscope [^`]+)`")
# What ends one command of a shell line; a comment begins after white space only.
_END = re.compile(r"\s#.*|[;|&()\n<>]+|2>")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. ``not_run``: the reason in its marker; "" without a marker. ``line``: of its first fence."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str

    @property
    def name(self) -> str:
        return f"{self.page.parent.name}/{self.page.name}:{self.line}".removeprefix(f"{ROOT.name}/")

    @property
    def is_shell(self) -> bool:
        return self.language in ("sh", "bash", "console") or self.text.startswith("$ ")

    @property
    def script(self) -> str:
        """The commands. In a console block these are the lines after a prompt."""
        if not self.text.startswith("$ "):
            return self.text
        return "".join(f"{line[2:]}\n" for line in self.text.splitlines() if line.startswith("$ "))

    @property
    def output(self) -> list[str]:
        """The lines of a console block that a command prints."""
        return (
            [line for line in self.text.splitlines() if not line.startswith("$ ")] if self.script != self.text else []
        )


def blocks() -> list[Block]:
    """All blocks of all guides, in the order of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in _BLOCK.finditer(text):
            before = text[: match.start()]
            marker = MARKER.search(before)
            found.append(
                Block(page, before.count("\n") + 1, match[1], match[2], "" if marker is None else marker[1].strip())
            )
    return found


def inline(page: Path) -> list[str]:
    """Commands in the running text."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    return [" ".join(match.split()) for match in _INLINE.findall(text)]


def arguments(text: str) -> list[list[str]]:
    """The arguments of every call of `rollscope` in a shell script, systemd unit or line of text."""
    found = []
    for match in re.finditer(r"(?:^|(?<=[\s/'(]))rollscope ", text.replace("\\\n", " ")):
        rest = text.replace("\\\n", " ")[match.end() :].split("\n", 1)[0]
        command = _END.split(rest, maxsplit=1)[0].strip()
        lexer = shlex.shlex(command, posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.quotes, lexer.commenters = True, '"', ""
        found.append([word.strip("'") for word in lexer if word.strip("'")])
    return found
