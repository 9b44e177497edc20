"""The paper's tables in its own layout, from runs or from the published numbers.

- `few_shot`: headline, rank sweep, best rank per dataset.
- `base_to_new`: base-to-new generalization, averaged and per dataset.
- `fixed_basis`: fixed against trained bases, averaged and per dataset.
- `transfer`: factors frozen at the values of another dataset.
- `geometry`: overlap of the factors between runs.
- `extra`: tables that are not in the paper: paired tests, and averages computed in three ways.
- `methods`: published numbers beside those of a comparison of methods (`slimprompt.report.methods_tables`).
- `collection`: all tables in the paper's order, optionally with the published numbers.
- `cells`: the cells that the tables share.

The rows and columns follow the runs: other datasets, shots, ranks and backbones give the same tables with other rows.
A cell without runs is empty, and an average needs all datasets of its table.
"""

from slimprompt.paper.tables.cells import printed_value
from slimprompt.paper.tables.collection import paper_tables, published_tables
from slimprompt.paper.tables.extra import comparisons, summaries
from slimprompt.paper.tables.methods import with_published_methods

__all__ = [
    "comparisons",
    "paper_tables",
    "printed_value",
    "published_tables",
    "summaries",
    "with_published_methods",
]
