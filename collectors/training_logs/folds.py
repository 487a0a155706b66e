"""Several of a user's keys that mean one metric of one step: folded as the map says, never by their order in a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from collectors.training_logs.memory import Memory
from collectors.training_logs.model import Key

# By name order, so that the same step gives the same number however its rows were written.
FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "first": lambda values: values[0],
}
# Nobody said how: the first key is taken, and the others are counted as dropped.
ONLY = "only"


class Folds:
    """Of one call of `tail`. ``dropped`` and ``why``: keys left out because nobody said how to fold them."""

    def __init__(self) -> None:
        self.dropped, self.why = 0, ""
        self._met: dict[str, tuple[Key, dict[str, float]]] = {}

    def add(self, known: Memory, ours: Key, key: str, value: float) -> None:
        """One more key of a step. ``known``: what is kept of the step, for its keys may come in several rows."""
        name = f"{ours.metric}{ours.labels}"
        parts: dict[str, float] = known.setdefault("parts", {}).setdefault(name, {})
        if ours.fold == ONLY and parts and key not in parts:
            one, other = sorted((min(parts), key))
            self.dropped += 1
            self.why = self.why or (
                f"two keys for one metric ({ours.metric}): {one}, {other}: write a narrower pattern, "
                f"or fold = {', '.join(FOLDS)} in the map"
            )
        parts[key] = value
        self._met[name] = ours, parts

    def told(self) -> Iterator[tuple[Key, list[str], float]]:
        """(ours, the keys it is made of, value) of each metric that was added to since this was asked last."""
        for ours, parts in self._met.values():
            keys = sorted(parts)
            taken = keys[:1] if ours.fold in (ONLY, "first") else keys
            yield ours, taken, FOLDS.get(ours.fold, FOLDS["first"])([parts[key] for key in taken])
        self._met.clear()
