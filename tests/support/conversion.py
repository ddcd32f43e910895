"""Convert files with options by their names, whether they are for reading or for writing."""

from __future__ import annotations

from inspect import signature

from distsms.ingest import convert as conversion
from distsms.ingest.options import sort_options


def convert(inputs, directory, comm, n_shards=None, positive=None, **options):
    """Return the first data set that `distsms.ingest.convert.convert` makes. The options are its own, and their fields."""
    others = {name: options.pop(name) for name in options.keys() & signature(conversion.convert).parameters.keys()}
    reading, writing = sort_options({"n_shards": n_shards, "positive": positive, **options})
    return conversion.convert(inputs, directory, comm, reading, writing, **others)[0]
