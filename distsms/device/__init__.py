"""A graphics processor for each rank: rows, products with X and losses on a device that numba.cuda drives.

What asks for it imports `distsms.device.place`, whose `place_of` alone decides between processor and device; numba.cuda
is loaded only then. Solver, planes and proof stay as they are. Between device and host pass w, X'c, and for each
evaluation the cells of the scores or some sums: neither rows nor scores.
"""
