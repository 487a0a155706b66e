"""The Generator and Trainer pages in a real Chromium: what is seen, drawn and live, and no name that is markup."""

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.pages.generator import engines
from dashboard.shell import layout as shell_layout
from tests.dashboard import fake
from tests.dashboard import fake_actors as actors
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
EVIL = "<img src=x onerror=\"document.title='owned'\">"
DRAWN = "() => document.querySelectorAll('.heat.fleet path.cell[d^=M]').length > 0"
BARS = "() => document.querySelectorAll('.bars-of-steps rect').length > 0"
# Names that stick out of the drawing on its left.
OUT = """() => { const left = document.querySelector('.heat.fleet').getBoundingClientRect().left - 1;
  return RS.all('.heat.fleet text').filter(el => el.getBoundingClientRect().left < left).length }"""
TITLE = "words => document.querySelector('.trainer-page h1').textContent === words"
# Where in the drawing a row and a column are.
PLACE = """([row, ms]) => {
  const at = document.querySelector('.heat.fleet').look;
  return [at.x(ms + RS.tz), 6 + (row + .5) * at.tall];
}"""


@pytest.fixture
def reader() -> MemoryReader:
    return actors.reader()


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    # A live test waits for a tick or two: shorter ones test the same.
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    monkeypatch.setattr(engines, "KEEP_SECONDS", 0.2)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens a page of a run."""
    with new_pages(browser) as new:

        def opened(
            path: str, run: str = actors.RUN, theme: str = "light", size: tuple[int, int] = (1440, 900), more: str = ""
        ) -> Page:
            page = new(theme, size)
            page.goto(f"{serving.url}{path}?run={run}{more}")
            page.wait_for_selector("[data-page=ok]")
            until(page, "() => RS.chartsReady()")
            return page

        yield opened


def cells_of(page: Page, rows: str, number: int = 0) -> list[str]:
    row = page.locator(f"[data-rows={rows}] tr").nth(number)
    return [" ".join(text.split()) for text in row.locator("th, td").all_inner_texts()]


def complaints(page: Page) -> list[str]:
    found = page.locator("[data-rows=gen-sick] li").all_inner_texts()
    return [" ".join(text.split()) for text in found]


@pytest.mark.parametrize(("theme", "size"), [("light", (1440, 900)), ("dark", (390, 844))])
def test_generator_at_a_glance(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page("generator", theme=theme, size=size)
    until(page, DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "vllm-3 is hung (1 of 8)"
    assert complaints(page) == [
        "vllm-3 no tokens for over a minute with requests running",
        "vllm-5 tokens/s per request 40, median 120 (33%)",
        "vllm-6 running 6, median 60 (10%)",
    ]
    # Every name that is drawn can be read.
    wide = page.locator("[data-rows=gen-sick] b").evaluate_all("all => all.map(el => el.clientWidth)")
    assert min(wide) > 30
    names = page.locator(".heat.fleet .axes text[text-anchor=end]").evaluate_all(
        "all => all.map(el => el.firstChild.data)"
    )
    assert names[:4] == ["vllm-3 hung", "vllm-5", "vllm-6", "vllm-0"]
    assert page.locator(".heat.fleet svg").get_attribute("aria-label") == (
        "KV cache of 8 engines over time; outliers: vllm-3 hung, vllm-5, vllm-6"
    )
    assert page.locator("#gen-room li .row").all_inner_texts()[0].split() == ["KV", "ceiling", "504"]
    assert page.locator(".ahead b").inner_text() == "Reached in 2.25 h (95% interval: 80 min to 5 h)"
    row = cells_of(page, "engines", 3)
    assert [text.split(": ")[-1] for text in row][:9] == [
        "vllm-0",
        "up",
        "61 of 128",
        "4",
        "81%",
        "7,200",
        "63%",
        "1.5",
        "v412",
    ]
    # What has no numbers says why.
    assert page.locator("#panel-gheld").get_attribute("data-state") == "unknown"


def test_another_map_is_another_address_and_the_cursor_reads_it(open_page: Open) -> None:
    page = open_page("generator")
    until(page, DRAWN)
    page.get_by_role("button", name="Preempted", exact=True).click()
    until(page, "() => RS.view['engine_heat.metric'] === 'preemptions' && RS.view['engine_heat.top'] === 6")
    assert "heat=preemptions" in page.url
    assert page.get_by_role("button", name="Preempted", exact=True).get_attribute("aria-pressed") == "true"
    at = 1000 * (actors.NOW - 600)
    for row, words in ((2, "vllm-6: 6 per minute"), (7, "vllm-7: no data")):
        place = page.evaluate(PLACE, [row, at])
        page.locator(".heat.fleet").hover(position={"x": place[0], "y": place[1]})
        assert page.locator(".tooltip").inner_text().endswith(words)
    # Of the last engine nothing is drawn: unknown is not none.
    below = page.evaluate("""() => { const at = document.querySelector('.heat.fleet').look, y = 6 + 7 * at.tall;
      return RS.all('.heat.fleet path.cell').filter(el => el.getAttribute('d').includes(` ${y}h`)).length }""")
    assert below == 0
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    until(page, "() => window.RS && RS.view['engine_heat.metric'] === 'preemptions'")
    # Of another page it is no question.
    page.get_by_role("link", name="Trainer", exact=True).click()
    until(page, "() => RS.boot.key === 'trainer'")
    assert "heat" not in page.url


def test_generator_is_live(open_page: Open, reader: MemoryReader) -> None:
    page = open_page("generator")
    until(page, DRAWN)
    page.evaluate("window.same = 1")
    reader.clock += 60
    reader.put_engines(actors.RUN, actors.engine(0, running=99.0, mean_running=131.0, tokens_per_second=15_720.0))
    reader.put_history(actors.RUN, actors.engine(0).key, "kv", [(reader.clock - 1, 0.99)])
    for signal, value in (
        (actors.one("generator_engines", "engines", state="up"), 7.0),
        (actors.one("kv_concurrency_limit", "requests"), 455.0),
    ):
        reader.append(actors.RUN, signal, [(reader.clock, value)])
    until(
        page,
        "() => document.querySelector('[data-rows=gen-sick]').textContent.includes('running 131, median 60 (2.18×)')",
    )
    assert cells_of(page, "engines", 1)[:3] == ["vllm-0", "up", "99 of 128 outlier"]
    until(page, "() => document.querySelector('#gen-room b').textContent === '455'")
    # The newest column has come, in the row that has moved to the top.
    until(page, "at => (RS.view['engine_heat.' + at] || [])[1] === 0.99", int((reader.clock - 1) // 60))
    assert page.evaluate("window.same") == 1
    reader.set_targets(actors.RUN, fake.target("vllm-0", "generator", "vllm", up=False, error="connection refused"))
    until(page, "() => document.querySelector('.actor-head h1').textContent.includes('vllm-0, vllm-3')")
    assert complaints(page)[0] == "vllm-0 does not answer: connection refused"


def test_a_limit_that_is_far_away_flattens_nothing(open_page: Open, reader: MemoryReader) -> None:
    """While the first answers are short the KV caches hold 90,000 of them; some 400 run, and 604 to 504 could since."""
    ceiling, waiting = (
        actors.one("kv_concurrency_limit", "requests"),
        actors.one("generator_requests", "requests", state="waiting"),
    )
    top = "() => document.querySelector('#graph-gload .chart')._fullLayout.yaxis.range[1]"
    page = open_page("generator")
    until(page, DRAWN)
    assert 604 < page.evaluate(top) < 700, "one that falls is seen from its beginning"
    reader.append(actors.RUN, ceiling, [(actors.NOW - 3500 + 30 * n, 90_000.0) for n in range(10)])
    page = open_page("generator")
    until(page, DRAWN)
    assert 580 < page.evaluate(top) < 700
    # It follows what comes: more than the limit, and a limit that rose.
    for signal, value in ((waiting, 2_000.0), (ceiling, 5_000.0)):
        reader.clock += 60
        reader.append(actors.RUN, signal, [(reader.clock - 1, value)])
        until(page, f"least => ({top})() >= least", value)
    assert page.evaluate(top) < 6_000


def test_names_stay_text_and_many_engines_fit(open_page: Open, reader: MemoryReader) -> None:
    many = [actors.engine(number) for number in range(20, 120)]
    reader.put_engines(
        actors.RUN, *many, structs.replace(actors.engine(900), key="a" + EVIL, target="a" + EVIL, mean_running=1.0)
    )
    reader.put_history(actors.RUN, "a" + EVIL, "kv", [(actors.NOW - 60, 0.5)])
    reader.set_targets(
        actors.RUN, *(fake.target(one.target, "generator", "vllm") for one in [*actors.engines(), *many])
    )
    page = open_page("generator")
    until(page, DRAWN)
    assert page.locator("[data-rows=engines] tr").count() == 64
    assert page.locator("#gen-heat .legend").inner_text().endswith("64 of 109 engines shown, outliers first")
    names = page.locator("[data-rows=engines] .long").evaluate_all("all => all.slice(0, 3).map(el => el.textContent)")
    assert names == ["vllm-3", "a" + EVIL, "vllm-5"]
    # A name for each row, and none beside its row's drawing.
    assert page.locator(".heat.fleet .axes text[text-anchor=end]").count() == 64
    assert page.evaluate(OUT) == 0
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1440


def test_gpus_are_charts_where_an_exporter_is_read(open_page: Open) -> None:
    page = open_page("generator")
    group = page.locator("#gen-gpus")
    assert group.locator("h2").first.inner_text() == "GPUs"
    assert group.locator("> .row .unit").inner_text() == "hottest node-b GPU 5 (82 °C)"
    assert page.locator("#panel-gputemp .legend b").all_inner_texts()[:2] == ["64", "82"]
    group.scroll_into_view_if_needed()
    until(page, "() => document.querySelector('#graph-gputemp .main-svg')")
    # A router is a group of its own; speculative decoding is off, and its charts are not on the page.
    assert page.locator("#gen-router > .row .unit").inner_text() == "7 of 8 workers healthy"
    assert page.locator("#panel-rwork .legend b:visible").all_inner_texts() == ["8", "7"]
    assert page.locator("#gen-speculative").is_hidden()


def test_where_nothing_is_known_both_pages_say_so(open_page: Open) -> None:
    page = open_page("generator", actors.BARE)
    assert (
        page.locator("#gen-gpus > .note").inner_text()
        == "No GPU reports: add a DCGM exporter's :9400/metrics as a target"
    )
    assert page.locator("#gen-router > .note").inner_text().startswith("No router reports: add its metrics port")
    assert page.locator("#gen-gpus .charts").is_hidden() and page.locator("#gen-router .charts").is_hidden()
    assert page.locator("h1:visible").inner_text() == "No engine is monitored"
    assert page.locator("#gen-heat .note:visible").inner_text().startswith("No engine has reported yet: add")
    assert page.locator("#engines table").is_hidden()
    assert page.locator("#panel-gload .why").inner_text().endswith(actors.NO_ENGINES)
    page.get_by_role("link", name="Trainer", exact=True).click()
    until(page, "() => RS.boot.key === 'trainer'")
    until(page, TITLE, "No trainer is monitored")
    assert page.locator("#steps table").is_hidden() and page.locator("#panel-tmfu .why").is_visible()
    assert page.locator("#step-bars .note").inner_text() == "No step has been logged yet."


@pytest.mark.parametrize(("theme", "size"), [("dark", (1440, 900)), ("light", (390, 844))])
def test_trainer_at_a_glance(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page("trainer", theme=theme, size=size)
    until(page, BARS)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "The trainer waits 60% of each step"
    assert page.locator(".trainer-page .banner .note").last.inner_text() == (
        "Step 140 took 70 s, 75% above the median of 40 s"
    )
    # 40 steps of wait, computing, sync and the rest; four of them with a checkpoint.
    assert page.locator(".bars-of-steps rect").count() == 40 * 4 + 4
    assert page.locator(".bars-of-steps .f-gold").count() == 4
    assert page.locator(".bars-of-steps path.dashed").count() == 1
    heads = page.locator("#steps thead th").evaluate_all(
        "all => all.filter(el => !el.hidden).map(el => el.textContent)"
    )
    assert heads == [
        "Step", "Ended", "Total", "Wait", "Compute", "Weight sync", "Checkpoint", "Other",
        "Samples", "Tokens", "Staleness", "Reward", "Gradient",
    ]  # fmt: skip
    assert page.locator("[data-rows=steps] tr").count() == 20
    # Rows of one line, also on a phone, where the table is scrolled sideways; a card without a chart is not as high.
    assert page.locator("[data-rows=steps] tr").first.bounding_box()["height"] < 45
    if size[0] == 390:
        page.locator("#steps .frame").evaluate("el => el.scrollLeft = 200")
        assert page.locator("[data-rows=steps] th").first.bounding_box()["x"] >= 12
        assert page.locator("#panel-tkl").bounding_box()["height"] < 100
    assert [text.split(": ")[-1] for text in cells_of(page, "steps", 1)][2:] == [
        "40", "24", "14", "1.5", "0", "0.5", "256", "680k", "2.5", "0.5", "0.3",
    ]  # fmt: skip
    last = [" ".join(text.split()) for text in page.locator("[data-rows=last-step] .row").all_inner_texts()]
    assert last[0].startswith("Wait median 24 s") and "54 s" in last[0] and last[1] == "Compute median 14 s 14 s"
    assert page.locator("[data-rows=learning] li").first.inner_text().split() == ["Gradient", "norm", "0.3", "·", "0.3"]
    assert page.locator("#panel-tphase").get_attribute("data-state") == "data"
    assert page.locator("#panel-tkl").get_attribute("data-state") == "unknown"
    assert page.locator("#weights p").first.inner_text() == "1.5 s per step"
    pays = "Reward +0.12 over 39 steps, 26.5M trained tokens, $340.00"
    assert page.locator("#scores p").first.inner_text() == pays
    scores = [" ".join(row.split()) for row in page.locator("[data-rows=scores] li").all_inner_texts()]
    assert scores == ["aime 0.42 step 140; +0.02 since step 120", "gsm8k 0.91 step 140"]
    assert page.locator("#panel-tscore").get_attribute("data-state") == "data"
    assert page.locator("#panel-tparts .why").is_visible()
    trusted = page.locator("#gradient p").all_inner_texts()
    assert trusted[0] == "Not judged: entropy 0.56 nats" and page.locator("#panel-tlogp .why").is_visible()
    assert trusted[1].startswith("Mismatch between trainer and generator: unknown. Unknown: non-finite steps, ")


def test_a_new_step_comes_and_the_cursor_reads_it(open_page: Open, reader: MemoryReader) -> None:
    page = open_page("trainer")
    until(page, BARS)
    page.evaluate("window.same = 1")
    reader.clock += 41
    reader.put_steps(actors.RUN, structs.replace(actors.step(141, trainer_checkpoint_seconds=9.0), life=1))
    reader.append(actors.RUN, actors.one("trainer_step_seconds", "seconds"), [(reader.clock, 41.0)])
    until(page, "() => document.querySelector('[data-rows=steps] th').textContent === '141'")
    until(page, "() => document.querySelectorAll('.bars-of-steps .restart').length === 1")
    area = page.locator(".bars-of-steps").bounding_box()
    assert area is not None
    page.locator(".bars-of-steps").hover(position={"x": area["width"] - 12, "y": 100})
    assert page.locator(".tooltip > *").all_inner_texts() == [
        "Step 141", "40 s", "wait 24 s", "compute 14 s", "weight sync 1.5 s", "checkpoint 9 s", "other 0.5 s"
    ]  # fmt: skip
    assert page.evaluate("window.same") == 1


def test_synchronous_run_says_that_wait_does_not_apply(open_page: Open) -> None:
    page = open_page("trainer", actors.SYNC)
    until(page, BARS)
    assert page.locator("h1:visible").inner_text() == "Generation takes 40% of each step"
    assert "Wait: not applicable." in page.locator(".trainer-page .banner").inner_text()
    assert page.locator("#card-tr_wait .pill").inner_text() == "Not applicable"
    assert page.locator("#panel-tphase .legend").inner_text().startswith("generation32 s")
    assert page.locator("#steps thead th[data-phase=wait]").is_hidden()


def test_an_actor_of_the_overview_opens_its_page(open_page: Open) -> None:
    page = open_page("")
    # Anywhere on it, and by keyboard.
    page.locator(".actor.generator").click(position={"x": 20, "y": 90})
    until(page, "() => RS.boot.key === 'generator'")
    assert page.url.endswith(f"generator?run={actors.RUN}")
    page.go_back()
    until(page, "() => RS.boot.key === 'overview'")
    page.locator(".actor.trainer h2 a").focus()
    page.keyboard.press("Enter")
    until(page, "() => RS.boot.key === 'trainer'")


def test_the_speed_is_drawn_and_its_advice_opens_what_if(open_page: Open, reader: MemoryReader) -> None:
    reader.set_verdict(actors.RUN, actors.VERDICT | {"engine_speed": actors.SPEED, "advice": [actors.MORE]})
    page = open_page("generator", size=(390, 844))
    until(page, "() => document.querySelectorAll('.speed circle').length === 3")
    assert page.locator(".speed .tag").all_text_contents() == ["now", "best"]
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="Simulate").click()
    until(page, "() => RS.boot.key === 'what-if'")
    assert page.url.endswith(f"what-if?run={actors.RUN}&concurrency=960")
