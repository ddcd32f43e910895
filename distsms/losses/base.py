"""The interface of a loss: it computes the risk, the smoothed risk and their derivatives from the rows' margins.

A loss is built once for a data set (in cross-validation, once for each weighting of the rows). It is then evaluated at
many weight vectors w. The modules of this package use the letters of the paper (JMLR 13, 2012, section 3):

    s_i = <w, x_i>   the margin of row i, which the code calls its score
    y_i, z           the label of row i (+1 or -1), and any labeling of all rows
    P, N             the set of the positive rows and that of the negative rows
    n+, n-, n        the numbers of rows in P and N, and their sum
    Delta(z, y)      what the measure loses if z is predicted and y is true
    R(w)             the risk, the maximum of <A beta, w> - g(beta) over a convex set of vectors beta
    R_mu(w)          the smoothed risk: the same maximum with mu/2 ||beta||^2 (the prox term) subtracted
    D                the largest value that 1/2 ||beta||^2 attains on the convex set
    nu               the width of the smoothing, mu in units of the margins

Each evaluation returns R, R_mu and a plane that lies below R, with the maximizer beta^ of R_mu:

    r = A beta^ = X' c = grad R_mu(w)          the plane's slope; c has one coefficient for each row
    d = -g(beta^)                              the plane's constant
    R(v) >= <r, v> + d   for every v           since beta^ is in the convex set; this inequality proves the gap
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
    """The result of one evaluation.

    Attributes
    ----------
    R, R_mu, d : float
        The risk, the smoothed risk, and the constant of the plane that lies below R. Global, the same on all ranks.
    coefficients : (n_local,) float64
        c, the derivative of R_mu with respect to the score of each local row.
    """

    R: float
    R_mu: float
    d: float
    coefficients: Floats


class Cost(NamedTuple):
    """The cost of one evaluation on the busiest rank.

    Attributes
    ----------
    bytes : float
        Bytes sent and received.
    steps : float
        Elementary steps: looking up, comparing or adding one number.
    held_by_root, held_by_each : float
        Bytes of memory needed on the root only, and on every rank.
    """

    bytes: float
    steps: float
    held_by_root: float = 0.0
    held_by_each: float = 0.0


class Loss(ABC):
    """A convex risk R of the margins, and its smoothing R_mu of width nu, in units of the margins.

    Parameters
    ----------
    labels : (n_local,) int8
        +1 or -1.
    weights : (n_local,) float64 or None
        0 or 1. A row of weight 0 (in a fold that is held out, say) counts neither in n nor in the risk and the
        gradient.
    comm : Communicator
        The ranks. Construction is **collective**.

    Attributes
    ----------
    positive, negative : (n_local,) bool
        This rank's rows of each class that are not left out.
    n_pos, n_neg, n : int
        The number of such rows over all ranks, and their sum.

    Raises
    ------
    InputError
        If a weight is neither 0 nor 1, or if a class has no rows.
    """

    name: ClassVar[str]
    nonnegative: ClassVar[bool]
    """Whether R >= 0 everywhere; the zero plane (r = 0, d = 0) is then one more lower bound."""
    smooth: ClassVar[bool] = True
    """Whether there is an R_mu. A loss without R_mu is evaluated only at nu = 0, by solvers for the exact risk."""
    calls_positive: int | None
    """The number of rows, those with the highest scores, that count as predicted positive. It is n+ unless a loss sets
    another. None means that all rows with a score >= 0 are predicted positive.
    """

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
                f"the measure needs rows of both classes, but these data have {self.n_pos} positive and {self.n_neg} "
                f"negative rows (only class present: {present}). Was the right value declared positive (--positive)?",
                everywhere=True,
            )

    @abstractmethod
    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """Compute R, R_mu, d and the coefficients at this rank's margins. **Collective.**

        Parameters
        ----------
        scores : (n_local,) float64
            The margins s_i = <w, x_i>.
        nu : float
            The width >= 0. At nu = 0 nothing is smoothed, which is what cutting-plane methods need: R_mu = R, and the
            coefficients are those of a subgradient. Its plane touches R here: sum_i c_i s_i + d = R.

        Returns
        -------
        LossValue
            If a margin of any rank is not finite, the three numbers are NaN on every rank, and the coefficients are
            zero.
        """

    def smoothing_cost(self) -> float:
        """Return kappa = mu D / nu, for which 0 <= R - R_mu <= kappa nu at every w.

        Every smooth loss overrides this method.
        """
        raise NotImplementedError

    @abstractmethod
    def at_zero(self) -> float:
        """Return R(0), the risk where all scores are equal. A model says something only if its risk is below this."""

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu for the paper's mu = c_mu epsilon / D (JMLR, section 5.4). Every smooth loss overrides this."""
        raise NotImplementedError

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of an evaluation with `size` ranks on the busiest rank, with rows evenly distributed."""
        raise NotImplementedError


def ramp(t: Any, nu: float) -> Any:
    """Return beta = clip(t / nu, 0, 1), the derivative of the Huber hinge, for t of any shape.

    At nu = 0 this is the derivative of the hinge max(0, t): 1 where t > 0, and 0 elsewhere.
    """
    if nu == 0:
        return np.where(t > 0, 1.0, 0.0)
    with np.errstate(over="ignore"):  # t / nu may overflow where nu is tiny: beta is 1 there
        return np.clip(t / nu, 0.0, 1.0)


def huber(t: Any, beta: Any, nu: float) -> Any:
    """Return the Huber hinge beta t - nu beta^2 / 2 with beta = ramp(t, nu), for t of any shape.

    It is 0 for t <= 0, t^2 / (2 nu) for t between 0 and nu, and t - nu / 2 for t >= nu.
    """
    return beta * (t - 0.5 * nu * beta)
