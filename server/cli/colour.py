"""Colour of reports on a terminal: click removes it where the output is no terminal or NO_COLOR is set."""

import re

import click

_STYLES: tuple[tuple[re.Pattern[str], dict[str, str | bool]], ...] = (
    (re.compile(r"\b(?:DOWN|CRITICAL|FAIL|FAILED)\b"), {"fg": "red", "bold": True}),
    (re.compile(r"\b(?:WATCH|WARN)\b"), {"fg": "yellow", "bold": True}),
    (re.compile(r"^verdict:.*$", re.MULTILINE), {"bold": True}),
)


def show(report: str) -> None:
    """Print a report; words that need attention are coloured."""
    for pattern, style in _STYLES:
        report = pattern.sub(lambda match, style=style: click.style(match[0], **style), report)  # type: ignore[misc]
    click.echo(report)
