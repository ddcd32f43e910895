"""Data sets of shards as a user asks for them: from files, a table or arrays in memory to folders on the disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.wording import Message, option
from distsms.ingest import frames
from distsms.ingest.convert import convert
from distsms.ingest.file_names import expand
from distsms.ingest.options import ConversionObserver
from distsms.shards.from_arrays import is_frame
from distsms.shards.manifest import Manifest, check_free, read_manifest
from distsms.shards.row_statistics import doubles_warning, label_warnings
from distsms.workflow.requests import Arrays, ShardRequest
from distsms.workflow.tables import as_files, of_paths


@dataclass(frozen=True)
class ShardResult:
    """The data sets that were made. All ranks have the same.

    Attributes
    ----------
    data_sets : list of Manifest
        The data set, or those of the parts of a split.
    warnings : list of str
        What is odd about labels, weights and equal rows.
    """

    data_sets: list[Manifest]
    warnings: list[str]

    @property
    def directories(self) -> list[Path]:
        """The folders of the data sets."""
        return [manifest.directory for manifest in self.data_sets]

    @property
    def columns(self) -> Any:
        """How each column of a table became features: a DataFrame where pandas is installed, else a list of dicts."""
        records = [asdict(report) for report in self.data_sets[0].columns or ()]
        try:
            import pandas as pd
        except ImportError:
            return records
        return pd.DataFrame(records)

    def to_dict(self) -> dict[str, Any]:
        """Return directories, sizes, labels, columns and warnings, ready for JSON."""
        names = ("n", "p", "nnz", "n_pos", "n_neg", "layout", "dtype", "label_map", "fingerprint")
        sets = [
            {name: getattr(each, name) for name in names} | {"directory": str(each.directory)}
            for each in self.data_sets
        ]
        columns = [asdict(report) for report in self.data_sets[0].columns or ()]
        return {"data_sets": sets, "columns": columns, "warnings": self.warnings}


def shard(
    request: ShardRequest,
    comm: Communicator,
    observer: ConversionObserver = ConversionObserver(),  # noqa: B008 - without state
) -> ShardResult:
    """Make data sets of files or of rows in memory. **Collective.**"""
    data, output, reading = request.data, Path(request.output), request.reading
    if isinstance(data, Arrays):
        weight, group = (None if data.weights is None else "weights"), (None if data.groups is None else "groups")
        reading = replace(reading, weight=weight, group=group)
    if is_frame(data):
        reading = replace(reading, workspace=reading.workspace._replace(called="the table"))
    split = request.split.splitter(reading.group, reading.time)
    with comm.fail_together():
        files, writing = expand(of_paths(data)), replace(request.writing, split=split)
        for folder in writing.folders(output):  # `convert` checks it again, when the rows in memory are written
            check_free(folder, request.overwrite)
    with as_files(data, files, output, comm) as inputs:
        data_sets = convert(
            list(inputs),
            output,
            comm,
            reading,
            writing,
            like=request.like,
            overwrite=request.overwrite,
            observer=observer,
        )
        frames.rename_in_notes(data_sets, inputs)
    with comm.fail_together():
        warnings = [text for each in data_sets for text in label_warnings(each, reading.positive is not None)]
        like = None if request.like is None else read_manifest(request.like)
        if like is not None and like.weight and not data_sets[0].weight:
            column = like.weight["column"]
            missing = f"{like.directory} has weights from {column}, which {option('like')} does not take over"
            remedy = f"Give {option('weight', column)} (or {option('weight_file')}) if these rows should have weights"
            warnings.append(Message(f"{missing}. {remedy}, too"))
        warnings += filter(None, [doubles_warning(data_sets[0])])
    return ShardResult(data_sets, list(dict.fromkeys(warnings)))
