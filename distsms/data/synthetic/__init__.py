"""Data sets that are computed: planted models, and the lower bounds of the paper."""
