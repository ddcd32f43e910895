"""Convert files with options by their names, whether they are for reading or for writing."""

from __future__ import annotations

from inspect import signature

from distsms.cli.terminal import print_warning
from distsms.ingest import convert as conversion
from distsms.ingest.options import ConversionObserver, sort_options


class Listener(ConversionObserver):
    """Prints warnings as the command line does, and calls functions with what else is reported."""

    def __init__(self, progress=None, show_columns=None, say=None):
        self.converting = progress or self.converting
        self.surveyed = show_columns or self.surveyed
        self.told = say or self.told

    def cautioned(self, warning):
        print_warning(warning)


def convert(
    inputs, directory, comm, n_shards=None, positive=None, progress=None, show_columns=None, say=None, **options
):
    """Return the first data set that `convert` makes. The options are its own, and the fields of its options."""
    others = {name: options.pop(name) for name in options.keys() & signature(conversion.convert).parameters.keys()}
    reading, writing = sort_options({"n_shards": n_shards, "positive": positive, **options})
    listener = Listener(progress, show_columns, say)
    return conversion.convert(inputs, directory, comm, reading, writing, observer=listener, **others)[0]
