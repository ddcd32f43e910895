"""Evaluate a model on labelled rows: ROCArea, PRBEP, contingency table, F1, precision and recall at K."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.cli.types import add_threads, count, finite
from distsms.errors import EXIT_OK

if TYPE_CHECKING:
    from distsms.comm import Communicator

NAME = "evaluate"
USAGE = "MODEL DATA|FILE [options]"
EPILOG = """\
All figures are exact over all rows of all ranks. ROCArea counts a tied pair one half; PRBEP is the precision among the
n+ highest scores, its expected value where scores tie there. A row is called positive where its score is at least the
threshold stored with the model, or --threshold. --k adds precision and recall among the K highest scores.

examples:
  distsms evaluate model.h5 data/test
  mpirun -n 8 distsms evaluate model.h5 data/test --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms evaluate` takes."""
    parser.add_argument("model", metavar="MODEL", help="a model written by `distsms train`")
    parser.add_argument("data", metavar="DATA", help="a data set made by `distsms shard`, or an svmlight file")
    parser.add_argument(
        "--threshold", type=finite, help="call a row positive from this score on (default: the model's)"
    )
    parser.add_argument(
        "--k", type=count, metavar="K", help="also precision@K and recall@K (default: the K that the model is for)"
    )
    parser.add_argument("--ignore-new-features", action="store_true", help="leave out columns that the model lacks")
    base = parser.add_mutually_exclusive_group()
    text = "the svmlight file counts columns from %d (default: as the model's training data did)"
    base.add_argument("--zero-based", action="store_true", default=None, help=text % 0)
    base.add_argument("--one-based", action="store_false", dest="zero_based", default=None, help=text % 1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_threads(parser)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Evaluate. Collective."""
    import math
    import os

    from distsms import inputs, measures, model, report

    with comm.together():
        judged = model.load(args.model)
    threshold = judged.threshold if args.threshold is None else args.threshold
    rows = inputs.rows_for(judged, args.data, comm, args.ignore_new_features, zero_based=args.zero_based)
    scores = inputs.scores(judged, rows, args.data, comm)[rows.counted]
    labels = rows.labels[rows.counted]
    ranked = measures.ranking(scores, labels, comm)
    table = measures.contingency(scores, labels, threshold, comm)
    more = {name: measures.value(name, scores, labels, threshold, comm) for name in _more(judged.info, args.k)}
    if not comm.is_root:
        return EXIT_OK
    found: dict[str, Any] = {
        "model": args.model,
        "data": args.data,
        "n": ranked.n_pos + ranked.n_neg,
        "n_pos": ranked.n_pos,
        "n_neg": ranked.n_neg,
        "rocarea": ranked.rocarea,
        "prbep": ranked.prbep,
        "threshold": threshold,
        **{name: getattr(table, name) for name in ("tp", "fp", "fn", "tn", "precision", "recall", "f1", "error_rate")},
        **more,
    }
    if args.json:
        print(report.to_json(found))
        return EXIT_OK
    print(f"{args.model} on {args.data}: {found['n']} rows, {ranked.n_pos} positive, {ranked.n_neg} negative")
    if not os.path.isdir(args.data):
        zero_based = judged.info["zero_based"] if args.zero_based is None else args.zero_based
        positive = judged.info["label_map"]["+1"]
        print(f"  text with columns counted from {0 if zero_based else 1}, positive label {positive}")
    if not (ranked.n_pos and ranked.n_neg):
        print("  only one class is present: ROCArea and what rests on the missing class are not defined (nan)")
    if any(math.isnan(more[name]) for name in more if "@" in name):
        print(f"  there are only {found['n']} rows: what is asked for beyond is not defined (nan)")
    of_order = {"ROCArea": ranked.rocarea, "PRBEP": ranked.prbep}
    at_threshold = {"precision": table.precision, "recall": table.recall, "F1": table.f1}
    for name, one in more.items():
        (of_order if "@" in name else at_threshold)[name] = one
    at_threshold["error rate"] = table.error_rate
    width = max(map(len, (*of_order, *at_threshold)))
    print("".join(f"  {name:<{width}} {one:.6f}\n" for name, one in of_order.items()), end="")
    print(f"at the threshold {threshold:.6g}")
    print("".join(f"  {name:<{width}} {one:.6f}\n" for name, one in at_threshold.items()))
    lines = [["positive rows", str(table.tp), str(table.fn)], ["negative rows", str(table.fp), str(table.tn)]]
    print(report.table(["", "called positive", "called negative"], lines))
    return EXIT_OK


def _more(info: dict[str, Any], k: int | None) -> list[str]:
    """The measures to show besides those that are always shown: what the model is for, and the two at k."""
    from distsms import measure_names

    trained = info.get("measure", "rocarea")
    k = k or measure_names.at(trained)
    names = [f"precision@{k}", f"recall@{k}"] if k else []
    return names + [trained] * (measure_names.parse(trained)[0] == "f-beta" and trained != "f1")
