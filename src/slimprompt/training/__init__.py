"""Training: recipe, loop and evaluation."""
