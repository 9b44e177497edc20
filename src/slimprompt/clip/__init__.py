"""Frozen CLIP models.

| module | contents |
|---|---|
| `backbone` | load a model and freeze it |
| `towers` | which text towers prompts work with, and by which pass |
| `weights` | where published weights are found, and the activation that they were trained with |
| `checkpoints` | the weights in a checkpoint file |
| `torch_files` | tensors in PyTorch files, without executing code |
| `models` | the embedded pocket models |
"""
