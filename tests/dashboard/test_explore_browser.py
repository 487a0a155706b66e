"""The Explore page in a real Chromium, over a real store: the catalogue, charts by label, what the address holds."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response

from collectors.catalog import METRICS
from dashboard.app import attach
from dashboard.shell import layout as shell_layout
from server.api.app import create_api
from server.api.panels import add_panels
from server.lib.clock import ScaledClock
from server.query import Reader
from server.signals import Counter, load
from server.store import Store
from server.store.types import Batch, LatestRow, OwnPanel, PointState, SeriesKey
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, until, wait
from tests.store.helpers import T0

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
# Per minute, of the ten minutes up to the present; the second engine is silent after five.
KV = {"engine-0": [0.5 + 0.04 * i for i in range(11)], "engine-1": [0.2] * 6, "engine-2": [0.9] * 11}
WAIT = {580_000: 0.3, 595_000: 0.74}
NOW = T0 / 1000 + 600
LEGEND = (
    "key => RS.all(`#panel-${key} .legend .item`)"
    ".map(el => [el.querySelector('span').textContent, el.querySelector('b').textContent])"
)
TITLES = (
    "() => RS.all('#ex-charts .panel')"
    ".map(el => el.querySelector('.row').innerText.replace(/\\s+/g, ' ').replace(/ ⋯$/, ''))"
)
KEYS = "() => RS.all('#ex-charts .panel').map(el => el.dataset.panel)"
DRAWN = "n => RS.all('#ex-charts .panel[data-state=data] .chart').filter(gd => gd._fullLayout).length === n"
LISTED = "() => RS.all('#ex-list .catalogue-row').map(el => el.dataset.pick)"


@pytest.fixture(scope="module")
def store(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = shutil.copyfile(migrated_file, tmp_path_factory.mktemp("explore") / "store.db")
    made = Store.open(f"sqlite:///{path}")
    for target, values in KV.items():
        fill(made, SeriesKey(target, "kv_cache_usage_ratio"), [(60 * i, value) for i, value in enumerate(values)])
    [wait] = made.series.intern("run", [SeriesKey("", "trainer_wait_ratio")])
    points = [(wait, T0 + at, value, PointState.VALUE) for at, value in WAIT.items()]
    made.write(Batch("run", points=points, latest=[LatestRow(*points[-1])]))
    yield made
    made.close()


def fill(store: Store, key: SeriesKey, rows: list[tuple[float, float]]) -> None:
    [series] = store.series.intern("run", [key])
    store.write(Batch("run", samples=[(series, T0 + round(at * 1000), value) for at, value in rows]))


@pytest.fixture
def open_page(browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the page with a query."""
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 400)
    reader = Reader(store, ScaledClock(NOW))

    def app() -> object:
        api = create_api(reader, version="1", ready=lambda: None)
        add_panels(api, reader, store, ScaledClock(NOW), [OwnPanel(metric="kv_cache_usage_ratio", title="KV of each")])
        attach(api, reader, version="0.0.0")
        return api

    with Serving(app) as serving, new_pages(browser, "404 (Not Found)") as new:  # type: ignore[arg-type]

        def opened(query: str = "", path: str = "explore", size: tuple[int, int] = (1440, 900)) -> Page:
            page = new("light", size)
            page.goto(f"{serving.url}{path}?{query}")
            page.wait_for_selector("[data-page=ok]")
            return page

        yield opened


def address(page: Page) -> dict[str, str]:
    return {key: values[-1] for key, values in parse_qs(urlsplit(page.url).query).items()}


def test_every_metric_and_every_signal_is_found(open_page: Open) -> None:
    page = open_page()
    until(page, f"() => ({LISTED})().length > 0")
    # Without words: what the run reports.
    assert page.evaluate(LISTED) == ["signal:trainer_wait_ratio", "metric:kv_cache_usage_ratio"]
    assert page.locator("#ex-said").inner_text().startswith(f"2 of {len(METRICS) + 3 + len(signals())} reported")
    # Its own style: another page's for the same class would hide the ages.
    assert page.evaluate("getComputedStyle(RS.all('.catalogue-row')[0]).display") == "grid"
    page.locator("#ex-find input").fill("_")
    until(page, f"() => ({LISTED})().length > 100")
    listed = set(page.evaluate(LISTED))
    wanted = {f"metric:{name}" for name in METRICS} | {f"signal:{name}" for name in signals()}
    assert wanted - listed == {name for name in wanted if "_" not in name.split(":")[1]} - listed
    for name in wanted - listed:
        page.locator("#ex-find input").fill(name.split(":")[1])
        until(page, f"name => ({LISTED})().includes(name)", name)


def signals() -> list[str]:
    """Signals with a history: counters are for `/metrics` alone."""
    return [item.name for item in load() if not isinstance(item, Counter)]


def test_a_metric_is_drawn_by_target_and_split_into_charts(open_page: Open) -> None:
    page = open_page("range=15m")
    until(page, f"() => ({LISTED})().length > 0")
    page.locator("[data-pick='metric:kv_cache_usage_ratio']").click()
    until(page, DRAWN, 1)
    [key] = page.evaluate(KEYS)
    # The last value of each line: one that fell silent has the last it had.
    assert page.evaluate(LEGEND, key) == [["engine-0", "90%"], ["engine-1", "20%"], ["engine-2", "90%"]]
    assert page.evaluate(TITLES) == ["kv_cache_usage_ratio % · mean of 3 s"]
    assert address(page)["metric"] == "kv_cache_usage_ratio"
    # A silent target's line ends where it fell silent, after five minutes, and does not fall to zero.
    silent, others = (
        page.evaluate(f"key => document.querySelector(`#graph-${{key}} .chart`).data[{i}]", key) for i in (1, 2)
    )
    assert set(silent["y"]) - {None} == {0.2} and max(others["x"]) - max(silent["x"]) == 300_000
    page.locator("#ex-chosen select").last.select_option("target")
    until(page, DRAWN, 3)
    assert page.evaluate(TITLES) == [f"kv_cache_usage_ratio % · mean of 3 s · target engine-{i}" for i in range(3)]
    page.locator(".chosen-one select").select_option("engine-2")
    until(page, DRAWN, 1)
    assert address(page)["metric"] == 'kv_cache_usage_ratio{target="engine-2"}' and address(page)["split"] == "target"
    page.locator("#ex-chosen .switch").click()
    until(page, "() => RS.all('#ex-charts .chart')[0]._fullLayout?.yaxis.type === 'log'")
    assert address(page)["log"] == "1"


def test_the_address_holds_the_charts_and_a_signal_has_its_title(open_page: Open) -> None:
    page = open_page("range=15m&signal=trainer_wait_ratio&metric=kv_cache_usage_ratio,nope&split=target&log=1")
    until(page, DRAWN, 4)
    titles = page.evaluate(TITLES)
    assert titles[0] == "Trainer wait % · mean of 3 s · log scale" and len(titles) == 5
    [first, *_, last] = page.evaluate(KEYS)
    assert page.evaluate(LEGEND, first) == [["now", "74%"]]
    # What there is not says so and leaves the others alone.
    assert page.locator(f"#panel-{last} .why p").inner_text() == "No metric named 'nope'; see /api/v1/metrics"
    page.get_by_role("button", name="Remove Trainer wait").click()
    until(page, f"() => ({KEYS})().length === 4")
    assert "signal" not in address(page)


def test_a_signal_that_is_not_reported_names_what_to_log(open_page: Open) -> None:
    page = open_page("range=15m&signal=entropy")
    until(page, "() => RS.all('#ex-charts .why p')[0]?.innerText.startsWith('Not reported by this run')")
    expected = "Not reported by this run: this trainer reports no entropy (TRL `entropy`, prime-rl `entropy/all/mean`)"
    assert page.locator("#ex-charts .why p").inner_text() == expected


def test_a_chart_opens_in_the_explorer_with_its_signals(open_page: Open) -> None:
    page = open_page("range=15m", path="trainer")
    page.locator("#panel-tphase .tools").click(force=True)
    page.get_by_role("menuitem", name="Open in Explore").click()
    until(page, "() => RS.state.boot.key === 'explore' && RS.all('#ex-charts .panel').length === 2")
    assert address(page)["signal"] == "trainer_phase_seconds,trainer_overhead_seconds"


def test_on_a_phone_nothing_is_wider_than_the_screen(open_page: Open) -> None:
    page = open_page("range=15m&signal=trainer_wait_ratio&metric=kv_cache_usage_ratio&split=target", size=(390, 844))
    until(page, "() => RS.all('#ex-charts .panel').length === 4")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


OWN = "() => RS.all('#own-charts .panel').map(el => el.querySelector('h2').textContent)"


def until_kept(store: Store, count: int) -> None:
    wait(lambda: len(store.panels.of("mia")) == count)


def test_own_panels_are_added_ordered_and_removed(open_page: Open, store: Store) -> None:
    query = "range=15m&signal=trainer_wait_ratio&metric=kv_cache_usage_ratio{target=%22engine-2%22}&log=1"
    page = open_page(query)
    until(page, DRAWN, 2)
    page.locator(".chosen-one .plain").first.click()
    page.locator("dialog input").fill("mia")
    page.locator("dialog button.more").click()
    until(page, "() => document.querySelector('#toast')?.textContent === 'Added to Overview'")
    page.locator(".chosen-one .plain").last.click()
    until_kept(store, 2)
    page.locator("[data-nav=overview]").first.click()
    # First that of the configuration, then those of the user, who cannot move the first.
    until(page, f"() => ({OWN})().length === 3")
    assert page.evaluate(OWN) == ["KV of each", "trainer_wait_ratio", "kv_cache_usage_ratio"]
    assert page.locator("#own-charts .handle").count() == 2
    wanted = [
        OwnPanel(signal="trainer_wait_ratio", log=True),
        OwnPanel(metric='kv_cache_usage_ratio{target="engine-2"}', log=True),
    ]
    assert store.panels.of("mia") == wanted
    page.locator("#own-charts .handle").last.focus()
    page.keyboard.press("ArrowLeft")
    until(page, "() => document.querySelector('#toast')?.textContent === 'Moved to place 1 of 2'")
    assert page.evaluate(OWN) == ["KV of each", "kv_cache_usage_ratio", "trainer_wait_ratio"]
    assert store.panels.of("mia") == wanted[::-1]
    until(page, "() => document.activeElement.matches('#own-charts .own-charts:nth-child(2) .handle')")
    page.locator("#own-charts .handle").first.drag_to(page.locator("#own-charts .panel").last)
    until(page, "() => document.querySelector('#toast')?.textContent === 'Moved to place 2 of 2'")
    assert store.panels.of("mia") == wanted
    # A key that is pressed before the server has answered moves from the place reached: there and back.
    saves: list[str] = []

    def second_save(response: Response) -> bool:
        saves.extend([response.url] if response.request.method == "PUT" else [])
        return len(saves) == 2

    with page.expect_response(second_save):
        page.evaluate("""() => ["ArrowLeft", "ArrowRight"].forEach((key) =>
            RS.all("#own-charts .panel").find((el) => el.querySelector("h2").textContent === "kv_cache_usage_ratio")
                .querySelector(".handle").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })))""")
    assert page.evaluate(OWN) == ["KV of each", "trainer_wait_ratio", "kv_cache_usage_ratio"]
    assert store.panels.of("mia") == wanted
    page.locator("#own-charts .panel").last.locator(".tools").click(force=True)
    page.get_by_role("menuitem", name="Remove from Overview").click()
    until(page, f"() => ({OWN})().length === 2")
    wait(lambda: store.panels.of("mia") == wanted[:1])
