"""Runs, studies and the machines they run on: spec → run folder → records."""
