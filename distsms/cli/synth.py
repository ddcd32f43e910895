"""The command `distsms synth`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK, InputError
from distsms.base.formatting import format_bytes
from distsms.cli.types import COMMON, OUTPUT_FOLDER, WRITING, add_options, take_folder

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.ingest.synthetic.lower_bounds import LowerBound
    from distsms.shards.manifest import Manifest

USAGE = "KIND [NAME] OUTDIR [options]"
EPILOG = """\
In sparse and dense sets a row is positive where <w, x> + noise exceeds a threshold, for a w drawn from the seed. The
same options give the same files, to the bit, on any number of ranks. Apart from chance, the share of positives is
within 3 % of what was asked for down to a share of 0.01, and within 10 % down to 0.001. Both classes always occur.

prbep-lower-bound and rocarea-lower-bound are the constructions of JMLR 13 (2012), sections 2.2 and 2.3, for lambda =
1. On these data a cutting-plane method needs a number of steps of order 1/epsilon. The starting point for which this is
proved is written to w0.h5.

A twin has the size of a set of the paper's table 1, such as kddb, but it is not the same data. All rows but those for
tests are written, and with --test those.

examples:
  distsms synth sparse data/small
  mpirun -n 8 distsms synth sparse data/big --rows 2e7 --columns 1e6 --density 1e-5 --pattern --positive 0.01
  mpirun -n 8 distsms synth dense data/dense --rows 1e6 --columns 500 --dtype float32 --seed 7
  distsms synth prbep-lower-bound data/lb --epsilon 0.001
  distsms train data/lb --measure prbep --lambda 1 --init data/lb/w0.h5
  mpirun -n 2 distsms synth twin kddb data/kddb --scale 0.01
"""
RANDOM = {"rows": 100_000, "columns": 100, "positive": 0.1, "noise": 0.5, "seed": 0, "dtype": "float64"}
BOUND = {"epsilon": None, "n": None}
OPTIONS: dict[str, dict[str, Any]] = {
    "sparse": {**RANDOM, "columns": 10_000, "density": None, "skew": 1.0, "pattern": None},
    "dense": RANDOM,
    "prbep-lower-bound": BOUND,
    "rocarea-lower-bound": BOUND,
    "twin": {"scale": 1.0, "test": None},
}
"""The options of each kind of data, with their default values."""

ARGUMENTS = f"""\
kind KIND  The kind of data: {", ".join(OPTIONS)}.
name NAME  The set of which a twin is drawn.
{OUTPUT_FOLDER}
--shards N  The number of shards (default: one for each 64 MiB).
{WRITING}
--quiet  Print neither progress nor a summary.
sparse and dense:
--rows N  The number of rows (default: 100000).
--columns P  The number of columns (default: sparse 10000, dense 100).
--positive SHARE  The share of positive rows (default: 0.1).
--noise RATIO  The standard deviation of the noise, as a multiple of that of the score (default: 0.5).
--seed N  The seed, from 0 to 2^64 - 1 (default: 0).
--dtype  The type of the values in the files (default: float64).
sparse:
--density SHARE  The mean share of columns in which a row has an entry, at most 0.95 (default: 20 columns, or half of
    them).
--skew S  Column j has entries in a share of the rows that falls as 1/j^S, from at most 95 %%; with 0 all columns have
    the same density (default: 1).
--pattern  Make all values 1; then no values are stored.
twin:
--scale S  The share of the rows, and of the columns if sparse (default: 1).
--test  Write the rows for tests.
prbep-lower-bound and rocarea-lower-bound:
either --epsilon E  The gap that takes a cutting-plane method many steps to reach (default: 0.001).
or --n N  The paper's n: the number of rows for PRBEP, of negative rows for ROCArea.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms synth`, without defaults, so that `_options` sees which were given."""
    others: dict[str, dict[str, Any]] = {"--seed": {"type": int}, "--dtype": {"choices": ("float64", "float32")}}
    others |= {f"--{name}": {"type": float} for name in ("positive", "noise", "density", "skew", "scale", "epsilon")}
    others |= {f"--{name}": {"action": "store_true", "default": None} for name in ("pattern", "test")}
    others |= {**COMMON, "kind": {"choices": tuple(OPTIONS)}, "name": {"nargs": "?"}}
    add_options(parser, ARGUMENTS, others)
    parser.set_defaults(check=_check)


def _check(args: argparse.Namespace) -> str | None:
    if args.kind == "twin" and args.name is None:
        if args.folder is None or args.output is None:
            return "twin needs the NAME of a set, such as kddb, and OUTDIR"
        args.name, args.output = args.output, None  # the folder is that of --output
    if args.kind != "twin" and args.name is not None:
        return f"{args.name}: only a twin has a NAME"
    return take_folder(args)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Write the data set, and print what was written. **Collective.**"""
    from distsms.cli.progress import Progress
    from distsms.ingest.synthetic.lower_bounds import LOWER_BOUNDS
    from distsms.ingest.synthetic.twins import twin
    from distsms.ingest.synthetic.write import write

    start, verbose = time.perf_counter(), comm.is_root and not args.quiet
    progress = Progress.on_root(verbose, "writing", "shards")
    with comm.fail_together():
        options, part = _options(args), None
        if args.kind == "twin":
            set_of_table = twin(args.name, options["scale"])
            part = (set_of_table.train, set_of_table.n) if "test" in options else (0, set_of_table.train)
            source: Any = set_of_table.source()
        else:
            source = _source(args.kind, options)
    words = [f"--{name}" if value is True else f"--{name} {value}" for name, value in options.items()]
    manifest = write(
        source,
        args.output,
        comm,
        n_shards=args.shards,
        dtype="float32" if args.kind == "twin" else options.get("dtype", "float64"),
        overwrite=args.overwrite,
        name=" ".join(["distsms synth", args.kind, *filter(None, [args.name]), *words]),
        progress=progress,
        compression=args.compression,
        part=part,
    )
    progress.close()
    is_bound = args.kind in LOWER_BOUNDS
    with comm.fail_together():
        if comm.is_root and is_bound:
            _write_start(source, args.output, manifest)
    if verbose:
        _summarize(args.output, manifest, comm.size, time.perf_counter() - start)
    if verbose and is_bound:
        _explain(source, args.output)
    return EXIT_OK


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of this kind of data, with their values or defaults; refuse those of another kind."""
    allowed = OPTIONS[args.kind]
    for name in sorted({name for names in OPTIONS.values() for name in names} - set(allowed)):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} is not an option of {args.kind}, which takes --{', --'.join(allowed)}")
    options = allowed | {name: getattr(args, name) for name in allowed if getattr(args, name) is not None}
    if "density" in allowed and options["density"] is None:
        options["density"] = min(0.5, 20 / options["columns"])
    if "epsilon" in allowed and options["epsilon"] is None and options["n"] is None:
        options["epsilon"] = 0.001
    return {name: value for name, value in options.items() if value is not None}


def _source(kind: str, options: dict[str, Any]) -> Any:
    from distsms.ingest.synthetic.lower_bounds import LOWER_BOUNDS
    from distsms.ingest.synthetic.planted import DenseSource, Recipe, SparseSource

    if kind in LOWER_BOUNDS:
        construction = LOWER_BOUNDS[kind]
        return construction(options["n"]) if "n" in options else construction.of(options["epsilon"])
    others = {name: options[name] for name in ("positive", "noise", "seed", "dtype")}
    recipe = Recipe(n=options["rows"], p=options["columns"], **others)
    if kind == "dense":
        return DenseSource(recipe)
    return SparseSource(recipe, options["density"], options["skew"], options.get("pattern", False))


def _write_start(bound: Any, directory: str, manifest: Manifest) -> None:
    from distsms.models import model

    info = {"measure": bound.measure, "lambda": 1.0, "status": "start", "J": bound.J_0, "lower_bound": bound.minimum}
    info |= {"gap": bound.J_0 - bound.minimum, "threshold": 0.0}
    info |= {"label_map": manifest.label_map, "zero_based": manifest.zero_based}
    info["data"] = {"directory": directory, "fingerprint": manifest.fingerprint, "n": manifest.n, "p": manifest.p}
    model.save(Path(directory) / "w0.h5", model.Model(bound.w_0, info))


def _summarize(directory: str, manifest: Manifest, ranks: int, seconds: float) -> None:
    from distsms.cli.progress import describe_files

    n, n_bytes = manifest.n, sum(shard.bytes for shard in manifest.shards)
    share = f"{100 * manifest.n_pos / n:.3g} % positive"
    print(f"{directory}: {n} rows, {manifest.p} columns, {manifest.nnz} nonzeros")
    print(f"  classes   {manifest.n_pos} positive, {manifest.n_neg} negative ({share})")
    print(f"  files     {describe_files(manifest)}")
    speed = f"{n / seconds:.3g} rows/s, {format_bytes(n_bytes / seconds)}/s"
    print(f"  written   in {seconds:.2f} s on {ranks} rank(s), {speed}")


def _explain(bound: LowerBound, directory: str) -> None:
    start, epsilon = Path(directory) / "w0.h5", float(bound.epsilon)
    theory = f"J(w_0) = {bound.J_0:.8g}, min J = {bound.minimum:.8g}"
    print(f"  known     for lambda = 1: {theory}; n of the paper: {bound.size}")
    print(f"            from w_0, BMRM needs {bound.steps} or more steps to come within {epsilon:.6g} of it")
    print(f"  w_0       {start}, as in")
    print(f"            distsms train {directory} --measure {bound.measure} --lambda 1 --init {start}")
