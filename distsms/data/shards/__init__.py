"""The data set: manifest, shards, reading and writing them, and rows that are streamed."""
