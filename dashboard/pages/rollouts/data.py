"""Cells of the Rollouts page: staleness, exits, states of rollouts in flight, solve rates."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import structs

from dashboard.charts.time_columns import Grid
from dashboard.pages.rollouts.filters import CENSUS, EXITS, WAITS, parse
from dashboard.pages.rollouts.records import RolloutRecords, detail, tables
from dashboard.pages.sandboxes.data import HERE
from dashboard.shell.page import Scope
from dashboard.widgets import card
from dashboard.widgets.base import Headline, Part, Quantity, absent
from dashboard.widgets.card import Card
from dashboard.widgets.format import money, number, text
from dashboard.widgets.signal_lookup import want
from dashboard.widgets.status import RECORDS, StatusFacts, View, first_clause, joined
from server.query import RolloutGroupRow
from server.query.types import Cells, Discards, SignalInfo, SignalNow

_STALE, _PARTS = "staleness_versions", ("in_flight", "in_group", "in_queue")
_MEAN = want(_STALE, level="trajectory", stat="mean")
_BASIS = "completed|admitted"
_CAUSES = (("all solved", "all_solved"), ("none solved", "none_solved"), ("cause unknown", "equal_unknown"),
           ("too few valid", "too_few_valid"))  # fmt: skip


def _staleness(key: str, title: str, level: str, colour: str) -> Card:
    notes = tuple((name, want(_STALE, level=level, stat=name)) for name in ("p95", "max"))
    return Card(key, title, colour, (want(_STALE, level=level, stat="mean"),), notes=notes)


CARDS: tuple[Card, ...] = (
    _staleness("ro_policy", "Staleness", "trajectory", "blue"),
    _staleness("ro_token", "Token staleness", "token", "blue"),
    _staleness("ro_env", "Environment state", "environment_state", "purple"),
    Card(
        "ro_mixed",
        "Mixed versions",
        "orange",
        (want("mixed_version_ratio"),),
    ),
    Card("ro_zero", "Zero advantage", "gold", (want("zero_advantage_ratio", basis=_BASIS),)),
    Card("ro_tail", "Tail index", "orange", (want("tail_index_ratio", of="response_tokens"),), unit="×"),
    Card(
        "ro_age",
        "Oldest sample",
        "teal",
        (want("sample_age_seconds", stat="oldest"),),
        notes=(("p95 when consumed", want("sample_age_seconds", stat="p95")),),
        peaks=True,
    ),
    Card("ro_infra", "Infra failures", "purple", (want("infra_failure_ratio"),)),
)
WORDS: Mapping[str, str] = {
    "waiting_slot": "waiting for a slot", "booting": "sandbox booting", "generating": "generating",
    "in_tool": "in a tool", "scoring": "scoring", "waiting_group": "waiting for siblings", "queued": "in the queue",
    "gated": "held by staleness gate", "trained": "trained", "zero_advantage": "zero advantage", "stale": "too stale",
    "surplus": "surplus", "aborted_oversample": "aborted (oversampled)", "truncated_drop": "dropped (truncated)",
    "env_error": "environment error", "infra_error": "infra error", "ended": "ended", "unrecorded": "not recorded",
}  # fmt: skip
"""Labels of states and exits; the browser gets them once (``rollouts.words``)."""


def cells(scope: Scope) -> View:
    """All texts of the page. Its ``rollouts.mode`` is ``none`` (no rollout is reported) or ``ok``."""
    facts, infos, records = scope.facts, scope.reader.signals.infos, RolloutRecords(scope, parse(scope.search))
    has_records = records.any()
    found: View = {"rollouts.mode": "ok" if has_records else "none"}
    # On this page a card shows the whole reason, because it names the missing field.
    cards = {
        key: structs.replace(one, note=one.why or one.note) for key, one in card.bind_all(CARDS, facts, infos).items()
    }
    notes = {"ro_env": _bound(facts), "ro_zero": _zero(facts), "ro_mixed": _mixed(facts), "ro_tail": _tail(facts),
             "ro_policy": _synchronous(facts)}  # fmt: skip
    cards |= {key: structs.replace(cards[key], note=note) for key, note in notes.items() if note}
    found |= card.cells(cards) | _head(facts, infos, records, has_records)
    if not has_records:
        return found | _how(facts.status.run)
    found |= {"rollouts.words": dict(WORDS), "rollouts.envs": list(records.environments())}
    found |= _census(records, facts.status.now) | _environments(facts) | tables(records)
    columns = records.columns
    if columns is not None:
        found |= _funnel(records, columns) | _drawn(records, columns, facts)
    return found | detail(records, facts.status.now)


# ---- head


def _head(facts: StatusFacts, infos: Mapping[str, SignalInfo], records: RolloutRecords, has_records: bool) -> View:
    census = records.census() if has_records else ()
    counted = facts.value("rollouts_in_flight")
    live = sum(row.rollouts for row in census if row.state not in WAITS) if counted is None else round(counted)
    flight = f"{live:,} in flight now" if census else ""
    down = facts.down(RECORDS)[1]
    flight = joined(flight, f"record sources: {down}" if down else "")
    parts = {name: value for name in _PARTS if (value := facts.value("staleness_part_versions", part=name)) is not None}
    return {
        "head.rollouts": structs.replace(
            _headline(facts, infos, has_records), split=_split(parts), state=_judged(facts)
        ),
        "rollouts.live": flight if not facts.over else "",
        "rollouts.parts": " + ".join(f"{number(value)} {name.replace('_', ' ')}" for name, value in parts.items()),
    }


def _judged(facts: StatusFacts) -> str:
    found = _MEAN.explain(facts.signals)
    return found.state if found else "unknown"


def _headline(facts: StatusFacts, infos: Mapping[str, SignalInfo], has_records: bool) -> Headline:
    mean = _MEAN.explain(facts.signals)
    if not has_records and (mean is None or mean.value is None):
        sentence = "Rollout records show why rollouts are late or wasted. See below how to send them."
        return Headline("No rollout records", text=sentence)
    if mean is None or mean.value is None:
        why = mean.why if mean else absent(_STALE, infos)
        return Headline("Staleness unknown", text=why[:1].upper() + why[1:])
    if facts.synchronous and not mean.value:
        sentence = "Synchronous: staleness is 0 by definition. The policy that generated a rollout trains on it."
        return Headline(f"Every rollout {'was' if facts.over else 'is'} fresh", text=sentence)
    figure = Quantity(mean.value, "version" if mean.value == 1 else "versions")
    verb = "were" if facts.over else "are"
    return Headline(f"Trained rollouts {verb} ", figure, " behind", _beside(facts))


def _beside(facts: StatusFacts) -> str:
    stats = [(name, facts.value(_STALE, level="trajectory", stat=name)) for name in ("p95", "max")]
    bound, estimated = facts.number("max_staleness_versions"), facts.value("staleness_estimated_versions")
    return joined(
        *(f"{name} {number(value)}" for name, value in stats if value is not None),
        f"bound {number(bound)}" if bound is not None else "",
        f"in flight: {number(estimated)} ± 1 (estimate)" if estimated is not None else "",
    )


def _split(parts: Mapping[str, float]) -> tuple[Part, ...]:
    """Where staleness arises; nothing where a part is missing."""
    total = sum(parts.values())
    if total <= 0 or len(parts) < len(_PARTS):
        return ()
    return tuple(Part(name, f"In {name.replace('_', ' ').removeprefix('in ')}", round(value / total, 3))
                 for name, value in parts.items())  # fmt: skip


# ---- cards


def _synchronous(facts: StatusFacts) -> str:
    mean = _MEAN.explain(facts.signals)
    fresh = facts.synchronous and mean is not None and mean.value == 0
    return "synchronous: by definition" if fresh else ""


def _bound(facts: StatusFacts) -> str:
    """Turns that do not report whether they changed the environment count as changes: the value is an upper bound."""
    found = facts.find(_STALE, level="environment_state", stat="mean")
    if found is None or found.value is None or not found.why.startswith("upper bound"):
        return ""
    stats = ((name, facts.value(_STALE, level="environment_state", stat=name)) for name in ("p95", "max"))
    return joined("upper bound", *(f"{name} {number(value)}" for name, value in stats if value is not None))


def _zero(facts: StatusFacts) -> str:
    """By cause, the most frequent first."""
    if facts.value("zero_advantage_ratio", basis=_BASIS) is None:
        return ""
    causes = [(facts.value("zero_advantage_group_ratio", basis=_BASIS, cause=cause), word) for word, cause in _CAUSES]
    shown = sorted(((value, word) for value, word in causes if value), key=lambda pair: -pair[0])
    return joined(*(f"{text(value, 'ratio')} {word}" for value, word in shown))


def _mixed(facts: StatusFacts) -> str:
    turns = facts.say("old_state_turn_ratio")
    has_ratio = facts.value("mixed_version_ratio") is not None and turns
    return f"{turns} of turns on state of an older policy" if has_ratio else ""


def _tail(facts: StatusFacts) -> str:
    if facts.value("tail_index_ratio", of="response_tokens") is None:
        return ""
    times = facts.value("tail_index_ratio", of="seconds")
    return joined("p99 / p50 of tokens", f"of time {number(times)}" if times is not None else "")


# ---- funnel and census


def _funnel(records: RolloutRecords, columns: Grid) -> View:
    """Keys ``exits.N``: a `FunnelBar` per exit."""
    funnel = records.funnel(columns)
    order = {name: at for at, name in enumerate(EXITS)}
    reported = [bar for bar in funnel.bars if bar.rollouts or bar.response_tokens]
    bars = sorted(reported, key=lambda bar: (bar.derived, order.get(bar.exit, len(order)), bar.exit))
    found: View = {
        f"exits.{i}": structs.asdict(bar) | {"gpu_seconds": _cut(bar.gpu_seconds), "usd": _cut(bar.usd)}
        for i, bar in enumerate(bars)
    }
    none = "" if bars else "No rollout ended in this range."
    unrecorded = [bar for bar in bars if bar.exit == "unrecorded"]
    purpose = records.query.filter.purpose or "train"
    return (
        found
        | {
            "exits.in": funnel.in_flight,
            "exits.why": _sentence(funnel.why),
            "exits.none": none,
            "exits.lost": _lost(funnel.wasted_usd, sum(bar.usd or 0.0 for bar in unrecorded)),
            "exits.first": _first(records.cells("response_tokens", columns), columns) if unrecorded else None,
            "exits.of": purpose,
            "exits.bias": _bias(funnel.discards[0]) if funnel.discards else "",
        }
        | _discarded(funnel.discards)
    )


# Rollouts of each side: fewer have no mean worth comparing. Factor between the means: a smaller one is no finding.
_FEW, _FAR = 20, 1.25


def _bias(of: Discards) -> str:
    """Whether the discard depends on length. What was cut short is longer than its tokens show."""
    if (
        of.trained_tokens is None
        or of.discarded_tokens is None
        or min(of.trained_measured, of.discarded_measured) < _FEW
    ):
        return ""
    factor = of.discarded_tokens / of.trained_tokens if of.trained_tokens else 1.0
    means = f"{of.discarded_tokens:,.0f} against {of.trained_tokens:,.0f} tokens on average"
    whole = f"; {of.cut:,} of {of.discarded:,} were cut short" if of.cut else ""
    if factor >= _FAR:
        least = "at least " if of.cut else ""
        times = f"{least}{number(factor)} times as long as trained ones ({means}{whole})"
        return f"Discarded rollouts are {times}: the discard is biased by length."
    if of.cut:
        return f"Whether the discard is biased by length is unknown: {means}{whole}."
    if factor <= 1 / _FAR:
        return f"Trained rollouts are {number(1 / factor)} times as long as discarded ones ({means})."
    return f"Discarded rollouts are as long as trained ones ({means})."


def _discarded(found: Sequence[Discards]) -> View:
    """Keys ``discards.N``: a row per environment, the largest share of discarded rollouts first."""
    shares = [(one.discarded / (one.trained + one.discarded), one) for one in found[1:]]
    rows = sorted(shares, key=lambda row: (-row[0], row[1].environment))[:_ENVIRONMENTS]
    view: View = {
        f"discards.{i}": {
            "environment": one.environment or "unnamed",
            "share": f"{text(share, 'ratio')} of {one.trained + one.discarded:,}",
            "width": round(100 * share, 1),
        }
        for i, (share, one) in enumerate(rows)
    }
    none = "No trained rollout in this range: what was discarded cannot be compared."
    return view | {"discards.none": "" if rows else none}


def _first(ended: Cells, columns: Grid) -> float | None:
    """When the first record ended, if at least a tenth of the time range is before it: that time was not
    recorded, which is no loss.
    """
    first = next((at for at, counts in ended if counts), None)
    return first if first is not None and first - columns.start >= (columns.end - columns.start) / 10 else None


def _lost(usd: float | None, unrecorded: float) -> str:
    """``unrecorded``: dollars of it that are linked to no record, which is no proof of a loss."""
    if not usd or not unrecorded:
        return f"{money(usd)} was spent on rollouts that were not trained on." if usd else ""
    rest = f"; {money(unrecorded)} of it is not in any record" if unrecorded < usd else " and is not in any record"
    return f"{money(usd)} is not linked to trained rollouts{rest}."


def _sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:] + "." if clause else ""


def _cut(value: float | None) -> float | None:
    """To a hundredth, which is what is shown: every tick moves the digits behind it."""
    return None if value is None else round(value, 2)


def _census(records: RolloutRecords, now: float) -> View:
    """Keys ``census.N``: a row per state; ``rollouts`` None: no source reports it; ``since``: of the oldest.

    ``label`` replaces the state's name: an orchestrator that reports one number of rollouts in flight counts those
    that boot, use a tool or are scored as generating.
    """
    by_state = {row.state: row for row in records.census()}
    order = [*CENSUS, *sorted(by_state.keys() - set(CENSUS))]
    most = max((row.rollouts for row in by_state.values()), default=0)
    found: View = {}
    for i, state in enumerate(order):
        row = by_state.get(state)
        count = row.rollouts if row is not None else None
        since = (
            round(now - row.oldest_seconds) if row is not None and row.oldest_seconds is not None and count else None
        )
        whole = state == "generating" and count and since is None and by_state.keys().isdisjoint(_STAGES)
        found[f"census.{i}"] = {
            "state": state,
            "rollouts": count,
            "width": round(100 * (count or 0) / most, 1) if most else 0,
            "since": since,
            "label": "in flight, stage not reported" if whole else "",
        }
    none = "" if most else "Nothing is in flight." if by_state else "No source reports rollouts in flight."
    return found | {"census.none": none, "census.order": list(CENSUS)}


_STAGES = ("booting", "in_tool", "scoring")
_ENVIRONMENTS = 8


def _environments(facts: StatusFacts) -> View:
    """Keys ``zero_causes.N``: a row per environment and difficulty, the worst first; ``share``: as text."""
    measured = [s for s in facts.signals if s.signal == "zero_advantage_environment_ratio" and s.value is not None]
    rows = sorted(((s.value or 0.0, _named(s)) for s in measured), key=lambda row: (-row[0], row[1]))[:_ENVIRONMENTS]
    found: View = {
        f"zero_causes.{i}": {
            "environment": name,
            "share": text(value, "ratio"),
            "width": round(100 * min(1.0, value), 1),
        }
        for i, (value, name) in enumerate(rows)
    }
    silent = facts.find("zero_advantage_environment_ratio")
    why = silent.why if silent is not None and silent.why else "Not reported by environment."
    return found | {"zero_causes.none": "" if rows else _sentence(why.rstrip("."))}


def _named(signal: SignalNow) -> str:
    return joined(*(signal.labels.get(name, "") for name in ("environment", "difficulty"))) or "unnamed"


# ---- drawings


def _drawn(records: RolloutRecords, columns: Grid, facts: StatusFacts) -> View:
    """Both heat maps and the solve rates; ``rollout_columns.width``: of their columns, seconds."""
    stale, length = records.cells("staleness", columns), records.cells("response_tokens", columns)
    bound = facts.number("max_staleness_versions")
    found: View = {
        "rollout_columns.width": columns.width,
        "staleness_heat.bound": bound,
        "staleness_heat.limit": f"bound {number(bound)}" if bound else "",
    }
    found |= _columns("staleness_heat", stale, columns, _no_staleness(facts))
    found |= _columns("length_heat", length, columns, "No rollout with a length ended in this range.")
    return found | _solved(records.cells("solve_ratio", columns), _group_size(facts, records.groups()[0]))


def _no_staleness(facts: StatusFacts) -> str:
    if facts.synchronous:
        return "Synchronous: staleness is 0 by definition."
    why = first_clause(facts.silence(_STALE, level="trajectory", stat="mean"))
    return joined("No consumption reported in this range", why) + "."


def _columns(prefix: str, found: Cells, columns: Grid, none: str) -> View:
    """``PREFIX.N``: [[bin, how many], ...]; ``PREFIX.most`` the fullest cell."""
    view: View = {
        f"{prefix}.{columns.number(at + columns.width / 2)}": [[int(b), counts[b]] for b in sorted(counts, key=int)]
        for at, counts in found
        if counts
    }
    most = max((n for _, counts in found for n in counts.values()), default=0)
    total = sum(n for _, counts in found for n in counts.values())
    return view | {f"{prefix}.most": most, f"{prefix}.total": total, f"{prefix}.none": "" if total else none}


# Solve rates in tenths between which a group's rewards differ enough to learn from.
_BAND = range(2, 8)
TENTHS = 10


def _solved(found: Cells, size: int | None) -> View:
    """``rollouts.solve``: a bar per number of solved members, or per tenth where ``size`` of the groups is not one.

    ``solve_rates.of`` is the group size or None.
    """
    tenths = [0] * TENTHS
    for _, column in found:
        for tenth, n in column.items():
            tenths[min(TENTHS - 1, max(0, int(tenth)))] += n
    total = sum(tenths)
    share = text(sum(tenths[i] for i in _BAND) / total, "ratio") if total else ""
    note = f"{share} of {total:,} groups have a solve rate of 20% to 80%, the useful range." if total else ""
    places = _places(size)
    labels = {at: str(k) for k, at in enumerate(places)} or {i: f"{10 * i}% to {10 * i + 10}%" for i in range(TENTHS)}
    counts = dict.fromkeys(labels, 0)
    for tenth, n in enumerate(tenths):
        # A group with failed members has a rate that no k of the size has: it counts for the next lower one.
        counts[max(at for at in labels if at <= tenth)] += n
    rows = [{"label": label, "groups": counts[at], "productive": at in _BAND} for at, label in labels.items()]
    return {
        "rollouts.solve": rows if total else [],
        "solve_rates.of": size if places else None,
        "solve_rates.n": note or "No group with a solve rate in this range.",
    }


def _places(size: int | None) -> list[int]:
    """The tenth of each k of ``size`` solved members; nothing where two of them share one."""
    if size is None or not 1 <= size < TENTHS:
        return []
    return [min(TENTHS - 1, k * TENTHS // size) for k in range(size + 1)]


def _group_size(facts: StatusFacts, groups: Sequence[RolloutGroupRow]) -> int | None:
    """Members of a group, as configured, else as the groups shown have it; None where they differ."""
    stated = facts.number("group_size")
    if stated is not None:
        return round(stated)
    sizes = {group.size for group in groups}
    return next(iter(sizes)) if len(sizes) == 1 else None


# ---- how to report


def _how(run: str) -> View:
    return {
        "rollouts.push": recipe(run),
        "rollouts.watch": "rollscope watch ./outputs/my-run   # or --push to a server elsewhere",
    }


def recipe(run: str, address: str = HERE) -> str:
    """Python code that reports rollouts from any trainer: one JSON line each, in parts as fields become available."""
    return f'''import json, sys, time
from urllib.request import Request, urlopen

URL = "{address}/api/v1/runs/{quote(run, safe="")}/rollouts"
HEADERS = {{"content-type": "application/x-ndjson"}}  # and "authorization": "Bearer TOKEN" where there is one


def report(*rollouts):  # takes at most a second and never raises
    try:
        lines = "\\n".join(map(json.dumps, rollouts))
        urlopen(Request(URL, lines.encode(), HEADERS), timeout=1).close()
    except Exception as error:
        print("rollscope:", error, file=sys.stderr)


report({{"rollout_id": id, "group_id": group, "group_size": 8, "environment": "swe",
        "version_start": version, "started_at": time.time()}})
# when it ended, and again when the trainer used it; parts of one rollout are merged
report({{"rollout_id": id, "version_finish": version, "finished_at": time.time(), "response_tokens": 4096,
        "token_versions": [[411, 3000], [412, 1096]], "turns": 14, "reward": 1.0, "max_reward": 1.0}})
report({{"rollout_id": id, "version_consumed": version, "consumed_at": time.time()}})
'''
