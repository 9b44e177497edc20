"""Where runs are executed: this process, worker processes, or a Ray cluster."""
