"""Check the certificate of a model trained by distsms, without distsms: NumPy and h5py are all that this program needs.

    verify_certificate.py MODEL CERTIFICATE ROWS    (the training rows in order: a folder of shards, .csv or svmlight)
With the scores s_i = <w, x_i> (a constant feature is one more column), labels y_i and row weights a_i, the objective is
    J(w) = lambda/2 ||w||^2 + l1 ||w||_1 + R(w),   where R, a convex function of s, is the risk of the measure.
The certificate has a number c_i for each row. Whatever they are, four steps prove a lower bound D on all J(v):
 1. `plane` reduces c until it knows a d with R(s) >= <c, s> + d for all scores s.
 2. So R(v) >= <r, v> + d for all v, with r = X'c.
 3. min_v J(v) >= D = min_v [ lambda/2 ||v||^2 + l1 ||v||_1 + <r, v> ] + d; each v_j stands alone, and so
    D = d - sum_j max(|r_j| - l1, 0)^2 / (2 lambda).
 4. `risk` computes the J of the model. So no J(v) is smaller than that by more than the gap, J - D.
P and N are the rows with y = +1 and -1, A+ and A- their weights, A = A+ + A-, and u_i = -c_i on P, v_j = c_j on N.
--exact (small data): in rational numbers; else D is less by what rounding may have added. --no-checksums: without what
only tells other files. --weight, --group: columns of a .csv; of svmlight a file of weights, and groups are qid:GROUP.
"""

import argparse
import json
import pathlib
from decimal import Decimal, getcontext
from fractions import Fraction
from hashlib import sha256

import h5py
import numpy as np

EPS = float(np.finfo(np.longdouble).eps)
getcontext().prec, TINY = 60, Fraction(1, 10**50)  # far above the errors of logarithms with 60 digits
PAIRS, OTHERS = ("rocarea", "gauc", "pauc"), ("prbep", "error-rate", "logistic", "logistic-balanced")


def plain(label):
    text = str(label)  # numbers are compared as numbers
    return float(text) if text.lstrip("+-").replace(".", "", 1).isdigit() else text


def read(path, info, table, args):
    """Return labels, the rows, columns and values of entries, weights and groups (or None) of shards, CSV, svmlight."""
    signs = {plain(v): s for s in (1, -1) for v in np.ravel(np.array(info["label_map"][f"{s:+d}"], object))}
    if path.is_dir():  # manifest.json, and HDF5 files with y, X (CSR or dense), perhaps weights and groups
        parts = []
        for shard in json.loads((path / "manifest.json").read_text())["shards"]:
            with h5py.File(path / shard["file"]) as file:
                if "codes" in file:
                    raise SystemExit(f"refused: {path}: has coded columns, which `distsms verify` reads")
                y, X, dense = file["y"][:], file["X"], isinstance(file["X"], h5py.Dataset)
                lengths = [] if dense else np.diff(X["indptr"][:])
                row, col = np.nonzero(X[:]) if dense else (np.repeat(np.arange(len(y)), lengths), X["indices"][:])
                val = X[:][row, col] if dense else X["data"][:] if "data" in X else np.ones(len(col))
                more = [file[name][:] if name in file else None for name in ("weights", "groups")]
            parts.append((y, row + sum(len(part[0]) for part in parts), col, val, *more))
        return [None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True)]
    if path.suffix == ".csv":  # a header, and numbers; the model says which columns count, and what is subtracted
        header, *lines = (line.split(",") for line in path.read_text().splitlines())
        columns, cells = table.get("columns", []), dict(zip(header, zip(*lines, strict=True), strict=True))
        if not columns or any(column["kind"] != "number" or column["missing"] for column in columns):
            raise SystemExit(f"refused: {path}: only columns of numbers are read from CSV; give the shards")
        X = np.array([cells[column["name"]] for column in columns]).T.astype(float)
        X -= [column["fill"] if column.get("centred") else 0.0 for column in columns]
        more = [list(map(plain, cells[name])) if name else None for name in (args.weight, args.group)]
        return [signs[plain(label)] for label in cells[table["label"]]], *np.nonzero(X), X[X != 0], *more
    y, entries, groups = [], [], []  # lines "LABEL [qid:GROUP] COLUMN:VALUE ..."
    for words in (line.split("#")[0].split() for line in path.read_text().splitlines()):
        pairs = [word.split(":") for word in words[1:]]
        entries += [(len(y), int(k) - (not info["zero_based"]), float(value)) for k, value in pairs if k != "qid"]
        groups += [value for k, value in pairs if k == "qid"]
        y += [signs[plain(words[0])]] if words else []
    return y, *zip(*entries, strict=True), np.loadtxt(args.weight, ndmin=1) if args.weight else None, groups or None


class Problem:
    """The measure, and the classes and weights of the rows; numbers are rational (exact) or long doubles."""

    def __init__(self, measure, y, weights, groups=None, exact=False):
        (self.family, _, parameter), self.exact = measure.partition("@"), exact
        if type(self) is Problem and self.family not in PAIRS + OTHERS:
            raise SystemExit(f"refused: {measure} is for verify_labelings.py (F-beta, at K), or for `distsms verify`")
        self.P, self.N = (np.flatnonzero((np.asarray(y) * sign > 0) & (weights > 0)) for sign in (1, -1))
        self.a = self.numbers(weights)
        self.a_pos, self.a_neg = self.a[self.P], self.a[self.N]
        self.A_pos, self.A_neg = self.a_pos.sum(), self.a_neg.sum()
        self.A, self.zero, self.one = self.A_pos + self.A_neg, 0 * self.A_pos, 0 * self.A_pos + 1
        if self.family.startswith("logistic"):  # the a_i of the loss add up to 1; if balanced, to 1/2 in each class
            A = (2 * self.A_pos, 2 * self.A_neg) if self.family == "logistic-balanced" else (self.A, self.A)
            self.a_pos, self.a_neg = self.a_pos / A[0], self.a_neg / A[1]
        # Pairs: for each group the rows of both classes, the weight omega of their pairs, and K = beta A-.
        self.parts, share = [], self.numbers([parameter if self.family == "pauc" else 1])[0]
        key = np.unique(groups, return_inverse=True)[1] if self.family == "gauc" else np.zeros(len(y), int)
        for P, N in ((self.P[key[self.P] == k], self.N[key[self.N] == k]) for k in range(key.max() + 1)):
            m = 1 if parameter == "each" else self.a[P].sum() * self.a[N].sum()
            self.parts += [(P, N, m * self.one, share * self.a[N].sum())] if len(P) and len(N) else []
        m = sum(m for _, _, m, _ in self.parts)
        self.parts = [(P, N, omega / m, K) for P, N, omega, K in self.parts]

    def numbers(self, values):
        values = np.ravel(np.asarray(values, float))
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
    a, t = np.append(p.a_pos, p.a_neg), np.append(-s_pos, s_neg)
    if p.family == "error-rate":  # 2/A sum_i a_i max(0, 1/2 - y_i s_i)
        return 2 / p.A * (a * np.maximum(p.one / 2 + t, p.zero)).sum()
    if p.family.startswith("logistic"):  # sum_i a_i ln(1 + exp(-y_i s_i)), in doubles even if all else is exact
        return p.numbers([a.astype(float) @ np.logaddexp(0, t.astype(float))])[0]
    if p.family == "prbep":  # min over tau of 2/A [ sum_P a_i max(0, tau - s_i) + sum_N a_j max(0, b_j - tau) ],
        b = s_neg + p.A / (2 * p.A_pos)  # at one of the kinks s_i and b_j
        tau = np.concatenate([s_pos, b])
        return 2 / p.A * (hinges(s_pos, p.a_pos, tau) + hinges(-b, p.a_neg, -tau)).min()
    for P, N, omega, K in p.parts:  # omega / (A+ K) sum of a_i a_j max(0, 1 - s_i + s_j), j in the K highest of N
        order = N[np.argsort(-s[N], kind="stable")]
        a = p.a[order]
        counted = np.minimum(a, np.maximum(K - np.cumsum(a) + a, p.zero))
        total += omega * (counted * hinges(s[P] - 1, p.a[P], s[order])).sum() / (p.a[P].sum() * K)
    return total


def plane(p, c, alpha=None):
    """Step 1: return (c, d) with R(s) >= <c, s> + d for all s, where c is the given one but for a little. R is the
    maximum of <c, s> + d over a convex set of (c, d), which has (0, 0). Each branch says which, and finds one."""
    u, v, out, d = -c[p.P], c[p.N], 0 * c, p.zero
    if not ((u >= 0).all() and (v >= 0).all() and np.isfinite(c.astype(float)).all()):
        raise SystemExit("refused: a coefficient is not finite, or has the wrong sign for the label of its row")
    if p.family in ("error-rate", "prbep"):  # u_i <= 2 a_i / A, v_j <= 2 a_j / A; for PRBEP sum u = sum v, too
        u, v = np.minimum(u, 2 * p.a_pos / p.A), np.minimum(v, 2 * p.a_neg / p.A)
        u, v = balanced(u, v) if p.family == "prbep" else (u, v)
        d = p.A / (2 * p.A_pos) * u.sum() if p.family == "prbep" else (u.sum() + v.sum()) / 2
    elif p.family not in PAIRS:  # tangents of the logistic loss: u_i = a_i q_i, 0 <= q_i <= 1, d = sum_i a_i H(q_i)
        u, v = np.minimum(u, p.a_pos), np.minimum(v, p.a_neg)
        for a, q in ((p.a_pos, u / p.a_pos), (p.a_neg, v / p.a_neg)):  # H, the entropy: -q ln q - (1 - q) ln(1 - q)
            d -= sum(((a * x)[x > 0] * p.log(x[x > 0])).sum() for x in (q, 1 - q))
    out[p.P], out[p.N] = (p.zero, p.zero) if p.family in PAIRS else (-u, v)  # groups of one class have no pairs
    for P, N, omega, K in p.parts if p.family in PAIRS else ():
        # u, v are sums of the rows, columns of a matrix x with 0 <= x_ij <= omega a_i a_j alpha_j / (A+ K); d = sum u
        cap_u, cap_v = p.a[P] / p.a[P].sum(), p.a[N] / K
        if p.family == "pauc":  # 0 <= alpha <= 1 (NaN is 0), sum_j a_j alpha_j <= K; else alpha = 1, K = A-
            cap_v = cap_v * np.fmin(np.fmax(alpha[N], p.zero), p.one)
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
    """A theta <= 1, nearly the largest, for which theta u, theta v are sums of the rows and columns of a matrix x with
    0 <= x_ij <= cap_i cap_j. By Gale and Ryser there is such an x if, for the rows of the k largest u/cap, each k,
        theta sum of u  <=  sum_j min(theta v_j, cap_j times their sum of caps)."""
    v, cap_v = v[cap_v > 0], cap_v[cap_v > 0]
    order, other = np.argsort(-u / cap_u, kind="stable"), np.argsort(v / cap_v, kind="stable")
    needed, T, slope = np.cumsum(u[order]), np.cumsum(cap_u[order]), (v / cap_v)[other]
    low = np.cumsum(np.append(p.zero, v[other]))  # of the columns where theta v_j is smaller; caps of the others:
    rest = np.append(np.cumsum(cap_v[other][::-1])[::-1], p.zero)
    least, most, theta, lenient = p.zero, p.one, p.one, 0 if p.exact else 4 * (len(u) + len(v)) * EPS
    for _ in range(50):
        k = np.searchsorted(slope, T / theta)
        fits = (theta * needed <= theta * low[k] + T * rest[k] + lenient).all()
        least, most = (theta, most) if fits else (least, theta)
        theta = (least + most) / 2
    return least


def sums(place, terms, n):
    total = np.zeros(n, terms.dtype)
    np.add.at(total, place, terms)
    return total


def bound(p, entries, columns, c, alpha, lam, l1, plane=plane):
    """Steps 1 to 3: D, less what rounding may have added. The entries are arrays of rows, columns and values."""
    (row, col, val), (c, d) = entries, plane(p, c, alpha)
    excess, slack = np.maximum(abs(sums(col, val * c[row], columns)) - l1, 0), 0
    if not p.exact:  # n terms' sum errs by n EPS times the sum of their sizes; sum |c_i| <= 2; d errs by a share of d
        slack = 8 * (len(c) + 16) * EPS
        excess = excess + 2 * slack * np.max(abs(val), initial=0)
    return d - slack * (1 + d) - (excess * excess).sum() / (2 * lam) * (1 + slack)


def main(words=None, kind=Problem, plane=plane, risk=risk):
    """Read the files, refuse those that do not belong together, and print J, D and the gap; return D and J."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "certificate", "rows", "--weight", "--group", "--exact", "--no-checksums"):
        parser.add_argument(name, **({"action": "store_true"} if name in ("--exact", "--no-checksums") else {}))
    args = parser.parse_args(words)
    with h5py.File(args.model) as file:
        w, info = file["w"][:], json.loads(file.attrs["info"])
        table = json.loads(file["table"][:].tobytes()) if "table" in file else {}
        scale = file["scale"][:] if "scale" in file else np.ones(len(w))
    with h5py.File(args.certificate) as file:
        text, complete, c = file.attrs["info"], file.attrs["complete"].decode(), file["c"][:]
        of, alpha = json.loads(text), next((file[name][:] for name in ("alpha", "labelings") if name in file), c[:0])
    here = {"l1": 0.0, "constant": 0.0, "normalize": "none", **info, "p": len(w)}
    for name in ("measure", "lambda", "l1", "constant", "normalize", "p"):
        if of[name] != here[name]:
            raise SystemExit(f"refused: {name} is {of[name]} in the certificate, {here[name]} in the model")
    if not (0 < of["lambda"] < np.inf and 0 <= of["l1"] < np.inf and of["dtype"] in ("float32", "float64")):
        raise SystemExit("refused: the certificate is of no such problem")
    y, row, col, val, weights, groups = map(np.array, read(pathlib.Path(args.rows), info, table, args))
    n, columns, a = len(y), len(w), np.ones(len(y)) if weights.ndim == 0 else weights.astype(float)
    if not (n,) == c.shape == (of["n"],) or of["weights"] == (weights.ndim == 0) or max(col) >= columns or min(col) < 0:
        raise SystemExit(f"refused: {args.rows}: {n} rows, columns {min(col)} to {max(col)}: not the certificate's")
    p = kind(info["measure"], y, a, groups, args.exact)
    val = val.astype(of["dtype"]).astype(float)
    val = val / (np.sqrt(np.bincount(row, val * val, n))[row] if here["normalize"] == "l2" else 1)
    # sum_i frac(i (sqrt 5 - 1) / 2) (<h, x_i> + a_i y_i / mean a), i from 0 on, h_j = frac(j sqrt 2), tells other rows.
    terms = np.bincount(row, val * (np.arange(1.0, columns + 1) * 2**0.5 % 1)[col], n) + a * y * (n / a.sum())
    number, size = (np.arange(float(n)) * ((5**0.5 - 1) / 2) % 1) @ terms, abs(terms).sum() + n
    of_w, of_c = np.append(w, info["bias"]).astype("<f8").tobytes(), text.encode() + c.tobytes() + alpha.tobytes()
    if not args.no_checksums and (sha256(of_w).hexdigest() != of["model"] or sha256(of_c).hexdigest() != complete):
        raise SystemExit("refused: the certificate is of another model, or was changed")
    if not args.no_checksums and not abs(number - of["rows"]) <= 1e-11 * size:
        raise SystemExit("refused: the rows are others than the certificate's, or in another order")
    val, w = val * scale[col], w / scale  # training saw the columns multiplied by `scale`
    if of["constant"]:
        row, col = np.append(row, np.arange(n)), np.append(col, np.full(n, columns))
        val, w = np.append(val, np.full(n, of["constant"])), np.append(w, info["bias"] / of["constant"])
    w, val, c, alpha, (lam, l1) = map(p.numbers, (w, val, c, alpha, (of["lambda"], of["l1"])))
    D = bound(p, (row, col, val), len(w), c, alpha, lam, l1, plane)
    J = lam / 2 * (w * w).sum() + l1 * abs(w).sum() + risk(p, p.numbers(sums(row, val * w[col], n)))
    print(f"J of the model {float(J):.10g}, lower bound D {float(D):.10g}, gap J - D {float(J - D):.4g}")
    same, says = abs((of["J"] or 0) - J) <= 1e-6 * (1 + J) and of["bound"] <= D + 1e-5, f"{of['J']} and {of['bound']}"
    print("verified: the certificate says so, too" if same else f"beware: the certificate says that J and D are {says}")
    return D, J


if __name__ == "__main__":
    try:
        main()
    except (OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise SystemExit(f"refused: {error!r}; the files are a model, its certificate, and the training rows") from None
