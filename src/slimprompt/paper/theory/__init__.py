"""Numerical checks of the paper's theory: both sides of every statement on P = B A, and a verdict.

statement: `Check`, the rules that compare two sides, and their result. asymmetry, update_space: the linear surrogate.
bases, adaptation: shares kept by the bases that training uses. objective, prompt_objective: a function F(P) and the loss of a
text encoder. local_model: its quadratic model. convergence: descent on one factor. check: all statements. figures, page:
what is written. reader: what is read back.
"""

from slimprompt.paper.theory.check import Theory, check_loss, check_sizes, check_theory
from slimprompt.paper.theory.statement import Statement

__all__ = ["Statement", "Theory", "check_loss", "check_sizes", "check_theory"]
