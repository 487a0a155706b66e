"""The pre-flight on demand: over HTTP with its gate, one at a time, not twice in a moment, not in the event loop."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from server.api.runs import add_preflight
from server.lib.clock import Clock
from server.lib.secret import Secret
from server.preflight.live import Preflights, active_run_names
from server.preflight.model import PreflightPlan
from server.query import Reader
from server.store import Store
from server.store.types import Batch
from server.targets.model import RunSettings, TargetSettings
from tests.api.test_alerts import Web as AlertWeb
from tests.driven_run import T0, Bench, bench
from tests.preflight.support import KEY, NOW, World, prime_row, serving

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

PATH = "/api/v1/runs/run/preflight"


def web(run: Bench, preflights: Preflights, token: str | None = None) -> AlertWeb:
    run.reader = Reader(run.store, run.clock, None, preflights.get)

    def routes(api: Any, reader: Reader, store: Store, clock: Clock) -> None:
        add_preflight(api, reader, preflights)

    made = type("Web", (AlertWeb,), {"routes": (routes,)})
    return made(run, token)  # type: ignore[no-any-return]


class Ticks:
    """A monotonic clock that stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """A reading that ends when it is told to."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), list[str]()
        self.error: Exception | None = None

    def __call__(self, run: str) -> Mapping[str, Any]:
        self.asked.append(run)
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        check = {"name": "quota", "status": "warn", "summary": "95 of 100", "fix": "ask for more", "value": 95.0,
                 "limit": 100.0, "unit": "sandboxes", "details": [], "ids": ["a"], "commands": ["rm a"]}  # fmt: skip
        return {"run": run, "outcome": "warn", "plan": {}, "checks": [check]}


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("preflight "):
            thread.join(20)


@pytest.fixture
def run(store: Store):  # type: ignore[no-untyped-def]
    with bench(store) as made:
        store.ensure_run("run")
        store.ensure_run("stranger")
        yield made


def test_begun_read_and_kept(run: Bench) -> None:
    slow, ticks = Slow(), Ticks()
    ask = web(run, Preflights([(RunSettings("run"), PreflightPlan(concurrency=960))], run.clock, set, slow, ticks))
    never = ask("GET", PATH).json()
    assert (never["run"], never["state"], never["outcome"], never["checks"]) == ("run", "never", "", [])
    assert never["plan"]["concurrency"] == 960 and never["plan"]["create_rate"] is None
    begun = ask("POST", PATH)
    assert (begun.status_code, begun.json()["state"], begun.json()["started_at"]) == (202, "running", T0)
    # The answer came while the reading stands still: it is not in the event loop, nor does anybody wait for it.
    assert ask("POST", PATH).status_code == 409
    run.clock.set(T0 + 7)
    slow.go.set()
    ended()
    found = ask("GET", PATH).json()
    assert (found["state"], found["outcome"], found["finished_at"]) == ("done", "warn", T0 + 7)
    assert [(c["name"], c["value"], c["limit"], c["commands"]) for c in found["checks"]] == [
        ("quota", 95.0, 100.0, ["rm a"])
    ]
    assert slow.asked == ["run"]


def test_not_twice_in_a_moment(run: Bench) -> None:
    slow, ticks = Slow(), Ticks()
    slow.go.set()
    ask = web(run, Preflights([(RunSettings("run"), PreflightPlan())], run.clock, set, slow, ticks))
    ask("POST", PATH)
    ended()
    ticks.now += 29.0
    early = ask("POST", PATH)
    assert (early.status_code, early.headers["retry-after"]) == (429, "1")
    assert ask("GET", PATH).json()["retry_at"] == T0 + 1
    ticks.now += 1.0
    assert ask("GET", PATH).json()["retry_at"] is None
    assert ask("POST", PATH).status_code == 202
    ended()
    assert slow.asked == ["run", "run"]


def test_what_breaks_is_said_and_what_was_known_stays(run: Bench, caplog: pytest.LogCaptureFixture) -> None:
    slow, ticks = Slow(), Ticks()
    slow.go.set()
    preflights = Preflights([(RunSettings("run"), PreflightPlan())], run.clock, set, slow, ticks)
    preflights.begin("run")
    ended()
    ticks.now += 30
    slow.error = RuntimeError("a secret of the provider")
    preflights.begin("run")
    ended()
    found = preflights.get("run")
    assert (found.state, found.error) == ("failed", "it failed: RuntimeError; the server's log has more")
    assert [check.name for check in found.checks] == ["quota"]


def test_a_run_without_configuration_and_one_that_nobody_knows(run: Bench) -> None:
    ask = web(run, Preflights([(RunSettings("run"), PreflightPlan())], run.clock, set, Slow()))
    assert ask("GET", "/api/v1/runs/stranger/preflight").json()["state"] == "not_configured"
    answer = ask("POST", "/api/v1/runs/stranger/preflight")
    assert answer.status_code == 409 and "rollscope preflight -c FILE RUN" in answer.json()["detail"]
    assert ask("GET", "/api/v1/runs/nobody/preflight").status_code == 404
    assert ask("POST", "/api/v1/runs/nobody/preflight").status_code == 404


def test_neither_a_stranger_nor_another_sites_page_begins_one(run: Bench) -> None:
    slow = Slow()
    ask = web(run, Preflights([(RunSettings("run"), PreflightPlan())], run.clock, set, slow), token="0123456789abcdef")
    assert ask("POST", PATH).status_code == 401
    headers = {"authorization": "Bearer 0123456789abcdef", "origin": "http://evil.example"}
    assert ask("POST", PATH, headers=headers).status_code == 403
    assert slow.asked == []


def test_a_real_provider_is_read_and_what_is_left_behind_named(run: Bench) -> None:
    """Prime's own collector over HTTP. Three belong to a run that is gone; the others to this run, to one that is
    configured too and to one that is only known to the store."""
    others = [prime_row(7 + n, labels=(name,)) for n, name in enumerate(("run", "other", "stranger"))]
    world = World([*(prime_row(n, labels=("gone",)) for n in range(3)), *others])
    with serving(world, NOW) as url:
        target = TargetSettings(url, "prime", "prime_sandboxes", bearer=Secret(KEY))
        runs = [
            (RunSettings("run", (target,)), PreflightPlan(concurrency=960)),
            (RunSettings("other"), PreflightPlan()),
        ]
        ask = web(run, Preflights(runs, run.clock, lambda: active_run_names(run.reader)))
        run.clock.set(NOW)
        assert ask("POST", PATH).status_code == 202
        ended()
        found = ask("GET", PATH).json()
    checks = {check["name"]: check for check in found["checks"]}
    # 1,000 less the six that live.
    assert (checks["credentials"]["status"], checks["quota"]["value"], checks["quota"]["limit"]) == ("ok", 960.0, 994.0)
    assert (checks["dangling"]["status"], checks["dangling"]["ids"]) == ("warn", ["sb-000", "sb-001", "sb-002"])
    assert checks["dangling"]["commands"] == [f"prime sandbox delete sb-00{n}" for n in range(3)]
    assert KEY not in str(found)
    assert all(word.startswith("GET ") for word in world.asked)


def test_a_run_that_is_over_left_its_own_behind(run: Bench) -> None:
    """Only what its life says is over, is offered for removal."""
    with serving(World([prime_row(1, labels=("run",))]), NOW) as url:
        settings = RunSettings("run", (TargetSettings(url, "prime", "prime_sandboxes", bearer=Secret(KEY)),))
        run.clock.set(NOW)
        for lifecycle, ids in (("starting", ()), ("running", ()), ("paused", ()), ("crashed", ("sb-001",))):
            run.store.write(Batch("run", run_fields={"lifecycle": lifecycle}))
            preflights = Preflights([(settings, PreflightPlan())], run.clock, lambda: active_run_names(run.reader))
            preflights.begin("run")
            ended()
            checks = {check.name: check for check in preflights.get("run").checks}
            assert checks["dangling"].ids == ids, lifecycle
