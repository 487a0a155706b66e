"""Folds several keys of a user's map into one metric of a step, independent of their order in a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from collectors.training_logs.memory import Memory
from collectors.training_logs.model import Key

# Values come sorted by key, so that a step gives the same number for any order of its rows.
FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "first": lambda values: values[0],
}
# The map states no fold: the first key is used, and the others are counted as dropped.
ONLY = "only"


class Folds:
    """Folded values of one call of `tail`. ``dropped``, ``why``: keys left out because the map states no fold."""

    def __init__(self) -> None:
        self.dropped, self.why = 0, ""
        self._added: dict[str, tuple[Key, dict[str, float]]] = {}

    def add(self, step: Memory, ours: Key, key: str, value: float) -> None:
        """Adds one key of a step. ``step``: the memory of the step, because its keys may come in several rows."""
        name = f"{ours.metric}{ours.labels}"
        parts: dict[str, float] = step.setdefault("parts", {}).setdefault(name, {})
        if ours.fold == ONLY and parts and key not in parts:
            first, second = sorted((min(parts), key))
            self.dropped += 1
            self.why = self.why or (
                f"two keys for one metric ({ours.metric}): {first}, {second}: write a narrower pattern, "
                f"or fold = {', '.join(FOLDS)} in the map"
            )
        parts[key] = value
        self._added[name] = ours, parts

    def take(self) -> Iterator[tuple[Key, list[str], float]]:
        """Yields (our key, source keys, value) of each metric added to since the last call."""
        for ours, parts in self._added.values():
            keys = sorted(parts)
            used = keys[:1] if ours.fold in (ONLY, "first") else keys
            yield ours, used, FOLDS.get(ours.fold, FOLDS["first"])([parts[key] for key in used])
        self._added.clear()
