"""Evaluates signals. A signal that raises an error becomes Unknown; the others are still evaluated."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

from server.signals import Signal
from server.signals.model import Answer, Unknown, Value, View, memory_json

log = logging.getLogger("rollscope.signals")

PREFIX = "fold:"


@dataclass(slots=True)
class SignalEvaluator:
    """Evaluates the signals of one run. Each error is logged once and is the reason of every Unknown it causes.

    Attributes:
        memory: by signal name, of the signals with a memory.
    """

    memory: dict[str, Any] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _logged: set[tuple[str, str]] = field(default_factory=set)

    def answers(self, items: Iterable[Signal], view: View) -> list[tuple[str, float, Answer]]:
        """(signal, time, answer) of each signal; Unknown where the computation failed."""
        return [(item.name, view.now, self._answer(item, view)) for item in items]

    def _answer(self, signal: Signal, view: View) -> Answer:
        try:
            answer = signal.compute(view) if signal.remember is None else self._remembered(signal, view)
        except Exception as error:  # noqa: BLE001 - the next tick would fail too; the other signals do not depend on it
            return self._fault(signal.name, type(error).__name__, error)
        if isinstance(answer, (list, tuple)):
            for value in answer:
                if not isfinite(value.value) and not _explained(value):
                    return self._fault(signal.name, "no finite number", None)
        return answer

    def _remembered(self, signal: Signal, view: View) -> Answer:
        assert signal.remember is not None
        self.memory[signal.name], answer = signal.remember(self.memory.get(signal.name), view)
        self._versions[signal.name] = signal.version
        return answer

    # ---- restart

    def states(self) -> dict[str, tuple[int, str]]:
        """Memories as JSON text with the version of the code."""
        return {PREFIX + name: (self._versions[name], memory_json(kept)) for name, kept in self.memory.items()}

    def restore(self, signals: Iterable[Signal], states: Mapping[str, tuple[int, str]]) -> None:
        """Load stored memories. A memory of another version is dropped."""
        for signal in signals:
            version, text = states.get(PREFIX + signal.name, (0, ""))
            if signal.remember is not None and version == signal.version:
                self.memory[signal.name], self._versions[signal.name] = json.loads(text), version

    def _fault(self, name: str, what: str, error: Exception | None) -> Unknown:
        if (name, what) not in self._logged:
            self._logged.add((name, what))
            log.error("signal %s could not be computed: %s", name, error or what, exc_info=error)
        return Unknown(f"{name} could not be computed: {what}")


def _explained(value: Value) -> bool:
    """Is this a missing value that states its reason?"""
    return isnan(value.value) and bool(value.why)
