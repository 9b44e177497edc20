"""What the paper brings to the laboratory."""

from slimprompt.paper.claims import CLAIMS
from slimprompt.paper.figures import figures_of_runs
from slimprompt.paper.questions import questions_table
from slimprompt.paper.studies import CATALOGUE
from slimprompt.paper.tables import published_paper, tables_of_runs
from slimprompt.report.paper import Paper

PAPER = Paper(
    CATALOGUE,
    tables_of_runs,
    CLAIMS,
    published_paper,
    figures_of_runs,
    title="Low-rank prompts",
    question="Prompts P = B A for a frozen CLIP: is low rank enough, and does the token basis B need training?",
    answers=questions_table,
    unfolded=("headline", "base2new", "fixedB", "transfer_pairs", "factor_geometry"),
)
