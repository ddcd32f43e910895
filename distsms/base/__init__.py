"""What every part uses, without machine learning: errors, measures' names, files, kernels, formatting, collectives."""
