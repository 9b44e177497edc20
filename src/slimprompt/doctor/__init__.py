"""Checks of a user's machine: what is installed, where files are, whether the computation is right, and how fast it is.

| module | contents |
|---|---|
| `check` | `Check`, `Outcome`, `Subject` and `run_checks` |
| `checks` | `CHECKS`, the table of checks in the order in which they run |
| `machine` | versions, devices, cache directory, data root, weight files |
| `numerics` | the computation on the chosen device against plain reference computations |
| `speed` | measured speed and the time that a fit and the paper's grid would take |
| `zero_shot` | zero-shot accuracy of real CLIP weights beside published values |
"""
