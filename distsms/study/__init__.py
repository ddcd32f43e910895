"""Comparisons of solvers over a grid of problems: runs, tables, figures."""
