"""`rollscope alerts test` and `rollscope alerts send-test`: tests rules and receivers."""

import os
from contextlib import closing
from pathlib import Path

import click

from server import store
from server.cli import FAILED, OK
from server.cli.options import Options, common
from server.cli.program import Command, Group, describe
from server.config import alerts as alerts_config
from server.config.settings import load, read, store_of
from server.lib.clock import WallClock
from server.lib.errors import ConfigError


@click.group(cls=Group)
def command() -> None:
    pass


@click.command(cls=Command)
@common
@click.argument(
    "file", required=False, type=click.Path(path_type=Path), metavar="[FILE]", help="tests in promtool's layout (YAML)"
)
@click.option("--replay", metavar="RUN", default=None, help="evaluate the rules over a stored run")
@click.option("--json", "as_json", is_flag=True, help="print the replay's result as JSON")
def test(options: Options, file: Path | None, replay: str | None, as_json: bool) -> int:
    if (file is None) == (replay is None):
        raise ConfigError(["alerts test: name a FILE or --replay RUN"])
    if file is not None:
        from server.cli import alerts_test  # noqa: PLC0415 - takes a second, and a usage error does not need it

        report, passed = alerts_test.run(file, alerts_config.load_rules)
        print(report)
        return OK if passed else FAILED
    assert replay is not None
    raw = read(options.config)
    from server.cli import alerts_replay  # noqa: PLC0415 - takes a second, and a usage error does not need it

    rules = alerts_config.rules_of(raw)
    try:
        with closing(store.Store.open(options.store or store_of(raw, os.environ), read_only=True)) as opened:
            result = alerts_replay.run(opened, replay, rules)
    except store.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print(alerts_replay.dump(result) if as_json else alerts_replay.text(result, rules))
    return OK


@click.command(cls=Command)
@common
@click.argument("receiver", metavar="RECEIVER", help="name of a receiver of the configuration")
def send_test(options: Options, receiver: str) -> int:
    settings = load(options.config, os.environ)
    receivers = {item.name: item for item in settings.alerts.receivers}
    if receiver not in receivers:
        names = ", ".join(receivers) or "none; add [[alerts.receiver]] to the configuration (-c FILE)"
        raise ConfigError([f"no receiver is named {receiver!r}; configured: {names}"])
    from server.cli import alerts_send  # noqa: PLC0415 - takes a second, and a usage error does not need it

    url = settings.alerts.external_url or f"http://{settings.host}:{settings.port}"
    report, accepted = alerts_send.run(receivers[receiver], url, WallClock().now())
    print(report)
    return OK if accepted else FAILED


describe(test, "run unit tests of rules, or replay a stored run", "rollscope alerts test --replay my-run")
describe(send_test, "send a test notification to a receiver", "rollscope alerts send-test oncall -c rollscope.toml")
command.add_command(test, "test")
command.add_command(send_test, "send-test")
