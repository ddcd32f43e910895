"""ROCArea's risk without gathering: only the smaller class is sorted, by every rank or by ranges of scores.

With q = s_i - 1 and b = s_j where positives are fewer, q = -s_j and b = 1 - s_i where negatives are, t_ij = b - q: see
`distsms.losses.smaller_class` for the sums. P ranks, n_min and n_max rows in the classes, n_min <= n_max:

- *everywhere*: each rank sends its q to all, and all sort them; each meets its own b's; sums are then added up over ranks.
  Sent 8 n_min / P + 8 n_min bytes a rank, received 16 n_min; O(n_min log P + n / P) time, about 200 n_min bytes.
- *by ranges* (`distsms.losses.key_ranges`): each rank has a range of q. At most 40 n / P bytes each way in the mean, and
  memory and time in proportion to n / P.

No rank holds an array of the length n, and by ranges none of the length n_min.
"""

from __future__ import annotations

import numpy as np

from distsms.comm import Communicator
from distsms.losses.contract import Floats, LossValue
from distsms.losses.rocarea import RocAreaRisk
from distsms.losses.smaller_class import SmallerClass


class RocAreaExchange(RocAreaRisk):
    """The ROCArea risk; see the module's docstring."""

    def __init__(self, labels: np.ndarray, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        # Rows of the smaller class are kept in the order of their scores at the last evaluation: it has hardly changed
        # at the next one, and a stable sort (by merging runs) is quick then.
        positives_fewer = self.n_pos <= self.n_neg
        smaller, larger = (self.positive, self.negative) if positives_fewer else (self.negative, self.positive)
        dtype = np.uint32 if len(labels) < 2**32 else np.uint64
        self._smaller, self._larger = (np.flatnonzero(rows).astype(dtype) for rows in (smaller, larger))
        self._sign, self._offset = (1.0, 0.0) if positives_fewer else (-1.0, 1.0)  # b = offset + sign s
        self._counts = [count + 1 for count in comm.allgather(len(self._smaller))]
        self._run = np.empty(len(self._smaller) + 1)
        self._sums = SmallerClass(min(self.n_pos, self.n_neg))

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. Collective."""
        # t = 1 - (s_i - s_j) rounds once in 1 - s_i or s_i - 1, and then in t itself, whichever class is sorted.
        run, coefficients = self._run, np.zeros(len(scores))
        run[1:] = self._sign * scores[self._smaller] - (1.0 - self._offset)
        order = np.argsort(run[1:], kind="stable")
        self._smaller, run[1:] = self._smaller[order], run[1:][order]
        # One more number from each rank says whether all its margins are finite, and is sorted out of the way.
        run[0] = -np.inf if np.isfinite(scores).all() else np.nan
        q = self.comm.allgather_rows(run, self._counts)
        q.sort(kind="stable")  # one rank alone has `run` itself here, which is in order
        if not np.isfinite(q[-1]):
            return LossValue(np.nan, np.nan, np.nan, coefficients)
        factor = self._sign / self.n_pos / self.n_neg  # n+ n- may pass 2^53: divide by one after the other
        self._sums.sort(q[self.comm.size :], nu)
        self._sums.meet(scores, self._larger, self._sign, self._offset, factor, coefficients)
        gamma = self._sums.gamma()
        total = self.comm.sum(np.concatenate([gamma, self._sums.sums]))
        self._sums.give(total[:-3], run[1:], self._smaller, -factor, coefficients)
        hinge, huber, beta = map(float, total[-3:] / self.n_pos / self.n_neg)
        return LossValue(hinge, huber, beta, coefficients)
