"""The paper's empirical claims, each checked by one function on a set of results.

The same functions read your own runs and the published tables. On the published tables a claim holds if the tables
give the number in the text. On your own runs it holds if its `bound` is met. Where the paper is not quantitative ("a
few tenths", "little"), the bound replaces the words with a number.

To add a claim:

1. Write a function `(Evidence) -> list[Outcome]` in the module of its topic. It computes the value, compares it with
   the bound and returns one outcome per scope, such as a backbone. The first line of its docstring says what is
   computed. If runs are missing, it returns `missing(...)`.
2. Add one row to `CLAIMS` at the end of that module: name, place in the paper, sentence, bound, function, and what n counts.
3. Add a case that can be solved by hand to `tests/paper/test_claims.py`.

Modules
-------
claim
    `Claim`, `Outcome` and `Finding`, and helpers that build outcomes.
evidence
    `Evidence`: the results that claims read.
check
    `CLAIMS`, the table of all claims; `gather` evidence from runs; `check_claims`.
parameters, base_to_new, few_shot, fixed_basis, transfer, geometry
    The claims, one module per topic.
"""

from slimprompt.paper.claims.check import CLAIMS, check_claims, gather
from slimprompt.paper.claims.claim import Claim, Finding, Outcome
from slimprompt.paper.claims.evidence import Evidence, ParameterCount

__all__ = ["CLAIMS", "Claim", "Evidence", "Finding", "Outcome", "ParameterCount", "check_claims", "gather"]
