"""Run the benchmarks. Each compares several programs, which take turns in many rounds, and prints medians and
quartiles.

    scripts/bench --data adult9=a9a,a9a.t web8=w8a,w8a.t news20=news20.xz [--output results/bench] [--quick]
    scripts/bench loss products --data adult9=shards/adult9
    scripts/bench roofline --publish

Each set is NAME=TRAIN[,TEST], a data set or svmlight text, plain or compressed. Some table rows have a target if the
NAME of the set begins with adult9, web8, news20 or covertype-nominal. The part `coded` draws categories, or reads
LABEL SEQUENCE lines from a set whose NAME begins with dna. The word `made` stands for ten synthetic sets. The parts
`roofline`, `stream`, `leaves`, `billion`, `text` and `large` need no --data: they make their own, and `billion` needs
none. The parts `coded`, `leaves`, `ranks` and `large` need two idle cores. OUTPUT/bench.md has the table.
OUTPUT/bench.json has the same with the quartiles and a description of the machine. If a part is run again, its rows
are replaced. A triad (a = b + 3 c) is timed before and after each set. If its rate varies by more than a fifth,
something else used the machine, and a warning says so.

--publish puts the rows of each part into docs/results/data/PART.json, with the date, the machine, the versions of the
libraries and the commit. The manual's pages on speed are made from these files. The part `history` has a file for each
version of distsms, which is named after the newest heading of CHANGES.md. With --clone it measures another version.

    scripts/bench scaling --rows 1e7 --ranks 1 2 4 8 16

shows how the parts of an evaluation scale with the ranks of one machine: scripts/benchmarks/scaling.py.
"""

from __future__ import annotations

import os

for name in ("OMP", "OPENBLAS", "MKL"):  # one core for each process; before NumPy is loaded
    os.environ[f"{name}_NUM_THREADS"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # programs keep what Python has compiled, as they do for users

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from distsms.base.formatting import to_json
from distsms.workflow.provenance import versions
from scripts import records
from scripts.benchmarks import history
from scripts.benchmarks.made import made
from scripts.benchmarks.measuring import QUIET, Row, Set, Triad, say, two_cores
from scripts.compare.tables import markdown
from scripts.experiments.common import existing_file, named_files, output_of
from scripts.records import ROOT, Record

PARTS = {
    "loss": "losses compared with NumPy's sort and SciPy's products",
    "products": "X w and X'c compared with SciPy's",
    "coded": "rows of codes, categories and k-mers, compared with SciPy's products",
    "forest": "leaves of forests compared with scikit-learn's, and products on them with SciPy's",
    "leaves": "leaves of 100 trees for 5 million rows in memory and 20 million streamed, and training on them",
    "ranks": "two ranks compared with one",
    "memory": "peak memory of each rank",
    "stream": "rows that need four times the memory allowed by --memory",
    "compression": "compressed shards compared with plain ones",
    "path": "a cross-validated path, with all models in one pass compared with one by one",
    "comparators": "lmvm compared with dlib's svm_rank_trainer and with cutting planes",
    "logistic": "logistic regression compared with scikit-learn and LIBLINEAR",
    "liblinear": "ROCArea and PRBEP compared with logistic regression of LIBLINEAR and scikit-learn",
    "roofline": "bytes per second of each kernel compared with those of a triad",
    "history": "main figures of a version, compared with programs that do not change",
    "billion": "1e9 rows on 32 cores and 1e12 on 4096, estimated from counts and from published rates",
    "text": "reading CSV and svmlight compared with pyarrow, LIBLINEAR and Vowpal Wabbit",
    "large": "20 million rows on 2 ranks, and a small data set on 32 ranks",
}
PROGRAM = "scripts.benchmarks.run"
DRAWN = ("roofline", "stream", "leaves", "billion", "text", "large")
"""The parts that need no data sets."""
HEADER = ("part", "data set", "quantity", "target", "median (quartiles)", "verdict")


def named_data(argument: str) -> tuple[str, list[Path]]:
    """Parse NAME=TRAIN[,TEST], a name and one or two data sets or svmlight files, or `made`; for argparse."""
    if argument == "made":
        return argument, []
    return named_files(argument, lambda name: Path(name) if _is_data_set(Path(name)) else existing_file(name))


def as_shards(name: str, paths: list[Path], folder: Path) -> Set:
    """Return a set as shards; text is converted in the folder, unless that was done before."""
    if (given := Set(name, *paths)).strings:
        return given
    found = []
    for path, part in zip(paths, ("train", "test"), strict=False):
        data = path if path.is_dir() else folder / name / part
        if not _is_data_set(data):
            data.parent.mkdir(parents=True, exist_ok=True)
            output_of("shard", path, data, "--quiet")
        found.append(data.absolute())
    return Set(name, *found)


def _is_data_set(path: Path) -> bool:
    return (path / "manifest.json").exists()


def table(found: list[Record]) -> str:
    """Make a table of rows."""
    return markdown(HEADER, [Row.of(numbers).cells() for numbers in found])


def run(part: str, sets: list[Set], folder: Path, quick: bool, clone: Path) -> dict[str, Any]:
    """Run a part, and return its rows with the rates of triads before and after each set."""
    triads, rates = [Triad(), Triad()], []
    rows: list[Row] = []
    module = importlib.import_module(f"scripts.benchmarks.{part}")
    sets = [data for data in sets if part == "coded" or not data.strings]
    more = {"clone": clone} if part == "history" else {}
    for data in [Set("", folder)] if part in DRAWN else sets:
        rates.append(triads[0].rate())
        for row in module.benchmark(data, folder, quick, **more):
            print("| " + " | ".join(row.cells()) + " |", flush=True)
            rows.append(row)
    if hasattr(module, "summary"):
        rows[:0] = module.summary(rows)
    rates.append(triads[0].rate())
    spread, warnings = max(rates) / min(rates), []
    if spread > QUIET:
        warnings.append(
            f"Something else used the machine: during {part}, a triad took up to {spread:.2f} times its shortest time. "
            "Run this part again."
        )
        say(warnings[0])
    machine = records.machine() | {"versions": versions(), "triad_bytes_per_second": rates}
    machine["two_triads_bytes_per_second"] = two_cores(triads)
    lines = [row.numbers() for row in rows]
    return {"rows": lines, "warnings": warnings, "quick": quick, "machine": machine}


def publish(part: str, found: dict[str, Any], clone: Path) -> None:
    """Write the file from which the manual shows a part."""
    more: dict[str, Any] = {"warnings": found["warnings"]}
    name = part
    if part == "history":
        more |= history.origin(clone)
        name = history.file_name(more["version"])
    records.write(records.PUBLISHED / f"{name}.json", PROGRAM, found["rows"], **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{about} (all)")
    about = "data sets, see above"
    parser.add_argument("--data", nargs="+", type=named_data, default=[], metavar="NAME=TRAIN[,TEST]", help=about)
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few rounds and small sets, to test the program")
    about = "write the files that the manual is made from; all changes must have been committed"
    parser.add_argument("--publish", action="store_true", help=about)
    about = "a clone of the version that the part `history` measures (this one)"
    parser.add_argument("--clone", type=Path, default=ROOT, metavar="FOLDER", help=about)
    records.add_json(parser)
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; choose from: {', '.join(PARTS)}")
    parts = args.parts or list(PARTS)
    if not args.data and not set(parts) <= set(DRAWN):
        parser.error(f"--data is required by: {', '.join(part for part in parts if part not in DRAWN)}")
    if args.publish and (args.quick or records.commit()["dirty"]):
        parser.error("--publish needs a clone without uncommitted changes, and is not possible with --quick")
    if not (args.clone / "CHANGES.md").exists():
        parser.error(f"{args.clone} is not a clone of distsms: it has no CHANGES.md")
    args.output.mkdir(parents=True, exist_ok=True)
    folder, file = args.output.absolute(), args.output / "bench.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    sets = []
    for name, paths in args.data:
        sets += [as_shards(name, paths, folder)] if paths else made(folder)
    for part in parts:
        found[part] = run(part, sets, folder, args.quick, args.clone.absolute())
        file.write_text(to_json(found, indent=1), encoding="utf-8")
        if args.publish:
            publish(part, found[part], args.clone)
        known = [found[name] for name in PARTS if name in found]
        rows = [row for some in known for row in some["rows"]]
        warnings = [warning for some in known for warning in some["warnings"]]
        (args.output / "bench.md").write_text("\n\n".join([table(rows), *warnings]) + "\n", encoding="utf-8")
        records.write(args.json, PROGRAM, rows, warnings=warnings, quick=args.quick)
    print(f"\nThe table is in {args.output / 'bench.md'}", file=sys.stderr)


if __name__ == "__main__":
    main()
