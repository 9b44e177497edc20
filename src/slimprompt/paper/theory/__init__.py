"""Numerical checks of the paper's theory: both sides of every statement on P = B A, and a verdict.

Modules
-------
statement
    `Statement`, and the rules that turn numbers into verdicts.
asymmetry
    The linear surrogate: projection lemmas and expected asymmetry.
bases
    Shares kept by the bases that training uses.
adaptation
    Trained prompts in the place of the ideal prompt.
update_space
    Dimensions of the update spaces.
objective, prompt_objective
    The interface of an objective F(P), and the loss of a text encoder.
local_model, local_statements
    The local quadratic model of the loss, and the statements on it.
convergence, stochastic
    Full-gradient and stochastic descent on one factor with the other one fixed.
check
    `check_theory`: all statements.
figures, page
    Figures and HTML page.
"""

from slimprompt.paper.theory.check import (
    LossCheck,
    SurrogateCheck,
    Theory,
    check_loss,
    check_sizes,
    check_surrogate,
    check_theory,
)
from slimprompt.paper.theory.statement import Statement

__all__ = [
    "LossCheck",
    "Statement",
    "SurrogateCheck",
    "Theory",
    "check_loss",
    "check_sizes",
    "check_surrogate",
    "check_theory",
]
