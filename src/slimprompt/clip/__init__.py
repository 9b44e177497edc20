"""Frozen CLIP models (`backbone`), weight files (`checkpoints`), and the embedded pocket models (`models`)."""
