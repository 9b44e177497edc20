"""What run records say: cells, statistics, comparisons of arms and methods, geometry of the factors."""
