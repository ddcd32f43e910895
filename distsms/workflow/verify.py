"""What can be checked of a model on its training rows: J, and by a certificate the lower bound and so the gap.

Nothing of the training is believed but the coefficients in the two files: J is computed from the model and the rows,
the bound from the certificate and the rows. Both passes over the rows work on any number of ranks, part by part.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distsms.base.errors import EXIT_ERROR, EXIT_OK, InputError
from distsms.base.measures import RANKING, Measure
from distsms.base.typing import Floats
from distsms.base.wording import Message, option
from distsms.ingest.file_names import is_data_set
from distsms.losses.dual_bound import Further, dual_bound
from distsms.losses.registry import choose_ordering, make_loss
from distsms.matrix.base import ColumnStatistics
from distsms.metrics.headline import headline_measures
from distsms.models import certificate
from distsms.models.certificate import Certificate
from distsms.models.model import Model
from distsms.models.scoring import ScoredRows
from distsms.optim.penalty import ElasticNet, penalty
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset
from distsms.workflow.evaluate import load_models, name_of, score_data
from distsms.workflow.requests import VerifyRequest

SAME, SAME_ROWS = 1e-8, 1e-11
"""J counts as that of the model if it differs by at most this share of 1 + J, and rows as those of the certificate if
their sketch differs by this share of what its terms add up to.
"""


@dataclass(frozen=True)
class Verified:
    """What was found. All ranks have the same."""

    model: str
    data: str
    certificate: str | None
    J: float  # of the model on these rows: computed anew, as are all numbers but the next
    J_of_model: float | None  # as the model says
    measures: dict[str, float]
    measures_of_model: dict[str, float]
    lower_bound: float | None = None  # on min J, from the certificate
    problems: list[str] = field(default_factory=list)  # what is not as it should be
    notes: list[str] = field(default_factory=list)  # what was checked, and what could not be

    @property
    def gap(self) -> float | None:
        """By how much the J of another w may be smaller at most; None without a certificate."""
        return None if self.lower_bound is None else max(0.0, self.J - self.lower_bound)

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR if self.problems else EXIT_OK

    def to_dict(self) -> dict[str, Any]:
        """Return what `distsms verify --json` prints."""
        return {**vars(self), "gap": self.gap}


@dataclass
class _Products:
    """X'c of this rank's rows with coefficients c (n_local,), and the statistics of their columns."""

    c: Floats
    r: Floats  # (p,)
    columns: ColumnStatistics
    at: int = 0

    def __call__(self, models: Sequence[Model], rows: Any, scores: list[Floats], weights: Floats | None) -> None:
        n = rows.shape[0]
        self.r += rows.transposed_times(self.c[self.at : self.at + n])
        self.at += n
        largest, counts, _ = rows.columns()
        np.maximum(self.columns.largest, largest, out=self.columns.largest)
        self.columns.counts[:] += counts


def verify(request: VerifyRequest, comm: Communicator) -> Verified:
    """Check a model on its training rows, and its bound if there is a certificate. **Collective.**

    Raises InputError on all ranks if files cannot be read, or the certificate is of another problem, model or rows.
    """
    (named,) = load_models([request.model], comm)
    loaded, name = named.model, name_of(request.data)
    with comm.fail_together():
        measure = Measure.parse(loaded.info.get("measure", "rocarea"))
        if not isinstance(loaded.info.get("lambda"), float):
            raise InputError(f"{named.name}: does not say for which lambda it was trained, so it has no J")
        found = None
        if request.certificate is not None:
            found = certificate.load(request.certificate, checked=comm.is_root)
            _require_same_problem(found, loaded)
    # 1) The scores, and those of the sketch.
    reading = replace(request.reading, groups=measure.within_groups is not None)
    numbers = replace(loaded, w=certificate.column_numbers(loaded.p), info={**loaded.info, "bias": 0.0})
    scored = score_data([loaded, numbers], request.data, comm, reading)
    if found is not None:
        _require_same_rows(found, scored, name, comm)
    # 2) J and the measures.
    n_pos, n_neg = comm.sum(np.array([np.sum((scored.labels == sign) & scored.counted) for sign in (1, -1)])).tolist()
    ordering, _ = choose_ordering("auto", measure, max(n_pos, 1), max(n_neg, 1), comm.size)
    loss = make_loss(measure, ordering, scored.labels, scored.weights, comm, scored.groups)
    value = loss.evaluate(scored.scores[0].copy(), 0.0)
    constant = float(loaded.info.get("constant") or (loaded.bias and 1.0))
    J, of_model = value.R + _regularizer(loaded, constant), loaded.info.get("J")
    of_model_scores, labels, weights = scored.counted_scores()
    measures = headline_measures(
        measure, of_model_scores, labels, loaded.threshold, comm, weights, groups=scored.counted_groups
    )
    verified = Verified(
        named.name,
        name,
        None if found is None else found.path,
        J,
        of_model,
        measures,
        loaded.info.get("training") or {},
        notes=list(scored.notes),
    )
    # 3) The lower bound.
    if found is not None:
        verified = replace(verified, lower_bound=_bound(found, loaded, scored, loss, constant, request, comm))
    width = value.width + (loaded.info.get("width") or 0.0)
    if of_model is None or not abs(J - of_model) <= SAME * (1 + abs(J)) + width:
        verified.problems.append(
            f"J is {J:.10g} on these rows, and the model says {of_model}: it was trained on others"
        )
    if verified.gap is not None and (verified.lower_bound or 0.0) > J + SAME:
        verified.problems.append("the lower bound is above J, which cannot be: please report this")
    _check_files(verified, request, comm)
    return verified


def _require_same_problem(found: Certificate, loaded: Model) -> None:
    """Raise InputError unless a certificate is of the model, and of the problem that this was trained for. Local."""
    info, problem = found.info, loaded.info
    ours = {name: problem.get(name) for name in ("measure", "lambda", "l1")} | {"p": loaded.p}
    ours |= {"l1": problem.get("l1", 0.0), "constant": problem.get("constant", 0.0)}
    for name, value in ours.items():
        if info.get(name) != value:
            raise InputError(f"{found.path}: is for {name} {info.get(name)}, and the model was trained with {value}")
    if info["model"] != certificate.fingerprint(loaded):
        raise InputError(f"{found.path}: is the certificate of another model: the coefficients differ")


def _require_same_rows(found: Certificate, scored: ScoredRows, name: str, comm: Communicator) -> None:
    """Raise InputError on all ranks unless rows are those of a certificate, in its order. **Collective.**"""
    info, labels = found.info, scored.labels
    counts = [len(labels), np.sum(labels > 0), np.sum(labels < 0)]
    numbers = comm.sum(np.array(counts)).tolist()
    known = [info[name] for name in ("n", "n_pos", "n_neg")]
    if numbers != known:
        raise InputError(
            f"{name}: has {numbers[0]} rows, {numbers[1]} of them positive, and {found.path} is for {info['n']} rows, "
            f"{info['n_pos']} of them positive: give the rows of the training",
            everywhere=True,
        )
    if bool(info.get("weights")) != (scored.weights is not None):
        have = "have weights" if info.get("weights") else "have none"
        raise InputError(
            Message(f"{name}: the rows of {found.path} {have}; give them as for the training ({option('weight')})"),
            True,
        )
    rows = certificate.sketch(scored.scores[1], labels, scored.weights, scored.first_row, comm)
    size = float(comm.sum(np.array([np.sum(np.abs(scored.scores[1])) + len(labels)]))[0])
    if not abs(rows - info["rows"]) <= SAME_ROWS * size:
        raise InputError(f"{name}: has other rows than those of {found.path}, or the same in another order", True)


def _regularizer(loaded: Model, constant: float) -> float:
    """Return Omega of the coefficients for normalized rows, with that of the constant feature. Local."""
    w = loaded.normalization.unfold(loaded.w)
    w = np.append(w, loaded.bias / constant) if constant else w
    omega = penalty(loaded.info["lambda"], loaded.info.get("l1", 0.0))
    return omega.value(float(w @ w)) + (omega.l1 * float(np.sum(np.abs(w))) if isinstance(omega, ElasticNet) else 0.0)


def _bound(
    found: Certificate,
    loaded: Model,
    scored: ScoredRows,
    loss: Any,
    constant: float,
    request: VerifyRequest,
    comm: Communicator,
) -> float:
    """Return the lower bound that a certificate proves: a second pass over the rows. **Collective.**"""
    first, last, p = scored.first_row, scored.first_row + len(scored.labels), loaded.p
    with comm.fail_together():
        c, alpha = found.read("c", first, last), found.read("alpha", first, last)
    assert c is not None
    proved = dual_bound(loss, c, Further(alpha, found.labelings))
    products = _Products(proved.c, np.zeros(p), ColumnStatistics(np.zeros(p), np.zeros(p), np.zeros(0)))
    score_data([loaded], request.data, comm, replace(request.reading, groups=False), products)
    r, counts = comm.sum(products.r), comm.sum(products.columns.counts)
    scale = np.ones(p) if loaded.scale is None else loaded.scale
    columns = ColumnStatistics(comm.maximum(products.columns.largest) * scale, counts, counts)
    r *= scale
    if constant:
        total, n = comm.sum(np.array([np.sum(proved.c), len(c)])).tolist()
        r = np.append(r, constant * total)
        columns = ColumnStatistics(np.append(columns.largest, constant), np.append(counts, n), counts)
    return certificate.lower_bound(proved, r, columns, penalty(loaded.info["lambda"], loaded.info.get("l1", 0.0)))


def _check_files(verified: Verified, request: VerifyRequest, comm: Communicator) -> None:
    """Compare checksums and measures, and note what was checked. **Collective.**"""
    problems, notes = verified.problems, verified.notes
    for name in RANKING:
        value, written = verified.measures[name], verified.measures_of_model.get(name)
        if written is not None and not (abs(value - written) <= SAME or math.isnan(value)):
            problems.append(f"{name} is {value:.10g} on these rows, and the model says {written:.10g}")
    of_set = isinstance(request.data, str | os.PathLike) and is_data_set(request.data)
    if of_set:
        problems += comm.bcast(dataset.verify(request.data) if comm.is_root else None)
        notes.append("the checksums of model and shards were compared with their contents")
    if verified.certificate is None:
        notes.append(
            Message(
                "the lower bound and the gap stand in the model, and cannot be checked without a certificate: "
                f"distsms train {option('certificate', text='FILE')} writes one"
            )
        )
