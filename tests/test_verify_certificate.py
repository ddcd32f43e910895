"""The checker that knows nothing of distsms: what it reads, what it refuses, and that no certificate fools it."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.losses.dual_bound import ADDITIONS, dual_bound
from distsms.losses.registry import make_loss
from distsms.shards.from_arrays import write_data
from scripts import verify_certificate as checker
from scripts import verify_labelings as labelings
from tests.support.examples import EXAMPLES

pytestmark = pytest.mark.serial
SCRIPT = Path(checker.__file__)
LAM = 1e-2


def rows(n=60, p=5, seed=0):
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n, p)), 3)
    y = np.where(X[:, 0] + rng.normal(size=n) > 0.6, 1, -1)
    return X, y, rng.integers(0, 4, n).astype(float), rng.integers(0, 6, n)


def text_of(X, y, groups=None):
    """Return svmlight text, with columns from 1 on."""
    lines = []
    for k, (x, label) in enumerate(zip(X, y, strict=True)):
        qid = f" qid:{groups[k]}" if groups is not None else ""
        lines.append(f"{label}{qid} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(x.tolist()) if v))
    return "\n".join(lines) + "\n"


def trained(data, folder, measure="rocarea", **more):
    """Train by distsms, and return the words for the checker but for the rows, and what `distsms.verify` finds."""
    own = {"lam": LAM, "solver": "lbfgs", "epsilon": 1e-6, "check": False, "certificate": folder / "c.h5"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = distsms.train(data, measure=measure, **{**own, **more})
    distsms.save_model(folder / "m.h5", model)
    weight, group = (more.get(name) for name in ("weight", "group"))
    found = distsms.verify(model, data, certificate=folder / "c.h5", weight=weight, group=group)
    return [str(folder / "m.h5"), str(folder / "c.h5")], found


def require_same(words, found, tolerance=1e-7):
    D, J = checker.main(words)
    assert float(J) == pytest.approx(found.J, abs=1e-9)
    assert float(D) == pytest.approx(found.lower_bound, abs=tolerance)
    assert D <= J


@pytest.mark.parametrize(
    "measure, more",
    [
        ("rocarea", {}),
        ("rocarea", {"l1": 1e-2}),
        ("prbep", {}),
        ("pauc@0.3", {}),
        ("error-rate", {"bias": 2.0}),
        ("logistic", {}),
        ("logistic-balanced", {"bias": 0}),
        ("gauc@pairs", {"group": True}),
        ("gauc@each", {"group": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_agrees_with_the_package_on_shards(measure, more, weighted, tmp_path):
    X, y, weights, groups = rows()
    more = dict(more)
    write_data(tmp_path / "d", X, y, n_shards=2, groups=groups, **({"weights": weights} if weighted else {}))
    more.pop("group", None)
    words, found = trained(tmp_path / "d", tmp_path, measure, **more)
    require_same([*words, str(tmp_path / "d")], found)
    exact, J = checker.main([*words, str(tmp_path / "d"), "--exact"])
    assert isinstance(exact, Fraction) and float(exact) == pytest.approx(found.lower_bound, abs=1e-7)
    assert float(J) == pytest.approx(found.J, abs=1e-9)


@pytest.mark.parametrize("normalize", ["none", "standard", "l2"])
def test_it_reads_svmlight(normalize, tmp_path):
    X, y, weights, groups = rows()
    (tmp_path / "t.svm").write_text(text_of(X * [1, 10, 0.1, 1, 1], y, groups))
    np.savetxt(tmp_path / "w.txt", weights)
    own = {"normalize": normalize, "weight_file": str(tmp_path / "w.txt"), "group": "qid"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distsms.shard(tmp_path / "t.svm", tmp_path / "d", **own)
    words, found = trained(tmp_path / "d", tmp_path, "gauc@pairs")
    require_same([*words, str(tmp_path / "t.svm"), "--weight", str(tmp_path / "w.txt")], found)
    require_same([*words, str(tmp_path / "d")], found)


def test_it_reads_csv(tmp_path):
    X, y, weights, _ = rows()
    frame = pd.DataFrame(X + np.array([0, 50, 0, 0, 0]), columns=list("abcde")).assign(weight=weights)
    frame.insert(2, "label", np.where(y > 0, "yes", "no"))
    frame.to_csv(tmp_path / "t.csv", index=False)
    own = {"label": "label", "positive": "yes", "weight": "weight"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distsms.shard(tmp_path / "t.csv", tmp_path / "d", **own)
    words, found = trained(tmp_path / "d", tmp_path, "prbep", lam=LAM)
    require_same([*words, str(tmp_path / "t.csv"), "--weight", "weight"], found)


def test_it_needs_neither_distsms_nor_much_space(tmp_path):
    X, y, *_ = rows()
    write_data(tmp_path / "d", X, y)
    words, found = trained(tmp_path / "d", tmp_path)
    code = "import sys, runpy; sys.modules['distsms'] = sys.modules['scipy'] = None; sys.argv[0] = 'x'; "
    code += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, str(tmp_path / "d")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"lower bound D {found.lower_bound:.6f}"[:-1] in done.stdout
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= 250
    libraries = {line.split()[1].split(".")[0] for line in source.splitlines() if re.match("(import|from) ", line)}
    assert libraries - sys.stdlib_module_names == {"h5py", "numpy"}


def test_it_refuses_what_does_not_belong_together(tmp_path):
    X, y, *_ = rows()
    for name, order in (("d", np.arange(60)), ("exchanged", np.r_[1, 0, 2:60])):
        write_data(tmp_path / name, X[order], y[order])
    write_data(tmp_path / "other", X * 1.001, y)
    write_data(tmp_path / "fewer", X[1:], y[1:])
    words, found = trained(tmp_path / "d", tmp_path)
    require_same([*words, str(tmp_path / "d")], found)
    model = distsms.load_model(words[0])
    distsms.save_model(tmp_path / "w.h5", type(model)(model.w * (1 + 1e-15), model.info))
    distsms.save_model(tmp_path / "lambda.h5", type(model)(model.w, {**model.info, "lambda": 2 * LAM}))
    with h5py.File(words[1]) as file, h5py.File(tmp_path / "changed.h5", "w") as copy:
        copy["c"] = file["c"][:] * np.float32(1.0001)
        copy.attrs.update(file.attrs)
    for changed, why in (
        ([*words, "exchanged"], "in another order"),
        ([*words, "other"], "others than the certificate's"),
        ([*words, "fewer"], "59 rows"),
        ([str(tmp_path / "w.h5"), words[1], "d"], "of another model"),
        ([str(tmp_path / "lambda.h5"), words[1], "d"], "lambda is 0.01"),
        ([words[0], str(tmp_path / "changed.h5"), "d"], "or was changed"),
    ):
        with pytest.raises(SystemExit, match=why):
            checker.main([*changed[:2], str(tmp_path / changed[2])])
    # Without fingerprints, other rows are no danger: the coefficients prove what they prove there.
    optimum = distsms.train((X * 1.001, y), lam=LAM, solver="lbfgs", epsilon=1e-9, check=False).info["J"]
    for data, least in (("exchanged", found.J), ("other", optimum)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            D, _ = checker.main([*words, str(tmp_path / data), "--no-checksums"])
        assert D <= least


OTHERS = [pytest.param(name, marks=pytest.mark.by_turns) for name in ("adult9.train", "web8.train")]


@pytest.mark.parametrize("name", [*OTHERS, "rcv1-ccat-sample.train"])
def test_real_data(name, real_data, tmp_path):
    """The checker derives the bounds of runs, from the text and from shards; where these data are at hand."""
    (tmp_path / "t.svm").write_bytes(real_data(name))
    distsms.shard(tmp_path / "t.svm", tmp_path / "d")
    for measure, places in (("rocarea", ("t.svm", "d")), ("prbep", ("d",))):  # plain text takes the checker long
        words, found = trained(tmp_path / "d", tmp_path, measure, lam=1e-4, epsilon=1e-3)
        bounds = [float(checker.main([*words, str(tmp_path / place)])[0]) for place in places]
        stated = distsms.load_model(words[0]).info["lower_bound"]
        assert bounds == pytest.approx([stated] * len(places), abs=1e-7)
        assert bounds[0] == pytest.approx(bounds[-1], abs=1e-12)
        assert found.gap <= 1e-3 + 1e-7 and found.lower_bound == pytest.approx(stated, abs=1e-6)


ATTACKED = ["rocarea", "prbep", "pauc@0.3", "error-rate", "logistic", "gauc@each", "rocarea l1"]


def attack(c, alpha, p, X, rng):
    """Return changed coefficients and alpha: what rounding, mistakes or a liar might make of them."""
    kind, sign = rng.integers(0, 9), np.where(np.isin(np.arange(len(c)), p.P), -1.0, 1.0)
    if kind == 0:
        c = c * rng.choice([1 + 1e-7, 1.001, 1.5, 3.0, 100.0])
    elif kind == 1:
        c = c * rng.uniform(0.9, 1.2, len(c))
    elif kind == 2:
        c = sign * np.abs(rng.permutation(c))
    elif kind == 3:
        c = np.where(rng.random(len(c)) < 0.2, 1.5 * np.max(np.abs(c)) * sign, c)
    elif kind == 4:
        c = sign * np.maximum(0, np.abs(c) + rng.normal(size=len(c)) * rng.choice([1e-9, 1e-4, 1e-2]))
    elif kind == 5:  # as if no other condition were there, climb the bound, with half of sum |c| for d
        for _ in range(20):
            c = sign * np.maximum(0, sign * (c + 1e-3 * (sign / 2 - X @ (X.T @ c) / LAM)))
    elif kind == 6:
        c = np.zeros(len(c)) + sign / len(c) * rng.choice([0.1, 1, 2, 1e6])
    elif kind == 7:
        c = sign * np.abs(c) ** rng.choice([0.5, 0.9, 1.1])
    else:
        c = np.where(np.arange(len(c)) == rng.integers(len(c)), rng.choice([np.nan, np.inf, 1e30, -1e30, 0.0]), c)
    return c, rng.choice([np.ones(len(c)), alpha, 2 * alpha, np.full(len(c), np.inf)])


@pytest.mark.parametrize("name", ATTACKED)
@pytest.mark.parametrize("times", [20, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_changed_certificate_proves_too_much(name, times, tmp_path):
    """Checksums are left aside. The minimum is known to 1e-8 from a solution in between."""
    measure, _, l1 = name.partition(" ")
    X, y, weights, groups = rows(30, 3, seed=7)
    write_data(tmp_path / "d", X, y, weights=weights, groups=groups)
    more = {"l1": 1e-2} if l1 else {}
    words, found = trained(tmp_path / "d", tmp_path, measure, epsilon=1e-7, bias=0, max_evaluations=3000, **more)
    assert found.gap < 1e-6
    with h5py.File(words[1]) as file:
        c = file["c"][:].astype(float)
        alpha = file["alpha"][:].astype(float) if "alpha" in file else np.ones(30)
    rng, reached, tight = np.random.default_rng(3), -np.inf, 0
    for trial in range(times):
        exact = trial % 10 == 0
        p = checker.Problem(measure, y, weights, groups, exact=exact)
        changed, of_alpha = attack(c, alpha, p, X, rng)
        values, entries = p.numbers(X.ravel()), np.indices(X.shape).reshape(2, -1)
        try:
            coefficients, shares = p.numbers(changed), p.numbers(np.nan_to_num(of_alpha))
            lam, weight = p.numbers([LAM, 1e-2 if l1 else 0.0])
            D = float(checker.bound(p, (*entries, values), 3, coefficients, shares, lam, weight))
        except (SystemExit, ValueError, OverflowError):  # refused, or not even a number
            continue
        assert not found.J < D
        reached, tight = max(reached, D), tight + (D > found.J - 1e-4)
    assert reached > found.J - 1e-3 and tight  # some changes are small, and prove nearly as much as before


def test_the_mistake_to_avoid():
    """To scale u and v by the worst ratio of the two sides gives r = 0 and "proves" 0.6 here, at any lambda."""
    y, x = np.array([1, -1, -1]), np.array([0.125, 0.0, 1.0])
    p = checker.Problem("rocarea", y, np.ones(3), exact=True)
    entries = np.arange(3), np.zeros(3, int), p.numbers(x)
    c, d = checker.plane(p, p.numbers([-0.8, 0.7, 0.1]))
    assert -c[0] == c[1] + c[2] == d <= 0.6000001 and max(c[1:]) <= Fraction(1, 2)
    for lam in (1e-4, 1e-3, 1e-2):
        D = checker.bound(p, entries, 1, p.numbers([-0.8, 0.7, 0.1]), None, Fraction(lam), Fraction(0))
        w = np.linspace(-3, 3, 6001)
        hinges = np.maximum(0, 1 - w * 0.125) + np.maximum(0, 1 + w * 0.875)
        assert float(D) <= np.min(lam / 2 * w * w + hinges / 2) < 0.6


def rational(numbers):
    return np.array([Fraction(*number.as_integer_ratio()) for number in numbers], object)


RARE = ["prbep", "error-rate", "logistic", "rocarea", "pauc@0.3", "f1", "f2", "precision@1", "recall@700", "recall@2"]


@pytest.mark.parametrize("measure", RARE)
def test_rounding_with_very_rare_positives(measure):
    """A plane computed with rounding, less what is subtracted for it, holds in rational numbers: in the checker and in
    the package."""
    n, positives = 900 if measure not in ("rocarea", "pauc@0.3") else 150, 1
    y, ones = np.where(np.arange(n) < positives, 1, -1), np.ones(n)
    of_labelings = measure[0] == "f" or "@" in measure[6:]
    kind, plane = (labelings.Labelings, labelings.plane) if of_labelings else (checker.Problem, checker.plane)
    ordering = "gather" if of_labelings or measure[0] in "el" else "exchange"
    loss = make_loss(Measure.parse(measure), ordering, y, None, Communicator())
    for seed in range(3 * EXAMPLES // 10):
        rng = np.random.default_rng(seed)
        share = np.float32(rng.uniform(0.3, 1.0) * 2 / n)
        amounts = share * (rng.uniform(0.0, 1.0, n) if seed % 3 == 0 else np.where(y > 0, rng.choice([0.0, 1.0]), 1.0))
        if measure[:4] in ("prbe", "roca", "pauc"):
            amounts[y < 0] *= np.sum(amounts[y > 0]) / np.sum(amounts[y < 0]) * 1.01
        c = (np.where(y > 0, -1, 1) * amounts).astype(np.float32).astype(float)
        weight = float(share) * n / 2
        table, alpha = np.array([[weight, 0.0, n - positives], [1 - weight, positives, 0.0]]), np.full(n, 0.3)
        more = table if measure[0] == "f" else alpha
        p, exact = kind(measure, y, ones), kind(measure, y, ones, exact=True)
        proved, slack = dual_bound(loss, c, alpha, table), 8 * (n + 16) * checker.EPS
        allowed = 2 * float(np.finfo(float).eps) * ADDITIONS
        for (reduced, d), rounding in (
            (plane(p, p.numbers(c), p.numbers(more)), slack),
            ((proved.c, proved.d), allowed),
        ):
            nearest, truth = plane(exact, rational(reduced), exact.numbers(more))
            assert float(rational([d])[0] - truth) <= rounding * (1 + abs(float(d)))
            assert float(abs(nearest - rational(reduced)).sum()) <= 2 * rounding


@pytest.mark.parametrize("ulp", [float(np.finfo(np.longdouble).eps), float(np.finfo(float).eps)])
def test_f1_with_errors_of_rounding_that_add_up(ulp):
    """One positive row: what lacks in the false positives counts twice in d, and here each addition is rounded up."""
    n, half = 4000, 2000
    y, large = np.where(np.arange(n) < 1, 1, -1), np.arange(n) <= half
    small = 0.6 * 1024 * ulp  # added to sums above 1024, that is as much as ulp * 1024
    c = (np.where(y > 0, 0.0, np.where(large, 0.7, small)) * 2 / n).astype(np.float32).astype(float)
    table = np.array([[0.70002, 0, half], [2 * small, 0, n - 1]])
    p, exact = (labelings.Labelings("f1", y, np.ones(n), exact=exact) for exact in (False, True))
    loss = make_loss(Measure.parse("f1"), "gather", y, None, Communicator())
    proved = dual_bound(loss, c, labelings=table)
    reduced, d = labelings.plane(p, p.numbers(c), p.numbers(table))
    allowed = 2 * float(np.finfo(float).eps) * ADDITIONS, 8 * (n + 16) * checker.EPS
    for rounding, constant, of in zip(allowed, (proved.d, d), (proved.c, reduced), strict=True):
        _, truth = labelings.plane(exact, rational(of), exact.numbers(table))
        assert float(rational([constant])[0] - truth) <= rounding * (1 + abs(float(constant)))


@pytest.mark.parametrize("exact", [False, True])
def test_rows_without_pairs_prove_nothing(exact):
    """Coefficients of a group of one class count in no risk, and could make r = 0: they are set to 0."""
    y, groups = np.array([1, -1, 1, 1]), np.array([0, 0, 1, 1])
    p = checker.Problem("gauc@each", y, np.ones(4), groups, exact=exact)
    c, d = checker.plane(p, p.numbers([-1.0, 1.0, -1.0, -2.0]))
    assert c.tolist() == [-1, 1, 0, 0] and d == 1
    loss = make_loss(Measure.parse("gauc@each"), "exchange", y, None, Communicator(), groups)
    proved = dual_bound(loss, np.array([-1.0, 1.0, -1.0, -2.0]))
    assert proved.c.tolist() == [-1, 1, 0, 0] and proved.d == 1


def test_an_alpha_that_is_no_number_counts_nothing():
    """NaN compares as nothing: the sum of the others may still not be above K."""
    y, alpha = np.array([1] + 10 * [-1]), np.ones(11)
    alpha[1] = np.nan
    c = np.array([-1.0, 0, 0.2, 0.2, 0.2, 0.2, 0.2, 0, 0, 0, 0])  # each negative row may have 1/9, not 1/K
    p = checker.Problem("pauc@0.5", y, np.ones(11))
    reduced, d = checker.plane(p, p.numbers(c), p.numbers(alpha))
    loss = make_loss(Measure.parse("pauc@0.5"), "exchange", y, None, Communicator())
    proved = dual_bound(loss, c, alpha)
    for coefficients, constant in ((reduced, d), (proved.c, proved.d)):
        assert constant == pytest.approx(5 / 9) and np.max(coefficients) <= 1 / 9 + 1e-12


@pytest.mark.parametrize("measure", ["f1", "f2", "precision@12", "recall@30", "precision@19"])
def test_labelings(measure, tmp_path):
    """F-beta and the measures at K have a checker of their own, which changed certificates do not fool, either."""
    X, y, *_ = rows(40, 3)
    write_data(tmp_path / "d", X, y)
    words, found = trained(tmp_path / "d", tmp_path, measure, solver="bmrm", bias=0, epsilon=1e-6)
    rules = {"kind": labelings.Labelings, "plane": labelings.plane, "risk": labelings.risk}
    for exact in ([], ["--exact"]):
        D, J = checker.main([*words, str(tmp_path / "d"), *exact], **rules)
        assert float(J) == pytest.approx(found.J, abs=1e-9) and float(D) == pytest.approx(found.lower_bound, abs=1e-6)
    with pytest.raises(SystemExit, match=r"is for verify_labelings\.py"):
        checker.main([*words, str(tmp_path / "d")])
    with h5py.File(words[1]) as file:
        c = file["c"][:].astype(float)
        table = file["labelings"][:] if "labelings" in file else np.zeros((0, 3))
    rng, entries = np.random.default_rng(0), np.indices(X.shape).reshape(2, -1)
    for trial in range(30):
        p = labelings.Labelings(measure, y, np.ones(40), exact=trial % 5 == 0)
        changed, _ = attack(c, np.ones(40), p, X, rng)
        values, lam, l1 = p.numbers(X), *p.numbers([LAM, 0.0])
        with np.errstate(all="ignore"):
            try:
                coefficients = p.numbers(changed)
                of_table = p.numbers(table * rng.choice([1, 1, 1.5, 0.5, 30], size=table.shape))
                D = checker.bound(p, (*entries, values), 3, coefficients, of_table, lam, l1, labelings.plane)
            except (SystemExit, ValueError, OverflowError):
                continue
        assert not found.J < float(D)
