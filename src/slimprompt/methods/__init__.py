"""Ways to adapt CLIP to a task from a few labelled images; each is a file of its own.

A method takes a `Task` and ends in class features (n_classes, embed_dim): an image belongs to the class whose feature is
most similar to its own.
"""
