"""The rows of one rank as a matrix: products with X, threads, a constant column, normalization."""
