"""PRBEP, the precision/recall break-even point (JMLR, equations (3) and (4), sections 3.1 and 4.1).

    R(w) = max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ],   Delta = b/n+ where b positives and b negatives swap

In units of the margins, with tau = -n theta+ / 2 (Theorem 7), nu = mu n / 2 and a = n / (2 n+):

    t_i = tau - s_i on P,  t_j = s_j + a - tau on N,  beta = clip(t / nu, 0, 1),  tau such that sum_P beta = sum_N beta
    R_mu = 2/n sum of the Huber hinges of t,    R = the least such sum over tau at nu = 0
    At nu = 0, beta = [t > 0], and the rows tied at tau share what keeps the sums equal.

    coefficients  c_i = -2/n beta_i on P,  c_j = 2/n beta_j on N,      d = 1/n+ sum_P beta.

Every term of R and R_mu is positive here, so nothing cancels however large the margins are.
"""

from __future__ import annotations

import numpy as np

from distsms.losses.contract import Floats, huber, ramp
from distsms.losses.gathering import GatheringLoss, Solution, root_of_ramps


class Prbep(GatheringLoss):
    """The PRBEP risk; see the module's docstring."""

    name = "prbep"
    nonnegative = True

    def smoothing_cost(self) -> float:
        """sum_P beta = sum_N beta <= min(n+, n-), so the prox 1/2 ||beta||^2 is at most that, and mu = 2 nu / n."""
        return 2.0 * min(self.n_pos, self.n_neg) / self.n

    def at_zero(self) -> float:
        """Delta alone, with as many rows swapped as can be."""
        return min(self.n_pos, self.n_neg) / self.n_pos

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """D = n / 2, so nu = mu n / 2 = c_mu epsilon."""
        return c_mu * epsilon

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Algorithms 2 and 3 for tau; a selection for the exact R. O(n log n)."""
        shifted = negative + self.n / (2.0 * self.n_pos)  # t_j = shifted_j - tau
        # At nu = 0 the balance holds where n- of all kinks lie below or at tau.
        tau0 = np.partition(np.concatenate([positive, shifted]), self.n_neg - 1)[self.n_neg - 1]
        R = R_mu = np.sum(np.maximum(tau0 - positive, 0.0)) + np.sum(np.maximum(shifted - tau0, 0.0))
        if nu == 0:
            beta_pos, beta_neg = ramp(tau0 - positive, nu), ramp(shifted - tau0, nu)
            _settle(beta_pos, beta_neg, tau0 - positive, shifted - tau0, 0.0)
        else:
            tau, beta_pos, beta_neg = self._balance(positive, shifted, nu)
            R_mu = np.sum(huber(tau - positive, beta_pos, nu)) + np.sum(huber(shifted - tau, beta_neg, nu))
        scale = 2.0 / self.n
        d = float(np.sum(beta_pos)) / self.n_pos
        return Solution(float(R) * scale, float(R_mu) * scale, d, -scale * beta_pos, scale * beta_neg)

    def _balance(self, positive: Floats, shifted: Floats, nu: float) -> tuple[float, Floats, Floats]:
        """tau, beta on P and beta on N. A negative's 1 - beta_j is a ramp of tau with its head at shifted_j - nu."""

        def betas(tau: float) -> tuple[Floats, Floats, float]:
            pos, neg = ramp(tau - positive, nu), ramp(shifted - tau, nu)
            return pos, neg, float(np.sum(pos) - np.sum(neg))

        tau = root_of_ramps(np.sort(np.concatenate([positive, shifted - nu])), nu, float(self.n_neg))
        pos, neg, excess = betas(tau)
        for _ in range(3):  # Newton steps on the balance itself take away what the walk's long sums rounded
            slope = sum(np.count_nonzero((beta > 0) & (beta < 1)) for beta in (pos, neg))
            if excess == 0 or slope == 0:
                break
            polished = tau - excess * nu / slope
            trial = betas(polished)
            if abs(trial[2]) >= abs(excess):
                break
            tau, (pos, neg, excess) = polished, trial
        _settle(pos, neg, tau - positive, shifted - tau, nu + 8 * np.spacing(abs(tau)))
        return tau, pos, neg


def _settle(pos: Floats, neg: Floats, t_pos: Floats, t_neg: Floats, near: float) -> None:
    """Make sum pos = sum neg, in place: the plane is valid only if beta is feasible, whatever rounding did to tau.

    Only rows with |t| <= near change, those that a shift of tau within its rounding changes: J_mu hardly does. Where
    nu is below the resolution of the scores these are the rows tied at tau, and no tau would do.
    """
    excess = float(np.sum(pos) - np.sum(neg))
    falling, t_falling, rising, t_rising = (pos, t_pos, neg, t_neg) if excess > 0 else (neg, t_neg, pos, t_pos)
    room_down = np.where(np.abs(t_falling) <= near, falling, 0)
    room_up = np.where(np.abs(t_rising) <= near, 1 - rising, 0)
    room = float(np.sum(room_down) + np.sum(room_up))
    if room > 0:
        share = min(1.0, abs(excess) / room)
        falling -= share * room_down
        rising += share * room_up
    surplus = float(np.sum(falling) - np.sum(rising))
    if surplus > 0:  # not met in practice; a smaller beta is feasible, too
        falling *= np.sum(rising) / np.sum(falling)
