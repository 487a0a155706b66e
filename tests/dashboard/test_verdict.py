"""The verdict as cells: banner, what to try, and the ribbon."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from dashboard.callbacks import cells
from dashboard.pages import by_path, verdict
from dashboard.pages.overview.data import view
from dashboard.shell.page import Scope
from dashboard.shell.theme import DARK, LIGHT
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from dashboard.widgets.status import StatusFacts
from server.verdict.model import VERDICT_OUTCOMES, Advice, Contradiction, Verdict
from tests.dashboard import fake
from tests.dashboard.fake import NOW, RICH
from tests.dashboard.fake_verdicts import NASTY, NOW_IS, UNKNOWN, hour, judged, span
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown


@pytest.fixture
def reader() -> MemoryReader:
    return judged(fake.reader(60.0))


def overview(reader: MemoryReader) -> dict[str, Any]:
    return shown(view(StatusFacts(reader.status(RICH)), reader.infos))


def test_the_banner_says_who_since_when_how_sure_and_why(reader: MemoryReader) -> None:
    found = overview(reader)
    assert (found["answer.chip"], found["answer.chip_state"], found["answer.cause"]) == (
        "Generator-bound",
        "generator",
        "KV capacity",
    )
    assert [found[f"answer.{part}"] for part in ("before", "figure", "clock_word", "clock", "after")] == [
        "", "Generator-bound", " since ", NOW - 720, ": the KV cache is full",
    ]  # fmt: skip
    assert (found["answer.text"], found["answer.meta"]) == (
        "The trainer waits 74% of each step. The KV cache is full.", "high confidence",
    )  # fmt: skip
    why = found["answer.why"]
    assert why["evidence"] == [one.text for one in NOW_IS.evidence]
    assert NASTY in why["evidence"][3], "a text, as it came"
    assert why["missing"] == ["tail_index_ratio: push rollout records"]
    assert why["doubts"] == ["the trainer says it waits 74% of its step; 52% follows from what arrives"]
    assert (found["answer.usd"], found["answer.share"]) == ("$18.44/h", "idle")
    # ln 2.2 and ln 1.3 of their sum.
    assert [(part["label"], part["state"], part["share"]) for part in found["answer.gap"]] == [
        ("KV capacity", "generator", 0.75), ("Spin up", "sandbox", 0.25),
    ]  # fmt: skip


def test_only_the_limiter_is_red(reader: MemoryReader) -> None:
    found = overview(reader)
    # A wait of 74% is beyond its critical band of 40%: it follows from the full caches.
    assert (found["card.wait.state"], found["card.wait.word"]) == ("watch", "Symptom")
    assert (found["card.kv.state"], found["card.kv.word"]) == ("critical", "The limit")
    # On the actor's own page, too.
    trainer = by_path("trainer")
    assert trainer is not None
    assert shown(trainer.cells(Scope(reader, RICH)))["card.tr_wait.word"] == "Symptom"
    reader.set_verdict(RICH, structs.replace(UNKNOWN, as_of=NOW))
    found = overview(reader)
    assert (found["card.wait.state"], found["card.wait.word"]) == ("critical", "Critical")


def test_idle_dollars_that_are_not_all_are_at_least_so_many(reader: MemoryReader) -> None:
    lacks = {"usd_lacks": "the number of GPUs is unknown: set [run.NAME.cost] generator_gpus"}
    reader.set_verdict(RICH, {**msgspec.to_builtins(NOW_IS), **lacks, "as_of": NOW})
    assert overview(reader)["answer.usd"] == "at least $18.44/h"


def test_what_to_try_first_and_what_is_met_then(reader: MemoryReader) -> None:
    found = overview(reader)
    assert [(one["text"], one["gain"], one["simulate"]) for one in found["answer.advice"]] == [
        (NOW_IS.advice[0].text, None, "")
    ]
    assert (
        found["answer.beyond"]
        == f"Next limit: sandbox-bound (spin up), up to 1.2× overall. p95 of a start is 140 s on {NASTY}"
    )


def test_what_is_not_known_says_what_to_log(reader: MemoryReader) -> None:
    reader.set_verdict(RICH, structs.replace(UNKNOWN, as_of=NOW))
    found = overview(reader)
    assert (found["answer.chip"], found["answer.chip_state"], found["answer.cause"], found["answer.clock"]) == (
        "No verdict yet", "none", "", None,
    )  # fmt: skip
    assert (found["answer.before"], found["answer.figure"]) == ("The trainer waits ", "74%")
    assert found["answer.text"].startswith("The engines are not watched, so what is slow is unknown · ")
    assert found["answer.why"]["missing"] == list(UNKNOWN.missing)
    assert (
        (found["answer.advice"], found["answer.gap"]) == ([], [])
        and found["answer.usd"] == ""
        and "confidence" not in found["answer.meta"]
    )


def test_a_run_that_is_over_shows_what_held_it_back(reader: MemoryReader) -> None:
    reader.change(RICH, lifecycle="finished")
    found = overview(reader)
    assert (found["answer.chip"], found["answer.chip_state"], found["answer.clock"]) == ("Finished", "over", None)
    assert (found["answer.at_word"], found["answer.text"]) == ("ended", "At the end: generator-bound (KV capacity).")
    assert found["answer.advice"] == [], "a run that is over is not changed"


def test_contradictions_are_shown_with_both_numbers(reader: MemoryReader) -> None:
    told = "120 rollouts are reported as booting, and the engines run 290 requests"
    bare = "two sources disagree on the wait"
    verdict_now = reader.status(RICH).verdict
    found = (
        Contradiction("booting", told, {"booting": 120.0, "requests": 290.0}),
        Contradiction("wait", bare, {"reported_wait": 0.61, "predicted_wait": 0.22}),
    )
    reader.set_verdict(RICH, structs.replace(verdict_now, contradictions=found))
    cells = overview(reader)
    assert cells["answer.contradictions"] == [told, f"{bare} (reported wait 0.61, predicted wait 0.22)"]


@pytest.mark.parametrize(
    ("outcome", "cause", "words"),
    [
        ("trainer_bound", "compute", "Trainer-bound (compute)"),
        ("stalled", "dead_engine", "Stalled (dead engine)"),
        ("balanced", "", "Balanced"),
        ("unknown", "missing", "No verdict yet"),
        ("", None, "No verdict yet"),
    ],
)
def test_words(outcome: str, cause: str | None, words: str) -> None:
    assert verdict.named(outcome, cause) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.9, "high confidence"), (0.5, "medium confidence"), (0.1, "low confidence"), (0.0, "")],
)
def test_confidence(value: float, words: str) -> None:
    assert verdict.confidence(Verdict("balanced", confidence=value)) == words


def test_every_outcome_has_a_colour() -> None:
    assert set(verdict.COLOURS) == set(VERDICT_OUTCOMES) - {"unknown"}
    assert len(set(verdict.COLOURS.values())) == len(verdict.COLOURS)


def luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_white_can_be_read_on_every_colour() -> None:
    import re  # noqa: PLC0415 - of this test alone
    from pathlib import Path  # noqa: PLC0415

    css = (Path(verdict.__file__).parents[1] / "assets" / "page-verdict.css").read_text("utf-8")
    colours = dict(re.findall(r"\[data-state=(\w+)\] \{ --is: (#\w{6})", css))
    assert set(colours) == set(verdict.COLOURS.values()) - {"overhead"} | {"catching_up"}, (
        "the plain one is that of overhead"
    )
    for colour in (*colours.values(), re.findall(r"--is: (#\w{6})", css)[0]):
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5, colour
    assert LIGHT.keys() == DARK.keys()


def test_the_ribbon_of_an_hour() -> None:
    found = verdict.ribbon_cells(hour())
    assert [row[:5] for row in found["verdicts.rows"]] == [  # type: ignore[union-attr]
        [NOW - 7200, NOW - 2640, "balanced", "Balanced", ""],
        [NOW - 2640, NOW - 2520, "none", "No verdict now", ""],
        [NOW - 2520, NOW - 720, "sandbox", "Sandbox-bound", "spin up"],
        [NOW - 720, None, "generator", "Generator-bound", "KV capacity"],
    ]
    assert (found["verdicts.note"], found["verdicts.s"]) == ("3 changes", "some")


def test_a_ribbon_is_bounded_and_says_so() -> None:
    many = [span(1000 - i, 999 - i, "balanced", "", "", replayed=i == 150) for i in range(verdict.MOST + 1)]
    found = verdict.ribbon_cells(many)
    assert len(found["verdicts.rows"]) == verdict.MOST and found["verdicts.rows"][0][0] == NOW - 999  # type: ignore[arg-type, index]
    assert found["verdicts.note"] == ("at least 200 changes · partly reconstructed from logs")
    assert verdict.ribbon_cells([]) == {"verdicts.rows": [], "verdicts.note": "", "verdicts.s": "none"}
    assert verdict.ribbon_cells(hour()[-1:])["verdicts.note"] == "no change"


def test_every_page_with_charts_has_the_changes(reader: MemoryReader) -> None:
    overview_page, alerts = by_path(""), by_path("alerts")
    assert overview_page is not None and alerts is not None
    scope = Scope(reader, RICH, shared=TimedCache(), span=Span(NOW - 900, NOW, True))
    assert [row[3] for row in cells(overview_page, scope)["verdicts.rows"]] == ["Sandbox-bound", "Generator-bound"]  # type: ignore[union-attr, index]
    assert "verdicts.rows" not in cells(alerts, Scope(reader, RICH, shared=TimedCache()))


@pytest.mark.parametrize(
    ("lever", "before", "after", "query"),
    [
        ("rollouts_in_flight", 330.0, 660.0, "concurrency=660"),
        ("max_staleness", 2.0, 4.0, "max_staleness=4"),
        ("gpu_split_generator", 16.0, 20.0, "move_gpus=4"),
        ("gpu_split_trainer", 8.0, 10.0, "move_gpus=-2"),
        ("engines", 4.0, 8.0, "add_engines=4"),
        ("curriculum", 0.4, 0.2, "zero_advantage=0.2"),
        # A fifth of what begins is aborted: 1.25 rollouts begin per rollout that is kept.
        ("oversampling", 0.4, 0.2, "oversampling=1.25"),
        ("response_length", None, 131072.0, "max_response_tokens=131072"),
        ("group_filter", None, None, ""),
        ("kv_cache", 1000.0, 2000.0, ""),
    ],
)
def test_the_first_advice_opens_what_if_with_its_change(
    lever: str, before: float | None, after: float | None, query: str
) -> None:
    assert verdict.simulated(Advice(lever, before, after)) == query
