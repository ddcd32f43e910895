"""The commands of the chaos matrix: their command lines, and the figures of their results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from distsms.features import feature_map
from distsms.models import model
from distsms.shards.manifest import read_manifest
from tests.support.files import content
from tests.support.program import finish, run, start, write_svmlight

Figures = dict[str, Any]


@dataclass(frozen=True)
class Command:
    """A command of the program, or the comparison of solvers.

    words : its command line, from the folder of the inputs and the path of the result.
    result : the name of its result, a file or a folder; "" if it prints the result.
    figures : reads the figures of a complete result; raises any exception for an incomplete one.
    reads : the input that may vanish.
    replaces : whether it replaces an older result.
    streams : whether it takes --memory.
    kept : whether it takes --checkpoint.
    program : the module that is run.
    """

    words: Callable[[Path, Path], list[Any]]
    result: str
    figures: Callable[[Path], Figures]
    reads: str = "data/shard-00001.h5"
    replaces: bool = True
    streams: bool = False
    kept: bool = False
    program: str = "distsms"


def _of_model(path: Path) -> Figures:
    found = model.load(path)
    assert found.info["status"] == "proved", found.info["status"]
    return {"J": found.info["J"], "evaluations": 0}


def _of_data(path: Path) -> Figures:
    X, y = content(path)
    return {"rows": len(y), "positive": int((y > 0).sum()), "sum": float(X.sum())}


def _of_features(path: Path) -> Figures:
    manifest, codes = read_manifest(path), 0
    feature_map.load(manifest)
    for shard in manifest.shards:
        with h5py.File(path / shard.file) as file:
            codes += sum(int(part[:].astype(np.int64).sum()) for part in file["codes"].values())
    return {"rows": manifest.n, "columns": manifest.p, "codes": codes}


def _of_path(path: Path) -> Figures:
    table = json.loads((path / "path.json").read_text())
    model.load(path / "model.h5")
    held_out = [point["held_out"]["rocarea"] for point in table["points"] if point["held_out"]]
    return {"points": len(table["points"]), "held out": float(np.mean(held_out))}


def _of_baseline(path: Path) -> Figures:
    methods = json.loads((path / "baseline.json").read_text())["methods"]
    return {"methods": len(methods)}


def _of_comparison(path: Path) -> Figures:
    ends = [json.loads(file.read_text()) for file in sorted(path.glob("cells/*/result.json"))]
    assert (path / "table.md").exists()
    return {"runs": len(ends)}


def _of_scores(path: Path) -> Figures:
    scores = np.loadtxt(path, delimiter=",", skiprows=1, usecols=-1)
    return {"rows": len(scores), "sum": float(scores.sum())}


def _of_measures(path: Path) -> Figures:
    measures = json.loads(path.read_text())
    return {"keys": sorted(measures)}


def _of_report(path: Path) -> Figures:
    text = path.read_text()
    assert text.rstrip().endswith("</html>")
    return {"sections": text.count("<h2"), "figures": text.count("<svg") + text.count("<img")}


EPSILON = 1e-6
_GRID = "--lambdas", "1e-1:1e-3", "--folds", "2", "--epsilon", "1e-5"
COMMANDS = {
    "shard": Command(
        lambda home, out: ["shard", home / "rows.svm", out, "--shards", 3, "--overwrite"],
        "data",
        _of_data,
        reads="rows.svm",
    ),
    "features": Command(
        lambda home, out: [
            *("features", home / "data", out, "--bins", 8, "--crosses", "top:5", "--trees", 4, "--overwrite")
        ],
        "data",
        _of_features,
    ),
    "train": Command(
        lambda home, out: ["train", home / "data", "--lambda", "1e-5", "--epsilon", EPSILON, "--output", out],
        "model.h5",
        _of_model,
        streams=True,
        kept=True,
    ),
    "path": Command(
        lambda home, out: ["path", home / "data", *_GRID, "--output", out],
        "path",
        _of_path,
        replaces=False,
        streams=True,
    ),
    "baseline": Command(
        lambda home, out: ["baseline", home / "few", *_GRID, "--methods", "logistic", "--output", out],
        "baseline",
        _of_baseline,
        reads="few/shard-00001.h5",
        replaces=False,
    ),
    "compare": Command(
        lambda home, out: [
            *(home / "data", "--lambdas", "1e-2", "1e-3", "--measures", "rocarea"),
            *("--solvers", "lmvm", "lbfgs", "--no-figures", "--output", out),
        ],
        "comparison",
        _of_comparison,
        replaces=False,
        streams=True,
        program="scripts.compare",
    ),
    "predict": Command(
        lambda home, out: ["predict", home / "model.h5", home / "data", "--output", out], "scores.csv", _of_scores
    ),
    "evaluate": Command(
        lambda home, out: ["evaluate", home / "model.h5", "--test", home / "data", "--bootstrap", 200, "--json"],
        "",
        _of_measures,
    ),
    "report": Command(
        lambda home, out: ["report", home / "model.h5", "--test", home / "data", "--output", out],
        "report.html",
        _of_report,
    ),
}


def make_inputs(home: Path) -> None:
    """Write the files that the commands read: text, two data sets, a model, and the least --memory in MiB."""
    for name, n in (("data", 30_000), ("few", 3_000)):
        text = home / f"{'rows' if name == 'data' else name}.svm"
        write_svmlight(text, n=n, p=60, positive=0.1)
        run("shard", text, home / name, "--shards", 3)
    run("train", home / "few", "--lambda", "1e-2", "--output", home / "model.h5", "--no-check", "--quiet")
    words = "train", home / "data", "--lambda", "1", "--output", home / "none.h5", "--memory", "1MiB"
    _, _, refusal = finish(start(*words, ranks=2))
    found = re.search(r"too little: ([\d.]+) ?MiB are needed", refusal)
    assert found, refusal
    (home / "least").write_text(f"{math.ceil(float(found[1])) + 3}MiB")


def version(path: Path) -> list[tuple[str, int, int]]:
    """Return what changes when a result is replaced, even by an equal one; nothing if there is no result."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] * path.exists()
    return [(str(file), file.stat().st_ino, file.stat().st_mtime_ns) for file in files]


def agree(found: Figures, right: Figures) -> bool:
    """Return whether two runs came to the same figures, apart from rounding and what their proved gaps allow."""
    return found.keys() == right.keys() and all(
        math.isclose(value, right[name], rel_tol=1e-3 if name == "held out" else 1e-6, abs_tol=2 * EPSILON)
        if isinstance(value, float)
        else value == right[name]
        for name, value in found.items()
    )
