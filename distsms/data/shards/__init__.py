"""Data sets: their manifest and shards, how they are written and read, and rows that are streamed from disk."""
