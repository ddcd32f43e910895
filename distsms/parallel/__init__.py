"""Everything that uses several ranks: collectives, distributed vectors, order statistics, signals, the watchdog."""
