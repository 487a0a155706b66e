"""Everything that Rollscope states about a run at one instant: all pages, API, `/metrics` and command line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from dashboard import callbacks
from dashboard.pages import PAGES
from dashboard.shell.page import RuleCache, Scope
from dashboard.state import deltas
from dashboard.state.cache import TimedCache
from server.cli import status as cli
from server.query import Reader
from tests.dashboard.shown import shown

# Pages whose texts do not depend on a run.
STATIC = ("help",)
RANGE = "15m"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What each place shows.

    Attributes:
        moment: the name of the run's situation, such as ``live``.
        status, runs, alerts: answers of the API.
        metrics: (name, labels, value) of the run's samples.
        cli: what `rollscope status` and `rollscope status --all` print.
        cli_json: what `rollscope status --json` prints.
        pages: page -> its load: ``view`` has the texts by key (`tests.dashboard.shown`), ``figures`` the charts.
    """

    scenario: str
    moment: str
    run: str
    status: Json
    runs: Sequence[Json]
    alerts: Sequence[Json]
    metrics: Sequence[tuple[str, Mapping[str, str], float]]
    cli: str
    cli_json: Json
    pages: Mapping[str, Json] = field(default_factory=dict)

    def text(self, page: str, key: str) -> Any:
        """A text of a page; "" where the page has none."""
        return self.pages[page]["view"].get(key, "")

    def texts(self, *pages: str) -> Iterator[tuple[str, str, str]]:
        """(page, key, text) of all texts, of these pages or of all of them."""
        for page in pages or self.pages:
            for key, value in self.pages[page]["view"].items():
                if isinstance(value, str) and value:
                    yield page, key, value

    def points(self, page: str, slot: str) -> Sequence[Any]:
        """The values that a chart's line or a card's small line shows."""
        panel = slot.rpartition(".")[0]
        lines = self.pages[page].get("figures", {}).get(panel, {}).get("data", ())
        found = [y for line in lines if line.get("meta") == slot for y in line.get("y") or ()]
        found += (self.pages[page].get("sparks", {}).get(slot) or ((), ()))[1]
        return [y for y in found if y is not None]

    @property
    def verdict(self) -> Json:
        found: Json = self.status["verdict"] or {}
        return found

    @property
    def state(self) -> str:
        return str(self.status["state"]["name"])

    @property
    def current(self) -> bool:
        """Whether a verdict and the states of health may describe the present."""
        return self.state in ("live", "stale")

    def value(self, name: str) -> float | None:
        """The newest value of a series (`SignalNow.name`)."""
        found: float | None = self.status["signals"].get(name, {}).get("value")
        return found


def take(scenario: str, moment: str, reader: Reader, client: TestClient, run: str) -> Snapshot:
    """Reads every page through the dashboard's own callback, and every route that a script would read."""
    views, rules, shared = deltas.SentViews(), RuleCache(), TimedCache()
    have = [page.key for page in PAGES]

    def scope(name: str, everything: bool) -> Scope:
        return Scope(reader, name, everything, (), rules, shared)

    pages = {
        page.key: callbacks.build(
            scope, views, {"n": 1, "path": page.path, "search": f"?run={run}&range={RANGE}", "tz": 0, "have": have}
        )[0]
        for page in PAGES if page.key not in STATIC
    }  # fmt: skip
    errors = {key: page["error"] for key, page in pages.items() if "error" in page}
    assert not errors, errors
    for page in pages.values():
        page["view"] = shown(page["view"])
    status = _json(client, f"/api/v1/runs/{run}/status")
    samples = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples if sample.labels.get("run") == run
    ]  # fmt: skip
    return Snapshot(
        scenario, moment, run, status, _json(client, "/api/v1/runs"),
        _json(client, f"/api/v1/alerts?run={run}")["alerts"], samples,
        f"{cli.short(status)}\n{cli.text(status)}", json.loads(cli.dump(status)), pages,
    )  # fmt: skip


def _json(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()
