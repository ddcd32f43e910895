"""L-BFGS, a limited-memory quasi-Newton method that needs no PETSc: the two-loop recursion of Nocedal & Wright,
Numerical Optimization, 2006, Algorithm 7.4, on a diagonal that each step updates as PETSc's MATLMVMDIAGBROYDEN (Gilbert
& Lemarechal, Mathematical Programming 45, 1989), with the line search of `distsms.optim.solvers.line_search`.

With a sum of l_j |w_j|, a step stays in an orthant (Andrew & Gao, ICML 2007), but with the direction of L-BFGS on the
free variables alone, and straight towards the projection of its end onto the orthant.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix.blocks import thread_count
from distsms.optim.penalty import soft_threshold
from distsms.optim.result import Snapshot
from distsms.optim.solvers import base
from distsms.optim.solvers.base import Traits
from distsms.optim.solvers.line_search import LONGEST, search

ALPHA, THETA = 0.8, 0.4  # of the diagonal: see `InverseHessian.update`. The values are those that `lmvm` has
LEAST_SHARE = 1e-8
"""A pair is left out if its free variables contribute a smaller share than this to the inner product of s and y."""
SLICE = 2**14
"""Entries of vectors with which several operations follow each other, so that they stay in a core's cache."""
EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)


class Pair(NamedTuple):
    """A step s, the change y of the gradient on it, both of shape (length,), and their inner product."""

    s: Floats
    y: Floats
    sy: float


class InverseHessian:
    """A positive definite approximation of a convex function's inverse Hessian: pairs on a `diagonal` (length,)."""

    def __init__(self, dot: Callable[[Floats, Floats], float], length: int, history: int) -> None:
        self._dot = dot
        self.pairs: deque[Pair] = deque(maxlen=history)
        self.diagonal = np.ones(length)

    def reset(self) -> None:
        self.pairs.clear()
        self.diagonal = np.ones(len(self.diagonal))

    def times(self, vector: Floats, free: NDArray[np.intp] | None = None) -> Floats:
        """Return the product with a vector, in the variables `free` alone if given."""
        part = slice(None) if free is None else free
        pairs: Sequence[Pair] = self.pairs
        if free is not None:  # with the inner products of these variables alone
            products = [self._dot(pair.s[free], pair.y[free]) for pair in self.pairs]
            of_free = zip(self.pairs, products, strict=True)
            pairs = [pair._replace(sy=product) for pair, product in of_free if product > LEAST_SHARE * pair.sy]
        product, shares = vector.copy(), []
        for s, y, sy in reversed(pairs):
            shares.append(self._dot(s[part], product) / sy)
            add_multiple(product, -shares[-1], y[part])
        product *= self.diagonal[part]
        for s, y, sy in pairs:
            add_multiple(product, shares.pop() - self._dot(y[part], product) / sy, s[part])
        return product

    def update(self, s: Floats, y: Floats) -> None:
        """Add the pair of a step s and of the change y of the gradient, unless rounding hides the curvature. The
        diagonal gets Broyden's update, `THETA` times DFP's, and is divided by the sigma > 0 that minimizes
        ||sigma^ALPHA D^(-1/2) y - sigma^(ALPHA - 1) D^(1/2) s||.
        """
        dot = self._dot
        sy = dot(s, y)
        if not sy > EPS * np.sqrt(dot(s, s) * dot(y, y)):
            return
        self.pairs.append(Pair(s, y, sy))
        diagonal = self.diagonal
        Ds, D, terms = np.empty(len(s)), np.empty(len(s)), np.empty(len(s))  # the last one stays alone

        def divide(here: slice) -> None:
            np.divide(s[here], diagonal[here], out=Ds[here])

        def change(here: slice) -> None:
            D[here] = 1.0 / diagonal[here] + (1.0 + THETA * sDs / sy) / sy * y[here] ** 2
            D[here] -= Ds[here] * ((1.0 - THETA) / sDs * Ds[here] + 2.0 * THETA / sy * y[here])
            np.maximum(np.abs(D[here]), TINY, out=D[here])  # it is positive but for rounding
            np.divide(y[here], D[here], out=terms[here])
            np.multiply(s[here], D[here], out=Ds[here])

        in_slices(divide, len(s))
        sDs = dot(s, Ds)
        in_slices(change, len(s))
        yy, ss, root = dot(y, terms), dot(s, Ds), (2.0 * ALPHA - 1.0) * sy
        root += np.sqrt(root**2 + 4.0 * ALPHA * (1.0 - ALPHA) * yy * ss)
        self.diagonal = np.divide(root / (2.0 * ALPHA * yy), D, out=terms)


def add_multiple(to: Floats, factor: float, vector: Floats) -> None:
    def add(here: slice) -> None:
        to[here] += factor * vector[here]

    in_slices(add, len(to))


def in_slices(run: Callable[[slice], None], length: int) -> None:
    """Call run(slice) for all slices of vectors of a length, on as many threads as the matrix has."""

    def run_some(thread: int) -> None:
        stop = length * (thread + 1) // threads
        for start in range(length * thread // threads, stop, SLICE):
            run(slice(start, min(start + SLICE, stop)))

    threads = min(thread_count(), 1 + length // (4 * SLICE))
    if threads == 1:
        run_some(0)
    else:
        list(_pool(thread_count(), os.getpid()).map(run_some, range(threads)))


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return the threads of this process: one that was forked from it does not have them."""
    return ThreadPoolExecutor(threads)


class Line(NamedTuple):
    """The line of a search; on it the function is smooth, its gradient that of `Problem.value_and_gradient` + tilt."""

    direction: Floats
    longest: float = LONGEST  # the largest multiple of the direction
    tilt: Floats | None = None  # None: 0
    signs: Floats | None = None  # of the variables in the orthant, 0 for those that stay 0; None: there is no orthant

    def point(self, w: Floats, step: float) -> Floats:
        """Return the point at a multiple of the direction from w; rounding does not take it out of the orthant."""
        moved = w + step * self.direction
        return moved if self.signs is None else np.where(moved * self.signs > 0, moved, 0.0)

    def slope(self, gradient: Floats) -> Floats:
        """Return the gradient of the function in the orthant."""
        return gradient if self.tilt is None else gradient + self.tilt


class Solver(base.Solver):
    """L-BFGS on a `Problem`. Pairs take 16 history p bytes; most steps take an evaluation and 4 history + 10 passes
    over vectors. Pairs are kept after a pause, although the function may have changed.
    """

    traits = Traits(history=2, vectors=14, scaled=True, movable=True, l1=True)

    def restart(self, w: Floats) -> None:
        self._inverse = InverseHessian(self._problem.dot, len(w), self._history)
        self._before: tuple[Floats, Floats] | None = None  # where the next pair begins: a point, and the gradient there
        self.move(w)

    def move(self, w: Floats) -> None:
        self._w = w
        self._here: tuple[float, Floats] | None = None  # the function and its gradient at w, if they are known

    def run(self) -> str:
        if self._here is None:
            self._here = self._problem.value_and_gradient(self._w)
        while self._step(self._here[0], self._here[1]):
            if self._problem.iterated():
                self._here = None
                return ""
        return "no step decreases the function beyond rounding"

    def _step(self, value: float, gradient: Floats) -> bool:
        """Go to the end of a line search. Return False if there is none, not even along the gradient."""
        inverse = self._inverse
        if self._before is not None:
            inverse.update(self._w - self._before[0], gradient - self._before[1])
        self._before = self._w, gradient
        while (step := self._search(value, gradient, self._line(gradient))) is None:
            if not inverse.pairs:
                return False
            inverse.reset()
        self._w, self._here = step[0], step[1:]
        return True

    def _line(self, gradient: Floats) -> Line:
        """Return the line of the next search, with a sum of l_j |w_j| in the orthant of the shortest subgradient."""
        l1, w = self._problem.l1, self._w
        if not np.any(l1):
            return Line(self._inverse.times(-gradient))
        least = np.where(w == 0, soft_threshold(gradient, l1), gradient + l1 * np.sign(w))
        signs, free = np.where(w == 0, -np.sign(least), np.sign(w)), np.flatnonzero(least)
        target = w.copy()
        target[free] -= self._inverse.times(least[free], free)
        direction = np.where(target * signs > 0, target, 0.0) - w
        shrinking = self._problem.dot((w * direction < 0).astype(float), np.ones(len(w)))
        return Line(direction, 1.0 if shrinking else LONGEST, l1 * signs, signs)

    def _search(self, value: float, gradient: Floats, line: Line) -> tuple[Floats, float, Floats] | None:
        """Return where a line search from the whole step ends, with function and gradient there, or None."""
        dot, direction = self._problem.dot, line.direction
        slope = dot(line.slope(gradient), direction)
        if not (slope < 0 and np.isfinite(slope)):
            return None
        trial = self._w, value, gradient

        def evaluate(step: float) -> tuple[float, float]:
            nonlocal trial
            w = line.point(self._w, step)
            trial = (w, *self._problem.value_and_gradient(w))
            return trial[1], dot(line.slope(trial[2]), direction)

        return trial if search(evaluate, value, slope, line.longest) else None

    def memory(self) -> Snapshot:
        """See `base.Solver.memory`. During a line search, this is the state at its beginning."""
        pairs, (value, *gradient) = self._inverse.pairs, self._here or (None,)
        vectors = {
            "points": [self._w, *gradient],
            "before": self._before or (),
            "diagonal": [self._inverse.diagonal],
            "steps": [pair.s for pair in pairs],
            "changes": [pair.y for pair in pairs],
        }
        return Snapshot({"value": value}, {}, vectors)

    def recall(self, memory: Snapshot) -> None:
        """See `base.Solver.recall`. The snapshots of distsms 0.1.0 have only w."""
        self._w, *gradient = memory.vectors["points"]
        if "diagonal" not in memory.vectors:
            return
        (self._inverse.diagonal,) = memory.vectors["diagonal"]
        for s, y in zip(memory.vectors["steps"], memory.vectors["changes"], strict=True):
            self._inverse.pairs.append(Pair(s, y, self._problem.dot(s, y)))
        self._here = (memory.numbers["value"], *gradient) if gradient else None
        before = list(memory.vectors["before"])
        self._before = (before[0], before[1]) if before else None
