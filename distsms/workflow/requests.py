"""What a user can ask for. The command line, the functions of `distsms` and `SMSClassifier` translate into it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from numpy.typing import NDArray

from distsms.base.choices import DEVICES, KINDS, TOGETHER, check_fields, require_choice
from distsms.base.errors import InputError
from distsms.base.formatting import parse_bytes, parse_duration
from distsms.base.measures import Condition, Measure
from distsms.base.wording import format_value, option
from distsms.ingest.options import ReadOptions, WriteOptions
from distsms.models.inputs import AS_TRAINED, UNLABELLED, InputOptions
from distsms.models.model import Model
from distsms.optim.settings import Settings
from distsms.shards.splits import Splitter, usual_split
from distsms.training.task import AUTO, Distribution
from distsms.workflow.candidates import COLUMNS, Candidate

if TYPE_CHECKING:  # every command loads this module, and few need these
    from distsms.matrix.blocks import LocalRows
    from distsms.matrix.side_by_side import SideBySide
    from distsms.models.evaluation import EvaluationOptions

Path: TypeAlias = str | os.PathLike[str]
F = TypeVar("F", bound="FitRequest")
FOLDS = 5
"""How many folds there are if nobody says otherwise."""

KINDS["Model | Path"] = (Model, str, os.PathLike), "model"  # which `base` does not know
LEAST = {"folds": 0, "reasons": 0, "seed": 0, "shards": 1, "tree_fits": 1, "at_once": 1}
"""The smallest whole numbers of fields."""


class Arrays(NamedTuple):
    """This rank's rows in memory: features, labels and, on every rank or on none, weights and groups."""

    X: Any
    y: Any
    weights: Any = None
    groups: Any = None


@dataclass(frozen=True)
class Split:
    """The shares of training and test rows (None: all train), what stays together, and the seed."""

    shares: Sequence[float] | None = None
    by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, LEAST, by="split_by")

    def splitter(self, group: str | None, time: str | None) -> Splitter | None:
        """Return how rows with groups and times in these columns are split; None if all stay together."""
        if self.shares is None:
            if self.by is not None:
                raise InputError(f"{option('split_by')} says what {option('split')} keeps together; give both", True)
            return None
        if self.by is not None:
            require_choice("split_by", self.by, TOGETHER)
        return Splitter(tuple(self.shares), self.seed, self.by or usual_split(group, time))


DEFAULT_LAMBDA = 1e-4
"""The lambda of trainings that do not choose one, and of data with too few rows to choose one."""
LAMBDAS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""The lambdas that are tried if the user names none; a path tries more at an end where the best one is."""


@dataclass(frozen=True)
class Request:
    """What a user can ask for. All ranks have the same, except for rows in memory. Memory may be a text like "4GiB"."""

    def __post_init__(self) -> None:
        if isinstance(memory := getattr(self, "memory", None), str):
            object.__setattr__(self, "memory", parse_bytes(memory))
        elif memory == math.inf:
            object.__setattr__(self, "memory", None)
        elif isinstance(memory, int | float) and not memory > 0:
            raise InputError(f"{option('memory')} is {memory}; it must be an amount such as 500MiB or 4GiB", True)
        check_fields(self, LEAST)
        for each in fields(self):
            if each.type in ("Path", "Path | None") and (path := getattr(self, each.name)) is not None:
                object.__setattr__(self, each.name, os.fspath(path))


@dataclass(frozen=True)
class FitRequest(Request):
    """What all trainings have in common."""

    data: Any  # a data set; files, patterns or folders of tables; a table in memory; or this rank's rows (`Arrays`)
    _: KW_ONLY
    solver: str | None = None  # the solver; None: what is usual for the measure and the machine
    settings: Mapping[str, Any] = field(default_factory=dict)  # other fields of `distsms.optim.settings.Settings`
    distribution: Distribution = AUTO  # how scores are sorted, and where vectors are kept
    memory: float | None = None  # the most bytes that each rank may take

    def __post_init__(self) -> None:
        super().__post_init__()
        self.distribution.check()

    @classmethod
    def option_names(cls) -> set[str]:
        """Return the names of fields, and of the options that `of_options` makes parts of fields of."""
        return {each.name for kind in (cls, Settings) for each in fields(kind)} | {*Distribution._fields}

    @classmethod
    def of_options(cls: type[F], options: Mapping[str, Any], /, **others: Any) -> F:
        """Return the request of fields, parts of `distribution` and settings by name, with `others` in their place."""
        names = {each.name for each in fields(cls)} - {"settings", "distribution"}
        named = {name: options[name] for name in options.keys() & names}
        distribution = {name: options[name] for name in Distribution._fields if name in options}
        settings = {name: options[name] for name in options.keys() - names - {*Distribution._fields}}
        return cls(**named | {"distribution": Distribution(**distribution), "settings": settings} | others)


@dataclass(frozen=True)
class FoldsRequest(FitRequest):
    """What trainings on the folds of a data set have in common."""

    data: Path
    _: KW_ONLY
    measure: str = "rocarea"  # what to optimize
    select: str | None = None  # the measure of held-out rows that chooses; None: as `Measure.chooser` says
    lambdas: Sequence[float] | None = None  # None: `LAMBDAS`, or those of a path that is named
    folds: int = FOLDS  # the number of folds, what they keep together (None: groups, if there are some), their seed
    folds_by: str | None = None
    seed: int = 0
    time_limit: float = math.inf  # the seconds of all trainings together


@dataclass(frozen=True, kw_only=True)
class DecisionRequest(Request):
    """What trainings with one model in the end have in common."""

    bias: float | None = None  # the value of a constant feature, 0 for none; None: what is usual for the measure
    check: bool = True  # whether to compare models for other measures with quick ROCArea models
    at: str | Condition | None = None  # the condition for the threshold, and the curve of probabilities
    calibrate: str | None = None


FOR_READERS = {"table", "label_map", "encoding", "labelled", "ignore_new", "n_shares"}
"""The fields of `ReadOptions` by which the program tells readers what it knows; users do not give them."""
OF_FILES = {field.name for field in fields(ReadOptions) if field.compare} - FOR_READERS
"""The options of how files and tables are read."""
READING = OF_FILES | {"normalize", "n_shards", "dtype", "weight_file"}
"""The options of how tables are read, and of the data sets that trainings make of them."""


@dataclass(frozen=True)
class ShardRequest(Request):
    """Data sets that are made of rows."""

    data: Any  # files, patterns or folders of tables; or this rank's rows, a table or `Arrays`
    output: Path  # the folder of the data set, or that of the folders of the parts of a split
    reading: ReadOptions = field(default_factory=ReadOptions)
    writing: WriteOptions = field(default_factory=WriteOptions)  # but for its split
    split: Split = field(default_factory=Split)
    like: Path | None = None  # a data set whose columns, categories, labels and normalization are taken over
    overwrite: bool = False  # whether to replace a data set that is there already


@dataclass(frozen=True)
class TrainRequest(FitRequest, DecisionRequest):
    """A training."""

    measure: Measure = field(default_factory=lambda: Measure.parse("rocarea"))  # what to optimize
    device: str = "cpu"  # what computes with the rows
    # lambda. None: that of the checkpoint that is resumed; "auto" for tables and data sets made of them; else 1e-4.
    lam: float | str | None = None
    # the seconds of the search among features of a table and losses; 0: there is none; None: usual for the table
    search: float | None = None
    start: Model | Path | None = None  # a model to begin from
    # the folder for the state of the run, whether to continue from it, and the seconds between two states
    checkpoint: Path | None = None
    checkpoint_every: float | None = None
    resume: bool = False
    trace: Path | None = None  # the files that get a line for each evaluation, and the model
    output: Path | None = None
    certificate: Path | None = None  # the file that gets what others need to check the lower bound
    test: Path | None = None  # the data set or the file with the test rows
    ignore_new: bool = False  # whether to leave out those columns of the test rows that the model lacks
    shards: Path | None = None  # the folder where the data sets of files and tables are kept; None: a temporary one
    overwrite: bool = False  # whether to replace data sets that are in that folder already
    split: Split = field(default_factory=Split)  # how rows of files and tables are held out, if there is no `test`
    # how files and tables are read: arguments of `distsms.ingest.convert.convert`
    reading: Mapping[str, Any] = field(default_factory=dict)
    folds: int = FOLDS  # the number of folds for the threshold and the curve
    # makes the features of all rows from some rows alone, for these folds
    features_of: Callable[[NDArray[Any]], LocalRows | SideBySide] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.search, str):
            object.__setattr__(self, "search", parse_duration(self.search))
        super().__post_init__()
        if self.search is not None and not 0 <= self.search < math.inf:
            raise InputError(f"{option('search')} is {self.search}; it must be 0 or more seconds", everywhere=True)
        require_choice("device", self.device, DEVICES)
        lam = self.lam
        if lam != "auto" if isinstance(lam, str) else isinstance(lam, bool) or not isinstance(lam, Real | None):
            raise InputError(f"{option('lam')} is {format_value(lam):.60}, and neither a number nor 'auto'", True)


@dataclass(frozen=True)
class EvaluateRequest(Request):
    """An evaluation of models on labelled rows."""

    models: Sequence[Model | Path]
    data: Any  # a data set; a file, a pattern or a folder of tables; a table in memory; or this rank's rows (`Arrays`)
    measures: EvaluationOptions  # what is computed
    reading: InputOptions = AS_TRAINED  # how the rows are read


@dataclass(frozen=True)
class VerifyRequest(Request):
    """A check of a model on its training rows."""

    model: Model | Path
    data: Any  # the rows of the training, as for an evaluation
    certificate: Path | None = None  # what `TrainRequest.certificate` has written; without, J and measures are checked
    reading: InputOptions = AS_TRAINED


@dataclass(frozen=True)
class PredictRequest(Request):
    """Scores of rows."""

    model: Model | Path
    data: Any  # rows, as for an evaluation, which need no labels
    reading: InputOptions = UNLABELLED
    labels: bool = False  # whether each row also gets its class, and its probability of being positive
    probability: bool = False
    reasons: int = 0  # how many of the columns that move the score of a row most are named
    output: str | None = None  # the file to write, "-" for standard output; None: the scores are returned
    verbatim: bool = False  # whether names of rows are written as they are


@dataclass(frozen=True)
class ReportRequest(Request):
    """A page on a model, and on its measures on labelled rows."""

    model: Model | Path
    data: Any  # rows, as for an evaluation
    measures: EvaluationOptions
    output: Path = "report.html"  # the page, and the folder that gets each of its figures
    figures: Path | None = None
    reading: InputOptions = AS_TRAINED
    called: str | None = None  # what the page calls the rows; None: the name of the file
    feature_names: Path | Sequence[str] | None = None  # names of the columns, or a file with one in each line
    card: Path | None = None  # a TOML file with what the owner of the model says in the model card
    trace: Path | None = None  # the trace of the training; None: where the model says that it is, or beside the model
    path: Path | None = None  # folders of `distsms path` and `distsms baseline`
    baseline: Path | None = None


@dataclass(frozen=True)
class PathRequest(FoldsRequest, DecisionRequest):
    """A path of lambdas, or several paths that are compared: with several pauc, l1 or features there is one of each."""

    output: Path | None = None  # the folder of points and models, which a second call continues; None: a temporary one
    extend: bool | None = None  # whether lambdas are tried beyond those; None: unless `lambdas` says which
    l1: Sequence[float] = (0.0,)  # the weights of ||w||_1
    features: Sequence[Candidate] = (COLUMNS,)  # what is made from the columns
    rule: str = "best"  # how lambda is chosen: one of `distsms.base.choices.RULES`
    at_once: int | None = None  # how many models share a pass; None: all, unless there are very many columns


@dataclass(frozen=True)
class BaselineRequest(FoldsRequest):
    """A comparison of methods on the folds of a data set."""

    data: Any  # a data set; files, patterns or folders of tables; or a table in memory
    output: Path  # the folder of the fits, in which a baseline of the same problem goes on
    epsilon: float | None = None  # the gap to prove
    relative: float | None = None
    # a folder of `distsms path`, from which measure, lambdas, folds and gap are taken unless they are said otherwise
    path: Path | None = None
    methods: Sequence[str] | None = None  # names of `competitors.METHODS`; None: those that suit data and memory
    # whether all lambdas are fitted, and all methods tried, rather than what a first answer needs
    thorough: bool = False
    trees: bool = True  # whether to compare with boosted trees
    features: bool = True  # whether to compare with models on features, also without trees if the methods are named
    tree_fits: int | None = None  # how many settings of trees are tried for each fold; None: 20 if thorough, else 1
    shards: Path | None = None  # the folder where the data set of files is kept, and how tables are read
    reading: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FeaturesRequest(Request):
    """A data set whose rows are features of the rows of another one."""

    data: Path  # a data set
    output: Path  # the directory of the new one
    # fields of `distsms.features.fit.FeatureOptions`; there are 32 bins if neither bins nor trees are mentioned
    options: Mapping[str, Any] = field(default_factory=dict)
    like: Path | None = None  # a data set with features, whose rules are used instead
    shards: int | None = None  # the number of shards; None: as many as the data have, and at least one for each rank
    compression: str = "none"
    overwrite: bool = False  # whether to replace a data set that is there already
    memory: float | None = None  # the most bytes that each rank may take
