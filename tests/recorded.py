"""The recorded runs of trainers in tests/testdata, and the reports of `rollscope check` about them."""

from functools import cache
from pathlib import Path

from server.cli import check_report as check
from server.config import alerts as alerts_config
from server.signals import Counter, availability
from server.signals.trainer import OVER
from server.targets.model import RunSettings, TargetSettings

TESTDATA = Path(__file__).parent / "testdata"


def runs() -> list[Path]:
    """Run directories below the folders of frameworks that declare their signals."""
    folders = [TESTDATA / collector.name for collector in availability.frameworks()]
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir())


@cache
def report(path: Path) -> check.RunReport:
    """The report of `rollscope check PATH`."""
    result = check.probe([RunSettings(path.name, (TargetSettings(str(path)),))], alerts_config.defaults())
    return result.runs[0]


def observed(framework: str) -> set[str]:
    """Signals that had a value in at least one recorded run of a framework."""
    names: set[str] = set()
    for run in (report(path) for path in runs() if path.parent.name == framework):
        metrics = {metric for seen in run.seen for metric in seen.metrics}
        names |= {line.name.partition("{")[0] for line in run.lines if line.state == "value"}
        # A finished run cannot stall any more; if it has steps, these signals had a value while it ran.
        readings = [reading for seen in run.seen for reading in seen.readings]
        if any(sample.step is not None for reading in readings for sample in reading.samples):
            names |= {line.name for line in run.lines if line.why in OVER.values()}
        names |= {one.name for one in availability.items() if isinstance(one, Counter) and one.metric in metrics}
    return names & {item.name for item in availability.items()}
