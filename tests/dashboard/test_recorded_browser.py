"""What recorded bodies report is what the pages show, in a real Chromium. The numbers are computed by hand from
`tests/testdata`, without this project's parsers; a comment tells how.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from dashboard.app import attach
from server.api.app import create_api
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store
from tests.dashboard.new_pages import new_pages
from tests.dashboard.recorded_runs import fill
from tests.dashboard.serving import Serving, until
from tests.driven_run import T0

pytestmark = pytest.mark.browser

# What a reader sees: of each chart its heading's unit, legend, and reason or drift; of each card its figure; sentences.
READ = """() => {
  const seen = el => el && el.checkVisibility() ? el.innerText.replace(/\\s+/g, " ").trim() : "";
  const of = (found, key, value) => Object.fromEntries(RS.all(found).map(el => [key(el), value(el)]));
  return {
    charts: of(".panel[data-panel]", el => el.dataset.panel, el => ({
      unit: seen(el.querySelector(".row .unit")), why: seen(el.querySelector(".why p")),
      drift: seen(el.querySelector(".drift")), limits: [...el.querySelectorAll(".limit")].map(seen).filter(Boolean),
      lines: Object.fromEntries([...el.querySelectorAll(".legend .item")].filter(item => seen(item))
        .map(item => [item.querySelector("span").innerText, item.querySelector("b").innerText])),
    })),
    cards: of(".card.kpi", el => el.id.slice(5), seen),
    text: of("[data-t]", el => el.dataset.t, seen),
    rows: of("[data-rows]", el => el.dataset.rows, el => [...el.children].map(seen)),
  };
}"""
DRAWN = "() => Object.keys(RS.view || {}).some(key => /^(chart|exits)[.]/.test(key))"
Look = Callable[[str, str], "Shown"]


class Shown:
    """A page as it was read once."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.charts, self.cards, self.text, self.rows = (found[key] for key in ("charts", "cards", "text", "rows"))

    def lines(self, chart: str) -> dict[str, str]:
        """The legend: label -> value."""
        return dict(self.charts[chart]["lines"])


@pytest.fixture(scope="module")
def look(browser: Browser, migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    """(run, page) -> what it shows, read once."""
    folder = tmp_path_factory.mktemp("recorded")
    store = Store.open(f"sqlite:///{shutil.copyfile(migrated_file, folder / 'store.db')}")
    times, clock, cache = fill(store, folder), ScaledClock(T0), {}  # type: ignore[var-annotated]
    reader = Reader(store, clock)

    def app() -> Any:
        api = create_api(reader, version="1", ready=lambda: None)
        attach(api, reader, version="0.0.0")
        return api

    with Serving(app) as serving, new_pages(browser, "404 (Not Found)") as new:
        page: Page = new("light", (1440, 900))

        def looked(run: str, path: str) -> Shown:
            if (run, path) not in cache:
                clock.set(times[run])
                page.goto(f"{serving.url}{path}?run={run}&range=15m")
                page.wait_for_selector("[data-page=ok]")
                until(page, DRAWN)
                cache[run, path] = Shown(page.evaluate(READ))
            return cache[run, path]

        yield looked
    store.close()


# ---- trainer: can the gradient be trusted?


def test_the_gradient_of_a_pipeline_rl_run(look: Look) -> None:
    """Every `Completed steps` row of `finetune/log/info_0.log` has the same figures (`grep -o "rl/[a-z_]*': '[^']*'"`):
    rl/entropy 0.500, rl/kl_new_old 0.002, rl/mean_abs_log_ratio_new_old 0.010, rl/ratio_new_old 1.000, rl/ess 0.875,
    stats/grad_norm 0.250; no share of clipped tokens.
    """
    page = look("pipeline_rl", "trainer")
    assert page.text["head.gradient.before"] == (
        "Not judged: no non-finite step, entropy 0.5 nats, mismatch KL 0.002 nats, log-prob difference 0.01 nats, "
        "importance ratio 1, effective samples 88%"
    )
    assert page.text["head.gradient.text"] == (
        "No limit is set for the mismatch: add an alert rule, for example on mismatch_kl. "
        "Unknown: clipped tokens (not reported by pipeline_rl; this trainer reports no clipped share)."
    )
    drawn = {chart: page.lines(chart) for chart in ("tkl", "tlogp", "tratio", "tess", "tentropy", "tnorm", "tbad")}
    assert drawn == {
        "tkl": {"mismatch": "0.002"},
        "tlogp": {"mean": "0.01"},
        "tratio": {"mean": "1"},
        "tess": {"effective": "88%"},
        "tentropy": {"entropy": "0.5"},
        "tnorm": {"norm": "0.25"},
        "tbad": {"steps": "0"},
    }
    # Nothing reported is no zero.
    assert page.charts["tclip"]["lines"] == {}
    assert page.charts["tclip"]["why"] == "not reported by pipeline_rl; this trainer reports no clipped share"


# ---- trainer: weight update


def test_the_weight_update_of_a_trl_run(look: Look) -> None:
    """Means over steps 31 to 40 of `truth.jsonl`, which the recording script wrote itself: perf/weight_sync_s 0.080402,
    of it pause 0.037768, barrier 0.0000607, transfer 0.037340; the rest is 0.005234.
    """
    page = look("trl", "trainer")
    assert page.text["head.weights.before"] == "0.08 s per step: pause 0.038 s, transfer 0.037 s, other 0.005 s"
    assert page.lines("tparts") == {
        "pause": "0.038 s", "barrier": "60.7 µs", "transfer": "0.037 s", "other": "0.005 s",
    }  # fmt: skip
    assert page.lines("tsync") == {"per step": "0.08 s"}
    # perf/step_s 1.175354: 6.84% of it.
    assert page.cards["tr_sync"] == "Weight sync OK 0.08 s of the step 6.8%"
    assert page.charts["tload"]["why"].startswith("no engine reports how long it loads weights")
    assert page.charts["tband"]["why"].startswith("not reported by trl; this trainer does not report how many bytes")
    assert page.text["head.weights.text"].startswith("Unknown: engines' load (no engine reports")


# ---- trainer: rewards and evaluations


def test_the_scores_of_a_verl_run(look: Look) -> None:
    """`fully-async.jsonl` has val-core/gsm8k/reward/mean@1 0.3419 at step 5 and 0.3398 at step 10."""
    page = look("verl", "trainer")
    assert page.rows["scores"] == ["gsm8k 0.34 step 10; -0.0021 since step 5"]
    assert page.lines("tscore") == {"gsm8k": "0.34"}
    assert page.text["head.scores.before"].startswith("Reward -0.051 over 13 steps; no clear trend")
    # The log has neither trained tokens nor GPUs.
    assert page.text["head.scores.text"].startswith("Unknown: tokens (not reported by verl; ")
    # critic/score/mean of steps 5 to 14: 0.4151.
    assert page.lines("treward") == {"mean": "0.42"}


def test_the_tokens_of_a_reward_that_another_part_of_the_run_reports(look: Look) -> None:
    """PipelineRL's actor logs the reward, its trainer rl/num_output_tokens_sum 131072: ten steps are 1,310,720."""
    before = look("pipeline_rl", "trainer").text["head.scores.before"]
    assert before == "Reward 0 over 10 steps; no clear trend, 1.31M trained tokens"
    # truth.jsonl: batch/trained_tokens_per_step of steps 2 to 40 add up to 104,564; means of steps 31 to 40:
    # rewards/ends_early 0.134375, rewards/enough_digits 0.8375.
    page = look("trl", "trainer")
    assert page.text["head.scores.before"] == "Reward 0 over 39 steps; no clear trend, 105k trained tokens"
    assert page.lines("tparts_of_reward") == {"ends_early": "0.13", "enough_digits": "0.84"}


# ---- overview: behaviour


def test_the_behaviour_of_a_verl_run(look: Look) -> None:
    """Means over steps 5 to 14 of `fully-async.jsonl`: response_length/mean 1201.699755, num_turns/mean 3.959695,
    tool_call_counts/mean 2; response_length/max 4096.
    """
    page = look("verl", "")
    early = "14 of the 35 steps needed so far; no action needed"
    assert page.lines("length") == {"mean": "1,202", "max": "4,096"}
    assert page.lines("turns") == {"mean": "3.96"}
    assert page.lines("tool_calls") == {"mean": "2"}
    assert [page.charts[chart]["drift"] for chart in ("length", "turns", "tool_calls")] == [early] * 3
    # A share against the first steps needs first steps: no number, and the reason.
    assert page.lines("prefill") == {}
    assert page.charts["prefill"]["why"] == early
    assert page.cards["length"].startswith("Response length OK 1,202 tokens 14 of the 35 steps needed so far")


def test_the_behaviour_of_a_trl_run(look: Look) -> None:
    """Means of steps 31 to 40 of `truth.jsonl`: sample/trained_tokens_mean 170.5875, rollout/turns_mean 1; the longest
    of completions/max_length is 200. First steps: the mean of steps 6 to 35 is 167.8.
    """
    page = look("trl", "")
    assert page.lines("length") == {"mean": "171", "max": "200"}
    assert page.charts["length"]["drift"] == "no drift since its first steps (168)"
    assert page.charts["length"]["limits"] == ["first steps 168", "x1.5"]
    assert page.lines("turns") == {"mean": "1"}
    assert page.charts["turns"]["drift"] == "no drift since its first steps (1)"
    assert page.charts["tool_calls"]["why"].startswith("not reported by trl: only runs with tools log it")
    # 16 samples a step of 1.175354 s are 13.61 a second. No record of rollouts: production is unknown, and no line.
    assert page.lines("rates") == {"consumed": "13.6"}


# ---- generator: routers


@pytest.mark.parametrize(
    ("run", "note", "requests", "workers", "rates"),
    [
        # 256 + 3 active at two workers (a third has health -1 and was removed); 0 + 41 queued. From the first page to
        # the last, 220 s: 30 retries, 5 given up, 60 errors of requests, 20 of workers, 10 rejected.
        ("gateway", "1 of 2 workers healthy", {"sent to engines": "259", "queued": "41"},
         {"registered": "2", "healthy": "1", "circuit open": "0"},
         {"retried": "0.14", "given up": "0.023", "errors": "0.27", "errors of workers": "0.091",
          "rejected": "0.045"}),
        # 38 + 9: the load of the first worker comes before its running requests (40), which contain waiting ones; 50
        # retries; cb_state 1.
        ("vllm_router", "1 of 2 workers healthy · 1 with an open circuit", {"sent to engines": "47"},
         {"registered": "2", "healthy": "1", "circuit open": "1"}, {"retried": "0.23", "errors": "0"}),
        # 12 + 4 running; healthy_pods_total 1 and 0; 20 errors.
        ("production_stack", "1 of 2 workers healthy", {"sent to engines": "16"},
         {"registered": "2", "healthy": "1"}, {"errors": "0.091"}),
    ],
)  # fmt: skip
def test_a_router(
    look: Look, run: str, note: str, requests: dict[str, str], workers: dict[str, str], rates: dict[str, str]
) -> None:
    page = look(run, "generator")
    assert page.text["router.note"] == note
    assert (page.lines("rreq"), page.lines("rwork")) == (requests, workers)
    assert page.lines("rretry") == rates
    # Of a router alone no engine is known.
    assert page.text["head.generator.before"] == "No engine is monitored"
    assert page.cards["ge_running"] == "Running Unknown no engine reports requests"


# ---- generator: engines


def test_the_speed_of_a_vllm_engine(look: Look) -> None:
    """From the first recorded page to the last, 22.443 s: generation_tokens_total +175,970, prompt_tokens_total
    +96,403, prefix_cache_queries_total +96,467 without a hit; 1,876 iterations of 272,373 tokens. On 2 GPUs.
    """
    page = look("vllm", "generator")
    assert page.lines("gtokens") == {"generated": "7,841", "prompts": "4,295"}
    assert page.cards["ge_tokens"] == "Generated 7,841 tokens/s per GPU 3,920 tokens/s · prompts 4,295 tokens/s"
    assert page.lines("giter")["mean"] == "145"
    assert page.lines("gprefix") == {"hits": "0%"}


def test_drafts_and_prefix_hits_of_two_engines(look: Look) -> None:
    """`recorded_runs._ENGINES_GROW`: 2,650 of 4,000 lookups hit; 1,200 of 2,000 draft tokens are accepted, 800 and 400
    of 1,000 by position, which makes 1 + 1.2 tokens a step.
    """
    page = look("two_engines", "generator")
    assert page.cards["ge_prefix"] == "Prefix hits 66 %"
    assert page.lines("gspec") == {"all": "60%", "1st of a draft": "80%", "2nd": "40%", "3rd": "0%"}
    assert page.lines("gspeclen") == {"mean": "2.2"}
    # Engine, prefix hits: 250 of 1,000 and 2,400 of 3,000. Its age is the last three words of a row.
    found = {row.split()[0]: row.split()[-6] for row in page.rows["engines"]}
    assert found == {"two_engines-0": "25%", "two_engines-0:1": "80%"}


# ---- generator: GPUs


def test_prefill_and_decode_engines(look: Look) -> None:
    """Pages of SGLang's own collector, the second one for 45 of 50 s.

    A prefill engine: 2, then 3 running, 10, then 12 waiting; 100,000, then 180,000 prompt tokens. Each of two decode
    engines: 44, then 48 running; 200,000, then 260,000 tokens; 3, then 4 wait for room, 5, then 6 receive.
    """
    page = look("prefill_decode", "generator")
    assert page.text["roles.note"] == "1 prefill engine · 2 decode engines"
    assert page.lines("roload") == {
        "prefill running": "2.9", "prefill waiting": "11.8", "decode running": "95.2", "decode waiting": "0",
    }  # fmt: skip
    assert page.lines("rokv") == {"prefill": "40%", "decode": "83%"}
    assert page.lines("rotokens") == {"prompts, by prefill": "1,600", "generated, by decode": "2,400"}
    assert page.lines("roqueues") == {
        "connecting": "4.9", "KV cache being sent": "6.9", "waiting for room": "7.8", "KV cache being received": "11.8",
    }  # fmt: skip


def test_the_gpu_of_a_dcgm_exporter(look: Look) -> None:
    """Of the second GPU the page has only markers for missing values (140737488355330 W, 2147483632 %), as for the
    first one's memory temperature. 4,845 of 4,845 + 35,690 MiB are 11.95%; tensor cores 4%, memory 61%, engines 99.5%.
    """
    page = look("dcgm", "generator")
    drawn = {chart: page.lines(chart) for chart in ("gpuuse", "gpumem", "gputemp", "gpupower", "gpuclock")}
    assert drawn == {
        "gpuuse": {"utilisation": "100%", "least used GPU": "100%", "tensor cores or memory active": "61%"},
        "gpumem": {"mean": "12%", "fullest": "12%", "emptiest": "12%"},
        "gputemp": {"mean": "61", "hottest": "61"},
        "gpupower": {"mean": "410", "highest": "410", "lowest": "410"},
        "gpuclock": {"mean": "1.98G", "slowest GPU": "1.98G"},
    }
    assert {chart: page.charts[chart]["unit"].partition(",")[0] for chart in drawn} == {
        "gpuuse": "% of the time", "gpumem": "% used", "gputemp": "°C", "gpupower": "W", "gpuclock": "Hz",
    }  # fmt: skip
    assert page.charts["gputemp"]["limits"] == ["watch 85 °C"]
    # XID 43 is an application's error, and 12 corrected ECC errors are routine.
    assert (page.text["gpus.note"], page.text["gpus.none"]) == ("", "")


def test_new_errors_of_a_gpu(look: Look) -> None:
    """The recorded page, then the same with XID 74 (NVLink) and the first uncorrected ECC error."""
    note = look("dcgm_errors", "generator").text["gpus.note"]
    assert note == "XID 74, NVLink error on node-a GPU 0 · uncorrected ECC error on node-a GPU 0"


# ---- what no recorded body has: pushed in the documented formats (docs/how-to/push.md, docs/how-to/sandboxes.md)


def test_a_behaviour_that_drifted(look: Look) -> None:
    """`recorded_runs._drifted`: 500 prompt tokens on 1,000 generated ones are 0.5, later on 2,000 a quarter."""
    page = look("drifted", "")
    shown = {key: (page.lines(key), page.charts[key]["drift"]) for key in ("length", "turns", "tool_calls", "prefill")}
    assert shown == {
        "length": ({"mean": "2,000"}, "1,000 → 2,000 (median step), x2 since step 41"),
        "turns": ({"mean": "4"}, "no drift since its first steps (4)"),
        "tool_calls": ({"mean": "6"}, "2 → 6 (median step), x3 since step 41"),
        "prefill": ({"factor": "0.5"}, "0.5 → 0.25 (median step), x0.5 since step 41"),
    }
    assert page.cards["length"].startswith("Response length Watch 2,000 tokens x2 since step 41, from 1,000")


def test_production_next_to_consumption(look: Look) -> None:
    """`recorded_runs._pushed`: of 10 rollouts in 10 s the trainer uses 8, of which 4 have a gradient; of 3 groups 2 are
    equal, with an unknown maximum.
    """
    page = look("pushed", "")
    assert page.lines("rates") == {"consumed": "0.8", "generated": "1", "with a gradient": "0.4"}
    assert page.lines("zero") == {"all solved": "0%", "none solved": "0%", "cause unknown": "67%"}
    # Of trained rollouts alone: the discarded ones have 300 tokens.
    assert page.lines("length") == {"mean": "100", "p90": "100"}


def test_discarded_rollouts_next_to_trained_ones(look: Look) -> None:
    """30 steps: of code 60 of 180 are discarded, of math none of 120; 300 tokens against 100."""
    page = look("pushed", "rollouts")
    assert page.text["exits.bias"] == (
        "Discarded rollouts are 3 times as long as trained ones (300 against 100 tokens on average): "
        "the discard is biased by length."
    )
    assert page.rows["ro-discarded"] == ["code 33% of 180", "math 0% of 120"]
    assert page.rows["ro-zero"] == ["code 100%", "math 0%"]


def test_sandboxes_requested_ready_and_refused(look: Look) -> None:
    """`recorded_runs._sandboxes`: in 300 s 30 are requested, 21 ready, 6 refused; 3 start, the oldest since 25 s at the
    newest tick. Of 100 commands 50 take at most 0.1 s and 90 at most 1 s: the 95th of 10 between 1 and 10 s is 5.5 s.
    """
    page = look("boxes", "sandboxes")
    assert page.lines("creates") == {
        "requested": "0.1", "became ready": "0.07", "refused": "0.02", "limit": "0.5",
    }  # fmt: skip
    assert page.lines("boxes") == {"starting": "3", "running": "21", "building image": "0", "queued": "0"}
    assert page.charts["boxes"]["limits"] == ["start at once 4"]
    # timing_s/agent_loop/tool_calls/mean of steps 5 to 14 of the recorded `fully-async.jsonl`: 2.89464.
    assert page.lines("commands") == {"tools per rollout": "2.89 s", "command p50": "0.1 s", "command p95": "5.5 s"}
    assert page.cards["sb_exec"] == "Commands p95 5.5 s p50 0.1 s"
    assert page.cards["sb_starting"] == "Starting OK 3 75% of the limit"
    # Each was ready after 12 s; 6 of 27 that were decided failed.
    assert page.cards["sb_p95"].startswith("Spin-up p95 OK 12 s p50 12 s · max 12 s")
    assert page.lines("infra") == {"sandboxes failed": "22%"}
    assert page.rows["box-causes"] == ["rate limit 6 newest, 4 s ago"]


# ---- rollouts of recorded files


def test_the_discarded_rollouts_of_an_art_run(look: Look) -> None:
    """Three files of 4 trained rollouts, one of 2 discarded ones whose rewards are equal, one of 2 evaluations
    (`pyarrow.parquet.read_table(file)`): 2 of 14 are 14%, and so is 1 of 7 groups. No tokens are recorded: no bias.
    """
    page = look("art", "rollouts")
    assert page.rows["ro-discarded"] == ["unnamed 14% of 14"]
    assert page.text["exits.bias"] == ""
    assert page.text["exits.why"].startswith("No record reports response_tokens; ")
    assert page.cards["ro_zero"] == "Zero advantage OK 14 % 14% none solved"
    states = [row.split(" ")[1] for row in page.rows["rollouts"] if not row.startswith("val")]
    assert (states.count("trained"), states.count("zero")) == (12, 2)
    # Versions are not recorded: unknown, not zero.
    assert page.cards["ro_policy"].startswith("Staleness Unknown log `token_versions`")
