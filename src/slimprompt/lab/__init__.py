"""The laboratory: specs, runs, records, plans and executors."""
