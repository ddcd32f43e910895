"""What several ranks need: collectives over MPI, distributed vectors, order statistics, signals, the watchdog."""
