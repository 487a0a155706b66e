"""The API and /metrics over a real store, through the whole application with its gate."""

import asyncio
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.api import gate
from server.api.app import close_api, create_api
from server.api.gate import Gate
from server.store import Store
from tests.driven_run import ENGINE, T0, TRAINER, Bench, bench, page, steps

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


def fill(made: Bench) -> Bench:
    """A run with two minutes of pages and twelve steps."""
    made.commit(TRAINER, steps(1, 12, batch_samples=64.0), T0)
    for n in range(73):
        made.commit(ENGINE, page(n, 10.0 * n, waiting=2), T0 + 5 * n)
    made.advance(T0 + 360)
    return made


@pytest.fixture(
    scope="module",
    params=[pytest.param("sqlite", marks=pytest.mark.sqlite), pytest.param("postgres", marks=pytest.mark.postgres)],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Made once per kind of database: look, do not touch."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path_factory.mktemp("api") / "store.db"
            shutil.copyfile(request.getfixturevalue("migrated_file"), path)
            url = f"sqlite:///{path}"
        else:
            url = stack.enter_context(request.getfixturevalue("reused_database").lend())
        store = Store.open(url)
        stack.callback(store.close)
        yield fill(stack.enter_context(bench(store)))


@pytest.fixture
def own(store: Store) -> Iterator[Bench]:
    """One of the test's own, which may go on with it."""
    with bench(store) as made:
        yield fill(made)


class Client:
    """Requests against the app without a socket."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8050") as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(ask())


def client(run: Bench, *, ready: str | None = None, **access: Any) -> Client:
    api = create_api(run.reader, version="1.2.3", ready=lambda: ready)
    close_api(api)
    return Client(Gate(api, hosts=["127.0.0.1", "localhost"], csp=lambda: "default-src 'self'", **access))


def test_series_over_steps(run: Bench) -> None:
    # Twelve steps; the first ratio there is stands at the third.
    ask = "/api/v1/runs/run/series?" + urlencode({"signal": "trainer_wait_ratio", "by": "step", "start": T0 - 3600})
    [found] = client(run)("GET", ask).json()["series"]
    assert (found["step"][0], found["step"][-1], found["unit"]) == (3, 12, "ratio")
    assert len(found["mean"]) == len(found["step"]) == 10
    assert client(run)("GET", ask.replace("by=step", "by=row")).status_code == 422


def test_status_has_the_shape_of_the_contract(run: Bench) -> None:
    status = client(run)("GET", "/api/v1/runs/run/status").json()
    assert set(status) == {
        "run",
        "framework",
        "mode",
        "lifecycle",
        "state",
        "summary",
        "now",
        "verdict",
        "signals",
        "alerts",
        "trust",
        "facts",
        "gone",
    }
    assert set(status["verdict"]) == {
        "outcome", "cause", "confidence", "since", "summary", "evidence", "shares", "next", "usd_per_hour", "usd_lacks",
        "rule", "completeness", "limiters", "advice", "advice_lacks", "engine_speed", "numbers", "missing",
        "disagreements", "contradictions", "buffer", "rules_version", "as_of",
    }  # fmt: skip
    assert (status["run"], status["framework"], status["mode"], status["lifecycle"]) == (
        "run",
        "prime_rl",
        "async",
        "running",
    )
    wait = status["signals"]["trainer_wait_ratio"]
    assert wait == {
        "name": "trainer_wait_ratio", "signal": "trainer_wait_ratio", "labels": {}, "value": pytest.approx(0.4),
        "unit": "ratio", "state": "critical", "age_seconds": pytest.approx(0.0), "source": "trainer", "why": "",
        "ts": pytest.approx(status["now"]),
    }  # fmt: skip
    assert status["signals"]["queue_samples"]["state"] == "unknown"
    assert "the orchestrator prints the queue" in status["signals"]["queue_samples"]["why"]
    assert status["trust"] == client(run)("GET", "/api/v1/targets?run=run").json() and len(status["trust"]) == 2


def test_series_are_buckets_with_extremes(run: Bench) -> None:
    name = 'generator_requests_now{state="running"}'
    answer = client(run)(
        "GET", "/api/v1/runs/run/series", params={"signal": name, "start": T0, "end": T0 + 300, "points": 5}
    )
    one = answer.json()["series"][0]
    assert one["name"] == name and one["unit"] == "requests"
    assert (one["low"][1], one["mean"][1], one["high"][1]) == (12, 17.5, 23)


def test_since_returns_only_what_is_new(own: Bench) -> None:
    ask = client(own)
    cursor = ask("GET", "/api/v1/runs/run/series", params={"signal": "trainer_wait_ratio"}).json()["cursor"]
    own.commit(TRAINER, steps(13, 13, wait=30.0), T0 + 400)
    own.advance(T0 + 400)
    delta = ask("GET", "/api/v1/runs/run/series", params={"signal": "trainer_wait_ratio", "since": cursor}).json()
    assert delta["points"] == {"trainer_wait_ratio": [[T0 + 390, pytest.approx((9 * 12 + 30) / 300)]]}
    again = ask("GET", "/api/v1/runs/run/series", params={"since": delta["cursor"]}).json()
    assert again["points"] == {} and not again["reset"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/runs/nobody/status", 404), ("/api/nope", 404), ("/api/v2/runs", 404),
        ("/api/v1/runs/run/series?signal=a{b", 422), ("/api/v1/runs/run/series?points=0", 422),
        ("/api/v1/runs/run/series?start=5&end=5", 422), ("/api/v1/runs/run/series?points=999999", 422),
        ("/api/v1/runs/run/series?start=nan", 422), ("/api/v1/runs/run/series?end=inf", 422),
        ("/api/v1/runs/run/series?start=-1e300", 422),
    ],
)  # fmt: skip
def test_errors_are_json(run: Bench, path: str, status: int) -> None:
    answer = client(run)("GET", path)
    assert answer.status_code == status and isinstance(json.loads(answer.content)["detail"], str)


def test_invalid_parameters_are_one_sentence(run: Bench) -> None:
    answer = client(run)("GET", "/api/v1/runs/run/series?points=0&start=x")
    start = "start should be a valid number, unable to parse string as a number"
    assert answer.status_code == 422
    assert answer.json() == {"detail": f"{start}; points should be greater than or equal to 1"}


def test_health_and_readiness(run: Bench) -> None:
    assert client(run)("GET", "/healthz").json() == {"status": "ok"}
    assert client(run)("GET", "/readyz").status_code == 200
    broken = client(run, ready="collecting stopped: OSError")("GET", "/readyz")
    assert (broken.status_code, broken.json()) == (503, {"status": "collecting stopped: OSError"})


def test_docs_list_every_route_and_load_nothing(run: Bench) -> None:
    text = client(run)("GET", "/docs").text
    assert "/api/v1/runs/{run}/status" in text and "<script" not in text
    assert "/api/v1/targets" in client(run)("GET", "/openapi.json").json()["paths"]


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_metrics_say_what_the_api_says(run: Bench) -> None:
    ask = client(run)
    found = samples(ask("GET", "/metrics").text)
    status = ask("GET", "/api/v1/runs/run/status").json()
    assert found[("rollscope_trainer_wait_ratio", (("run", "run"),))] == pytest.approx(0.4)
    assert found[("rollscope_generator_requests_now", (("run", "run"), ("state", "running")))] == 72
    assert found[("rollscope_trained_tokens_total", (("run", "run"),))] == 12_000
    assert found[("rollscope_run_state", (("run", "run"), ("state", "running")))] == 1
    assert found[("rollscope_target_up", (("kind", "vllm"), ("run", "run"), ("target", "engine-0")))] == 1
    assert found[("rollscope_run_info", (("framework", "prime_rl"), ("mode", "async"), ("run", "run")))] == 1
    assert found[("rollscope_signal_state", (("run", "run"), ("signal", "queue_samples"), ("state", "unknown")))] == 1
    names = {name for name, _ in found}
    known: dict[str, bool] = {}
    for name, signal in status["signals"].items():
        base = "rollscope_" + name.split("{")[0]
        known[base] = known.get(base, False) or signal["value"] is not None
    for base, has_value in known.items():
        assert (base in names) == has_value, base


def test_unknown_series_disappear_from_metrics(own: Bench) -> None:
    own.advance(T0 + 360 + 4000)
    found = samples(client(own)("GET", "/metrics").text)
    assert ("rollscope_trainer_wait_ratio", (("run", "run"),)) not in found
    assert ("rollscope_trained_tokens_total", (("run", "run"),)) in found  # counters stay
    assert not any(math.isnan(value) for value in found.values())


def test_promtool_is_silent(run: Bench) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; with it, this checks the page's names and help texts")
    body = client(run)("GET", "/metrics").content
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- the gate


def test_foreign_hosts_and_origins_are_refused(run: Bench) -> None:
    ask = client(run)
    assert ask("GET", "/healthz", headers={"host": "evil.example"}).status_code == 421
    assert ask("POST", "/api/v1/x", headers={"origin": "http://evil.example"}).status_code == 403
    assert ask("POST", "/api/v1/x", headers={"origin": "http://127.0.0.1:8050"}).status_code == 404
    assert ask("GET", "/healthz", headers={"host": "LOCALHOST:8050"}).status_code == 200


def test_a_token_guards_everything_but_health(run: Bench) -> None:
    ask = client(run, token="s3cret")
    for path in ("/", "/metrics", "/api/v1/runs", "/docs", "/openapi.json"):
        assert ask("GET", path).status_code == 401, path
        assert ask("GET", path, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert ask("GET", "/metrics", headers={"authorization": "Bearer s3cret"}).status_code == 200
    assert ask("GET", "/healthz").status_code == ask("GET", "/readyz").status_code == 200
    page_ = ask("GET", "/", headers={"accept": "text/html"})
    assert (page_.status_code, page_.headers["location"]) == (303, "/login?next=%2F")


@pytest.mark.parametrize(
    ("wanted", "leads"),
    [
        ("/?run=a%20b&start=1&end=2", "/?run=a%20b&start=1&end=2"),
        ("/alerts?run=x", "/alerts?run=x"),
        ("//evil.example/x", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("", "/"),
    ],
)
def test_the_login_leads_where_the_link_did_and_never_elsewhere(run: Bench, wanted: str, leads: str) -> None:
    ask = client(run, token="s3cret")
    form = {"content-type": "application/x-www-form-urlencoded"}
    if wanted.startswith("/") and leads != "/":
        sent = ask("GET", wanted, headers={"accept": "text/html"}).headers["location"]
    else:
        sent = "/login?" + urlencode({"next": wanted})
    page_ = ask("GET", sent)
    action = re.search(r'action="([^"]*)"', page_.text)
    assert action is not None
    answer = ask("POST", action[1], content="token=s3cret", headers=form)
    assert (answer.status_code, answer.headers["location"]) == (303, leads)


def test_a_nul_is_in_no_name(run: Bench) -> None:
    ask = client(run)
    for path in ("/api/v1/runs/a%00b/status", "/api/v1/alerts?run=a%00", "/api/v1/silences/a%00b"):
        assert ask("GET", path).status_code == 400


def test_bytes_that_are_not_utf8_are_in_no_name(run: Bench) -> None:
    ask = client(run)
    for path in ("/api/v1/runs/%ff/status", "/api/v1/alerts?run=a%ff", "/api/v1/targets?run=%ed%a0%80"):
        answer = ask("GET", path)
        assert (answer.status_code, answer.json()) == (400, {"detail": "the path or the query is not UTF-8"})
    assert ask("GET", "/api/v1/runs/%c3%bc/status").status_code == 404


def test_a_browser_logs_in_and_gets_a_cookie_without_the_token(run: Bench) -> None:
    ask = client(run, token="s3cret")
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert "Access token" in ask("GET", "/login").text
    assert ask("POST", "/login", content="token=nope", headers=form).status_code == 401
    answer = ask("POST", "/login", content="token=s3cret", headers=form)
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 303 and "s3cret" not in cookie and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    session = cookie.split(";")[0]
    assert ask("GET", "/api/v1/runs", headers={"cookie": session}).status_code == 200
    assert ask("GET", "/api/v1/runs", headers={"cookie": session + "x"}).status_code == 401
    assert ask("GET", "/api/v1/runs", headers={"cookie": b"rollscope_session=\xff"}).status_code == 401


def test_security_headers(run: Bench) -> None:
    answer = client(run)("GET", "/docs")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'self'"


def test_odd_headers_are_answered_not_crashed_on(run: Bench) -> None:
    ask = client(run, token="s3cret-token")
    assert ask("POST", "/api/v1/x", headers={"origin": "http://["}).status_code == 403
    assert ask("POST", "/api/v1/x", headers={"content-length": "99999999999"}).status_code == 413
    assert (
        ask("GET", "/api/v1/runs", headers={"authorization": "Bearer caf\u00e9".encode("latin-1")}).status_code == 401
    )


def test_cookies_of_other_ports_do_not_lock_us_out(run: Bench) -> None:
    ask = client(run, token="s3cret-token")
    form = {"content-type": "application/x-www-form-urlencoded"}
    session = ask("POST", "/login", content="token=s3cret-token", headers=form).headers["set-cookie"].split(";")[0]
    assert ask("GET", "/api/v1/runs", headers={"cookie": f'prefs={{"a":1}}; {session}'}).status_code == 200


def test_the_login_page_has_the_security_headers(run: Bench) -> None:
    answer = client(run, token="s3cret-token")("GET", "/login")
    assert answer.headers["x-content-type-options"] == "nosniff" and "content-security-policy" in answer.headers


def test_a_signal_without_labels_means_all_its_series_and_an_unknown_one_is_told(run: Bench) -> None:
    ask = client(run)
    found = ask("GET", "/api/v1/runs/run/series", params={"signal": "generator_requests", "start": T0, "end": T0 + 300})
    names = [one["name"] for one in found.json()["series"]]
    assert names == ['generator_requests{state="running"}', 'generator_requests{state="waiting"}']
    missing = ask("GET", "/api/v1/runs/run/series", params={"signal": "nope"})
    assert missing.status_code == 404 and "signals" in missing.json()["detail"]
    many = ask("GET", "/api/v1/runs/run/series", params={"signal": ["reward"] * 500})
    assert many.status_code == 422


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/api/v1/runs", "/api/v1/nosuch"])
def test_head_is_answered_as_get_without_the_body(run: Bench, path: str) -> None:
    head, get = client(run)("HEAD", path), client(run)("GET", path)
    assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
    assert head.content == b"" and get.content != b""


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/api", 404, None),
        ("PUT", "/api/v1/nosuch", 404, None),
        ("POST", "/api/v1/runs", 405, "GET"),
        ("DELETE", "/api/v1/runs/run/status", 405, "GET"),
        ("POST", "/metrics", 405, "GET"),
    ],
)
def test_an_unknown_path_is_404_and_another_method_405(
    run: Bench, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = client(run)(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert path != "/api/v1/runs" or answer.json() == {"detail": "POST is not possible here; possible: GET"}


ADMIN = "admin-token-of-the-test"
PAGE = {"accept": "text/html"}
# Paths with answers that differ from 401 by routes: 404 for what no run has.
CHANGES = [
    ("DELETE", "/api/v1/runs/run?confirm=run"),
    ("POST", "/api/v1/silences"),
    ("DELETE", "/api/v1/silences/s1"),
    ("POST", "/api/v1/runs/run/preflight"),
]
READS = [("GET", "/api/v1/runs"), ("GET", "/metrics"), ("GET", "/healthz"), ("POST", "/api/v1/runs/run/events")]


@pytest.fixture(autouse=True)
def prompt_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "WRONG_SECONDS", 0.0)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_on_a_loopback_address_a_change_needs_the_admin_token(run: Bench, method: str, path: str) -> None:
    ask = client(run, admin=ADMIN)
    refused = ask(method, path)
    assert refused.status_code == 401 and "needs the admin token" in refused.json()["detail"]
    assert refused.headers["www-authenticate"] == "Bearer"
    assert ask(method, path, headers={"authorization": f"Bearer {ADMIN}x"}).status_code == 401
    entered = ask("GET", f"/?run=run&token={ADMIN}", headers=PAGE)
    assert (entered.status_code, entered.headers["location"]) == (303, "/?run=run")
    cookie = entered.headers["set-cookie"].partition(";")[0]
    for allowed in ({"authorization": f"Bearer {ADMIN}"}, {"cookie": cookie}):
        assert ask(method, path, headers=allowed).status_code != 401


@pytest.mark.parametrize(("method", "path"), READS)
def test_reading_and_pushing_stay_open_unless_the_server_is_private(run: Bench, method: str, path: str) -> None:
    assert client(run, admin=ADMIN)(method, path).status_code != 401
    private = client(run, admin=ADMIN, private=True)
    assert private(method, path).status_code == (200 if path == "/healthz" else 401)
    assert private(method, path, headers={"authorization": f"Bearer {ADMIN}"}).status_code != 401


def test_an_address_with_another_token_opens_no_session(run: Bench) -> None:
    refused = client(run, admin=ADMIN)("GET", "/?token=guess", headers=PAGE)
    assert refused.status_code == 401 and "set-cookie" not in refused.headers


def test_wrong_tokens_are_answered_one_after_another(run: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tries at once take as long as many tries in a row. The waits are counted, not slept."""
    waits: list[float] = []
    waiting = 0

    async def sleep(seconds: float) -> None:
        nonlocal waiting
        waiting += 1
        assert waiting == 1
        waits.append(seconds)
        await real(0)
        waiting -= 1

    real = asyncio.sleep
    monkeypatch.setattr(gate, "WRONG_SECONDS", 0.5)
    monkeypatch.setattr(gate.asyncio, "sleep", sleep)
    api = create_api(run.reader, version="1.2.3", ready=lambda: None)
    app = Gate(api, hosts=["127.0.0.1"], token=ADMIN)

    async def tries() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8050") as http:
            guess = {"authorization": "Bearer guess"}
            found = await asyncio.gather(*(http.get("/api/v1/runs", headers=guess) for _ in range(5)))
        return [answer.status_code for answer in found]

    assert asyncio.run(tries()) == [401] * 5
    assert waits == [0.5] * 5
