"""Numerical checks of the paper's theory: both sides of every statement on P = B A, and a verdict.

Modules
-------
statement
    `Check`, the rules that compare two sides, and `Statement`, their result.
asymmetry, update_space
    The linear surrogate: projection lemmas, expected asymmetry, dimensions of the update spaces.
bases, adaptation
    Shares kept by the bases that training uses, of random and of trained prompts.
objective, prompt_objective
    The interface of an objective F(P), and the loss of a text encoder.
local_model
    The local quadratic model of the loss.
convergence, stochastic
    Full-gradient and stochastic descent on one factor with the other one fixed.
check
    `check_theory`: all statements.
figures, page
    Figures, the HTML page, and the reader of what they were written to.
"""

from slimprompt.paper.theory.check import Theory, check_loss, check_sizes, check_theory
from slimprompt.paper.theory.statement import Statement

__all__ = ["Statement", "Theory", "check_loss", "check_sizes", "check_theory"]
