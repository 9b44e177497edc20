"""Image classifiers on a frozen CLIP, following scikit-learn's conventions.

| module | contents |
|---|---|
| `base` | what all classifiers share: `fit` makes a task of labelled images, `predict` encodes images |
| `prompt` | `PromptClassifier` |
| `head` | `HeadClassifier` for the other methods, and `load_classifier` |
| `calibration` | temperature, confidences of held-out training images, expected calibration error |
| `scores` | accuracy with interval, balanced accuracy, macro F1, log loss, calibration error |
| `fitting` | fit on a few-shot sample and compare on held-out images, for `slimprompt fit` and `evaluate` |
| `coop` | prompts from CoOp's checkpoints |
"""
