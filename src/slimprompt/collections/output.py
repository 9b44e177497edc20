"""Predictions as one CSV, JSON Lines or Parquet file, written in one pass."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from slimprompt.collections.rows import COLUMNS, ERROR, Prediction, six_digits
from slimprompt.errors import InputError, printable, unknown
from slimprompt.spreadsheet import cell_value

#: Rows of a row group of a Parquet file, which are held as Arrow's arrays; and rows that are held as Python objects.
_GROUP, _ROWS = 16_384, 1_024


def writer_of(target: Path) -> Callable[[Path, Iterable[Prediction]], None]:
    """The function that writes predictions to a file with the suffix of `target`.

    Raises
    ------
    InputError
        If the suffix is unknown, or a package that it needs is missing.
    """
    suffix = target.suffix.lower()
    if suffix not in _WRITERS:
        raise unknown("suffix of --out", suffix, _WRITERS)
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise InputError(
                "Parquet files need the package pyarrow: pip install 'slimprompt[parquet]', or write .csv or .jsonl"
            ) from None
    return _WRITERS[suffix]


def _write_jsonl(path: Path, predictions: Iterable[Prediction]) -> None:
    with path.open("wb") as file:
        for prediction in predictions:
            # A file name that is not UTF-8 is written with JSON's own escapes.
            file.write(prediction.as_line().encode(errors="backslashreplace") + b"\n")


def _write_csv(path: Path, predictions: Iterable[Prediction]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, ERROR))
        for cells in _table(predictions):
            writer.writerow([cell_value(cell) for cell in six_digits(cells)])


def _write_parquet(path: Path, predictions: Iterable[Prediction]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"rank": pa.int32(), "probability": pa.float64(), "concept_match": pa.float64()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in (*COLUMNS, ERROR)])
    table = _table(predictions)
    with parquet.ParquetWriter(path, schema) as writer:
        batches: list[Any] = []
        while rows := list(islice(table, min(_ROWS, _GROUP))):
            columns = [[_text(cell) for cell in column] for column in zip(*rows, strict=True)]
            batches.append(pa.record_batch([pa.array(*one) for one in zip(columns, schema.types, strict=True)], schema))
            if sum(len(batch) for batch in batches) >= _GROUP:
                writer.write_table(pa.Table.from_batches(batches))
                batches = []
        if batches:
            writer.write_table(pa.Table.from_batches(batches))


def _text(cell: Any) -> Any:
    """Arrow holds UTF-8 only."""
    return printable(cell) if isinstance(cell, str) else cell


def _table(predictions: Iterable[Prediction]) -> Iterator[tuple[Any, ...]]:
    """Rows of the columns of `COLUMNS`, and the error."""
    for prediction in predictions:
        for cells in prediction.cells():
            yield (*cells, prediction.error)


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
