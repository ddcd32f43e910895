"""The performance measures: their families, parameters and names, such as ``"f0.5"``. Commands and public functions
convert names by `Measure.parse`. This module does not import NumPy, so that ``--help`` is fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

from distsms.base.errors import InputError
from distsms.base.formatting import format_rows
from distsms.base.wording import option

NAMES = (
    "rocarea, gauc@pairs or gauc@each, pauc@BETA, prbep, error-rate, logistic, logistic-balanced, normal-auc, f1 (or"
    " f0.5, f2, ...), precision@K or recall@K"
)

WEIGHTINGS = ("pairs", "each")
"""What groups count in ROCArea within groups, gauc@pairs or gauc@each: as much as they have pairs, or alike."""

SMALLEST_BETA, LARGEST_BETA = 1e-6, 1e6

SMALLEST_LAMBDA = 1e-290
"""The smallest lambda: numbers near the smallest float64 have few digits, which would make the lower bound false."""

SMALLEST_RATE = 1e-12
"""The smallest BETA of pauc@BETA, and the smallest level of a measure of the head: no data have more rows than this."""


@dataclass(frozen=True)
class Family:
    """What all measures of a family have in common: whoever handles measures asks this record, and not for names."""

    name: str  # such as "rocarea" or "f-beta"; a measure without parameters has the name of its family
    # The orderings of `distsms.losses.registry`, each with the class of the loss as "module.Class".
    losses: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    _: KW_ONLY
    shown: str | None = None  # how a measure of this name is written in reports, if not by its name
    of_paper: bool = False  # one of the two measures of the paper
    rival: bool = False  # what other programs train, here with a proved gap
    on_paths: bool = False  # `path` and `baseline` train for it as a measure of rankings
    compares_pairs: bool = False  # a mean over all pairs of a positive and a negative row, of all rows or of each group
    smooth: bool = True  # the risk has a smoothed form, which all but the cutting-plane solvers need
    smooth_by_itself: bool = False  # the smoothed form is the risk itself
    ignores_shift: bool = False  # the same number may be added to all scores, since only their differences count
    smaller_is_better: bool = False
    has_threshold: bool = False  # judges which rows are called positive: those whose score is at least a threshold
    log_loss: bool = False  # the log loss of the probability 1 / (1 + exp(-s)) of a row with score s
    balanced: bool = False  # both classes weigh alike in it: the probability is that among as many rows of each
    counts_rows: bool = False  # weights other than 0 and 1 have no meaning for it
    closed_form: bool = False  # the minimum is the solution of linear equations
    can_be_vacuous: bool = False  # w = 0 may be optimal although the classes have different means
    ignores_class_weights: bool = False  # the coefficients do not depend on them, since it compares the classes
    ignores_prevalence: bool = False  # it can be estimated with another share of positive rows than there is
    has_dual: bool = False  # a run may begin with `distsms.optim.dual_ascent`
    has_descent: bool = False  # a run may begin with `distsms.optim.stochastic`
    has_curvature: bool = False  # estimating second derivatives may pay; see `distsms.optim.curvature`
    history: int = 50  # of the solver, if there are few columns
    bias: float | None = None  # the value of the constant feature that a training usually has
    chooser: str | None = None  # what usually chooses its lambda on held-out rows, if not the measure itself

    @property
    def has_probabilities(self) -> bool:
        """Whether 1 / (1 + exp(-s)) is the probability of a row with score s to be positive."""
        return self.log_loss and not self.balanced

    @property
    def why_no_probabilities(self) -> str:
        """Why there are none although the measure is a log loss; "" for other measures."""
        why = f"{self.name} gives both classes the same weight, so that its scores are not the log-odds of the rows. "
        return why * self.balanced

    def __str__(self) -> str:
        return self.name


GAUC = Family(
    "gauc",
    {"exchange": "within_groups.RocAreaWithinGroups"},
    on_paths=True,
    compares_pairs=True,
    ignores_shift=True,
    ignores_class_weights=True,
)
ROCAREA = replace(
    GAUC,
    name="rocarea",
    losses={"gather": "rocarea.RocArea", "exchange": "rocarea.RocAreaExchange", "bins": "binned.RocAreaBins"},
    shown="ROCArea",
    of_paper=True,
    ignores_prevalence=True,
    has_dual=True,
    has_descent=True,
    has_curvature=True,
)
PAUC = Family(
    "pauc",
    {"gather": "pauc.Pauc", "exchange": "pauc.PaucExchange", "bins": "pauc.PaucBins"},
    on_paths=True,
    ignores_shift=True,
    can_be_vacuous=True,
    ignores_class_weights=True,
    ignores_prevalence=True,
    history=100,  # with 50 pairs, as for others, it takes up to half as many evaluations more where BETA is small
)
PRBEP = Family(
    "prbep",
    {"gather": "prbep.Prbep", "exchange": "prbep.PrbepExchange"},
    shown="PRBEP",
    of_paper=True,
    on_paths=True,
    ignores_shift=True,
    can_be_vacuous=True,
    has_dual=True,
)
ERROR_RATE = Family(
    "error-rate",
    {"gather": "contingency.ErrorRate"},
    smaller_is_better=True,
    has_threshold=True,
    chooser="accuracy",
)
LOGISTIC = Family(
    "logistic",
    {"gather": "logistic.Logistic"},
    shown="log loss",
    rival=True,
    smooth_by_itself=True,
    smaller_is_better=True,
    log_loss=True,
    has_dual=True,
    bias=1.0,
    chooser="rocarea",
)
BALANCED = replace(
    LOGISTIC,
    name="logistic-balanced",
    losses={"gather": "logistic.LogisticBalanced"},
    shown="log loss (balanced)",
    balanced=True,
)
NORMAL_AUC = Family(
    "normal-auc",
    {"gather": "normal_auc.NormalAuc"},
    shown="normal-theory ROCArea",
    rival=True,
    smooth_by_itself=True,
    ignores_shift=True,
    ignores_class_weights=True,
    closed_form=True,
    chooser="rocarea",
)
F_BETA = Family("f-beta", {"gather": "contingency.FBeta"}, smooth=False, has_threshold=True, counts_rows=True)
PRECISION_AT_K = Family("precision@k", {"gather": "contingency.PrecisionAtK"}, smooth=False, counts_rows=True)
RECALL_AT_K = replace(PRECISION_AT_K, name="recall@k", losses={"gather": "contingency.RecallAtK"})

_ALL = (ROCAREA, GAUC, PAUC, PRBEP, ERROR_RATE, LOGISTIC, BALANCED, NORMAL_AUC, F_BETA, PRECISION_AT_K, RECALL_AT_K)
FAMILIES = {family.name: family for family in _ALL}
"""All families, by name. A new measure without parameters needs a record here, a loss, and a line in `NAMES`."""

PARAMETRIC = (GAUC, PAUC, F_BETA, PRECISION_AT_K, RECALL_AT_K)
"""Those whose measures have parameters in their names."""

RIVALS = tuple(name for name, family in FAMILIES.items() if family.rival)
"""What other programs train; here with a proved gap, so that models can be compared."""

RANKING = tuple(name for name, family in FAMILIES.items() if family.of_paper)
"""The two measures of the paper."""

ALIASES = {"auc": "rocarea", "roc_auc": "rocarea", "roc-auc": "rocarea"}
"""Other names that are understood."""

RANKING_CHOOSERS = (
    "rocarea, prbep, average-precision, precision@K, recall@K, tpr@fpr=RATE, recall@precision=RATE,"
    " precision@recall=RATE, pauc@RATE, recall@SHARE%"
)
CHOOSERS = f"{RANKING_CHOOSERS}, accuracy, precision, recall, f1 (or f0.5, f2, ...)"
"""The measures of held-out rows that can choose a lambda, in a baseline only those of rankings; see `check_chooser`."""

SHOWN = {name: FAMILIES[name].shown or name for name in RANKING}
"""How these two are written in reports."""

GROUPED = {f"gauc@{weighting}": f"GAUC ({weighting})" for weighting in WEIGHTINGS}
"""The names of ROCArea within groups, and how they are written in reports."""

WHOLE = {"average_precision": "average precision", "bedroc": "BEDROC"}
"""Measures of the whole ranking that are only reported, and how they are written."""


@dataclass(frozen=True)
class Measure:
    """A performance measure of a linear classifier. Two spellings of one, such as ``"f2"`` and ``"f2."``, are equal."""

    name: str = field(compare=False)  # as it was written
    family: Family
    beta: float | None = None  # of F-beta: the weight of recall
    k: int | None = None  # of precision@K and recall@K: the number of rows called positive
    max_fpr: float | None = None  # of pauc@BETA: the largest false positive rate that counts, `SMALLEST_RATE` to 1
    within_groups: str | None = None  # of gauc: "pairs" or "each", what groups count

    @classmethod
    def parse(cls, measure: str | Measure) -> Measure:
        """Return the measure of this name, or raise InputError; a `Measure` is returned as it is."""
        if isinstance(measure, Measure):
            return measure
        if not isinstance(measure, str):
            raise InputError(f"measure is {measure!r:.60}, and not the name of a measure", everywhere=True)
        measure = ALIASES.get(measure.lower(), measure.lower())
        if (family := FAMILIES.get(measure)) and family not in PARAMETRIC:
            return cls(measure, family)
        match = re.fullmatch(r"f((\d+\.?\d*|\.\d+)(e[+-]?\d+)?)", measure, re.ASCII)
        if match and SMALLEST_BETA <= (beta := float(match[1])) <= LARGEST_BETA:
            return cls(measure, F_BETA, beta=beta)
        if match := re.fullmatch(r"(precision|recall)@([1-9]\d{0,17})", measure, re.ASCII):
            return cls(measure, FAMILIES[f"{match[1]}@k"], k=int(match[2]))
        match = re.fullmatch(r"pauc@((\d+\.?\d*|\.\d+)(e-?\d+)?)", measure, re.ASCII)
        if match and SMALLEST_RATE <= (max_fpr := float(match[1])) <= 1:
            return cls(measure, PAUC, max_fpr=max_fpr)
        if measure in GROUPED:
            return cls(measure, GAUC, within_groups=measure.removeprefix("gauc@"))
        numbers = f"K from 1, the number after f from {SMALLEST_BETA:g} to {LARGEST_BETA:g}"
        rates = f"BETA, a false positive rate, from {SMALLEST_RATE:g} to 1, as in pauc@0.05"
        raise InputError(f"no measure is called {measure!r}; there are {NAMES}, with {numbers}, and {rates}")

    def on_part(self, share: float) -> Measure:
        """Return this measure for a share of the rows: a K is reduced in proportion, to 1 or more."""
        if self.k is None:
            return self
        return Measure.parse(f"{self.family.name.removesuffix('k')}{max(1, round(self.k * share))}")

    def within(self, weighting: str | None) -> Measure:
        """Return this measure within groups, or itself for None; InputError if that is no ROCArea, or unknown."""
        if weighting is None:
            return self
        if weighting not in WEIGHTINGS:
            raise InputError(f"within groups, {' or '.join(WEIGHTINGS)} is wanted, and not {weighting!r}")
        if not self.family.compares_pairs:
            raise InputError(f"{self.name} cannot be optimized within groups; only rocarea can")
        return Measure.parse(f"gauc@{weighting}")

    @property
    def parameters(self) -> tuple[float, ...]:
        """The additional arguments of the constructor of the measure's loss: beta, K, the largest FPR, or nothing."""
        return tuple(value for value in (self.beta, self.k, self.max_fpr) if value is not None)

    @property
    def chooser(self) -> str:
        """The measure of held-out rows that usually chooses lambda; better models have a larger one."""
        return self.family.chooser or self.name

    def bias(self, value: float | None) -> float | None:
        """Return the constant feature's value, None for none, where a user asks for `value` (None: the usual)."""
        if value is not None and not 0 <= value < float("inf"):
            raise InputError(f"{option('bias')} is {value}; it must be a positive number, or 0 for no constant feature")
        return self.family.bias if value is None else value or None

    @property
    def display_name(self) -> str:
        return display_name(self.name)

    def __str__(self) -> str:
        return self.name


def check_ranking(name: str) -> str:
    """Return the name, not an alias, of a measure of rankings; raises InputError if `baseline` cannot train for it."""
    try:
        measure = Measure.parse(name)
    except InputError:
        measure = None
    if measure is None or not measure.family.on_paths:
        raise InputError(f"{name!r} is not one of: {', '.join([*RANKING, *GROUPED])}, pauc@BETA such as pauc@0.05")
    return measure.name


def check_path_measures(text: str) -> str:
    """Return what a path trains for: a ranking, one of `RIVALS`, or pauc@ with several BETA, joined by commas."""
    if (name := text.lower()) in RIVALS:
        return name
    family, _, betas = text.partition("@")
    if not betas:
        return check_ranking(text)
    names = dict.fromkeys(check_ranking(beta if "@" in beta else f"{family}@{beta}") for beta in betas.split(","))
    if len(names) > 1 and not all(name.startswith("pauc@") for name in names):
        raise InputError(f"{text!r}: a path trains for several measures only if all are pauc@, such as pauc@0.05,0.2")
    return ",".join(names)


_NUMBER = r"(\d+\.?\d*|\.\d+)((?:e[+-]?\d+)?)"


@dataclass(frozen=True)
class HeadMeasure:
    """A measure of the head of a ranking, which is reported and can choose among models; only pauc is trained for."""

    name: str  # such as "tpr@fpr=0.01", "recall@precision=0.9", "pauc@0.05" or "lift@1%"
    family: str  # "tpr@fpr", "recall@precision", "precision@recall", "pauc" or "precision@share", "recall@.", "lift@."
    level: float  # the false positive rate, the precision, or the share of the rows: more than 0, at most 1

    @classmethod
    def parse(cls, name: str) -> HeadMeasure | None:
        for pattern in (
            rf"(tpr@fpr|recall@precision|precision@recall)={_NUMBER}",
            rf"(pauc)@{_NUMBER}",
            rf"((?:precision|recall|lift)@){_NUMBER}%",
        ):
            if match := re.fullmatch(pattern, name, re.ASCII):
                share = name.endswith("%")
                level = float(match[2] + (f"e{int(match[3][1:] or 0) - 2}" if share else match[3]))
                if SMALLEST_RATE <= level <= 1:
                    return cls(name, match[1] + "share" * share, level)
        return None

    @property
    def display_name(self) -> str:
        special = {"tpr@fpr": "TPR at FPR", "pauc": "partial AUC to FPR"}
        words = special.get(self.family) or self.family.replace("@share", " in the top").replace("@", " at ")
        return f"{words} {100 * self.level:.15g} %"


CONDITIONS = "precision>=0.9, recall>=0.95, fpr<=0.001, top=100 or top=1%"
"""Examples of all conditions, for messages."""
CONDITIONS_OF_MODELS = CONDITIONS.replace(", top=100 or", " or")
"""Examples of the conditions for a threshold that a model keeps, which is for any number of rows."""


class Condition(NamedTuple):
    """What a threshold has to fulfil."""

    quantity: str  # what is limited: "fpr", "precision", "recall" or "top", the rows that are called positive
    level: float  # a rate from 0 to 1 or a number of rows, at least 1
    share: bool = True  # False only for a number of rows

    def measures(self, n: float) -> list[HeadMeasure]:
        """Return the measures of the head at this condition, on n rows. Models are compared by the first one."""
        name = {"fpr": "tpr@fpr", "precision": "recall@precision", "recall": "precision@recall"}.get(self.quantity)
        if name:
            return [HeadMeasure(f"{name}={self.level:.15g}", name, self.level)]
        share = self.level if self.share else min(self.level / max(n, 1), 1.0)
        text = f"{100 * self.level:.15g}%" if self.share else f"{self.level:.0f}"
        return [HeadMeasure(f"{name}@{text}", f"{name}@share", share) for name in ("precision", "recall", "lift")]

    @classmethod
    def parse(cls, text: str, examples: str = CONDITIONS) -> Condition:
        """Read a condition, such as "precision>=0.9" or "top=1%". Raises InputError with examples if it is none."""
        pattern = rf"(fpr<=|precision>=|recall>=|top=){_NUMBER}(%?)"
        if match := re.fullmatch(pattern, str(text).replace(" ", ""), re.ASCII):
            quantity, level, percent = match[1].rstrip("<>="), float(match[2] + match[3]), bool(match[4])
            if quantity == "top" and not percent and level >= 1 and level.is_integer():
                return cls(quantity, level, False)
            if percent:  # 0.1% is the same number as 0.001
                level = level / 100 if match[3] else float(f"{match[2]}e-2")
            if 0 < level <= 1 and (quantity != "top" or percent):
                return cls(quantity, level)
        raise InputError(f"{text!r} is no condition for a threshold; give one such as {examples}")

    @property
    def in_words(self) -> str:
        percent = f"{100 * self.level:.15g} %"
        if self.quantity == "top":
            return f"top {percent} of the rows" if self.share else f"top {format_rows(self.level, ',.0f')}"
        return f"FPR at most {percent}" if self.quantity == "fpr" else f"{self.quantity} at least {percent}"

    def __str__(self) -> str:
        if self.quantity == "top":
            return f"top={100 * self.level:.15g}%" if self.share else f"top={self.level:.0f}"
        return f"{self.quantity}{'<=' if self.quantity == 'fpr' else '>='}{self.level:.15g}"


HEAD = (
    *("tpr@fpr=0.001", "tpr@fpr=0.01", "tpr@fpr=0.05"),
    *("recall@precision=0.5", "recall@precision=0.9"),
    "pauc@0.05",
    *("precision@1%", "recall@1%", "lift@1%"),
)
"""The measures of the head of a ranking that are shown of every model."""

COMPARED = ("tpr@fpr=0.001", "tpr@fpr=0.01", "recall@precision=0.9", "pauc@0.05")
"""Those by which `baseline` compares."""


def display_name(name: str) -> str:
    """Return a measure's name as it is written in reports."""
    head = HeadMeasure.parse(name)
    if head:
        return head.display_name
    shown = FAMILIES[name].shown if name in FAMILIES else None
    return shown or (GROUPED | WHOLE).get(name, name)


def check_chooser(name: str) -> str:
    """Return the name, not an alias, if held-out rows can be measured by it to choose a lambda; else InputError."""
    name = ALIASES.get(name.lower(), name.lower())
    family = FAMILIES.get(name)
    if family == ERROR_RATE:
        raise InputError("error-rate is smaller where models are better; choose by accuracy, which is 1 less it")
    if (family and family.log_loss) or name in ("log-loss", "log_loss", "brier"):
        smaller = "log loss and Brier score are smaller where models are better, and cannot choose"
        raise InputError(f"{smaller}; `distsms evaluate` shows them. Choose by another measure: {CHOOSERS}")
    if name not in ("average-precision", "accuracy", "precision", "recall") and not HeadMeasure.parse(name):
        try:
            Measure.parse(name)
        except InputError:
            raise InputError(f"no measure called {name!r} can choose; there are {CHOOSERS}") from None
    return name
