"""Models, and their file: HDF5, written atomically, readable with h5py alone (no pickle, no MPI, no PETSc). Its arrays
`w` (p,), `scale` (p,), `table`, `coded` and `features`, and its attributes, are listed in docs/reference/model-file.md.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distsms.base import hdf5, schema
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, check_writable, note_content, require_space
from distsms.base.measures import Measure
from distsms.base.schema import Fields, is_number, is_number_or_null, is_positive, is_share, is_text
from distsms.base.wording import option
from distsms.matrix.normalization import BY_COLUMN, KINDS, Normalization
from distsms.metrics import calibration, row_sample
from distsms.shards.coded_columns import NOT_CODED, CodedColumns, ColumnNames
from distsms.shards.labels import class_names
from distsms.shards.manifest import Manifest
from distsms.shards.table_schema import Table

if TYPE_CHECKING:  # loaded with those models that have features
    from distsms.features.feature_map import FeatureMap

FORMAT = "distsms-model"
VERSION, CODED_VERSION, TABLE_VERSION = 4, 3, 2
"""The version of models with a feature map, of others with coded columns, and of those of tables, since older programs
do not know these; other models have version 1."""
MEAN_CONTRIBUTIONS = "mean_contributions"
"""What the information of a model calls the mean contributions of its terms; see `distsms.models.contributions`."""
PACKED_FROM = 2**12
"""Number of columns from which a model with many coefficients of 0 is written with compression."""


@dataclass(frozen=True)
class Model:
    """A trained model: its coefficients, and all information that its file has on them.

    Parameters
    ----------
    w : ndarray of shape (p,)
        Coefficients, float64: the score of a row is <w, x> + bias.
    info : dict
        Information on the model: measure, lambda, status, J, lower_bound, gap, threshold, label_map and more.
    table : Table, optional
        Columns and categories of the table that the training rows came from.
    scale : ndarray of shape (p,), optional
        The factors by which training multiplied the columns, if it normalized them. w already includes them.
    coded : CodedColumns
        The coded columns of the training data, which come last; with it, new sequences are read.
    features : FeatureMap, optional
        How the columns of new rows become codes, if the training data were made by a feature map.
    """

    w: NDArray[np.float64]
    info: dict[str, Any]
    table: Table | None = None  # of the training data
    scale: NDArray[np.float64] | None = None  # (p,), of `normalization`
    coded: CodedColumns = NOT_CODED
    features: FeatureMap | None = None

    def __repr__(self) -> str:
        """Return a line with the measure, lambda, the number of columns, and how good the model is."""
        info = self.info
        parts = [f"{info.get('measure', '?')}", f"{self.p} columns", f"{info.get('status', 'status unknown')}"]
        parts[1:1] = [f"{key}={info[name]:g}" for key, name in (("lambda", "lambda"), ("l1", "l1")) if name in info]
        parts += [f"gap={info['gap']:.3g}"] if info.get("gap") is not None else []
        for rows in ("training", "test"):
            area = (info.get(rows) or {}).get("rocarea")
            parts += [f"ROCArea {area:.4f} on the {rows} rows"] if area is not None else []
        return f"<distsms.Model: {', '.join(parts)}>"

    @property
    def normalization(self) -> Normalization:
        """How the rows were normalized in training."""
        return Normalization(self.info.get("normalize", "none"), self.scale)

    @property
    def p(self) -> int:
        """The number of columns that the model knows."""
        return len(self.w)

    @property
    def p_original(self) -> int:
        """The number of columns of the rows that it takes: p, unless a feature map makes others of them."""
        return self.p if self.features is None else self.features.columns

    @property
    def feature_names(self) -> Sequence[str] | None:
        """The names of all p columns if the training data were a table or had coded columns, else None."""
        if self.coded:
            return ColumnNames(self.p, self._coded_name)
        if self.table is None:
            return None
        return [self.original_name(column) for column in range(self.p)]

    def original_name(self, column: int) -> str:
        """Return what people call a column of the source: its name, or else the number that it has in the source."""
        if self.table is not None and column < self.table.p:
            return self.table.feature_names[column]
        named = self.features.bins.names_of_columns if self.features and self.features.bins else {}
        return named.get(column) or f"column {column if self.info['zero_based'] else column + 1}"

    def _coded_name(self, column: int) -> str:
        others = self.p - self.coded.p
        if column < others:
            return self.original_name(column)
        return (self.features or self.coded).column_name(column - others)

    @property
    def bias(self) -> float:
        """What is added to <w, x> in every score; 0 in models without a constant feature."""
        return float(self.info.get("bias", 0.0))

    @property
    def raw_bias(self) -> float:
        """What is added to <w, x> if the numbers in x are as in the table, without the means that are subtracted."""
        offsets = {} if self.table is None or self.p == self.coded.p else self.table.offsets
        return self.bias - sum(offset * float(self.w[column]) for column, offset in offsets.items())

    @property
    def threshold(self) -> float:
        """A row is called positive if its score is at least this."""
        return float(self.info["threshold"])

    @property
    def has_decision(self) -> bool:
        """Whether the threshold is meant for decisions: held-out folds support it, or the measure is for one."""
        decision, family = self.info.get("decision") or {}, Measure.parse(self.info.get("measure", "rocarea")).family
        return decision.get("threshold") is not None or family.log_loss or family.has_threshold

    def labels(self, scores: NDArray[np.float64]) -> NDArray[Any]:
        """Return the class of each row, one of `classes`, (n,), from its score; InputError without a threshold."""
        if not self.has_decision:
            order = f"trained for {self.info.get('measure', 'rocarea')}, which is about the order of the rows"
            train = f"distsms train or path {option('at')} 'precision>=0.9', which find one on held-out folds"
            lacking = f"the model has no threshold for labels: it was {order}. Train with {train}"
            raise InputError((self.info.get("decision") or {}).get("why") or lacking)
        return np.array(self.classes)[(scores >= self.threshold).astype(np.intp)]

    @property
    def curve(self) -> dict[str, Any] | None:
        """The curve from scores to probabilities, of held-out folds or of logistic regression; None without one."""
        usual = calibration.LOGISTIC if self.info.get("measure") == "logistic" else None
        return self.info.get("calibration", usual)

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that each row is positive, (n,), from its score; InputError if the model has none."""
        if self.curve is None:
            why = Measure.parse(self.info.get("measure", "rocarea")).family.why_no_probabilities
            train = f"Train with distsms train or path {option('calibrate', 'sigmoid')} (or isotonic)"
            logistic = f"{option('measure', 'logistic')}, whose scores are log-odds already"
            raise InputError(f"the model has no probabilities, only scores. {why}{train}, or with {logistic}")
        return calibration.probabilities(self.curve, scores)

    @property
    def class_names(self) -> dict[str, str]:
        """The labels of "+1" and of "-1" in the training data, for a message."""
        return class_names(self.info["label_map"])

    @property
    def classes(self) -> tuple[Any, Any]:
        """The negative and the positive label as in the training data; -1 and 1 if a class had several labels."""
        negative, positive = (np.atleast_1d(self.info["label_map"][sign]).tolist() for sign in ("-1", "+1"))
        labels = [*negative, *positive]
        if len(negative) != 1 or len(positive) != 1 or None in labels:
            return -1, 1
        first, last = (int(one) if isinstance(one, float) and one.is_integer() else one for one in labels)
        return first, last


def from_training(
    w: NDArray[np.float64], info: dict[str, Any], data: Manifest | None, table: Table | None = None
) -> Model:
    """Return the model of coefficients w (p,) for normalized rows, the normalization folded into w."""
    if info.get("l1"):
        info = info | {"nonzeros": int(np.count_nonzero(w))}
    if data is None:
        return Model(w, info, table)
    normalization, features = data.normalization, None
    if data.coded.features:
        from distsms.features import feature_map

        features = feature_map.load(data)
    info = info | {"normalize": normalization.kind}
    return Model(normalization.fold(w), info, data.table, normalization.scale, data.coded, features)


def intercept(bias: float, threshold: float) -> float:
    """Return b such that <w, x> + b > 0 is the same as <w, x> + bias >= threshold, for programs that use the sign."""
    return math.nextafter(bias - threshold, math.inf)


def save(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model file, completely or not at all; an older one is replaced. One process."""
    arrays = [] if model.features is None else model.features.arrays().values()
    require_space(Path(os.path.realpath(path)).parent, 2 * model.w.nbytes + sum(array.nbytes for array in arrays))
    with atomic_write(path) as output, hdf5.write_to(output) as file:
        contents: dict[str, Any] = {"w": model.w}
        if model.scale is not None:
            contents["scale"] = model.scale
        if model.table is not None:
            contents["table"] = np.frombuffer(json.dumps(model.table.as_json()).encode(), np.uint8)
        if model.coded:
            contents["coded"] = np.frombuffer(json.dumps(model.coded.record()).encode(), np.uint8)
        # Deflate makes zeros about a thousand times smaller, and every reader of HDF5 knows it.
        packed = {"compression": "gzip", "shuffle": True} if model.info.get("l1") and model.p >= PACKED_FROM else {}
        for name, array in contents.items():
            file.create_dataset(name, data=array, **(packed if name == "w" else {}))
        coded = VERSION if model.features else CODED_VERSION
        contents["version"] = coded if model.coded else 1 if model.table is None else TABLE_VERSION
        contents["info"] = json.dumps(model.info)
        file.attrs.update(format=FORMAT, version=contents["version"], info=contents["info"])
        if model.features is not None:  # `coded` has its hash, which leaves out the options
            from distsms.features import feature_map

            feature_map.write(model.features, file.create_group("features"))
            contents["options"] = model.features.options
        file.attrs["complete"] = hdf5.checksum(contents)


def save_or_rescue(path: str | os.PathLike[str], model: Model) -> None:
    """Write the model or, if this fails, into another directory that the InputError then names."""
    try:
        save(path, model)
    except InputError as error:
        for directory in (None, "/tmp", "/var/tmp", ".", os.path.expanduser("~"), "/dev/shm"):  # noqa: S108
            try:
                rescue = _save_into_new_folder(directory, Path(path).name, model)
            except (InputError, OSError):
                continue
            raise InputError(f"{error}; the model was written to {rescue} instead") from error
        raise InputError(f"{error}; and no other directory has room for the model") from error


def _save_into_new_folder(directory: str | None, name: str, model: Model) -> Path:
    """Write a model into a new folder of a directory, or of that for temporary files; leave no folder if this fails."""
    folder = Path(tempfile.mkdtemp(prefix="distsms-", dir=directory)).absolute()
    try:
        save(folder / name, model)
    except InputError:
        folder.rmdir()
        raise
    return folder / name


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if `path` is a file that is not a model, since a new model would destroy it."""
    check_writable(path)
    if Path(path).exists() and os.path.getsize(path) and not is_model(path):
        raise InputError(f"{path}: exists and is not a model; name another file, or remove it first")


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model file. Raises InputError if it is missing, no model, damaged, or newer. One process."""
    if Path(path).is_dir():
        raise InputError(f"{path}: is a directory, not a model; are the arguments swapped? MODEL comes first")
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such model file")
    hdf5.check_heaps(path, "is not a model, or is damaged; are the arguments swapped? MODEL comes first")
    note_content(path)
    with hdf5.open_file(path, "a model") as file:
        complete = hdf5.attribute(file, "complete")
        if hdf5.attribute(file, "format", text=True) != FORMAT or not isinstance(complete, np.bool_ | bytes):
            raise InputError(f"{path}: is an HDF5 file, but not a (complete) model of distsms")
        if (version := int(hdf5.attribute(file, "version"))) > VERSION:
            raise InputError(f"{path}: was written by a newer distsms (model version {version}); update distsms")
        contents: dict[str, Any] = {"version": version, "info": hdf5.attribute(file, "info", text=True)}
        contents["w"] = w = np.asarray(hdf5.dataset(file, "w")[()])
        contents |= {
            name: np.asarray(hdf5.dataset(file, name, packed=False)[()])
            for name in ("scale", "table", "coded")
            if name in file
        }
        info, scale = json.loads(contents["info"]), contents.get("scale")
        table = Table.from_json(json.loads(contents["table"].tobytes())) if "table" in file else None
        coded = CodedColumns.of(json.loads(contents["coded"].tobytes()) if "coded" in file else {})
        features = None
        if coded.features:
            from distsms.features import feature_map

            features = feature_map.read(file, "features/", coded.features, path)
            contents["options"] = features.options
        hdf5.require_checksum(complete, contents, path)
    model = Model(w, info, table, scale, coded, features)
    if fault := find_fault(model):
        raise InputError(f"{path}: damaged model: {fault}")
    return model


def has_checksum(path: str | os.PathLike[str]) -> bool:
    """Return whether a model, which `load` has read, has a checksum; those of earlier versions have none."""
    with hdf5.open_file(path, "a model") as file:
        return isinstance(hdf5.attribute(file, "complete"), bytes)


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether the file says that it is a model, complete or not."""
    try:
        hdf5.check_heaps(path)
        with hdf5.open_file(path, "a model") as file:
            return bool(hdf5.attribute(file, "format", text=True) == FORMAT)
    except InputError:
        return False


def _is_interval(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number_or_null(value.get(name)) for name in ("value", "low", "high"))


_REQUIRED: Fields = {
    "label_map": lambda labels: isinstance(labels, dict) and {"+1", "-1"} <= set(labels),
    "threshold": lambda threshold: isinstance(threshold, float),
    "zero_based": lambda zero_based: isinstance(zero_based, bool),
}
_IS_INTERVALS = dict.fromkeys(("precision", "recall", "fpr"), _is_interval)
_IS_RATES = {**dict.fromkeys(("called", "positive_share"), is_share), "effective": is_positive}
DECISION: Fields = {
    **dict.fromkeys(("threshold", "estimate", "low", "high", "precision", "tpr", "fpr"), is_number_or_null),
    **dict.fromkeys(("n", "folds", "not_proved"), is_number),
    **_IS_RATES,
    **dict.fromkeys(("condition", "why", "quantity", "folds_by"), is_text),
    "intervals": lambda value: schema.find_fault(value, _IS_INTERVALS) is None,
}
"""What a decision must have (`distsms.workflow.decisions`)."""


def find_fault(model: Model) -> str | None:
    """Return what is wrong with a model, or None."""
    w, scale, info = model.w, model.scale, model.info
    table, coded, features = model.table, model.coded, model.features
    if fault := schema.find_fault(info, _REQUIRED):
        return fault
    bias = info.get("bias", 0.0)
    if not isinstance(bias, float) or not math.isfinite(bias):
        return "the bias is not a finite number"
    normalize = info.get("normalize", "none")
    vectors = [w] if scale is None else [w, scale]
    if any(v.shape != (w.size,) or v.dtype != np.float64 or not np.isfinite(v).all() for v in vectors):
        return "w must be a vector of finite float64, and so must scale"
    lacks_scale = normalize in BY_COLUMN and scale is None
    if normalize not in KINDS or lacks_scale or (table and table.p > model.p_original):
        return "normalize, scale or table do not fit w"
    other_features = features is not None and (features.p != w.size or features.coded != coded)
    if coded.p > w.size or (coded.sequences is not None and coded.p != w.size) or other_features:
        return "its coded columns do not fit w"
    l1, nonzeros = info.get("l1", 0.0), info.get("nonzeros", 0)
    if not is_number(l1) or l1 < 0 or type(nonzeros) is not int or not 0 <= nonzeros <= w.size:
        return "l1 or nonzeros cannot be true"
    sample, curve = info.get("row_sample"), info.get("calibration")
    decision: Any = info.get("decision")
    is_empty = isinstance(sample, dict) and sample.get("keys") == ""  # which earlier versions kept, without a share
    if sample and not is_empty and (fault := schema.find_fault(sample, row_sample.RECORD)):
        return f"its sample of training rows cannot be used: {fault}"
    unusable = "calibration" in info and (calibration.find_fault(curve) or schema.find_fault(curve, calibration.JUDGED))
    if unusable:
        return f"its calibration cannot be used: {unusable}"
    if "decision" in info:
        fault = schema.find_fault(decision, DECISION)
        fault = fault or schema.find_fault(decision.get("by_rows", decision), _IS_RATES)
        return fault and f"its decision cannot be used: {fault}"
    return None
