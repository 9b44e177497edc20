"""The three kinds of output file hold the same rows."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from slimprompt.collections import output
from slimprompt.collections.output import answers_in, writer_of
from slimprompt.collections.rows import COLUMNS, Prediction
from slimprompt.errors import InputError

ROWS = [
    Prediction("a.png", "cat", 0.334, (("cat", 0.75), ("=dog", 0.25))),
    Prediction("=1+1.png", "none of these", 0.333333, (("=dog", 0.5), ("cat", 0.5))),
    Prediction.unreadable("caf\udce9.png", "cannot read the image caf\udce9.png"),
]


def test_csv_has_no_formulas_and_escapes_names(tmp_path: Path) -> None:
    writer_of(tmp_path / "p.csv")(tmp_path / "p.csv", ROWS)
    table = list(csv.DictReader((tmp_path / "p.csv").open(encoding="utf-8")))
    assert list(table[0]) == [*COLUMNS, "error"]
    assert [row["image"] for row in table] == ["a.png", "a.png", "'=1+1.png", "'=1+1.png", "caf\\udce9.png"]
    assert [row["class"] for row in table] == ["cat", "'=dog", "'=dog", "cat", ""]
    assert table[0]["probability"] == "0.750000" and table[0]["rank"] == "1" and table[0]["error"] == ""
    assert table[4]["error"] == "cannot read the image caf\\udce9.png" and table[4]["rank"] == ""


def test_json_lines_keep_the_name_of_the_file(tmp_path: Path) -> None:
    writer_of(tmp_path / "p.jsonl")(tmp_path / "p.jsonl", ROWS)
    lines = (tmp_path / "p.jsonl").read_bytes().decode("utf-8").splitlines()
    first, *_, last = map(json.loads, lines)
    assert first == ROWS[0].as_json() | {"error": None}
    assert last == {
        "image": "caf\udce9.png",
        "answer": None,
        "concept_match": None,
        "classes": [],
        "error": ROWS[2].error,
    }


@pytest.mark.parametrize("group", [65_536, 2])
def test_parquet_has_the_table_of_the_csv_file(tmp_path: Path, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(output, "_GROUP", group)
    writer_of(tmp_path / "p.PARQUET")(tmp_path / "p.PARQUET", iter(ROWS))
    table = parquet.read_table(tmp_path / "p.PARQUET")
    assert table.column_names == [*COLUMNS, "error"]
    assert table["image"].to_pylist() == ["a.png", "a.png", "=1+1.png", "=1+1.png", "caf\\udce9.png"]
    assert table["rank"].to_pylist() == [1, 2, 1, 2, None]
    assert table["probability"].to_pylist() == [0.75, 0.25, 0.5, 0.5, None]
    assert table["error"].to_pylist() == [None] * 4 + ["cannot read the image caf\\udce9.png"]
    assert [str(kind) for kind in table.schema.types] == [
        "string",
        "int32",
        "string",
        "double",
        "string",
        "double",
        "string",
    ]
    assert answers_in(tmp_path / "p.PARQUET") == Counter({"cat": 1, "none of these": 1, None: 1})


def test_the_name_says_what_is_written(tmp_path: Path) -> None:
    assert writer_of(tmp_path / "p") is None
    (tmp_path / "v1.2").mkdir()
    assert writer_of(tmp_path / "v1.2") is None
    with pytest.raises(InputError, match=r"unknown suffix of --out .*Allowed: .csv, .jsonl, .parquet.*folder"):
        writer_of(tmp_path / "p.parqet")
