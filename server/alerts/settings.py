"""Settings of alerting; `server.config.alerts` reads them from the configuration."""

from dataclasses import dataclass, field

from server.alerts.model import Rule
from server.alerts.mute import InhibitRule
from server.lib.matchers import Matcher
from server.lib.secret import NO_SECRET, Secret
from server.notify.model import ReceiverSettings

# Liveness alerts inhibit tuning and cost alerts: engines must work before their tuning matters.
LIVENESS_FIRST = InhibitRule((Matcher("class", "=", "liveness"),), (Matcher("class", "=~", "tuning|cost"),), ("run",))


@dataclass(frozen=True, slots=True)
class DeadManSettings:
    """The URL to ping while healthy. It is a secret: a client with the URL can keep the watchdog quiet."""

    url: Secret = NO_SECRET
    interval: float = 60.0


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Everything about alerting. ``rules`` in the order of evaluation: the pack, then the user's."""

    rules: tuple[Rule, ...] = ()
    receivers: tuple[ReceiverSettings, ...] = ()
    inhibits: tuple[InhibitRule, ...] = (LIVENESS_FIRST,)
    external_url: str = ""
    deadman: DeadManSettings = field(default_factory=DeadManSettings)
