"""What a data set or a model contains, as `distsms info` shows it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.features import feature_map
from distsms.models import model
from distsms.shards.dataset import read_manifest
from distsms.shards.groupby import describe
from distsms.training import checkpoint

FOR_PROGRAMS = "row_sample", model.MEAN_CONTRIBUTIONS
"""Long entries of a model's information that mean nothing to people."""
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
        raise InputError(
            f"{path}: is a checkpoint folder, neither a data set nor a model; `distsms train --checkpoint {path} "
            "--resume` continues from it"
        )
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
    if (features := feature_map.load(manifest)) is not None:
        fields |= {
            "features": {**features.reference._asdict(), "keep": features.keep} if as_json else features.describe()
        }
        fields |= {} if as_json else {"attributes": "; ".join(features.listing())}
    fields |= {"normalize": manifest.normalization.kind, "table": manifest.table and manifest.table.describe()}
    if not as_json:
        fields |= describe(manifest)
    rows = [shard.rows for shard in manifest.shards]
    return fields | {
        "shards": len(rows),
        "rows_per_shard": [min(rows), max(rows)],
        "values_stored": any(shard.values for shard in manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
    }


def describe_model(path: str) -> dict[str, Any]:
    """Return the size of a model, what its columns are, and its information but for the sample of rows. Local."""
    hdf5.check_heaps(path, "is neither a data set nor a model; `distsms shard` makes a data set from a file of rows")
    loaded = model.load(path)
    size = {"p": loaded.p, "norm": float(np.linalg.norm(loaded.w)), "nonzeros": int(np.count_nonzero(loaded.w))}
    table: dict[str, Any] = {} if loaded.table is None else {"table": loaded.table.describe()}
    columns: dict[str, Any] = (
        {} if loaded.features is None else {"features": loaded.features.describe(), "columns": loaded.p_original}
    )
    table |= columns or ({"coded": loaded.coded.describe()} if loaded.coded else {})
    info = {name: value for name, value in loaded.info.items() if name not in FOR_PROGRAMS}
    return {"model": path, **size, **table, **info}
