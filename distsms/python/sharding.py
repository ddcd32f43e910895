"""`distsms.shard`: make data sets of files, tables and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from distsms.base.errors import speaking_python
from distsms.base.wording import in_python
from distsms.ingest.options import ConversionObserver, sort_options
from distsms.python.calls import conversion_options, describe_columns, ranks_of, require_columns, shares, warn, watching
from distsms.shards import from_arrays
from distsms.shards.from_arrays import is_frame
from distsms.workflow.requests import Arrays, Path, ShardRequest, Split
from distsms.workflow.shard import ShardResult
from distsms.workflow.shard import shard as make_data_sets
from distsms.workflow.tables import of_paths


def shard(
    data: Any,
    output: Path,
    comm: Any = None,
    *,
    label: str | None = None,
    weight: str | ArrayLike | None = None,
    group: str | ArrayLike | None = None,
    split: Sequence[float] | None = None,
    split_by: str | None = None,
    seed: int = 0,
    like: Path | None = None,
    overwrite: bool = False,
    **reading: Any,
) -> ShardResult:
    """Make a data set of shards, or several, of files or of rows in memory. **Collective.**

    It does what the command ``distsms shard`` does with the options of the same names, and writes the same data sets.

    Parameters
    ----------
    data : path, list of paths, DataFrame or (X, y)
        Files of one format, patterns such as ``"day-*.csv"``, or folders of tables, which the ranks read together; or
        this rank's rows: a table with its column of labels (a DataFrame of pandas, polars or pyarrow), or a pair of
        arrays, where X is sparse or dense, (n_local, p). The rows of dense arrays are stored as sparse ones.
    output : path
        The folder of the data set. With `split`, each part is in a folder inside it.
    comm : mpi4py communicator, optional
        The ranks that share the work; None is this process alone.
    label : str, optional
        The column of labels of a table.
    weight, group : str or array-like, optional
        The weight (at least 0) and the group of each row: the name of a column for tables, and an array of shape
        (n_local,) for ``(X, y)``, on every rank or on none.
    split : sequence of float, optional
        The shares of the parts: ``(0.8, 0.2)`` makes ``output/train`` and ``output/test``; more than two shares make
        ``output/part-1`` and so on.
    split_by : {"rows", "groups", "doubles", "time"}, optional
        What the split keeps together; by default groups with `group`, time with ``time`` alone, else rows.
    seed : int
        The seed of the split.
    like : path, optional
        A data set whose columns, categories, labels and normalization are taken over.
    overwrite : bool
        Whether to replace a data set in the folder.
    **reading
        How the rows are read and written: positive, id, drop, time, keep, zero_based, decimal, thousands, separator,
        missing, not_missing, no_header, names, missing_group; the fields of
        `distsms.shards.column_options.ColumnOptions` (categorical, numeric, dates, hashed, min_count) and, for
        sequences, of `distsms.shards.sequence_rules.SequenceOptions`; normalize, weight_file, n_shards, n_features,
        dtype ("float64" or "float32"), and compression ("none" or "blosc-lz4").

    Returns
    -------
    ShardResult
        The same on every rank.

    Examples
    --------
    >>> import numpy as np, distsms, tempfile
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = X[:, 0] + X[:, 1] > 1
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = distsms.shard((X, y), f"{folder}/d", split=(0.8, 0.2))
    ...     model = distsms.train(result.directories[0], lam=1e-2, solver="lbfgs")
    >>> [manifest.n for manifest in result.data_sets], model.p
    ([163, 37], 3)
    """
    ranks = ranks_of(comm, locals() | reading)
    on_files = list[str]()
    with speaking_python():
        with ranks.fail_together():
            of_arrays = not (is_frame(data) or of_paths(data))
            require_columns(weight, group, of_arrays)
            columns = {"label": label} | ({} if of_arrays else {"weight": weight, "group": group})
            options = conversion_options({**reading, **columns}, function="shard")
            options = {name: value for name, value in options.items() if value is not None}
            read_options, write_options = sort_options(options)
            request = ShardRequest(
                data=Arrays(*from_arrays.pair(data), weight, group) if of_arrays else data,
                output=output,
                reading=read_options,
                writing=write_options,
                split=Split(shares(split), split_by, seed),
                like=like,
                overwrite=overwrite,
            )
        result = make_data_sets(request, ranks, watching(ConversionObserver(), "cautioned", on_files.append))
    reports = result.data_sets[0].columns or ()
    for report in reports:
        report.notes = [*map(in_python, report.notes)]
    result = replace(result, warnings=[*map(in_python, result.warnings)])
    _, odd = describe_columns(reports, "the result's `columns` describe")
    warn(ranks, [*on_files, *result.warnings], odd)
    return result
