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

from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_ERROR, EXIT_OK, InputError
from distsms.base.measures import RANKING, Measure
from distsms.base.schema import is_number
from distsms.base.typing import Floats
from distsms.base.wording import Message, option
from distsms.ingest.file_names import is_data_set
from distsms.losses.base import Loss
from distsms.losses.dual_bound import dual_bound
from distsms.losses.registry import choose_ordering, make_loss
from distsms.metrics.row_weights import masses
from distsms.metrics.summary import summary_measures
from distsms.models.model import Model
from distsms.models.scoring import ScoredRows
from distsms.optim.penalty import ElasticNet
from distsms.shards.manifest import verify as verify_files
from distsms.training import certificate
from distsms.training.certificate import Certificate
from distsms.workflow.evaluate import load_models, name_of, score_data
from distsms.workflow.requests import VerifyRequest

SAME, SAME_ROWS = 1e-8, 1e-11
"""J counts as that of the model if it differs by at most this share of 1 + J, and rows as those of the certificate if
their sketch differs by this share of what its terms add up to.
"""
CLAIMED = 1e-5
"""A certificate may say that it proves so much more than it does here, where rows are added up in other parts."""


@dataclass(frozen=True)
class Verified:
    """What was found, alike on all ranks."""

    model: str
    data: str
    certificate: str | None
    J: float  # of the model on these rows: computed anew, as are all numbers but those that the model says
    J_of_model: float | None
    measures: dict[str, float]
    lower_bound: float | None = None  # on min J, from the certificate
    problems: list[str] = field(default_factory=list)  # what is not as it should be
    notes: list[str] = field(default_factory=list)  # what was checked, and what could not be

    @property
    def gap(self) -> float | None:
        """By how much the J of another w may be smaller at most; None without a certificate."""
        return None if self.lower_bound is None else max(self.J - self.lower_bound, 0.0)

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR if self.problems else EXIT_OK

    def to_dict(self) -> dict[str, Any]:
        """Return what `distsms verify --json` prints."""
        return {**vars(self), "gap": self.gap}


@dataclass
class _Products:
    """X'c of this rank's rows with coefficients c (n_local,), and the largest |x_ij| and entries of their columns."""

    c: Floats
    r: Floats  # (p,)
    largest: Floats
    counts: Floats
    at: int = 0

    def __call__(self, models: Sequence[Model], rows: Any, scores: list[Floats], weights: Floats | None) -> None:
        self.r += rows.transposed_times(self.c[self.at : self.at + rows.shape[0]])
        self.at += rows.shape[0]
        largest, counts, _ = rows.columns()
        np.maximum(self.largest, largest, out=self.largest)
        self.counts += counts


def verify(request: VerifyRequest, comm: Communicator) -> Verified:
    """Check a model on its training rows, and its bound if there is a certificate. **Collective.** Raises InputError on
    all ranks if files cannot be read, or the certificate is of another problem, model or rows.
    """
    (named,) = load_models([request.model], comm)
    loaded, name = named.model, name_of(request.data)
    proof, info = None, named.model.info
    with comm.fail_together():
        measure = Measure.parse(info.get("measure", "rocarea"))
        if not isinstance(info.get("lambda"), float):
            raise InputError(f"{named.name}: does not say for which lambda it was trained, so it has no J")
        if request.certificate is not None:
            proof = certificate.load(request.certificate, checked=comm.is_root)
            _require_same_problem(proof, loaded)
    # 1) The scores, and those of the sketch.
    reading = replace(request.reading, groups=measure.within_groups is not None)
    numbers = replace(loaded, w=certificate.column_numbers(loaded.p), info={**info, "bias": 0.0})
    scored = score_data([loaded, numbers], request.data, comm, reading)
    if proof is not None:
        _require_same_rows(proof, scored, name, comm)
    # 2) J and the measures.
    counted = scored.counted_scores(scored.scores[0], comm)
    n_pos, n_neg = (max(int(count), 1) for count in masses(counted.classes, None, comm))
    ordering, _ = choose_ordering("auto", measure, n_pos, n_neg, comm.size)
    loss = make_loss(measure, ordering, scored.labels, scored.weights, comm, scored.groups)
    value = loss.evaluate(scored.scores[0].copy(), 0.0)
    constant = float(info.get("constant") or (loaded.bias and 1.0))
    w = loaded.normalization.unfold(loaded.w)
    w = np.append(w, loaded.bias / constant) if constant else w
    J = value.R + _regularizer(loaded).value(float(w @ w), float(np.sum(np.abs(w))))
    measures = summary_measures(measure, counted, loaded.threshold)
    # 3) What is not as the files say.
    problems, notes, written = list[str](), list(scored.notes), {"J": info.get("J"), **(info.get("training") or {})}
    width = value.width + (info.get("width") or 0.0)  # of the interval of J, where it was computed by bins
    for label in ("J", *(RANKING if info.get("training") else ())):  # moments of classes know no ranking
        here, there = {"J": J, **measures}[label], written.get(label)
        slack = SAME * (1 + abs(here)) + width * (label == "J")
        if there is None or not (abs(here - there) <= slack or math.isnan(here)):
            others = f"and the model says {there}: it was trained on others"
            problems.append(f"{label} is {here:.10g} on these rows, {others}")
    bound = None
    if proof is None:
        writes = f"distsms train {option('certificate', text='FILE')} writes one"
        notes.append(Message(f"the model's bound and gap cannot be checked without a certificate; {writes}"))
    else:
        bound = _bound(proof, loaded, scored, loss, constant, request)
        problems += _false_claims(proof, J, SAME * (1 + abs(J)) + width, bound)
        if bound > J + SAME:
            problems.append("the lower bound is above J, which cannot be: please report this")
    if isinstance(request.data, str | os.PathLike) and is_data_set(request.data):
        problems += comm.of_root(lambda: verify_files(request.data))
        notes.append("the checksums of model and shards were compared with their contents")
    path = None if proof is None else proof.path
    return Verified(named.name, name, path, J, written["J"], measures, bound, problems=problems, notes=notes)


def _require_same_problem(proof: Certificate, loaded: Model) -> None:
    """Raise InputError unless a certificate is of the model, and of the problem that this was trained for. Local."""
    usual = {"measure": None, "lambda": None, "l1": 0.0, "constant": 0.0}
    problem = {name: loaded.info.get(name, value) for name, value in usual.items()} | {"p": loaded.p}
    for name, value in problem.items():
        if proof.info.get(name) != value:
            raise InputError(f"{proof.path}: is for {name} {proof.info.get(name)}, and the model for {value}")
    if proof.info["model"] != certificate.fingerprint(loaded.w, loaded.bias):
        raise InputError(f"{proof.path}: is the certificate of another model: the coefficients differ")


def _require_same_rows(proof: Certificate, scored: ScoredRows, name: str, comm: Communicator) -> None:
    """Raise InputError on all ranks unless rows are those of a certificate, in its order. **Collective.**"""
    info, labels = proof.info, scored.labels
    n, size = comm.sum(np.array([len(labels), np.sum(np.abs(scored.scores[1])) + len(labels)])).tolist()
    if n != info["n"] or bool(info.get("weights")) != (scored.weights is not None):
        differ = "of which one has weights" if n == info["n"] else f"{n:.0f} here and {info['n']} there"
        raise InputError(
            f"{name}: has other rows than the training of {proof.path} ({differ}). Give the rows of the training; of a "
            f"table, they are in the folder train of its {option('shards', text='FOLDER')}, since others were held out",
            everywhere=True,
        )
    rows = certificate.sketch(scored.scores[1], labels, scored.weights, scored.first_row, comm)
    if not abs(rows - info["rows"]) <= SAME_ROWS * size:
        raise InputError(f"{name}: has other rows than those of {proof.path}, or the same in another order", True)


def _false_claims(proof: Certificate, J: float, inexact: float, bound: float) -> list[str]:
    """Return what a certificate says of itself that is not so: its J, or that it proves more than it does. Local."""
    said, proved, problems = proof.info.get("J"), proof.info.get("bound"), list[str]()
    if said is not None and not (is_number(said) and abs(said - J) <= inexact):
        problems.append(f"J is {J:.10g} on these rows, and {proof.path} says {said}")
    if proved is not None and not (is_number(proved) and proved - bound <= CLAIMED * (1 + abs(bound))):
        problems.append(f"{proof.path} says that it proves {proved}, and it proves {bound:.10g}")
    return problems


def _regularizer(loaded: Model) -> ElasticNet:
    return ElasticNet(loaded.info["lambda"], loaded.info.get("l1", 0.0))


def _bound(
    proof: Certificate, loaded: Model, scored: ScoredRows, loss: Loss, constant: float, request: VerifyRequest
) -> float:
    """Return the lower bound that a certificate proves: a second pass over the rows. **Collective.**"""
    first, last = scored.first_row, scored.first_row + len(scored.labels)
    comm, p = loss.comm, loaded.p
    with comm.fail_together():
        c, alpha = proof.read("c", first, last), proof.read("alpha", first, last)
    assert c is not None
    proved = dual_bound(loss, c, alpha, proof.labelings)
    products = _Products(proved.c, np.zeros(p), np.zeros(p), np.zeros(p))
    score_data([loaded], request.data, comm, replace(request.reading, groups=False), products)
    r, largest, counts = products.r, products.largest, products.counts
    if loaded.scale is not None:
        r, largest = r * loaded.scale, largest * loaded.scale
    if constant:
        r, counts = np.append(r, constant * np.sum(proved.c)), np.append(counts, len(c))
        largest = np.append(largest, constant)
    return certificate.lower_bound(proved, comm.sum(r), comm.maximum(largest), comm.sum(counts), _regularizer(loaded))
