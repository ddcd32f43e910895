"""The command `distsms evaluate`."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK
from distsms.base.formatting import format_rows
from distsms.base.measures import CONDITIONS, GROUPED, HEAD, SHOWN, WEIGHTINGS, display_name
from distsms.cli.terminal import Speaker
from distsms.cli.types import (
    add_missing_group,
    add_new_columns,
    add_old_names,
    add_threads,
    condition,
    count,
    finite,
    share,
    whole,
)

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.base.measures import Condition
    from distsms.models.evaluation import EvaluationOptions, Interval, ModelEvaluation
    from distsms.models.inputs import InputOptions
    from distsms.workflow.evaluate import Evaluated

USAGE = "MODEL DATA|FILE [options]\n       distsms evaluate MODEL MODEL ... --test DATA|FILE [options]"
EPILOG = """\
All measures are exact over all rows of all ranks; from 17 million rows of each class on, ROCArea is within 5e-6 of the
exact value. ROCArea counts a pair of rows with equal scores as one half. PRBEP is the precision among the n+ rows with
the highest scores, where n+ is the number of positive rows; where scores are equal, it is the expected value over
random choices. A row is called positive if its score is at least the threshold that is stored with the model, or that
of --threshold.

The head of the ranking is what counts where few rows can be looked at: the TPR at FPR 1 % (at most 1 % of the negatives
are called positive), the recall at a precision, and the area under the ROC curve up to a false positive rate, divided
by this rate. The lift of the top 1 % is the enrichment factor. --at finds the threshold for a condition; quote it,
since > and < mean something to the shell:

  precision>=0.9  the lowest threshold with this precision, which has the largest recall
  recall>=0.95    the highest threshold with this recall
  fpr<=0.001      the lowest threshold with at most this false positive rate
  top=100, top=1%  the lowest threshold that calls at most so many rows positive; precision, recall and lift of these \
rows are then shown with the head of the ranking

An interval says how this model would do on new rows from the same source; it does not include what another training set
would change. Several models are compared in pairs on the same rows, with the interval of their difference. With fewer
than 10 rows of a class there is no verdict.

With --within-groups, only rows of the same group (query, user, day) are compared: GAUC is the mean ROCArea of the
groups that have rows of both classes. pairs weights each group by its number of pairs, each counts each group alike.
Groups are then what is drawn, so the interval says how the model would do on new groups.

If rows have weights, a row of weight 3 counts as three rows in every measure. Intervals are still those of drawing
rows: they depend on how unequal the weights are. The measures at K count rows, and are refused for different weights.

examples:
  distsms evaluate model.h5 data/test
  mpirun -n 8 distsms evaluate model.h5 data/test --json
  distsms evaluate a.h5 b.h5 --test data/test
  distsms evaluate model.h5 data/test --at "precision>=0.9" --at top=100
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms evaluate`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="MODEL",
        help="Models written by `distsms train`; without --test, the last argument is the data.",
    )
    parser.add_argument(
        "--test", metavar="DATA", help="A data set made by `distsms shard`, or a file of a format that it reads."
    )
    parser.add_argument(
        "--threshold",
        metavar="SCORE",
        type=finite,
        help="Call a row positive if its score is at least this (default: the threshold of the model).",
    )
    parser.add_argument(
        "--k",
        type=count,
        metavar="K",
        help="Also give precision@K and recall@K (default: for the K that the model was trained for, if any).",
    )
    add_conditions(parser)
    parser.add_argument(
        "--within-groups",
        choices=WEIGHTINGS,
        help="Also give GAUC, ROCArea within the groups of the rows (default: as the model was trained, if at all, and"
        " if the rows have groups).",
    )
    add_intervals(parser)
    add_reading(parser)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    add_threads(parser)
    add_old_names(parser, on="test")
    parser.set_defaults(check=_check)


def add_conditions(parser: argparse.ArgumentParser, shown: str = "") -> None:
    """Add --at; `shown` says where else the threshold goes."""
    text = f"Find the threshold for a condition{shown}: {CONDITIONS}. May be repeated.".replace("%", "%%")
    parser.add_argument("--at", metavar="CONDITION", type=condition, action="append", default=[], help=text)


def add_intervals(parser: argparse.ArgumentParser) -> None:
    """Add the options on intervals, which `evaluate` and `report` have in common."""
    parser.add_argument(
        "--level", metavar="SHARE", type=share, default=0.95, help="The level of the intervals (default: %(default)s)."
    )
    parser.add_argument(
        "--bootstrap",
        type=whole,
        default=1000,
        metavar="N",
        help="The number of bootstrap replicates for PRBEP; 0 uses the binomial alone (default: %(default)s).",
    )
    parser.add_argument(
        "--seed", metavar="N", type=whole, default=0, help="The seed of the bootstrap (default: %(default)s)."
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options on reading rows, which `evaluate` and `report` have in common."""
    parser.add_argument(
        "--label", metavar="COLUMN", help="The column of labels in a table or array file (default: as in training)."
    )
    parser.add_argument(
        "--weight",
        metavar="COLUMN",
        help="The column of weights in a table or array file; a data set has its own (default: none).",
    )
    parser.add_argument(
        "--group",
        metavar="COLUMN",
        help="The column of groups in a table or array file, or qid for svmlight text, for GAUC; for sequences, the"
        " NAME of words NAME=VALUE. A data set has its own (default: none).",
    )
    add_missing_group(parser)
    add_new_columns(parser)


def reading(args: argparse.Namespace) -> InputOptions:
    """Return how the rows are to be read, from the options of `add_reading`."""
    from distsms.models.inputs import InputOptions

    return InputOptions(
        args.ignore_new_features,
        zero_based=args.zero_based,
        label=args.label,
        weight=args.weight,
        group=args.group,
        missing_group=args.missing_group,
    )


def options(args: argparse.Namespace) -> EvaluationOptions:
    """Return what is to be computed, from the options of `add_intervals` and others that the command has."""
    from distsms.models.evaluation import EvaluationOptions

    further = {name: getattr(args, name) for name in ("threshold", "k", "within_groups") if hasattr(args, name)}
    return EvaluationOptions(level=args.level, replicates=args.bootstrap, seed=args.seed, at=tuple(args.at), **further)


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, or None."""
    if args.test is None and len(args.paths) != 2:
        return "give MODEL DATA, or any number of models and --test DATA"
    return None


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Evaluate the models on all ranks, and print the results on the root. **Collective.**"""
    from distsms.base import formatting
    from distsms.ingest.formats.registry import print_warning
    from distsms.workflow.evaluate import evaluate
    from distsms.workflow.requests import EvaluateRequest

    say = Speaker(True)
    # Without --test, the last argument is the data.
    models, data = (args.paths[:-1], args.paths[-1]) if args.test is None else (args.paths, args.test)
    evaluated = evaluate(EvaluateRequest(models, data, options(args), reading(args)), comm)
    if not comm.is_root:
        return EXIT_OK
    for note in evaluated.notes:
        print_warning(note)
    if args.json:
        print(formatting.to_json(evaluated.to_dict()))
        return EXIT_OK
    if evaluated.pairs:
        _print_several(evaluated, say)
    else:
        _print_one(evaluated, args, say)
    say.close()
    return EXIT_OK


def _print_one(evaluated: Evaluated, args: argparse.Namespace, say: Speaker) -> None:
    """Print all measures of a model."""
    import os

    from distsms.base import formatting
    from distsms.ingest.formats.registry import format_of
    from distsms.models import decision_text
    from distsms.models.decision_text import RATES

    (of_model,) = evaluated.models
    measures, info = of_model.measures, of_model.model.info
    say(f"{of_model.path} on {_describe_rows(evaluated)}")
    if not os.path.isdir(evaluated.data) and format_of(evaluated.data) == "text" and not of_model.model.coded.sequences:
        zero_based = info["zero_based"] if args.zero_based is None else args.zero_based
        say(f"  text with columns counted from {0 if zero_based else 1}, positive label {info['label_map']['+1']}")
    for line in evaluated.warnings:
        say.warn(line)
    names = [*SHOWN, "average_precision", *(name for name in GROUPED if name in measures)]
    of_ranking = {display_name(name): measures[name] for name in names}
    at_threshold = {name: measures[key] for key, name in RATES.items()} | {"F1": measures["f1"]}
    for name in of_model.extra_measures:
        (of_ranking if "@" in name else at_threshold)[name] = measures[name]
    at_threshold["error rate"] = measures["error_rate"]
    head = {display_name(name): measures[name] for name in [*_head_names(of_model, args.at), "bedroc"]}
    width = max(map(len, (*of_ranking, *head, *at_threshold)))
    intervals = {
        display_name(name): f"   {_describe_interval(interval)}" for name, interval in of_model.intervals.items()
    }
    for name, value in of_ranking.items():
        say(f"  {name:<{width}} {value:.6f}{intervals.get(name, '')}")
    say("head of the ranking")
    for name, value in head.items():
        say(f"  {name:<{width}} {value:.6f}{intervals.get(name, '')}")
    say(f"  intervals of {100 * evaluated.level:g} % are of {of_model.of}, drawn as these were")
    say(f"at the threshold {measures['threshold']:.6g}")
    on_new = bool(not measures["training_rows"])
    rates = {RATES[key]: f"   {_describe_rate(measures['intervals_at_threshold'][key], on_new)}" for key in RATES}
    say("".join(f"  {name:<{width}} {value:.6f}{rates.get(name, '')}\n" for name, value in at_threshold.items()))
    if promise := decision_text.promise(info, measures):
        say(f"{promise}\n")
    weighted = "weights" if "weights" in measures else ""
    header = [weighted, "called positive", "called negative"]
    say(formatting.format_table(header, _contingency(measures, weighted)))
    if "log_loss" in measures:
        say("the probabilities of the model")
        say(f"  {'log loss':<{width}} {measures['log_loss']:.6f}\n  {'Brier score':<{width}} {measures['brier']:.6f}")
    for text, point in measures.get("at", {}).items():
        words = f"the threshold is {point['threshold']:.9g}"
        if point["threshold"] == float("inf"):
            words = "no threshold fulfils it, so no row is called positive"
        say(f"\nat {text}: {words}")
        for name in RATES:
            say(f"  {RATES[name]:<{width}} {point[name]:.6f}   {_describe_rate(point['intervals'][name], on_new)}")
        say("")
        say(formatting.format_table(header, _contingency(point, weighted)))


def _print_several(evaluated: Evaluated, say: Speaker) -> None:
    """Print a line for each model, and then the differences between each pair of models."""
    from distsms.base import formatting
    from distsms.models import decision_text
    from distsms.models.decision_text import RATES

    models, first = evaluated.models, evaluated.models[0]
    of = next((each.of for each in models if each.measures["training_rows"]), first.of)
    say(f"on {_describe_rows(evaluated)}; intervals of {100 * evaluated.level:g} % are of {of}")
    for line in evaluated.warnings:
        say.warn(line)
    header, lines = ["model"], [[each.path] for each in models]
    for name in [*SHOWN, "average_precision", *(name for name in GROUPED if name in first.intervals)]:
        header += [display_name(name), first.intervals[name].method]
        for cells, interval in zip(lines, (each.intervals[name] for each in models), strict=True):
            limits = "none" if interval.why else f"{interval.low:.6f} to {interval.high:.6f}"
            cells += [f"{interval.value:.6f}", limits]
    say(formatting.format_table(header, lines))
    say("\nhead of the ranking")
    names = [*SHOWN_HEAD, "bedroc"]
    rows = [[each.path, *(f"{each.measures[name]:.6f}" for name in names)] for each in models]
    say(formatting.format_table(["model", *map(display_name, names)], rows))
    for text in first.measures.get("at", {}):
        say(f"\nat {text}")
        points = [each.measures["at"][text] for each in models]
        rows = [
            [each.path, f"{point['threshold']:.9g}", str(point["tp"]), str(point["fp"])]
            + [f"{point[name]:.6f}" for name in RATES]
            for each, point in zip(models, points, strict=True)
        ]
        say(formatting.format_table(["model", "threshold", "true positives", "false positives", *RATES.values()], rows))
    for each in models:
        if promise := decision_text.promise(each.model.info, each.measures):
            say(f"\n{each.path}: {promise}")
    for pair in evaluated.pairs:
        say(f"\n{pair.first} - {pair.other}")
        # Other recalls and lifts differ from the precision in the same top rows by a factor only.
        names = [
            name for name in pair.differences if name in SHOWN_HEAD or not re.match("recall@(?!precision)|lift@", name)
        ]
        width = max(len(display_name(name)) for name in names)
        for name in names:
            difference = pair.differences[name]
            limits = "" if difference.why else f"{_describe_interval(difference, '+')}, p = {difference.p:.2g}: "
            say(f"  {display_name(name):<{width}}  {difference.value:+.6f}   {limits}{pair.verdict(name)}")
    say("\neach p is that of its line alone; where many are compared, some p are small by chance")


SHOWN_HEAD = [name for name in HEAD if name != "recall@1%"]
"""The measures of the head in tables: those of `HEAD` but for one, which differs from the lift by a factor only."""


def _contingency(rates: dict[str, Any], weighted: str) -> list[list[str]]:
    def text(name: str) -> str:
        return f"{rates[name]:.9g}" if weighted else str(rates[name])

    return [["positive rows", text("tp"), text("fn")], ["negative rows", text("fp"), text("tn")]]


def _describe_rate(interval: dict[str, Any], on_new: bool) -> str:
    if "why" in interval:
        return f"no interval: {interval['why']}"
    of = ", this threshold on new rows" if on_new else ""
    return f"{interval['low']:.6f} to {interval['high']:.6f} ({interval['method']}{of})"


def _head_names(evaluated: ModelEvaluation, at: list[Condition]) -> list[str]:
    """Return the names of the measures of the head to be shown: the usual ones, those trained for, and top=... ."""
    trained, tops = str(evaluated.model.info.get("measure")), (each for each in at if each.quantity == "top")
    on_top = [measure.name for condition in tops for measure in condition.measures(evaluated.measures["n"])]
    shown = dict.fromkeys([*HEAD, *[trained] * trained.startswith("pauc@"), *on_top])
    return [name for name in shown if name not in evaluated.extra_measures]


def _describe_interval(interval: Interval, sign: str = "") -> str:
    if interval.why:
        return f"no interval: {interval.why}"
    return f"{interval.low:{sign}.6f} to {interval.high:{sign}.6f} ({interval.method})"


def _describe_rows(evaluated: Evaluated) -> str:
    measures = evaluated.models[0].measures
    text = f"{evaluated.data}: {format_rows(measures['n'])}, {measures['n_pos']} positive, {measures['n_neg']} negative"
    if weights := measures.get("weights"):
        text += (
            f"; by weight {weights['positive']:.6g} positive and {weights['negative']:.6g} negative, which say as much "
            f"as {weights['effective_positive']:.6g} and {weights['effective_negative']:.6g} rows of equal weight (the "
            "effective sample size)"
        )
    return text
