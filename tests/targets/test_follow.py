"""Targets of lists come and go while the run is watched: real files, real HTTP, real store. Numbers by hand."""

import logging
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from collectors.model import Target
from server.api.metrics import render
from server.config.alerts import defaults
from server.lib.matchers import parse
from server.lib.secret import Secret
from server.store import Store
from server.targets import discovery, model
from server.targets.model import DiscoverSettings
from tests.targets.engine import engine
from tests.targets.following import T0, by_file, following, write
from tests.targets.serving import serving

JSON = "application/json"


def test_engines_come_and_go_and_come_back(store: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=3, tokens=1000) as one, engine(running=4, tokens=5000) as two:
        first, second = f"rollout/{one.place}", f"rollout/{two.place}"
        write(listed, one.place, job="rollout")
        with following(store, by_file(listed)) as run:
            run.step()
            one.tokens = 1100
            run.step()
            assert (run.running, run.tokens) == (3, 100)
            write(listed, one.place, two.place, job="rollout")
            run.step(2)
            assert (run.running, run.tokens) == (7, 100) and run.up() == {first: True, second: True}
            write(listed, two.place, job="rollout")
            two.tokens = 5050
            run.step()
            # Its series end with it: nothing is carried, nobody misses it.
            assert (run.running, run.tokens) == (4, 150)
            gone = run.targets()[first]
            assert (gone.gone_since, gone.up, gone.error) == (run.now, False, "engines no longer lists it")
            assert first not in run.loop.pipeline.driver.deriver.health and run.up() == {second: True}
            asked = len(one.asked)
            run.step(12)
            assert len(one.asked) == asked, "who is gone is not asked"
            # Back after a minute, the same process: what it did meanwhile is counted once.
            one.tokens = 1300
            write(listed, one.place, two.place, job="rollout")
            run.step(2)
            assert (run.running, run.tokens) == (7, 350) and run.targets()[first].gone_since is None


def test_who_is_gone_fires_no_alert_and_who_is_down_does(kept: Store, tmp_path: Path) -> None:
    """`TargetDown` waits a minute; 30 steps are two and a half."""
    listed = tmp_path / "engines.json"
    with engine(running=1) as stays, engine(running=1) as leaves, engine(running=1) as dies:
        write(listed, stays.place, leaves.place, dies.place)
        with following(kept, by_file(listed), alerts=defaults()) as run:
            for step in range(30):
                stays.tokens += 10
                run.step()
                if step == 2:
                    dies.how = "error"
                    write(listed, stays.place, dies.place)
            assert run.firing() == [("TargetDown", f"engines/{dies.place}")]
            # It is taken from the list as well: nobody waits for it any more.
            write(listed, stays.place)
            run.step()
            assert run.firing() == []


def test_a_list_that_breaks_keeps_its_targets_and_says_so(
    kept: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    with engine(running=1) as one, engine(running=2) as two:
        write(good, one.place)
        write(bad, two.place)
        with following(kept, by_file(good, "good"), by_file(bad, "bad")) as run:
            run.step()
            bad.write_text('[\n{"targets": [],\n}]')
            with caplog.at_level(logging.WARNING, logger="rollscope.discovery"):
                run.step(3)
            rows = run.targets()
            assert rows["discovery bad"].error == f"{bad}: invalid or incomplete JSON: line 3"
            assert not rows["discovery bad"].up and rows["discovery good"].up
            assert (run.running, run.up()) == (3, {f"good/{one.place}": True, f"bad/{two.place}": True})
            assert len(caplog.records) == 1, "told when it begins, not at every step"
            write(bad, two.place)
            run.step(2)
            assert run.targets()["discovery bad"].up and run.running == 3


def test_a_target_that_two_lists_and_the_configuration_name_is_read_once(kept: Store, tmp_path: Path) -> None:
    listed, same = tmp_path / "a.json", tmp_path / "b.json"
    with engine(running=1) as one, engine(running=2) as two:
        write(listed, one.place, two.place, two.place.upper(), job="j")
        write(same, two.place, job="k")
        by_hand = Target("mine", "run", "vllm", "generator", url=f"http://{one.place}")
        with following(kept, by_file(listed), by_file(same, "same"), targets=[by_hand]) as run:
            run.step(2)
            assert (run.up(), run.running) == ({"mine": True, f"j/{two.place}": True}, 3)
            # The list that named it first lets it go: the other one still does, and it is read on.
            write(listed, job="j")
            run.step(2)
            assert run.up() == {"mine": True, f"j/{two.place}": True} and run.running == 3
            assert run.targets()[f"j/{two.place}"].source == "same"


def test_names_hold_over_a_restart_of_ours_and_what_went_meanwhile_is_gone(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=1, tokens=10) as one, engine(running=2, tokens=20) as two:
        write(listed, one.place, two.place, job="j", instance="same")
        with following(kept, by_file(listed)) as run:
            run.step()
            one.tokens, two.tokens = 11, 22
            run.step()
            names = list(run.up())
            plain, other = sorted(names, key=len)
            assert plain == "j/same" and other.startswith("j/same-") and run.tokens == 3
            end = run.now
        # The list in another order, and the engine that had the plain name is gone.
        write(listed, two.place, job="j", instance="same")
        two.tokens = 25
        with following(kept, by_file(listed), start=end) as run:
            run.step(2)
            assert run.up() == {other: True} and run.tokens == 6
            assert run.targets()[plain].gone_since == end + 5


def test_a_filter_leaves_out_and_labels_may_be_the_name(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=1) as one, engine(running=2) as two, engine(running=4) as three:
        groups = [("a", "rollout", one), ("b", "rollout", two), ("a", "eval", three)]
        listed.write_text(
            "[" + ",".join(
                f'{{"targets": ["{e.place}"], "labels": {{"zone": "{zone}", "job": "{job}", "pod": "p{e.running:g}"}}}}'
                for zone, job, e in groups
            ) + "]"
        )  # fmt: skip
        settings = by_file(listed, jobs=("rollout",), match=(parse('zone=~"a|c"'),), labels_as_name=("job", "pod"))
        with following(kept, settings) as run:
            run.step(2)
            assert (run.up(), run.running) == ({"rollout/p1": True}, 1)


def test_headers_go_to_the_targets_and_the_lists_own_secret_to_the_list(kept: Store) -> None:
    with engine() as one, serving() as answers:
        answers.paths["/sd"] = (200, JSON, f'[{{"targets": ["{one.place}"]}}]'.encode())
        settings = DiscoverSettings(
            "http_sd", (f"{answers.url}/sd",), "sd", headers=(("x-team", "rl"),), bearer=Secret("page-key"),
            list_bearer=Secret("list-key"),
        )  # fmt: skip
        with following(kept, settings) as run:
            run.step(2)
            assert run.up() == {f"sd/{one.place}": True}
        assert {asked["authorization"] for asked in one.asked} == {"Bearer page-key"}
        assert {asked["x-team"] for asked in one.asked} == {"rl"}
        assert {headers["authorization"] for _, headers in answers.asked} == {"Bearer list-key"}


def test_an_http_list_that_fails_is_asked_ever_more_rarely(kept: Store) -> None:
    with serving() as answers:
        answers.paths["/sd"] = (500, JSON, b"")
        settings = DiscoverSettings("http_sd", (f"{answers.url}/sd",), "sd", refresh_seconds=5.0)
        with following(kept, settings) as run:
            run.step(40)
            # At 5, 10, 20, 40, 80, 160 s of 200.
            assert len(answers.asked) == 6 and "HTTP 500" in run.targets()["discovery sd"].error


def test_pages_of_other_systems_are_left_alone_and_named(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=1) as one, engine() as node:
        node.how = "stranger"
        write(listed, one.place, node.place, job="all")
        with following(kept, by_file(listed)) as run:
            run.step(9)
            row = run.targets()["discovery engines"]
            assert (row.up, row.error) == (True, f"of no known system, not read: all/{node.place}")
            assert run.up() == {f"all/{one.place}": True} and len(node.asked) == 1


def test_who_does_not_answer_is_missed_as_what_its_neighbours_are(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine() as gone:
        pass
    write(listed, gone.place, job="rollout")
    with following(kept, by_file(listed)) as run:
        run.step()
        row = run.targets()[f"rollout/{gone.place}"]
        assert (row.kind, row.up) == ("unknown", False) and "its kind is not known yet" in row.error
        with engine(running=2) as one:
            write(listed, gone.place, one.place, job="rollout")
            run.step(4)
            assert run.targets()[f"rollout/{gone.place}"].kind == "vllm"
            assert run.up() == {f"rollout/{gone.place}": False, f"rollout/{one.place}": True}
            assert f"rollout/{gone.place}" in run.loop.pipeline.driver.deriver.health
            with engine(gone.port, running=5):
                run.step(8)
                assert run.up() == {f"rollout/{gone.place}": True, f"rollout/{one.place}": True} and run.running == 7


def test_more_targets_than_a_run_may_have_are_said(
    kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "TARGETS", 1)
    listed, beyond = tmp_path / "a.json", tmp_path / "b.json"
    with engine(running=1) as one, engine(running=2) as two:
        write(listed, one.place)
        write(beyond, two.place)
        with following(kept, by_file(listed), by_file(beyond, "more")) as run:
            run.step(2)
            assert run.targets()["discovery more"].error == "1 targets beyond the 1 of a run are not read"
            assert (run.up(), run.running) == ({f"engines/{one.place}": True}, 1)
            monkeypatch.setattr(model, "TARGETS", 1)
            write(listed, one.place, two.place)
            run.step()
            assert run.targets()["discovery engines"].error == f"{listed}: more than 1 targets"
            assert run.up() == {f"engines/{one.place}": True}


def test_where_a_target_was_found_is_in_the_api_and_on_metrics(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=1) as one, engine() as two:
        write(listed, one.place, two.place, job="rollout", zone='a"b')
        with following(kept, by_file(listed)) as run:
            run.step(2)
            name = f"rollout/{one.place}"
            row = structs.asdict(run.targets()[name])
            assert (row["source"], row["job"], row["labels"]) == ("engines", "rollout", {"zone": 'a"b'})
            page = render(run.reader, "0").decode()
            found = f'job="rollout",label_zone="a\\"b",run="run",source="engines",target="{name}"'
            assert f"rollscope_target_info{{{found}}} 1.0" in page.splitlines()
            assert 'rollscope_target_up{kind="file_sd",run="run",target="discovery engines"} 1.0' in page
            write(listed, two.place, job="rollout")
            run.step(2)
            assert name not in render(run.reader, "0").decode()
            status = msgspec.to_builtins(run.reader.status("run"))
            assert {one["target"] for one in status["trust"]} == {f"rollout/{two.place}", "discovery engines"}
            run.clock.set(run.now + 86_400)
            assert name not in run.targets()


def test_a_run_begins_with_an_empty_list(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with following(kept, by_file(listed)) as run:
        run.step(2)
        assert run.targets()["discovery engines"].error == f"{listed}: is missing"
        with engine(running=6) as one:
            write(listed, one.place)
            run.step(2)
            assert run.running == 6 and run.targets()["discovery engines"].up
    assert run.now > T0
