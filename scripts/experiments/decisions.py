"""Simulate whether thresholds from held-out folds keep their promise on new rows.

    . scripts/environment
    python -m scripts.experiments.decisions [--minutes 10] [--simulations 100]

Rows of both classes are normal with the same covariance, so that the rates of any linear model on infinitely many new
rows are known. A model for ROCArea is trained on n rows with p columns, five of which matter, and its threshold is
chosen for a condition: on held-out folds, as `distsms train --at` does, and on the training rows. "new rows" is the
mean of the limited rate at the threshold on new rows. "covered" is the share of the intervals, where there is one
("shown"), that contain it; a star marks less than 93 % by more than two simulation errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from distsms.base.measures import Condition
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.cli.types import count, positive
from distsms.matrix.arrays import as_features
from distsms.metrics.operating_points import operating_point
from distsms.metrics.tied_scores import tied_scores
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock
from distsms.training.fit import fit
from distsms.training.task import TrainingTask
from distsms.workflow.decisions import decision_at, held_out
from distsms.workflow.path import ALONE, PathRows, Problem
from distsms.workflow.requests import FOLDS
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.coverage import share, simulate
from scripts.records import Record

CONDITIONS = [Condition.parse(text) for text in ("precision>=0.8", "recall>=0.9", "fpr<=0.01")]
SHIFT = 1.0
"""The distance of the means of both classes in each of the columns that matter."""
MATTER = 5
LAM = 1e-2


class Cell(NamedTuple):
    """A training on n rows with p columns, a share of which is positive."""

    n: int
    p: int
    share: float

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Make one simulation. For each condition: the rate on new rows of both thresholds, and the limits."""
        rng = np.random.default_rng(seed)
        labels = np.where(rng.random(self.n) < self.share, 1, -1).astype(np.int8)
        means = SHIFT * (np.arange(self.p) < MATTER)
        X = rng.normal(size=(self.n, self.p)) + np.outer(labels > 0, means)
        settings = Settings(lam=LAM, solver="lbfgs")
        task = TrainingTask.of_rows(as_features(X), labels, "rocarea", settings)
        w = fit(task, ALONE).w
        assert isinstance(task.data, DataBlock)
        problem = Problem("rocarea", [LAM], FOLDS, 0, settings)
        held = held_out(PathRows(task.data, ALONE), problem, (np.mean(X @ w), np.std(X @ w)))
        assert held is not None
        own, numbers = tied_scores(Scored(X @ w, labels, ALONE)), list[float]()
        for condition in CONDITIONS:
            found = decision_at(condition, held, ALONE)
            thresholds = found["threshold"], operating_point(condition, own, ALONE).threshold
            numbers += [self.rate(condition, w, at) for at in thresholds]
            numbers += [np.nan if found[end] is None else found[end] for end in ("low", "high")]
        return numbers

    def rate(self, condition: Condition, w: Floats, threshold: float | None) -> float:
        """Return the rate that a condition limits on infinitely many rows; NaN if nothing is called positive."""
        if threshold is None or not np.isfinite(threshold):
            return np.nan
        size = float(np.linalg.norm(w))
        tpr, fpr = (float(ndtr((mean - threshold) / size)) for mean in (SHIFT * float(w[:MATTER].sum()), 0.0))
        called = tpr * self.share + fpr * (1 - self.share)
        return {"precision": tpr * self.share / called, "recall": tpr, "fpr": fpr}[condition.quantity]


CELLS = [Cell(n, p, positives) for n in (1000, 5000) for p in (10, 100) for positives in (0.05, 0.2)]


def main() -> None:
    """Simulate, print the table, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "time after which only the first 10 simulations of each table row still begin (%(default)g)"
    parser.add_argument("--minutes", type=positive, default=10.0, help=about)
    parser.add_argument("--simulations", type=count, default=100, help="largest number of each (%(default)s)")
    parser.add_argument("--processes", type=count, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args()
    numbers = [np.array(each) for each in simulate(CELLS, args)]
    found = [record for cell, own in zip(CELLS, numbers, strict=True) for record in of_cell(cell, own)]
    print(table(found))
    records.write(args.json, "scripts.experiments.decisions", found)


def of_cell(cell: Cell, numbers: Floats) -> list[Record]:
    """Summarize the simulations of a cell: one record for each condition."""
    found = []
    for k, condition in enumerate(CONDITIONS):
        folds, training, low, high = numbers[:, 4 * k : 4 * k + 4].T
        shown = np.isfinite(low) & np.isfinite(folds)
        inside = ((low <= folds) & (folds <= high))[shown]
        found.append(
            {
                **cell._asdict(),
                "condition": str(condition),
                "simulations": len(numbers),
                "folds": float(np.nanmean(folds)),
                "training": float(np.nanmean(training)),
                "shown": int(shown.sum()),
                "covered": float(inside.mean()) if shown.any() else None,
            }
        )
    return found


def table(found: Sequence[Record]) -> str:
    """Make the table in Markdown."""
    header = ["rows", "columns", "positive", "condition", "new rows: folds", "new rows: training", "shown", "covered"]
    lines = []
    for row in found:
        covered = share(row["covered"], row["shown"], 0.93) if row["shown"] else "-"
        lines.append(
            [
                f"{row['n']:,}",
                str(row["p"]),
                f"{row['share']:.0%}",
                f"`{row['condition']}`",
                f"{row['folds']:.3g}",
                f"{row['training']:.3g}",
                f"{row['shown']} of {row['simulations']}",
                covered,
            ]
        )
    return markdown(header, lines)


if __name__ == "__main__":
    main()
