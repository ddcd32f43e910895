"""Runs of several solvers on a grid of problems, with tables and figures of the results."""
