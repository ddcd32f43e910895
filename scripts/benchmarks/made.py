"""Ten synthetic sets of several kinds and shapes, which `--data made` names. `distsms synth` makes them when needed."""

from __future__ import annotations

from pathlib import Path

from scripts.benchmarks.measuring import Set
from scripts.experiments.common import output_of

MADE = {
    "separable": "sparse --rows 20000 --columns 2000 --noise 0.001",
    "noisy": "sparse --rows 50000 --columns 1000 --noise 3",
    "tall": "sparse --rows 1000000 --columns 50 --density 0.1",
    "wide": "sparse --rows 5000 --columns 200000 --density 5e-4",
    "wide-noisy": "sparse --rows 20000 --columns 100000 --density 3e-4 --noise 1 --pattern",
    "dense": "dense --rows 50000 --columns 100",
    "dense-noisy": "dense --rows 20000 --columns 500 --noise 3",
    "dense-square": "dense --rows 2000 --columns 2000 --positive 0.3",
    "rare": "sparse --rows 200000 --columns 10000 --positive 0.001",
    "balanced": "sparse --rows 100000 --columns 1000 --skew 0 --pattern --positive 0.5",
}


def made(folder: Path) -> list[Set]:
    """Return the sets, and make those that are not yet in the folder."""
    found = []
    for name, recipe in MADE.items():
        data = folder / name
        if not (data / "manifest.json").exists():
            kind, *options = recipe.split()
            output_of("synth", kind, data, *options, "--quiet")
        found.append(Set(name, data.absolute()))
    return found
