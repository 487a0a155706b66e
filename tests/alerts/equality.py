"""The default rules on the same series twice: by our own evaluation, and by Prometheus with the exported rules.

    python -m tests.alerts.equality      writes docs/project/alert-equality.md

Series come from recordings of the demo (`python -m bench.alert_equality`) and from faults written for each rule.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

import yaml

from bench.alert_equality import ENDED, FOLDER, GAP, RUNS, conditions
from server.alerts.inputs import TARGET_UP, IncreaseTotals, RunFrame, SignalState
from server.alerts.model import Condition, Frame, Rule, Table
from server.alerts.rules import Evaluator
from server.api.metrics import LIFECYCLES
from server.cli import export
from server.config.alerts import load_rules
from server.lib.errors import Problems
from server.signals.model import TargetState
from server.signals.window import StepBook
from tests.alerts.support import T0, OneFrame, labels, table

PAGE = Path("docs/project/alert-equality.md")
RULES: Mapping[str, Rule] = {rule.name: rule for rule in load_rules({}, Problems())}
# Seconds between two instants of a written fault, as between stored totals of an hour: their increase is exact then.
EVERY = 30

Firing = list[frozenset[tuple[tuple[str, str], ...]]]
"""Label sets of the firing alerts at each instant."""


@dataclass(frozen=True)
class Replay:
    """A source of series. ``frames``: what our rules read; ``page``: series -> samples on `/metrics`, or `ENDED`."""

    name: str
    every: float
    frames: Sequence[Frame]
    page: Mapping[str, Sequence[str]]


# ---- both evaluations


def ours(replay: Replay, rules: Iterable[Rule]) -> Firing:
    """What our own rules fire at each instant."""
    evaluator, found = Evaluator(list(rules), replay.frames[0].run), []
    for frame in replay.frames:
        evaluator.evaluate(frame)
        found.append(frozenset(alert.labels for alert in evaluator.firing))
    return found


def exported(replays: Sequence[Replay], rules: str) -> list[Firing]:
    """What Prometheus fires with a file of rules, from the differences that promtool reports to no alert at all."""
    tests = [
        {
            "interval": f"{replay.every:g}s",
            "input_series": [
                {"series": name, "values": " ".join(_samples(column))} for name, column in replay.page.items()
            ],
            "promql_expr_test": [
                {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{n * replay.every:g}s", "exp_samples": []}
                for n in range(len(replay.frames))
            ],
        }
        for replay in replays
    ]
    found = [[frozenset[tuple[tuple[str, str], ...]]()] * len(replay.frames) for replay in replays]
    with tempfile.TemporaryDirectory() as folder:
        # Without the group of rules about Rollscope itself.
        (Path(folder) / "rules.yml").write_text(json.dumps({"groups": yaml.safe_load(rules)["groups"][:1]}))
        # One file per source, because promtool reports differences by file. JSON is YAML that is parsed quickly.
        for n, (replay, test) in enumerate(zip(replays, tests, strict=True)):
            document = {"rule_files": ["rules.yml"], "evaluation_interval": f"{replay.every:g}s", "tests": [test]}
            (Path(folder) / f"{n}.yml").write_text(json.dumps(document))
            done = subprocess.run(
                ["promtool", "test", "rules", f"{n}.yml"], cwd=folder, capture_output=True, text=True, check=False
            )
            differences = re.findall(r"time: ([\dhms.]+),\s+exp: nil\s+got: (.*)", done.stderr)
            assert done.returncode == 0 or differences, done.stderr
            for at, text in differences:
                found[n][round(_seconds(at) / replay.every)] = frozenset(_alerts(text))
    return found


def _seconds(text: str) -> float:
    sizes = {"h": 3600, "m": 60, "s": 1}
    return sum(float(count) * sizes[unit] for count, unit in re.findall(r"([\d.]+)([hms])", text))


def _alerts(text: str) -> Iterator[tuple[tuple[str, str], ...]]:
    for body in re.findall(r"\{(.*?)\} 1E\+00", text):
        found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', body))
        del found["__name__"], found["alertstate"]
        yield tuple(sorted(found.items()))


def _samples(column: Sequence[str]) -> Iterator[str]:
    """promtool's notation: a series that leaves the page is marked stale once, as by a scrape."""
    before = ENDED
    for value in column:
        yield value if value != ENDED else "_" if before == ENDED else "stale"
        before = value


# ---- recordings


@cache
def recorded(name: str) -> Replay:
    """A recorded scenario or fault of the demo."""
    stored = json.loads((FOLDER / f"{name}.json").read_text())
    lifecycles = _expanded(stored["lifecycle"])
    by_key = {key: {s: _expanded(text) for s, text in columns.items()} for key, columns in stored["tables"].items()}
    keys = conditions(list(RULES.values()))
    assert keys.keys() <= by_key.keys(), "a rule has a new condition: python -m bench.alert_equality"
    frames = [
        _Recorded(T0 + n * stored["every"], _tables(by_key, n), stored["run"], lifecycles[n])
        for n in range(stored["count"])
    ]
    return Replay(name, stored["every"], frames, {name: _expanded(text) for name, text in stored["page"].items()})


class _Recorded(OneFrame):
    """A frame whose tables also differ by what a condition reads of a series."""

    def table(self, condition: Condition) -> Table | None:
        (key,) = conditions([Rule("", condition)])
        return self.tables.get(key)


def _tables(by_key: Mapping[str, Mapping[str, Sequence[str]]], n: int) -> dict[str, Table]:
    found = {}
    for key, columns in by_key.items():
        row = {series: column[n] for series, column in columns.items() if column[n] != ENDED}
        # A source that reported earlier has an empty table: its series have ended.
        if row or any(value != ENDED for column in columns.values() for value in column[:n]):
            found[key] = table({series: float("nan") if v == GAP else float(v) for series, v in row.items()})
    return found


def _expanded(text: str) -> list[str]:
    found: list[str] = []
    for word in text.split():
        value, _, count = word.partition("*")
        found += [value] * int(count or 1)
    return found


# ---- faults written for each rule

# Labels of a series of each rule, where its matchers do not name all. The second series of a rule stays healthy.
SERIES: Mapping[str, tuple[str, ...]] = {
    "TrainerFault": ("fault=collective_timeout", "fault=nccl_error"),
    "TargetDown": ("kind=vllm,target=e0", "kind=sglang,target=e1"),
    "HeartbeatMissed": ("kind=heartbeat,target=t0", "kind=heartbeat,target=t1"),
    "DiscoveryDown": ("kind=file_sd,target=engines", "kind=router,target=more"),
    "EngineDown": ("replica=e1:8000,state=down,target=prom", "replica=e2:8000,state=down,target=prom"),
    "EngineFrozen": ("target=e0", "target=e1"),
    "AllZeroRewards": ("stat=mean",),
    "DataTrustLow": ("actor=generator", "actor=sandbox"),
    "SandboxSpinupSlow": ("image=all,stat=p95",),
    "SandboxInitFailures": ("cause=image", "cause=quota"),
    "SandboxQuotaLow": ("resource=cpu", "resource=concurrent"),
    "ZeroAdvantageHigh": ("basis=completed", "basis=trained"),
    "KVCeilingAhead": ("bound=mid",),
    "ResponseLengthDrift": ("environment=code", "environment=math"),
    "Bottleneck": ("verdict=generator_bound", "verdict=sandbox_bound"),
    "IdleBurn": ("cause=stalled", "cause=trainer_wait"),
}  # fmt: skip
# Labels of the series of a further condition.
ALSO: Mapping[str, str] = {
    "target_up": "kind=prometheus,target=prom", "failure_ratio": "of=rollouts",
    "zero_advantage_low_ratio": "basis=completed", "zero_advantage_ratio": "basis=completed",
}  # fmt: skip
# Growth of a total in one instant while the condition is true; 0 while it is not.
GROWTH: Mapping[str, float] = {"SandboxInitFailures": 1.0, "IdleBurn": 1.5}

TRUE, HOVER, FALSE = "true", "hover", "false"
ONE_GAP = "one gap"
# Faults for which Prometheus cannot do what our rules do; the page has the reasons.
PENDING, ONE_SERIES = "unknown before it fires", "one series unknown"
DIFFERENT = (PENDING, ONE_SERIES)


@dataclass(frozen=True)
class Phase:
    """Instants with one state of a rule's first series, its further conditions, and the run."""

    count: int
    main: str
    also: str = TRUE
    lifecycle: str = "running"


def faults(rule: Rule) -> dict[str, list[Phase]]:
    """Name -> phases. ``n``: instants of the rule's `for`; totals also need their window to grow and to fall back."""
    n = -(-round(rule.for_seconds) // EVERY)
    window = -(-round(rule.condition.window) // EVERY)
    fires, idle = Phase(n + window + 3, TRUE), Phase(window + 2, FALSE)
    found = {
        "fires and ends": [idle, fires, Phase(2, HOVER), idle, Phase(max(1, n - 1), TRUE), idle],
        "series ends": [idle, fires, Phase(6, ENDED), fires, idle],
        "run ends": [
            Phase(n + 3, TRUE, lifecycle="starting"), fires, Phase(4, TRUE, lifecycle="finished"), fires,
            Phase(3, TRUE, lifecycle="crashed"),
        ],
    }  # fmt: skip
    if rule.condition.of == "value" and rule.condition.name != TARGET_UP:
        found["unknown"] = [idle, fires, Phase(24, GAP), Phase(2, TRUE), Phase(3, GAP), Phase(2, FALSE)]
        if n > 1:
            found[PENDING] = [idle, Phase(n // 2 + 1, TRUE), Phase(2, GAP), Phase(n + 3, TRUE), idle]
    if rule.condition.kind == "drift":
        found[ONE_SERIES] = [idle, fires, Phase(6, ONE_GAP), Phase(2, TRUE), idle]
    if rule.also:
        found["further condition"] = [
            idle, Phase(n + 2, TRUE, FALSE), fires, Phase(2, TRUE, FALSE), fires,
            *([Phase(24, TRUE, GAP), Phase(3, GAP, GAP)] if rule.also[0].name != TARGET_UP else []),
            Phase(2, TRUE, ENDED), idle,
        ]  # fmt: skip
    return found


def value_of(condition: Condition, state: str) -> float:
    """A value for a state: beyond the threshold, between recovery and threshold, or just not true any more."""
    level, recover = condition.threshold, condition.threshold if condition.recover is None else condition.recover
    sign = {">": 1.0, ">=": 1.0, "<": -1.0, "<=": -1.0}.get(condition.op, 0.0)
    inclusive = condition.op in (">=", "<=")
    if not sign:
        return level if state != FALSE else 1.0 - level
    if state == TRUE:
        return level if inclusive else level * (1 + sign / 4)
    if state == HOVER:
        return (level + recover) / 2
    return recover * (1 - sign / 4) if inclusive else recover


def written(rule: Rule, name: str, phases: Sequence[Phase]) -> Replay:
    """A fault as tables of a run, and as `/metrics` shows it."""
    frames, run = list[Frame](), f"{rule.name} {name}"
    page: dict[str, list[str]] = {}
    source = _Source(rule, run)
    for n, phase in enumerate(one for one in phases for _ in range(one.count)):
        frames.append(source.frame(T0 + n * EVERY, phase))
        shown = dict(source.shown(phase))
        for key in page.keys() | shown.keys():
            column = page.setdefault(key, [])
            column += [ENDED] * (n - len(column))
            column.append(shown.get(key, ENDED))
    return Replay(run, EVERY, frames, page)


@dataclass
class _Source:
    """The series of one rule. ``state`` of each: its value or why there is none."""

    rule: Rule
    run: str
    totals: dict[str, float] = field(default_factory=dict)
    past: dict[tuple[str, float, tuple[tuple[str, str], ...]], IncreaseTotals] = field(default_factory=dict)
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def frame(self, now: float, phase: Phase) -> RunFrame:
        self.rows = list(self._rows(phase))
        signals: dict[str, dict[tuple[tuple[str, str], ...], SignalState]] = {}
        health: dict[str, TargetState] = {}
        for name, series, value in self.rows:
            if name == TARGET_UP:
                kind, target = dict(labels(series))["kind"], dict(labels(series))["target"]
                up = value == "1"
                if value != ENDED:
                    health[target] = TargetState(target, kind, "generator", up, now, now if up else None)
            else:
                number = None if value in (GAP, ENDED) else float(value)
                signals.setdefault(name, {})[labels(series)] = SignalState(now, number, "why", value == ENDED)
        condition = self.rule.condition
        if condition.of == "increase":
            for series, state in signals[condition.name].items():
                if state.value is not None:
                    past = self.past.setdefault((condition.name, condition.window, series), IncreaseTotals())
                    past.add(now, state.value, condition.window)
        frame = RunFrame(
            now, self.run, phase.lifecycle, False, signals, lambda *_: "", {}, health, StepBook(), 0, self.past
        )
        frame.table(condition)  # read now, before the totals grow
        return frame

    def _rows(self, phase: Phase) -> Iterator[tuple[str, str, str]]:
        """(signal, series, value) of this instant."""
        condition = self.rule.condition
        for number, series in enumerate(SERIES.get(self.rule.name, ("",))):
            # The second series stays healthy; a gap is of the whole signal.
            state = phase.main if number == 0 or phase.main == GAP else FALSE
            state = GAP if number == 0 and phase.main == ONE_GAP else state
            if condition.of == "increase" and state != ENDED:
                grown = GROWTH[self.rule.name] if state in (TRUE, HOVER) else 0.0
                self.totals[series] = self.totals.get(series, 0.0) + grown
                yield condition.name, series, f"{self.totals[series]:g}"
            else:
                yield condition.name, series, self._value(condition, state)
        for other in self.rule.also:
            yield other.name, ALSO[other.name], self._value(other, phase.also)
            if other.name == TARGET_UP:
                yield TARGET_UP, "kind=vllm,target=another", "1"

    def _value(self, condition: Condition, state: str) -> str:
        return state if state in (GAP, ENDED) else f"{value_of(condition, state):g}"

    def shown(self, phase: Phase) -> Iterator[tuple[str, str]]:
        """(series on the page, value): no value is unknown or has ended, which only the signal's state tells apart."""
        states: dict[str, str] = {}
        for name, series, value in self.rows:
            if value in (GAP, ENDED):
                # A series that ended next to others leaves the signal's state unknown: `Reader` takes the worst.
                other = any(at == name and v not in (GAP, ENDED) for at, _, v in self.rows)
                states[name] = "unknown" if value == GAP or other else "not_applicable"
            else:
                states.setdefault(name, "ok")
                pairs = "".join(f',{label}="{v}"' for label, v in labels(series))
                yield f'rollscope_{name}{{run="{self.run}"{pairs}}}', value
        for (name, found), state in product(states.items(), ("ok", "unknown", "not_applicable")):
            if name != TARGET_UP:
                series = f'rollscope_signal_state{{run="{self.run}",signal="{name}",state="{state}"}}'
                yield series, str(int(found == state))
        for lifecycle in LIFECYCLES:
            series = f'rollscope_run_state{{run="{self.run}",state="{lifecycle}"}}'
            yield series, str(int(lifecycle == phase.lifecycle))


# ---- comparison


@dataclass(frozen=True)
class Row:
    """One rule on one source: instants at which it fires, by label sets, and those at which both differ."""

    rule: str
    source: str
    ours: int
    exported: int
    different: int


def compared(
    change: tuple[str, str] = ("", ""), rules: Iterable[str] = RULES, names: Iterable[str] = RUNS
) -> list[Row]:
    """Every rule on every source. ``change``: a text of the exported file and its replacement, to plant a bug."""

    def text(found: Sequence[Rule]) -> str:
        whole = export.rules(found)
        assert change[0] in whole
        return whole.replace(*change) if change[0] else whole

    rows = []
    wanted = [RULES[name] for name in rules]
    replays = [recorded(name) for name in names]
    for replay, found in zip(replays, exported(replays, text(wanted)), strict=True):
        expected = ours(replay, wanted)
        rows += [_row(rule.name, replay.name, expected, found) for rule in wanted]
    for rule in wanted:
        own = [written(rule, name, phases) for name, phases in faults(rule).items()]
        # One test of all faults, each with a run of its own.
        page = {name: column for replay in own for name, column in replay.page.items()}
        longest = max((replay.frames for replay in own), key=len)
        (found,) = exported([Replay("", EVERY, longest, page)], text([rule]))
        for name, replay in zip(faults(rule), own, strict=True):
            mine = [frozenset(one for one in alerts if dict(one)["run"] == replay.name) for alerts in found]
            rows.append(_row(rule.name, name, ours(replay, [rule]), mine[: len(replay.frames)]))
    return rows


def _row(rule: str, source: str, expected: Firing, found: Firing) -> Row:
    left = [frozenset(one for one in alerts if dict(one)["alertname"] == rule) for alerts in expected]
    right = [frozenset(one for one in alerts if dict(one)["alertname"] == rule) for alerts in found]
    different = sum(a != b for a, b in zip(left, right, strict=True))
    return Row(rule, source, sum(map(len, left)), sum(map(len, right)), different)


# ---- the page

HEAD = """\
# Equality of exported alert rules

`rollscope export rules` writes the alert rules for Prometheus. Here every rule of the default pack is evaluated twice
on the same series, by Rollscope and by Prometheus. The firing alerts are compared with all labels at every instant.
`python -m tests.alerts.equality` writes this page; `tests/alerts/test_equality.py` fails if a result changes.

Each cell is *fires in Rollscope / fires in Prometheus*, in instants, summed over series. Both are the same
alerts at the same instants (every 30 s), except in the two columns that are named different.

## What PromQL cannot express

- **Unknown before it fires.** Rollscope stops the time of `for` while a value is unknown. Prometheus begins it again.
- **One series unknown.** If one series of a signal is unknown while others have values, `/metrics` does not show
  whether it ended. Rollscope holds its alert, and Prometheus ends it.
- Prometheus ends an alert that has been held for a day, and alerts of a Rollscope that it cannot scrape.
- Prometheus sees `/metrics` at each scrape, and Rollscope evaluates every 5 s: Prometheus fires up to one scrape and
  one evaluation later.
- While a run reads its history, `/metrics` has none of its signals, and Prometheus fires only rules about targets and
  totals. While no collector follows a run, Rollscope evaluates nothing, and Prometheus reports every target as down.
- Silences, inhibition and receivers are not exported; they belong to Alertmanager.
- Missing data that counts as true (`no_data = "alert"`) is not exported.

## Faults of each rule

"""
RECORDED = """
## Scenarios and faults of the demo

45 minutes of each run, an instant a minute, recorded from the real `/metrics` and the real input of the rules
(`python -m bench.alert_equality`). Of {pairs} pairs of rule and run these fire; the others fire in neither.

{runs}

"""


def page(rows: Sequence[Row]) -> str:
    """The results as Markdown."""
    columns = list(dict.fromkeys(row.source for row in rows if row.source not in RUNS))
    columns.sort(key=lambda name: name in DIFFERENT)
    cells = {(row.rule, row.source): row for row in rows}
    head = [f"{name} (different)" if name in DIFFERENT else name for name in columns]
    lines = [_line("rule", *head), _line(*["---"] * (1 + len(head)))]
    lines += [_line(f"`{rule}`", *(_cell(cells.get((rule, name))) for name in columns)) for rule in RULES]
    text = HEAD + "\n".join(lines) + "\n"
    by_recording = [row for row in rows if row.source in RUNS]
    text += RECORDED.format(runs=f"Runs: {', '.join(RUNS)}.", pairs=len(by_recording))
    lines = [_line("rule", "run", "fires in Rollscope", "fires in Prometheus", "equal"), _line(*["---"] * 5)]
    lines += [
        _line(f"`{row.rule}`", f"`{row.source}`", row.ours, row.exported, "no" if row.different else "yes")
        for row in by_recording
        if row.ours or row.exported
    ]
    return text + "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    return "" if row is None else f"{row.ours} / {row.exported}"


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    PAGE.write_text(page(compared()))
