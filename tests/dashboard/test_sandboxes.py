"""Sandboxes as cells: numbers, order, words, and what is unknown."""

import json
from typing import Any

import pytest
from msgspec import structs

from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.pages.sandboxes import records as sandboxes_records
from dashboard.shell.page import Scope
from dashboard.state.url import Span
from tests.dashboard import fake
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

HOUR = Span(wall.NOW - 3600, wall.NOW, follow=True)


@pytest.fixture
def reader() -> MemoryReader:
    return wall.reader(600)


def cells(
    reader: MemoryReader, run: str = wall.WALL, span: Span | None = HOUR, key: str = "sandboxes"
) -> dict[str, Any]:
    page = by_key(key)
    assert page is not None
    return shown(of_page(page, Scope(reader, run, span=span)))


def empty(lifecycle: str = "running") -> MemoryReader:
    made = MemoryReader(wall.NOW, wall.INFOS)
    made.add_run(wall.WALL, lifecycle=lifecycle)
    return made


def rows(found: dict[str, Any], prefix: str) -> list[Any]:
    return [found[f"{prefix}{i}"] for i in range(1000) if f"{prefix}{i}" in found]


# The wall.


def test_a_good_p95_hides_nothing(reader: MemoryReader) -> None:
    found = cells(reader)
    expected = {
        "sandboxes.mode": "ok",
        "head.sandboxes.before": "The oldest pending sandbox has waited ",
        "head.sandboxes.figure": "62 min",
        "head.sandboxes.state": "critical",
        "head.sandboxes.text": "Sandboxes that started took 38 s (p95). Pending ones are not in that figure. 960 live",
        "card.sb_running.figure": "780",
        # No band judges how many run: "OK" would say that one does.
        "card.sb_running.word": "",
        "card.sb_starting.figure": "128",
        "card.sb_starting.note": "100% of the limit · 8 building image · 44 queued",
        "card.sb_starting.state": "critical",
        "card.sb_oldest.figure": "62",
        "card.sb_oldest.unit": "min",
        "card.sb_oldest.word": "Critical",
        "card.sb_p95.figure": "38",
        "card.sb_p95.word": "OK",
        "card.sb_p95.note": "p50 24 s · max 3.85 min · by the provider's clock",
        "card.sb_failed.figure": "51",
        "card.sb_failed.note": "2% of 2,574 requested",
        "card.sb_failed.word": "",
        "card.sb_dangling.figure": "5",
        "card.sb_credit.figure": "6.2",
        "card.sb_credit.note": "$476.16 left · $76.80/h",
        "sandboxes.clock": "timed by the provider's clock",
        "sandboxes.split": "p95 36 s cached image · p95 3.57 min built image",
    }
    assert {key: found[key] for key in expected} == expected


def test_funnel_has_exact_numbers(reader: MemoryReader) -> None:
    found = cells(reader)
    assert found["sandboxes.funnel"] == [
        {"stage": "requested", "count": 2574, "share": 1.0},
        {"stage": "started", "count": 2343, "share": 0.9103},
        {"stage": "ready", "count": 2343, "share": 0.9103},
        {"stage": "first exec", "count": None, "share": 0.0},
        {"stage": "ended", "count": 1614, "share": 0.627},
        {"stage": "failed", "count": 51, "share": 0.0198},
    ]
    assert (found["sandboxes.funnel.n"], found["sandboxes.funnel.none"]) == (
        "First exec: not reported by provider.",
        "",
    )


def test_first_commands_are_a_share_of_those_whose_source_tells() -> None:
    """Ten in all; of the four that traces tell of, three ran something."""
    made = empty()
    told = [wall.ready(n, 60, 20, provider="traces", first_exec_at=wall.NOW - 30) for n in (1, 2, 3)]
    made.put_boxes(wall.WALL, *told, wall.box(4, "starting", 60, provider="traces"))
    made.put_boxes(wall.WALL, *(wall.ready(n, 60, 20) for n in range(5, 11)))
    found = cells(made)
    assert found["sandboxes.funnel"][3] == {"stage": "first exec", "count": 3, "share": 0.75}
    assert found["sandboxes.funnel.n"] == "First exec: 3 of the 4 that report it."


@pytest.mark.parametrize(
    ("started", "count", "note"),
    [
        (None, None, "No provider reports start times."),
        (wall.NOW, 1, "Not every provider reports start times."),
    ],
)
def test_a_time_that_no_provider_tells_is_no_loss(started: float | None, count: int | None, note: str) -> None:
    made = empty()
    quiet = structs.replace(wall.ready(1, 60, 20), started_at=None)
    made.put_boxes(wall.WALL, quiet, structs.replace(wall.ready(2, 60, 20), started_at=started))
    found = cells(made)
    assert found["sandboxes.funnel"][:3] == [
        {"stage": "requested", "count": 2, "share": 1.0},
        {"stage": "started", "count": count, "share": (count or 0) / 2},
        {"stage": "ready", "count": 2, "share": 1.0},
    ]
    assert found["sandboxes.funnel.n"] == f"{note} First exec: not reported by provider."


def test_failures_by_cause_with_the_newest_words(reader: MemoryReader) -> None:
    found = rows(cells(reader), "failure_causes.")
    assert [(row["cause"], row["count"], row["width"]) for row in found] == [
        ("timeout", "21", 100.0),
        ("image", "10", 47.6),
        ("out of memory", "10", 47.6),
        ("quota", "10", 47.6),
    ]
    assert found[1]["detail"] == "IMAGE_PULL_FAILED: manifest for swe-bench/sympy:1.9 not found"
    newer = wall.box(8000, "failed", 30, cause="image", detail="ErrImagePull", ended_at=wall.NOW - 1)
    reader.put_boxes(wall.WALL, newer)
    newest = rows(cells(reader), "failure_causes.")[1]
    assert (newest["detail"], newest["at"]) == ("ErrImagePull", round(wall.NOW) - 1)


def test_a_failure_of_another_run_is_not_ours(reader: MemoryReader) -> None:
    theirs = wall.box(8001, "failed", 5, cause="image", detail="theirs", ended_at=wall.NOW, own=False)
    reader.put_boxes(wall.WALL, theirs)
    assert "theirs" not in json.dumps(cells(reader))


def test_quota_fullest_first(reader: MemoryReader) -> None:
    found = cells(reader)
    assert rows(found, "quotas.") == [
        {"resource": "starting at once", "used": "128 of 128 · 100%", "width": 100.0, "state": "critical"},
        {"resource": "concurrent", "used": "960 of 1,000 · 96%", "width": 96.0, "state": "critical"},
        {"resource": "CPU", "used": "1,240 of 2,000 · 62%", "width": 62.0, "state": "ok"},
    ]
    assert (found["quotas.none"], found["quotas.limits"]) == ("", "watch ≥ 80% · critical ≥ 90%")


def test_a_rate_is_what_is_used_of_its_limit(reader: MemoryReader) -> None:
    reader.append(wall.WALL, wall.of_quota("limit", "creates_per_second", "prime"), [(wall.NOW, 40.0)])
    rate = wall.signal_of("sandbox_creates_per_second", "sandboxes/s")
    reader.append(wall.WALL, rate, [(wall.NOW, 4.4)])
    (row,) = [one for one in rows(cells(reader), "quotas.") if one["resource"] == "creations per second"]
    assert (row["used"], row["width"]) == ("4.4 of 40 · 11%", 11.0)


def test_quota_of_several_accounts_and_half_told_ones(reader: MemoryReader) -> None:
    for which, what, who, value in (
        ("used", "starting", "modal", 14.0),
        ("limit", "starting", "modal", 128.0),
        ("limit", "gpu", "modal", 0.0),
        ("used", "gpu", "modal", 0.0),
        ("used", "memory_gb", "modal", 96.0),
        ("limit", "disk_gb", "modal", 500.0),
    ):
        reader.append(wall.WALL, wall.of_quota(which, what, who), [(wall.NOW, value)])
    table = {row["resource"]: (row["used"], row["width"], row["state"]) for row in rows(cells(reader), "quotas.")}
    assert table["starting at once · prime"] == ("128 of 128 · 100%", 100.0, "critical")
    assert table["starting at once · modal"] == ("14 of 128 · 11%", 10.9, "ok")
    assert table["memory · modal"] == ("96, limit not reported", 0.0, "unknown")
    assert table["disk · modal"] == ("limit 500, usage not reported", 0.0, "unknown")
    assert table["GPU · modal"] == ("none allowed", 0.0, "unknown")


def test_commands_say_why_when_nobody_times_them(reader: MemoryReader) -> None:
    found = cells(reader)
    assert (found["card.sb_exec.figure"], found["card.sb_exec.word"]) == ("–", "Unknown")
    assert found["card.sb_exec.note"].startswith("no source times commands in sandboxes")
    for stat, value in (("p50", 0.8), ("p95", 12.5)):
        reader.append(wall.WALL, wall.signal_of("sandbox_exec_seconds", "seconds", stat=stat), [(wall.NOW, value)])
    found = cells(reader)
    assert (found["card.sb_exec.figure"], found["card.sb_exec.unit"], found["card.sb_exec.note"]) == (
        "12.5",
        "s",
        "p50 0.8 s",
    )
    assert (found["card.sb_exec.word"], found["card.sb_exec.state"]) == ("", "ok")


def test_starting_without_a_limit_is_not_judged() -> None:
    made = empty()
    for state, value in (("running", 3.0), ("starting", 400.0)):
        made.append(wall.WALL, wall.signal_of("sandboxes", "sandboxes", state=state), [(wall.NOW, value)])
    found = cells(made)
    assert (found["card.sb_starting.figure"], found["card.sb_starting.word"]) == ("400", "")
    assert found["card.sb_starting.note"] == "limit not reported"
    assert found["chart.boxes.limits"] == {}
    # Two accounts.
    for target, most in (("a", 128.0), ("b", 64.0)):
        quota = wall.signal_of("sandbox_quota_limit", "", resource="starting", target=target)
        made.append(wall.WALL, quota, [(wall.NOW, most)])
    assert cells(made)["chart.boxes.limits"] == {"watch": "start at once 192"}


def test_infra_failures_stand_beside_zero_advantage(reader: MemoryReader) -> None:
    found = cells(reader)
    values = {found[f"chart.infra.{i}.label"]: found[f"chart.infra.{i}.text"] for i in range(3)}
    assert values == {
        "rollouts lost to their sandbox": "",
        "sandboxes failed": "11%",
        "groups without a gradient": "41%",
    }
    assert found["sandboxes.infra"].startswith("Showing sandbox failure rate")
    lost = wall.signal_of("sandbox_failed_rollout_ratio", "ratio")
    reader.append(wall.WALL, lost, [(wall.NOW, 0.07)])
    found = cells(reader)
    assert found["chart.infra.0.text"] == "7%" and "false zero reward" in found["sandboxes.infra"]


def test_failures_name_sandbox_and_trace(reader: MemoryReader) -> None:
    table = rows(cells(reader), "failed_boxes.")
    assert {**table[0], "ended_at": round(table[0]["ended_at"])} == {
        "id": "sbx-02365", "name": "trace-00093d", "provider": "prime", "state": "failed", "cause": "timeout",
        "detail": "Sandbox failed to become ready within 115 s", "ended_at": round(wall.NOW - 102),
    }  # fmt: skip
    ends = [row["ended_at"] for row in table]
    assert len(table) == 5 and ends == sorted(ends, reverse=True)
    made = empty()
    made.put_boxes(wall.WALL, wall.ready(1, 60, 20))
    assert cells(made)["failed_boxes.none"] == "No sandbox has failed."


def test_oldest_pending_first_whatever_was_met_last(reader: MemoryReader) -> None:
    found = cells(reader)
    table = rows(found, "pending.")
    assert table[0] == {
        "id": "sbx-00001", "name": "trace-000001", "provider": "prime", "state": "starting",
        "image": "swe-bench/astropy:1.3", "image_cached": False, "requested_at": wall.NOW - 3720,
        "provider_state": "PENDING",
    }  # fmt: skip
    assert [row["requested_at"] for row in table] == sorted(row["requested_at"] for row in table)
    assert (len(table), found["pending.more"]) == (10, "and 170 newer")
    # Met just now, asked for two hours ago: a provider that is read for the first time.
    reader.put_boxes(wall.WALL, wall.box(8002, "queued", 7200), wall.box(8003, "starting", 0, requested_at=None))
    # That of another run in the same account waits, but not for this one.
    reader.put_boxes(wall.WALL, wall.box(8004, "queued", 9000, own=False))
    assert rows(cells(reader), "pending.")[0]["id"] == "sbx-08002"


def test_the_oldest_is_found_behind_a_thousand_younger(monkeypatch: pytest.MonkeyPatch) -> None:
    made = empty()
    made.put_boxes(wall.WALL, wall.box(1, "starting", 3720), *(wall.box(i, "queued", 30) for i in range(2, 2500)))
    found = cells(made)
    assert (found["pending.0"]["id"], found["pending.more"]) == ("sbx-00001", "and 2,489 newer")
    assert made.calls.count(f"sandboxes {wall.WALL}") == 3 + 3
    # Bounded; and then the page says so.
    monkeypatch.setattr(sandboxes_records, "MOST_PAGES", 2)
    found = cells(made)
    assert found["pending.more"] == "and 1,990 newer · Only the newest 2,000 were read; older ones may be pending."


def test_dangling_name_their_run(reader: MemoryReader) -> None:
    found = cells(reader)
    table = rows(found, "dangling.")
    assert {**table[0], "requested_at": round(table[0]["requested_at"])} == {
        "id": "sbx-09004", "name": "", "provider": "prime", "state": "running", "run_key": "eval-tuesday",
        "requested_at": round(wall.NOW - 99_800), "started_at": None,
    }  # fmt: skip
    assert [row["run_key"] for row in table].count("") == 1
    assert (len(table), found["dangling.more"], found["dangling.none"]) == (5, "", "")
    more = (wall.box(9100 + i, "running", 50, own=False, dangling=True) for i in range(25))
    reader.put_boxes(wall.WALL, *more)
    found = cells(reader)
    assert len(rows(found, "dangling.")) == 10
    assert found["dangling.more"] == f"and 20 more: /api/v1/runs/{wall.WALL}/sandboxes?dangling=true"


def test_states_that_are_not_drawn_are_told(reader: MemoryReader) -> None:
    assert cells(reader)["sandboxes.rest"] == ""
    reader.append(wall.WALL, wall.signal_of("sandboxes", "sandboxes", state="unknown"), [(wall.NOW, 7.0)])
    assert cells(reader)["sandboxes.rest"] == "Not drawn: 7 unknown."


def test_a_source_that_fails_is_named_first(reader: MemoryReader) -> None:
    broken = fake.target("e2b", "sandbox", "e2b", up=False, error="throttled: asked to wait 30 s")
    reader.set_targets(wall.WALL, *reader.status(wall.WALL).trust, broken)
    found = rows(cells(reader), "sandbox_sources.")
    assert found[0] == {
        "target": "e2b", "kind": "e2b", "up": False, "seen_at": round(wall.NOW - 340),
        "error": "throttled: asked to wait 30 s",
    }  # fmt: skip
    assert (found[1]["target"], found[1]["kind"], found[1]["up"]) == ("prime", "prime_sandboxes", True)


def test_healthy_says_what_runs(reader: MemoryReader) -> None:
    oldest = wall.signal_of("sandbox_oldest_pending_seconds", "seconds")
    reader.append(wall.WALL, oldest, [(wall.NOW + 1, 24.0)])
    found = cells(reader)
    assert (found["head.sandboxes.figure"] + found["head.sandboxes.after"], found["head.sandboxes.state"]) == (
        "780 sandboxes running",
        "ok",
    )
    assert found["head.sandboxes.text"] == "960 live · oldest pending 24 s · spin-up p95 38 s"
    lost = wall.signal_of("sandboxes_unreachable", "sandboxes", "watch")
    reader.append(wall.WALL, lost, [(wall.NOW + 1, 3.0)])
    found = cells(reader)
    assert (
        found["head.sandboxes.text"].endswith(" · 3 running but unreachable")
        and found["head.sandboxes.state"] == "watch"
    )


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (("server", "server", "client"), "timed by the provider's clock and the caller's clock"),
        (("poll_bound",), "timed by polling (upper bound)"),
        ((), ""),
    ],
)
def test_whose_clock_it_was(sources: tuple[str, ...], words: str) -> None:
    made = empty()
    made.put_boxes(wall.WALL, *(wall.ready(i, 60, 20, latency_source=name) for i, name in enumerate(sources)))
    made.append(wall.WALL, wall.signal_of("sandboxes", "sandboxes", state="running"), [(wall.NOW, 3.0)])
    assert cells(made)["sandboxes.clock"] == words
