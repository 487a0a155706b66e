"""Types shared by receivers: a notification without formatting, receiver settings, and the HTTP request. Pure.

A receiver is a pure function from a notification to one HTTP request; sending, limits, retries and redaction are
the same for all (`server.notify.outbound`, `server.alerts.dispatch`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from server.lib.matchers import Matcher
from server.lib.secret import NO_SECRET, Secret

SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class AlertItem:
    """One alert of a notification. Times are epoch seconds; ``ends_at`` is None while it fires.

    Attributes:
        url: absolute link to the charts at the alert's moment.
    """

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: float
    ends_at: float | None
    fingerprint: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Notification:
    """One group's alerts for one receiver.

    Attributes:
        group_key: Alertmanager's, e.g. ``{}:{alertname="RunStalled", run="a"}``; stable for the group's life.
        status: ``firing`` while any alert fires, else ``resolved``.
        truncated: alerts left out because of the receiver's `max_alerts`.
        reason: why now: ``firing`` (new), ``resolved``, ``repeat`` or ``test``.
        external_url: address of this Rollscope.
    """

    receiver: str
    run: str
    group_key: str
    group_labels: Mapping[str, str]
    status: str
    alerts: tuple[AlertItem, ...]
    truncated: int = 0
    reason: str = "firing"
    external_url: str = ""

    def common_labels(self) -> dict[str, str]:
        """Returns labels that all alerts share."""
        return _common([alert.labels for alert in self.alerts])

    def common_annotations(self) -> dict[str, str]:
        """Returns annotations that all alerts share."""
        return _common([alert.annotations for alert in self.alerts])


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """One ``[[alerts.receiver]]``, validated.

    Attributes:
        url: the receiver's address; may contain a secret and is never displayed.
        options: further keys of the kind, secrets as `Secret`.
        match: only alerts that match all of these; empty: every alert.
        group_by: labels by which alerts share a notification (alerts of different runs never share one).
    """

    name: str
    kind: str
    url: Secret = NO_SECRET
    options: Mapping[str, str | Secret] = field(default_factory=dict)
    send_resolved: bool = True
    max_alerts: int = 0
    match: tuple[Matcher, ...] = ()
    group_by: tuple[str, ...] = ("alertname", "run")
    group_wait: float = 0.0
    group_interval: float = 60.0
    repeat_interval: float = 14_400.0

    def secrets(self) -> tuple[str, ...]:
        """Returns every text that must not leave this process except in the request itself."""
        return tuple(value for value in (self.url, *self.options.values()) if isinstance(value, Secret) and value)


@dataclass(frozen=True, slots=True)
class Option:
    """A key of a receiver kind in addition to `url`. Secrets come as ``KEY_file`` or ``KEY_env``, never inline."""

    help: str
    required: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. ``url`` and ``headers`` may hold secrets; secret header values are `Secret`.

    Attributes:
        secrets: further texts that must not appear in the displayed answer, e.g. a key inside the body.
    """

    url: Secret
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class DeliveryAnswer:
    """Outcome of an attempt. ``text`` is fit for logs and pages: short and without secrets.

    Attributes:
        retry: worth another attempt (5xx, 408, 429, network); every other failure is final.
        after: seconds to wait, from the receiver's Retry-After.
    """

    ok: bool
    retry: bool = False
    text: str = ""
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Receiver:
    """One kind of receiver: a module constant ``RECEIVER`` in a file of this package named after its kind.

    Attributes:
        reads: README row: the API it uses.
        needs_url: the `url` key (or url_file, url_env) is required.
        render: (notification, settings, send time in epoch seconds) -> the request.
        deliver: instead of `render`, for libraries that do their own sending; runs on a thread, never raises.
        refresh_seconds: 0 for grouped notifications; otherwise the receiver groups by itself and needs the whole
            state again at this interval (Alertmanager).
        check: returns why the receiver cannot work in spite of valid keys, or None; called once, at start.
    """

    kind: str
    reads: str
    render: Callable[[Notification, ReceiverSettings, float], Request] | None = None
    deliver: Callable[[Notification, ReceiverSettings], DeliveryAnswer] | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    needs_url: bool = True
    refresh_seconds: float = 0.0
    check: Callable[[ReceiverSettings], str | None] | None = None


def _common(maps: list[Mapping[str, str]]) -> dict[str, str]:
    first, *others = maps or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
