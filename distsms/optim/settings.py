"""The settings of a run. They are checked when they are made, and they say how much memory a run takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from distsms.base.choices import check_fields
from distsms.base.errors import InputError
from distsms.base.measures import FAMILIES, Family
from distsms.base.memory import Memory
from distsms.optim.penalty import ElasticNet
from distsms.optim.solvers.base import SOLVERS, PlaneUse, Traits, solver_class

RUN = 6
"""The number of vectors (p,) that an evaluation, the run and the proof together hold in memory, as measured."""
OF_L1 = 8
"""How many more they and the solver hold with the elastic net."""

PAIRS_OF_MANY, PAIRS_OF_WIDE = 10, 5
"""The usual history with more than `MANY` columns, where more pairs take time and save no evaluations, and that with
more columns than rows, where work on vectors takes longer than passes over rows.
"""
MANY = 2**14


def usual_pairs(p: int, n: int, of_few: int) -> int:
    """Return the usual history for p columns and n rows; `of_few` is that of the measure's family, for few columns."""
    return PAIRS_OF_WIDE if p > n else PAIRS_OF_MANY if p > MANY else of_few


SCALING, FEW, SCALING_OF_MORE = 0.125, 512, 0.2
"""The usual exponent of the change of variables with at most `FEW` columns, and that with more."""

LEAST_ROWS, MOST_COMPARED, GATHERED = 32, 2**19, 2**27
"""Dual coordinate ascent needs so many rows: with fewer it gains no time, and weights shall do what repeated rows do.
With more than the second number it has not gained any for ROCArea, whose dual it hardly reaches then. With several
ranks, the root gathers the rows for it, if their entries take at most `GATHERED` bytes, and works alone.
"""
OF_ROW, OF_ROW_ALONE = 64, 150
"""The ascent takes so many bytes for each row on the rank that has it, and more on the root of several ranks."""

DESCENDED, OF_COLUMN = 10_000, 10
"""Stochastic descent is a start where there are so many rows, and so many for each column."""

POINTS = 1000
"""The most points that are kept for a certificate; a run has more only where all of its planes are needed."""

CURVED = 24
"""Estimating the curvature takes so many bytes for each row, for a moment."""


def curves(n: float, p: int, entries: float) -> bool:
    """Return whether the curvature may be estimated on n rows: in little time, with no more memory than they take."""
    return 2 * p <= n and p <= FEW and entries >= 8 * n


def ascends(n: float, p: int, family: Family) -> bool:
    """Return whether dual ascent pays: for few rows beside the columns, for hinges also about as many."""
    most = MOST_COMPARED if family.compares_pairs else np.inf
    return LEAST_ROWS <= n <= min(most, (0.5 if family.smooth_by_itself else 2.0) * p)


def descends(n: float, p: int) -> bool:
    return n >= max(DESCENDED, OF_COLUMN * p)


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Parameters
    ----------
    lam : float
        Weight lambda of the regularizer.
    l1 : float
        Weight of ||w||_1, at least 0. With a positive weight the regularizer is the elastic net l1 ||w||_1 + lam/2
        ||w||^2, and many entries of w are 0.
    epsilon : float, optional
        The gap to prove, as a difference in J.
    relative : float, optional
        The gap to prove, as a share of J, below 1. At least one of `epsilon` and `relative` must be given. If both are,
        the larger of the two gaps is the target.
    c_mu : float, optional
        Keeps the smoothing at the paper's fixed width mu = c_mu epsilon / D. None reduces the width during the run.
    solver : str
        The solver: "lmvm", "lbfgs", "agm", "bmrm" or "bmrm-linesearch".
    history : int, optional
        The largest number of pairs of vectors that the solver remembers; by default 50 (100 for pauc@BETA), 10 with
        more than 16,384 columns, and 5 with more columns than rows.
    planes : int
        The largest number of planes in the proof, at least 2. "bmrm" keeps all of its planes, as far as memory allows.
    scaling : float, optional
        The exponent of a change of variables, from 0 (none) to 1; by default 0.125 with at most 512 columns, and 0.2
        with more. The solver works on w_j (m_j + lambda)^scaling, where m_j is the mean of x_ij^2 over the rows. The
        problem and its minimum stay the same. Solvers that do not gain from it ignore it.
    zero_plane : bool
        Whether the inequality R >= 0 is one of the planes, as in BMRM (2007). Algorithm 1 of the paper does not use it.
    bundle_steps : bool
        Whether the run may also take level steps, which evaluate J at points that the planes of the proof propose. It
        takes them if they narrow the gap faster than the solver, or if the solver makes no progress.
    vector_bytes : float
        The most bytes that the history and the planes may take on a rank, half of it each. Their numbers are reduced if
        they would take more.
    max_evaluations : int
        The largest number of evaluations. If the run was resumed, those before count.
    time_limit : float
        The most seconds of training. If the run was resumed, the seconds before do not count.
    checkpoint_every : float, optional
        Seconds between two snapshots of the run. With None there are no snapshots.
    solver_options : tuple of str
        Options of PETSc, for "lmvm".
    points : bool
        Whether the run keeps the points of its planes, from which a certificate is made.

    Raises
    ------
    InputError
        If a value is not possible, or contradicts another one.
    """

    lam: float
    epsilon: float | None = 1e-3
    relative: float | None = None
    c_mu: float | None = None
    solver: str = "lmvm"
    history: int | None = None
    planes: int = 100
    scaling: float | None = None
    zero_plane: bool = True
    bundle_steps: bool = True
    vector_bytes: float = 2**31
    max_evaluations: int = 10_000
    time_limit: float = float("inf")
    checkpoint_every: float | None = None
    solver_options: tuple[str, ...] = ()
    l1: float = 0.0
    points: bool = False

    def __post_init__(self) -> None:
        check_fields(self, {"history": 1, "planes": 2, "max_evaluations": 1})
        if self.relative is not None and self.relative >= 1:
            raise InputError(f"relative is {self.relative}; it must be below 1 (0.01 is 1 %)")
        if self.epsilon is None and self.relative is None:
            raise InputError("no stopping rule: give epsilon (absolute) or relative (a share of J)")
        solver_class(self.solver)  # raises InputError if there is none
        ElasticNet(self.lam, self.l1)  # raises InputError if they are not possible
        for name in ("epsilon", "relative", "c_mu", "time_limit", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}; it must be positive")
        if self.l1 and not self.traits.l1:
            others = ", ".join(solver for solver in SOLVERS if solver_class(solver).traits.l1)
            raise InputError(f"{self.solver} cannot minimize l1 ||w||_1; omit l1, or choose another solver: {others}")
        if self.c_mu is not None and not self.traits.smooth:
            raise InputError(f"c_mu has no use: {self.solver} minimizes the exact risk; omit it or take another solver")
        if self.solver_options and not self.traits.options:
            options = " ".join(self.solver_options)
            raise InputError(f"{self.solver} does not use PETSc, so it takes no options of PETSc: {options}")
        if self.scaling is not None and not 0 <= self.scaling <= 1:
            raise InputError(f"scaling is {self.scaling}; it must be between 0 (none) and 1")

    @property
    def traits(self) -> Traits:
        return solver_class(self.solver).traits

    def check_measure(self, name: str, family: Family) -> None:
        """Raise InputError if the solver needs a smoothed risk that the measure lacks, or c_mu has no use."""
        if self.c_mu is not None and family.smooth_by_itself:
            raise InputError(f"c_mu has no use, since {name} is smooth by itself: omit c_mu", everywhere=True)
        if self.traits.smooth and not family.smooth:
            exact = " or ".join(solver for solver in SOLVERS if not solver_class(solver).traits.smooth)
            raise InputError(f"{name} has no smoothed risk, and {self.solver} needs one; use {exact}", everywhere=True)

    def identity(self, p: int) -> dict[str, Any]:
        """Return what a run with p columns must have in common with this one to continue from its checkpoint."""
        same = {"lambda": self.lam, "scaling": self.scaling_of(p)}
        same |= {name: getattr(self, name) for name in ("solver", "c_mu", "zero_plane")}
        return same | ({"l1": self.l1} if self.l1 else {})  # old checkpoints have none

    def scaling_of(self, p: int) -> float:
        usual = SCALING if p <= FEW else SCALING_OF_MORE
        return usual if self.scaling is None else self.scaling

    def history_within(self, p: int, usual: int) -> int:
        """Return the pairs in the solver's history, at least 5 (TAO's default), for p entries on a rank."""
        if not self.traits.history:
            return 0
        room = max(5, self.vector_bytes / 2 // (8 * self.traits.history * max(p, 1)))
        return int(min(self.history or usual, room, max(5, self.max_evaluations)))

    def remembered_within(self, p: int, usual: int) -> int:
        """Return how many pairs are kept twice for snapshots, in a quarter of `vector_bytes`, but at least 5."""
        if self.checkpoint_every is None or not self.traits.copies:
            return 0
        room = max(5, self.vector_bytes / 4 // (8 * self.traits.copies * max(p, 1)))
        return int(min(self.history_within(p, usual), room))

    def planes_within(self, p: int) -> int:
        """Return how many planes are kept for p entries of each, at least 2; as many as a model's memory allows."""
        if self.traits.planes is PlaneUse.PAIR:
            return 2
        budget = self._plane_bytes
        room = (np.sqrt(p * p + budget / 2) - p) / 2
        most = self.max_evaluations + 1 if self.traits.planes is PlaneUse.MODEL else self.planes
        return int(min(most, max(2, room)))

    @property
    def _plane_bytes(self) -> float:
        """The most bytes of the planes, and of their points if these are kept."""
        return self.vector_bytes / (2 if self.traits.history else 1) / (2 if self.points else 1)

    def points_within(self, p: int) -> int:
        """Return how many points are kept for a certificate, if a rank holds p entries of each; 0 without one."""
        if not self.points:
            return 0
        # With two planes, each mixture is of all evaluations so far.
        most = self.max_evaluations if self.traits.planes is PlaneUse.PAIR else POINTS
        return int(min(most, max(2, self._plane_bytes // (8 * max(p, 1)))))

    def opening_held(self, n: int, p: int, ranks: int, entries: int, family: Family) -> Memory:
        """Return what an opening takes on several ranks, which share n rows of `entries` bytes evenly; see `ascend`.
        That of one rank fits where the solver's vectors will be: it takes 110 bytes a row, of at most 2 p rows.
        """
        possible = self.traits.movable and self.checkpoint_every is None and not self.l1 and entries <= GATHERED
        if ranks == 1 or not (possible and ascends(n, p, family)):
            return Memory()
        return Memory(OF_ROW * -(-n // ranks) + 24 * p, OF_ROW_ALONE * n + entries)

    def curvature_held(self, n: int, p: int, ranks: int, entries: int) -> Memory:
        """Return what estimating the curvature takes, if n rows are shared evenly."""
        possible = self.traits.movable and not self.l1 and curves(n, p, entries)
        return Memory(CURVED * -(-n // ranks) + 24 * p**2) if possible else Memory()

    def vectors_held(self, p: int) -> int:
        """Return the bytes of all vectors of a run (solver, planes and `RUN`) if a rank holds p entries of each."""
        planes, traits = self.planes_within(p), self.traits
        usual = PAIRS_OF_MANY if p > MANY else max(family.history for family in FAMILIES.values())
        pairs = traits.history * self.history_within(p, usual) + traits.copies * self.remembered_within(p, usual)
        held = pairs + traits.vectors + planes + self.points_within(p) + RUN + OF_L1 * bool(self.l1)
        return 8 * p * held + 8 * planes**2

    def target(self, J: float) -> float:
        return max(self.epsilon or 0.0, (self.relative or 0.0) * J)

    def describe_target(self) -> str:
        """Return the gap to prove in words, such as "0.001 or 0.01 J"."""
        words = [f"{self.epsilon:g}"] if self.epsilon else []
        return " or ".join([*words, f"{self.relative:g} J"] if self.relative else words)


def describe(settings: Settings) -> dict[str, Any]:
    """Return the settings as they are stored with a model, ready for JSON."""
    values = {key: value if value != float("inf") else None for key, value in asdict(settings).items()}
    del values["points"]  # changes nothing in the run
    return values if settings.l1 else {key: value for key, value in values.items() if key != "l1"}
