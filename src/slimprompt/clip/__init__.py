"""Frozen CLIP models.

| module | contents |
|---|---|
| `backbone` | a frozen model: load it, encode images and texts |
| `architectures` | names of models, their configurations, and how prompts run through their text towers |
| `load` | build a model and load its weights, in all formats in which they are published |
| `transformers_layout` | weights in the layout of transformers' `CLIPModel` |
| `torch_files` | content of PyTorch files, without executing code |
| `towers` | what the modules of a text tower say about the passes that it allows |
| `image_tower` | image features with less work |
| `products` | products with frozen weights |
| `models` | the embedded pocket models |
"""
