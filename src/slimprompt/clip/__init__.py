"""Frozen CLIP models.

| module | contents |
|---|---|
| `backbone` | a frozen model: load it, encode images and texts |
| `architectures` | build a model and load its weights |
| `towers` | which text towers prompts work with, and by which pass |
| `weights` | where published weights are found, and the activation that they were trained with |
| `checkpoints` | the weights in a checkpoint file |
| `torch_files` | tensors in PyTorch files, without executing code |
| `models` | the embedded pocket models |
"""
