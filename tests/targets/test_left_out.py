"""An entry that is refused is a word beside its list; a list that cannot be read is an alert of its own."""

import json
from pathlib import Path

import pytest

from server.config.alerts import defaults
from server.main import main
from server.store import Store
from server.targets.model import DiscoverSettings
from tests.targets.engine import engine
from tests.targets.following import by_file, following, write
from tests.targets.serving import serving

REFUSED = "is a link-local or multicast address (clouds serve metadata there)"


def test_a_refused_entry_does_not_take_its_list_down(
    kept: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=3) as one:
        write(listed, one.place, "169.254.169.254:80")
        with following(kept, by_file(listed)) as run:
            run.step()
            row = run.targets()["discovery engines"]
            assert (row.up, row.age_seconds, row.samples) == (True, 0, 1)
            assert row.error == f"left out: {listed}: [0].targets[1] {REFUSED}"
            assert run.running == 3
        assert main(["check", str(listed)]) == 0
        assert f"discovery file_sd (file_sd): 1 target, left out: {listed}: [0].targets[1] {REFUSED}" in (
            capsys.readouterr().out
        )


def test_a_router_with_a_worker_that_has_no_page_is_asked_as_often_as_before(kept: Store) -> None:
    with engine(running=3) as one, engine(running=5) as two, serving() as answers:
        grpc = {"url": "grpc://192.0.2.1:1"}

        def workers(*found: dict[str, str]) -> None:
            body = json.dumps({"workers": found}).encode()
            answers.paths["/workers"] = (200, "application/json", body)

        workers({"url": f"http://{one.place}"}, {"url": f"http://{two.place}"}, grpc)
        with following(kept, DiscoverSettings("router", (answers.url,), "router", refresh_seconds=15)) as run:
            run.step(40)  # 200 s: by the back-off it had from the third failure on it was asked every minute and more
            assert len(answers.asked) == 14
            workers({"url": f"http://{one.place}"}, grpc)
            run.step(3)
            assert run.up() == {f"router/{one.place}": True}


def test_a_list_that_cannot_be_read_for_five_minutes_is_an_alert(kept: Store, tmp_path: Path) -> None:
    listed = tmp_path / "engines.json"
    with engine(running=3) as one:
        write(listed, one.place)
        with following(kept, by_file(listed), alerts=defaults()) as run:
            for step in range(80):
                one.tokens += 10
                run.step()
                if step == 3:
                    listed.write_text('[{"targets": ["h:')
                if step == 60:  # 56 looks at what is broken: 280 s
                    assert run.firing() == []
            assert run.firing() == [("DiscoveryDown", "discovery engines")]
            write(listed, one.place)
            one.tokens += 10
            run.step()
            assert run.firing() == []
