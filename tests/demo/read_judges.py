"""What the `modal` collector reads of the demo and what is true, twenty minutes in and ten minutes later, as JSON.

Runs where the extra is installed (see test_modal_api.py): ``python -m tests.demo.read_judges DIR``.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import collectors
from server.cli import demo as command
from server.scrape.target_reader import TargetReader
from server.targets.resolve import attach

START = 1_795_000_000.0
MOMENTS = (START + 1_200.0, START + 1_800.0)


async def read(cluster: command.Cluster) -> list[dict[str, Any]]:
    targets = attach(cluster.settings()).targets
    [target] = [target for target in targets if target.name == "judges"]
    reader = TargetReader(target, collectors.load()[target.collector])
    found = []
    for now in MOMENTS:
        cluster.advance(now)
        outcome = await reader.read(now)
        truth = json.loads(Path(cluster.ready["truth_sandboxes"]).read_text().splitlines()[-1])
        found.append({"t": truth["t"], "truth": truth["modal"], **told(outcome)})
    await reader.close()
    return found


def told(outcome: Any) -> dict[str, Any]:
    assert outcome.reading is not None, outcome.error
    rows = [
        {"id": row.id, "state": row.state, "cause": row.cause, "detail": row.detail, "run": row.run_key,
         "name": row.name, "requested": row.requested_at, "ended": row.ended_at}
        for row in outcome.reading.sandboxes
    ]  # fmt: skip
    return {"rows": rows, "listed": outcome.reading.listed, "unmapped": dict(outcome.reading.unmapped)}


def main(folder: Path) -> None:
    with command.Cluster("gb300-sandbox-wall", 1, folder, START) as cluster:
        print(json.dumps(asyncio.run(read(cluster))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
