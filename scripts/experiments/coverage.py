"""Simulate how often confidence intervals contain the truth and verdicts are right, for known distributions.

    . scripts/environment
    python -m scripts.experiments.coverage [--minutes 10] [--simulations 1000] [--parts model pair folds]

model      A score whose ROCArea and PRBEP are known. The scores of positives and negatives are drawn from many
           distributions. Half of the simulations have exactly n+ positives, the others n+ on average. How often do the
           intervals contain the truth?
pair       Two scores of the same rows. If both are equally good in expectation, how often is one of them called better
           (a false verdict)? If one is better, how often is this found (power)?
folds      Two methods on k folds, tuned as `distsms baseline` does. They are the same method on different columns; both
           sets of columns are equally informative, or the second is less so. The truth is the mean of the models of all
           simulations on infinitely many rows. The method is Fisher's discriminant with a ridge, which takes
           milliseconds; intervals depend on scores alone.
baseline   The same with models of `distsms train`.

Columns without a remark are those of distsms. "usual" are the usual intervals ("before" in the JSON file), which the
simulations show to be worse: DeLong's for the logit with normal quantiles, and percentiles of the bootstrap; on folds,
both ignore that other training rows give other models. "t" is Nadeau & Bengio's interval from the k folds' values.
Coverage, false verdicts and power are in per cent, with their simulation error. They have a star if the coverage is
below 93 %, or the share of false verdicts above 6 %, by more than two simulation errors.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import numpy as np

from distsms.base.typing import Floats
from distsms.cli.types import count, positive
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.simulations import BLOCK, COUNTS, FEATURES, LAWS, Folds, Model, Pair
from scripts.records import Record

AT = {"rocarea": 0, "prbep": 5}
"""The index at which the five numbers of a measure begin in the result of a simulation: the truth, the two limits of
the intervals of distsms ("ours"), and the two limits of the usual intervals ("before").
"""
SHOWN = {"rocarea": "ROCArea", "prbep": "PRBEP"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "time after which only the first 10 simulations of each table row still begin (%(default)g)"
    parser.add_argument("--minutes", type=positive, default=10.0, help=about)
    parser.add_argument(
        "--simulations", type=count, default=1000, help="largest number for each table row (%(default)s)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is simulated (all)")
    parser.add_argument("--processes", type=count, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args()
    cells = [(part, cell) for part in args.parts for cell in PARTS[part][0]]
    numbers = simulate([cell for _, cell in cells], args)
    found: list[Record] = []
    for part in args.parts:
        own = [(cell, np.array(each)) for (name, cell), each in zip(cells, numbers, strict=True) if name == part]
        found += [{"part": part, **record} for record in PARTS[part][1](own)]
    print(text(found))
    records.write(args.json, "scripts.experiments.coverage", found)


def text(found: Sequence[Record]) -> str:
    """Make all tables of records, each part under a heading."""
    parts = dict.fromkeys(record["part"] for record in found)
    return "\n\n".join(table([record for record in found if record["part"] == part]) for part in parts)


def table(found: Sequence[Record]) -> str:
    """Make the tables of a part."""
    part, least = found[0]["part"], min(record["simulations"] for record in found)
    return f"{part}: at least {least} simulations per row\n\n" + "\n\n".join(TABLES[part](found))


def simulate(cells: list[Any], args: argparse.Namespace) -> list[list[list[float]]]:
    """Simulate block after block of each cell, until there are enough simulations or the time is over.

    Returns for each cell a list with the numbers of each simulation.
    """
    end, found = time.monotonic() + 60 * args.minutes, [list[list[float]]() for _ in cells]
    todo = [(first, k) for first in range(0, args.simulations, BLOCK) for k in range(len(cells))]
    with ProcessPoolExecutor(args.processes) as pool:
        running: dict[Any, int] = {}
        while True:
            while todo and len(running) < 2 * args.processes and (todo[0][0] == 0 or time.monotonic() < end):
                first, k = todo.pop(0)
                running[pool.submit(simulate_block, cells[k], k, args.seed, first)] = k
            if not running:
                return found
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                found[running.pop(future)] += future.result()


def simulate_block(cell: Any, number: int, seed: int, first: int) -> list[list[float]]:
    """Make some simulations of a cell."""
    return [cell.simulate((seed, number, k)) for k in range(first, first + BLOCK)]


# From simulations to records


def covered(truth: float, limits: Floats) -> dict[str, float]:
    """Return the share of the intervals, given by limits (R, 2), that contain the truth, and their mean width.

    An interval that does not exist (NaN) counts as one that does not contain the truth.
    """
    holds = (limits[:, 0] <= truth) & (truth <= limits[:, 1])
    return {"covered": float(np.mean(holds)), "width": float(np.nanmean(limits[:, 1] - limits[:, 0]))}


def told_apart(limits: Floats) -> float:
    """Return the share of the intervals, given by limits (R, 2), that do not contain 0."""
    return float(np.mean((limits[:, 0] > 0) | (limits[:, 1] < 0)))


def of_models(simulated: list[tuple[Model, Floats]]) -> list[Record]:
    """Summarize the part `model`: coverage and width of both measures, of our and of the usual intervals."""
    found = []
    for cell, numbers in simulated:
        record: Record = {"law": LAWS[cell.law].name, "n_pos": cell.n_pos, "simulations": len(numbers)}
        for name, truth in cell.truth().items():
            ours, before = (numbers[:, AT[name] + k : AT[name] + k + 2] for k in (1, 3))
            record[name] = {"truth": truth, "ours": covered(truth, ours), "before": covered(truth, before)}
        found.append(record)
    return found


def of_pairs(simulated: list[tuple[Pair, Floats]]) -> list[Record]:
    """Summarize the part `pair`: false verdicts and power of both measures, of our and of the usual intervals."""
    found = []
    for (cell, equal), (_, unequal) in zip(simulated[::2], simulated[1::2], strict=True):
        record: Record = {"rocarea_of_both": cell.area, "correlation": cell.correlation, "n_pos": cell.n_pos}
        record["simulations"] = min(len(equal), len(unequal))
        for name, at in AT.items():
            record[name] = {which: verdicts(equal, unequal, at + k) for which, k in (("ours", 1), ("before", 3))}
        found.append(record)
    return found


def verdicts(equal: Floats, unequal: Floats, at: int) -> dict[str, float]:
    """Return how often the intervals in columns `at` and `at + 1` do not contain 0.

    equal, unequal : (R, numbers), simulations of two equally good methods ("false") and of two different ones
    ("power").
    """
    return {"false": told_apart(equal[:, at : at + 2]), "power": told_apart(unequal[:, at : at + 2])}


def of_folds(simulated: list[tuple[Folds, Floats]]) -> list[Record]:
    """Summarize the parts `folds` and `baseline`: coverage and width, and verdicts on differences."""
    found = []
    for (cell, equal), (_, unequal) in zip(simulated[::2], simulated[1::2], strict=True):
        record: Record = {"n": cell.n, "n_pos": cell.n_pos, "columns": cell.columns, "folds": cell.folds}
        record["simulations"] = min(len(equal), len(unequal))
        for name, by_values in (("rocarea", 10), ("prbep", 12)):
            truth = float(np.mean(equal[:, AT[name]]))
            starts = {"ours": AT[name] + 1, "before": AT[name] + 3, "t": by_values}
            record[name] = {"truth": truth} | {
                which: covered(truth, equal[:, k : k + 2]) | verdicts(equal, unequal, k + 14)
                for which, k in starts.items()
            }
        found.append(record)
    return found


# From records to tables


def share(value: float, simulations: int, least: float = 0.0, most: float = 1.0) -> str:
    """Format a share in per cent with its simulation error.

    There is a star if the share is below `least` or above `most` by more than two simulation errors.
    """
    error = math.sqrt(max(value * (1 - value), 1 / simulations) / simulations)
    star = "*" * (value + 2 * error < least or value - 2 * error > most)
    return f"{100 * value:.1f} ± {100 * error:.1f}{star}"


LIMITS = {"covered": {"least": 0.93}, "false": {"most": 0.06}, "power": {}}
"""The limits beyond which a share has a star, by its name."""
EXTREME = {"covered": (min, "lowest"), "false": (max, "highest")}
HEADINGS = {"covered": "coverage [%]", "width": "width", "false": "false verdicts [%]", "power": "power [%]"}
"""How a number of a record is called in a table."""


def shown(record: Record, measure: str, which: str, key: str) -> str:
    """Show a number of a record: a share, or a width."""
    value = record[measure][which][key]
    return f"{value:.3f}" if key == "width" else share(value, record["simulations"], **LIMITS[key])


def each_and_extreme(found: Sequence[Record], start: dict[str, str], keys: tuple[str, str]) -> list[str]:
    """Make a table with a line for each record, and one for each n+ with the mean and the extreme of the first key."""
    first, second = keys
    pairs = [(name, which) for name in SHOWN for which in ("ours", "before")]
    header, lines = list(start.values()), []
    for name, which in pairs:
        suffix = "" if which == "ours" else ", usual"
        if which == "ours" and first == "covered":
            header.append(f"true {SHOWN[name]}")
        header += [f"{SHOWN[name]}: {HEADINGS[key]}{suffix}" for key in keys]
    for record in found:
        line = [_named(key, record[key]) for key in start]
        for name, which in pairs:
            if which == "ours" and first == "covered":
                line.append(f"{record[name]['truth']:.3f}")
            line += [shown(record, name, which, key) for key in keys]
        lines.append(line)
    extreme, word = EXTREME[first]
    short = []
    for n_pos in dict.fromkeys(record["n_pos"] for record in found):
        own, line = [record for record in found if record["n_pos"] == n_pos], [str(n_pos)]
        for name, which in pairs:
            value = extreme(record[name][which][first] for record in own)
            worst = next(record for record in own if record[name][which][first] == value)
            means = [np.mean([record[name][which][key] for record in own]) for key in keys]
            last = f"{means[1]:.3f}" if second == "width" else f"{100 * means[1]:.1f}"
            line += [f"{100 * means[0]:.1f}", shown(worst, name, which, first), last]
        short.append(line)
    heads = [
        f"{SHOWN[name]}: {text}"
        for name, which in pairs
        for suffix in ["" if which == "ours" else ", usual"]
        for text in (f"mean {HEADINGS[first]}{suffix}", f"{word}{suffix}", f"mean {HEADINGS[second]}{suffix}")
    ]
    return [markdown(header, lines), markdown(["n+", *heads], short)]


def _named(key: str, value: Any) -> str:
    if key == "correlation" and not value:
        return "few rows differ"
    return str(value) if isinstance(value, str) else f"{value:g}"


def tables_of_models(found: Sequence[Record]) -> list[str]:
    """Make the tables of the part `model`."""
    return each_and_extreme(found, {"law": "scores, their ROCArea", "n_pos": "n+"}, ("covered", "width"))


def tables_of_pairs(found: Sequence[Record]) -> list[str]:
    """Make the tables of the part `pair`."""
    start = {"rocarea_of_both": "ROCArea", "correlation": "correlation", "n_pos": "n+"}
    return each_and_extreme(found, start, ("false", "power"))


def tables_of_folds(found: Sequence[Record]) -> list[str]:
    """Make the tables of `folds` and `baseline`: the method's coverage and width; false verdicts and power."""
    start = {"n": "n", "n_pos": "n+", "columns": "p", "folds": "folds"}
    kinds = {"ours": "", "before": ", usual", "t": ", t"}
    made = []
    for keys in (("covered", "width"), ("false", "power")):
        header, lines = list(start.values()), []
        for name in SHOWN:
            header += [f"true {SHOWN[name]}"] if keys[0] == "covered" else []
            header += [f"{SHOWN[name]}: {HEADINGS[key]}{suffix}" for suffix in kinds.values() for key in keys]
        for record in found:
            line = [str(record[key]) for key in start]
            for name in SHOWN:
                line += [f"{record[name]['truth']:.3f}"] if keys[0] == "covered" else []
                line += [shown(record, name, which, key) for which in kinds for key in keys]
            lines.append(line)
        made.append(markdown(header, lines))
    return made


PARTS: dict[str, tuple[list[Any], Callable[..., list[Record]]]] = {
    "model": ([Model(law, n_pos) for n_pos in COUNTS for law in range(len(LAWS))], of_models),
    "pair": (
        [
            Pair(area, correlation, n_pos, less)
            for n_pos in list(COUNTS)[1:]
            for area in (0.7, 0.95)
            for correlation in (0.5, 0.95, 0.999, 0.0)
            for less in (0.0, 0.03)
        ],
        of_pairs,
    ),
    "baseline": ([Folds(400, 20, 10, 5, 1.5, less, True) for less in (0.0, 0.3)], of_folds),
    "folds": (
        [
            Folds(n, n_pos, p, folds, 1.5, less)
            for folds, features in ((5, FEATURES), (10, FEATURES[3:5]))
            for n, n_pos, p in features
            for less in (0.0, 0.3)
        ],
        of_folds,
    ),
}
"""For each part, the cells that are simulated, and the function that summarizes the simulations in records."""
TABLES: dict[str, Callable[[Sequence[Record]], list[str]]] = {
    "model": tables_of_models,
    "pair": tables_of_pairs,
    "baseline": tables_of_folds,
    "folds": tables_of_folds,
}


if __name__ == "__main__":
    main()
