"""The objective, the proof of the gap, the smoothing, and the run that conducts a solver."""
