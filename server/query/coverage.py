"""Which framework reports what, and how to have it report more: `server.signals.availability` for readers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from server.signals import availability as registry


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which signals each framework's own log can give.

    Attributes:
        frameworks: names of the trainer collectors with a key catalogue, sorted.
        cells: signal -> framework -> ``native``, ``derived``, ``-`` (unknown) or ``n/a``. Signals that come from
            engines, sandboxes or prices are not in it: they do not depend on the framework.
        hints: signal -> framework -> what to set so that it is reported.
    """

    frameworks: tuple[str, ...]
    cells: Mapping[str, Mapping[str, str]]
    hints: Mapping[str, Mapping[str, str]]


@cache
def coverage() -> Coverage:
    """Worked out once per process; the first call takes about a second, on a thread."""
    frameworks = registry.frameworks()
    by_framework = {framework.name: registry.cells(framework.name) for framework in frameworks}
    cells: dict[str, Mapping[str, str]] = {}
    hints: dict[str, Mapping[str, str]] = {}
    for item in registry.items():
        cells[item.name] = {framework.name: by_framework[framework.name][item.name] for framework in frameworks}
        inputs = registry.inputs(item)
        hint_texts = {
            framework.name: [framework.hints[name] for name in inputs if name in framework.hints]
            for framework in frameworks
        }
        hints[item.name] = {name: texts[0] for name, texts in hint_texts.items() if texts}
    return Coverage(tuple(framework.name for framework in frameworks), cells, hints)
