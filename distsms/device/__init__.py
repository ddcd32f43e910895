"""A graphics processor for each rank: rows, products with X and losses on a device that numba.cuda drives.

Between device and host pass w, X'c, and for each evaluation the cells of the scores or some sums, no rows, no scores.
"""
