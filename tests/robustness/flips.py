"""Flip bits of the files that the program writes: each flip is refused by name, or changes nothing that anybody reads.

    python -m tests.robustness.flips [--flips 2000] [--seed 1]

One bit is flipped at a random place of a random file, and the file is read. The program prints, for each kind of file,
how many flips were refused, how many changed nothing, and how many changed a result in silence, which is a bug.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distsms
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.features import feature_map
from distsms.features.build import build
from distsms.features.fit import FeatureOptions
from distsms.models import model
from distsms.shards.dataset import load_matrix, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.training import checkpoint
from distsms.training.checkpoint import Rows
from distsms.workflow.baseline_fits import BaselineStore, Fit
from distsms.workflow.path_result import PathStore


class Kind(NamedTuple):
    """A file, and a function that returns what is read from it, or raises InputError."""

    path: Path
    read: Callable[[], Any]


def make(folder: Path) -> dict[str, Kind]:
    """Write a file of each kind, and return the kinds by name."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=60) > 0, 1, -1)
    rows = np.column_stack([X, y])
    np.savetxt(folder / "rows.csv", rows, delimiter=",", header="a,b,c,y", comments="")
    write_data(folder / "plain", X, y)
    alone = Communicator()
    options = FeatureOptions(8, None, trees=3)
    build(str(folder / "plain"), str(folder / "coded"), alone, options)
    models: dict[str, Any] = {
        "model": (X, y),
        "model with trees": folder / "coded",
        "model of a table": folder / "rows.csv",
    }
    kinds = {}
    for name, data in models.items():
        trained = distsms.train(data, lam=0.1, epsilon=1e-2, label="y" if "table" in name else None)
        kinds[name] = Kind(folder / f"{name}.h5", partial(_model, folder / f"{name}.h5"))
        model.save(kinds[name].path, trained)
    moments = distsms.ClassMoments(3)
    moments.update(X, y)
    moments.save(folder / "moments.h5")
    kinds["moments"] = Kind(folder / "moments.h5", lambda: _moments(folder / "moments.h5"))
    arrays = {"w": X[:, 0], "planes": X}
    problem = {"measure": "rocarea", "lambda": 0.1}
    checkpoint.save(folder, problem, {"J": 0.5}, {name: Rows.of(array) for name, array in arrays.items()})
    kinds["checkpoint"] = Kind(folder / checkpoint.NEWEST, lambda: _checkpoint(folder / checkpoint.NEWEST))
    coded = read_manifest(folder / "coded")
    plain = folder / "plain"
    if b'"checksum"' in (plain / "manifest.json").read_bytes():
        kinds["manifest"] = Kind(plain / "manifest.json", lambda: repr(read_manifest(plain)))
        kinds["shard"] = Kind(plain / "shard-00000.h5", lambda: _rows(plain))
    kinds["features"] = Kind(
        folder / "coded" / "features.h5",
        lambda: feature_map.load(coded, keep=False).hash,  # type: ignore[union-attr]
    )
    path, fits, fit = PathStore(folder), BaselineStore(folder), Fit("svm", 0.1, 1, 0.5, 0.75, 0.5, "")
    path.describe({"lambda": 0.1}, points=[1.5])
    kinds["path"] = Kind(path.identity, lambda: [path.read("problem")[name] for name in ("problem", "points")])
    (folder / "fits").mkdir()
    fits.keep(fit, X[:, 0])
    kinds["fit"] = Kind(fits._file(fit, "json"), fits.fits)
    kinds["scores of a fit"] = Kind(fits._file(fit, "npy"), lambda: fits.scores(fit).tobytes())
    return kinds


def _model(path: Path) -> Any:
    found = model.load(path)
    parts = found.info, found.table, found.coded, found.features and (found.features.hash, found.features.options)
    return found.w.tobytes(), None if found.scale is None else found.scale.tobytes(), repr(parts)


def _rows(folder: Path) -> Any:
    X, y, counted = load_matrix(read_manifest(folder))
    return repr(X.tolist()), y.tobytes(), counted.tobytes()


def _moments(path: Path) -> Any:
    found = distsms.ClassMoments.load(path)
    return [np.asarray(array).tobytes() for array in vars(found.moments).values()], found.label_map


def _checkpoint(path: Path) -> Any:
    found = checkpoint.read(path)
    return repr(found), [found.array(name).tobytes() for name in found.shapes]


def flip(kinds: dict[str, Kind], flips: int, seed: int) -> dict[str, Counter[str]]:
    """Flip bits, the kinds in turn, and return for each kind how often each thing happened."""
    rng, names = np.random.default_rng(seed), list(kinds)
    sound = {name: kind.read() for name, kind in kinds.items()}
    happened = {name: Counter[str]() for name in names}
    for number in range(flips):
        name = names[number % len(names)]
        path, read = kinds[name]
        content = path.read_bytes()
        place, bit = int(rng.integers(len(content))), int(rng.integers(8))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        try:
            found = "nothing changed" if read() == sound[name] else f"CHANGED (byte {place}, bit {bit})"
        except InputError as error:
            named = path.name in str(error) or str(path.parent) in str(error)
            found = "refused" if named else f"NOT NAMED: {error}"
        except Exception as error:
            found = f"FAILED (byte {place}, bit {bit}): {error!r}"
        happened[name][found] += 1
        path.write_bytes(content)
    return happened


def main() -> int:
    """Print what happened, and return 1 if a result changed in silence, or anything but InputError was raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--flips", type=int, default=2000, help="how many bits are flipped, one at a time (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder:
        happened = flip(make(Path(folder)), args.flips, args.seed)
    for name, counts in happened.items():
        print(f"{name:18s}", *(f"{count} {what}" for what, count in sorted(counts.items())), sep="  ")
    return int(bool(bugs(happened)))


def bugs(happened: dict[str, Counter[str]]) -> list[str]:
    """Return what should not have happened."""
    allowed = "refused", "nothing changed"
    return [f"{name}: {what}" for name, counts in happened.items() for what in counts if what not in allowed]


if __name__ == "__main__":
    sys.exit(main())
