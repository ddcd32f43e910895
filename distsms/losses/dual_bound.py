"""What one coefficient for each row proves of a risk, however the coefficients were found.

An evaluation gives coefficients c and a constant d with R(v) >= <X'c, v> + d for every v (`distsms.losses.base`), and
so does each mixture of evaluations. For given c, the largest such d is that of the conjugate R*, with the scores s,

    d(c) = -R*(c) = min over s of  R(s) - <c, s>,    and -infinity where no plane has these coefficients.

docs/theory/certificate.md has d(c) and its conditions for each measure, in terms of u_i = -c_i on P and v_j = c_j on N.
Rounded coefficients fail the conditions by a little. So they are reduced until they fulfil them: cut at their limits,
made equal in sum by reducing the larger side, and multiplied by a share theta <= 1, since c = 0 with d = 0 is a plane.

Sums of doubles leave the conditions open by a share of what is summed. For most measures that changes d by this share,
which `certificate.lower_bound` subtracts. Those whose d is steeper in c (at K, F-beta, normal-auc) subtract it here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats

EPS, EPS_LONG = float(np.finfo(float).eps), float(np.finfo(np.longdouble).eps)
CERTIFIED = {"rocarea", "gauc", "pauc", "prbep", "error-rate", "logistic", "logistic-balanced", "normal-auc"}
CERTIFIED |= {"f-beta", "precision@k", "recall@k"}
"""The families of measures that have a rule here."""
NEAR = 2.0**-20
"""Theta is first sought within this distance from 1."""
CELLS, BLOCK = 2**20, 2**17
"""Rows are counted into so many ranges of their coefficients, where those of all ranks matter; and so many at a time,
so that errors of rounding do not grow with the rows.
"""
OF_ROW, OF_ALL = 120, 128 * CELLS
"""Bytes that a certificate takes, with what is computed here, for each row of a rank, and besides; measured."""
ADDITIONS = 2**18 if EPS_LONG < EPS else 2**22
"""At most so many additions of doubles follow one another on the way to a coefficient and to d."""
PAIRWISE = 128
"""`np.sum` adds pairwise: what follows from sums of up to 2^40 numbers errs by at most so many roundings."""


class Proved(NamedTuple):
    """The plane <X'c, v> + d that coefficients prove, after they were reduced to possible ones."""

    d: float
    c: Floats  # (n_local,)
    size: float = 2.0  # the |c_i| of all ranks add up to at most this


def dual_bound(loss: Any, c: Floats, alpha: Floats | None = None, labelings: Floats | None = None) -> Proved:
    """Return what coefficients (n_local,) prove of the risk of a loss. **Collective.** Raises InputError on all ranks
    if they have the wrong sign in a class, or are not finite.

    alpha (n_local,) of pauc: the share to which each negative counts; labelings (k, 3) of F-beta: weight, missed,
    called.
    """
    sides, family = _Sides(loss, c), loss.family.name
    sides.check(signed=family != "normal-auc")
    if family == "normal-auc":
        return sides.pairwise_square()
    if family == "gauc":
        return _within_groups(loss, sides.c)
    if family in ("rocarea", "pauc"):
        return sides.pairs(alpha)
    if family == "f-beta":
        return sides.labelings(labelings)
    if family in ("precision@k", "recall@k"):
        return sides.at_k()
    assert family in CERTIFIED, family
    return sides.separate()


class _Sides:
    """u of the positive and v of the negative local rows, and their weights."""

    def __init__(self, loss: Any, c: Floats) -> None:
        self.loss, self.comm = loss, loss.comm
        self.positive, self.negative = loss.positive, loss.negative
        self.c = np.where(self.positive | self.negative, c, 0.0)
        a = np.ones(len(c)) if loss.weights is None else loss.weights
        self.u, self.v = -self.c[self.positive], self.c[self.negative]
        self.a_pos, self.a_neg = a[self.positive], a[self.negative]

    def check(self, signed: bool) -> None:
        """Raise InputError for coefficients that no plane of the risk has. **Collective.**"""
        least = min(np.min(side, initial=0.0) for side in (self.u, self.v)) if signed else 0.0
        right = np.isfinite(self.c).all() and least >= 0
        if self.comm.maximum(np.array([float(not right)]))[0]:
            raise InputError(
                "the certificate's coefficients are not finite, or contradict the labels: they are of other rows", True
            )

    def sums(self, *values: Any) -> list[float]:
        """Return the sums of local numbers over all ranks. **Collective.**"""
        totals: list[float] = self.comm.sum(np.array([np.sum(value) for value in values], float)).tolist()
        return totals

    def proved(self, d: float, u: Floats, v: Floats) -> Proved:
        c = np.zeros(len(self.c))
        c[self.positive], c[self.negative] = -u, v
        return Proved(d, c)

    def separate(self) -> Proved:
        """Return the plane for PRBEP, the error rate and logistic regression. **Collective.**"""
        loss = self.loss
        of_pos, of_neg = loss.class_factors() if loss.family.log_loss else (2.0 / loss.A, 2.0 / loss.A)
        a_pos, a_neg = of_pos * self.a_pos, of_neg * self.a_neg
        u, v = np.minimum(self.u, a_pos), np.minimum(self.v, a_neg)
        if loss.family.log_loss:
            d = sum(self.sums(a_pos * _entropy(u / a_pos), a_neg * _entropy(v / a_neg)))
        elif loss.family.has_threshold:
            d = 0.5 * sum(self.sums(u, v))
        else:
            u, v, total = _balanced(u, v, self.comm)
            d = loss.A / (2.0 * loss.A_pos) * total
        return self.proved(d, u, v)

    def pairs(self, alpha: Floats | None) -> Proved:
        """Return the plane for ROCArea or, with an alpha of each local row, for pauc. **Collective.**"""
        loss = self.loss
        caps_u, caps_v = self.a_pos / loss.A_pos, self.a_neg / loss.A_neg
        if loss.family.name == "pauc":
            counted = np.zeros(len(self.v)) if alpha is None else np.clip(np.nan_to_num(alpha[self.negative]), 0, 1)
            caps_v = self.a_neg / loss.K * counted
            caps_v /= max(1.0, self.sums(caps_v)[0])
        u, v, total = _possible(self.u, caps_u, self.v, caps_v, self.comm)
        return self.proved(total, u, v)

    def pairwise_square(self) -> Proved:
        """Return the plane for normal-auc. **Collective.**"""
        p_pos, p_neg = self.a_pos / self.loss.A_pos, self.a_neg / self.loss.A_neg
        t, other = self.sums(self.u, self.v)
        v = self.v + p_neg * (t - other)
        squares = sum(self.sums(p_pos * (self.u / p_pos - t) ** 2, p_neg * (v / p_neg - t) ** 2))
        # Nothing bounds these coefficients, and d errs by shares of their squares.
        size = max(2.0, sum(self.sums(np.abs(self.u), np.abs(v))))
        d = t - 0.5 * t * t - 0.5 * squares - EPS * ADDITIONS * size * size
        return self.proved(d, self.u, v)._replace(size=size)

    def at_k(self) -> Proved:
        """Return the plane for precision and recall at K, of labelings of weight tau. **Collective.**"""
        loss, u, v = self.loss, self.loss.n / 2.0 * self.u, self.loss.n / 2.0 * self.v
        # 1) How much of each row they get wrong: at most tau, and sum v - sum u = tau (K - n+).
        missed, called = self.sums(u, v)
        largest = max(float(np.max(side, initial=0.0)) for side in (u, v))
        largest = float(self.comm.maximum(np.array([largest]))[0])
        few = loss.calls_positive - loss.n_pos
        tau = min(max((called - missed) / few if few else 1.0, largest), 1.0)
        u, v = np.minimum(u, tau), np.minimum(v, tau)
        missed, called = self.sums(u, v)
        # 2) One side is reduced, so that the equation holds.
        of_u, of_v = min(missed, called - tau * few), min(called, missed + tau * few)
        if min(of_u, of_v) < 0:
            return self.proved(0.0, 0.0 * u, 0.0 * v)
        u = u * (of_u / missed if missed > 0 else 0.0)
        v = v * (of_v / called if called > 0 else 0.0)
        d = tau + (of_u - tau * loss.n_pos) / loss.denominator
        # 3) What p lacks in the equation by rounding counts in d, divided by the denominator, which may be 1.
        rounding = EPS * (PAIRWISE + 4 * self.comm.size) * (missed + called + tau * (abs(few) + loss.n_pos))
        d -= rounding / loss.denominator
        return self.proved(d, u * (2.0 / loss.n), v * (2.0 / loss.n))

    def labelings(self, labelings: Floats | None) -> Proved:
        """Return the plane for F-beta: the root sorts the rows. **Collective.**"""
        loss, scale = self.loss, self.loss.n / 2.0
        table = np.nan_to_num(np.zeros((1, 3)) if labelings is None else labelings)
        weight = np.clip(table[:, 0], 0.0, 1.0)
        weight /= max(1.0, math.fsum(weight))
        missed = np.clip(np.rint(table[:, 1]), 0, loss.n_pos)
        called = np.clip(np.rint(table[:, 2]), 0, loss.n_neg)
        shares, lost = np.ones(2), np.zeros(2)
        for side, (amounts, counts) in enumerate(((self.u, missed), (self.v, called))):
            whole = self.comm.gather_rows(scale * amounts)
            if whole is not None:
                needed = np.cumsum(np.sort(whole)[::-1], dtype=np.longdouble)
                places = np.arange(1.0, len(whole) + 1)
                possible = sum(a * np.minimum(count, places) for a, count in zip(weight, counts, strict=True))
                short = needed > possible
                shares[side] = np.min(possible[short] / needed[short], initial=1.0)
                lost[side] = max(0.0, float(weight @ counts) - shares[side] * needed[-1])
        self.comm.broadcast(shares)
        self.comm.broadcast(lost)
        # No labeling has a smaller Delta by more than this for each row that it gets right instead of wrong.
        steepest = (1 + loss.beta2) / (loss.beta2 * loss.n_pos)
        deltas = (loss.beta2 * missed + called) / (loss.beta2 * loss.n_pos + loss.n_pos - missed + called)
        # The sums are right but for this share, and each side may lack so much more.
        inexact = 4 * (EPS * (len(weight) + 16) + EPS_LONG * loss.n)
        d = float(weight @ deltas) - steepest * float(np.sum(lost) + inexact * (weight @ (missed + called)))
        return self.proved(d, shares[0] * self.u, shares[1] * self.v)


def _entropy(q: Floats) -> Floats:
    """Return -q log q - (1 - q) log(1 - q), which is 0 at both ends."""
    rest = 1.0 - q
    with np.errstate(divide="ignore", invalid="ignore"):
        return -(np.where(q > 0, q * np.log(q), 0.0) + np.where(rest > 0, rest * np.log1p(-q), 0.0))


def _balanced(u: Floats, v: Floats, comm: Communicator) -> tuple[Floats, Floats, float]:
    """Return u and v with the larger one reduced to the sum of the smaller one, and this sum. **Collective.**"""
    of_u, of_v = comm.sum(np.array([np.sum(u), np.sum(v)])).tolist()
    least = min(of_u, of_v)
    return (u * (least / of_u), v * (least / of_v), least) if least > 0 else (0.0 * u, 0.0 * v, 0.0)


def _possible(u: Floats, caps_u: Floats, v: Floats, caps_v: Floats, comm: Communicator) -> tuple[Floats, Floats, float]:
    """Return u and v, reduced to row and column sums of entries up to caps_i caps_j, and their sum. **Collective.**"""
    u, v, total = _balanced(np.minimum(u, caps_u), np.where(caps_v > 0, np.minimum(v, caps_v), 0.0), comm)
    (u_few, caps_u_few), (v_few, caps_v_few) = _few_rows(u, caps_u, comm), _few_rows(v, caps_v, comm)
    share = share_of_pairs(u_few, caps_u_few, v_few, caps_v_few, fine=True)
    return share * u, share * v, share * total


def _few_rows(amounts: Floats, caps: Floats, comm: Communicator) -> tuple[Floats, Floats]:
    """Return few rows with the same sums that stand for those of all ranks, and are no less unequal. **Collective.**"""
    amounts, caps = amounts[caps > 0], caps[caps > 0]
    ratio = amounts / caps
    top = float(comm.maximum(np.array([np.max(ratio, initial=0.0)]))[0])
    place = np.minimum((ratio * (CELLS / top if top > 0 else 0.0)).astype(np.intp), CELLS - 1)
    ends, sums = np.full((2, CELLS), -np.inf), np.zeros((2, CELLS))
    np.maximum.at(ends[0], place, ratio)
    np.maximum.at(ends[1], place, -ratio)
    for start in range(0, len(place), BLOCK):
        rows = slice(start, start + BLOCK)
        sums += [np.bincount(place[rows], each[rows], CELLS) for each in (caps, amounts)]
    caps, amounts = comm.sum(sums.ravel()).reshape(2, CELLS)
    ends = comm.maximum(ends.ravel()).reshape(2, CELLS)
    used = np.flatnonzero(caps)
    caps, amounts = caps[used], amounts[used]
    high, low = ends[0, used], -ends[1, used]
    width = high - low
    at_high = np.where(width > 0, np.clip((amounts - low * caps) / np.where(width > 0, width, 1.0), 0.0, caps), caps)
    of_high = np.minimum(high * at_high, amounts)
    return np.concatenate([of_high, amounts - of_high]), np.concatenate([at_high, caps - at_high])


def _within_groups(loss: Any, c: Floats) -> Proved:
    """Return the plane for ROCArea within groups. **Collective**; some 0.1 ms for each small group."""
    if loss.only is not None:
        return dual_bound(loss.only, c)
    whole, d, alone = loss.groups, 0.0, Communicator()
    extended, reduced = whole.extend(c), np.zeros(whole.extended)
    # 1) Each rank's small groups, in which rows without a partner keep a c of 0.
    a = np.ones(len(extended)) if whole.weights is None else whole.weights
    for g, scale in enumerate(loss.scale):
        P, N = (whole.rows[whole.edges[k] : whole.edges[k + 1]] for k in (2 * g, 2 * g + 1))
        caps_u, caps_v = a[P] / whole.positive[g], a[N] / whole.negative[g]
        omega = scale * whole.positive[g] * whole.negative[g]
        u, v = np.minimum(-extended[P] / omega, caps_u), np.minimum(extended[N] / omega, caps_v)
        u, v, total = _balanced(u, v, alone)
        omega *= share_of_pairs(u, caps_u, v, caps_v, fine=True)
        reduced[P], reduced[N], d = -omega * u, omega * v, d + omega * total
    d, reduced = float(loss.comm.sum(np.array([d]))[0]), whole.bring_back(reduced)
    # 2) The large groups, on which all ranks work together.
    for rows, omega, risk in loss.large:
        of_group = dual_bound(risk, c[rows] / omega)
        reduced[rows], d = omega * of_group.c, d + omega * of_group.d
    return Proved(d, reduced)


def share_of_pairs(u: Floats, caps: Floats, v: Floats, caps_v: Floats, fine: bool = False) -> float:
    """Return the largest share <= 1 for which share u_i = sum_j x_ij and share v_j = sum_i x_ij are possible.

    Each x_ij is between 0 and caps_i caps_j. u and v have the same sum, and both caps the sum 1, or those of v at most
    1; a cap of 0 means u = 0. The result may be smaller by 2^-20, if `fine` by 2^-40 where it is near 1. O(n log n).
    """
    u, caps = u[caps > 0], caps[caps > 0]
    v, caps_v = v[caps_v > 0], caps_v[caps_v > 0]
    order, others = np.argsort(-u / caps), np.argsort(v / caps_v)
    kind: Any = np.longdouble if fine else np.float64
    # Of the rows S, those of largest u_i / caps_i, and of the columns on both sides of a slope:
    level, needed = np.cumsum(caps[order], dtype=kind), np.cumsum(u[order], dtype=kind)
    slopes, low = (v / caps_v)[others], np.cumsum(np.append(0.0, v[others]), dtype=kind)
    rest = np.cumsum(np.append(0.0, caps_v[others][::-1]), dtype=kind)[::-1]
    rounding = 1 + (EPS_LONG * (len(u) + len(v)) + EPS * ADDITIONS / 4 if fine else EPS * (len(u) + len(v)))

    def possible(share: float) -> bool:
        at = np.searchsorted(slopes, level / share)
        return bool(np.all(share * needed <= (share * low[at] + level * rest[at]) * rounding))

    if possible(1.0):
        return 1.0
    least, most = (1.0 - NEAR if fine and possible(1.0 - NEAR) else 0.0), 1.0
    for _ in range(20):
        middle = 0.5 * (least + most)
        least, most = (middle, most) if possible(middle) else (least, middle)
    return least
