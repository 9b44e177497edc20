"""What run records say: one frame of cells and seeds, statistics, comparisons, claims, geometry of the factors."""
