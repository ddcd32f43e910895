#!/usr/bin/env python3
"""Check the certificate of a model trained by distsms, without distsms: NumPy and h5py are all that this program needs.

With the scores s_i = <w, x_i> (a constant feature is one more column), labels y_i and row weights a_i, the objective is
    J(w) = lambda/2 ||w||^2 + l1 ||w||_1 + R(w),   where R, a convex function of s, is the risk of the measure.
The certificate has a number c_i for each row. Whatever these are, four steps prove a lower bound D on all J(v):

 1. `plane` reduces c until it knows a d with R(s) >= <c, s> + d for all scores s.
 2. So R(v) >= <r, v> + d for all v, with r = X'c.
 3. min_v J(v) >= min_v [ lambda/2 ||v||^2 + l1 ||v||_1 + <r, v> ] + d = d - sum_j max(|r_j| - l1, 0)^2 / (2 lambda) = D,
    since each v_j stands alone: the minimum is at v_j = -sign(r_j) max(|r_j| - l1, 0) / lambda.
 4. `risk` computes the J of the model. So no J(v) is smaller than that by more than the gap, J - D.

P and N are the rows with y = +1 and -1, n+, n-, A+, A- their numbers and weights, n and A the sums of both; u_i = -c_i on P,
v_j = c_j on N. --exact computes in rational numbers; else what rounding may have added is subtracted from D.
"""

import argparse
import csv
import hashlib
import json
import pathlib
from decimal import Decimal, getcontext
from fractions import Fraction

import h5py
import numpy as np

EPS, EPS_LONG = float(np.finfo(float).eps), float(np.finfo(np.longdouble).eps)
getcontext().prec = 60
TINY = Fraction(1, 10**50)  # far above the errors of logarithms with 60 digits
PAIRS = ("rocarea", "gauc", "pauc")


class Refused(Exception):
    """The files do not belong together, or prove nothing."""


def read(path, info, table, args):
    """Return labels, rows, columns and values of the entries, weights and groups (None: none) of shards, CSV or svmlight."""
    signs = {
        plain(label): int(f"{s}1")
        for s in "+-"
        for label in np.atleast_1d(np.array(info["label_map"][f"{s}1"], object))
    }
    if path.is_dir():  # manifest.json, and HDF5 files with y, X (CSR or dense), perhaps weights and groups
        parts, n = [], 0
        for shard in json.loads((path / "manifest.json").read_text())["shards"]:
            with h5py.File(path / shard["file"]) as file:
                if "codes" in file:
                    raise Refused(f"{path}: has coded columns, which `distsms verify` reads")
                y, X = file["y"][:], file["X"]
                if isinstance(X, h5py.Dataset):
                    row, col, val = *np.nonzero(X[:]), X[:][X[:] != 0]
                else:
                    row, col = np.repeat(np.arange(len(y)), np.diff(X["indptr"][:])), X["indices"][:]
                    val = X["data"][:] if "data" in X else np.ones(len(col))
                more = [file[name][:] if name in file else None for name in ("weights", "groups")]
                parts.append((y, row + n, col, val, *more))
                n += len(y)
        return [None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True)]
    if path.suffix == ".csv":  # a header, and numbers; the model says which columns count, and what is subtracted
        header, *lines = csv.reader(open(path, newline=""))
        columns, place = table.get("columns", []), {name: k for k, name in enumerate(header)}
        if not columns or any(column["kind"] != "number" or column["missing"] for column in columns):
            raise Refused(f"{path}: only columns of numbers are read from CSV; give the shards")
        X = np.array([[float(line[place[column["name"]]]) for column in columns] for line in lines])
        X -= [column["fill"] if column.get("centred") else 0.0 for column in columns]
        more = [[plain(line[place[name]]) for line in lines] if name else None for name in (args.weight, args.group)]
        return [signs[plain(line[place[table["label"]]])] for line in lines], *np.nonzero(X), X[X != 0], *more
    y, entries, groups = [], [], []  # lines "LABEL [qid:GROUP] COLUMN:VALUE ..."; --weight FILE has a number for each
    for words in (line.split("#")[0].split() for line in open(path)):
        pairs = [word.split(":") for word in words[1:]]
        entries += [(len(y), int(k) - (not info["zero_based"]), float(value)) for k, value in pairs if k != "qid"]
        groups += [value for k, value in pairs if k == "qid"]
        y += [signs[plain(words[0])]] if words else []
    return y, *zip(*entries, strict=True), np.loadtxt(args.weight, ndmin=1) if args.weight else None, groups or None


def plain(label):
    """A label as a number, if it is one."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return str(label)


class Problem:
    """The measure, and the classes and weights of the rows; numbers are rational (exact) or long doubles."""

    def __init__(self, measure, y, weights=None, groups=None, exact=False):
        self.family, _, parameter = measure.partition("@")
        if self.family not in (*PAIRS, "prbep", "error-rate", "logistic", "logistic-balanced"):
            raise Refused(f"{measure}: only `distsms verify` checks this measure")
        self.exact, a = exact, np.ones(len(y)) if weights is None else np.asarray(weights, float)
        self.P, self.N = (np.flatnonzero((np.asarray(y) * sign > 0) & (a > 0)) for sign in (1, -1))
        self.a = self.numbers(a)
        self.a_pos, self.a_neg = self.a[self.P], self.a[self.N]
        self.A_pos, self.A_neg = self.a_pos.sum(), self.a_neg.sum()
        self.A, self.zero, self.one = self.A_pos + self.A_neg, 0 * self.A_pos, 0 * self.A_pos + 1
        if self.family == "logistic-balanced":  # the a_i of the loss add up to 1/2 in each class, else to 1
            self.a_pos, self.a_neg = self.a_pos / (2 * self.A_pos), self.a_neg / (2 * self.A_neg)
        elif self.family == "logistic":
            self.a_pos, self.a_neg = self.a_pos / self.A, self.a_neg / self.A
        # Pairs: the rows of both classes, the weight omega of these pairs, and the weight K of the negatives that count.
        K = self.numbers([parameter])[0] * self.A_neg if self.family == "pauc" else self.A_neg
        self.parts = [(self.P, self.N, self.one, K)]
        if self.family == "gauc":
            keys, of_row = np.unique(groups, return_inverse=True)
            both = [(self.P[of_row[self.P] == k], self.N[of_row[self.N] == k]) for k in range(len(keys))]
            both = [(P, N, self.a[P].sum(), self.a[N].sum()) for P, N in both if len(P) and len(N)]
            m = sum(A_pos * A_neg for _, _, A_pos, A_neg in both)
            alike = self.one / len(both) if parameter == "each" else None
            self.parts = [(P, N, alike or A_pos * A_neg / m, A_neg) for P, N, A_pos, A_neg in both]

    def numbers(self, values):
        values = np.asarray(values, float)
        return np.array([Fraction(x) for x in values.tolist()], object) if self.exact else values.astype(np.longdouble)

    def log(self, x):
        decimals = [Decimal(q.numerator).ln() - Decimal(q.denominator).ln() for q in x] if self.exact else ()
        return np.array([Fraction(q) + TINY for q in decimals], object) if self.exact else np.log(x)


def hinges(x, a, t):
    """sum_i a_i max(0, t - x_i) for each t."""
    order = np.argsort(x, kind="stable")
    T, S = (np.cumsum(np.append(0 * t[:1], terms[order])) for terms in (a, a * x))
    k = np.searchsorted(x[order], t)
    return t * T[k] - S[k]


def risk(p, s):
    """R at the scores s."""
    s_pos, s_neg, total = s[p.P], s[p.N], p.zero
    if p.family == "error-rate":  # 2/A sum_i a_i max(0, 1/2 - y_i s_i)
        sides = ((p.a_pos, p.one / 2 - s_pos), (p.a_neg, p.one / 2 + s_neg))
        return 2 / p.A * sum((a * np.maximum(t, p.zero)).sum() for a, t in sides)
    if p.family.startswith("logistic"):  # sum_i a_i ln(1 + exp(-y_i s_i)), in doubles even if all else is exact
        sides = [(a.astype(float), t.astype(float)) for a, t in ((p.a_pos, -s_pos), (p.a_neg, s_neg))]
        return p.numbers([sum(a @ np.logaddexp(0, t) for a, t in sides)])[0]
    if (
        p.family == "prbep"
    ):  # min over tau of 2/A [ sum_P a_i max(0, tau - s_i) + sum_N a_j max(0, s_j + A/(2 A+) - tau) ]
        s_neg = s_neg + p.A / (2 * p.A_pos)
        tau = np.concatenate([s_pos, s_neg])  # the minimum is at one of the kinks
        return 2 / p.A * (hinges(s_pos, p.a_pos, tau) + hinges(-s_neg, p.a_neg, -tau)).min()
    for P, N, omega, K in p.parts:  # omega / (A+ K) sum of a_i a_j max(0, 1 - s_i + s_j), j in the K highest of N
        order = N[np.argsort(-s[N], kind="stable")]
        a = p.a[order]
        counted = np.minimum(a, np.maximum(K - np.cumsum(a) + a, p.zero))
        total += omega * (counted * hinges(s[P] - 1, p.a[P], s[order])).sum() / (p.a[P].sum() * K)
    return total


def plane(p, c, alpha=None):
    """Step 1: return (c, d) with R(s) >= <c, s> + d for all s, where c is the given one but for a little.

    R is the maximum of <c, s> + d over a convex set of (c, d), which has (0, 0). Each branch says which, and finds one.
    """
    u, v, out, d = -c[p.P], c[p.N], 0 * c, p.zero
    if not ((u >= 0).all() and (v >= 0).all() and np.isfinite(c.astype(float)).all()):
        raise Refused("a coefficient is not finite, or has the wrong sign for the label of its row")
    if p.family in ("error-rate", "prbep"):  # u_i <= 2 a_i / A, v_j <= 2 a_j / A; for PRBEP sum u = sum v, too
        u, v = np.minimum(u, 2 * p.a_pos / p.A), np.minimum(v, 2 * p.a_neg / p.A)
        u, v = balanced(u, v) if p.family == "prbep" else (u, v)
        d = p.A / (2 * p.A_pos) * u.sum() if p.family == "prbep" else (u.sum() + v.sum()) / 2
    elif p.family not in PAIRS:  # tangents of the logistic loss: u_i = a_i q_i, 0 <= q_i <= 1, d = sum_i a_i H(q_i)
        u, v = np.minimum(u, p.a_pos), np.minimum(v, p.a_neg)
        for a, q in ((p.a_pos, u / p.a_pos), (p.a_neg, v / p.a_neg)):  # H, the entropy: -q ln q - (1 - q) ln(1 - q)
            d -= sum(((a * x)[x > 0] * p.log(x[x > 0])).sum() for x in (q, 1 - q))
    out[p.P], out[p.N] = -u, v
    for P, N, omega, K in p.parts if p.family in PAIRS else ():
        # u, v are sums of the rows, columns of a matrix x with 0 <= x_ij <= omega a_i a_j alpha_j / (A+ K); d = sum u
        cap_u, cap_v = p.a[P] / p.a[P].sum(), p.a[N] / K
        if p.family == "pauc":  # 0 <= alpha <= 1, sum_j a_j alpha_j <= K; for the others alpha = 1 and K = A-
            cap_v = cap_v * np.minimum(np.maximum(alpha[N], p.zero), p.one)
            cap_v = cap_v / max(p.one, cap_v.sum())
        u, v = balanced(np.minimum(-c[P] / omega, cap_u), np.minimum(c[N] / omega, cap_v))
        theta = omega * share_of_pairs(p, u, cap_u, v, cap_v)
        out[P], out[N], d = -theta * u, theta * v, d + theta * u.sum()
    return out, d


def balanced(u, v):
    """u and v, the one with the larger sum reduced to the sum of the other."""
    least = min(u.sum(), v.sum())
    return (u * (least / u.sum()), v * (least / v.sum())) if least > 0 else (0 * u, 0 * v)


def share_of_pairs(p, u, cap_u, v, cap_v):
    """A theta <= 1 (nearly the largest) for which theta u and theta v are sums of the rows and of the columns of a matrix
    x with 0 <= x_ij <= cap_i cap_j. By the theorem of Gale and Ryser there is one if, for the rows of the k largest u/cap,

        theta sum of u  <=  sum_j min(theta v_j, cap_j times their sum of caps),   whatever k.
    """
    v, cap_v = v[cap_v > 0], cap_v[cap_v > 0]
    order, other = np.argsort(-u / cap_u, kind="stable"), np.argsort(v / cap_v, kind="stable")
    needed, T, slope = np.cumsum(u[order]), np.cumsum(cap_u[order]), (v / cap_v)[other]
    low = np.cumsum(np.append(p.zero, v[other]))  # of the columns where theta v_j is smaller; caps of the others:
    rest = np.append(np.cumsum(cap_v[other][::-1])[::-1], p.zero)
    least, most, theta, lenient = p.zero, p.one, p.one, 0 if p.exact else 4 * (len(u) + len(v)) * EPS_LONG
    for _ in range(50):
        k = np.searchsorted(slope, T / theta)
        fits = (theta * needed <= theta * low[k] + T * rest[k] + lenient).all()
        least, most = (theta, most) if fits else (least, theta)
        theta = (least + most) / 2
    return least


def sums(place, terms, n):
    """The sums of the terms with the same place."""
    if terms.dtype != object:
        return np.bincount(place, terms.astype(float), n)
    total = np.full(n, Fraction(0), object)
    np.add.at(total, place, terms)
    return total


def bound(p, entries, columns, c, alpha, lam, l1):
    """Steps 1 to 3: D, less what rounding may have added. The entries are arrays of rows, columns and values."""
    row, col, val = entries
    c, d = plane(p, c, alpha)
    excess, slack = np.maximum(abs(sums(col, val * c[row], columns)) - l1, 0), 0
    if (
        not p.exact
    ):  # a sum of k terms errs by at most k EPS times the sum of their sizes; c by 16 EPS, or `slack` in all
        slack = 16 * EPS + 8 * len(c) * EPS_LONG
        terms = (np.bincount(col, minlength=columns) + 16) * sums(col, abs(val * c[row]), columns)
        excess = excess + EPS * terms + 2 * slack * np.max(abs(val), initial=0)
    return d - slack * (1 + d) - (excess * excess).sum() / (2 * lam) * (1 + slack)


def main(words=None):
    """Read the files, refuse those that do not belong together, and print J, D and the gap; return D and J."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("certificate")
    parser.add_argument(
        "rows", type=pathlib.Path, help="the training rows in their order: a folder of shards, .csv, svmlight"
    )
    parser.add_argument("--weight", help="of CSV the column of weights; of svmlight a file with a number in each line")
    parser.add_argument("--group", help="of CSV the column of groups")
    parser.add_argument("--exact", action="store_true", help="compute in rational numbers (slow: for small data)")
    parser.add_argument("--no-checksums", action="store_true", help="do not compare checksums and fingerprints")
    args = parser.parse_args(words)
    with h5py.File(args.model) as file:
        w, info = file["w"][:], json.loads(file.attrs["info"])
        table = json.loads(file["table"][:].tobytes()) if "table" in file else {}
        scale = file["scale"][:] if "scale" in file else np.ones(len(w))
    with h5py.File(args.certificate) as file:
        text, complete, c = file.attrs["info"], file.attrs["complete"].decode(), file["c"][:]
        of, alpha = json.loads(text), file["alpha"][:] if "alpha" in file else c[:0]
    for name, value in {"measure": info["measure"], "lambda": info["lambda"], "l1": 0.0, "constant": 0.0}.items():
        if of[name] != info.get(name, value):
            raise Refused(f"the certificate is for {name} {of[name]}, and the model for {info.get(name, value)}")
    y, row, col, val, weights, groups = map(np.array, read(args.rows, info, table, args))
    n, columns, a = len(y), len(w), np.ones(len(y)) if weights.ndim == 0 else weights.astype(float)
    if n != len(c) or of["weights"] == (weights.ndim == 0) or max(col) >= columns:
        raise Refused(
            f"{args.rows}: {n} rows and {max(col) + 1} columns; the certificate is for {len(c)} and {columns}"
        )
    val = val.astype(of["dtype"]).astype(float)
    if info.get("normalize") == "l2":
        val = val / np.sqrt(np.bincount(row, val * val, n))[row]
    # Rows in their order have a number: sum_i frac(i (sqrt 5 - 1) / 2) (<h, x_i> + a_i y_i / mean a), i from 0 on, with
    # h_j = frac(j sqrt 2), j from 1 on. It only tells other rows from those of the certificate; the proof does not need it.
    terms = np.bincount(row, val * (np.arange(1.0, columns + 1) * 2**0.5 % 1)[col], n) + a * y * (n / a.sum())
    number, size = (np.arange(float(n)) * ((5**0.5 - 1) / 2) % 1) @ terms, abs(terms).sum() + n
    for right, what in (
        (
            hashlib.sha256(np.append(w, info["bias"]).astype("<f8").tobytes()).hexdigest() == of["model"],
            "another model",
        ),
        (
            hashlib.sha256(text.encode() + c.tobytes() + alpha.tobytes()).hexdigest() == complete,
            "a changed certificate",
        ),
        (abs(number - of["rows"]) <= 1e-11 * size, "other rows, or in another order"),
    ):
        if not (right or args.no_checksums):
            raise Refused(f"these files do not belong together: {what}")
    val, w = val * scale[col], w / scale  # training saw the columns multiplied by `scale`
    if of["constant"]:
        row, col = np.append(row, np.arange(n)), np.append(col, np.full(n, columns))
        val, w = np.append(val, np.full(n, of["constant"])), np.append(w, info["bias"] / of["constant"])
    p = Problem(info["measure"], y, a, groups, args.exact)
    w, val, c, alpha, (lam, l1) = map(p.numbers, (w, val, c, alpha, (of["lambda"], of["l1"])))
    D = bound(p, (row, col, val), len(w), c, alpha, lam, l1)
    J = lam / 2 * (w * w).sum() + l1 * abs(w).sum() + risk(p, p.numbers(sums(row, val * w[col], n)))
    print(f"J of the model   {float(J):.10g}   (the model says {info['J']:.10g})")
    print(f"lower bound D    {float(D):.10g}   (the program that trained it says {of['lower_bound']:.10g})")
    print(f"gap J - D        {float(J - D):.4g}{', in rational numbers' if args.exact else ''}")
    return D, J


if __name__ == "__main__":
    try:
        main()
    except Refused as why:
        raise SystemExit(f"refused: {why}") from None
