"""Tables as Markdown, LaTeX (booktabs), CSV and an XLSX workbook; the latter three by pandas."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from slimprompt.errors import choose
from slimprompt.report.table import Cell, Column, Table
from slimprompt.spreadsheet import cell_value, frame_csv, frame_values

# ---------------------------------------------------------------- Markdown


def to_markdown(table: Table) -> str:
    """A Markdown table with the title above and the notes below it."""
    header = [*table.headers, *(f"{column.full_label} {column.remark}".strip() for column in table.columns)]
    lines = [f"### {_md(table.title)}", "", _md_row(map(_md, header))]
    lines.append("|" + " --- |" * len(table.headers) + " ---: |" * len(table.columns))
    for row in table.rows:
        texts = (_md(cell.text(compare=table.compare)) for cell in row.cells)
        shown = (f"**{text}**" if cell.bold else text for cell, text in zip(row.cells, texts, strict=True))
        lines.append(_md_row([*map(_md, row.labels), *shown]))
    lines += ["", *(f"{_md(note)}  " for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _md_row(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _md(text: str) -> str:
    for character in ("\\", "|", "*", "_", "<", "`", "["):
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


# ---------------------------------------------------------------- LaTeX

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "√": r"$\surd$",
    "²": r"$^2$",
    "×": r"$\times$",
    "°": r"$^\circ$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


def escape_latex(text: str) -> str:
    """Escape the special characters of LaTeX; characters that pdflatex cannot typeset become "?"."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return "".join(one if one.isascii() or 0xA0 < ord(one) < 0x180 else "?" for one in escaped)


def to_latex(table: Table) -> str:
    """A LaTeX `table` environment; it needs the packages booktabs, multirow and adjustbox."""
    names = [escape_latex(name) for name in table.headers]
    rows = pd.MultiIndex.from_tuples([tuple(map(escape_latex, row.labels)) for row in table.rows], names=names)
    columns = table.columns or [Column("")]
    used = [
        name for name in ("group", "label", "remark") if name == "label" or any(getattr(one, name) for one in columns)
    ]
    titles = pd.MultiIndex.from_tuples([tuple(escape_latex(getattr(one, name)) for name in used) for one in columns])
    cells = table.frame if table.columns else pd.DataFrame(index=rows, columns=titles)
    cells = cells.set_axis(rows).set_axis(titles, axis=1)
    texts = cells.map(lambda cell: escape_latex(cell.text(compare=table.compare)))
    # \textbf leaves symbols as they are
    bold = cells.map(lambda cell: "bfseries: \\boldmath--wrap" if cell.bold else "")
    made = texts.style.apply(lambda _: bold, axis=None).to_latex(
        hrules=True,
        clines="skip-last;data",
        multicol_align="c",
        column_format="l" * len(names) + "c" * len(columns),
        position="p",
        position_float="centering",
        caption=f"{escape_latex(table.title)}. {' '.join(map(escape_latex, table.notes))}",
        label=f"tab:{table.name}",
    )
    made = re.sub(r"\\cline\{[\d-]*\}\n(?=\\bottomrule)", "", made)
    box = r"\begin{adjustbox}{max width=\linewidth,max totalheight=0.85\textheight}"
    made = made.replace(r"\begin{tabular}", f"\\scriptsize\n{box}\n\\begin{{tabular}}")
    return made.replace(r"\end{tabular}", "\\end{tabular}\n\\end{adjustbox}")


def latex_document(tables: Iterable[str]) -> str:
    """A complete document for pdflatex with tables that `to_latex` made."""
    head = [
        r"\documentclass{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\usepackage{booktabs,multirow,adjustbox}",
        r"\begin{document}",
    ]
    body = [table + "\\clearpage" for table in tables]
    return "\n".join([*head, *body, r"\end{document}"]) + "\n"


# ---------------------------------------------------------------- CSV and XLSX


def to_frame(table: Table) -> pd.DataFrame:
    """The table as numbers: for each column its value and, if known, sd, n and the published value.

    Column "X exceeds spread" is 1 if the difference to the published value exceeds √(sd² + published sd²).
    """
    found: dict[str, list[Any]] = {name: table.frame.index.get_level_values(name).tolist() for name in table.headers}
    for index, column in enumerate(table.columns):
        cells = table.frame.iloc[:, index].tolist()
        found[column.full_label] = [_round(cell.value) for cell in cells]
        if not any(cell.number is not None for cell in cells):
            continue
        parts: dict[str, list[Any]] = {
            "sd": [_round(cell.sd) for cell in cells],
            "n": [cell.n or None for cell in cells],
        }
        if table.compare:
            parts["published"] = [cell.published for cell in cells]
            parts["difference"] = [_round(cell.difference) for cell in cells]
            outside = [cell.exceeds_spread for cell in cells]
            parts["exceeds spread"] = [None if one is None else int(one) for one in outside]
        for name, values in parts.items():
            if any(value is not None for value in values):
                found[f"{column.full_label} {name}"] = values
    return pd.DataFrame(found)


def _round(value: float | str | None) -> float | str | None:
    return round(value, 4) if isinstance(value, float) else value


def _css(cell: Cell) -> str:
    """Bold for the best numbers, red for those whose difference to the published value exceeds the spread."""
    digits = f"{0:.{cell.decimals}f}"  # 0.00
    number = f"+{digits}§-{digits}" if cell.signed else digits  # pandas reads § as a semicolon
    styles = [f"number-format: {number}", *(["font-weight: bold"] if cell.bold else [])]
    return "; ".join([*styles, *(["color: #C00000"] if cell.exceeds_spread else [])])


def to_workbook(tables: Sequence[Table]) -> bytes:
    """An XLSX workbook with a contents sheet and one sheet per table."""
    file, names = io.BytesIO(), ["contents"]
    for table in tables:
        names.append(_sheet_name(table.name, names))
    with pd.ExcelWriter(file, engine="openpyxl") as writer:
        titles = [cell_value(table.title) for table in tables]
        pd.DataFrame({"sheet": names[1:], "table": titles}).to_excel(writer, sheet_name="contents", index=False)
        for row, (name, table) in enumerate(zip(names[1:], tables, strict=True), start=2):
            writer.sheets["contents"].cell(row, 1).hyperlink = f"#'{name}'!A1"
            _write_sheet(writer, name, table)
    return file.getvalue()


def _write_sheet(writer: pd.ExcelWriter, name: str, table: Table) -> None:
    """Title, headings, rows and notes; no text of them is a formula."""
    numbers = to_frame(table)
    css = pd.DataFrame("", numbers.index, numbers.columns, dtype=object)
    for index, column in enumerate(table.columns):
        css[column.full_label] = table.frame.iloc[:, index].map(_css).tolist()
    frame = frame_values(numbers)
    css.columns = frame.columns
    frozen = (2, len(table.headers))
    frame.style.apply(lambda _: css, axis=None).to_excel(
        writer, sheet_name=name, startrow=1, index=False, freeze_panes=frozen
    )
    sheet = writer.sheets[name]
    sheet.cell(1, 1, cell_value(table.title))
    for note in table.notes:
        sheet.append([cell_value(note)])
    for letter in (sheet.cell(1, place).column_letter for place in range(1, len(frame.columns) + 1)):
        sheet.column_dimensions[letter].width = 16


def _sheet_name(name: str, taken: Sequence[str]) -> str:
    """The name in at most 31 characters, as Excel requires, with a number if another sheet has it."""
    chosen, number = name[:31], 1
    while chosen in taken:
        number += 1
        chosen = f"{name[: 30 - len(str(number))]}~{number}"
    return chosen


# ---------------------------------------------------------------- files


def _latex_files(tables: Sequence[Table]) -> dict[str, str]:
    texts = {table.name: to_latex(table) for table in tables}
    return {f"{name}.tex": text for name, text in texts.items()} | {"tables.tex": latex_document(texts.values())}


def _csv_files(tables: Sequence[Table]) -> dict[str, str]:
    frames = {table.name: to_frame(table) for table in tables}
    frames["cells"] = pd.concat([table.long() for table in tables], ignore_index=True)
    return {f"{name}.csv": frame_csv(frame) for name, frame in frames.items()}


#: Format → function that makes its files. `cells.csv` lists the runs behind every number.
FORMATS: dict[str, Callable[[Sequence[Table]], Mapping[str, str | bytes]]] = {
    "markdown": lambda tables: {"tables.md": "# Tables\n\n" + "\n".join(map(to_markdown, tables))},
    "latex": _latex_files,
    "csv": _csv_files,
    "xlsx": lambda tables: {"tables.xlsx": to_workbook(tables)},
}


def table_files(tables: Sequence[Table], formats: Sequence[str] = tuple(FORMATS)) -> dict[str, str | bytes]:
    """File name → content of the tables in some formats, keys of `FORMATS`."""
    makers = [choose("table format", name, FORMATS) for name in dict.fromkeys(formats)]
    return {name: content for make in makers for name, content in make(tables).items()}
