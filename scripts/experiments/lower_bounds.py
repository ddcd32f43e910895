"""Count the evaluations that each solver needs on the data of JMLR 2.2 and 2.3, made to be hard for cutting planes.

    . scripts/environment
    python -m scripts.experiments.lower_bounds [--epsilons 0.1 0.01 0.001] [--output results/lower-bounds]

The data, lambda = 1 and the starting point w_0 are the paper's (`distsms synth prbep-lower-bound` writes them as
files). A run ends when its gap is proved to be at most epsilon. On these data many subgradients are possible at each
step, since many rows tie. The theorems assume that the cutting-plane method always gets the worst of them ("ties as in
the proofs"). The losses of this program use all tied rows together. Then these data are not hard for any solver.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.measures import SHOWN
from distsms.base.typing import Floats
from distsms.cli.types import count, positive
from distsms.ingest.synthetic.lower_bounds import LOWER_BOUNDS, LowerBound
from distsms.ingest.synthetic.write import rows
from distsms.losses.base import Loss, LossValue
from distsms.losses.registry import make_loss
from distsms.matrix.local import SparseRows
from distsms.optim.objective import Objective
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from scripts import records
from scripts.compare.tables import markdown
from scripts.records import Record

METHODS = {
    "lmvm": ("lmvm", True, False, False),
    "agm": ("agm", True, False, False),
    "bmrm": ("bmrm", True, False, False),
    "bmrm, no zero plane, from w_0": ("bmrm", False, True, False),
    "bmrm, all as in the proofs": ("bmrm", False, True, True),
    "bmrm, ties as in the proofs": ("bmrm", True, False, True),
    "bmrm-linesearch": ("bmrm-linesearch", True, False, False),
}
"""For each method: the solver, and whether it has the zero plane, starts at w_0, and breaks ties as the proofs do."""
THEORY: dict[str, Callable[[float], float]] = {
    "prbep": lambda epsilon: 1 / (5 * epsilon),
    "rocarea": lambda epsilon: 2 / (3 * epsilon),
}
"""The number of steps that cutting-plane methods need at least, according to the theorems."""


class ProofsSeparation:
    """The exact risk of a construction's rows, in place of their loss, with ties broken as the proofs break them.

    If several negatives tie, each of them gives a subgradient. This class uses a single negative, and if possible one
    that it has not used before; the usual losses use all of them together. It works on one rank that has all rows.

    References
    ----------
    JMLR 13 (2012), sections 2.2 and 2.3.
    """

    TIE = 1e-9

    def __init__(self, source: LowerBound, loss: Loss) -> None:
        self.loss = loss
        self.weight = 2 / source.n if source.measure == "prbep" else 1 / source.size  # the weight of a negative in R
        self.d = 1.0 if source.measure == "prbep" else self.weight
        self.taken = np.arange(source.n) == 0  # row 1 is the positive one

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`; nu is not used."""
        value = self.loss.evaluate(scores, 0.0)
        planes = self.weight * (scores - scores[0]) + self.d
        new = np.flatnonzero((np.abs(planes - value.R) < self.TIE) & ~self.taken)
        if not len(new):
            return value
        self.taken[new[0]] = True
        coefficients = np.zeros(len(scores))
        coefficients[0], coefficients[new[0]] = -self.weight, self.weight
        return value._replace(d=self.d, coefficients=coefficients)

    evaluate_in_place = evaluate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    epsilons, about = [0.1, 0.03, 0.01, 0.003, 0.001], "gaps to prove (0.1 0.03 0.01 0.003 0.001)"
    parser.add_argument("--epsilons", nargs="+", type=positive, metavar="EPSILON", default=epsilons, help=about)
    about = "largest number of evaluations of a run (%(default)s)"
    parser.add_argument("--max-evaluations", type=count, default=20_000, metavar="N", help=about)
    about = "folder for the table and the figure (%(default)s)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=Path("results/lower-bounds"), help=about)
    records.add_json(parser)
    args = parser.parse_args()
    found = [
        record
        for kind in LOWER_BOUNDS.values()
        for epsilon in args.epsilons
        for record in solved(kind.of(epsilon), epsilon, args.max_evaluations)
    ]
    files = figure(found, args.output)
    (args.output / "lower_bounds.md").write_text(table(found) + "\n", encoding="utf-8")
    records.write(args.json, "scripts.experiments.lower_bounds", found)
    print(table(found) + "\n\n" + "\n".join(map(str, files)))


def solved(source: LowerBound, epsilon: float, max_evaluations: int) -> list[Record]:
    """Solve a construction by each method."""
    X, y = rows(source, 0, source.n)
    features, comm = SparseRows.of(X), Communicator()
    loss = make_loss(source.measure, "gather", y, None, comm)
    found = []
    for name, (solver, zero_plane, from_w_0, hard) in METHODS.items():
        separation: Any = ProofsSeparation(source, loss) if hard else loss
        objective = Objective(features, [separation], comm)
        settings = Settings(1.0, epsilon, None, solver=solver, zero_plane=zero_plane, max_evaluations=max_evaluations)
        result = minimize(objective, settings, source.w_0 if from_w_0 else None)
        found.append(
            {
                "measure": source.measure,
                "epsilon": epsilon,
                "method": name,
                "proved": result.status is Status.PROVED,
                "status": result.status.sentence,
                "evaluations": result.evaluations,
                "gap": result.gap,
                "steps_by_the_theorem": source.steps,
            }
        )
    return found


def table(found: list[Record]) -> str:
    """Make a table: a line for each measure and epsilon, a column for each method."""
    lines: dict[tuple[str, float], list[str]] = {}
    for record in found:
        start = [SHOWN[record["measure"]], f"{record['epsilon']:g}", str(record["steps_by_the_theorem"])]
        line = lines.setdefault((record["measure"], record["epsilon"]), start)
        unproved = f"n.a. ({record['status']}, gap {record['gap']:.2g})"
        line.append(str(record["evaluations"]) if record["proved"] else unproved)
    return markdown(["measure", "epsilon", "steps according to the theorem", *METHODS], list(lines.values()))


def figure(found: list[Record], folder: Path) -> list[Path]:
    """Draw evaluations against epsilon, and return the files."""
    from distsms.page import mpl
    from scripts.compare import figures

    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in found:
        methods = points.setdefault(record["measure"], {})
        if record["proved"]:
            methods.setdefault(record["method"], []).append((record["epsilon"], record["evaluations"]))
    return list(mpl.save(figures.lower_bounds(points, THEORY), folder, "lower_bounds"))


if __name__ == "__main__":
    main()
