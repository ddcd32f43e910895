"""Small data sets for tests, and a rank's share of one."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from distsms.features import Sparse
from distsms.losses import make_loss
from distsms.objective import Objective
from distsms.solvers import SOLVERS, solver_class
from distsms.vectors import make_vectors

SPREADABLE = [name for name in SOLVERS if solver_class(name).traits.spreadable]


def data(n=200, p=12, seed=0, positive=0.25):
    """X (n, p) sparse and y (n,) with signal, noise and both classes."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < positive, 1, -1).astype(np.int8)
    y[:2] = 1, -1
    X = sparse.random(n, p, 0.5, format="csr", random_state=seed, data_rvs=rng.standard_normal)
    return (X + sparse.csr_matrix(np.outer(y > 0, np.linspace(0, 1, p)))).tocsr(), y


def share(comm, n):
    """This rank's rows of n: ever more from rank to rank, and from three ranks on none on the last."""
    full = comm.size - (comm.size > 2)
    ends = [n * min(r, full) ** 2 // full**2 for r in range(comm.size + 1)]
    return slice(ends[comm.rank], ends[comm.rank + 1])


def objective(X, y, comm, measure="rocarea", weights=None, step="root", **more):
    """The objective of this rank's share of X and y."""
    rows = share(comm, len(y))
    loss = make_loss(measure, "gather", y[rows], None if weights is None else weights[rows], comm)
    return Objective(Sparse.of(X[rows].tocsr()), [loss], comm, vectors=make_vectors(step, X.shape[1], comm), **more)


def asked(objective, requests):
    """Evaluations on the ranks that step, None elsewhere. Collective."""
    if not objective.vectors.steps:
        return objective.serve()
    found = objective.evaluate(requests)
    objective.release()
    return found


def noting(states):
    """A watcher of `train` that appends each state to a list."""
    return lambda state, w: states.append(state)
