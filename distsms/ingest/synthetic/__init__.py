"""Synthetic data sets: random rows with a planted model, and the constructions of the paper's lower bounds."""
