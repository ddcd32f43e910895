"""The command `distsms evaluate`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK
from distsms.base.formatting import format_rows, format_table, to_json
from distsms.base.measures import CONDITIONS, GROUPED, HEAD, SHOWN, WEIGHTINGS, display_name
from distsms.cli import types
from distsms.cli.terminal import Speaker, print_warning
from distsms.cli.types import add_old_names, add_options, count, from_arguments, whole
from distsms.models import decision_text
from distsms.models.decision_text import RATES

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.models.evaluation import EvaluationOptions
    from distsms.models.inputs import InputOptions
    from distsms.workflow.evaluate import Evaluated

USAGE = "MODEL DATA|FILE [options]\n       distsms evaluate MODEL MODEL ... --test DATA|FILE [options]"
EPILOG = """\
All measures are exact over all rows of all ranks; from 17 million rows of each class on, ROCArea is within 5e-6 of the
exact value. A pair of rows with equal scores counts one half. PRBEP is the precision among the n+ rows with the highest
scores, where n+ is the number of positive rows; where scores are equal, it is the expected value over random choices. A
row is called positive if its score is at least the threshold that is stored with the model, or that of --threshold.

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
would change. Several models are compared in pairs on the same rows, with the interval of their difference; with fewer
than 10 rows of a class there is no verdict.

With --within-groups, only rows of the same group (query, user, day) are compared: GAUC is the mean ROCArea of groups
with both classes, weighted by their pairs, or each alike. The interval says how the model would do on new groups.

A row of weight 3 counts as three rows in every measure, but intervals are those of drawing rows. The measures at K
count rows, and are refused for different weights.

examples:
  distsms evaluate model.h5 data/test
  mpirun -n 8 distsms evaluate model.h5 data/test --json
  distsms evaluate a.h5 b.h5 --test data/test
  distsms evaluate model.h5 data/test --at "precision>=0.9" --at top=100
"""

OPTIONS = """\
paths MODEL  Models written by `distsms train`; without --test, the last argument is the data.
--test DATA  A data set made by `distsms shard`, or a file of a format that it reads.
--threshold SCORE  Call a row positive if its score is at least this (default: the threshold of the model).
--k K  Also give precision@K and recall@K (default: for the K that the model was trained for, if any).
"""
WITHIN_GROUPS = """\
--within-groups  Also give GAUC, ROCArea within groups (default: as the model was trained, if the rows have groups).
"""
JUDGING = f"""\
--at CONDITION  Find the threshold for a condition{{shown}}: {CONDITIONS.replace("%", "%%")}. May be repeated.
{{more}}--level SHARE  The level of the intervals (default: %(default)s).
--bootstrap N  The number of bootstrap replicates for PRBEP; 0 uses the binomial alone (default: %(default)s).
--seed N  The seed of the bootstrap (default: %(default)s).
"""
READING = f"""\
--label COLUMN  The column of labels in a table or array file (default: as in training).
--weight COLUMN  The column of weights in a table or array file; a data set has its own (default: none).
--group COLUMN  The column of groups in a table or array file, or qid for svmlight text, for GAUC; for sequences, the
    NAME of words NAME=VALUE. A data set has its own (default: none).
{types.MISSING_GROUP}
{types.NEW_COLUMNS}
"""
KEYWORDS: dict[str, dict[str, Any]] = {
    **types.COMMON,
    "--at": {"type": types.condition, "action": "append", "default": []},
    "--within-groups": {"choices": WEIGHTINGS},
    "--level": {"type": types.share, "default": 0.95},
    "--bootstrap": {"dest": "replicates", "type": whole, "default": 1000},
    "--seed": {"type": whole, "default": 0},
}
"""What argparse is told of these options, some of which `report` and `verify` have, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_command = {"paths": {"nargs": "+"}, "--threshold": {"type": types.finite}, "--k": {"type": count}}
    judging = JUDGING.format(shown="", more=WITHIN_GROUPS)
    text = f"{OPTIONS}{judging}{READING}--json  Print one JSON object.\n{types.THREADS}"
    add_options(parser, text, KEYWORDS | of_command)
    add_old_names(parser, on="test")
    parser.set_defaults(check=_check)


def measuring(args: argparse.Namespace) -> tuple[EvaluationOptions, InputOptions]:
    """Return what is to be computed, and how the rows are read, from the options of `evaluate` and `report`."""
    from distsms.models.evaluation import EvaluationOptions
    from distsms.models.inputs import InputOptions

    return from_arguments(EvaluationOptions, args, at=tuple(args.at)), from_arguments(InputOptions, args)


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, or None."""
    missing = args.test is None and len(args.paths) != 2
    return "give MODEL DATA, or any number of models and --test DATA" if missing else None


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Evaluate the models on all ranks, and print the results on the root. **Collective.**"""
    from distsms.workflow.evaluate import evaluate
    from distsms.workflow.requests import EvaluateRequest

    # Without --test, the last argument is the data.
    models, data = (args.paths[:-1], args.paths[-1]) if args.test is None else (args.paths, args.test)
    measures, reading = measuring(args)
    evaluated, say = evaluate(EvaluateRequest(models, data, measures, reading), comm), Speaker(True)
    if not comm.is_root:
        return EXIT_OK
    for note in evaluated.notes:
        print_warning(note)
    if args.json:
        print(to_json(evaluated.to_dict()))
        return EXIT_OK
    if evaluated.pairs:
        _print_several(evaluated, say)
    else:
        _print_one(evaluated, args, say)
    say.close()
    return EXIT_OK


def _print_one(evaluated: Evaluated, args: argparse.Namespace, say: Speaker) -> None:
    """Print all measures of a model."""
    from distsms.ingest.formats.registry import format_of

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
    # The head: the usual measures, the one that was trained for, and those of conditions top=... .
    trained, tops = str(info.get("measure")), (each for each in args.at if each.quantity == "top")
    on_top = [measure.name for condition in tops for measure in condition.measures(measures["n"])]
    names = [*dict.fromkeys([*HEAD, *[trained] * trained.startswith("pauc@"), *on_top, "bedroc"])]
    head = {display_name(name): measures[name] for name in names if name not in of_model.extra_measures}
    width = max(map(len, (*of_ranking, *head, *at_threshold)))

    def show(values: Mapping[str, float], intervals: Mapping[str, str]) -> None:
        for name, value in values.items():
            say(f"  {name:<{width}} {value:.6f}{'   ' * (name in intervals)}{intervals.get(name, '')}")

    intervals = {display_name(name): _limits(interval.as_json()) for name, interval in of_model.intervals.items()}
    show(of_ranking, intervals)
    say("head of the ranking")
    show(head, intervals)
    say(f"  intervals of {100 * evaluated.level:g} % are of {of_model.of}, drawn as these were")
    say(f"at the threshold {measures['threshold']:.6g}")
    of = "" if measures["training_rows"] else ", this threshold on new rows"
    show(at_threshold, {RATES[key]: _limits(measures["intervals_at_threshold"][key], of=of) for key in RATES})
    say("")
    if promise := decision_text.promise(info, measures):
        say(f"{promise}\n")
    say(_contingency(measures, "weights" in measures))
    if "log_loss" in measures:
        say("the probabilities of the model")
        show({"log loss": measures["log_loss"], "Brier score": measures["brier"]}, {})
    for text, point in measures.get("at", {}).items():
        none, score = "no threshold fulfils it, so no row is called positive", point["threshold"]
        say(f"\nat {text}: {none if score == float('inf') else f'the threshold is {score:.9g}'}")
        rates = {shown: point[name] for name, shown in RATES.items()}
        show(rates, {RATES[name]: _limits(point["intervals"][name], of=of) for name in RATES})
        say("")
        say(_contingency(point, "weights" in measures))


def _print_several(evaluated: Evaluated, say: Speaker) -> None:
    """Print a line for each model, and then the differences between each pair of models."""
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
    say(format_table(header, lines))
    say("\nhead of the ranking")
    names = [*SHOWN_HEAD, "bedroc"]
    rows = [[each.path, *(f"{each.measures[name]:.6f}" for name in names)] for each in models]
    say(format_table(["model", *map(display_name, names)], rows))
    for text in first.measures.get("at", {}):
        say(f"\nat {text}")
        points = {each.path: each.measures["at"][text] for each in models}
        rows = [
            [path, f"{at['threshold']:.9g}", str(at["tp"]), str(at["fp"]), *(f"{at[name]:.6f}" for name in RATES)]
            for path, at in points.items()
        ]
        say(format_table(["model", "threshold", "true positives", "false positives", *RATES.values()], rows))
    for each in models:
        if promise := decision_text.promise(each.model.info, each.measures):
            say(f"\n{each.path}: {promise}")
    for pair in evaluated.pairs:
        say(f"\n{pair.first} - {pair.other}")
        # Other recalls and lifts differ from the precision in the same top rows by a factor only.
        others = re.compile("recall@(?!precision)|lift@")
        names = [name for name in pair.differences if name in SHOWN_HEAD or not others.match(name)]
        width = max(len(display_name(name)) for name in names)
        for name in names:
            difference = pair.differences[name]
            limits = "" if difference.why else f"{_limits(difference.as_json(), '+')}, p = {difference.p:.2g}: "
            say(f"  {display_name(name):<{width}}  {difference.value:+.6f}   {limits}{pair.verdict(name)}")
    say("\neach p is that of its line alone; where many are compared, some p are small by chance")


SHOWN_HEAD = [name for name in HEAD if name != "recall@1%"]
"""The measures of the head in tables: those of `HEAD` but for one, which differs from the lift by a factor only."""


def _contingency(rates: Mapping[str, Any], weighted: bool) -> str:
    cell = {name: f"{rates[name]:.9g}" if weighted else str(rates[name]) for name in ("tp", "fn", "fp", "tn")}
    rows = [["positive rows", cell["tp"], cell["fn"]], ["negative rows", cell["fp"], cell["tn"]]]
    return format_table(["weights" * weighted, "called positive", "called negative"], rows)


def _limits(interval: Mapping[str, Any], sign: str = "", of: str = "") -> str:
    """Return the limits of an interval, and what they are `of`; or why there are none."""
    if interval.get("why"):
        return f"no interval: {interval['why']}"
    return f"{interval['low']:{sign}.6f} to {interval['high']:{sign}.6f} ({interval['method']}{of})"


def _describe_rows(evaluated: Evaluated) -> str:
    measures = evaluated.models[0].measures
    text = f"{evaluated.data}: {format_rows(measures['n'])}, {measures['n_pos']} positive, {measures['n_neg']} negative"
    if weights := measures.get("weights"):
        sizes = f"{weights['effective_positive']:.6g} and {weights['effective_negative']:.6g} rows of equal weight"
        text += f"; by weight {weights['positive']:.6g} positive and {weights['negative']:.6g} negative"
        text += f", which say as much as {sizes} (the effective sample size)"
    return text
