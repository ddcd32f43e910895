"""Export models to the formats of other programs: ONNX, LIBLINEAR and CSV. Local, for one process.

Labels are the model's own (`Model.classes`). LIBLINEAR knows only whole numbers; for other labels it gets 1 and -1.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from csv import writer as csv_writer
from typing import TextIO

from distsms.base.errors import InputError
from distsms.base.files import atomic_write
from distsms.base.wording import harmless_cell, option
from distsms.metrics import calibration
from distsms.models.model import Model, intercept


def refuse_row_normalization(model: Model) -> None:
    """Raise InputError for a model whose rows must be scaled to unit length, which column weights cannot do."""
    if model.normalization.kind == "l2":
        raise InputError("weights alone cannot express rows normalized by l2: export as onnx, or normalize beforehand")


def is_logistic(model: Model) -> bool:
    """Return whether the probability of a row is 1 / (1 + exp(-s)) for its score s, and 1/2 at the threshold."""
    return model.curve == calibration.LOGISTIC and model.threshold == 0


def onnx(model: Model) -> bytes:
    """Return an ONNX model in double precision, which takes raw columns; see `distsms.models.onnx_graph`."""
    from distsms.models.onnx_graph import build

    return build(model)


def liblinear(model: Model) -> bytes:
    """Return a model file of LIBLINEAR, for its `predict`, which decides by the sign, and counts columns from 1."""
    negative, positive = model.classes
    labels = f"{positive} {negative}" if type(negative) is type(positive) is int else "1 -1"
    last = intercept(model.raw_bias, model.threshold)
    kind = "L2R_LR" if is_logistic(model) else "L2R_L1LOSS_SVC_DUAL"
    head = f"solver_type {kind}\nnr_class 2\nlabel {labels}\nnr_feature {model.p}\nbias 1\nw\n"
    return (head + "".join(f"{weight!r} \n" for weight in [*model.w.tolist(), last])).encode()


def csv(model: Model, verbatim: bool = False) -> bytes:
    """Return CSV with the columns `name` and `value`: threshold, bias, and the weight of each column."""
    names = map(str if verbatim else harmless_cell, model.feature_names or map(str, range(model.p)))
    text = io.StringIO()
    rows = csv_writer(text, lineterminator="\n")
    rows.writerows([("name", "value"), ("threshold", model.threshold), ("bias", model.raw_bias)])
    rows.writerows(zip(names, model.w.tolist(), strict=True))
    return text.getvalue().encode()


def about_probabilities(model: Model, to: str) -> str:
    """Return how to get a model's probabilities with a format that has only scores; "" if it has none. Local."""
    if to == "onnx" or model.curve is None:
        return ""
    if to == "liblinear" and is_logistic(model):
        return "predict -b 1 of LIBLINEAR writes the probabilities of this model; without -b it writes labels"
    if model.curve == calibration.LOGISTIC:
        return f"{to} has no probabilities, only scores; the probability of a row is 1 / (1 + exp(-score))"
    return f"{to} has no probabilities, only scores; --to onnx has the curve that makes probabilities from them"


FORMATS: dict[str, Callable[[Model], bytes]] = {"onnx": onnx, "liblinear": liblinear, "csv": csv}


def write(model: Model, to: str, path: str | os.PathLike[str], stdout: TextIO, verbatim: bool = False) -> None:
    """Write the model in the format `to` of FORMATS, atomically; "-" is `stdout`. Raises InputError."""
    if model.coded and to != "csv" and (to != "onnx" or model.features is None):
        coded = f"the model takes {model.coded.describe()}, which {to} cannot turn into columns"
        raise InputError(f"{coded}: score them by distsms predict, or export the weights with {option('to')} csv")
    if to != "onnx":
        refuse_row_normalization(model)
    content = csv(model, verbatim) if to == "csv" else FORMATS[to](model)
    if path == "-":
        stdout.buffer.write(content)
        stdout.flush()
        return
    with atomic_write(path) as file:
        file.write(content)
