"""Read .parquet files with pyarrow, an optional dependency."""

import importlib
from collections.abc import Iterator
from typing import Any

from normscope.data.sources import SourceFile, column_advice
from normscope.errors import ConfigError, FileError

_ROWS_AT_A_TIME = 256


def read_parquet(source: SourceFile) -> Iterator[str | None]:
    """Yield the text of each row, followed by None."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(f"reading {source.name} needs pyarrow\nfix: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(source.path, pre_buffer=False) as file:
            _check_column(source, arrow, file.schema_arrow)
            number = 0
            for rows in file.iter_batches(_ROWS_AT_A_TIME, columns=[source.column]):
                for text in rows.column(0).to_pylist():
                    number += 1
                    if text is None:
                        problem = f"{source.name}, row {number}: {source.column!r} is null, not a string"
                        raise FileError(f"{problem}\nfix: remove such rows")
                    yield text
                    yield None
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise FileError(f"{source.name} is not a valid parquet file: {error}\nfix: copy or write it again") from error


def _check_column(source: SourceFile, arrow: Any, schema: Any) -> None:
    if source.column not in schema.names:
        names = ", ".join(map(repr, schema.names))
        raise FileError(
            f"{source.name} has no column {source.column!r}; it has {names}\nfix: {column_advice(schema.names)}"
        )
    kind = schema.field(source.column).type
    values = kind.value_type if arrow.types.is_dictionary(kind) else kind  # pandas categories are dictionaries
    if values not in (arrow.string(), arrow.large_string()):
        raise FileError(
            f"column {source.column!r} of {source.name} holds {kind}, not text\nfix: {column_advice(schema.names)}"
        )
