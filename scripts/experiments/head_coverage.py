"""Simulate how often intervals of the head of the ranking contain the truth, and how often verdicts on pairs are false.

    . scripts/environment
    python -m scripts.experiments.head_coverage [--minutes 10] [--simulations 400]

The distributions of scores are those of `scripts.experiments.coverage`, and their true values are computed on a fine
grid. A line is a measure of the head, average precision, BEDROC, or a rate at a threshold that was chosen on the
simulated rows for a condition; the truth of such a rate is its value on infinitely many rows at this very threshold.
"shown" is the share of simulations in which there is an interval at all. "wrong of these" is the share of the shown
intervals that do not contain the truth, over all distributions; "wrong" is the share of all simulations in which an
interval is shown that does not contain the truth. The mean and the worst over the distributions are given. A star marks
more than 7 % of wrong intervals, by more than two simulation errors. The last table has two equally good normal scores,
whose noise is correlated: how often does the interval of their difference exclude 0?
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distsms.base.measures import Condition, HeadMeasure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.cli.types import count, positive
from distsms.metrics import bootstrap, confidence, head_intervals, influence, ranking
from distsms.metrics.operating_points import bedroc, head, head_value, operating_point
from distsms.metrics.tied_scores import TiedScores, tied_scores
from distsms.workflow.competitors import ALONE
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.coverage import share, simulate
from scripts.experiments.simulations import LAWS, LEVEL
from scripts.records import Record

ROWS = {20: 1000, 50: 4000, 200: 4000}
"""Number of rows for each number of positives."""
REPLICATES = 300
ROUNDING = 1e-9  # of the truth on the grid
NAMES = (
    *("tpr@fpr=0.001", "tpr@fpr=0.01", "tpr@fpr=0.05", "recall@precision=0.5", "recall@precision=0.9"),
    *("precision@recall=0.9", "pauc@0.01", "pauc@0.05", "precision@1%", "recall@1%", "lift@1%"),
)
MEASURES = [measure for name in NAMES if (measure := HeadMeasure.parse(name))]
CONDITIONS = [
    Condition.parse(text) for text in ("precision>=0.5", "precision>=0.9", "recall>=0.9", "fpr<=0.01", "top=1%")
]
RATES = ("precision", "recall", "fpr")
K = 50
OF_ROWS = ("average precision", "BEDROC")
LINES = [
    *(measure.display_name for measure in MEASURES),
    *OF_ROWS,
    *(f"{name}@{K}" for name in ("precision", "recall")),
    *(f"{rate} at {at}" for at in CONDITIONS for rate in RATES),
]


@functools.cache
def grid(law: int, share: float) -> TiedScores:
    """Return as good as infinitely many rows of a distribution, a share of which is positive."""
    u = (np.arange(100_000) + 0.5) / 100_000
    scores = np.concatenate([LAWS[law].pos(u), LAWS[law].neg(u)])
    labels = np.repeat(np.array([1, -1], np.int8), len(u))
    return tied_scores(Scored(scores, labels, ALONE, np.repeat([share, 1 - share], len(u))))


class Cell(NamedTuple):
    """A score on new rows."""

    law: int
    n_pos: int

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Make one simulation: truth and limits of each of `LINES`; limits are NaN where there is no interval."""
        rng, n = np.random.default_rng(seed), ROWS[self.n_pos]
        n_pos = self.n_pos if seed[-1] % 2 else max(int(rng.binomial(n, self.n_pos / n)), 1)
        scores, labels = LAWS[self.law].drawn(n_pos, n - n_pos, rng)
        scored = Scored(scores, labels, ALONE)
        tied, whole = tied_scores(scored), grid(self.law, self.n_pos / n)
        draws = bootstrap.Draws(np.arange(n), REPLICATES, seed[-1])
        drawn = head_intervals.head_replicates(MEASURES, tied, scored, draws)
        numbers = []
        for measure in MEASURES:
            estimate = head_intervals.head_estimate(measure, head_value(measure, tied, ALONE), n_pos, n - n_pos)
            found = head_intervals.head_interval(measure, estimate, drawn[measure.name], LEVEL)
            numbers += [head_value(measure, whole, ALONE), found.low, found.high]
        of_whole = ranking.mean_precision(whole, ALONE), bedroc(whole, ALONE)
        for truth, of_rows in zip(of_whole, influence.row_influences(tied, scored).values(), strict=True):
            estimate = influence.influence_estimate(of_rows, scored)
            found = confidence.rocarea_interval(estimate, LEVEL)
            numbers += [truth, found.low, found.high]
        at_k = head(whole, Condition("top", K / n), ALONE)
        of_both = confidence.top_k_estimates(ranking.top_k_shares(scored, K), K, scored)
        at_k_drawn = bootstrap.top_k_replicates(scored, draws, K)
        for truth, estimate, replicates in zip((at_k.precision, at_k.recall), of_both, at_k_drawn, strict=True):
            found = confidence.prbep_interval(estimate, replicates, LEVEL)
            numbers += [truth, found.low, found.high]
        for condition in CONDITIONS:
            point = operating_point(condition, tied, ALONE)
            reached = whole.values >= point.threshold
            tp, fp = (float(part[reached].sum()) for part in (whole.positive, whole.negative))
            truths = (tp / (tp + fp) if tp + fp else 0.0, tp / whole.n_pos, fp / whole.n_neg)
            for truth, found in zip(truths, head_intervals.point_intervals(point, LEVEL, scored).values(), strict=True):
                numbers += [truth, found.low, found.high]
        return numbers


class PairCell(NamedTuple):
    """Two equally good normal scores of the same rows, with a ROCArea of 0.95."""

    correlation: float
    n_pos: int

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Make one simulation: for each measure whether the interval of the difference excludes 0."""
        rng, n = np.random.default_rng(seed), ROWS[self.n_pos]
        labels = np.where(np.arange(n) < self.n_pos, 1, -1).astype(np.int8)
        common, own = rng.normal(size=n), rng.normal(size=(2, n))
        noise = np.sqrt(self.correlation) * common + np.sqrt(1 - self.correlation) * own
        values, drawn, of_rows = [], [], []
        for scores in noise + 2.326 * (labels > 0):
            scored = Scored(scores, labels, ALONE)
            tied = tied_scores(scored)
            of_rows.append(influence.row_influences(tied, scored))
            values.append([head_value(measure, tied, ALONE) for measure in MEASURES])
            draws = bootstrap.Draws(np.arange(n), REPLICATES, seed[-1])
            drawn.append(head_intervals.head_replicates(MEASURES, tied, scored, draws))
        excludes = []
        for k, measure in enumerate(MEASURES):
            less = confidence.MeanEstimate(values[0][k] - values[1][k], (np.nan,), (self.n_pos, n - self.n_pos))
            found = confidence.prbep_difference_interval(less, drawn[0][measure.name] - drawn[1][measure.name], LEVEL)
            excludes.append(float(found.low > 0 or found.high < 0))
        for name in of_rows[0]:
            less = influence.influence_estimate(of_rows[0][name] - of_rows[1][name], scored)
            found = confidence.rocarea_difference_interval(less, LEVEL)
            excludes.append(float(found.low > 0 or found.high < 0))
        return excludes


CELLS = [Cell(law, n_pos) for n_pos in ROWS for law in range(len(LAWS))]
PAIRS = [PairCell(correlation, n_pos) for n_pos in ROWS for correlation in (0.5, 0.95)]


def main() -> None:
    """Simulate, print the tables, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "time after which only the first 10 simulations of each distribution still begin (%(default)g)"
    parser.add_argument("--minutes", type=positive, default=10.0, help=about)
    parser.add_argument("--simulations", type=count, default=400, help="largest number of each (%(default)s)")
    parser.add_argument("--processes", type=count, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args()
    numbers = [np.array(each) for each in simulate([*CELLS, *PAIRS], args)]
    found = [record for cell, own in zip(CELLS, numbers, strict=False) for record in of_cell(cell, own)]
    for pair, own in zip(PAIRS, numbers[len(CELLS) :], strict=True):
        about_pair = {"part": "pair", "n_pos": pair.n_pos, "correlation": pair.correlation, "simulations": len(own)}
        found += [
            {**about_pair, "line": line, "false": float(share)}
            for line, share in zip(LINES, own.mean(axis=0), strict=False)
        ]
    print("\n\n".join(table(found, part) for part in ("model", "pair")))
    records.write(args.json, "scripts.experiments.head_coverage", found)


def of_cell(cell: Cell, numbers: Floats) -> list[Record]:
    """Summarize the simulations of a distribution: one record for each line."""
    found = []
    for k, line in enumerate(LINES):
        truth, low, high = numbers[:, 3 * k : 3 * k + 3].T
        shown = np.isfinite(low)
        wrong = shown & ((truth < low - ROUNDING) | (truth > high + ROUNDING))
        record: Record = {"part": "model", "law": LAWS[cell.law].name, "n_pos": cell.n_pos, "line": line}
        record |= {"simulations": len(numbers), "shown": float(shown.mean()), "wrong": float(wrong.mean())}
        found.append(record)
    return found


def table(found: Sequence[Record], part: str) -> str:
    """Make the table of a part, `model` or `pair`."""
    own = [record for record in found if record["part"] == part]
    counts = list(dict.fromkeys(record["n_pos"] for record in own))
    key, cells = ("wrong" if part == "model" else "false"), []
    for line in dict.fromkeys(record["line"] for record in own):
        cells.append([line])
        for n_pos in counts:
            these = [record for record in own if (record["line"], record["n_pos"]) == (line, n_pos)]
            worst = max(these, key=lambda record: record[key])
            wrong = np.mean([record[key] for record in these])
            shown = []
            if part == "model":
                share_shown = np.mean([record["shown"] for record in these])
                shown = [f"{100 * share_shown:.0f}", f"{100 * wrong / share_shown:.1f}" if share_shown else "-"]
            cells[-1] += [*shown, f"{100 * wrong:.1f}", share(worst[key], worst["simulations"], most=0.07)]
    names = (
        ["shown [%]", "wrong of these [%]", "wrong [%]", "most"] if part == "model" else ["false verdicts [%]", "most"]
    )
    return markdown(["", *(f"n+ = {n_pos}: {name}" for n_pos in counts for name in names)], cells)


if __name__ == "__main__":
    main()
