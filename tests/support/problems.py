"""Small data sets for tests and a rank's share of them; scores and losses; finished runs of a comparison."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import FAMILIES, Measure
from distsms.losses.registry import load_class, make_loss
from distsms.matrix.local import SparseRows
from distsms.optim.objective import Objective
from distsms.parallel.vectors import make_vectors
from distsms.shards.dataset import DataBlock
from scripts.compare.grid import CompletedRun, RunSpec


def data(n=200, p=12, seed=0, positive=0.25):
    """Return sparse X (n, p) and y (n,), with signal, noise and both classes."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < positive, 1, -1).astype(np.int8)
    y[:2] = 1, -1
    X = sparse.random(n, p, 0.5, format="csr", random_state=seed, data_rvs=rng.standard_normal)
    return (X + sparse.csr_matrix(np.outer(y > 0, np.linspace(0, 1, p)))).tocsr(), y


def share(comm, n):
    """Return the range of this rank's rows. Higher ranks have more; with three or more ranks, the last has none."""
    full = comm.size - (comm.size > 2)
    ends = [n * min(r, full) ** 2 // full**2 for r in range(comm.size + 1)]
    return slice(ends[comm.rank], ends[comm.rank + 1])


def objective(X, y, comm, measure="rocarea", weights=None, step="root", **more):
    """Make the objective from this rank's share of X and y."""
    rows = share(comm, len(y))
    loss = make_loss(measure, "gather", y[rows], None if weights is None else weights[rows], comm)
    return Objective(SparseRows.of(X[rows].tocsr()), [loss], comm, vectors=make_vectors(step, X.shape[1], comm), **more)


def asked(objective, requests):
    """Return evaluations on the ranks that run the solver, and None on the others. Collective."""
    if not objective.vectors.runs_solver:
        return objective.serve()
    found = objective.evaluate(requests)
    objective.release()
    return found


def noting(states):
    """Return a callback for `watch` that appends each state to a list."""
    return lambda state, w: states.append(state)


_PATHS = {"data": {"path": "a", "fingerprint": "f"}, "test": {"path": "t", "fingerprint": "e"}}
IDENTITY = {"format": "distsms-comparison", "version": 1, **_PATHS, "epsilon": 1e-3}
CELL = RunSpec("rocarea", 1e-2, "lmvm")


def block(comm, X, y):
    """Return this rank's share of X and y, as `load` would return it."""
    rows, part = share(comm, len(y)), X[share(comm, len(y))].tocsr()
    features = SparseRows.of(part)
    return DataBlock(features, y[rows], None, rows.start, len(y), X.shape[1], 0)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def made(folder, cell, best_J, status="proved", bound=None, test=None, vacuous=False, files=False):
    """Write a finished run with these best J, one per second; return its folder if `files`, or else the run as read."""
    place = folder / "cells" / cell.name
    place.mkdir(parents=True)
    trace = [{"evaluation": k, "seconds": float(k), "best_J": J, "gap": J} for k, J in enumerate(best_J, 1)]
    measures = None if test is None else {"rocarea": test, "prbep": test}
    tests = [] if test is None else [{**line, **measures} for line in trace]
    for name, rows in (("trace.jsonl", trace), ("test.jsonl", tests)):
        (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    J = best_J[-1] if best_J else None
    result = {"measure": cell.measure, "lambda": cell.lam, "solver": cell.solver, "c_mu": cell.c_mu, "J": J}
    result |= {"lower_bound": bound, "gap": None, "status": status, "evaluations": len(best_J), "vacuous": vacuous}
    result |= {"seconds": float(len(best_J)), "test": measures, "J_at_zero": 1.0, "host": "here"}
    (place / "result.json").write_text(json.dumps(result))
    return place if files else CompletedRun.read(place)


PAUC = "pauc@0.3"
LOSSES = {
    (name, ordering): load_class(family, ordering) for name, family in FAMILIES.items() for ordering in family.losses
}
"""All losses, by the names of the family of measures and of the ordering."""
EXACT = {way: loss for way, loss in LOSSES.items() if way[1] != "bins"}
WAYS = {way: loss for way, loss in EXACT.items() if way[0] in ("rocarea", "prbep")}
WAYS |= {(PAUC, way[1]): loss for way, loss in EXACT.items() if way[0] == "pauc"}
ALL = sorted(WAYS)


def build(way, labels, comm=None, weights=None):
    parameters = Measure.parse(way[0]).parameters
    return WAYS[way](np.asarray(labels, np.int8), weights, comm or Communicator(), *parameters)


def local_part(array, comm):
    """Return this rank's share of an array over all rows."""
    return array[share(comm, len(array))]


@st.composite
def problems(draw, max_rows=14):
    """Draw scores (often tied, of any size), labels of both classes, and a width of smoothing."""
    n = draw(st.integers(2, max_rows))
    size = 10.0 ** draw(st.sampled_from([-8, -2, 0, 0, 1, 8]))
    grid = st.integers(-4, 4).map(float)
    score = draw(st.sampled_from([grid, st.floats(-3, 3, allow_subnormal=False)]))
    scores = np.array(draw(st.lists(score, min_size=n, max_size=n))) * size
    labels = np.array(draw(st.lists(st.sampled_from([1, -1]), min_size=n, max_size=n)))
    labels[0], labels[1] = 1, -1
    nu = draw(st.sampled_from([1e-9, 1e-3, 0.1, 0.5, 1.0, 2.0, 7.5, 1e4, 1e10]))
    return scores, labels, nu


def drawn_scores(n, share, seed=0, decimals=1, shift=1.0):
    """Return rounded scores, which have ties, and labels; `shift` is the mean of the positive class."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < share, 1, -1).astype(np.int8)
    labels[:4] = 1, 1, -1, -1
    return np.round(rng.normal(size=n) + shift * (labels > 0), decimals), labels


def spread_scores(spread, x, rng):
    """Return scores with the order of x, or nearly so, whose values are spread in one of six ways."""
    return {
        "normal": x,
        "far from zero": 1e8 + x,
        "outliers": np.where(rng.random(len(x)) < 0.01, 1e8 * x, x),
        "few values": np.round(x),
        "equal": np.ones(len(x)),
        "long tails": np.exp(4 * x),
    }[spread]
