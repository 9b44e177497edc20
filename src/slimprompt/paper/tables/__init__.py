"""The paper's tables in its own layout, from runs or from the published numbers.

- `pivots`: headline, rank sweep, bases and base-to-new.
- `best`: the best rank per dataset and its differences.
- `transfer`: factors frozen at the values of another dataset.
- `geometry`: overlap of the factors between runs.
- `collection`: all tables in the paper's order, optionally with the published numbers.
- `extra`: tables that are not in the paper: paired tests, and averages computed in three ways.
- `methods`: published numbers beside those of a comparison of methods (`slimprompt.report.methods_tables`).

The rows and columns follow the runs: other datasets, shots, ranks and backbones give the same tables with other rows.
A cell without runs is empty, and an average needs all datasets of its table.
"""

from slimprompt.paper.tables.collection import (
    methods_tables_of,
    paper_tables,
    published_paper,
    published_tables,
    tables_of_runs,
)
from slimprompt.paper.tables.extra import comparisons, summaries

__all__ = [
    "comparisons",
    "methods_tables_of",
    "paper_tables",
    "published_paper",
    "published_tables",
    "summaries",
    "tables_of_runs",
]
