"""Ways to adapt CLIP to a task from a few labelled images; each is a file of its own.

A method is a function from a `Task` (training images, labels and class names behind a feature bank) to a `Head` (a linear
classifier on image features). `zero_shot` ignores the images; `prompt_learning` trains prompts.
"""
