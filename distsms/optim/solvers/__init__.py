"""The solvers, one module each, on the protocol of `base`."""
