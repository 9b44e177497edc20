"""The first command of a new user: a small comparison on the embedded model."""
