"""The command line and composition root. Nobody imports it; only it knows both the server and the dashboard."""

import argparse
import logging
import os
import sys
import time
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

from fastapi import FastAPI

import collectors
import dashboard
import migrations
import server
from dashboard.app import Candidates, csp
from dashboard.app import attach as attach_dashboard
from server import onboard
from server.alerts import config as alerts_config
from server.attach import Ambiguous, Attached, attach, run_name, source_of
from server.clock import ScaledClock, WallClock
from server.collect import RunLoop
from server.commands import alerts_replay, alerts_send, alerts_test, check, demo, export, forward, preflight, status
from server.commands._look import introduce
from server.config import RunSettings, Settings, default_store, load, read, store_of
from server.config import check as check_settings
from server.problems import ConfigError
from server.query import Reader
from server.security import App, Secret
from server.serve import AttachDashboard, bind, serve
from server.store import Store, StoreError, migrate

OK, FAILED, BAD_USAGE = 0, 1, 2
MAX_SPEED = 100.0  # a simulated hour costs 1 s of CPU and as much again to read: faster than this nothing keeps up
WAIT_SECONDS = 5.0
_LOOK = onboard.Kept(Path())
SOURCE = (
    "a URL of an engine or router, a run directory or log, a list of targets (file_sd, prometheus.yml); "
    "COLLECTOR=SOURCE where what it is cannot be told"
)


def guard_names() -> str | None:
    """Our import names are common words: say so when another package sits on one of them."""
    for package in (collectors, dashboard, migrations, server):
        if getattr(package, "__dist__", "") != "rollscope":
            return (
                f"another package named {package.__name__!r} is installed in this environment; "
                "Rollscope is an application, install it apart: uv tool install rollscope"
            )
    return None


def version() -> str:
    try:
        return metadata.version("rollscope")
    except metadata.PackageNotFoundError:  # a checkout without an install
        return "0+unknown"


def compose(
    receivers: Sequence[str], candidates: Candidates | None, api: FastAPI, reader: Reader, version: str
) -> tuple[App, Callable[[], str]]:
    """The dashboard on the API's own application: one process, one port. ``receivers``: who is told of alerts."""
    dash = attach_dashboard(api, reader, version=version, receivers=receivers, candidates=candidates)
    return api, lambda: csp(dash)


def _composed(settings: Settings) -> AttachDashboard:
    # Who named runs, or only shows what others collect, is not asked whether the engine next door is theirs.
    candidates = None if settings.runs or settings.role == "web" else _LOOK.pairs
    return partial(compose, [receiver.name for receiver in settings.alerts.receivers], candidates)


# ---- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollscope",
        description="Which of trainer, generator and sandbox holds your RL run back, live, with evidence.",
        epilog="example: rollscope watch http://127.0.0.1:8000 ./outputs/my-run",
    )
    parser.add_argument("--version", action="version", version=f"rollscope {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _demo_arguments(
        _command(commands, "demo", _demo, "an imaginary cluster, live", "rollscope demo --scenario generator-bound")
    )
    _serving(_command(commands, "up", _up, "serve what the configuration names", "rollscope up -c rollscope.toml"))
    watch = _serving(
        _command(commands, "watch", _watch, "attach to a run and serve it",
                 "rollscope watch http://127.0.0.1:8000 ./outputs/my-run")
    )  # fmt: skip
    watch.add_argument("sources", nargs="*", metavar="SOURCE", help=f"{SOURCE}; none: says what could be watched here")
    watch.add_argument("--run", default=None, help="the run's name (default: the directory's)")
    watch.add_argument("--wait", action="store_true", help="wait for sources that are not there yet")
    forward.arguments(watch)
    checking = _common(
        _command(commands, "check", _check, "validate the configuration and probe each target once",
                 "rollscope check http://127.0.0.1:8000 ./outputs/my-run")
    )  # fmt: skip
    checking.add_argument("sources", nargs="*", metavar="SOURCE", help=SOURCE)
    checking.add_argument("--json", action="store_true", help="what was found, as JSON")
    preflight.arguments(
        _common(
            _command(commands, "preflight", _preflight, "will the run fit: quota, credit, leftovers, engines, clocks",
                     "rollscope preflight -c rollscope.toml --concurrency 960 --create-rate 4 --run-length 24h")
        )
    )  # fmt: skip
    asking = _common(
        _command(commands, "status", _status, "a run's state now", "rollscope status --json | jq .verdict")
    )
    asking.add_argument("run", nargs="?", default=None, metavar="RUN")
    asking.add_argument("--json", action="store_true", help="the API's object, all of it")
    asking.add_argument("--url", default=None, help="a running server (default: this machine's, else the store)")
    _alert_commands(commands)
    export_ = _common(
        _command(commands, "export", _export, "Prometheus rules equal to ours, or a Grafana dashboard over /metrics",
                 "rollscope export rules > rollscope.rules.yml")
    )  # fmt: skip
    export_.add_argument("what", choices=("rules", "grafana"))
    _common(
        _command(commands, "migrate", _migrate, "bring a database to this version's schema",
                 "rollscope migrate --store postgresql://user@host/rollscope")
    )  # fmt: skip
    return parser


def _alert_commands(commands) -> None:  # type: ignore[no-untyped-def]
    parser = commands.add_parser(
        "alerts", help="try rules and receivers", description="try rules and receivers",
        epilog="example: rollscope alerts test rules.test.yml",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    testing = _common(
        _command(verbs, "test", _alerts_test, "unit tests of rules, or what they would have done to a run",
                 "rollscope alerts test --replay my-run")
    )  # fmt: skip
    testing.add_argument("file", nargs="?", type=Path, metavar="FILE", help="tests in promtool's layout (YAML)")
    testing.add_argument("--replay", metavar="RUN", default=None, help="evaluate the rules over a stored run")
    testing.add_argument("--json", action="store_true", help="what the replay found, as JSON")
    sending = _common(
        _command(verbs, "send-test", _alerts_send, "send one marked notification to a receiver",
                 "rollscope alerts send-test oncall -c rollscope.toml")
    )  # fmt: skip
    sending.add_argument("receiver", metavar="RECEIVER")


def _command(commands, name: str, run: Callable[[argparse.Namespace], int], text: str, example: str):  # type: ignore[no-untyped-def]
    parser = commands.add_parser(name, help=text, description=text, epilog=f"example: {example}")
    parser.set_defaults(execute=run)
    return parser


def _common(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("-c", "--config", type=Path, default=None, metavar="FILE", help="configuration (TOML)")
    parser.add_argument("--store", default=None, metavar="URL", help="sqlite:///FILE or postgresql://...")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more than changes of state")
    return parser


def _serving(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    _common(parser)
    parser.add_argument("--host", default=None, help="address to bind (default 127.0.0.1; others need a token)")
    parser.add_argument("--port", type=int, default=None, help="port (default 8050; 0 chooses one)")
    parser.add_argument("--role", choices=("all", "collect", "web"), default=None, help="default: all")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    return parser


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    demo.arguments(_serving(parser))


def _settings(args: argparse.Namespace) -> Settings:
    """File and environment, then the command line over them."""
    settings = load(args.config, os.environ)
    given = {
        name: value for name in ("host", "port", "store", "role") if (value := getattr(args, name, None)) is not None
    }
    if "store" in given:
        given["store"] = Secret(given["store"])
    settings = replace(settings, **given)
    check_settings(settings)
    return settings


# ---- commands


def _watch(args: argparse.Namespace) -> int:
    if not args.sources:
        return print("\n".join(onboard.lines(_LOOK()))) or BAD_USAGE
    forward.check(args)
    settings = _settings(args)
    sources = tuple(map(source_of, args.sources))
    run = RunSettings(args.run or run_name(one.source for one in sources), sources)
    attached = _wait_for(run) if args.wait else attach(run)
    if args.push is not None and attached.discover:
        raise ConfigError(["--push forwards sources that are named: let the server's configuration name the list"])
    # A name nobody chose must not join two runs: `./a/out` and `./b/out` are told apart by what was read before.
    place = next((target.path for target in attached.targets if target.path), None)
    facts = {"source_path": str(Path(place).resolve())} if place else {}
    settings = replace(settings, runs=(run,))
    for line in introduce(attached, WallClock().now()):
        print(line, flush=True)
    if args.push is not None:
        return forward.run(args, attached, partial(print, flush=True))
    return _serve(args, settings, [replace(attached, named=args.run is not None or not facts, facts=facts)])


def _wait_for(run: RunSettings) -> Attached:
    """Attach once everything is there: an engine that still loads, a run that has not begun."""
    told: list[str] = []
    while True:
        try:
            return attach(run)
        except Ambiguous:
            raise
        except ConfigError as error:
            if error.problems != told:
                told = error.problems
                print("waiting: " + "; ".join(told), flush=True)
        time.sleep(WAIT_SECONDS)


def _up(args: argparse.Namespace) -> int:
    settings = _settings(args)
    runs = [] if settings.role == "web" else [attach(run, wait=True) for run in settings.runs]
    for one in (awaited for run in runs for awaited in run.awaited):
        print(f"waiting: run {one.settings.name}: {one.error}", flush=True)
    if not settings.runs and settings.role != "web":
        print("no run is configured; " + "\n".join(onboard.lines(_LOOK())), flush=True)
    return _serve(args, settings, runs)


def _serve(args: argparse.Namespace, settings: Settings, runs: Sequence[Attached]) -> int:
    sock = bind(settings.host, settings.port)
    return serve(
        settings, runs, WallClock(), _composed(settings), version=version(), sock=sock, announce=_announcer(args)
    )


def _announcer(args: argparse.Namespace) -> Callable[[str], None]:
    def announce(url: str) -> None:
        print(f"Rollscope is at {url}", flush=True)
        if not args.no_browser and sys.stdout.isatty():
            webbrowser.open(url)

    return announce


def _demo(args: argparse.Namespace) -> int:
    if not 0 < args.speed <= MAX_SPEED:
        raise ConfigError([f"--speed: must be above 0 and at most {MAX_SPEED:g}"])
    demo.check_faults(args.scenario, args.inject)
    if args.dir is not None:
        args.dir.mkdir(parents=True, exist_ok=True)
        if (args.dir / "run").exists():
            raise ConfigError([f"--dir: {args.dir} holds a demo already; name another, or remove it"])
        return _demo_in(args, args.dir)
    with demo.workplace() as directory:
        return _demo_in(args, Path(directory))


def _demo_in(args: argparse.Namespace, directory: Path) -> int:
    settings = _settings(args)
    if args.store is None:
        settings = replace(settings, store=Secret(f"sqlite:///{directory / 'rollscope.db'}"))
    sock = bind(settings.host, settings.port)
    clock = ScaledClock(demo.begin(WallClock().now()))
    begin = clock.now()
    since = begin + demo.HISTORY_SECONDS - demo.RECORDS_SECONDS
    with demo.Cluster(args.scenario, args.seed, directory, begin, since, args.inject) as cluster:
        settings = replace(settings, runs=(cluster.settings(),))
        # A socket that listens answers as soon as the application is up.
        cluster.push_to(demo.own_url(sock), settings.token or "")

        async def before(loops: Sequence[RunLoop]) -> None:
            await demo.fast_forward(cluster, clock, loops, args.speed)

        def announce(url: str) -> None:
            print(f"demo {args.scenario}, seed {args.seed}; truth in {cluster.ready['truth']}", flush=True)
            print("its first hour fills in in less than a minute; open the page and watch it grow", flush=True)
            _announcer(args)(url)

        return serve(
            settings, [attach(cluster.settings())], clock, _composed(settings),
            version=version(), sock=sock, before=before, announce=announce,
        )  # fmt: skip


def _check(args: argparse.Namespace) -> int:
    settings = _settings(args)
    runs = list(settings.runs)
    if args.sources:
        sources = tuple(map(source_of, args.sources))
        runs.append(RunSettings(run_name(one.source for one in sources), sources))
    found = check.probe(runs, settings.alerts)
    print(check.dump(found) if args.json else check.text(found))
    return OK if found.fine else FAILED


def _status(args: argparse.Namespace) -> int:
    settings = load(args.config, os.environ)
    # Who names a store wants that one, not whatever server happens to listen here.
    server = None if args.store else args.url or f"http://127.0.0.1:{settings.port}"
    found = status.fetch(args.run, server, args.store or settings.store, settings.token, named=args.url is not None)
    print(status.dump(found) if args.json else status.text(found))
    return OK


def _alerts_test(args: argparse.Namespace) -> int:
    if (args.file is None) == (args.replay is None):
        raise ConfigError(["alerts test: name a FILE or --replay RUN"])
    if args.file is not None:
        report, fine = alerts_test.run(args.file, alerts_config.load_rules)
        print(report)
        return OK if fine else FAILED
    raw = read(args.config)
    rules = alerts_config.rules_of(raw)
    try:
        with closing(Store.open(args.store or store_of(raw, os.environ), read_only=True)) as store:
            found = alerts_replay.run(store, args.replay, rules)
    except StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print(alerts_replay.dump(found) if args.json else alerts_replay.text(found, rules))
    return OK


def _preflight(args: argparse.Namespace) -> int:
    runs = [(run, run.preflight) for run in load(args.config, os.environ).runs]
    report = preflight.run(runs, preflight.plan(args), WallClock(), args.runs)
    print(preflight.dump(report) if args.json else preflight.text(report))
    return FAILED if preflight.failed(report) else OK


def _alerts_send(args: argparse.Namespace) -> int:
    settings = load(args.config, os.environ)
    found = {receiver.name: receiver for receiver in settings.alerts.receivers}
    if args.receiver not in found:
        known = ", ".join(found) or "none; add [[alerts.receiver]] to the configuration (-c FILE)"
        raise ConfigError([f"no receiver is named {args.receiver!r}; known: {known}"])
    url = settings.alerts.external_url or f"http://{settings.host}:{settings.port}"
    report, fine = alerts_send.run(found[args.receiver], url, WallClock().now())
    print(report)
    return OK if fine else FAILED


def _export(args: argparse.Namespace) -> int:
    if args.what == "grafana":
        print(export.grafana())
    else:
        print(export.rules(alerts_config.rules_of(read(args.config))), end="")
    return OK


def _migrate(args: argparse.Namespace) -> int:
    url = args.store or load(args.config, os.environ).store or default_store(os.environ)
    try:
        migrate(url)
    except StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print("the store is at this version's schema")
    return OK


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit codes: 0 fine, 1 a check failed, 2 bad usage or configuration."""
    problem = guard_names()
    if problem:
        print(problem, file=sys.stderr)
        return FAILED
    args = _parser().parse_args(argv)
    level = logging.INFO if getattr(args, "verbose", False) else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("rollscope").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        code: int = args.execute(args)
    except ConfigError as error:
        for line in error.problems:
            print(f"rollscope: {line}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        return OK
    except BrokenPipeError:  # `rollscope check ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


if __name__ == "__main__":
    sys.exit(main())
