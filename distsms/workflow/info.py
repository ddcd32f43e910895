"""What a data set or a model contains, as `distsms info` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.features import feature_map
from distsms.models import model
from distsms.shards.labels import class_names
from distsms.shards.manifest import read_manifest
from distsms.shards.row_statistics import describe
from distsms.shards.table_schema import Column, Table
from distsms.training import checkpoint

FOR_PROGRAMS = "row_sample", model.MEAN_CONTRIBUTIONS
"""Long entries of a model's information that mean nothing to people."""
FIRST = (
    *("model", "measure", "lambda", "l1", "nonzeros", "bias", "status", "J", "lower_bound", "gap", "evaluations"),
    *("seconds", "search", "data", "label", "table", "features", "coded", "very many values", "training"),
    *("test", "test_rows", "threshold", "decision", "calibration", "path", "written", "command", "warnings"),
)
"""What is shown of a model first, in this order."""
FOLDERS = {
    "path.json": "a path of `distsms path`. Give one of its models, {0}/model.h5 or {0}/points/*.h5; `distsms report"
    " {0}/model.h5 --test DATA` shows the whole path",
    "baseline.json": "a baseline of `distsms baseline`. `distsms report MODEL --test DATA --baseline {0}` shows it"
    " beside a model, and the same line of `distsms baseline` prints its table again",
    "comparison.json": "a comparison of solvers. Its tables are {0}/table.md and {0}/table.csv",
}
"""Maps the file by which a folder is recognized to a text that says what the folder is and which command reads it."""


def refuse_other_folder(path: str) -> None:
    """Raise InputError if the path is a folder of another command; the message says which command reads it."""
    if checkpoint.exists(Path(path)):
        remedy = f"`distsms train --checkpoint {path} --resume` continues from it"
        raise InputError(f"{path}: is a checkpoint folder, neither a data set nor a model; {remedy}")
    for name, kind in FOLDERS.items():
        if Path(path, name).is_file():
            raise InputError(f"{path}: is neither a data set nor a model, but {kind.format(path)}")


def describe_data(path: str, as_json: bool) -> dict[str, Any]:
    """Return the fields of a manifest, with sums over the shards instead of their list."""
    manifest = read_manifest(path)
    fields = asdict(manifest) | {"directory": path, "fingerprint": manifest.fingerprint}
    for name in ("shards", "normalization", "coded", *(() if manifest.unknown else ("unknown",))):
        del fields[name]
    if manifest.coded:
        fields["coded"] = manifest.coded.record() if as_json else manifest.coded.describe()
    features = feature_map.load(manifest)
    if features is not None and as_json:
        fields["features"] = {**features.reference._asdict(), "keep": features.keep}
    elif features is not None:
        fields |= {"features": features.describe(), "attributes": "; ".join(features.listing())}
    fields |= {"normalize": manifest.normalization.kind, "table": None} | _describe_table(manifest.table)
    if not as_json:
        fields |= describe(manifest)
    rows = [shard.rows for shard in manifest.shards]
    return fields | {
        "shards": len(rows),
        "rows_per_shard": [min(rows), max(rows)],
        "values_stored": any(shard.values for shard in manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
    }


def _describe_table(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    many = {"very many values": "; ".join(many)} if (many := table.very_many()) else {}
    return {"table": table.describe(), "label": table.label, **many}


def _load(path: str) -> model.Model:
    hdf5.check_heaps(path, "is neither a data set nor a model; `distsms shard` makes a data set from a file of rows")
    return model.load(path)


def describe_columns(path: str) -> tuple[list[Column], list[str]]:
    """Return the columns of a data set's or a model's table, and lines on attributes; InputError without either."""
    source = read_manifest(path) if Path(path).is_dir() else _load(path)
    features = source.features if isinstance(source, model.Model) else feature_map.load(source)
    attributes = features.bins.listing() if features is not None and features.bins else []
    if source.table is None and not attributes:
        raise InputError(f"{path}: its columns have numbers only; `distsms export MODEL --to csv` lists the weights")
    return [] if source.table is None else list(source.table.columns), attributes


def brief(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return what matters first of what `describe_model` returned."""
    first = {name: contents[name] for name in FIRST if name in contents}
    positive, negative = class_names(contents["label_map"]).values()
    column = f"{first['label']}; " if first.get("label") else ""
    data = {name: value for name, value in (contents.get("data") or {}).items() if name not in ("fingerprint", "nnz")}
    return first | {"data": data, "label": f"{column}positive: {positive or '1'}; negative: {negative or '-1'}"}


def describe_model(path: str) -> dict[str, Any]:
    """Return the size of a model, what its columns are, and its information but for the sample of rows. Local."""
    loaded = _load(path)
    size = {"p": loaded.p, "norm": float(np.linalg.norm(loaded.w)), "nonzeros": int(np.count_nonzero(loaded.w))}
    table = _describe_table(loaded.table)
    if loaded.features is not None:
        table |= {"features": loaded.features.describe(), "columns": loaded.p_original}
    elif loaded.coded:
        table["coded"] = loaded.coded.describe()
    info = {name: value for name, value in loaded.info.items() if name not in FOR_PROGRAMS}
    return {"model": path, **size, **table, **info}
