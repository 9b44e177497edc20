"""What run records say: statistics, geometry of the factors, theory, and the paper's claims."""
