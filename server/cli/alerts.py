"""`rollscope alerts test` and `rollscope alerts send-test`: tries rules and receivers."""

import argparse
import os
from contextlib import closing
from pathlib import Path

from server import store
from server.cli import FAILED, OK, alerts_replay, alerts_send, alerts_test
from server.cli.options import common
from server.clock import WallClock
from server.config import alerts as alerts_config
from server.config.errors import ConfigError
from server.config.settings import load, read, store_of


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    text = "run unit tests of rules, or replay a stored run"
    testing = verbs.add_parser(
        "test", help=text, description=text, epilog="example: rollscope alerts test --replay my-run"
    )
    common(testing)
    testing.add_argument("file", nargs="?", type=Path, metavar="FILE", help="tests in promtool's layout (YAML)")
    testing.add_argument("--replay", metavar="RUN", default=None, help="evaluate the rules over a stored run")
    testing.add_argument("--json", action="store_true", help="print the replay's result as JSON")
    text, example = "send one marked notification to a receiver", "rollscope alerts send-test oncall -c rollscope.toml"
    sending = verbs.add_parser("send-test", help=text, description=text, epilog=f"example: {example}")
    common(sending)
    sending.add_argument("receiver", metavar="RECEIVER")


def execute(args: argparse.Namespace) -> int:
    return _test(args) if args.verb == "test" else _send(args)


def _test(args: argparse.Namespace) -> int:
    if (args.file is None) == (args.replay is None):
        raise ConfigError(["alerts test: name a FILE or --replay RUN"])
    if args.file is not None:
        report, fine = alerts_test.run(args.file, alerts_config.load_rules)
        print(report)
        return OK if fine else FAILED
    raw = read(args.config)
    rules = alerts_config.rules_of(raw)
    try:
        with closing(store.Store.open(args.store or store_of(raw, os.environ), read_only=True)) as opened:
            found = alerts_replay.run(opened, args.replay, rules)
    except store.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print(alerts_replay.dump(found) if args.json else alerts_replay.text(found, rules))
    return OK


def _send(args: argparse.Namespace) -> int:
    settings = load(args.config, os.environ)
    found = {receiver.name: receiver for receiver in settings.alerts.receivers}
    if args.receiver not in found:
        known = ", ".join(found) or "none; add [[alerts.receiver]] to the configuration (-c FILE)"
        raise ConfigError([f"no receiver is named {args.receiver!r}; known: {known}"])
    url = settings.alerts.external_url or f"http://{settings.host}:{settings.port}"
    report, fine = alerts_send.run(found[args.receiver], url, WallClock().now())
    print(report)
    return OK if fine else FAILED
