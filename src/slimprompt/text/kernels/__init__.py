"""Hand-written forward and backward passes of a transformer block over a shared prefix."""
