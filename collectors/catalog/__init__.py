"""The vocabulary: every metric a collector may report, with unit, kind, reduction, actor and help.

Only metrics of this table are stored, so every layer above may rely on names and units. To add a metric, add a row to
its actor's table.
"""

from collections.abc import Mapping

from collectors.catalog import generator, hardware, rollout, router, sandbox, trainer
from collectors.catalog.row import Kind, Metric, Reduction

__all__ = ["METRICS", "Kind", "Metric", "Reduction"]

_TABLES = (trainer.ROWS, rollout.ROWS, generator.ROWS, router.ROWS, hardware.ROWS, sandbox.ROWS)

METRICS: Mapping[str, Metric] = {metric.name: metric for table in _TABLES for metric in table}
