"""Ranks: the communicator, vectors on one or all ranks, shared memory, order statistics, signals, the watchdog."""
