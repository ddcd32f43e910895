"""The contract of a loss: from this rank's margins to R, R_mu, the plane's d and one coefficient per local row.

A loss is built once for a data set (and once per weighting of its rows, for cross-validation) and then evaluated at
many w. What it returns is enough for everything above it (JMLR, section 3; A is the paper's linear transform):

    r = A beta^ = X' c = grad R_mu(w)          with c the coefficients
    R(v) >= <r, v> + d   for every v           since beta^ is feasible: the plane that proves the gap
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats


class LossValue(NamedTuple):
    """One evaluation. The three numbers are global and equal on all ranks; `coefficients` is (n_local,) float64."""

    R: float
    R_mu: float
    d: float
    coefficients: Floats


class Cost(NamedTuple):
    """Bytes sent and received, and steps: looking up, comparing or adding one number; and bytes held for it."""

    bytes: float
    steps: float
    held_by_root: float = 0.0
    held_by_each: float = 0.0


class Loss(ABC):
    """A convex risk R of the margins and its smoothing R_mu of width nu, in units of the margins.

    labels : (n_local,) int8, +1 or -1.  weights : (n_local,) float64 or None; a row of weight 0 is left out of n, of
    the risk and of the gradient (a fold held out); other weights than 0 and 1 are refused.  Building it is collective.
    """

    name: ClassVar[str]
    nonnegative: ClassVar[bool]
    """Whether R >= 0 everywhere, so that the zero plane (r = 0, d = 0) is one more lower bound."""
    smooth: ClassVar[bool] = True
    """Whether there is an R_mu; a loss without is evaluated at nu = 0 only, by solvers of the exact risk."""
    calls_positive: int | None
    """How many rows, those of highest score, it calls positive; None: all with a score >= 0. By default n+."""

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> None:
        if comm.sum(np.array([0 if weights is None else np.count_nonzero((weights != 0) & (weights != 1))]))[0]:
            raise InputError("row weights other than 0 and 1 are not supported by this loss", everywhere=True)
        self.comm = comm
        kept = np.ones(len(labels), bool) if weights is None else weights != 0
        self.positive: NDArray[np.bool_] = (labels > 0) & kept  # (n_local,)
        self.negative: NDArray[np.bool_] = (labels < 0) & kept
        counts = np.array([np.count_nonzero(self.positive), np.count_nonzero(self.negative)])
        self.n_pos, self.n_neg = (int(count) for count in comm.sum(counts))
        self.n = self.n_pos + self.n_neg
        self.calls_positive = self.n_pos
        if not (self.n_pos and self.n_neg):
            present = "none" if not self.n else "positive" if self.n_pos else "negative"
            raise InputError(
                f"the measure needs rows of both classes, and these data have {self.n_pos} positive and {self.n_neg} "
                f"negative rows (only class present: {present}). Was the right value declared positive (--positive)?",
                everywhere=True,
            )

    @abstractmethod
    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """R, R_mu, d and the coefficients at this rank's margins.

        scores : (n_local,), s_i = <w, x_i>; nu : width >= 0. At nu = 0 this is the exact separation that cutting planes
        need: R_mu = R, and the coefficients are a subgradient whose plane touches R here, sum_i c_i s_i + d = R.
        Collective. If a margin of any rank is not finite, the three numbers are NaN on every rank and the coefficients
        zero.
        """

    def smoothing_cost(self) -> float:
        """kappa with 0 <= R - R_mu <= kappa nu everywhere: mu times the largest prox value that is attained.

        Every smooth loss has one.
        """
        raise NotImplementedError

    @abstractmethod
    def at_zero(self) -> float:
        """R(0), the risk where all scores are equal: what a model must get below to say anything."""

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """nu for the paper's mu = c_mu epsilon / D (JMLR, section 5.4). Every smooth loss has one."""
        raise NotImplementedError

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """What an evaluation takes with `size` ranks, on the rank that has most to do, rows being dealt out evenly."""
        raise NotImplementedError


def ramp(t: Any, nu: float) -> Any:
    """beta = clip(t / nu, 0, 1), the derivative of the Huber hinge; at nu = 0 [t > 0], of the hinge. Any shape."""
    if nu == 0:
        return np.where(t > 0, 1.0, 0.0)
    with np.errstate(over="ignore"):  # t / nu may pass the largest float where nu is tiny: beta is 1 there
        return np.clip(t / nu, 0.0, 1.0)


def huber(t: Any, beta: Any, nu: float) -> Any:
    """The Huber hinge beta t - nu beta^2 / 2 with beta = ramp(t, nu): 0, t^2 / (2 nu) or t - nu / 2. Any shape."""
    return beta * (t - 0.5 * nu * beta)
