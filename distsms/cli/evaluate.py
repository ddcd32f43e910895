"""Evaluate a model on labelled rows: ROCArea, PRBEP, average precision, contingency table, F1, precision at K."""

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
n+ highest scores, its expected value where scores tie there; average precision is scikit-learn's. A row is called
positive where its score is at least the threshold stored with the model, or --threshold. --k adds precision and recall
among the K highest scores.

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

    from distsms import api, model, report

    with comm.together():
        judged = model.load(args.model)
    wanted = {name: getattr(args, name) for name in ("threshold", "k", "ignore_new_features", "zero_based")}
    found: dict[str, Any] = {"model": args.model, "data": args.data, **api.evaluate(judged, args.data, comm, **wanted)}
    if not comm.is_root:
        return EXIT_OK
    if args.json:
        print(report.to_json(found))
        return EXIT_OK
    print(f"{args.model} on {args.data}: {found['n']} rows, {found['n_pos']} positive, {found['n_neg']} negative")
    if not os.path.isdir(args.data):
        zero_based = judged.info["zero_based"] if args.zero_based is None else args.zero_based
        positive = judged.info["label_map"]["+1"]
        print(f"  text with columns counted from {0 if zero_based else 1}, positive label {positive}")
    if not (found["n_pos"] and found["n_neg"]):
        print("  only one class is present: ROCArea and what rests on the missing class are not defined (nan)")
    more = api.more_measures(judged.info, args.k)
    if any(math.isnan(found[name]) for name in more if "@" in name):
        print(f"  there are only {found['n']} rows: what is asked for beyond is not defined (nan)")
    of_order = {"ROCArea": "rocarea", "PRBEP": "prbep", "average precision": "average_precision"}
    at_threshold = {"precision": "precision", "recall": "recall", "F1": "f1"}
    for name in more:
        (of_order if "@" in name else at_threshold)[name] = name
    at_threshold["error rate"] = "error_rate"
    width = max(map(len, (*of_order, *at_threshold)))
    print("".join(f"  {name:<{width}} {found[one]:.6f}\n" for name, one in of_order.items()), end="")
    print(f"at the threshold {found['threshold']:.6g}")
    print("".join(f"  {name:<{width}} {found[one]:.6f}\n" for name, one in at_threshold.items()))
    lines = [
        ["positive rows", str(found["tp"]), str(found["fn"])],
        ["negative rows", str(found["fp"]), str(found["tn"])],
    ]
    print(report.table(["", "called positive", "called negative"], lines))
    return EXIT_OK
