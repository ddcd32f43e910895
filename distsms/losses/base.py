"""The interface of a loss: it computes the risk, the smoothed risk and their derivatives from the rows' margins.

A loss is built once for a data set (in cross-validation, once for each weighting of the rows). It is then evaluated at
many weight vectors w. The modules of this package use the letters of the paper (JMLR 13, 2012, section 3):

    s_i = <w, x_i>   the margin of row i, which the code calls its score
    y_i, z           the label of row i (+1 or -1), and any labeling of all rows
    P, N             the set of the positive rows and that of the negative rows
    n+, n-, n        the numbers of rows in P and N, and their sum
    a_i              the weight of row i, which counts like a_i equal rows; 1 unless said otherwise
    A+, A-, A        the sums of the weights over P and N, and their sum; n+, n- and n if all weights are 1
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

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Family
from distsms.base.memory import Memory
from distsms.base.typing import Floats, Labels
from distsms.base.wording import option

FROM_CELLS, DIVIDED, SORTED, WIDE = "from cells", "from divided cells", "by sorting", "from cells too wide"
EXACT = "exactly at the end"
"""The ways in which a loss that counts rows makes an evaluation."""


class LossValue(NamedTuple):
    """The result of one evaluation. All numbers are global, the same on all ranks."""

    R: float  # the risk
    R_mu: float  # the smoothed risk
    d: float  # the constant of the plane that lies below R
    coefficients: Floats  # (n_local,): c, the derivative of R_mu with respect to the score of each local row
    # R is at least `R - width`: a loss that does not compute it exactly returns the upper end of an interval
    width: float = 0.0

    @classmethod
    def undefined(cls, coefficients: Floats) -> LossValue:
        """Return the result where a margin is not finite, with coefficients that are set to 0."""
        coefficients[:] = 0.0
        return cls(math.nan, math.nan, math.nan, coefficients)


ROW_BYTES = 40
"""Bytes for each row besides its entries: label, classes, scores, coefficients, and the buffers of a loss."""
ROW_BYTES_IN_PLACE = 24
"""The same where coefficients take the place of the scores; `Cost.held_by_each` counts what the loss holds besides."""


class Cost(NamedTuple):
    """The cost of one evaluation on the busiest rank."""

    bytes: float  # sent and received
    steps: float  # elementary ones: looking up, comparing or adding one number
    # bytes of memory on the root only, on every rank, and for each row of a rank besides its entries
    held_by_root: float = 0.0
    held_by_each: float = 0.0
    of_row: int = ROW_BYTES

    @property
    def memory(self) -> Memory:
        return Memory(int(self.held_by_each), int(self.held_by_root))


class Loss(ABC):
    """A convex risk R of the margins, and its smoothing R_mu of width nu, in units of the margins.

    Construction, from labels +1 or -1 and weights a_i >= 0 (None: 1) of this rank's rows, is **collective**. A row of
    weight 2 has the effect of two equal rows, one of weight 0 (in a fold that is held out, say) is not there, and all
    weights times a number have the same effect. Raises InputError if a weight is negative or not finite, if a class has
    no rows or weighs nothing beside the other, or if the measure counts rows and the weights other than 0 differ.
    """

    family: ClassVar[Family]
    """What its measure can be, such as whether there is an R_mu. A loss without R_mu is evaluated only at nu = 0."""
    nonnegative: ClassVar[bool] = True
    """Whether R >= 0 everywhere; the zero plane (r = 0, d = 0) is then one more lower bound."""
    measure: str | None = None
    """The measure with its parameters, such as "precision@5", if it has some; for messages."""
    R_at_zero: float
    """R(0), the risk where all scores are equal. A model says something only if its risk is below this."""
    kappa: float
    """mu D / nu, for which 0 <= R - R_mu <= kappa nu at every w; 0 where R is smooth by itself."""
    planes_up_to: ClassVar[float] = math.inf
    """The R up to which the |c_i| sum to at most 2, as the bounds on rounding require. A plane at a larger R is mixed
    with the zero plane, which must then be a lower bound.
    """
    calls_positive: int | None
    """The number of rows, those with the highest scores, that count as predicted positive. It is n+ unless a loss sets
    another. None means that all rows with a score >= 0 are predicted positive.
    """
    target: Callable[[float], float] = staticmethod(lambda J: 1e-3)
    """Returns the gap to prove if J is at least its argument; a loss that encloses R does so much closer."""

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        self.comm, self._labels = comm, labels
        self.ways: Counter[str] = Counter()  # the evaluations that were made in each way; the same on every rank
        kept = None if weights is None or np.all(weights) else weights != 0
        self._kept: NDArray[np.bool_] | None = kept  # None if no row is left out
        counts = np.array([np.count_nonzero(self.positive), np.count_nonzero(self.negative)])
        self.n_pos, self.n_neg = (int(count) for count in comm.sum(counts))
        self.n = self.n_pos + self.n_neg
        self.calls_positive = self.n_pos
        # divided by a power of two, so that their mean is near 1; None if those other than 0 are equal on all ranks
        self.weights: Floats | None = None
        self.A_pos, self.A_neg, self.A = float(self.n_pos), float(self.n_neg), float(self.n)  # their sums over ranks
        if not (self.n_pos and self.n_neg):
            which = "positive " if self.n_neg else "negative " if self.n_pos else ""
            labeled = comm.sum(np.array([np.count_nonzero(labels > 0), np.count_nonzero(labels < 0)]))
            if labeled.all():
                raise InputError(f"all {which}rows have weight 0; rows of both classes must count", everywhere=True)
            raise InputError(
                f"the measure needs rows of both classes, but these data have {self.n_pos} positive and {self.n_neg} "
                f"negative rows. Was the right value declared positive ({option('positive')})?",
                everywhere=True,
            )
        self._set_weights(weights)

    @property
    def positive(self) -> NDArray[np.bool_]:
        """This rank's positive rows that are not left out, (n_local,). Computed each time, since it takes memory."""
        return self._labels > 0 if self._kept is None else (self._labels > 0) & self._kept

    @property
    def negative(self) -> NDArray[np.bool_]:
        """This rank's negative rows that are not left out, (n_local,)."""
        return self._labels < 0 if self._kept is None else (self._labels < 0) & self._kept

    @property
    def additions(self) -> float:
        """At most so many additions follow one another on the way to R and d, whose rounding errors this bounds."""
        return self.n

    @property
    def coefficient_additions(self) -> float:
        """The same on the way to a coefficient, beyond the few that every bound on rounding allows for."""
        return 0.0

    def _set_weights(self, row_weights: Floats | None) -> None:
        """Check the weights, and set `weights` and their sums if they are not all equal. Collective."""
        if row_weights is None:  # and so on every rank
            return
        kept: Any = slice(None) if self._kept is None else self._kept
        of_rows = np.asarray(row_weights, np.float64)[kept]
        bad = 0.0 if (np.isfinite(of_rows) & (of_rows > 0)).all() else 1.0
        ends = np.array([bad, -np.min(of_rows, initial=np.inf), np.max(of_rows, initial=-np.inf)])
        bad, low, high = self.comm.maximum(np.nan_to_num(ends)).tolist()
        if bad:
            raise InputError("row weights have to be finite numbers >= 0", everywhere=True)
        if -low == high:
            return
        if self.family.counts_rows:
            raise InputError(
                f"{self.measure or self.family} counts rows, so different weights of rows mean nothing to it: leave "
                "the weights out, or choose rocarea, prbep, error-rate, logistic or pauc@BETA",
                everywhere=True,
            )
        mean = float(self.comm.sum(np.array([np.sum(of_rows / high)]))[0]) / self.n  # in (0, 1]
        self.weights = weights = np.zeros(len(row_weights))
        weights[kept] = np.ldexp(of_rows, -math.frexp(high)[1] - math.frexp(mean)[1])
        sums = np.array([np.sum(weights[self.positive]), np.sum(weights[self.negative])])
        self.A_pos, self.A_neg = self.comm.sum(sums).tolist()
        if min(self.A_pos, self.A_neg) < np.finfo(float).tiny:  # zero, or its reciprocal may be infinite
            smaller = "negative" if self.A_pos > self.A_neg else "positive"
            raise InputError(
                f"weights of the {smaller} rows are so small beside {high:g} that they vanish: give similar ones", True
            )
        self.A = self.A_pos + self.A_neg

    @abstractmethod
    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """Compute R, R_mu, d and the coefficients at this rank's margins. **Collective.**

        At nu = 0 nothing is smoothed, which is what cutting-plane methods need: R_mu = R, and the coefficients are
        those of a subgradient, whose plane touches R here: sum_i c_i s_i + d = R. If a margin of any rank is not
        finite, the three numbers are NaN on every rank, and the coefficients 0.
        """

    def evaluate_in_place(self, scores: Floats, nu: float) -> LossValue:
        """Compute what `evaluate` does; the coefficients may take the place of large data's scores. **Collective.**"""
        return self.evaluate(scores, nu)

    def exact_is_cheap(self, entries: float, evaluations: float) -> bool:
        """Whether `exact_risk` takes less than a tenth of so many evaluations, for so many entries. Local."""
        return False

    def exact_risk(self, scores: Floats) -> float:
        """Return R, for a loss whose `evaluate` encloses it in an interval. **Collective.**"""
        raise NotImplementedError

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu for the paper's mu = c_mu epsilon / D (JMLR, section 5.4)."""
        return c_mu * epsilon / cls.kappa

    sent, steps_of_row, held_of_row, held = 0.0, 0.0, 0.0, 0.0
    """For `cost`: the bytes of an evaluation's messages, its steps and its bytes in memory for each row of a rank, and
    its bytes besides."""

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of an evaluation on the busiest of `size` ranks; by default of passes over local rows."""
        n_local = (n_pos + n_neg) / size
        sent = 0.0 if size == 1 else cls.sent
        return Cost(sent, cls.steps_of_row * n_local, held_by_each=cls.held_of_row * n_local + cls.held)


def ramp(t: Any, nu: float) -> Any:
    """Return beta = clip(t / nu, 0, 1), the derivative of the Huber hinge; at nu = 0 that of the hinge."""
    if nu == 0:
        return np.where(t > 0, 1.0, 0.0)
    with np.errstate(over="ignore"):  # t / nu may overflow where nu is tiny: beta is 1 there
        return np.clip(t / nu, 0.0, 1.0)


def huber(t: Any, beta: Any, nu: float) -> Any:
    """Return the Huber hinge beta t - nu beta^2 / 2 with beta = ramp(t, nu), for t of any shape."""
    return beta * (t - 0.5 * nu * beta)
