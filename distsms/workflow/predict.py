"""Scores as a user asks for them: returned to a program, or written to a file part by part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import check_writable
from distsms.base.typing import Floats
from distsms.base.wording import Message, option
from distsms.ingest.file_names import files_of, is_data_set
from distsms.ingest.formats.registry import format_of
from distsms.models import inputs, model, output, scoring, shift
from distsms.models.contributions import Reasons
from distsms.models.model import Model
from distsms.models.output import ScoresPart
from distsms.shards.manifest import read_manifest
from distsms.workflow.evaluate import load_models, score_data
from distsms.workflow.requests import PredictRequest


@dataclass(frozen=True)
class Predicted:
    """The scores of rows. All ranks have the same, but for the scores."""

    model: Model
    scores: Floats | None  # <w, x> + bias of this rank's rows; None if they were written to a file
    reasons: NDArray[Any] | None  # (n_local, count) of str, for scores that are returned, if they were asked for
    n: int  # the number of rows of all ranks
    warnings: list[str]  # what users must know before they believe labels and probabilities
    notes: list[str]  # what readers of files left out, or took for something else


def predict(
    request: PredictRequest, comm: Communicator, written: Callable[[int, int], None] = lambda done, of: None
) -> Predicted:
    """Score rows, in one pass, and write the scores if the request names a file; `written` is called on every rank with
    how many parts of the file are written, and of how many. **Collective.**"""
    (named,) = load_models([request.model], comm)
    loaded, data, reading = named.model, request.data, request.reading
    sums = np.zeros(len(SUMS))

    def further(scores: Floats) -> dict[str, Any]:
        labels = {"label": loaded.labels(scores)} if request.labels else {}
        return labels | ({"probability": loaded.probabilities(scores)} if request.probability else {})

    def sum_up(scores: Floats, names: int) -> None:
        p = loaded.probabilities(scores) if request.probability else np.empty(0)
        called = np.count_nonzero(scores >= loaded.threshold) if request.labels else 0
        sums[:] += np.array([called, p.sum(), p @ p, names])

    def warnings(n: int) -> list[str]:
        return _warnings(request, loaded, n, dict(zip(SUMS, comm.sum(sums).tolist(), strict=True)))

    with comm.fail_together():
        columns = list(further(np.empty(0)))  # says so if the model lacks what is asked for
        reasons = Reasons(loaded, request.reasons) if request.reasons else None
        names = [] if reasons is None else [f"reason_{k + 1}" for k in range(reasons.count)]
        columns += names
        if request.output not in (None, "-"):
            output.check_ending(request.output, columns)
            check_writable(request.output)
            inputs.check_distinct(request.output, data, None if isinstance(request.model, Model) else request.model)
            if model.is_model(request.output):
                raise InputError(f"{request.output}: is a model, which the scores would replace; name another file")
    if request.output is None:
        scored = score_data([loaded], data, comm, reading, reasons)
        (scores,) = scored.scores
        sum_up(scores, 0)
        n = sum(comm.allgather(len(scores)))
        texts = None if reasons is None else reasons.take()
        return Predicted(loaded, scores, texts, n, warnings(n), list(scored.notes))

    notes = list[str]()

    def parts() -> Iterator[ScoresPart]:
        for part in scoring.score_in_parts(loaded, data, comm, reading, written, notes, reasons):
            sum_up(part.scores, len(part.ids or ()))
            texts = [] if reasons is None else reasons.take().T.tolist()
            yield part._replace(texts=dict(zip(names, texts, strict=True)))

    n = output.write(
        request.output, parts(), comm, inputs.id_name(loaded, data, reading), request.verbatim, further, names
    )
    return Predicted(loaded, None, None, n, warnings(n), notes)


SUMS = ("called", "p", "squares", "names")
"""What is summed over rows for warnings: which are called positive, probabilities and their squares, who has a name."""


def _warnings(request: PredictRequest, of: Model, n: int, sums: Mapping[str, float]) -> list[str]:
    """Return what is odd about names, labels and probabilities."""
    data, lines, positive = request.data, [], None
    if (request.labels or request.probability) and isinstance(data, str | os.PathLike) and is_data_set(data):
        manifest = read_manifest(data)
        positive = manifest.n_pos / manifest.n if manifest.n_pos and manifest.n_neg else None
    missing = of.table.id if request.output is not None and of.table is not None and n and not sums["names"] else None
    if request.output is not None and not n:
        lines.append(f"{data}: has no rows, so there are no scores")
    if missing is not None and format_of(files_of(data)[0]) == "table":
        other = f"{option('id', text='COLUMN')} takes another column"
        lines.append(Message(f"{data}: has no column {missing!r} with names of rows, so scores have none; {other}"))
    if request.labels:
        lines.append(shift.describe(of.info, int(sums["called"]), n, positive))
    if request.probability and n:
        mean = sums["p"] / n
        lines.append(shift.describe_probabilities(of.info, mean, sums["squares"] / n - mean**2, n, positive))
    return [line for line in lines if line]
