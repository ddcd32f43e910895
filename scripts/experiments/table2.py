"""Repeat table 2 of JMLR 13 (2012) for all its data sets: LMVM, and BMRM within ten times as long, on two cores.

    . scripts/environment
    python -m scripts.experiments.table2 OUTPUT [SET ...] [--scale S] [--measures MEASURE ...] [--json FILE]

A SET is NAME=TRAIN,TEST for real rows (data sets, or text files, of which rows without features are left out as in
the paper; without TEST every fifth row of a text is held out), or a name of the paper's table 1 alone: then its twin
is drawn (`distsms synth twin`). Without sets, all 25 twins are meant. For each measure and lambda, LMVM runs to
a proved gap of 0.1 % of J, and BMRM for at most ten times the seconds of LMVM. For the sets of figures 27 to 32, LMVM
with fixed widths and the accelerated gradient run, too. Rows of more than 12 GiB are streamed. The folder OUTPUT/NAME
has the runs of a set. If the program was stopped, the same command continues, and sets can be added; --json has those
of the folder that are finished, and keeps other sets, measures and lambdas that are in the file already, with their
commit.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.formatting import format_bytes
from distsms.base.measures import RANKING, SHOWN
from distsms.cli.types import positive
from distsms.ingest.synthetic.twins import twins
from distsms.shards.dataset import read_manifest
from scripts import records
from scripts.compare import tables
from scripts.compare.grid import CompletedRun, RunSpec, RunStore
from scripts.experiments.common import (
    PUBLISHED,
    add_ranks,
    check_options_of_compare,
    compare,
    named_data,
    run_program,
    shard_pair,
    without_empty_rows,
)
from scripts.records import Record

LAMBDAS = ("1e-2", "1e-4", "1e-6")
OF_FIGURES = ("adult9", "covertype", "webspam-u")
"""The sets of figures 27 to 32."""
LONGER = 10
"""How many times as long as LMVM (but at least a second) BMRM and the accelerated gradient may run."""
MOST_ROWS = 12 * 2**30
"""The bytes of rows that are held in memory."""
POINTS = 30
"""The points of a course that are kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder for the rows and runs of all sets")
    parser.add_argument("sets", nargs="*", type=a_set, metavar="SET", help="NAME, or NAME=TRAIN[,TEST]")
    about = "share of the rows and columns of twins that are drawn (%(default)g)"
    parser.add_argument("--scale", type=positive, default=1.0, metavar="S", help=about)
    parser.add_argument("--measures", nargs="+", choices=RANKING, default=RANKING, help="(both)")
    parser.add_argument("--lambdas", nargs="+", metavar="LAMBDA", default=LAMBDAS, help=f"({' '.join(LAMBDAS)})")
    parser.add_argument("--time-limit", default="1h", metavar="TIME", help="for each run of LMVM (%(default)s)")
    about = "remove the rows of each set when its runs are finished, and draw them again where they are needed"
    parser.add_argument("--discard", action="store_true", help=about)
    add_ranks(parser)
    parser.set_defaults(ranks=2)
    records.add_json(parser)
    args = parser.parse_args()
    check_options_of_compare(["--time-limit", args.time_limit, "--lambdas", *args.lambdas])
    for name, paths in args.sets or [(name, []) for name in twins()]:
        file = args.output / name / "records.json"
        limits = {"measures": list(args.measures), "lambdas": list(args.lambdas), "time_limit": args.time_limit}
        request = {"scale": 1.0 if paths else args.scale, "ranks": args.ranks, **limits, "real": bool(paths)}
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["request"] == request:
            print(f"{name} is finished", flush=True)
            continue
        found = runs_of(name, paths, args)
        file.write_text(records.as_text({"request": request, "records": found}), encoding="utf-8")
        if args.discard:
            shutil.rmtree(args.output / name / "data")
    done = [
        record
        for name in twins()
        for file in args.output.glob(f"{name}/records.json")
        for record in json.loads(file.read_text(encoding="utf-8"))["records"]
    ]
    done += earlier(args.json, {problem_of(record) for record in done})
    done.sort(key=lambda record: (list(twins()).index(record["set"]), -record["lambda"], record["measure"]))
    records.write(args.json, "scripts.experiments.table2", done)
    print(table(done, "best"))


def problem_of(record: Record) -> tuple[str, str, float]:
    """Return the problem of a run: its set, measure and lambda."""
    return record["set"], record["measure"], record["lambda"]


def earlier(file: Path | None, again: set[tuple[str, str, float]]) -> list[Record]:
    """Return the records of a file that was written before, each with the commit that it is of, but for those of
    problems that ran again."""
    if file is None or not file.exists():
        return []
    contents = records.read(file)
    kept = [record for record in contents["records"] if problem_of(record) not in again]
    return [{"commit": contents["commit"], **record} for record in kept]


def a_set(argument: str) -> tuple[str, list[Path]]:
    """Parse a SET; for argparse."""
    name, paths = named_data(argument) if "=" in argument else (argument, [])
    if name not in twins():
        raise argparse.ArgumentTypeError(f"table 1 has no {name!r}, but {', '.join(twins())}")
    return name, paths


def runs_of(name: str, paths: Sequence[Path], args: argparse.Namespace) -> list[Record]:
    """Make all runs of a set, and return their records."""
    folder = args.output / name
    train, test = data_of(name, paths, folder / "data", args)
    options, comparison = ["--relative", "0.001", "--no-figures"], folder / "comparison"
    if sum(file.stat().st_size for file in train.glob("*.h5")) > MOST_ROWS:
        options += ["--memory", f"{MOST_ROWS // args.ranks // 2**20}MiB"]

    def run(*more: str) -> None:
        of_all = [*options, "--measures", *args.measures, "--time-limit", args.time_limit]
        compare(train, test, comparison, [*of_all, *more], args.ranks)

    run("--lambdas", *args.lambdas, "--solvers", "lmvm", "bmrm", "--times-first", str(LONGER))
    if name in OF_FIGURES:
        smallest = min(args.lambdas, key=float)
        run("--lambdas", smallest, "--solvers", "lmvm", "--c-mu", "adaptive", "10", "100", "1000")
        run("--lambdas", smallest, "--solvers", "lmvm", "agm", "--c-mu", "adaptive", "10", "--times-first", str(LONGER))
    manifest = read_manifest(train)
    about = {"set": name, "real": bool(paths), "scale": 1.0 if paths else args.scale, "ranks": args.ranks}
    about |= {"n": manifest.n, "p": manifest.p, "nonzeros": manifest.explicit, "streamed": "--memory" in options}
    return [
        about | record_of(run, best.result["J"])
        for group in tables.problems(RunStore(comparison).all_finished()).values()
        if (best := tables.best_run(group)) is not None
        for run in group
    ]


def data_of(name: str, paths: Sequence[Path], folder: Path, args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the data sets to train and to test on; make them if they are not there."""
    if paths and paths[0].is_dir():
        return paths[0], paths[-1]
    if paths:
        folder.mkdir(parents=True, exist_ok=True)
        parts = zip(paths, ("train", "test"), strict=False)
        texts = [without_empty_rows(path, folder / f"{part}-rows.svm") for path, part in parts]
        return shard_pair(texts[0], texts[1] if len(texts) > 1 else None, folder, args.ranks)
    for part, option in (("train", []), ("test", ["--test"])):
        if not (folder / part / "manifest.json").exists():
            words = ("synth", "twin", name, folder / part, "--scale", args.scale, *option, "--overwrite", "--quiet")
            run_program(*words, ranks=args.ranks)
    return folder / "train", folder / "test"


def record_of(run: CompletedRun, least: float) -> Record:
    """Return a run as it is kept: its result, when it was within 1 % of the least J of its problem, and some points of
    its course and of that of the test measure."""
    result = run.result
    kept = {key: result[key] for key in ("status", "vacuous", "J", "J_at_zero", "lower_bound", "gap", "evaluations")}
    kept |= {"seconds": result["seconds"], "memory": result.get("memory"), "test": (result["test"] or {})}
    kept["test"] = {measure: kept["test"].get(measure) for measure in RANKING}
    return {
        **{"measure": run.spec.measure, "lambda": run.spec.lam, "solver": run.spec.solver, "c_mu": run.spec.c_mu},
        **kept,
        "within": str(tables.time_to(run, least, 0.01)),
        "course": thinned(run.trace, ("best_J", "gap")),
        "tested": thinned(run.test, RANKING),
    }


def thinned(columns: dict[str, Any], names: Sequence[str]) -> dict[str, list[float | None]]:
    """Return some points of columns, at evaluations that grow like powers, and the last one."""
    n = len(columns.get("evaluation", ()))
    at = np.unique(np.round(np.geomspace(1, n, POINTS)).astype(int)) - 1 if n else []
    digits = {"evaluation": ".9g", "seconds": ".4g", "best_J": ".10g", "gap": ".3g"}
    return {
        name: [
            float(format(value, digits.get(name, ".6g"))) if np.isfinite(value) else None for value in columns[name][at]
        ]
        for name in ("evaluation", "seconds", *names)
        if n
    }


def runs_in(found: Sequence[Record]) -> list[CompletedRun]:
    """Return records of a set as the runs that they were made of."""
    return [
        CompletedRun(
            RunSpec(record["measure"], record["lambda"], record["solver"], record["c_mu"]),
            record,
            columns_of(record["course"]),
            columns_of(record["tested"]),
        )
        for record in found
    ]


def columns_of(kept: dict[str, list[float | None]]) -> dict[str, Any]:
    return {name: np.array(values, float) for name, values in kept.items()}


def has(found: Sequence[Record], show: str) -> bool:
    """Return whether there is what a table or figure shows."""
    return show.partition(" ")[0] != "figure" or bool(drawn(found, show))


def drawn(found: Sequence[Record], show: str) -> list[Record]:
    """Return the records of a figure: `figure NAME MEASURE`, or `figure c_mu|agm NAME MEASURE`."""
    *kind, name, measure = show.split()[1:]
    of_set = [record for record in found if (record["set"], record["measure"]) == (name, measure)]
    if not kind:
        return [record for record in of_set if record["c_mu"] is None and record["solver"] != "agm"]
    smallest = min((record["lambda"] for record in of_set), default=0.0)
    of_set = [record for record in of_set if record["lambda"] == smallest]
    if kind == ["agm"]:
        both = [record for record in of_set if record["solver"] in ("lmvm", "agm") and record["c_mu"] in (None, 10.0)]
        return both if any(record["solver"] == "agm" for record in both) else []
    widths = [record for record in of_set if record["solver"] == "lmvm"]
    return widths if len(widths) > 1 else []


def figure(found: Sequence[Record], show: str) -> str:
    """Draw a figure as SVG. Dotted lines are the paper's test measures, where the rows are the paper's."""
    from distsms.page import mpl
    from scripts.compare import figures

    chosen = drawn(found, show)
    first, known = chosen[0], [r for r in found if (r["set"], r["measure"]) == (chosen[0]["set"], chosen[0]["measure"])]
    upper = figures.EXCESS if len(show.split()) > 3 else figures.OBJECTIVE
    title = first["set"] + ("" if first["real"] else " (twin)") + f": {SHOWN[first['measure']]}"
    picture = figures.panels(runs_in(chosen), [upper, figures.TESTED], title, tables.problems(runs_in(known)))
    published = PUBLISHED[first["set"]].get("test", {}).get(first["measure"])
    if published and first["real"]:
        lambdas = list(dict.fromkeys(record["lambda"] for record in chosen))
        for axes, lam in zip(picture.axes[len(lambdas) :], lambdas, strict=False):
            value = published[[float(one) for one in LAMBDAS].index(lam)]
            low, high = axes.get_ylim()
            axes.axhline(value, color="black", linestyle=":", linewidth=1.0)
            axes.set_ylim(min(low, value - 0.5), max(high, value + 0.5))
    return mpl.as_svg(picture)


def table(found: Sequence[Record], show: str) -> str:
    """Make a table: `best` like the paper's table 2, `every` with all runs, or `sets`."""
    return {"best": best_table, "every": every_table, "sets": sets_table}[show](found)


def sets_table(found: Sequence[Record]) -> str:
    """Make the table of the sets: their sizes, and what has run."""
    header, lines = ["set", "rows to train on", "columns", "nonzeros", "positive for each negative", "runs"], []
    for name, one in twins().items():
        of_set = [record for record in found if record["set"] == name]
        line = [name, f"{one.train:,}", f"{one.p:,}", f"{one.train * one.p * one.density / 100:,.0f}", f"{one.ratio:g}"]
        if of_set:
            first = of_set[0]
            line[1:4] = [f"{first[key]:,}" for key in ("n", "p", "nonzeros")]
            scale = "" if first["scale"] == 1 else f", scale {first['scale']:g}"
            numbers = sorted({record["ranks"] for record in of_set})
            ranks = " or ".join("one rank" if number == 1 else f"{number} ranks" for number in numbers)
            lines.append([*line, ("real rows" if first["real"] else "twin") + f"{scale}, {ranks}"])
        else:
            lines.append([*line, f"not run yet: `table2 results/table2 {name}`"])
    return tables.markdown(header, lines)


def best_table(found: Sequence[Record]) -> str:
    """Make the table at the lambda of the best test measure, beside the paper's."""
    header = ["set", "measure", "lambda", "least J, proved within", "LMVM", "BMRM", "SMS 2012", "BMRM 2012"]
    header += ["test [%]", "2012 [%]"]
    lines = []
    for name in twins():
        for measure in RANKING:
            there, published = PUBLISHED[name], PUBLISHED[name].get("test", {}).get(measure)
            seconds = [there[solver][measure] for solver in ("sms", "bmrm")]
            times = ["n.a." if value is None else f"{value} s" for value in seconds]
            runs = [run for run in runs_in([r for r in found if r["set"] == name]) if run.spec.c_mu is None]
            lam = tables.best_lambda(runs, measure)
            here = [run for run in runs if (run.spec.measure, run.spec.lam) == (measure, lam)]
            best = tables.best_run(here)
            cells = ["", "", "not run yet", "", *times, ""]
            if best is not None:
                own = {run.spec.solver: run.result["within"] for run in here}
                test = f"{100 * best.result['test'][measure]:.2f}"
                least = tables.least_proved(here)
                cells = [f"{lam:g}", least, own["lmvm"], own.get("bmrm", ""), *times, test]
            lines.append([name, SHOWN[measure], *cells, f"{max(published):.2f}" if published else ""])
    return tables.markdown(header, lines)


def every_table(found: Sequence[Record]) -> str:
    """Make the table of all runs of LMVM and BMRM."""
    header = ["set", "measure", "lambda", "solver", "ranks", "J", "proved gap", "evaluations", "seconds"]
    header += ["to 1 % of J", "ns a nonzero", "memory", "test [%]", "2012 [%]"]
    lines = []
    for name in twins():
        runs = [run for run in runs_in([r for r in found if r["set"] == name]) if run.spec.c_mu is None]
        for (measure, lam), here in tables.problems(runs).items():
            published = PUBLISHED[name].get("test", {}).get(measure)
            there = dict(zip(map(float, LAMBDAS), published or [], strict=False)).get(lam)
            for run in here:
                result = run.result
                ending = "" if result["status"] == "proved" else f" ({result['status']})"
                each = 1e9 * result["seconds"] / max(1, result["evaluations"] * result["nonzeros"])
                line = [name, SHOWN[measure], f"{lam:g}", run.spec.solver, str(result["ranks"])]
                line += [f"{result['J']:.6f}", f"{result['gap']:.1e}{ending}", str(result["evaluations"])]
                line += [
                    f"{result['seconds']:.2f}",
                    result["within"],
                    f"{each:.2f}",
                    format_bytes(result["memory"] or 0),
                ]
                test = result["test"].get(measure)
                line += ["" if test is None else f"{100 * test:.2f}", "" if there is None else f"{there:.2f}"]
                lines.append(line)
    return tables.markdown(header, lines)


if __name__ == "__main__":
    main()
