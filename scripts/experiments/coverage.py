"""What intervals and verdicts are worth: simulates how often they hold, on laws whose truth is known.

    . scripts/environment
    python -m scripts.experiments.coverage [--minutes 10] [--simulations 1000] [--parts model pair folds]

model: a score with known measures on new rows, positives and negatives drawn from many laws; half of the times with
exactly n+ positives, half of the times with n+ in the mean. How often the intervals of ROCArea and PRBEP hold the
truth.
pair: two scores of the same rows, equal in expectation; how often one is called better (a false verdict), and how often
the better one is where there is one (power).
folds: a method on k folds, tuned as `distsms baseline` tunes, beside its mirror image: the same method on as many other
columns that say as much. Truth is the mean of all simulations' models on infinitely many rows. The method is a
discriminant of Fisher's with a ridge, since it takes milliseconds, and intervals see scores alone.
baseline: the same with models of `distsms train`.

"before" are intervals that the simulations speak against: DeLong's in the logit with normal quantiles, percentiles of
the bootstrap, and on folds both with the models taken as given; "t" is Nadeau & Bengio's of the k folds' values. Shares
are in per cent, with their simulation error; what covers less than 93 %, or is false in more than 6 %, by more than two
simulation errors, has a star.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.cli.types import count, positive
from distsms.utils.typing import Floats
from scripts.experiments.simulations import BLOCK, COUNTS, FEATURES, LAWS, Folds, Model, Pair


def block(cell: Any, number: int, seed: int, first: int) -> list[list[float]]:
    """Some simulations of a cell."""
    return [cell.one((seed, number, k)) for k in range(first, first + BLOCK)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=positive, default=10.0, help="after which only each row's first 10 begin (%(default)g)"
    )
    parser.add_argument("--simulations", type=count, default=1000, help="of each row, at most (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is simulated (all)")
    parser.add_argument("--processes", type=count, default=2, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    args = parser.parse_args()
    cells = [(part, cell) for part in args.parts for cell in PARTS[part][0]]
    found = simulated([cell for _, cell in cells], args)
    for part in args.parts:
        of_part = [(cell, np.array(one)) for (name, cell), one in zip(cells, found, strict=True) if name == part]
        print(f"\n{part}: {min(len(one) for _, one in of_part)} simulations a row, at least\n")
        print(PARTS[part][1](of_part), flush=True)


def simulated(cells: list[Any], args: argparse.Namespace) -> list[list[list[float]]]:
    """Every cell's simulations, a block of each in turn until there are enough or time is up."""
    end, found = time.monotonic() + 60 * args.minutes, [list[list[float]]() for _ in cells]
    todo = [(first, k) for first in range(0, args.simulations, BLOCK) for k in range(len(cells))]
    with ProcessPoolExecutor(args.processes) as pool:
        running: dict[Any, int] = {}
        while True:
            while todo and len(running) < 2 * args.processes and (todo[0][0] == 0 or time.monotonic() < end):
                first, k = todo.pop(0)
                running[pool.submit(block, cells[k], k, args.seed, first)] = k
            if not running:
                return found
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                found[running.pop(future)] += future.result()


def shown(counted: NDArray[np.bool_], least: float = 0.0, most: float = 1.0) -> str:
    """A share in per cent with its simulation error, and a star where it is surely beyond."""
    share = float(np.mean(counted))
    error = math.sqrt(max(share * (1 - share), 1 / len(counted)) / len(counted))
    return f"{100 * share:.1f} ± {100 * error:.1f}" + "*" * (share + 2 * error < least or share - 2 * error > most)


def held(truth: float, limits: Floats) -> NDArray[np.bool_]:
    """Which limits (R, 2) hold the truth; those that are missing do not."""
    return (limits[:, 0] <= truth) & (truth <= limits[:, 1])


def told_apart(limits: Floats) -> NDArray[np.bool_]:
    """Which limits (R, 2) leave out 0."""
    return (limits[:, 0] > 0) | (limits[:, 1] < 0)


def covered(mask: NDArray[np.bool_]) -> str:
    """A share that should be 95 %."""
    return shown(mask, least=0.93)


def false(mask: NDArray[np.bool_]) -> str:
    """A share that should be 5 %."""
    return shown(mask, most=0.06)


def power(mask: NDArray[np.bool_]) -> str:
    """A share that should be large."""
    return shown(mask)


def mean(masks: list[NDArray[np.bool_]]) -> str:
    """Of several shares, in per cent."""
    return f"{100 * np.mean([np.mean(mask) for mask in masks]):.1f}"


def width(limits: Floats) -> float:
    """The mean one, of those that there are."""
    return float(np.nanmean(limits[:, 1] - limits[:, 0]))


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


BOTH = {"ROCArea": ("rocarea", 0), "PRBEP": ("prbep", 5)}
"""Where the numbers of a measure begin, see `told`; ours and others' are 1 and 3 further."""


def of_model(found: list[tuple[Model, Floats]]) -> str:
    """Coverage and width of both measures, ours and before, of each law; then of each n+ the least and the mean."""
    rows, least = [], []
    for cell, one in found:
        truth, row = cell.truth(), cell.row()
        for name, at in BOTH.values():
            row.append(f"{truth[name]:.3f}")
            for limits in (one[:, at + 1 : at + 3], one[:, at + 3 : at + 5]):
                row += [covered(held(truth[name], limits)), f"{width(limits):.3f}"]
        rows.append(row)
    for n_pos in dict.fromkeys(cell.n_pos for cell, _ in found):
        row = [str(n_pos)]
        for name, at in BOTH.values():
            for k in (at + 1, at + 3):
                own = [(cell.truth()[name], one[:, k : k + 2]) for cell, one in found if cell.n_pos == n_pos]
                masks = [held(*each) for each in own]
                row += [mean(masks), covered(min(masks, key=np.mean))]
                row.append(f"{np.mean([width(limits) for _, limits in own]):.3f}")
        least.append(row)
    each = ["covered", "width", "before", "width"]
    header = ["scores, ROCArea", "n+", "ROCArea", *each, "PRBEP", *each]
    each = ["covered, mean", "least", "width", "before, mean", "least", "width"]
    short = [f"{name}: {one}" for name in BOTH for one in each]
    return table(header, rows) + "\n\n" + table(["n+", *short], least)


def of_pair(found: list[tuple[Pair, Floats]]) -> str:
    """False verdicts and power of both measures, ours and before; then of each n+ the most and the mean."""
    both, rows, most = list(zip(found[::2], found[1::2], strict=False)), [], []
    for (cell, equal), (_, unequal) in both:
        row = cell.row()
        for k in (1, 3, 6, 8):
            row += [false(told_apart(equal[:, k : k + 2])), power(told_apart(unequal[:, k : k + 2]))]
        rows.append(row)
    for n_pos in dict.fromkeys(cell.n_pos for cell, _ in found):
        row, own = [str(n_pos)], [(e, u) for (cell, e), (_, u) in both if cell.n_pos == n_pos]
        for k in (1, 3, 6, 8):
            masks = [told_apart(equal[:, k : k + 2]) for equal, _ in own]
            row += [mean(masks), false(max(masks, key=np.mean))]
            row.append(mean([told_apart(unequal[:, k : k + 2]) for _, unequal in own]))
        most.append(row)
    each = ["false", "power", "false before", "power before"]
    header = ["ROCArea", "correlation", "n+", *(f"{name}: {one}" for name in BOTH for one in each)]
    each = ["false, mean", "most", "power", "false before, mean", "most", "power"]
    return table(header, rows) + "\n\n" + table(["n+", *(f"{name}: {one}" for name in BOTH for one in each)], most)


def of_folds(found: list[tuple[Folds, Floats]]) -> str:
    """The method's coverage and width; below, false verdicts and power of its difference."""
    first, then = [], []
    for (cell, equal), (_, unequal) in zip(found[::2], found[1::2], strict=False):
        row, of_difference = cell.row(), cell.row()
        for at, by_values in ((0, 10), (5, 12)):
            truth = float(np.mean(equal[:, at]))
            row.append(f"{truth:.3f}")
            for k in (at + 1, at + 3, by_values):
                row += [covered(held(truth, equal[:, k : k + 2])), f"{width(equal[:, k : k + 2]):.3f}"]
                k += 14
                of_difference += [false(told_apart(equal[:, k : k + 2])), power(told_apart(unequal[:, k : k + 2]))]
        first.append(row)
        then.append(of_difference)
    start, kinds = ["n", "n+", "p", "folds"], ("", " before", " t")
    each = [f"{word}{one}" for one in kinds for word in ("covered", "width")]
    verdicts = [f"{name}: {word}{one}" for name in BOTH for one in kinds for word in ("false", "power")]
    return table([*start, "ROCArea", *each, "PRBEP", *each], first) + "\n\n" + table(start + verdicts, then)


PARTS: dict[str, tuple[list[Any], Callable[..., str]]] = {
    "model": ([Model(law, n_pos) for n_pos in COUNTS for law in range(len(LAWS))], of_model),
    "pair": (
        [
            Pair(area, correlation, n_pos, less)
            for n_pos in list(COUNTS)[1:]
            for area in (0.7, 0.95)
            for correlation in (0.5, 0.95, 0.999, 0.0)
            for less in (0.0, 0.03)
        ],
        of_pair,
    ),
    "baseline": ([Folds(400, 20, 10, 5, 1.5, less, True) for less in (0.0, 0.3)], of_folds),
    "folds": (
        [
            Folds(n, n_pos, p, folds, signal, less)
            for folds, features in ((5, FEATURES), (10, FEATURES[3:5]))
            for n, n_pos, p in features
            for signal in (1.5,)
            for less in (0.0, 0.3)
        ],
        of_folds,
    ),
}


if __name__ == "__main__":
    main()
