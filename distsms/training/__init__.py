"""Training, from data to a model: plan the memory, fit the model, and write checkpoints and the trace."""
