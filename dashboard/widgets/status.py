"""Accessors for a run's status: `value("trainer_wait_ratio")`, `fact("trainer_gpus")`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from dashboard.widgets.format import system, text
from dashboard.widgets.signal_lookup import Signals, Want
from server.query.run_state import OVER
from server.query.types import SignalNow, Status, TargetTrust

# A struct is what a widget shows, a list or an object a row; a browser script draws them.
Cell = str | float | None | list[Any] | dict[str, Any] | Struct
View = dict[str, Cell]


RECORDS = "records"
# The reader's text for a signal that no longer has a value ("no step for 3 h; the last value was 0.66").
LAST = "; the last value was "


class StatusFacts:
    """Read-only view of one `Status`; absent, unknown and not applicable all give None, never zero.

    ``at``: the instant of signals and verdict (epoch seconds); None: the present.
    """

    def __init__(self, status: Status, at: float | None = None) -> None:
        self.status = status
        self.at = at
        lost = self._dead_engines()
        self.signals = Signals(_without_stale_state(signal, lost) for signal in status.signals.values())

    def find(self, signal: str, **labels: str) -> SignalNow | None:
        return Want(signal, tuple(labels.items())).explain(self.signals)

    def value(self, signal: str, **labels: str) -> float | None:
        found = self.find(signal, **labels)
        return found.value if found else None

    def say(self, signal: str, **labels: str) -> str:
        """The value with its unit, or nothing."""
        found = self.find(signal, **labels)
        return text(found.value, found.unit) if found and found.value is not None else ""

    def silence(self, signal: str, **labels: str) -> str:
        """Why a signal that once had a value has none now ("no step for 3 h"); nothing for one that never had."""
        found = self.find(signal, **labels)
        return first_clause(found.why) if found and found.value is None and LAST in found.why else ""

    def state(self, signal: str, **labels: str) -> str:
        found = self.find(signal, **labels)
        return found.state if found else "unknown"

    def named(self, signal: str) -> list[SignalNow]:
        """Present values of a signal per engine, by target; none for a run that is over."""
        values = (one for one in self.signals if one.signal == signal and "target" in one.labels)
        return [one for one in values if one.value is not None and not self.over]

    def number(self, fact: str) -> float | None:
        found = self.status.facts.get(fact)
        return float(found) if isinstance(found, (int, float)) else None

    def gpus(self, actor: str) -> str:
        """``16 × H200`` with the parts that are known."""
        count, kind = self.number(f"{actor}_gpus"), str(self.status.facts.get("gpu_type", ""))
        return f"{count:.0f} × {kind or 'GPU'}" if count else kind

    @property
    def targets(self) -> Sequence[TargetTrust]:
        """Those that are missed when they do not answer."""
        return self.status.trust

    def kinds(self, actor: str) -> str:
        """The systems that play this actor, as the targets name them; ``records``: formats of rollout records."""
        return " + ".join(sorted({system(t.kind) for t in self.targets if _plays(t) == actor}))

    @property
    def over(self) -> bool:
        return self.status.lifecycle in OVER

    @property
    def present(self) -> bool:
        """Whether the verdict describes the run as it is now.

        Of a stale run it does if the reader did not withhold it: because the run makes no progress.
        """
        state = self.status.state.name
        return self.current and (state == "live" or (state == "stale" and self.status.verdict.named))

    @property
    def current(self) -> bool:
        """Whether the run is not over and the page shows the present."""
        return not self.over and self.at is None

    @property
    def synchronous(self) -> bool:
        return self.status.mode.startswith("sync")

    def down(self, actor: str) -> tuple[str, str]:
        """(state, text) when targets of an actor (or ``records``) do not answer; a run that is over needs none.

        Of a run that is not collected no target was read, so none of them is down.
        """
        up = [target.up for target in self.targets if _plays(target) == actor]
        if not self.current or self.status.state.name == "not_collected" or all(up):
            return "", ""
        return ("watch" if any(up) else "critical"), f"{up.count(False)} of {len(up)} down"

    def _dead_engines(self) -> str:
        state, names = self.down("generator")
        error = next((t.error for t in self.targets if _plays(t) == "generator" and t.error), "")
        return f"no engine answers ({names}{': ' + error if error else ''})" if state == "critical" else ""

    def newest(self) -> float | None:
        """When the newest measured number on the page was true: what "updated" and "ended" refer to."""
        return self.status.state.as_of

    @property
    def moment(self) -> float:
        """The instant that the page shows: now, or while the run catches up the position in its history.

        Numbers, verdict and charts are then of one instant, and none of them looks like the present.
        """
        state = self.status.state
        behind = state.name == "catching_up" and state.as_of is not None
        return state.as_of if behind and state.as_of is not None else self.status.now


# How the names of signals begin that engines alone give.
ENGINES = ("generator_", "kv_", "live_sequence_", "prefix_cache_", "time_to_first_", "inter_token_", "e2e_request_")


def _plays(target: TargetTrust) -> str:
    """Its actor. Records are of what a generator made: a directory that cannot be read is no engine that is down."""
    return RECORDS if target.records else target.actor


def _without_stale_state(signal: SignalNow, dead_engines: str) -> SignalNow:
    """Sets the state of missing values to unknown. An engine target that does not answer gets that as reason, because
    "add the engine as a target" would be wrong."""
    if signal.value is not None or signal.state == "not_applicable":
        return signal
    of_engine = dead_engines and signal.signal.startswith(ENGINES)
    return structs.replace(signal, state="unknown", why=dead_engines if of_engine else signal.why)


def engine_name(target: str, labels: Mapping[str, str]) -> str:
    """``vllm-3``, ``vllm-3:1`` for a further rank of it, ``router/10.0.0.1:30000`` for one on a merged page."""
    replica, rank = labels.get("replica", ""), labels.get("engine", "0")
    return target + (f"/{replica}" if replica else "") + (f":{rank}" if rank != "0" else "")


def joined(*parts: str) -> str:
    """Joins texts with dots; empty ones are left out."""
    return " · ".join(word for word in parts if word)


def first_clause(why: str) -> str:
    """The first clause of a reason, without the advice, for narrow places."""
    return re.split(r"[:;] | \(", why, maxsplit=1)[0]


def worst(states: Iterable[str]) -> str:
    """The worst known state; unknown only when nothing is known."""
    order = ("critical", "watch", "ok", "not_applicable")
    found = set(states)
    return next((state for state in order if state in found), "unknown")
