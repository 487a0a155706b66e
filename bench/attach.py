"""What does attaching to a long run cost? A verl run of 10,000 steps, read by us and by TensorBoard. JSON lines.

    python -m bench.attach [sqlite] [postgres] [--steps 10000]

The run is two JSON lines a step, 87 values together, as verl's fully asynchronous trainer logs them (the keys and
sizes are those of tests/testdata/verl; every value is drawn at full precision).
"""

import json
import random
from pathlib import Path

STEPS = 10_000
RECORDED = Path(__file__).parent.parent / "tests/testdata/verl"
# Keys of verl's synchronous trainer that make the second line as long as with its default metrics.
FURTHER = 16


def recorded() -> tuple[dict[str, float], dict[str, float]]:
    """The two lines of one step, as recorded."""
    lines = [json.loads(line)["data"] for line in (RECORDED / "fully_async/fully-async.jsonl").open()]
    more = json.loads((RECORDED / "sync_jsonl/sync-exp.jsonl").open().readline())["data"]
    first, second = lines[6], lines[7]
    missing = [key for key in more if key not in second][:FURTHER]
    return first, {**second, **{key: more[key] for key in missing}}


def write_log(path: Path, steps: int) -> int:
    """Write the log; the number of values in it."""
    rng, values = random.Random(1), 0
    lines = recorded()
    with path.open("w") as out:
        for step in range(1, steps + 1):
            for line in lines:
                data = {key: value * rng.uniform(0.9, 1.1) for key, value in line.items()}
                if "training/global_step" in data:
                    data |= {"training/global_step": float(step), "fully_async/count/current_param_version": step // 2}
                    data["fully_async/count/dropped_stale_samples"] = float(step)
                    data["fully_async/count/total_generated_samples"] = step * 40.0
                values += len(data)
                out.write(json.dumps({"step": step, "data": data}, separators=(",", ":")) + "\n")
    return values
