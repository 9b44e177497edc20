"""Which images to label next, and which labels to check.

| module | contents |
|---|---|
| `duplicates` | pairs of images with almost equal features |
| `labels` | suspected label errors, and duplicates across classes or splits, of labelled images |
| `suggest` | the unlabelled images most worth labelling |
"""
