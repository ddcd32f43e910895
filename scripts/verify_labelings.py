#!/usr/bin/env python3
"""Check certificates for F-beta, precision@K and recall@K, as verify_certificate.py, which explains how, for others.

The risk of these measures is a maximum over labelings z of the rows, and y itself with the value 0. A labeling misses b
of the positive rows and calls c negative ones positive; D is K for precision and n+ for recall:

    R(s) = max(0, max over z of  Delta(b, c) + 2/n [ sum of s over the c false positives - that over the b missed ])
    Delta = (beta^2 b + c) / (beta^2 n+ + n+ - b + c) for F-beta; 1 - (n+ - b) / D, c = K - n+ + b, at K

A mixture of labelings of weights pi has c_i = -2/n p_i on P and 2/n f_j on N, where p_i and f_j say how much of a row
it gets wrong, and d = sum pi Delta.
"""

try:
    import verify_certificate as base
except ImportError:
    from scripts import verify_certificate as base
import numpy as np


class Labelings(base.Problem):
    def __init__(self, measure, y, weights, groups=None, exact=False):
        measure = measure if "@" in measure else f"f@{measure[1:]}"
        if measure.partition("@")[0] not in ("f", "precision", "recall"):
            raise SystemExit(f"refused: {measure} is for verify_certificate.py")
        if (weights != 1).any():
            raise SystemExit(f"refused: {measure} has no weights")
        super().__init__(measure, y, weights, groups, exact)
        self.n_pos, self.n_neg, self.n = len(self.P), len(self.N), len(self.P) + len(self.N)
        self.parameter = self.numbers([measure.partition("@")[2]])[0]  # beta or K

    def delta(self, b, c):
        if self.family == "f":
            beta2 = self.parameter**2
            return (beta2 * b + c) / (beta2 * self.n_pos + self.n_pos - b + c)
        return 1 - (self.n_pos - b) / (self.parameter if self.family == "precision" else self.n_pos * self.one)


def risk(p, s):
    """R: for each b the best c, with the b lowest scores of P and the c highest of N."""
    best, few = p.zero, int(p.parameter) - p.n_pos
    missed, called = (np.cumsum(np.append(p.zero, 2 * x / p.n)) for x in (np.sort(s[p.P]), np.sort(s[p.N])[::-1]))
    for b in range(p.n_pos + 1):
        c = np.arange(p.n_neg + 1) if p.family == "f" else np.arange(max(few + b, 0), min(few + b, p.n_neg) + 1)
        if len(c):
            best = max(best, (p.delta(b, p.numbers(c)) + called[c] - missed[b]).max())
    return best


def plane(p, c, labelings):
    """Return (c, d) with R(s) >= <c, s> + d for all s, where c is the given one but for a little."""
    P, F, out, eps = -p.n * c[p.P] / 2, p.n * c[p.N] / 2, 0 * c, 0 if p.exact else base.EPS
    if not ((P >= 0).all() and (F >= 0).all() and np.isfinite(c.astype(float)).all()):
        raise SystemExit("refused: a coefficient is not finite, or has the wrong sign for the label of its row")
    if p.family == "f":
        # The file has pi, b and c of the labelings. The p of such a mixture: the k largest add up to at most
        # sum pi min(b, k) for each k, and all to sum pi b. So p is scaled down by the worst ratio; what then lacks in
        # the sum are labelings with fewer errors, and an error less lowers Delta by at most (1 + beta^2) / (beta^2 n+).
        table = np.clip(np.nan_to_num(labelings.astype(float).reshape(-1, 3)), 0, [1, p.n_pos, p.n_neg])
        pi, b, f = (p.numbers(column) for column in (table[:, 0], np.rint(table[:, 1]), np.rint(table[:, 2])))
        pi, sides, beta2 = pi / max(p.one, pi.sum()), [], p.parameter**2
        d, steepest = (pi * p.delta(b, f)).sum(), (1 + beta2) / (beta2 * p.n_pos)
        for side, counts in ((P, b), (F, f)):
            needed, k = np.cumsum(np.sort(side)[::-1]), p.numbers(np.arange(1, len(side) + 1))
            possible = sum(weight * np.minimum(count, k) for weight, count in zip(pi, counts, strict=True))
            short = needed > possible
            theta = min([p.one, *(possible[short] / needed[short])])
            lacking = max(p.zero, (pi * counts).sum() - theta * needed[-1])
            d -= steepest * (lacking + 4 * (len(pi) + p.n + 16) * eps * (pi * counts).sum())  # sums of so many numbers
            sides.append(theta * side)
        P, F = sides
    else:
        # Labelings with K positive rows, of weight tau in all: p, f are at most tau, sum f - sum p = tau (K - n+).
        few = p.parameter - p.n_pos
        tau = min(max(p.one if few == 0 else (F.sum() - P.sum()) / few, P.max(), F.max()), p.one)
        P, F = np.minimum(P, tau), np.minimum(F, tau)
        inexact = 256 * eps * (P.sum() + F.sum() + tau * (abs(few) + p.n_pos))  # of pairwise sums, as NumPy adds
        missed, called = min(P.sum(), F.sum() - tau * few), min(F.sum(), P.sum() + tau * few)
        if min(missed, called) < 0:
            return out, p.zero
        P, F = (x * (least / x.sum() if least > 0 else 0) for x, least in ((P, missed), (F, called)))
        d = tau + (missed - tau * p.n_pos - inexact) / (p.parameter if p.family == "precision" else p.n_pos)
    out[p.P], out[p.N] = -2 * P / p.n, 2 * F / p.n
    return out, d


if __name__ == "__main__":
    base.main(kind=Labelings, plane=plane, risk=risk)
