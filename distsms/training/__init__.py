"""From data to a model: the plan of memory, the fit, checkpoints, the trace."""
