"""The losses whose passes over scores are made on the device; what follows from them is the processor's code."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.device import loss_kernels as kernel
from distsms.device.runtime import DeviceVector, folded, tiles_of, zeros
from distsms.losses.base import SORTED, Loss, LossValue
from distsms.losses.binned import Grid, RocAreaBins
from distsms.losses.logistic import Logistic, LogisticBalanced
from distsms.losses.pauc import PaucBins
from distsms.losses.prbep import LEAST, PrbepExchange


class Classes(NamedTuple):
    """The rows of a rank on the device."""

    kinds: Any  # (n_local,) int8, see `distsms.device.loss_kernels`
    weights: Any  # (n_local,) float64, or empty
    weight_scale: float  # units for each 1 of the weights, so many that sums of all rows of the rank are below 2^62


class OnDevice(Loss):
    """A loss whose scores are vectors on the device; `evaluate` takes arrays of the host, too."""

    @cached_property
    def rows(self) -> Classes:
        kinds = self.positive.astype(np.int8) - self.negative.astype(np.int8)
        weights = np.empty(0) if self.weights is None else self.weights
        room = 61 - math.frexp(float(np.sum(weights)) + 1.0)[1]
        return Classes(cuda.to_device(kinds), cuda.to_device(weights), math.ldexp(1.0, room))

    def evaluate(self, scores: Any, nu: float) -> LossValue:
        """See `Loss.evaluate`; the coefficients are where the scores are. **Collective.**"""
        if isinstance(scores, DeviceVector):
            return self.evaluate_in_place(scores.copy(), nu)  # type: ignore[arg-type]
        value = self.evaluate_in_place(DeviceVector.of(scores), nu)  # type: ignore[arg-type]
        return value._replace(coefficients=np.asarray(value.coefficients))

    def exact_is_cheap(self, entries: float, evaluations: float) -> bool:
        return False  # sorting on the processor takes longer than many evaluations


def _tiles(scores: DeviceVector, count: int) -> Any:
    return cuda.device_array((tiles_of(len(scores)), count), np.float64)


class DeviceRocArea(OnDevice, RocAreaBins):
    """The ROCArea risk from cells, into which the device counts the rows."""

    may_be_apart = False  # the device counts rows faster than the processor passes over them

    def _sorted(self, scores: Any, nu: float, way: str = SORTED) -> LossValue:
        value = super()._sorted(np.asarray(scores), nu, way)
        scores[:] = value.coefficients
        return value._replace(coefficients=scores)

    def _ends(self, scores: Any) -> Floats:
        parts = _tiles(scores, 5)
        scores.start(kernel.extremes, self.rows.kinds, parts)
        ends = folded(parts, 5)
        return np.full(4, math.inf) if ends[4] > 0 else ends[:4]

    def _count_rows(self, scores: Any, grid: Grid, totals: NDArray[Any]) -> tuple[float, float]:
        scores, (kinds, weights, unit) = _vector(scores), self.rows
        words, parts = zeros(2 if self.weights is None else 4, totals.shape[1]), _tiles(scores, 2)
        low, high, scale, cells = grid.low, grid.high, grid.scale, cuda.to_device(grid.fine)
        scores.start(kernel.count, kinds, weights, low, high, scale, grid.bits, grid.top, cells, unit, words, parts)
        counted = words.copy_to_host()
        if self.weights is None:
            totals[:] = counted
        else:
            of_words = (counted[::2] + counted[1::2] / kernel.BELOW) / unit
            totals[:] = of_words[0], of_words[1] * 2.0**grid.bits
        below, above = folded(parts).tolist()
        return below, above

    def _look_up(self, scores: Any, grid: Grid, table: Floats) -> None:
        cells, of_places, scores = cuda.to_device(grid.fine), cuda.to_device(table), _vector(scores)
        kinds, weights, low, scale = self.rows.kinds, self.rows.weights, grid.low, grid.scale
        scores.start(kernel.look_up, kinds, weights, low, scale, grid.bits, grid.top, cells, of_places, scores.array)


def _vector(scores: Any) -> DeviceVector:
    return scores if isinstance(scores, DeviceVector) else DeviceVector.of(scores)


class DevicePauc(DeviceRocArea, PaucBins):
    """The risk of pauc@beta from cells."""


class DeviceLogistic(OnDevice, Logistic):
    def evaluate_in_place(self, scores: Any, nu: float) -> LossValue:
        parts, (of_pos, of_neg) = _tiles(scores, 2), self.class_factors()
        scores.start(kernel.logistic, self.rows.kinds, self.rows.weights, of_pos, of_neg, scores.array, parts)
        R, d = self.comm.sum(folded(parts)).tolist()
        if math.isnan(d):  # a score is not finite
            return LossValue.undefined(scores)
        return LossValue(R, R, d, scores)


class DeviceLogisticBalanced(DeviceLogistic, LogisticBalanced):
    """The mean of both classes' mean logistic losses."""


class PlaceSearch:
    """The search for an order statistic of places (`PositionSearch`), by counting into buckets, in about six passes."""

    def __init__(self, rows: Classes, target: float, comm: Communicator) -> None:
        self._rows, self._target, self._comm = rows, target, comm

    def find(self, scores: DeviceVector, added: float) -> float:
        """Return the smallest place up to which rows weigh the target; NaN for scores of infinity. **Collective.**"""
        lacking = self._target
        low, high = self._ends(scores, added, -math.inf, math.inf, 1.0, -1)
        while low < high:
            quarter = 1.0 if math.isfinite(high - low) else 0.25
            weights = np.cumsum(self._count(scores, added, low, high, quarter))
            bucket = min(int(np.searchsorted(weights, lacking)), int(np.searchsorted(weights, weights[-1])))
            lacking -= float(weights[bucket - 1]) if bucket else 0.0
            low, high = self._ends(scores, added, low, high, quarter, bucket)
        return low + 0.0

    def _ends(
        self, scores: DeviceVector, added: float, low: float, high: float, quarter: float, bucket: int
    ) -> tuple[float, float]:
        """Return the least and the largest place in a bucket, NaN if a score is not finite. **Collective.**"""
        parts = _tiles(scores, 3)
        scores.start(kernel.ends_of_places, self._rows.kinds, added, low, high, quarter, bucket, parts)
        below, above, bad = self._comm.maximum(folded(parts, 3)).tolist()
        return (math.nan, math.nan) if bad > 0 else (-below, above)

    def _count(self, scores: DeviceVector, added: float, low: float, high: float, quarter: float) -> Floats:
        """Return the weight of the rows of all ranks in each bucket. **Collective.**"""
        totals, (kinds, weights, weight_scale) = zeros(2, kernel.BUCKETS), self._rows
        scores.start(kernel.count_places, kinds, weights, added, low, high, quarter, weight_scale, totals)
        counts, rest = totals.copy_to_host().astype(np.float64)
        return self._comm.sum(counts if weights.size == 0 else (counts + rest / kernel.BELOW) / weight_scale)


class DevicePrbep(OnDevice, PrbepExchange):
    """The PRBEP risk by a root search whose passes are made on the device."""

    def evaluate_in_place(self, scores: Any, nu: float) -> LossValue:
        return self._evaluate(scores, nu, scores)

    def _position_search(self) -> Any:
        return PlaceSearch(self.rows, self.A_neg, self.comm)

    def _local_sums(self, scores: Any, tau0: float, delta: float, nu: float) -> Floats:
        parts, rows = _tiles(scores, 9), self.rows
        scores.start(kernel.balance, rows.kinds, rows.weights, self.shift, tau0, delta, nu, nu or LEAST, parts)
        return folded(parts)

    def _write(self, scores: Any, tau0: float, delta: float, nu: float, corrections: Floats, out: Any) -> None:
        rows, width, both = self.rows, nu or LEAST, cuda.to_device(corrections)
        scores.start(kernel.balanced, rows.kinds, rows.weights, self.shift, tau0, delta, nu, width, both, out.array)


LOSSES: dict[str, Any] = {
    "rocarea": DeviceRocArea,
    "pauc": DevicePauc,
    "prbep": DevicePrbep,
    "logistic": DeviceLogistic,
    "logistic-balanced": DeviceLogisticBalanced,
}
"""The loss of each family of measures that devices offer; `distsms.device.place.OFFERED` has its ordering."""
