"""Health rows of target lists and pending sources. An unreadable list is shown like a target that does not answer."""

from dataclasses import dataclass, field, replace

from server.ingest.readings import Arrivals, Ingest, health
from server.store.types import UNKNOWN, Batch, TargetRow
from server.targets.discovery.roster import TargetDiscovery, TargetList
from server.targets.pending import PendingSources

# Rows are repeated at this interval (s), so that they do not look stale (`server.query.reader`: a minute).
REPEATED_SECONDS = 30.0
DISCOVERY = "discovery"
"""Actor of a list's row."""


def name_of(source: TargetList) -> str:
    """Returns the name of a list's row."""
    return f"discovery {source.name}"


@dataclass(slots=True)
class StatusRows:
    """Rows of a run's lists and pending sources, written when they change and at an interval."""

    roster: TargetDiscovery
    waiting: PendingSources
    _last_rows: dict[str, TargetRow] = field(default_factory=dict)
    _at: float = float("-inf")

    def batch(self, ingest: Ingest, removed: list[str], now: float) -> tuple[Batch, Arrivals]:
        """Returns changed rows (all of them at intervals), and rows of targets that are ``gone``."""
        ingest.origins = self.roster.origins
        batch, arrivals = ingest.gone(removed, now)
        awaited = self.waiting.rows(now)
        rows = {row.name: row for row in (*self._lists(now), *self._unknown(now), *awaited)}
        is_due = not self._at <= now < self._at + REPEATED_SECONDS
        for name, row in rows.items():
            before = self._last_rows.get(name)
            if is_due or before is None or replace(row, last_ts=before.last_ts, last_ok_ts=before.last_ok_ts) != before:
                batch.targets.append(ingest.remember(row))
                # Configured sources and lists count for alerts; discovered targets of unknown kind do not.
                if row.actor == DISCOVERY or row in awaited:
                    arrivals.health.append(health(row))
        self._last_rows, self._at = rows, now if is_due else self._at
        return batch, arrivals

    def _lists(self, now: float) -> list[TargetRow]:
        return [self._list(source, round(now * 1000)) for source in self.roster.sources]

    def _list(self, source: TargetList, now: int) -> TargetRow:
        name, error = name_of(source), self.roster.error(source)
        before = self._last_rows.get(name)
        read = source.answered and not source.listing.error
        return TargetRow(
            name, source.settings.kind, DISCOVERY, not error, now,
            now if read else before.last_ok_ts if before else None, error or self.roster.note(source),
            "garbage" if error else "", samples=self.roster.count(source),
            interval_seconds=source.settings.refresh_seconds,
        )  # fmt: skip

    def _unknown(self, now: float) -> list[TargetRow]:
        return [
            TargetRow(
                target.name, UNKNOWN, UNKNOWN, False, round(now * 1000), None,
                f"{error}; its kind is not known yet", kind or "unreachable",
                interval_seconds=target.source.settings.interval_seconds, origin=target.origin,
            )
            for target, kind, error in self.roster.unknown()
        ]  # fmt: skip
