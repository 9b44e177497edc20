"""Predictions as one CSV, JSON Lines or Parquet file, written in one pass."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from slimprompt.collections.rows import COLUMNS, ERROR, Prediction, six_digits
from slimprompt.errors import printable, unknown
from slimprompt.extras import require_extra
from slimprompt.spreadsheet import cell_value

Write = Callable[[Path, Iterable[Prediction]], None]
#: Rows of a row group of a Parquet file, which are held in memory.
_GROUP = 16_384


def writer_of(target: Path) -> Write | None:
    """The function that writes predictions to a file with the suffix of `target`; None for a folder of parts."""
    suffix = target.suffix.lower()
    if suffix and suffix not in _WRITERS and not target.is_dir():
        raise unknown("suffix of --out", suffix, _WRITERS, next_step="The name of a folder of parts has no suffix.")
    if suffix not in (".csv", ".jsonl"):
        require_extra("parquet", "an --out other than a .csv or .jsonl file")
    return None if target.is_dir() else _WRITERS.get(suffix)


def write_jsonl(path: Path, predictions: Iterable[Prediction]) -> None:
    """One JSON object per image."""
    with path.open("wb") as file:
        for prediction in predictions:
            # A file name that is not UTF-8 is written with JSON's own escapes.
            file.write(prediction.as_line().encode(errors="backslashreplace") + b"\n")


def write_csv(path: Path, predictions: Iterable[Prediction]) -> None:
    """One row per image and class."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, ERROR))
        for cells in _table(predictions):
            writer.writerow([cell_value(cell) for cell in six_digits(cells)])


def write_parquet(path: Path, predictions: Iterable[Prediction]) -> None:
    """One row per image and class."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"rank": pa.int32(), "probability": pa.float64(), "concept_match": pa.float64()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in (*COLUMNS, ERROR)])
    table = _table(predictions)
    with parquet.ParquetWriter(path, schema) as writer:
        while rows := list(islice(table, _GROUP)):
            columns = [[_text(cell) for cell in column] for column in zip(*rows, strict=True)]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))


def answers_in(path: Path) -> Counter[str | None]:
    """Number of images of each answer in a Parquet file that `write_parquet` wrote; None stands for unreadable images."""
    from pyarrow import parquet

    table = parquet.read_table(path, columns=["rank", "answer"])
    rows = zip(table["rank"].to_pylist(), table["answer"].to_pylist(), strict=True)
    return Counter(answer for rank, answer in rows if rank in (1, None))


def _text(cell: Any) -> Any:
    """Arrow holds UTF-8 only."""
    return printable(cell) if isinstance(cell, str) else cell


def _table(predictions: Iterable[Prediction]) -> Iterator[tuple[Any, ...]]:
    """Rows of the columns of `COLUMNS`, and the error."""
    for prediction in predictions:
        for cells in prediction.cells():
            yield (*cells, prediction.error)


_WRITERS: dict[str, Write] = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}
