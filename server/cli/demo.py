"""`rollscope demo`: an imaginary cluster, live."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from server.cli.options import settings
from server.cli.serving import announcer, composed, serving
from server.clock import ScaledClock, WallClock
from server.commands import demo
from server.config.errors import ConfigError
from server.runtime.serve import addresses, bind, serve
from server.scrape.run_loop import RunLoop
from server.secret import Secret
from server.targets.resolve import attach

MAX_SPEED = 100.0  # a simulated hour costs 1 s of CPU and as much again to read: faster than this nothing keeps up


def arguments(parser: argparse.ArgumentParser) -> None:
    serving(parser)
    demo.arguments(parser)


def execute(args: argparse.Namespace) -> int:
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
    chosen = settings(args)
    if args.store is None:
        chosen = replace(chosen, store=Secret(f"sqlite:///{directory / 'rollscope.db'}"))
    sock = bind(chosen.host, chosen.port)
    clock = ScaledClock(demo.begin(WallClock().now()))
    begin = clock.now()
    since = begin + demo.HISTORY_SECONDS - demo.RECORDS_SECONDS
    with demo.Cluster(args.scenario, args.seed, directory, begin, since, args.inject) as cluster:
        chosen = replace(chosen, runs=(cluster.settings(),))
        # A socket that listens answers as soon as the application is up.
        cluster.push_to(addresses(chosen.host, sock.getsockname()[1])[0], chosen.token or "")

        async def before(loops: Sequence[RunLoop]) -> None:
            await demo.fast_forward(cluster, clock, loops, args.speed)

        def announce(url: str, elsewhere: str) -> None:
            print(f"demo {args.scenario}, seed {args.seed}; truth in {cluster.ready['truth']}", flush=True)
            print("its first hour fills in in less than a minute; open the page and watch it grow", flush=True)
            announcer(args)(url, elsewhere)

        return serve(
            chosen, [attach(cluster.settings())], clock, composed(args, chosen),
            version=args.version, sock=sock, before=before, announce=announce,
        )  # fmt: skip
