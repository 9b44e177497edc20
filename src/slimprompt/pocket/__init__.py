"""The pocket world: rendered images, captions and benchmarks for the embedded models."""
