"""What a conversion takes over from another data set (`--like`)."""

from __future__ import annotations

from dataclasses import replace

from distsms.data.formats.base import ReadOptions
from distsms.data.formats.column_options import ColumnOptions
from distsms.data.formats.sequence_rules import SequenceOptions
from distsms.data.formats.table_schema import USUAL
from distsms.data.shards.manifest import Manifest
from distsms.errors import InputError


def options_like(manifest: Manifest, options: ReadOptions, normalize: str | None) -> ReadOptions:
    """Return the options with which files are read like another data set. Local.

    Raises InputError if `options` or `normalize` ask for what comes from the other data set.
    """
    dates = {name: form for name, form in options.columns.dates.items() if name != options.time}
    asked = replace(options.columns, dates=dates) != ColumnOptions() or replace(options.cells, separator="") != USUAL
    if options.positive is not None or options.drop or normalize is not None or asked:
        raise InputError(
            "with --like, the settings of --positive, --drop, --normalize and of the options for columns come from "
            "the other data set; leave these options out"
        )
    if options.sequences is not None and replace(options.sequences, fasta=None, labels=None) != SequenceOptions():
        raise InputError(
            "with --like, alphabet, window and degrees come from the other data set; leave out --alphabet, --window, "
            "--degree, --spectrum and --spectrum-degree"
        )
    if manifest.coded and manifest.coded.sequences is None:
        raise InputError(f"--like {manifest.directory}: its codes were written from Python, and no file has such codes")
    return replace(
        options,
        table=manifest.table,
        encoding=manifest.coded.sequences,
        label_map=manifest.label_map,
        zero_based=options.zero_based or manifest.zero_based,
    )
