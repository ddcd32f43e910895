"""What is reported: measures over all ranks, curves, intervals, bootstrap."""
