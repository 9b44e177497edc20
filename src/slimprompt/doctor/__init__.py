"""Checks of a user's machine: what is installed, where files are, and whether the computation is right.

| module | contents |
|---|---|
| `subject` | what is checked, and what a check reports |
| `machine` | versions, devices, cache directory, data root, weight files |
| `numerics` | the computation on the chosen device against plain reference computations |
| `zero_shot` | zero-shot accuracy of OpenAI's weights beside published values |
| `checks` | `CHECKS`, the table of checks in the order in which they run, and `run_checks` |
"""
