"""Data sets: their manifest and shards, how they are written, read and split, and rows that are streamed."""
