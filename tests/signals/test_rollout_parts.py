"""What rollouts come to while they come in one by one: the same as when all are added up at once."""

from typing import Any

from server.rollouts.window import Note, Slot, TimedNotes


def told(at: float, tokens: int, seconds: float | None = None, **more: Any) -> Note:
    rest = {"environment": "math", "difficulty": "", "group": None, "sampled": False, "turns": 1, "tool_calls": None}
    rest |= {"reward": None, "idle": None, "mixed": None, "unknown": "", "exit": "trained", "age": None, "whole": True}
    return Note(at=at, response_tokens=tokens, seconds=seconds, **(rest | more))


def test_what_comes_later_is_added_to_what_was_asked_for() -> None:
    slot = Slot()
    slot.put(("a", 0), told(1.0, 30, staleness=2, tokens_by_age={2: 30}, latest=0.5, mixed=True))
    slot.put(("b", 0), told(2.0, 10, staleness=1, tokens_by_age={1: 10}, unknown="token: log it"))
    first = slot.part(sampled=False)
    assert (first.count, first.values["response_tokens"], first.tokens) == (2, [10, 30], {2: 30, 1: 10})
    assert slot.kinds(sampled=False) == {(None, None, 2): 1, (None, None, 1): 1}
    assert slot.by_environment(sampled=False)["math"]["response_tokens"] == (2, 40.0)
    slot.put(("c", 0), told(3.0, 20, staleness=2, tokens_by_age={2: 20}, latest=0.25, mixed=False))
    slot.put(("s", 0), told(3.0, 99, sampled=True))
    part = slot.part(sampled=False)
    assert (part.count, part.values["response_tokens"], part.tokens) == (3, [10, 20, 30], {2: 50, 1: 10})
    assert (part.staleness, part.latest, part.mixed, part.told) == ({2: 2, 1: 1}, 0.75, 1, 2)
    assert part.gaps == {"token": {"log it": 1}}
    assert slot.kinds(sampled=False) == {(None, None, 2): 2, (None, None, 1): 1}
    assert slot.by_environment(sampled=False)["math"]["response_tokens"] == (3, 60.0)
    assert slot.part(sampled=True).values["response_tokens"] == [99]


def test_one_that_is_told_anew_counts_as_it_is_now() -> None:
    slot = Slot()
    slot.put(("a", 0), told(1.0, 30, staleness=2))
    slot.put(("b", 0), told(2.0, 10, staleness=1))
    assert slot.part(sampled=False).values["response_tokens"] == [10, 30]
    slot.put(("c", 0), told(3.0, 20))
    slot.put(("a", 0), told(1.0, 5, staleness=0))
    part = slot.part(sampled=False)
    assert (part.count, part.values["response_tokens"], part.staleness) == (3, [5, 10, 20], {0: 1, 1: 1})
    assert slot.kinds(sampled=False) == {(None, None, 0): 1, (None, None, 1): 1, (None, None, None): 1}


def test_values_of_what_was_made_to_its_end_by_whole_minutes_and_parts_of_them() -> None:
    notes = TimedNotes()
    for name, note in {
        "before": told(50.0, 1), "part": told(70.0, 9, 4.0), "whole": told(130.0, 3, 5.0), "later": told(185.0, 7),
        "lost": told(131.0, 100, whole=False), "sample": told(132.0, 200, sampled=True),
    }.items():  # fmt: skip
        notes.put((name, 0), note.at, note)
    assert notes.values("response_tokens", 60.0, 184.0, sampled=False) == [3, 9]
    assert notes.values("response_tokens", 60.0, 190.0, sampled=False) == [3, 7, 9]
    assert notes.values("response_tokens", 60.0, 190.0, sampled=True) == [200]
    assert notes.values("seconds", 60.0, 190.0, sampled=False) == [4.0, 5.0]
    assert notes.number(60.0, 190.0, sampled=False) == 3
    notes.put(("whole", 0), 131.0, told(131.0, 4, 6.0))
    assert notes.values("response_tokens", 60.0, 190.0, sampled=False) == [4, 7, 9]
    assert [part.count for part in notes.made(60.0, 190.0, sampled=False)] == [1, 1, 1]
