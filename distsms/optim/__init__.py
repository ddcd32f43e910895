"""Optimization: the objective, the proof of the gap, the smoothing, the solvers, and the run that uses them all."""
