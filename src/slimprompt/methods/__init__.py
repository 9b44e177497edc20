"""Ways to adapt CLIP to a task from a few labelled images; each is a file of its own.

A method is a function from a `Task` (training images, labels and class names behind a feature bank) to a head (a classifier on
image features, `head`). The methods on image features stand in one table (`table`); `prompt_learning` trains prompts.
"""
