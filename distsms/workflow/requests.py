"""What a user can ask for. The command line, the functions of `distsms` and `SMSClassifier` translate into it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.measures import Condition, Measure
from distsms.base.wording import option
from distsms.features.candidates import COLUMNS, Candidate
from distsms.ingest.options import ReadOptions, WriteOptions
from distsms.models.inputs import AS_TRAINED, UNLABELLED, InputOptions
from distsms.models.model import Model
from distsms.shards.splits import Splitter, usual_split
from distsms.training.task import AUTO, Distribution

if TYPE_CHECKING:  # every command loads this module, and few need these
    from distsms.matrix.blocks import LocalRows
    from distsms.matrix.side_by_side import SideBySide
    from distsms.models.evaluation import EvaluationOptions

Path: TypeAlias = str | os.PathLike[str]
FOLDS = 5
"""How many folds there are if nobody says otherwise."""


class Arrays(NamedTuple):
    """This rank's rows in memory: features, labels and, on every rank or on none, weights and groups."""

    X: Any
    y: Any
    weights: Any = None
    groups: Any = None


class Split(NamedTuple):
    """How rows of files and tables are held out: the shares of training and test rows, what stays together, the seed.

    Without shares all rows train. Without `by`, it follows from groups and times.
    """

    shares: Sequence[float] | None = None
    by: str | None = None
    seed: int = 0

    def splitter(self, group: str | None, time: str | None) -> Splitter | None:
        """Return how rows are split that have groups and times in these columns; None if all stay together.

        Raises InputError if the split contradicts itself.
        """
        if self.shares is None:
            if self.by is not None:
                raise InputError(
                    f"{option('split_by')} says what {option('split')} keeps together; give {option('split')}, too",
                    everywhere=True,
                )
            return None
        return Splitter(tuple(self.shares), self.seed, self.by or usual_split(group, time))


@dataclass(frozen=True)
class ShardRequest:
    """Data sets that are made of rows, as a user can ask for them. All ranks have the same, but for rows in memory."""

    data: Any  # files, patterns or folders of tables; or this rank's rows, a table or `Arrays`
    output: Path  # the folder of the data set, or that of the folders of the parts of a split
    reading: ReadOptions = field(default_factory=ReadOptions)
    writing: WriteOptions = field(default_factory=WriteOptions)  # but for its split
    split: Split = field(default_factory=Split)
    like: Path | None = None  # a data set whose columns, categories, labels and normalization are taken over
    overwrite: bool = False  # whether to replace a data set that is there already


@dataclass(frozen=True)
class TrainRequest:
    """A training, as a user can ask for it. All ranks have the same, except for rows in memory."""

    data: Any  # a data set; files, patterns or folders of tables; or this rank's rows
    measure: Measure = field(default_factory=lambda: Measure.parse("rocarea"))  # what to optimize
    # lambda. None: that of the checkpoint that is resumed; "auto" for tables and data sets made of them; else 1e-4.
    lam: float | str | None = None
    bias: float | None = None  # the value of a constant feature, 0 for none; None: what is usual for the measure
    solver: str | None = None  # the solver; None: what is usual for the measure and the machine
    settings: Mapping[str, Any] = field(default_factory=dict)  # other fields of `distsms.optim.settings.Settings`
    start: Model | Path | None = None  # a model to begin from
    distribution: Distribution = AUTO  # how scores are sorted, and where vectors are kept
    memory: float | None = None  # the most bytes that each rank may take
    # the folder for the state of the run, whether to continue from it, and the seconds between two states
    checkpoint: Path | None = None
    checkpoint_every: float | None = None
    resume: bool = False
    trace: Path | None = None  # the files that get a line for each evaluation, and the model
    output: Path | None = None
    test: Path | None = None  # the data set or the file with the test rows
    ignore_new: bool = False  # whether to leave out those columns of the test rows that the model lacks
    shards: Path | None = None  # the folder where the data sets of files and tables are kept; None: a temporary one
    split: Split = field(default_factory=Split)  # how rows of files and tables are held out, if there is no `test`
    # how files and tables are read: arguments of `distsms.ingest.convert.convert`
    reading: Mapping[str, Any] = field(default_factory=dict)
    check: bool = True  # whether to compare models for other measures with a quick ROCArea model
    # the condition for the threshold, the curve of probabilities, and the number of folds that serve both
    at: str | Condition | None = None
    calibrate: str | None = None
    folds: int = FOLDS
    # makes the features of all rows from some rows alone, for these folds
    features_of: Callable[[NDArray[Any]], LocalRows | SideBySide] | None = None


@dataclass(frozen=True)
class EvaluateRequest:
    """An evaluation of models on labelled rows. All ranks have the same, except for rows in memory."""

    models: Sequence[Model | Path]
    data: Any  # a data set; a file, a pattern or a folder of tables; a table in memory; or this rank's rows (`Arrays`)
    measures: EvaluationOptions  # what is computed
    reading: InputOptions = AS_TRAINED  # how the rows are read


@dataclass(frozen=True)
class PredictRequest:
    """Scores of rows. All ranks have the same, except for rows in memory."""

    model: Model | Path
    data: Any  # rows, as for an evaluation, which need no labels
    reading: InputOptions = UNLABELLED
    labels: bool = False  # whether each row also gets its class, and its probability of being positive
    probability: bool = False
    output: str | None = None  # the file to write, "-" for standard output; None: the scores are returned
    verbatim: bool = False  # whether names of rows are written as they are


@dataclass(frozen=True)
class ReportRequest:
    """A page on a model, and on its measures on labelled rows. All ranks have the same, except for rows in memory."""

    model: Model | Path
    data: Any  # rows, as for an evaluation
    measures: EvaluationOptions
    output: Path = "report.html"  # the page, and the folder that gets each of its figures
    figures: Path | None = None
    reading: InputOptions = AS_TRAINED
    called: str | None = None  # what the page calls the rows; None: the name of the file
    feature_names: Path | Sequence[str] | None = None  # names of the columns, or a file with one in each line
    trace: Path | None = None  # the trace of the training; None: where the model says that it is, or beside the model
    path: Path | None = None  # folders of `distsms path` and `distsms baseline`
    baseline: Path | None = None


@dataclass(frozen=True)
class PathRequest:
    """A path of lambdas, or several paths that are compared, as a user can ask for it. All ranks have the same."""

    data: Path  # a data set
    output: Path | None = None  # the folder of points and models, which a second call continues; None: a temporary one
    measure: str = "rocarea"  # what to optimize; several pauc, separated by commas, for a path of each
    lambdas: Sequence[float] | None = None  # None: those of `distsms.workflow.path_run.LAMBDAS`, and more at an end
    extend: bool | None = None  # whether lambdas are tried beyond those; None: unless `lambdas` says which
    l1: Sequence[float] = (0.0,)  # the weights of ||w||_1; there is a path for each
    features: Sequence[Candidate] = (COLUMNS,)  # what is made from the columns; there is a path for each
    bias: float | None = None  # the value of a constant feature, 0 for none; None: what is usual for the measure
    folds: int = 5  # 0: models of all rows alone
    folds_by: str | None = None  # what the folds keep together; None: groups, if the data set has them, or rows
    seed: int = 0
    select: str | None = None  # the measure of held-out rows that chooses; None: the one that is optimized
    rule: str = "best"  # how lambda is chosen: one of `distsms.workflow.path.RULES`
    solver: str | None = None  # the solver; None: what is usual for the measure and the machine
    settings: Mapping[str, Any] = field(default_factory=dict)  # other fields of `distsms.optim.settings.Settings`
    ordering: str = "auto"  # how scores are sorted, and where vectors are kept
    step: str = "auto"
    at_once: int | None = None  # how many models share a pass; None: all, unless there are very many columns
    memory: float | None = None  # the most bytes that each rank may take
    time_limit: float = math.inf  # the seconds of all trainings together
    check: bool = True  # whether to compare models for other measures with quick ROCArea models
    at: str | Condition | None = None  # the condition for the threshold, and the curve of probabilities
    calibrate: str | None = None


@dataclass(frozen=True)
class BaselineRequest:
    """A comparison of methods on the folds of a data set. All ranks have the same."""

    data: Path  # a data set
    output: Path  # the folder of the fits, in which a baseline of the same problem goes on
    measure: str = "rocarea"  # what distsms trains for
    select: str | None = None  # what chooses the settings of all methods; None: the measure
    lambdas: Sequence[float] | None = None  # those of linear methods; None: those of the path, or the usual ones
    folds: int = 5  # the number of folds, what they keep together, and their seed
    folds_by: str | None = None
    seed: int = 0
    epsilon: float | None = None  # the gap to prove
    relative: float | None = None
    path: Path | None = (
        None  # a folder of `distsms path`, from which all these are taken unless they are said otherwise
    )
    methods: Sequence[str] | None = None  # names of `competitors.METHODS`; None: those that suit data and memory
    trees: bool = True  # whether to compare with boosted trees
    features: bool = True  # whether to compare with models on features, also without trees if the methods are named
    tree_fits: int = 20  # how many settings of trees are tried for each fold
    solver: str | None = None  # the solver of distsms; None: what is usual for the measure and the machine
    settings: Mapping[str, Any] = field(default_factory=dict)  # other fields of `distsms.optim.settings.Settings`
    ordering: str = "auto"  # how scores are sorted, and where vectors are kept
    step: str = "auto"
    memory: float | None = None  # the most bytes that each rank may take
    time_limit: float = math.inf  # the seconds after which the fits are stopped


@dataclass(frozen=True)
class FeaturesRequest:
    """A data set whose rows are features of the rows of another one. All ranks have the same."""

    data: Path  # a data set
    output: Path  # the directory of the new one
    # fields of `distsms.features.fit.FeatureOptions`; there are 32 bins if neither bins nor trees are mentioned
    options: Mapping[str, Any] = field(default_factory=dict)
    like: Path | None = None  # a data set with features, whose rules are used instead
    shards: int | None = None  # the number of shards; None: as many as the data have, and at least one for each rank
    compression: str = "none"
    overwrite: bool = False  # whether to replace a data set that is there already
    memory: float | None = None  # the most bytes that each rank may take
