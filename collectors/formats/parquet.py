"""Reads columns of a Parquet file row by row with pyarrow, an optional extra because it is 50 MB and rarely needed.

Only the requested columns are decoded, a few hundred rows at a time (checked with pyarrow 26.0.1). Importing it takes
0.2 s and 85 MB, so the import waits for the first file that needs it.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collectors.model import ScrapeError

INSTALL = "Parquet files need pyarrow, the extra parquet (uv tool install '.[parquet]')"
# Bytes. A footer lists columns and row groups; that of a training step's file has about 5 kB.
FOOTER_BYTES = 16 << 20
BATCH_ROWS = 256
# Bytes of a column read at a time; without a buffer pyarrow reads a whole column chunk.
BUFFER_BYTES = 1 << 20

_HEAD = b"PAR1"


def installed() -> bool:
    """Returns whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def looks_like(path: Path) -> bool:
    """Returns whether the file begins as Parquet. Needs no pyarrow.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD


class Table:
    """An open file: its columns with their sizes in bytes, and its rows."""

    def __init__(self, arrow: Any, file: Any) -> None:
        self._arrow, self._file = arrow, file
        schema = file.schema_arrow
        self.columns: list[str] = list(schema.names)
        numbers = (arrow.types.is_floating, arrow.types.is_integer)
        self.numeric: list[str] = [column.name for column in schema if any(is_one(column.type) for is_one in numbers)]

    def leaves(self) -> list[str]:
        """Paths of stored columns: ``completion.list.element.role`` of a list of messages."""
        schema = self._file.schema
        return [schema.column(index).path for index in range(len(schema))]

    def size(self, leaf: str) -> int:
        """Bytes of a leaf, uncompressed."""
        meta, index = self._file.metadata, self.leaves().index(leaf)
        return sum(meta.row_group(group).column(index).total_uncompressed_size for group in range(meta.num_row_groups))

    def read(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Rows with these columns or leaves, from the first row on.

        Raises:
            ScrapeError: ``garbage``.
        """
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
                yield from batch.to_pylist()
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            raise ScrapeError("garbage", f"a Parquet file that cannot be decoded: {type(error).__name__}") from None


@contextmanager
def opened(path: Path) -> Iterator[Table]:
    """Opens the file.

    Raises:
        ScrapeError: ``missing``, also when pyarrow is not installed; ``garbage`` for an invalid or incomplete file.
    """
    if not installed():
        raise ScrapeError("missing", INSTALL)
    arrow, reader = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        file = reader.ParquetFile(
            path, buffer_size=BUFFER_BYTES, pre_buffer=False, thrift_string_size_limit=FOOTER_BYTES
        )
    except FileNotFoundError:
        raise ScrapeError("missing", f"{path.name} does not exist") from None
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise ScrapeError("garbage", f"{path.name} is not a complete Parquet file: {type(error).__name__}") from None
    with file:
        yield Table(arrow, file)
